"""The callable compiled model: checks arguments, hands addresses to native code, returns fresh arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from burnish.comm.protocol import Comm
from burnish.errors import ArtifactError, InputError, TargetError
from burnish.ops.operator import Operator
from burnish.runtime import artifact as artifact
from burnish.runtime import variants as files
from burnish.runtime.abi import SCRATCH_STRIDE
from burnish.runtime.arguments import Arguments
from burnish.runtime.buffers import address_of, aligned, aligned_array, round_up
from burnish.runtime.callable import CompiledBase, ProfileRow, check_output, profile_rows, slow_text
from burnish.runtime.contexts import Contexts, unwatch_forks, watch_forks
from burnish.runtime.device import Device, DeviceCode, device_code
from burnish.runtime.devices import device_of
from burnish.runtime.executable import Executable, Host, TensorSpec
from burnish.runtime.gpu.arrays import is_on_gpu
from burnish.runtime.gpu.calls import GpuCalls, check_unordered
from burnish.runtime.gpu.cuda import CudaRunner
from burnish.runtime.gpu.streams import handle_of
from burnish.runtime.host import check_host, obstacle
from burnish.runtime.image import LoadedImage
from burnish.runtime.integers import check_integers, known_integers
from burnish.runtime.placement import copied_state, placed_params
from burnish.runtime.pool import asked_threads, pool
from burnish.runtime.quick import QuickCall
from burnish.runtime.runner import CpuCode, CpuRunner, ExecutableInstance
from burnish.runtime.sized import KEPT, ArenaPlanner, Beginnings, Sized, bind, hints, sized
from burnish.runtime.state import ModuleStates, state_views
from burnish.runtime.structures import Structures
from burnish.runtime.variants import Variant
from burnish.runtime.workspace import Workspace, borrow, give_back

IN_PYTHON = "a step in Python"


class Module(CompiledBase):
    """A compiled model as a function from NumPy arrays to NumPy arrays. Calls from several threads run at the same
    time, as many as there are cores: one on all of its threads, others on their own. Calls of a model with state, with
    collectives or on a device take turns.

    A call that comes in the middle of another one in the same thread, from a signal handler or a finalizer, runs on a
    copy; a model with state, which a copy would not change, refuses it. Copies, by ``copy.copy`` or ``copy.deepcopy``,
    share code and parameters, which never change, and nothing else: they can run at the same time, each with a state of
    its own. A module cannot be pickled: other processes load what ``save`` wrote.

    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)})
    >>> model, y = bn.compile(graph, rewrite=False), np.empty(3, "f4")
    >>> model.run_into([np.array([-1, 0, 2], "f4")], [y])
    >>> y, isinstance(model, bn.Module), str(model.inputs[0]), len(model.profile(y, repeat=1))
    (array([0., 0., 2.], dtype=float32), True, 'x: float32[3]', 1)
    """

    def __init__(
        self,
        executable: Executable,
        threads: int | None = None,
        *,
        externs: Mapping[str, Operator] | None = None,
        comm: Comm | None = None,
        device: Device | None = None,
    ) -> None:
        """Loads the machine code and reserves arena and scratch; ``threads`` defaults to what the model was compiled
        for, as far as there are cores, else to all cores of this process. ``externs``: opaque operators by name, beside
        Burnish's own. ``comm``: with which collectives are made. ``device``: what runs code of another form than this
        machine's.

        Raises ArtifactError if this machine cannot run the executable or has too little memory, ParameterError for
        a wrong number of ``threads``, and TargetError for steps that a device has not.
        """
        self._externs, self._comm, self._all = dict(externs or {}), comm, tuple[Variant, ...]()
        device = device if device is not None else device_of(executable.target)
        if device is not None:
            code: CpuCode | DeviceCode = device_code(executable, device, threads)
        else:
            check_host(executable.target)
            workers = pool(executable.driver, asked_threads(executable.info) if threads is None else threads)
            executable = placed_params(executable, workers)
            code = CpuCode(workers, LoadedImage(executable.code))
        self._set_up(executable, code, aligned(executable.params), executable.state)

    def _set_up(
        self, executable: Executable, code: CpuCode | DeviceCode, params: np.ndarray, state: np.ndarray
    ) -> None:
        self.executable = executable
        self._structures = Structures(executable)
        self._integers = known_integers(executable.info, len(self.inputs))
        self._arguments = Arguments(self.inputs, executable.info)
        self._pool, self._code, self._params = code.workers, code, params
        self._state_bytes = copied_state(executable, state, code.workers)
        self._runner = code.runner(ExecutableInstance(executable, params, self._state_bytes, self._externs, self._comm))
        self._run = self._runner.run
        self._moving = self._runner if isinstance(self._runner, CudaRunner) and executable.states else None
        self._seen: dict[tuple[Any, ...], Sized] = {}  # by the shapes of inputs
        self._planner = ArenaPlanner(executable)
        self._now = self._sizes(hints(executable.dims))
        self._fixed = self._now if len(executable.dims) == len(executable.counted) else None
        self._beginnings = Beginnings(executable.outputs)
        self._workspace: Workspace | None = None
        self._for(self._now)
        if self._workspace_bytes:
            try:
                workspace = borrow(self._workspace_bytes)
            except (MemoryError, OSError, OverflowError, ValueError) as error:
                needed = f"{self._workspace_bytes} bytes of memory for a call"
                raise ArtifactError(f"the model needs {needed}, which this machine does not give: {error}") from error
            self._work_in(workspace)
            give_back(workspace)
        self._lock = threading.RLock()
        self._caller = 0  # the thread whose call uses the state above
        self._in_turn = bool(executable.states) or self._comm is not None or not isinstance(self._runner, CpuRunner)
        self._contexts = self._new_contexts()
        self._quick, self._gpu = QuickCall.of(self), GpuCalls.of(self)
        watch_forks(self)

    def __copy__(self) -> Module:
        twin = object.__new__(type(self))
        twin._externs, twin._comm, twin._all = self._externs, self._comm, self._all
        twin._set_up(self.executable, self._code, self._params, self.state_bytes())
        return twin

    def _new_contexts(self) -> Contexts:
        return Contexts(self, None if self._in_turn else self._context, self._workspace_bytes)

    def _context(self) -> Module:
        """Another of the contexts of this module."""
        twin = object.__new__(Module)
        twin._externs, twin._comm, twin._all = self._externs, None, ()
        twin._set_up(self.executable, self._code, self._params, self.state_bytes())
        twin._seen, twin._contexts = self._seen, self._contexts
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Module cannot be pickled: write it with m.save(path), and read it with burnish.load(path)")

    def sharing(self, other: Module) -> Module:
        """Itself with the parameters of another module in the place of its own, where they are the same bytes."""
        if self._params is other._params or not np.array_equal(self._params, other._params):
            return self
        twin = object.__new__(type(self))
        twin._externs, twin._comm, twin._all = self._externs, self._comm, self._all
        executable = replace(self.executable, params=other._params)
        twin._set_up(executable, self._code, other._params, self.state_bytes())
        return twin

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and dtypes of the inputs, in the order of a call."""
        return self.executable.inputs[: self._structures.count]

    @property
    def row_offsets(self) -> dict[str, int]:
        """The inputs that say where the rows of a graph's structure begin, and the most that they may be."""
        return self._structures.offsets

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and dtypes of the outputs, in order."""
        return self.executable.outputs

    @property
    def variant(self) -> str:
        """The name of the target that its code is for, where it was compiled for several; else empty."""
        return str(self.executable.info.get("variant", ""))

    @property
    def variants(self) -> dict[str, str]:
        """Target variants that ``save`` writes, by name, each with what keeps it from running here (empty: nothing).
        Empty for a model compiled for one target, and a loaded one.
        """
        return {v.name: obstacle(v.executable.target) for v in self._all}

    def hold(self, variants: Sequence[Variant]) -> None:
        """Makes ``save`` write these variants; this module's executable is one of them."""
        self._all = tuple(variants)

    @property
    def states(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and dtypes of the states."""
        return self.executable.states

    @property
    def info(self) -> Mapping[str, Any]:
        """Metadata in the artifact; see :meth:`note`."""
        return self.executable.info

    @property
    def threads(self) -> int:
        """Threads that a call runs on."""
        return self._pool.threads

    @property
    def calls_at_once(self) -> int:
        """Calls that run at the same time at most: 1 of a model with state, with collectives or on a device."""
        return self._contexts.most

    @property
    def graph(self) -> str:
        """The compiled graph as text."""
        return self.executable.graph

    @property
    def rewrites(self) -> dict[str, Any] | None:
        """Substitutions in the model: each one applied, the predicted and the measured gain, and whether they were
        kept. None where none were looked for.
        """
        return self.executable.info.get("rewrites")

    @property
    def stored(self) -> dict[str, Any] | None:
        """Weights in half precision: ``dtype``, how many ``weights`` and ``elements``, and the largest ``error`` of one
        relative to itself. None for a model as it was given.
        """
        return self.executable.info.get("stored")

    @property
    def slow(self) -> dict[str, str]:
        """Steps that are expected to be slow, by their labels, and why: kernels far from what the machine could do by a
        static estimate, and steps in Python. Known at compile time; nothing is timed.
        """
        rows = self.executable.info.get("kernels", ())
        kernels = {str(row["kernel"]): str(row["slow"]) for row in rows if row.get("slow")}
        return kernels | {step.label: IN_PYTHON for step in self.executable.steps if isinstance(step, Host)}

    def note(self, **facts: Any) -> None:
        """Adds facts to what the artifact keeps as ``info``: anything that JSON can hold."""
        self.executable = replace(self.executable, info={**self.executable.info, **facts})
        self._all = tuple(v.noted(facts) for v in self._all)
        self._integers = known_integers(self.executable.info, len(self.inputs))
        self._arguments = Arguments(self.inputs, self.executable.info, self._arguments.exemplary)
        self._quick, self._gpu = QuickCall.of(self), GpuCalls.of(self)
        self._contexts = self._new_contexts()

    @property
    def assumed(self) -> dict[str, str]:
        """Inputs whose first extent the model leaves open and was taken as 1, by the extent's name in the model."""
        return dict(self.executable.info.get("assumed", {}))

    @property
    def state(self) -> ModuleStates:
        """Persistent state of the model, kept from call to call: values to read and to replace, by name."""
        return ModuleStates.of(state_views(self.executable, self._state_bytes), self._state_access)

    @contextmanager
    def _state_access(self, writes: bool) -> Iterator[np.ndarray]:
        """The bytes of the state, as the last call left them, between two calls; ``writes``: they are changed."""
        with self._lock:
            if self._moving is not None:
                self._moving.fetch_state()
            yield self._state_bytes
            if writes and self._moving is not None:
                self._moving.state_changed()

    def state_bytes(self) -> np.ndarray:
        """A copy of the state's bytes as they are now."""
        if not self.executable.states:
            return self._state_bytes
        with self._state_access(False) as found:
            return found.copy()

    def reset(self) -> None:
        """Gives every state its initial value: that with which the model was compiled."""
        with self._state_access(True) as found:
            found[:] = self.executable.initial

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the ``arena`` (activations), the ``params``, the ``state`` if there is any, the ``scratch`` of all
        threads, and the ``code``.

        Where the arena depends on dimensions it is that at their hints.
        Arena and scratch are needed for the time of a call: modules that run in turn share them.
        """
        state = {"state": self._state_bytes.nbytes} if self.executable.states else {}
        return {
            "arena": self.executable.arena_bytes,
            "params": self._params.nbytes,
            **state,
            "scratch": self._workspace_bytes - self._scratch_offset,
            "code": len(self.executable.code.data),
        }

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The output, or the tuple of several outputs: new arrays, aligned to 64 bytes.

        Inputs are given in order or by name: NumPy arrays, or objects with ``__dlpack__`` in CPU memory. They are not
        copied unless they are not contiguous. Of a model that a GPU runs some may be there, by ``__dlpack__`` or
        ``__cuda_array_interface__``; then the outputs are there, too (``burnish.runtime.gpu.arrays.GpuArray``),
        computed on ``stream=``, by default that of PyTorch's tensors; the call does not wait for it. Raises InputError
        for what is missing, unknown, or of another shape or dtype than compiled.
        """
        plain = len(args) == self._arguments.count and not kwargs
        if plain and self._quick is not None and (found := self._quick(args)) is not None:
            return found
        stream = None
        if self._gpu is not None and kwargs:
            kwargs, stream = self._gpu.stream_in(kwargs)
        given = args if plain else self._arguments.bind(args, kwargs)
        if self._gpu is not None and any(map(is_on_gpu, given)):
            there = self._gpu(self, given, None, stream)
            return there[0] if len(there) == 1 else tuple(there)
        check_unordered(stream)
        arrays, now = self._accept_all(given)
        results = [aligned_array(shape, dtype) for shape, dtype in now.outputs]
        counted = self._execute([address_of(a) for a in arrays] + [address for _, address in results] + now.values, now)
        found = [array for array, _ in results]
        if counted:
            values = zip(self.executable.dims, now.values, strict=True)
            found = self._beginnings(found, {d.name: value for d, value in values} | counted)
        return found[0] if len(found) == 1 else tuple(found)

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any], *, stream: Any = None) -> None:
        """Calls the module, but writes to existing arrays: contiguous, writable, apart from each other; to the
        beginnings of those with extents that a call counts, given at their greatest. ``stream``: of a GPU, as of a
        call. Raises InputError.
        """
        if self._quick is not None and self._quick.into(inputs, outputs):
            return
        if self._gpu is not None and any(map(is_on_gpu, (*inputs, *outputs))):
            self._gpu(self, inputs, outputs, None if stream is None else handle_of(stream))
            return
        check_unordered(stream)
        arrays, now = self._accept_all(inputs)
        if len(outputs) != len(self.executable.outputs):
            raise InputError(f"{len(outputs)} output arrays given, the model has {len(self.executable.outputs)}")
        for i, (array, (shape, dtype)) in enumerate(zip(outputs, now.outputs, strict=True)):
            name = self.executable.outputs[i].name
            check_output(name, array, shape, dtype)
            if any(np.may_share_memory(array, other) for other in [*arrays, *outputs[:i]]):
                raise InputError(f"output '{name}' shares memory with another array, allowed: its own memory")
        self._execute([address_of(a) for a in [*arrays, *outputs]] + now.values, now)

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Time of every step, in order: medians over ``repeat`` runs, after one that is not counted. They change the
        state as calls do.
        """
        arrays, now = self._accept_all(self._arguments.bind(args, kwargs))
        results = [aligned_array(shape, dtype) for shape, dtype in now.outputs]
        addresses = [address_of(a) for a in arrays] + [address for _, address in results] + now.values
        steps = self.executable.steps
        stamps = np.zeros((len(steps) + 1, 2), np.int64)  # struct timespec: seconds, nanoseconds
        rounds = []
        for _ in range(repeat + 1):
            self._execute(addresses, now, profile=address_of(stamps))
            rounds.append(np.diff(stamps[:, 0] * 10**9 + stamps[:, 1]))
        return profile_rows(steps, np.array(rounds[1:]), self.slow)

    @property
    def has_clock(self) -> bool:
        """Whether a GPU runs all of the model, and times it by its own clock: :meth:`replays`."""
        return bool(getattr(self._runner, "replayed", False))

    def replays(self, calls: int) -> list[float]:
        """Seconds of each of ``calls`` calls by a GPU's own clock, on the inputs of the last call, which nothing is
        copied for. Raises TargetError where no GPU runs the model, and before the first call.
        """
        run = getattr(self._runner, "replays", None)
        if run is None:
            raise TargetError("replays: found a model that no GPU runs; allowed: one that is compiled for a GPU")
        return list(run(calls))

    def save(self, path: str | Path, *, key: bytes | None = None) -> None:
        """Writes the artifact, which ``load`` reads; complete or not at all, and never into a file that is in use. The
        state is saved as it is now.

        All ``variants`` are written, if there are any; of a loaded module, the one that runs.
        ``key``: 16 bytes or more that sign the file, which then loads with the same ``key`` alone. Raises OSError.
        """
        now = self.state_bytes()
        if self._all:
            files.save(files.with_state(self._all, now), path, key)
            return
        artifact.save(replace(self.executable, state=now) if self.executable.states else self.executable, path, key)

    def current_executable(self) -> Executable:
        """The executable with the state as it is now."""
        return replace(self.executable, state=self.state_bytes())

    def close(self) -> None:
        """Frees parameters, state and code, unless copies share them; waits for calls of other threads. Later calls
        raise ClosedError. Raises InputError in the middle of a call of the same thread.
        """
        if self.closed:
            return
        own = self._contexts.first is self
        with self._contexts.closing() if own else nullcontext(), self._lock:
            if self._caller:
                raise InputError("a model is closed in the middle of a call of it; allowed: after it")
            if own:
                self._contexts.close()
            unwatch_forks(self)
            super().close()

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        kernels = f"{len(self.executable.calls)} kernels, {self.threads} threads"
        precision = self.executable.info.get("precision")
        return [kernels, f"precision {precision}" if precision else "", slow_text(self.slow)]

    def check_integers(self, arrays: Sequence[np.ndarray | None]) -> None:
        """Raises InputError for labels and indices out of range among the inputs; None for one not to be checked."""
        if self._integers:
            check_integers(self._integers, [spec.name for spec in self.inputs], arrays)

    def _execute(self, addresses: list[int], now: Sized, profile: int | None = None) -> dict[str, int]:
        """Runs all steps; the dimensions that they have counted."""
        # Python runs handlers of signals and finalizers between any two steps, also here: they find the lock their own,
        # and the state in use. None of them runs within the native code.
        contexts = self._contexts
        fair = self._in_turn or not contexts.waiting
        context = self if fair and self._lock.acquire(self._in_turn) else contexts.take()
        try:
            return context._execute_here(addresses, now, profile)
        finally:
            context._lock.release()
            if contexts.waiting:
                contexts.released()

    def _execute_here(self, addresses: list[int], now: Sized, profile: int | None) -> dict[str, int]:
        """As ``_execute``, in this context, whose lock is held."""
        if self._caller:
            if self.executable.states:
                raise InputError("a model with state is called in the middle of a call of it; allowed: after it")
            return self.__copy__()._execute(addresses, now, profile)
        workspace = None
        try:
            self._caller = threading.get_ident()
            if not self._pool.running:
                self._pool.start()
            if now is not self._now:
                self._for(now)
            workspace = borrow(self._workspace_bytes) if self._workspace_bytes else None
            if workspace and workspace is not self._workspace:
                self._work_in(workspace)
            self._run(addresses, now, profile)
            return self._runner.counted() if self.executable.counted else {}
        finally:
            self._caller = 0
            if workspace:
                give_back(workspace)

    def _for(self, now: Sized) -> None:
        """Makes calls find their arguments where they are for the sizes of this one."""
        self._now, self._workspace = now, None
        self._runner.place(now.offsets)
        self._scratch_offset = round_up(now.arena_bytes, SCRATCH_STRIDE)  # in a workspace, behind the arena
        self._workspace_bytes = self._scratch_offset + self._runner.runtime.scratch_stride * self._pool.threads

    def _work_in(self, workspace: Workspace) -> None:
        """Puts arena and scratch into ``workspace``."""
        self._workspace = workspace  # the one of the last call
        self._runner.io[0] = workspace.address
        self._runner.runtime.scratch = workspace.address + self._scratch_offset

    def _accept_all(self, values: Sequence[Any]) -> tuple[list[np.ndarray], Sized]:
        """The values as arrays that kernels can read, and what their shapes decide. Raises InputError."""
        known = self._fixed or self._seen.get(tuple([getattr(value, "shape", None) for value in values]))
        arrays = self._arguments.arrays(values, known.inputs if known else None)
        self.check_integers(arrays)
        now = known or self._sized(arrays)
        return self._structures.complete(values, arrays, now.values), now

    def _sized(self, arrays: Sequence[np.ndarray]) -> Sized:
        """Sizes, offsets and types for the shapes of these inputs, remembered for the last few. Raises InputError."""
        shapes = tuple([array.shape for array in arrays])
        found = self._sizes(bind(self.inputs, shapes))
        while len(self._seen) >= KEPT:
            self._seen.pop(next(iter(self._seen), shapes), None)
        self._seen[shapes] = found
        return found

    def _sizes(self, values: Mapping[str, int]) -> Sized:
        """Sizes, offsets and types at these values of the dimensions."""
        return sized(self.executable, values, self._planner, self._runner.places, self._runner.extents)

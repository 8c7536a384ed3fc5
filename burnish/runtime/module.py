"""The callable compiled model: checks arguments, hands addresses to native code, returns fresh arrays."""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import numpy as np

from burnish.errors import ArtifactError, InputError
from burnish.runtime import artifact
from burnish.runtime.buffers import address_of, aligned, aligned_array, numpy_dtype, round_up
from burnish.runtime.dlpack import from_dlpack
from burnish.runtime.executable import Executable, TensorSpec
from burnish.runtime.host import check_host
from burnish.runtime.image import LoadedImage
from burnish.runtime.pool import Pool, available_cores, pool
from burnish.runtime.sized import KEPT, Sized, bind, hints, sized
from burnish.runtime.workspace import Workspace, borrow, give_back

_SCRATCH_STRIDE = 4096  # bytes: a multiple of it per thread, so that no two threads touch one page
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class ProfileRow:
    """One kernel call: median time in microseconds, and its share of the sum over all calls."""

    node: str
    kernel: str
    microseconds: float
    share: float


class _Runtime(ctypes.Structure):
    """``struct Runtime``, the second argument of every kernel (``%Runtime`` of entry.py)."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("profile", ctypes.c_void_p),
    )


class _Plan(ctypes.Structure):
    """``%Plan`` of entry.py."""

    _fields_ = (
        ("calls", ctypes.c_void_p),
        ("call_count", ctypes.c_int64),
        ("patches", ctypes.c_void_p),
        ("patch_count", ctypes.c_int64),
        ("clock", ctypes.c_void_p),
    )


class Module:
    """A compiled model as a function from NumPy arrays to NumPy arrays. Calls from several threads take turns.

    A call that comes in the middle of another one in the same thread, from a signal handler or a finalizer, runs on a
    copy. Copies, by ``copy.copy`` or ``copy.deepcopy``, share code and parameters, which never change, and nothing
    else: they can run at the same time. A module cannot be pickled: other processes load what ``save`` wrote.
    """

    def __init__(self, executable: Executable, threads: int | None = None) -> None:
        """Loads the machine code and reserves arena and scratch; ``threads`` defaults to what the model was compiled
        for, as far as there are cores, else to all cores of this process.

        Raises ArtifactError if this machine cannot run the executable or has too little memory, and ParameterError for
        a wrong number of ``threads``.
        """
        check_host(executable.target)
        workers = pool(executable.driver, _asked_threads(executable) if threads is None else threads)
        self._set_up(executable, workers, LoadedImage(executable.code), aligned(executable.params))

    def _set_up(self, executable: Executable, workers: Pool, code: LoadedImage, params: np.ndarray) -> None:
        self.executable = executable
        self._inputs = [(s.shape, numpy_dtype(s.dtype)) for s in executable.inputs]
        self._pool, self._code, self._params = workers, code, params
        stride = round_up(executable.scratch_bytes, _SCRATCH_STRIDE)
        self._runtime = _Runtime(self._pool.parallel, self._pool.address, None, stride, self._pool.threads, None)
        self._io = (ctypes.c_void_p * (1 + len(self._inputs) + len(executable.outputs) + len(executable.dims)))()
        self._plan = self._make_plan()
        self._seen: dict[tuple[Any, ...], Sized] = {}  # by the shapes of inputs
        self._now = sized(executable, hints(executable.dims), self._places)
        self._fixed = None if executable.dims else self._now
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._run = run(self._pool.driver.address("burnish_run"))
        self._run_args = tuple(ctypes.addressof(x) for x in (self._plan, self._io, self._runtime))
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
        _watch_forks()
        _modules.add(self)

    def __copy__(self) -> Module:
        twin = object.__new__(type(self))
        twin._set_up(self.executable, self._pool, self._code, self._params)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Module cannot be pickled: write it with m.save(path), and read it with burnish.load(path)")

    def _make_plan(self) -> _Plan:
        """The call table. Addresses of parameters are final; those of inputs, outputs and arena become patches."""
        calls = self.executable.calls
        params = address_of(self._params)
        outputs, dims = 1 + len(self._inputs), 1 + len(self._inputs) + len(self.executable.outputs)
        first_io = {"arena": 0, "input": 1, "output": outputs, "size": dims}
        planned = bool(self.executable.buffers)
        places: list[tuple[int, int]] = []
        args: list[int] = []
        table: list[tuple[int, int]] = []
        patches: list[tuple[int, int, int]] = []
        for call in calls:
            table.append((self._code.address(call.kernel), len(args)))
            for slot in call.args:
                if slot.space == "param":
                    args.append(params + slot.offset)
                    continue
                placed = planned and slot.space == "arena"  # in a buffer whose place depends on dimensions
                places.append((slot.index if placed else -1, slot.offset))
                patches.append((len(args), first_io[slot.space] + (0 if placed else slot.index), slot.offset))
                args.append(0)
        self._args = np.array(args, np.uint64)
        self._places = np.array(places, np.int64).reshape(-1, 2)
        place = address_of(self._args)
        table = [(kernel, place + 8 * position) for kernel, position in table]
        patches = [(place + 8 * position, index, offset) for position, index, offset in patches]
        self._table = np.array(table, np.uint64).reshape(-1, 2)
        self._patches = np.array(patches, np.uint64).reshape(-1, 3)
        clock = ctypes.cast(_libc.clock_gettime, ctypes.c_void_p)
        return _Plan(address_of(self._table), len(table), address_of(self._patches), len(patches), clock.value)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.executable.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.executable.outputs

    @property
    def threads(self) -> int:
        return self._pool.threads

    @property
    def graph(self) -> str:
        """The compiled graph as text."""
        return self.executable.graph

    @property
    def rewrites(self) -> dict[str, Any] | None:
        """What substitutions found for the model: each one applied, the predicted and the measured gain, and whether
        they were kept. None where none were looked for.
        """
        return self.executable.info.get("rewrites")

    def note(self, **facts: Any) -> None:
        """Adds facts to what the artifact keeps as ``info``: anything that JSON can hold."""
        self.executable = replace(self.executable, info={**self.executable.info, **facts})

    @property
    def assumed(self) -> dict[str, str]:
        """Inputs whose first extent the model leaves open and was taken as 1, by the extent's name in the model."""
        return dict(self.executable.info.get("assumed", {}))

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the ``arena`` (activations), the ``params``, the ``scratch`` of all threads, and the ``code``.

        Where the arena depends on dimensions it is that at their hints.
        Arena and scratch are needed for the time of a call: modules that run in turn share them.
        """
        return {
            "arena": self.executable.arena_bytes,
            "params": self._params.nbytes,
            "scratch": self._workspace_bytes - self._scratch_offset,
            "code": len(self.executable.code.data),
        }

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The output, or the tuple of several outputs: new arrays, aligned to 64 bytes.

        Inputs are given in order or by name: NumPy arrays, or objects with ``__dlpack__`` in CPU memory. They are not
        copied unless they are not contiguous. Raises InputError for what is missing, unknown, or of another shape or
        dtype than compiled.
        """
        given = args if len(args) == len(self._inputs) and not kwargs else self._bind(args, kwargs)
        arrays, now = self._accept_all(given)
        results = [aligned_array(shape, dtype) for shape, dtype in now.outputs]
        self._execute([address_of(a) for a in arrays] + [address for _, address in results] + now.values, now)
        return results[0][0] if len(results) == 1 else tuple(array for array, _ in results)

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[np.ndarray]) -> None:
        """As calling the module, but writes to existing arrays: contiguous, writable, apart from each other.

        Raises InputError.
        """
        arrays, now = self._accept_all(inputs)
        if len(outputs) != len(self.executable.outputs):
            raise InputError(f"{len(outputs)} output arrays given, the model has {len(self.executable.outputs)}")
        for i, (array, (shape, dtype)) in enumerate(zip(outputs, now.outputs, strict=True)):
            spec = self.executable.outputs[i]
            if array.shape != shape or array.dtype != dtype:
                raise InputError(f"output '{spec.name}' is {_describe(array)}, allowed: {spec.dtype}{list(shape)}")
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise InputError(f"output '{spec.name}' is not contiguous or not writable, allowed: both")
            if any(np.may_share_memory(array, other) for other in [*arrays, *outputs[:i]]):
                raise InputError(f"output '{spec.name}' shares memory with another array, allowed: its own memory")
        self._execute([address_of(a) for a in [*arrays, *outputs]] + now.values, now)

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Time of every kernel call, in order: medians over ``repeat`` runs, after one that is not counted."""
        arrays, now = self._accept_all(self._bind(args, kwargs))
        results = [aligned_array(shape, dtype) for shape, dtype in now.outputs]
        addresses = [address_of(a) for a in arrays] + [address for _, address in results] + now.values
        calls = self.executable.calls
        stamps = np.zeros((len(calls) + 1, 2), np.int64)  # struct timespec: seconds, nanoseconds
        rounds = []
        for _ in range(repeat + 1):
            self._execute(addresses, now, profile=address_of(stamps))
            rounds.append(np.diff(stamps[:, 0] * 10**9 + stamps[:, 1]))
        medians = [statistics.median(times) / 1e3 for times in np.array(rounds[1:]).T.tolist()]
        total = sum(medians) or 1.0
        return [
            ProfileRow(call.node, call.kernel, time, time / total) for call, time in zip(calls, medians, strict=True)
        ]

    def save(self, path: str | Path, *, key: bytes | None = None) -> None:
        """Writes the artifact, which ``load`` reads; complete or not at all, and never into a file that is in use.

        ``key``: 16 bytes or more that sign the file, which then loads with the same ``key`` alone. Raises OSError.
        """
        artifact.save(self.executable, path, key)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"Module({inputs} -> {outputs}; {len(self.executable.calls)} kernels, {self.threads} threads)"

    def _execute(self, addresses: list[int], now: Sized, profile: int | None = None) -> None:
        # Python runs handlers of signals and finalizers between any two steps, also here: they find the lock their own,
        # and the state in use. None of them runs within the native code.
        with self._lock:
            if self._caller:
                self.__copy__()._execute(addresses, now, profile)
                return
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
                self._io[1:] = addresses  # type: ignore[assignment]
                self._runtime.profile = profile
                self._run(*self._run_args)
            finally:
                self._caller = 0
                if workspace:
                    give_back(workspace)

    def _for(self, now: Sized) -> None:
        """Makes calls find their arguments where they are for the sizes of this one."""
        self._now, self._workspace = now, None
        if len(now.offsets):
            self._patches[:, 2] = now.offsets
        self._scratch_offset = round_up(now.arena_bytes, _SCRATCH_STRIDE)  # in a workspace, behind the arena
        self._workspace_bytes = self._scratch_offset + self._runtime.scratch_stride * self._pool.threads

    def _work_in(self, workspace: Workspace) -> None:
        """Puts arena and scratch into ``workspace``."""
        self._workspace = workspace  # the one of the last call
        self._io[0] = workspace.address
        self._runtime.scratch = workspace.address + self._scratch_offset

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        names = [spec.name for spec in self.inputs]
        values = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise InputError(f"input '{name}' is unknown; the model's inputs: {', '.join(map(str, self.inputs))}")
            if name in values:
                raise InputError(f"input '{name}' is given twice, by position and by name")
            values[name] = value
        missing = [str(spec) for spec in self.inputs if spec.name not in values]
        if missing:
            raise InputError(f"input {'; '.join(missing)} is missing")
        return [values[name] for name in names] + list(args[len(names) :])

    def _accept_all(self, values: Sequence[Any]) -> tuple[list[np.ndarray], Sized]:
        """The values as arrays that kernels can read, and what their shapes decide. Raises InputError."""
        if len(values) != len(self._inputs):
            listed = "; ".join(map(str, self.inputs)) or "none"
            raise InputError(f"{len(values)} inputs given, the model has {len(self._inputs)}: {listed}")
        known = self._fixed or self._seen.get(tuple([getattr(value, "shape", None) for value in values]))
        arrays = []
        for i, (value, (shape, dtype)) in enumerate(zip(values, known.inputs if known else self._inputs, strict=True)):
            if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
                value = self._convert(self.inputs[i], value)
            # Kernels read whole vectors at any address, but elements at multiples of their size.
            if not (value.flags.c_contiguous and value.flags.aligned):
                value = np.array(value, order="C")
            arrays.append(value)
        return arrays, known or self._sized(arrays)

    def _convert(self, spec: TensorSpec, value: Any) -> np.ndarray:
        """The value as an array of exactly the dtype and shape of ``spec``. Raises InputError."""
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
        elif hasattr(value, "__dlpack__"):
            try:
                array = from_dlpack(value)
            except InputError as error:
                raise InputError(f"input '{spec.name}': {error}") from error.__cause__
        else:
            raise InputError(
                f"input '{spec.name}' is a {type(value).__name__}, allowed: a NumPy array or an object with __dlpack__"
            )
        if self.executable.info.get("converts") and array.dtype.kind in "fiub":
            array = array.astype(numpy_dtype(spec.dtype), copy=False)
        if array.dtype != numpy_dtype(spec.dtype) or not spec.accepts(array.shape):
            allowed = str(spec).removeprefix(f"{spec.name}: ")
            remedy = self._remedy(spec, array)
            raise InputError(f"input '{spec.name}' is {_describe(array)}, allowed: {allowed}{remedy}")
        return array

    def _remedy(self, spec: TensorSpec, array: np.ndarray) -> str:
        """What to do about an array that differs from ``spec`` only in an extent that was assumed."""
        assumed = self.assumed.get(spec.name)
        if assumed is None or array.ndim != len(spec.shape) or array.shape[1:] != spec.shape[1:]:
            return ""
        return (
            f"; the first extent ('{assumed}') is open in the model and was taken as {spec.shape[0]}: compile with "
            f"shapes={{'{spec.name}': {array.shape}}}"
        )

    def _sized(self, arrays: Sequence[np.ndarray]) -> Sized:
        """What the shapes of these inputs decide, remembered for the last few. Raises InputError."""
        shapes = tuple([array.shape for array in arrays])
        found = sized(self.executable, bind(self.inputs, shapes), self._places)
        while len(self._seen) >= KEPT:
            self._seen.pop(next(iter(self._seen), shapes), None)
        self._seen[shapes] = found
        return found


def load(
    path: str | Path, threads: int | None = None, *, sha256: str | None = None, key: bytes | None = None
) -> Module:
    """The module saved in ``path``, ready to run, without LLVM. It is copied into memory: the file may change or go.

    An artifact is a program that runs with all rights of this process. Its checksums find damage, not intent: load only
    what you trust. ``sha256`` (of the file, as ``sha256sum`` prints it) refuses any other file; ``key`` (bytes) refuses
    what was not saved with the same ``key``. Raises ArtifactError for a damaged, inconsistent or refused file and one
    that this machine cannot run; OSError if it cannot be read or is no regular file.
    """
    return Module(artifact.read(path, sha256, key), threads)


def _asked_threads(executable: Executable) -> int | None:
    """The threads that the model was compiled for, or as many cores as there are."""
    asked = executable.info.get("threads")
    return min(asked, available_cores()) if isinstance(asked, int) and asked > 0 else None


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


_modules: WeakSet[Module] = WeakSet()


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """In a child, no other thread is left that could release a lock. The one that forked, in a handler, still can."""
    for module in _modules:
        if module._caller != threading.get_ident():
            module._lock, module._caller = threading.RLock(), 0

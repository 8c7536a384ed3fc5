"""CUDA device: executables on an NVIDIA GPU; all launches of a call are one graph, which is replayed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from burnish.codegen.gridcode import GridCode
from burnish.comm.protocol import Comm
from burnish.errors import InputError, TargetError
from burnish.machines.nvptx.machine import VECTOR_BYTES
from burnish.ops.operator import Operator
from burnish.runtime.buffers import ALIGNMENT, address_of, numpy_dtype, round_up
from burnish.runtime.device import unrolled
from burnish.runtime.executable import Call, Copy, Executable, Host, Repeat, Slot, TensorSpec
from burnish.runtime.gpu.arrays import GpuArray, checked, is_on_gpu
from burnish.runtime.gpu.bench import CudaBench
from burnish.runtime.gpu.driver import first_gpu
from burnish.runtime.runner import call_extern, find_extern, stamp
from burnish.runtime.sized import Sized

GRAPHS = 8  # kept at a time, for as many places of inputs and outputs


class CudaDevice:
    """The first GPU of this machine. Nothing is asked of the driver before something runs."""

    def bench(self, cpu: str) -> CudaBench:
        """As :meth:`burnish.runtime.device.TimedDevice.bench`."""
        return CudaBench(first_gpu(), cpu)

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        """As :meth:`burnish.runtime.device.Device.run`."""
        gpu, found = first_gpu(), GridCode.unpacked(code)
        gpu.enter()
        places = [gpu.allocate(array.nbytes) for array in memory] + [gpu.allocate(found.workspace)]
        try:
            for array, place in zip(memory, places, strict=False):
                gpu.upload(place, address_of(array), array.nbytes)
            kept = gpu.launch(gpu.functions(found), places)
            for number in found.written:
                gpu.download(address_of(memory[number]), places[number], memory[number].nbytes)
            del kept
        finally:
            gpu.free(*places)

    def runner(
        self,
        executable: Executable,
        kernels: Mapping[str, bytes],
        params: np.ndarray,
        state: np.ndarray,
        externs: Mapping[str, Operator],
        comm: Comm | None,
    ) -> CudaRunner:
        """What executes the steps of an executable."""
        del comm
        return CudaRunner(executable, kernels, params, state, externs)


class CudaRunner:
    """The steps of an executable on a GPU, its arena, parameters and state in the GPU's memory.

    At the first call everything is loaded and the launches are captured as a graph; a call copies inputs and state
    there, replays the graph, and copies outputs and state back. Operators in Python run on copies, between launches.
    """

    def __init__(
        self,
        executable: Executable,
        kernels: Mapping[str, bytes],
        params: np.ndarray,
        state: np.ndarray,
        externs: Mapping[str, Operator],
    ) -> None:
        """Raises TargetError for steps that a GPU cannot execute, ArtifactError for operators that are not known."""
        for step in executable.steps:
            if not isinstance(step, (Call, Copy, Host, Repeat)):
                raise TargetError(f"node '{step.node}': found {step.label}; allowed on a GPU: kernels, copies, Python")
        if executable.dims:
            raise TargetError("runtime: found open dimensions; allowed on a GPU: numbers")
        self.executable, self._kernels = executable, kernels
        self._params, self._state = params, state
        self._operators = {i: find_extern(s, externs) for i, s in enumerate(executable.steps) if isinstance(s, Host)}
        self._loaded: _Loaded | None = None
        self.io = [0]
        self.runtime = SimpleNamespace(scratch_stride=0, scratch=None)
        self.places, self.extents = np.zeros((0, 2), np.int64), list[tuple[int, int]]()

    def place(self, offsets: np.ndarray) -> None:
        """All places are static."""
        del offsets

    def run(self, addresses: list[int], now: Sized, profile: int | None = None) -> None:
        """Executes all steps on the inputs and outputs at ``addresses``. Raises TargetError without a driver or GPU."""
        del now
        loaded, inputs = self._ready(), len(self.executable.inputs)
        for at, place, spec in zip(addresses, loaded.inputs, self.executable.inputs, strict=False):
            loaded.gpu.upload(place, at, spec.nbytes)
        loaded.gpu.upload(loaded.state, address_of(self._state), self._state.nbytes)
        stamp(profile, 0)
        if profile is None and not self._operators:
            loaded.replay()
        else:
            self._by_steps(loaded, profile)
        for at, place, spec in zip(addresses[inputs:], loaded.outputs, self.executable.outputs, strict=False):
            loaded.gpu.download(at, place, spec.nbytes)
        loaded.gpu.download(address_of(self._state), loaded.state, self._state.nbytes)

    def _ready(self) -> _Loaded:
        """The executable in the GPU's memory. Raises TargetError without a driver or GPU."""
        if self._loaded is None:
            self._loaded = _Loaded(self.executable, self._kernels, self._params)
        self._loaded.gpu.enter()
        return self._loaded

    def run_there(self, inputs: Sequence[Any], outputs: Sequence[Any] | None = None) -> list[GpuArray]:
        """Executes all steps on arrays in the GPU's memory, in place, and waits for them; the outputs, new ones by
        default. Inputs may be in this machine's memory, too, from where they are copied. Raises InputError.
        """
        loaded, known = self._ready(), self.executable
        gpu = loaded.gpu
        places = [
            self._placed(loaded, number, spec, value)
            for number, (spec, value) in enumerate(zip(known.inputs, inputs, strict=True))
        ]
        found = [
            GpuArray(gpu, spec.shape, numpy_dtype(spec.dtype))
            if outputs is None
            else checked(gpu, "output", spec, outputs[number], numpy_dtype(spec.dtype))
            for number, spec in enumerate(known.outputs)
        ]
        _check_apart(known, [*zip(places, (s.nbytes for s in known.inputs), strict=True)], found)
        own = [
            place if array.place % VECTOR_BYTES else array.place
            for place, array in zip(loaded.outputs, found, strict=True)
        ]
        if self._state.nbytes:
            gpu.upload(loaded.state, address_of(self._state), self._state.nbytes)
        with loaded.at(places, own):
            if self._operators:
                self._by_steps(loaded, None)
            else:
                loaded.replay()
        for place, array in zip(own, found, strict=True):
            if place != array.place:
                gpu.copy(array.place, place, array.nbytes)
        if self._state.nbytes:
            gpu.download(address_of(self._state), loaded.state, self._state.nbytes)
        gpu.wait()
        return found

    def _placed(self, loaded: _Loaded, number: int, spec: TensorSpec, value: Any) -> int:
        """Where an input lies in the GPU's memory: what is not there, or where vectors may not be, is copied."""
        dtype, own = numpy_dtype(spec.dtype), loaded.inputs[number]
        if is_on_gpu(value):
            array = checked(loaded.gpu, "input", spec, value, dtype)
            loaded.kept.append(array)
            if array.place % VECTOR_BYTES == 0:
                return array.place
            loaded.gpu.copy(own, array.place, array.nbytes)
            return own
        loaded.gpu.upload(own, address_of(value), spec.nbytes)
        return own

    @property
    def replayed(self) -> bool:
        """Whether the launches are captured, so that :meth:`replays` times them: no operators in Python between."""
        return not self._operators

    def replays(self, calls: int) -> list[float]:
        """Seconds of each of ``calls`` replays by the GPU's own clock, on what its inputs hold since the last call.

        Nothing is copied from or to this machine's memory. Raises TargetError before the first call, and where
        operators in Python stand between the launches.
        """
        if self._loaded is None or self._operators:
            raise TargetError("replays: found no launches that were captured; allowed: after a call, without Python")
        return self._loaded.gpu.timed(calls, self._loaded.replay)

    def _by_steps(self, loaded: _Loaded, profile: int | None) -> None:
        for number, step in enumerate(self.executable.steps):
            if isinstance(step, Host):
                arrays = [np.empty(spec.shape, numpy_dtype(spec.dtype)) for spec in step.specs]
                places = [loaded.address(slot) for slot in step.args]
                for array, place in zip(arrays, places, strict=True):
                    loaded.gpu.download(address_of(array), place, array.nbytes)
                call_extern(step, self._operators[number], arrays)
                for array, place in list(zip(arrays, places, strict=True))[len(arrays) - step.results :]:
                    loaded.gpu.upload(place, address_of(array), array.nbytes)
            else:
                loaded.step(step)
                if profile is not None:
                    loaded.wait()
            stamp(profile, number + 1)


def _check_apart(known: Executable, inputs: Sequence[tuple[int, int]], outputs: Sequence[GpuArray]) -> None:
    """Raises InputError for an output that shares memory with an input or another output."""
    taken = [*inputs]
    for spec, array in zip(known.outputs, outputs, strict=True):
        if any(array.place < end + nbytes and end < array.place + array.nbytes for end, nbytes in taken):
            raise InputError(f"output '{spec.name}' shares memory with another array, allowed: its own memory")
        taken.append((array.place, array.nbytes))


class _Loaded:
    """An executable in the memory of a GPU."""

    def __init__(self, executable: Executable, kernels: Mapping[str, bytes], params: np.ndarray) -> None:
        self.executable = executable
        try:
            self.gpu = gpu = first_gpu()
            gpu.enter()
        except TargetError as error:
            raise TargetError(
                f"{error}; the module is compiled for {executable.target}: save() it and load it where there is one, "
                "or compile it for burnish.runtime.gpu.emulator.emulated(target) to run it here, slowly and checked"
            ) from None
        self.codes = {name: GridCode.unpacked(code) for name, code in kernels.items()}
        self.functions = {name: gpu.functions(code) for name, code in self.codes.items()}
        self.arena = gpu.allocate(executable.arena_bytes)
        self.params = gpu.allocate(params.nbytes)
        self.state = gpu.allocate(executable.state_offsets[-1])
        self.inputs = [gpu.allocate(spec.nbytes) for spec in executable.inputs]
        self.outputs = [gpu.allocate(spec.nbytes) for spec in executable.outputs]
        self.workspace = gpu.allocate(max((c.workspace for c in self.codes.values()), default=0))
        self.spare = gpu.allocate(self._spare_bytes())
        gpu.upload(self.params, address_of(params), params.nbytes)
        gpu.wait()
        memory = (self.arena, self.params, self.state, *self.inputs, *self.outputs, self.workspace, self.spare)
        weakref.finalize(self, gpu.free, *memory)
        self._own = tuple(self.inputs), tuple(self.outputs)
        self._graphs: dict[Any, Any] = {}  # by the places of inputs and outputs; None: met once
        self.kept: list[Any] = []  # arguments of launches that have not ended

    @contextmanager
    def at(self, inputs: Sequence[int], outputs: Sequence[int]) -> Iterator[None]:
        """With inputs and outputs at other places."""
        self.inputs, self.outputs = list(inputs), list(outputs)
        try:
            yield
        finally:
            self.inputs, self.outputs = map(list, self._own)
            self.kept.clear()

    def replay(self) -> None:
        """Executes all steps, which are captured as a graph: of places of somebody else the second time that they are
        met.
        """
        places = tuple(self.inputs), tuple(self.outputs)
        if places != self._own and places not in self._graphs:
            while len(self._graphs) > GRAPHS:
                oldest = next(key for key in self._graphs if key != self._own)
                graph = self._graphs.pop(oldest)
                if graph is not None:
                    self.gpu.ask("cuGraphExecDestroy", graph)
            self._graphs[places] = None
            self._steps()
            return
        if self._graphs.get(places) is None:
            self._graphs[places] = self.gpu.captured(self._steps)
            self.kept.clear()
        self.gpu.replay(self._graphs[places])

    def _steps(self) -> None:
        for step in self.executable.steps:
            self.step(step)

    def step(self, step: Any) -> None:
        """Asks for one step."""
        if isinstance(step, Repeat):
            for call in unrolled(step):
                self._call(call)
        elif isinstance(step, Copy):
            self.gpu.copy(self.address(step.target), self.address(step.source), step.target.nbytes)
        else:
            self._call(step)

    def _call(self, call: Call) -> None:
        """One kernel; an argument that is not where vectors may be is copied there, and back if it is written."""
        code, places = self.codes[call.kernel], [self.address(slot) for slot in call.args]
        odd = {i: place for i, place in enumerate(places) if place % VECTOR_BYTES}
        at = self.spare
        for i, place in odd.items():
            places[i] = at
            at += round_up(code.nbytes[i], ALIGNMENT)
            self.gpu.copy(places[i], place, code.nbytes[i])
        self.kept.append(self.gpu.launch(self.functions[call.kernel], [*places, self.workspace]))
        for i in set(odd) & set(code.written):
            self.gpu.copy(odd[i], places[i], code.nbytes[i])

    def _spare_bytes(self) -> int:
        """For copies of the arguments of one call that are not at multiples of ``VECTOR_BYTES``."""
        steps = self.executable.steps
        calls = [call for step in steps for call in (unrolled(step) if isinstance(step, Repeat) else [step])]
        return max(
            (
                sum(
                    round_up(n, ALIGNMENT)
                    for n, slot in zip(self.codes[call.kernel].nbytes, call.args, strict=True)
                    if self.address(slot) % VECTOR_BYTES
                )
                for call in calls
                if isinstance(call, Call)
            ),
            default=0,
        )

    def wait(self) -> None:
        """Ends when all that was asked for is done."""
        self.gpu.wait()
        self.kept.clear()

    def address(self, slot: Slot) -> int:
        """Where an argument lies in the GPU's memory."""
        if slot.memory == "input":
            return self.inputs[slot.index] + slot.offset
        if slot.memory == "output":
            return self.outputs[slot.index] + slot.offset
        if slot.memory == "state":
            return self.state + self.executable.state_offsets[slot.index] + slot.offset
        return (self.arena if slot.memory == "arena" else self.params) + slot.offset

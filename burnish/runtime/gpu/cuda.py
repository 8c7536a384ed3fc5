"""CUDA device: executables on an NVIDIA GPU; all launches of a call are one graph, which is replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from burnish.codegen.gridcode import GridCode
from burnish.errors import TargetError
from burnish.machines.nvptx.machine import VECTOR_BYTES
from burnish.runtime.buffers import address_of, numpy_dtype
from burnish.runtime.collectives import Collectives
from burnish.runtime.executable import Collective, CopyStep, Host, KernelCall, Repeat, TensorSpec, Wait
from burnish.runtime.gpu.arrays import GpuArray, check_apart, checked, is_on_gpu
from burnish.runtime.gpu.bench import CudaBench
from burnish.runtime.gpu.driver import first_gpu
from burnish.runtime.gpu.loaded import LoadedExecutable
from burnish.runtime.runner import ExecutableInstance, call_extern, stamp
from burnish.runtime.sized import Sized


class CudaDevice:
    """CUDA device: the first GPU of this machine. Nothing is asked of the driver before something runs."""

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

    def runner(self, instance: ExecutableInstance, kernels: Mapping[str, bytes]) -> CudaRunner:
        """Runner that executes the steps of an executable."""
        return CudaRunner(instance, kernels)


class CudaRunner:
    """CUDA runner: the steps of an executable on a GPU, its arena, parameters and state in the GPU's memory.

    It has a stream of its own, so that calls of several runners do not wait for each other; its module's lock orders
    those of one. At the first call everything is loaded and the launches are captured as a graph; a call copies inputs
    and state there, replays the graph, and copies outputs and state back. Operators in Python run on copies, between
    launches.
    """

    def __init__(self, instance: ExecutableInstance, kernels: Mapping[str, bytes]) -> None:
        """Raises TargetError for steps that a GPU cannot execute, ArtifactError for operators that are not known, and
        for collectives without as many workers.
        """
        executable = instance.executable
        for step in executable.steps:
            if not isinstance(step, (KernelCall, CopyStep, Host, Repeat, Collective, Wait)):
                allowed = "kernels, copies, collectives, Python"
                raise TargetError(f"node '{step.node}': found {step.label}; allowed on a GPU: {allowed}")
        if executable.dims:
            raise TargetError("runtime: found open dimensions; allowed on a GPU: numbers")
        self.executable, self._kernels = executable, kernels
        self._params, self._state = instance.params, instance.state
        self._operators = instance.operators()
        self._collectives = Collectives(executable.steps, instance.comm)
        self._moved: dict[int, list[np.ndarray]] = {}  # what collectives that have begun read and write here
        self._captured = not any(isinstance(step, (Host, Collective)) for step in executable.steps)
        self._loaded: LoadedExecutable | None = None
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
        if profile is None and self._captured:
            loaded.replay()
        else:
            self._by_steps(loaded, profile)
        for at, place, spec in zip(addresses[inputs:], loaded.outputs, self.executable.outputs, strict=False):
            loaded.gpu.download(at, place, spec.nbytes)
        loaded.gpu.download(address_of(self._state), loaded.state, self._state.nbytes)

    def _ready(self) -> LoadedExecutable:
        """The executable in the GPU's memory. Raises TargetError without a driver or GPU."""
        if self._loaded is None:
            try:
                gpu = first_gpu().with_stream()
            except TargetError as error:
                where = self.executable.target
                raise TargetError(
                    f"{error}; the module is compiled for {where}: save() it and load it where there is one, or "
                    "compile it for burnish.simulators.gpu.emulator.emulated(target) to run it here, slowly and checked"
                ) from None
            self._loaded = LoadedExecutable(gpu, self.executable, self._kernels, self._params)
        self._loaded.gpu.enter()
        return self._loaded

    def run_there(self, inputs: Sequence[Any], outputs: Sequence[Any] | None = None) -> list[GpuArray]:
        """Executes all steps on arrays in the GPU's memory, in place, and waits for them; the outputs, new ones by
        default. Inputs may be in this machine's memory, too, from where they are copied. Raises InputError.
        """
        loaded, known = self._ready(), self.executable
        gpu, followed = loaded.gpu, set[type]()
        places = [
            self._placed(loaded, number, spec, value, followed)
            for number, (spec, value) in enumerate(zip(known.inputs, inputs, strict=True))
        ]
        found = [
            GpuArray(gpu, spec.shape, numpy_dtype(spec.dtype))
            if outputs is None
            else checked(gpu, "output", spec, outputs[number], followed)
            for number, spec in enumerate(known.outputs)
        ]
        check_apart(known, [*zip(places, (s.nbytes for s in known.inputs), strict=True)], found)
        own = [
            place if array.place % VECTOR_BYTES else array.place
            for place, array in zip(loaded.outputs, found, strict=True)
        ]
        if self._state.nbytes:
            gpu.upload(loaded.state, address_of(self._state), self._state.nbytes)
        with loaded.at(places, own):
            if not self._captured:
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

    def _placed(self, loaded: LoadedExecutable, number: int, spec: TensorSpec, value: Any, followed: set[type]) -> int:
        """Address of an input in the GPU's memory: what is not there, or where vectors may not be, is copied."""
        own = loaded.inputs[number]
        if is_on_gpu(value):
            array = checked(loaded.gpu, "input", spec, value, followed)
            loaded.kept.append(array)
            if array.place % VECTOR_BYTES == 0:
                return array.place
            loaded.gpu.copy(own, array.place, array.nbytes)
            return own
        loaded.gpu.upload(own, address_of(value), spec.nbytes)
        return own

    @property
    def replayed(self) -> bool:
        """Whether the launches are captured, so that :meth:`replays` times them: nothing between is done here."""
        return self._captured

    def replays(self, calls: int) -> list[float]:
        """Seconds of each of ``calls`` replays by the GPU's own clock, on what its inputs hold since the last call.

        Nothing is copied from or to this machine's memory. Raises TargetError before the first call, and where
        operators in Python, or collectives, stand between the launches.
        """
        if self._loaded is None or not self._captured:
            raise TargetError("replays: found no launches that were captured; allowed: after a call, without Python")
        return self._loaded.gpu.timed(calls, self._loaded.replay)

    def _by_steps(self, loaded: LoadedExecutable, profile: int | None) -> None:
        try:
            self._one_by_one(loaded, profile)
        finally:
            self._collectives.abandon()
            self._moved.clear()

    def _one_by_one(self, loaded: LoadedExecutable, profile: int | None) -> None:
        for number, step in enumerate(self.executable.steps):
            if isinstance(step, Host):
                arrays = [np.empty(spec.shape, numpy_dtype(spec.dtype)) for spec in step.specs]
                places = [loaded.address(slot) for slot in step.args]
                for array, place in zip(arrays, places, strict=True):
                    loaded.gpu.download(address_of(array), place, array.nbytes)
                call_extern(step, self._operators[number], arrays)
                for array, place in list(zip(arrays, places, strict=True))[len(arrays) - step.results :]:
                    loaded.gpu.upload(place, address_of(array), array.nbytes)
            elif isinstance(step, (Collective, Wait)):
                self._exchange(loaded, number, step)
            else:
                loaded.step(step)
                if profile is not None:
                    loaded.wait()
            stamp(profile, number + 1)

    def _exchange(self, loaded: LoadedExecutable, number: int, step: Collective | Wait) -> None:
        """A collective, or the wait for one, on copies in this machine's memory."""
        steps, gpu = self.executable.steps, loaded.gpu
        if isinstance(step, Collective):
            arrays = self._moved[number] = [np.empty(spec.shape, numpy_dtype(spec.dtype)) for spec in step.specs]
            if step.source is not None:
                gpu.download(address_of(arrays[0]), loaded.address(step.source), arrays[0].nbytes)
            self._collectives.step(number, steps, [address_of(array) for array in arrays], {})
            return
        begun, arrays = steps[step.step], self._moved[step.step]
        self._collectives.wait(step.step)
        if isinstance(begun, Collective) and begun.target is not None:
            gpu.upload(loaded.address(begun.target), address_of(arrays[-1]), arrays[-1].nbytes)
            gpu.wait()  # the copy may go

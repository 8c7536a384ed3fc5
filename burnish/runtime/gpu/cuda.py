"""CUDA device: executables on an NVIDIA GPU; all launches of a call are one graph, which is replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from burnish.codegen.gridcode import GridCode
from burnish.errors import InputError, TargetError
from burnish.machines.nvptx.machine import VECTOR_BYTES
from burnish.runtime.buffers import address_of, numpy_dtype
from burnish.runtime.collectives import Collectives
from burnish.runtime.executable import Collective, CopyStep, Host, KernelCall, Repeat, Wait
from burnish.runtime.gpu.arrays import GpuArray, check_apart, checked, is_on_gpu
from burnish.runtime.gpu.bench import CudaBench
from burnish.runtime.gpu.driver import first_gpu
from burnish.runtime.gpu.loaded import LoadedExecutable
from burnish.runtime.gpu.streams import stream_of
from burnish.runtime.runner import ExecutableInstance, call_extern, stamp
from burnish.runtime.sized import Sized


class CudaDevice:
    """CUDA device: the first GPU of this machine. Nothing is asked of the driver before something runs."""

    def bench(self, cpu: str) -> CudaBench:
        """As :meth:`burnish.runtime.device.TimedDevice.bench`."""
        return CudaBench(first_gpu(), cpu)

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        """As :meth:`burnish.runtime.device.Device.run`."""
        gpu, found = first_gpu().with_stream(), GridCode.unpacked(code)
        places = [gpu.allocate(array.nbytes) for array in memory] + [gpu.allocate(found.workspace)]
        try:
            for array, place in zip(memory, places, strict=False):
                gpu.upload(place, address_of(array), array.nbytes)
            module, functions = gpu.module(found)
            gpu.launch(functions, places)
            for number in found.written:
                gpu.download(address_of(memory[number]), places[number], memory[number].nbytes)
            gpu.wait()
            gpu.unload([module], [])
        finally:
            gpu.free(*places)

    def runner(self, instance: ExecutableInstance, kernels: Mapping[str, bytes]) -> CudaRunner:
        """Runner that executes the steps of an executable."""
        return CudaRunner(instance, kernels)


class CudaRunner:
    """CUDA runner: the steps of an executable on a GPU, its arena, parameters and state in the GPU's memory.

    It has a stream of its own, so that calls of several runners do not wait for each other; its module's lock orders
    those of one. At the first call everything is loaded and the launches are captured as a graph; a call replays it,
    on the stream of who has computed the inputs, if that is known, else on its own, with copies of what is in this
    machine's memory. The state stays there: :meth:`fetch_state` copies it to where the module keeps it. Operators in
    Python run on copies, between launches.
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
        self._dtypes = [[numpy_dtype(s.dtype) for s in specs] for specs in (executable.inputs, executable.outputs)]
        self._nbytes = [spec.nbytes for spec in executable.inputs]
        self._loaded: LoadedExecutable | None = None
        self._state_there, self._state_here = False, True  # where it is as the last call left it
        self._state_moves = False  # also without calls, by graphs of somebody else
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
        with loaded.turn(None):
            for at, place, spec in zip(addresses, loaded.inputs, self.executable.inputs, strict=False):
                loaded.gpu.upload(place, at, spec.nbytes)
            stamp(profile, 0)
            self._execute(loaded, profile)
            for at, place, spec in zip(addresses[inputs:], loaded.outputs, self.executable.outputs, strict=False):
                loaded.gpu.download(at, place, spec.nbytes)
            loaded.gpu.wait()

    def _execute(self, loaded: LoadedExecutable, profile: int | None = None) -> None:
        """All steps, on inputs and state that are there."""
        if not self._state_there and self._state.nbytes:
            with loaded.gpu.on(None):
                loaded.gpu.after(loaded.orders)
                loaded.gpu.upload(loaded.state, address_of(self._state), self._state.nbytes)
                loaded.gpu.wait()  # what it is copied from may change
        self._state_there, self._state_here = True, not self._state.nbytes
        self._state_moves |= loaded.gpu.capturing
        if profile is None and self._captured:
            loaded.replay()
        else:
            self._by_steps(loaded, profile)

    def fetch_state(self) -> None:
        """Copies the state from the GPU, if a call has changed it there."""
        if not self._state_here:
            loaded = self._ready()
            with loaded.turn(None):
                loaded.gpu.download(address_of(self._state), loaded.state, self._state.nbytes)
                loaded.gpu.wait()
            self._state_here = not self._state_moves

    def state_changed(self) -> None:
        """The state is what this machine's memory holds now."""
        self._state_there, self._state_here = False, True

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
            with gpu.relaxed():
                self._loaded = LoadedExecutable(gpu, self.executable, self._kernels, self._params)
        self._loaded.gpu.enter()
        return self._loaded

    def run_there(
        self, inputs: Sequence[Any], outputs: Sequence[Any] | None = None, stream: int | None = None
    ) -> list[GpuArray]:
        """Executes all steps on arrays in the GPU's memory, in place; the outputs, new ones by default. Inputs may be
        in this machine's memory, too, from where they are copied. Raises InputError.

        All is asked of ``stream``, by default the one that the arrays' library asks now. Where that is not known the
        call ends when it is done: else nobody could tell when inputs may be changed or given back.
        """
        loaded, known = self._ready(), self.executable
        gpu, followed = loaded.gpu, set[type]()
        arrays = [*inputs, *(outputs or ())]
        stream = stream_of(arrays) if stream is None else stream
        with loaded.turn(stream):
            if gpu.capturing and not all(map(is_on_gpu, inputs)):
                raise InputError("found inputs in this machine's memory while a graph is captured; allowed: on the GPU")
            there = [
                checked(gpu, "input", spec, dtype, value, followed) if is_on_gpu(value) else None
                for spec, dtype, value in zip(known.inputs, self._dtypes[0], inputs, strict=True)
            ]
            places = [
                self._placed(loaded, number, value, array)
                for number, (value, array) in enumerate(zip(inputs, there, strict=True))
            ]
            found = [
                GpuArray(gpu, spec.shape, dtype)
                if outputs is None
                else checked(gpu, "output", spec, dtype, outputs[number], followed)
                for number, (spec, dtype) in enumerate(zip(known.outputs, self._dtypes[1], strict=True))
            ]
            check_apart(known, [*zip(places, self._nbytes, strict=True)], found)
            own = [
                place if array.place % VECTOR_BYTES else array.place
                for place, array in zip(loaded.outputs, found, strict=True)
            ]
            with loaded.at(places, own):
                self._execute(loaded)
            for place, array in zip(own, found, strict=True):
                if place != array.place:
                    gpu.copy(array.place, place, array.nbytes)
            if None in there or (stream is None and not all(type(value) is GpuArray for value in arrays)):
                gpu.wait()
        for used in (*there, *found):
            if used is not None:
                for order in loaded.orders:
                    used.use.by(order)
        return found

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Executes all steps, on a stream, on inputs and outputs at addresses of the GPU's memory that vectors may be
        at, apart from each other.
        """
        loaded = self._ready()
        with loaded.turn(stream), loaded.at(inputs, outputs):
            self._execute(loaded)

    def _placed(self, loaded: LoadedExecutable, number: int, value: Any, array: GpuArray | None) -> int:
        """Address of an input in the GPU's memory: what is not there, or where vectors may not be, is copied."""
        own, spec = loaded.inputs[number], self.executable.inputs[number]
        if array is None:
            loaded.gpu.upload(own, address_of(value), spec.nbytes)
        elif array.place % VECTOR_BYTES == 0:
            return array.place
        else:
            loaded.gpu.copy(own, array.place, array.nbytes)
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
        loaded = self._loaded
        with loaded.turn(None):
            return loaded.gpu.timed(calls, loaded.replay)

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
                loaded.gpu.wait()
                call_extern(step, self._operators[number], arrays)
                for array, place in list(zip(arrays, places, strict=True))[len(arrays) - step.results :]:
                    loaded.gpu.upload(place, address_of(array), array.nbytes)
                loaded.gpu.wait()  # the arrays may go
            elif isinstance(step, (Collective, Wait)):
                self._exchange(loaded, number, step)
            else:
                loaded.step(step)
                if profile is not None:
                    loaded.gpu.wait()
            stamp(profile, number + 1)

    def _exchange(self, loaded: LoadedExecutable, number: int, step: Collective | Wait) -> None:
        """A collective, or the wait for one, on copies in this machine's memory."""
        steps, gpu = self.executable.steps, loaded.gpu
        if isinstance(step, Collective):
            arrays = self._moved[number] = [np.empty(spec.shape, numpy_dtype(spec.dtype)) for spec in step.specs]
            if step.source is not None:
                gpu.download(address_of(arrays[0]), loaded.address(step.source), arrays[0].nbytes)
                gpu.wait()
            self._collectives.step(number, steps, [address_of(array) for array in arrays], {})
            return
        begun, arrays = steps[step.step], self._moved[step.step]
        self._collectives.wait(step.step)
        if isinstance(begun, Collective) and begun.target is not None:
            gpu.upload(loaded.address(begun.target), address_of(arrays[-1]), arrays[-1].nbytes)
            gpu.wait()  # the copy may go

"""CUDA device: executables on an NVIDIA GPU by the driver API; all launches of a call are one graph, which is replayed.

Written to the driver's documentation; no GPU was at hand to run it on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from burnish.codegen.gridcode import GridCode, LaunchCode
from burnish.comm.protocol import Comm
from burnish.errors import BurnishError, TargetError
from burnish.machines.nvptx.machine import VECTOR_BYTES
from burnish.ops.operator import Operator
from burnish.optional import require
from burnish.runtime.buffers import ALIGNMENT, address_of, numpy_dtype, round_up
from burnish.runtime.device import unrolled
from burnish.runtime.executable import Call, Copy, Executable, Host, Repeat, Slot
from burnish.runtime.runner import call_extern, find_extern, stamp
from burnish.runtime.sized import Sized

STREAM_CAPTURE_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


class CudaDevice:
    """The first GPU of this machine. Nothing is asked of the driver before something runs."""

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
        if self._loaded is None:
            self._loaded = _Loaded(self.executable, self._kernels, self._params)
        loaded, inputs = self._loaded, len(self.executable.inputs)
        for at, place, spec in zip(addresses, loaded.inputs, self.executable.inputs, strict=False):
            loaded.upload(place, at, spec.nbytes)
        loaded.upload(loaded.state, address_of(self._state), self._state.nbytes)
        stamp(profile, 0)
        if profile is None and not self._operators:
            loaded.replay()
        else:
            self._by_steps(loaded, profile)
        for at, place, spec in zip(addresses[inputs:], loaded.outputs, self.executable.outputs, strict=False):
            loaded.download(at, place, spec.nbytes)
        loaded.download(address_of(self._state), loaded.state, self._state.nbytes)

    def _by_steps(self, loaded: _Loaded, profile: int | None) -> None:
        for number, step in enumerate(self.executable.steps):
            if isinstance(step, Host):
                arrays = [np.empty(spec.shape, numpy_dtype(spec.dtype)) for spec in step.specs]
                places = [loaded.address(slot) for slot in step.args]
                for array, place in zip(arrays, places, strict=True):
                    loaded.download(address_of(array), place, array.nbytes)
                call_extern(step, self._operators[number], arrays)
                for array, place in list(zip(arrays, places, strict=True))[len(arrays) - step.results :]:
                    loaded.upload(place, address_of(array), array.nbytes)
            else:
                loaded.step(step)
                if profile is not None:
                    loaded.wait()
            stamp(profile, number + 1)


class _Loaded:
    """An executable in the memory of a GPU."""

    def __init__(self, executable: Executable, kernels: Mapping[str, bytes], params: np.ndarray) -> None:
        self.driver = require("cuda.bindings.driver", extra="cuda")
        self.executable = executable
        try:
            self.ask("cuInit", 0)
            device = self.ask("cuDeviceGet", 0)
            self.ask("cuCtxSetCurrent", self.ask("cuDevicePrimaryCtxRetain", device))
        except BurnishError as error:
            raise TargetError(
                f"this machine has no NVIDIA GPU with a driver ({error}); the module is compiled for "
                f"{executable.target}: save() it and load it where there is one, or compile it for "
                "burnish.runtime.gpu.emulator.emulated(target) to run it here, slowly and checked"
            ) from None
        self.stream = self.ask("cuStreamCreate", 0)
        self.codes = {name: GridCode.unpacked(code) for name, code in kernels.items()}
        self.functions = {name: self._functions(code) for name, code in self.codes.items()}
        self.arena = self.allocate(executable.arena_bytes)
        self.params = self.allocate(params.nbytes)
        self.state = self.allocate(executable.state_offsets[-1])
        self.inputs = [self.allocate(spec.nbytes) for spec in executable.inputs]
        self.outputs = [self.allocate(spec.nbytes) for spec in executable.outputs]
        self.workspace = self.allocate(max((c.workspace for c in self.codes.values()), default=0))
        self.spare = self.allocate(self._spare_bytes())
        self.upload(self.params, address_of(params), params.nbytes)
        self.graph: Any = None
        self.kept: list[Any] = []  # arguments of launches that have not ended

    def ask(self, name: str, *args: Any) -> Any:
        """Calls the driver. Raises TargetError with its message."""
        try:
            code, *results = getattr(self.driver, name)(*args)
        except (RuntimeError, OSError) as error:  # no library of a driver
            raise TargetError(f"{name}: {error}") from error
        if int(code) != 0:
            _, text = self.driver.cuGetErrorString(code)
            raise TargetError(f"{name}: {text.decode() if isinstance(text, bytes) else code}")
        return results[0] if len(results) == 1 else tuple(results)

    def _functions(self, code: GridCode) -> list[tuple[LaunchCode, Any]]:
        image = code.cubin or code.ptx.encode() + b"\0"
        module = self.ask("cuModuleLoadData", image)
        return [(launch, self.ask("cuModuleGetFunction", module, launch.name.encode())) for launch in code.launches]

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

    def allocate(self, nbytes: int) -> int:
        """The address of new memory of the GPU."""
        return int(self.ask("cuMemAlloc", max(nbytes, 256)))

    def upload(self, place: int, source: int, nbytes: int) -> None:
        """Copies from this machine's memory to the GPU's."""
        if nbytes:
            self.ask("cuMemcpyHtoDAsync", place, source, nbytes, self.stream)

    def download(self, target: int, place: int, nbytes: int) -> None:
        """Copies from the GPU's memory to this machine's, after all that was asked for before."""
        if nbytes:
            self.ask("cuMemcpyDtoHAsync", target, place, nbytes, self.stream)
        self.wait()

    def wait(self) -> None:
        """Ends when all that was asked for is done."""
        self.ask("cuStreamSynchronize", self.stream)

    def replay(self) -> None:
        """Executes all steps, which are captured as a graph the first time."""
        if self.graph is None:
            self.ask("cuStreamBeginCapture", self.stream, self.driver.CUstreamCaptureMode(STREAM_CAPTURE_THREAD))
            for step in self.executable.steps:
                self.step(step)
            captured = self.ask("cuStreamEndCapture", self.stream)
            self.graph = self.ask("cuGraphInstantiate", captured, 0)
            self.kept.clear()  # the graph has copies
        self.ask("cuGraphLaunch", self.graph, self.stream)

    def step(self, step: Any) -> None:
        """Asks for one step."""
        if isinstance(step, Repeat):
            for call in unrolled(step):
                self._call(call)
        elif isinstance(step, Copy):
            target, source = self.address(step.target), self.address(step.source)
            self.ask("cuMemcpyDtoDAsync", target, source, step.target.nbytes, self.stream)
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
            self.ask("cuMemcpyDtoDAsync", places[i], place, code.nbytes[i], self.stream)
        self._launch(call, [*places, self.workspace])
        for i in set(odd) & set(code.written):
            self.ask("cuMemcpyDtoDAsync", odd[i], places[i], code.nbytes[i], self.stream)

    def _launch(self, call: Call, places: list[int]) -> None:
        values = (ctypes.c_uint64 * len(places))(*places)
        pointers = (ctypes.c_void_p * len(places))(*(ctypes.addressof(values) + 8 * i for i in range(len(places))))
        self.kept += [values, pointers]
        for launch, function in self.functions[call.kernel]:
            extents: Sequence[int] = (*launch.grid, *launch.block)
            self.ask("cuLaunchKernel", function, *extents, 0, self.stream, ctypes.addressof(pointers), 0)

    def address(self, slot: Slot) -> int:
        """Where an argument lies in the GPU's memory."""
        if slot.memory == "input":
            return self.inputs[slot.index] + slot.offset
        if slot.memory == "output":
            return self.outputs[slot.index] + slot.offset
        if slot.memory == "state":
            return self.state + self.executable.state_offsets[slot.index] + slot.offset
        return (self.arena if slot.memory == "arena" else self.params) + slot.offset

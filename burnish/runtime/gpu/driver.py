"""CUDA driver API: the first GPU of this machine, its memory, streams, kernels loaded and launched, and its clock."""

from __future__ import annotations

import copy
import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from burnish.base.optional import require
from burnish.codegen.gridcode import GridCode, LaunchCode
from burnish.errors import BurnishError, TargetError
from burnish.machines.nvptx.machine import NVPTX

STREAM_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream, which others use
STREAM_CAPTURE_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may ask for anything meanwhile
# Errors after which the context is dead: CUDA_ERROR_ILLEGAL_ADDRESS, …_LAUNCH_TIMEOUT, …_ASSERT, …_HARDWARE_STACK_ERROR
# to …_LAUNCH_FAILED, ECC and NVLink errors.
LOST = frozenset({214, 220, 700, 702, 710, *range(714, 720)})
LEAST_BYTES = 256  # of an allocation: cuMemAlloc refuses zero bytes

Functions = Sequence[tuple[LaunchCode, Any]]


class Gpu:
    """The first GPU and one stream on it; everything that is asked for happens in order.

    The stream is none that work of others waits for, and waits for none: what comes from another stream is waited for
    by :meth:`follow`. One thread at a time uses it; :meth:`with_stream` makes another one for another user, whose
    ``home`` is this one. Who uses that of ``home`` for a moment holds its ``lock``, and no other lock within it: the
    driver itself takes calls of any thread.
    """

    def __init__(self) -> None:
        """Raises MissingDependencyError without ``cuda-bindings``, TargetError without a driver or a GPU."""
        self.driver = require("cuda.bindings.driver", extra="cuda")
        try:
            self.ask("cuInit", 0)
            self._device = self.ask("cuDeviceGet", 0)
            self._context = self.ask("cuDevicePrimaryCtxRetain", self._device)
            self.enter()
            self.stream = self.ask("cuStreamCreate", STREAM_NON_BLOCKING)
            self.home, self.lock, self._streams = self, threading.Lock(), [self.stream]
        except BurnishError as error:
            raise TargetError(f"this machine has no NVIDIA GPU with a driver ({error})") from None

    def with_stream(self) -> Gpu:
        """The same GPU with a stream of its own, which ends with the object."""
        twin = copy.copy(self)
        twin.enter()
        twin.stream = twin.ask("cuStreamCreate", STREAM_NON_BLOCKING)
        weakref.finalize(twin, self._end_streams, streams := [twin.stream])
        twin._streams = streams
        return twin

    def _end_streams(self, streams: Sequence[Any]) -> None:
        """Ends streams, once what was asked of them is done."""
        self.enter()
        for stream in streams:
            self.driver.cuStreamDestroy(stream)

    def enter(self) -> None:
        """Makes calls of this thread be about this GPU."""
        self.ask("cuCtxSetCurrent", self._context)

    def ask(self, name: str, *args: Any) -> Any:
        """Calls the driver. Raises TargetError with its message."""
        try:
            code, *results = getattr(self.driver, name)(*args)
        except (RuntimeError, OSError) as error:  # no library of a driver
            raise TargetError(f"{name}: {error}") from error
        if int(code) != 0:
            raise TargetError(f"{name}: {self._text(code)}")
        return results[0] if len(results) == 1 else tuple(results)

    def _text(self, code: Any) -> str:
        """Text of an error of the driver; also that nothing of this process runs on the GPU any more, if so."""
        _, text = self.driver.cuGetErrorString(code)
        said = text.decode() if isinstance(text, bytes) else str(code)
        lost = "; the GPU is lost to this process: start another one" if int(code) in LOST else ""
        return f"{said}{lost}"

    def attribute(self, name: str) -> int:
        """A number that the driver knows of the GPU: ``name`` behind ``CU_DEVICE_ATTRIBUTE_``."""
        known = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.ask("cuDeviceGetAttribute", known, self._device))

    def functions(self, code: GridCode) -> Functions:
        """The launches of a kernel, loaded: what :meth:`launch` takes."""
        return self.module(code)[1]

    def capability(self) -> tuple[int, int]:
        """The GPU's compute capability, major and minor."""
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    def runs(self, cpu: str) -> bool:
        """Whether the GPU runs machine code for ``cpu``, such as ``sm_90a``: of its major version, and no newer one."""
        have, wanted = self.capability(), divmod(int(cpu.removeprefix("sm_").rstrip("a")), 10)
        return have == wanted if cpu.endswith("a") else have[0] == wanted[0] and have >= wanted

    def module(self, code: GridCode) -> tuple[Any, Functions]:
        """The driver's module of a kernel, from machine code or, where it is of another GPU, PTX; and its launches."""
        module = self.ask(
            "cuModuleLoadData", code.cubin if code.cubin and self.runs(code.target) else code.ptx.encode() + b"\0"
        )
        found = [(launch, self.ask("cuModuleGetFunction", module, launch.name.encode())) for launch in code.launches]
        for launch, function in found:
            if launch.dynamic:
                attribute = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.ask("cuFuncSetAttribute", function, attribute, launch.dynamic)
        return module, found

    def launch(self, functions: Functions, places: Sequence[int]) -> Any:
        """Asks for the launches of a kernel on buffers at ``places``, the last of which is its workspace; what must be
        kept until they have begun.
        """
        values = (ctypes.c_uint64 * len(places))(*places)
        pointers = (ctypes.c_void_p * len(places))(*(ctypes.addressof(values) + 8 * i for i in range(len(places))))
        for launch, function in functions:
            extents = (*launch.grid, *launch.block)
            self.ask("cuLaunchKernel", function, *extents, launch.dynamic, self.stream, ctypes.addressof(pointers), 0)
        return values, pointers

    def captured(self, ask: Callable[[], object]) -> Any:
        """Stream capture: the work that ``ask`` submits as a graph, which :meth:`replay` executes.

        A capture ends also where ``ask`` fails: else all that is asked of the stream after would fail, too. Where it
        has become invalid, it is given up with its stream.
        """
        self.ask("cuStreamBeginCapture", self.stream, self.driver.CUstreamCaptureMode(STREAM_CAPTURE_THREAD))
        try:
            ask()
        except BaseException:
            self._end_capture()
            raise
        code, *graphs = self.driver.cuStreamEndCapture(self.stream)
        if int(code) != 0:
            self._new_stream()
            raise TargetError(f"cuStreamEndCapture: {self._text(code)}")
        graph = graphs[0]
        try:
            return self.ask("cuGraphInstantiate", graph, 0)
        finally:
            self.ask("cuGraphDestroy", graph)

    def _end_capture(self) -> None:
        """Ends a capture that failed; it fails itself where the capture is invalid."""
        code, *graphs = self.driver.cuStreamEndCapture(self.stream)
        if int(code) != 0:
            self._new_stream()
        elif graphs[0] is not None:
            self.driver.cuGraphDestroy(graphs[0])

    def _new_stream(self) -> None:
        """Takes another stream in the place of one whose capture was broken."""
        self.stream = self.ask("cuStreamCreate", STREAM_NON_BLOCKING)
        self._streams.append(self.stream)

    def replay(self, graph: Any) -> None:
        """Asks for all of a graph."""
        self.ask("cuGraphLaunch", graph, self.stream)

    def allocate(self, nbytes: int) -> int:
        """The address of new memory of the GPU."""
        return int(self.ask("cuMemAlloc", max(nbytes, LEAST_BYTES)))

    def free(self, *places: int) -> None:
        """Gives memory back; from any thread. Of a GPU that is lost there is nothing to give back."""
        self.enter()
        for place in places:
            code, *_ = self.driver.cuMemFree(place)
            if int(code) not in (0, *LOST):
                raise TargetError(f"cuMemFree: {self._text(code)}")

    def upload(self, place: int, source: int, nbytes: int) -> None:
        """Copies from this machine's memory to the GPU's."""
        if nbytes:
            self.ask("cuMemcpyHtoDAsync", place, source, nbytes, self.stream)

    def download(self, target: int, place: int, nbytes: int) -> None:
        """Copies from the GPU's memory to this machine's, after all that was asked for before."""
        if nbytes:
            self.ask("cuMemcpyDtoHAsync", target, place, nbytes, self.stream)
        self.wait()

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copies within the GPU's memory."""
        self.ask("cuMemcpyDtoDAsync", target, source, nbytes, self.stream)

    def follow(self, stream: int) -> None:
        """Makes what is asked for from now on wait for all that another stream has been asked for (1: the default one,
        2: that of this thread).
        """
        event = self.ask("cuEventCreate", 0)
        self.ask("cuEventRecord", event, 0 if stream == 1 else stream)
        self.ask("cuStreamWaitEvent", self.stream, event, 0)
        self.ask("cuEventDestroy", event)

    def wait(self) -> None:
        """Ends when all that was asked for is done."""
        self.ask("cuStreamSynchronize", self.stream)

    def fill(self, place: int, value: int, nbytes: int) -> None:
        """Sets every byte of some memory of the GPU."""
        self.ask("cuMemsetD8Async", place, value, nbytes, self.stream)

    def timed(self, asks: int, ask: Callable[[], object]) -> list[float]:
        """Seconds of each of ``asks`` calls of ``ask``, between two events on the stream."""
        events = [self.ask("cuEventCreate", 0) for _ in range(asks + 1)]
        self.ask("cuEventRecord", events[0], self.stream)
        for event in events[1:]:
            ask()
            self.ask("cuEventRecord", event, self.stream)
        self.wait()
        found = [1e-3 * self.ask("cuEventElapsedTime", a, b) for a, b in pairwise(events)]
        for event in events:
            self.ask("cuEventDestroy", event)
        return found


def gpu_target() -> str:
    """Name of the target that suits the GPU of this machine best: of its own architecture, else of an older one, whose
    PTX it runs. Raises TargetError without a GPU, and for one older than all that are known.
    """
    gpu = first_gpu()
    gpu.enter()
    major, minor = gpu.capability()
    known = [name for name in known_names() if _capability(name) <= (major, minor)]
    fits = [name for name in known if not name.endswith("a") or _capability(name) == (major, minor)]
    if not fits:
        names = ", ".join(known_names())
        raise TargetError(f"the GPU of this machine has compute capability {major}.{minor}; allowed: {names} and newer")
    return max(fits, key=lambda name: (_capability(name), name))


def _capability(name: str) -> tuple[int, int]:
    """Compute capability in a target's name, such as cuda:sm_90a."""
    return divmod(int(name.rpartition("_")[2].rstrip("a")), 10)


def known_names() -> list[str]:
    """The targets of this kind, by name."""
    return [model.name for model in NVPTX.models]


@cache
def first_gpu() -> Gpu:
    """The GPU that all of this process share. Raises what :class:`Gpu` raises."""
    return Gpu()

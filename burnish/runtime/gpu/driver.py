"""CUDA driver API: the first GPU of this machine, its memory, streams, kernels loaded and launched, and its clock."""

from __future__ import annotations

import copy
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.codegen.gridcode import GridCode, LaunchCode
from burnish.errors import BurnishError, TargetError
from burnish.machines.nvptx.machine import NVPTX
from burnish.machines.nvptx.tensor_copies import TensorMap
from burnish.runtime.buffers import address_of
from burnish.runtime.gpu.memory import THREAD_STREAM, MemoryPool, StreamOrder
from burnish.runtime.gpu.tensor_maps import TensorMaps

STREAM_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream, which others use
EVENT_WITHOUT_TIME = 2  # CU_EVENT_DISABLE_TIMING
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: any thread may ask for anything meanwhile
# Errors after which the context is dead: CUDA_ERROR_ILLEGAL_ADDRESS, …_LAUNCH_TIMEOUT, …_ASSERT, …_HARDWARE_STACK_ERROR
# to …_LAUNCH_FAILED, ECC and NVLink errors.
LOST = frozenset({214, 220, 700, 702, 710, *range(714, 720)})
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
OTHER_CODE = frozenset({200, 209})  # CUDA_ERROR_INVALID_IMAGE, …_NO_BINARY_FOR_GPU: machine code of another GPU
LEAST_BYTES = 256  # of an allocation: cuMemAlloc refuses zero bytes
KEPT_ORDERS = 64  # streams of others whose events are kept

Functions = Sequence[tuple[LaunchCode, Any]]


class LaunchArguments:
    """Arguments of a launch in this machine's memory, which the driver copies: buffers' places, and tensor maps."""

    def __init__(self, launch: LaunchCode, places: Sequence[int], maps: Callable[[TensorMap, int], np.ndarray]) -> None:
        self._values = (ctypes.c_uint64 * len(places))(*places)
        self._maps = [maps(one, places[one.argument]) for one in launch.maps]
        begin = ctypes.addressof(self._values)
        every = [*(begin + 8 * i for i in range(len(places))), *map(address_of, self._maps)]
        self._pointers = (ctypes.c_void_p * len(every))(*every)

    @property
    def address(self) -> int:
        """Where a pointer to each is, for as long as this object is there."""
        return ctypes.addressof(self._pointers)


class Gpu:
    """The first GPU and one stream on it; everything that is asked for happens in order.

    The stream is none that work of others waits for, and waits for none. ``stream`` is the one that is asked now: its
    own, or within :meth:`on` one of somebody else; :meth:`after` makes it wait for other ones. One thread at a time
    uses it; :meth:`with_stream` makes another one for another user, whose ``home`` is this one. Locks are taken in this
    order: a module's, then ``lock`` of ``home``, which whoever uses the stream of ``home`` holds, then that of the
    pool. The driver itself takes calls of any thread.
    """

    def __init__(self) -> None:
        """Raises MissingDependencyError without ``cuda-bindings``, TargetError without a driver or a GPU."""
        self.driver = require("cuda.bindings.driver", extra="cuda")
        try:
            self.ask("cuInit", 0)
            self._device = self.ask("cuDeviceGet", 0)
            self._context = self.ask("cuDevicePrimaryCtxRetain", self._device)
            self.enter()
            self.home, self.lock, self._orders = self, threading.Lock(), dict[int, StreamOrder]()
            self.pool, self.capturing, self._tensor_maps = MemoryPool(self), False, TensorMaps(self.ask)
            self.stream = int(self.ask("cuStreamCreate", STREAM_NON_BLOCKING))
            self._streams, self._own = [self.stream], self._new_order(self.stream)
        except BurnishError as error:
            raise TargetError(f"this machine has no NVIDIA GPU with a driver ({error})") from None

    def with_stream(self) -> Gpu:
        """The same GPU with a stream of its own, which ends with the object."""
        twin = copy.copy(self)
        twin.enter()
        twin.stream = int(twin.ask("cuStreamCreate", STREAM_NON_BLOCKING))
        weakref.finalize(twin, self._end_streams, streams := [twin.stream])
        twin._streams, twin._own = streams, self._new_order(twin.stream)
        return twin

    def _end_streams(self, streams: Sequence[Any]) -> None:
        """Ends streams, once what was asked of them is done."""
        self.enter()
        for stream in streams:
            self.driver.cuStreamDestroy(stream)

    # --- streams ------------------------------------------------------------------------------------------------------

    @contextmanager
    def on(self, stream: int | None) -> Iterator[None]:
        """Context in which another stream is asked; None: the own one. ``capturing``: whether somebody captures it."""
        before, capturing = None if self.stream == self._own.handle else self.stream, self.capturing
        self.stream = self._own.handle if stream is None else stream
        try:
            self.capturing = stream is not None and int(self.ask("cuStreamIsCapturing", stream)) != 0
            yield
        finally:
            self.stream, self.capturing = self._own.handle if before is None else before, capturing

    def _new_order(self, handle: int) -> StreamOrder:
        event = self.ask("cuEventCreate", EVENT_WITHOUT_TIME)
        order = StreamOrder(handle, event)
        weakref.finalize(order, self.driver.cuEventDestroy, event)
        return order

    def mark(self) -> StreamOrder:
        """The order of the stream that is asked now, whose event stands behind all that it was asked for."""
        order = self._own
        if self.stream != order.handle:
            known = self.home._orders.get(self.stream)
            if known is None or self.stream == THREAD_STREAM:
                known = self.home._orders[self.stream] = self._new_order(self.stream)
                for oldest in [*self.home._orders][:-KEPT_ORDERS]:
                    self.home._orders.pop(oldest, None)
            order = known
        self.ask("cuEventRecord", order.event, self.stream)
        return order

    def after(self, orders: Iterable[StreamOrder]) -> None:
        """Makes the stream wait for what other ones were asked for here until now; what is captured cannot wait for
        anything outside, which is waited for here.
        """
        for order in orders:
            if self.capturing:
                self.ask("cuEventSynchronize", order.event)
            elif order.handle != self.stream or self.stream == THREAD_STREAM:
                self.ask("cuStreamWaitEvent", self.stream, order.event, 0)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Context in which memory and code may be asked for while this thread, or another one, captures a stream."""
        mode = self.driver.CUstreamCaptureMode
        before = self.ask("cuThreadExchangeStreamCaptureMode", mode(RELAXED))
        try:
            yield
        finally:
            self.driver.cuThreadExchangeStreamCaptureMode(mode(int(before)))

    def enter(self) -> None:
        """Makes calls of this thread be about this GPU."""
        self.ask("cuCtxSetCurrent", self._context)

    def ask(self, name: str, *args: Any) -> Any:
        """Calls the driver. Raises TargetError with its message."""
        try:
            code, *results = getattr(self.driver, name)(*args)
        except (RuntimeError, OSError) as error:  # no library of a driver
            raise TargetError(f"{name}: {error}") from error
        return self._found(name, code, results)

    def _found(self, name: str, code: Any, results: Sequence[Any]) -> Any:
        if int(code) != 0:
            raise TargetError(f"{name}: {self._text(code)}")
        return results[0] if len(results) == 1 else tuple(results)

    def _text(self, code: Any) -> str:
        """Error message of the driver; also that nothing of this process runs on the GPU any more, if so."""
        _, text = self.driver.cuGetErrorString(code)
        said = text.decode() if isinstance(text, bytes) else str(code)
        lost = "; the GPU is lost to this process: start another one" if int(code) in LOST else ""
        return f"{said}{lost}"

    def attribute(self, name: str) -> int:
        """A number that the driver knows of the GPU: ``name`` behind ``CU_DEVICE_ATTRIBUTE_``."""
        known = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.ask("cuDeviceGetAttribute", known, self._device))

    def capability(self) -> tuple[int, int]:
        """The GPU's compute capability, major and minor."""
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    def runs(self, cpu: str) -> bool:
        """Whether the GPU runs machine code for ``cpu``, such as ``sm_90a``: of its major version, and no newer one."""
        have, wanted = self.capability(), divmod(int(cpu.removeprefix("sm_").rstrip("a")), 10)
        return have == wanted if cpu.endswith("a") else have[0] == wanted[0] and have >= wanted

    def module(self, code: GridCode) -> tuple[Any, Functions]:
        """The driver's module of a kernel, and its launches, which :meth:`launch` takes: from machine code or, where
        that is of another GPU, PTX.
        """
        with self.relaxed():
            module = None
            if code.cubin and self.runs(code.target):
                error, module = self.driver.cuModuleLoadData(code.cubin)
                if int(error) and int(error) not in OTHER_CODE:
                    raise TargetError(f"cuModuleLoadData: {self._text(error)}")
                module = None if int(error) else module
            if module is None:
                module = self.ask("cuModuleLoadData", code.ptx.encode() + b"\0")
            return module, self._functions(module, code)

    def _functions(self, module: Any, code: GridCode) -> Functions:
        found = [(launch, self.ask("cuModuleGetFunction", module, launch.name.encode())) for launch in code.launches]
        for launch, function in found:
            if launch.dynamic:
                attribute = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.ask("cuFuncSetAttribute", function, attribute, launch.dynamic)
        return found

    def unload(self, modules: Iterable[Any], graphs: Iterable[Any]) -> None:
        """Gives back what nothing uses any more, as far as there is still a driver to take it."""
        self.enter()
        with self.relaxed():
            for graph in graphs:
                self.driver.cuGraphExecDestroy(graph)
            for module in modules:
                self.driver.cuModuleUnload(module)

    def launch(self, functions: Functions, places: Sequence[int]) -> None:
        """Asks for the launches of a kernel on buffers at ``places``, the last of which is its workspace."""
        for launch, function in functions:
            extents = (*launch.grid, *launch.block)
            given = LaunchArguments(launch, places, self._tensor_maps)
            self.ask("cuLaunchKernel", function, *extents, launch.dynamic, self.stream, given.address, 0)

    def captured(self, ask: Callable[[], object]) -> Any:
        """Stream capture: the work that ``ask`` submits as a graph, which :meth:`replay` executes on any stream.

        The own stream captures. A capture ends also where ``ask`` fails: else all that is asked of the stream after
        would fail, too. Where it has become invalid, it is given up with its stream.
        """
        with self.on(None):
            self.ask("cuStreamBeginCapture", self.stream, self.driver.CUstreamCaptureMode(RELAXED))
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
        """Takes another stream in the place of the own one, whose capture was broken, as far as the GPU gives one; it
        waits for what that was asked for before.
        """
        code, *streams = self.driver.cuStreamCreate(STREAM_NON_BLOCKING)
        if int(code) == 0:
            before, self._own = self._own, self._new_order(int(streams[0]))
            self._streams.append(self._own.handle)
            if int(self.driver.cuEventRecord(before.event, before.handle)[0]) == 0:
                self.driver.cuStreamWaitEvent(self._own.handle, before.event, 0)

    def replay(self, graph: Any) -> None:
        """Asks for all of a graph."""
        self.ask("cuGraphLaunch", graph, self.stream)

    def allocate(self, nbytes: int) -> int:
        """The address of new memory of the GPU."""
        with self.relaxed():
            code, *places = self.driver.cuMemAlloc(max(nbytes, LEAST_BYTES))
            if int(code) != OUT_OF_MEMORY:
                return int(self._found("cuMemAlloc", code, places))
            self.pool.clear()
            return int(self.ask("cuMemAlloc", max(nbytes, LEAST_BYTES)))

    def free(self, *places: int) -> None:
        """Gives memory back; from any thread. Of a GPU that is lost there is nothing to give back."""
        self.enter()
        with self.relaxed():
            for place in places:
                code, *_ = self.driver.cuMemFree(place)
                if int(code) not in (0, *LOST):
                    raise TargetError(f"cuMemFree: {self._text(code)}")

    def upload(self, place: int, source: int, nbytes: int) -> None:
        """Copies from this machine's memory to the GPU's."""
        if nbytes:
            self.ask("cuMemcpyHtoDAsync", place, source, nbytes, self.stream)

    def download(self, target: int, place: int, nbytes: int) -> None:
        """Copies from the GPU's memory to this machine's, where the copy is after :meth:`wait`."""
        if nbytes:
            self.ask("cuMemcpyDtoHAsync", target, place, nbytes, self.stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copies within the GPU's memory."""
        if nbytes:
            self.ask("cuMemcpyDtoDAsync", target, source, nbytes, self.stream)

    def follow(self, stream: int) -> None:
        """Makes what is asked for from now on wait for all that a stream of somebody else has been asked for."""
        if stream != self.stream:
            event = self.ask("cuEventCreate", EVENT_WITHOUT_TIME)
            self.ask("cuEventRecord", event, stream)
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
    features = {model.name: len(model.features.split()) for model in NVPTX.models}
    return max(fits, key=lambda name: (_capability(name), features[name], -len(name)))


def _capability(name: str) -> tuple[int, int]:
    """Compute capability of a target by its name, such as cuda:sm_90a."""
    return divmod(int(name.rpartition("_")[2].rstrip("a")), 10)


def known_names() -> list[str]:
    """The targets of this kind, by name."""
    return [model.name for model in NVPTX.models]


@cache
def first_gpu() -> Gpu:
    """The GPU that all of this process share. Raises what :class:`Gpu` raises."""
    return Gpu()

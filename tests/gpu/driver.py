"""A CUDA driver on this CPU: memory is this machine's, kernels run on coroutines, and its clock counts launches.

It keeps CUDA's rules of capture (CUDA driver API, "Stream Management", cuStreamBeginCapture): a stream that captures
cannot be waited for, the default stream cannot be used while a blocking one captures, a thread that captures in the
mode "thread local" may not ask for memory, and what breaks a capture makes it invalid, until it is ended with an error.

It is what ``burnish.runtime.gpu.driver.Gpu`` asks, so that all above it is tested as it runs on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from burnish.codegen.gridcode import GridCode
from burnish.runtime.device import bytes_at
from burnish.runtime.gpu import driver
from burnish.simulators.gpu.emulator import GridEmulator

LAUNCH_MILLISECONDS = 0.1  # by the driver's clock
L2_BYTES = 4096
_ATTRIBUTES = {"COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0, "L2_CACHE_SIZE": L2_BYTES}
_FREE = ("cuInit", "cuCtxSetCurrent", "cuFuncSetAttribute", "cuGraphDestroy", "cuEventDestroy",
         "cuModuleUnload", "cuGraphExecDestroy", "cuStreamWaitEvent")  # fmt: skip
UNSUPPORTED, INVALIDATED, UNJOINED, IMPLICIT, DEAD = (
    900,
    901,
    904,
    906,
    700,
)  # CUDA_ERROR_STREAM_CAPTURE_…, ILLEGAL_ADDRESS
DEFAULT = 0  # the stream of others, which waits for all blocking ones


@dataclass
class Capture:
    """A capture on a stream: its graph so far, the thread that began it, and whether it is still valid."""

    thread: int
    graph: list[Any] = field(default_factory=list)
    valid: bool = True


class EmulatedDriver:
    """The functions of ``cuda.bindings.driver``. ``codes``: the kernels, each of one launch, that may be loaded."""

    CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{n}": n for n in _ATTRIBUTES})
    CUstreamCaptureMode = int
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=0)

    def __init__(self, codes: Iterable[GridCode]) -> None:
        self.codes = {code.ptx.encode() + b"\0": code for code in codes} | {c.cubin: c for c in codes if c.cubin}
        self.memory: dict[int, np.ndarray] = {}
        self.calls: list[str] = []
        self.clock = 0.0
        self.blocking: dict[int, bool] = {}  # streams
        self.captures: dict[int, Capture] = {}  # by stream
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        if name in _FREE:
            return lambda *args: (self.calls.append(name) or 0,)
        if name in ("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuEventCreate"):
            return lambda *args: (0, [0.0] if name == "cuEventCreate" else 1)
        found = {
            "cuDeviceGetAttribute": lambda name, device: (0, _ATTRIBUTES[name]),
            "cuModuleLoadData": lambda data: (0, self.codes[data]),
            "cuModuleGetFunction": lambda code, name: (0, code),
            "cuMemcpyHtoDAsync": self._moved, "cuMemcpyDtoHAsync": self._moved, "cuMemcpyDtoDAsync": self._moved,
            "cuMemAlloc": self._allocate, "cuMemFree": self._free, "cuStreamCreate": self._create,
            "cuStreamDestroy": lambda stream: (int(self.blocking.pop(stream) is None),),
            "cuStreamSynchronize": self._synchronize,
            "cuGetErrorString": lambda code: (0, f"error {code}".encode()),
            "cuMemsetD8Async": self._fill, "cuLaunchKernel": self._launch,
            "cuStreamBeginCapture": self._capture, "cuStreamEndCapture": self._captured,
            "cuGraphInstantiate": lambda graph, flags: (0, graph), "cuGraphLaunch": self._replay,
            "cuEventRecord": self._record, "cuEventElapsedTime": lambda a, b: (0, b[0] - a[0]),
        }.get(name)  # fmt: skip
        if found is None:
            raise AttributeError(name)
        self.calls.append(name)
        return found

    def _create(self, flags: int) -> tuple[int, int]:
        stream = 1 + len(self.blocking)
        self.blocking[stream] = not flags & 1
        return 0, stream

    def _asked(self, stream: int) -> int:
        """The error of work on a stream, beside what a capture takes."""
        if self.dead:
            return DEAD
        broken = [c for s, c in self.captures.items() if stream == DEFAULT and self.blocking[s]]
        for capture in broken:
            capture.valid = False
        capture = self.captures.get(stream)
        return IMPLICIT if broken else INVALIDATED if capture and not capture.valid else 0

    def on_default_stream(self) -> int:
        """Work of somebody else on the default stream; its error."""
        return self._asked(DEFAULT)

    def _synchronize(self, stream: int) -> tuple[int]:
        if stream in self.captures:
            self.captures[stream].valid = False
            return (UNSUPPORTED,)
        return (self._asked(stream),)

    def _unsafe(self) -> int:
        """The error of what a thread may not ask for while it captures."""
        own = [c for c in self.captures.values() if c.thread == get_ident()]
        for capture in own:
            capture.valid = False
        return DEAD if self.dead else UNSUPPORTED if own else 0

    def _allocate(self, nbytes: int) -> tuple[int, int]:
        code = self._unsafe()
        array = np.zeros(nbytes + 256, np.uint8)
        place = -(-array.ctypes.data // 256) * 256
        self.memory[place] = array
        return code, place

    def _free(self, place: int) -> tuple[int]:
        self.memory.pop(place)
        return (self._unsafe(),)

    def _moved(self, target: int, source: int, nbytes: int, stream: int) -> tuple[int]:
        return self._does(stream, lambda: ctypes.memmove(target, source, nbytes))

    def _fill(self, place: int, value: int, nbytes: int, stream: int) -> tuple[int]:
        return self._does(stream, lambda: ctypes.memset(place, value, nbytes))

    def _launch(self, code: GridCode, *args: int) -> tuple[int]:
        count = len(code.nbytes)
        pointers = (ctypes.c_uint64 * count).from_address(args[8])
        places = [ctypes.c_uint64.from_address(at).value for at in pointers]
        return self._does(args[7], lambda: self._execute(code, places))

    def _does(self, stream: int, work: Callable[[], object]) -> tuple[int]:
        """Work on a stream: done, or captured."""
        found = self._asked(stream)
        if not found:
            capture = self.captures.get(stream)
            if capture is None:
                work()
            else:
                capture.graph.append(work)
        return (found,)

    def _execute(self, code: GridCode, places: list[int]) -> None:
        memory = [bytes_at(place, n) for place, n in zip(places, code.nbytes, strict=True)]
        GridEmulator().run(code.packed(), memory)
        self.clock += LAUNCH_MILLISECONDS

    def _capture(self, stream: int, mode: int) -> tuple[int]:
        assert mode == 1, "the mode that leaves other threads alone"
        assert stream not in self.captures
        self.captures[stream] = Capture(get_ident())
        return (self._asked(stream),)

    def _captured(self, stream: int) -> tuple[int, list[Any] | None]:
        found = self.captures.pop(stream)
        return (0, found.graph) if found.valid else (INVALIDATED, None)

    def _replay(self, graph: list[Any], stream: int) -> tuple[int]:
        found = self._asked(stream)
        for work in graph if not found else ():
            work()
        return (found,)

    def _record(self, event: list[float], stream: int) -> tuple[int]:
        event[0] = self.clock
        return (self._asked(stream),)


def emulated_gpu(monkeypatch: pytest.MonkeyPatch, codes: Iterable[GridCode]) -> tuple[driver.Gpu, EmulatedDriver]:
    """The first GPU of this machine, by such a driver."""
    made = EmulatedDriver([*codes])
    monkeypatch.setattr(driver, "require", lambda name, extra: made)
    driver.first_gpu.cache_clear()
    return driver.Gpu(), made

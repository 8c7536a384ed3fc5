"""A CUDA driver on this CPU: memory is this machine's, kernels run on coroutines, and its clock counts launches.

It is what ``burnish.runtime.gpu.driver.Gpu`` asks, so that all above it is tested as it runs on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
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
_FREE = ("cuInit", "cuCtxSetCurrent", "cuStreamSynchronize", "cuFuncSetAttribute", "cuGraphDestroy", "cuEventDestroy",
         "cuModuleUnload", "cuGraphExecDestroy", "cuStreamWaitEvent")  # fmt: skip


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
        self._capturing: list[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _FREE:
            return lambda *args: (self.calls.append(name) or 0,)
        if name in ("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuEventCreate"):
            return lambda *args: (0, [0.0] if name == "cuEventCreate" else 1)
        found = {
            "cuDeviceGetAttribute": lambda name, device: (0, _ATTRIBUTES[name]),
            "cuModuleLoadData": lambda data: (0, self.codes[data]),
            "cuModuleGetFunction": lambda code, name: (0, code),
            "cuMemcpyHtoDAsync": self._moved, "cuMemcpyDtoHAsync": self._moved, "cuMemcpyDtoDAsync": self._moved,
            "cuMemAlloc": self._allocate, "cuMemFree": lambda place: (int(self.memory.pop(place) is None),),
            "cuMemsetD8Async": self._fill, "cuLaunchKernel": self._launch,
            "cuStreamBeginCapture": self._capture, "cuStreamEndCapture": lambda stream: (0, self._captured()),
            "cuGraphInstantiate": lambda graph, flags: (0, graph), "cuGraphLaunch": self._replay,
            "cuEventRecord": self._record, "cuEventElapsedTime": lambda a, b: (0, b[0] - a[0]),
        }.get(name)  # fmt: skip
        if found is None:
            raise AttributeError(name)
        self.calls.append(name)
        return found

    def _allocate(self, nbytes: int) -> tuple[int, int]:
        array = np.zeros(nbytes + 256, np.uint8)
        place = -(-array.ctypes.data // 256) * 256
        self.memory[place] = array
        return 0, place

    def _moved(self, target: int, source: int, nbytes: int, stream: int) -> tuple[int]:
        del stream
        ctypes.memmove(target, source, nbytes)
        return (0,)

    def _fill(self, place: int, value: int, nbytes: int, stream: int) -> tuple[int]:
        del stream
        ctypes.memset(place, value, nbytes)
        return (0,)

    def _launch(self, code: GridCode, *args: int) -> tuple[int]:
        count = len(code.nbytes)
        pointers = (ctypes.c_uint64 * count).from_address(args[8])
        places = [ctypes.c_uint64.from_address(at).value for at in pointers]
        if self._capturing is None:
            self._execute(code, places)
        else:
            self._capturing.append((code, places))
        return (0,)

    def _execute(self, code: GridCode, places: list[int]) -> None:
        memory = [bytes_at(place, n) for place, n in zip(places, code.nbytes, strict=True)]
        GridEmulator().run(code.packed(), memory)
        self.clock += LAUNCH_MILLISECONDS

    def _capture(self, stream: int, mode: int) -> tuple[int]:
        del stream, mode
        self._capturing = []
        return (0,)

    def _captured(self) -> list[Any]:
        found, self._capturing = self._capturing, None
        assert found is not None
        return found

    def _replay(self, graph: list[Any], stream: int) -> tuple[int]:
        del stream
        for code, places in graph:
            self._execute(code, places)
        return (0,)

    def _record(self, event: list[float], stream: int) -> tuple[int]:
        del stream
        event[0] = self.clock
        return (0,)


def emulated_gpu(monkeypatch: pytest.MonkeyPatch, codes: Iterable[GridCode]) -> tuple[driver.Gpu, EmulatedDriver]:
    """The first GPU of this machine, by such a driver."""
    made = EmulatedDriver([*codes])
    monkeypatch.setattr(driver, "require", lambda name, extra: made)
    driver.first_gpu.cache_clear()
    return driver.Gpu(), made

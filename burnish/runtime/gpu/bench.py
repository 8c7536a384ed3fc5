"""Kernels kept loaded on a GPU with their buffers, timed by events; and on the runner without a GPU, by a count."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from burnish.codegen.gridcode import GridCode
from burnish.errors import TargetError
from burnish.runtime.buffers import ALIGNMENT, address_of, round_up
from burnish.runtime.gpu.driver import Gpu
from burnish.runtime.gpu.records import LaunchCounts

MARGIN, AROUND = 4096, 0xA5  # bytes on both sides of a buffer, and what they hold
FLUSHES = 2  # times the second-level cache that is written to empty it
OPERATION = 1e-9  # seconds of an access, an emulated one


class CudaBuffer:
    """Memory of the GPU between margins; given back when nothing refers to it."""

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self._gpu, self.nbytes = gpu, nbytes
        self._after = round_up(nbytes, ALIGNMENT) - nbytes + MARGIN
        self._begin = gpu.allocate(MARGIN + nbytes + self._after)
        self.place = self._begin + MARGIN
        weakref.finalize(self, gpu.free, self._begin)
        gpu.fill(self._begin, AROUND, MARGIN)
        gpu.fill(self.place + nbytes, AROUND, self._after)

    def write(self, data: np.ndarray) -> None:
        """As :meth:`burnish.runtime.device.DeviceBuffer.write`."""
        found = np.ascontiguousarray(data)
        self._gpu.upload(self.place, address_of(found), self.nbytes)
        self._gpu.wait()

    def read(self) -> np.ndarray:
        """As :meth:`burnish.runtime.device.DeviceBuffer.read`."""
        return self._bytes(self.place, self.nbytes)

    def untouched(self) -> bool:
        """As :meth:`burnish.runtime.device.DeviceBuffer.untouched`."""
        margins = (self._bytes(self._begin, MARGIN), self._bytes(self.place + self.nbytes, self._after))
        return all(bool((found == AROUND).all()) for found in margins)

    def _bytes(self, place: int, nbytes: int) -> np.ndarray:
        found = np.empty(nbytes, np.uint8)
        self._gpu.download(address_of(found), place, nbytes)
        self._gpu.wait()
        return found


class CudaKernel:
    """Kernel in the GPU's memory, with graphs of repeated runs of it."""

    def __init__(self, gpu: Gpu, code: GridCode) -> None:
        self.gpu, self.code = gpu, code
        module, self.functions = gpu.module(code)
        self._graphs: dict[tuple[int, ...], Any] = {}
        weakref.finalize(self, _unload, gpu, module, self._graphs)

    def graph(self, places: Sequence[int], runs: int) -> Any:
        """Graph of ``runs`` runs, one after another."""
        key = (runs, *places)
        if key not in self._graphs:

            def repeated() -> None:
                for _ in range(runs):
                    self.gpu.launch(self.functions, places)

            self._graphs[key] = self.gpu.captured(repeated)
        return self._graphs[key]


def _unload(gpu: Gpu, module: Any, graphs: dict[tuple[int, ...], Any]) -> None:
    gpu.unload([module], graphs.values())


class CudaBench:
    """See :class:`burnish.runtime.device.DeviceBench`; on the first GPU, by events on its stream."""

    def __init__(self, gpu: Gpu, cpu: str) -> None:
        """Raises TargetError where the GPU does not run code for ``cpu``, such as ``sm_90a``."""
        self.gpu = gpu
        gpu.enter()
        if not gpu.runs(cpu):
            have = ".".join(map(str, gpu.capability()))
            raise TargetError(f"the GPU of this machine has compute capability {have}, not {cpu}")
        self._flush: CudaBuffer | None = None

    def buffer(self, nbytes: int) -> CudaBuffer:
        """As :meth:`burnish.runtime.device.DeviceBench.buffer`."""
        return CudaBuffer(self.gpu, nbytes)

    def load(self, code: bytes) -> tuple[CudaKernel, CudaBuffer]:
        """A kernel and its workspace."""
        found = GridCode.unpacked(code)
        return CudaKernel(self.gpu, found), self.buffer(found.workspace)

    def seconds(
        self, loaded: tuple[CudaKernel, CudaBuffer], memory: Sequence[CudaBuffer], runs: int, flushed: bool
    ) -> float:
        """As :meth:`burnish.runtime.device.DeviceBench.seconds`; all launches are one graph, which is replayed."""
        kernel, workspace = loaded
        places = [buffer.place for buffer in (*memory, workspace)]
        if not flushed:
            graph = kernel.graph(places, runs)
            return self.gpu.timed(1, lambda: self.gpu.replay(graph))[0]
        if self._flush is None:
            self._flush = self.buffer(FLUSHES * self.gpu.attribute("L2_CACHE_SIZE"))
        flush, graph, total = self._flush, kernel.graph(places, 1), 0.0
        for number in range(runs):
            self.gpu.fill(flush.place, number % 256, flush.nbytes)
            total += self.gpu.timed(1, lambda: self.gpu.replay(graph))[0]
        return total


# --- without a GPU ----------------------------------------------------------------------------------------------------


class _Runner(Protocol):
    """Kernel runner that counts what the kernel does: an ``Emulator``."""

    counts: LaunchCounts

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        """As :meth:`burnish.runtime.device.Device.run`."""


class EmulatedBuffer:
    """Buffer in this machine's memory; the runner itself reports accesses out of bounds."""

    def __init__(self, nbytes: int) -> None:
        self.data = np.zeros(nbytes, np.uint8)

    def write(self, data: np.ndarray) -> None:
        """As :meth:`burnish.runtime.device.DeviceBuffer.write`."""
        self.data[:] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def read(self) -> np.ndarray:
        """As :meth:`burnish.runtime.device.DeviceBuffer.read`."""
        return self.data.copy()

    def untouched(self) -> bool:
        """As :meth:`burnish.runtime.device.DeviceBuffer.untouched`."""
        return True


class EmulatedBench:
    """See :class:`burnish.runtime.device.DeviceBench`. Its clock is a count: a nanosecond for each sector of memory,
    pass over the banks of shared memory, and barrier. It tells nothing of a GPU's time, and is the same every time.
    """

    def __init__(self, runner: _Runner) -> None:
        self._runner = runner

    def buffer(self, nbytes: int) -> EmulatedBuffer:
        """As :meth:`burnish.runtime.device.DeviceBench.buffer`."""
        return EmulatedBuffer(nbytes)

    def load(self, code: bytes) -> bytes:
        """The code itself."""
        return code

    def seconds(self, loaded: bytes, memory: Sequence[EmulatedBuffer], runs: int, flushed: bool) -> float:
        """As :meth:`burnish.runtime.device.DeviceBench.seconds`; of runs, which all take as long, one is executed."""
        del flushed
        before = _ticks(self._runner.counts)
        self._runner.run(loaded, [buffer.data for buffer in memory])
        return OPERATION * runs * max(1, _ticks(self._runner.counts) - before)


def _ticks(counts: LaunchCounts) -> int:
    return counts.load_sectors + counts.store_sectors + counts.shared_passes + counts.barriers

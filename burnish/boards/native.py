"""Native engine of a board: uploaded code in fenced memory, called and timed by an uploaded loop."""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from typing import Any

from burnish.runtime.abi import SCRATCH_STRIDE, PartStruct, PoolStruct, Runtime
from burnish.runtime.image import Image, LoadedImage
from burnish.runtime.pages import FORBIDDEN, HUGE_PAGE, anonymous_pages, protect

_ALIGNMENT = 64  # bytes of a cache line, at which kernels may expect their arguments
_AROUND, _UNWRITTEN = 0xA5, 0xFF  # bytes next to memory; of memory that nobody has written: NaN in every float type
_WATCHED = 4096  # bytes, at most, in front of memory
_SPIN = 20_000  # pauses of a thread before it sleeps
_SAME_MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}
_libc = ctypes.CDLL(None)


class GuardedMemory:
    """``nbytes`` bytes, up to their alignment directly before a forbidden page, with bytes around them that nobody may
    change.
    """

    def __init__(self, nbytes: int, data: bytes | None, writable: bool) -> None:
        """``data``: what it holds, where it may only be read after that if not ``writable``."""
        unit = HUGE_PAGE if nbytes >= HUGE_PAGE else mmap.PAGESIZE
        self._size = _round_up(nbytes + _ALIGNMENT, unit)
        self._pages = anonymous_pages(self._size + unit + 2 * mmap.PAGESIZE)
        if unit == HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._start = _round_up(base + mmap.PAGESIZE, unit) - base
        self.nbytes = nbytes
        self._first = self._start + self._size - _round_up(nbytes, _ALIGNMENT)
        self.address = base + self._first
        end = self._start + self._size
        self._around = (
            slice(max(self._start, self._first - _WATCHED), self._first),
            slice(self._first + nbytes, end),
        )
        for part in self._around:
            self._pages[part] = bytes([_AROUND]) * (part.stop - part.start)
        if data is not None:
            self._pages[self._first : self._first + nbytes] = data
        protect(base + self._start - mmap.PAGESIZE, mmap.PAGESIZE, FORBIDDEN)
        protect(base + end, mmap.PAGESIZE, FORBIDDEN)
        if not writable:
            protect(base + self._start, self._size, mmap.PROT_READ)

    def fill(self) -> None:
        """Makes every byte that of memory nobody has written."""
        ctypes.memset(self.address, _UNWRITTEN, self.nbytes)

    def read(self, offset: int, nbytes: int) -> bytes:
        """A copy of some bytes."""
        return self._pages[self._first + offset : self._first + offset + nbytes]

    def write(self, offset: int, data: bytes) -> None:
        """Replaces some bytes."""
        self._pages[self._first + offset : self._first + offset + len(data)] = data

    def untouched(self) -> bool:
        """Whether the bytes around still are what they were."""
        return all(self._pages[p] == bytes([_AROUND]) * (p.stop - p.start) for p in self._around)


class Native:
    """Code and memory by name, in this process, which they may take with them."""

    def __init__(self) -> None:
        self._codes: dict[str, LoadedImage] = {}
        self._memories: dict[str, GuardedMemory] = {}
        self._kept: list = []  # what threads use for as long as this process lives
        self._pools: dict[int, tuple[int, int]] = {}
        self._scratch: GuardedMemory | None = None
        self._clock = ctypes.cast(_libc.clock_gettime, ctypes.c_void_p).value

    @staticmethod
    def about() -> dict:
        """Description of this machine, and of its clock."""
        return {"machine": machine(), "clock": "seconds"}

    def code(self, name: str, image: Image) -> None:
        """Loads code. Raises ValueError for another machine's, OSError if the system refuses."""
        if image.machine != machine():
            raise ValueError(f"code for {image.machine}; allowed: {machine()}")
        self._codes[name] = LoadedImage(image)

    def buffer(self, name: str, nbytes: int, data: bytes | None, writable: bool) -> None:
        """Memory of this name, in the place of what had it."""
        self._memories[name] = GuardedMemory(nbytes, data, writable)

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Replaces bytes of writable memory."""
        self._place([name, offset, len(data)])
        self._memories[name].write(offset, data)

    def fill(self, name: str) -> None:
        """Makes memory what nobody has written."""
        self._memories[name].fill()

    def read(self, name: str, offset: int, nbytes: int) -> bytes:
        """Bytes of memory."""
        self._place([name, offset, nbytes])
        return self._memories[name].read(offset, nbytes)

    def untouched(self) -> bool:
        """Whether no byte next to any memory has changed."""
        each = [*self._memories.values(), *([self._scratch] if self._scratch else [])]
        return all(memory.untouched() for memory in each)

    def call(self, order: dict) -> list[float]:
        """Seconds of one call of all steps, ``runs`` of which are timed together; of each step where ``profile`` says.

        A step is [code, symbol, [[memory, offset, bytes], ...]], or ["", "copy", [target, source]]. ``watch``: uploaded
        code that times a single kernel; ``flushed``: memory that leaves all caches before every run of it.
        """
        runtime = self._runtime(order["threads"], order["scratch"], order.get("driver"))
        steps = [self._step(*step) for step in order["steps"]]
        runs = order["runs"]
        if order.get("watch"):
            ((kernel, arguments),) = steps
            return [self._watched(order, kernel, arguments, runtime) / runs]
        if order.get("profile"):
            return [self._timed([step], runtime, 1) for step in steps]
        return [self._timed(steps, runtime, runs) / runs]

    def _step(self, code: str, symbol: str, places: list) -> Any:
        if not code:
            (target, _), (source, nbytes) = (self._place(place) for place in places)
            return lambda arguments, runtime: ctypes.memmove(target, source, nbytes), None
        address = self._codes[code].address(symbol)
        pointers = (ctypes.c_void_p * max(1, len(places)))(*(self._place(place)[0] for place in places))
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address), pointers

    def _timed(self, steps: list, runtime: Runtime, runs: int) -> float:
        at = ctypes.addressof(runtime)
        calls = [(function, ctypes.addressof(given) if given is not None else 0) for function, given in steps]
        begin = time.perf_counter_ns()
        for _ in range(runs):
            for function, given in calls:
                function(given, at)
        return (time.perf_counter_ns() - begin) * 1e-9

    def _watched(self, order: dict, kernel: Any, arguments: Any, runtime: Runtime) -> float:
        watch, pointer, integer = self._codes[order["watch"]], ctypes.c_void_p, ctypes.c_int64
        given = [ctypes.cast(kernel, pointer), ctypes.addressof(arguments), ctypes.addressof(runtime), order["runs"]]
        if order.get("flushed") is None:
            hot = ctypes.CFUNCTYPE(integer, pointer, pointer, pointer, integer, pointer)
            return hot(watch.address("burnish_time_hot"))(*given, self._clock) * 1e-9
        ranges = [number for place in order["flushed"] for number in self._place(place)]
        cold = ctypes.CFUNCTYPE(integer, pointer, pointer, pointer, integer, pointer, pointer, integer)
        array = (ctypes.c_uint64 * max(1, len(ranges)))(*ranges)
        run = cold(watch.address("burnish_time_cold"))
        return run(*given, self._clock, ctypes.addressof(array), len(ranges) // 2) * 1e-9

    def _place(self, place: list) -> tuple[int, int]:
        """Address and bytes of a part of a memory. Raises ValueError for what is not inside of it."""
        name, offset, nbytes = place
        memory = self._memories[name]
        if not 0 <= offset <= offset + nbytes <= memory.nbytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of '{name}', which has {memory.nbytes}")
        return memory.address + offset, nbytes

    def _runtime(self, threads: int, scratch: int, driver: str | None) -> Runtime:
        """``struct Runtime`` with as many threads; their number must not change."""
        stride = _round_up(scratch, SCRATCH_STRIDE)
        if self._scratch is None or self._scratch.nbytes < stride * threads:
            self._scratch = GuardedMemory(stride * threads, None, True)
            self._scratch.fill()
        parallel, pool = self._pool(threads, driver) if driver else (0, 0)
        return Runtime(parallel, pool, self._scratch.address, stride, threads, None)

    def _pool(self, threads: int, driver: str) -> tuple[int, int]:
        """Addresses of the function that shares regions among threads, and of the pool of these."""
        if threads not in self._pools:
            code, size = self._codes[driver], ctypes.sizeof(PoolStruct)
            memory = GuardedMemory(size + threads * ctypes.sizeof(PartStruct) + 128, None, True)
            address = _round_up(memory.address, 128)
            ctypes.memset(address, 0, size + threads * ctypes.sizeof(PartStruct))
            pool, parts = PoolStruct.from_address(address), (PartStruct * threads).from_address(address + size)
            pool.threads, pool.spin = threads, _SPIN
            pool.syscall = ctypes.cast(_libc.syscall, ctypes.c_void_p).value
            entry, handle = ctypes.c_void_p(code.address("burnish_worker")), ctypes.c_ulong()
            for index in range(1, threads):
                parts[index].thread, parts[index].pool = index, address
                if _libc.pthread_create(ctypes.byref(handle), None, entry, ctypes.byref(parts[index])):
                    raise OSError(f"the system allows only {index} of {threads} threads")
                _libc.pthread_detach(handle)
            self._kept += [memory, code]
            self._pools[threads] = code.address("burnish_parallel"), address
        return self._pools[threads]


def machine() -> str:
    """``x86_64``, ``aarch64``, or what the system calls another machine."""
    name = platform.machine().lower()
    return _SAME_MACHINE.get(name, name)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

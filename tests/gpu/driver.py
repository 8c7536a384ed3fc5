"""A CUDA driver on this CPU: memory is this machine's, kernels run on coroutines, and its clock counts launches.

It keeps CUDA's rules of capture (CUDA driver API, "Stream Management": cuStreamBeginCapture,
cuThreadExchangeStreamCaptureMode): a stream that captures cannot be waited for, the default stream cannot be used while
a blocking one captures, what is unsafe for a capture of this thread or of a global mode is refused, and what breaks a
capture makes it invalid, until it is ended with an error. Copies to the CPU arrive when somebody waits for them. Uses
of memory on several streams that no event, wait or default stream orders are ``races``: vector clocks tell (Lamport
1978; Mattern 1989), for each allocation.

It is what ``burnish.runtime.gpu.driver.Gpu`` asks, so that all above it is tested as it runs on a GPU.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import RLock, get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from burnish.codegen.gridcode import GridCode, LaunchCode
from burnish.loops.expr import ITEM_BYTES
from burnish.runtime.device import bytes_at
from burnish.runtime.gpu import driver
from burnish.runtime.gpu.tensor_maps import ENCODE
from burnish.simulators.gpu.emulator import GridEmulator

LAUNCH_MILLISECONDS = 0.1  # by the driver's clock
L2_BYTES = 4096
_ATTRIBUTES = {"COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0, "L2_CACHE_SIZE": L2_BYTES}
GLOBAL, THREAD_LOCAL, RELAXED = range(3)  # CU_STREAM_CAPTURE_MODE_…
_ITEM_BYTES = {0: 1, 6: 2, 7: 4, 9: 2}  # CU_TENSOR_MAP_DATA_TYPE_…
INVALID_VALUE = 1
OUT_OF_MEMORY, NO_BINARY, BAD_HANDLE, DEAD = 2, 209, 400, 700
UNSUPPORTED, INVALIDATED, ISOLATION, IMPLICIT = 900, 901, 905, 906  # CUDA_ERROR_STREAM_CAPTURE_…
DEFAULT = 0  # the stream of others, which waits for all blocking ones

Clock = dict[int, int]  # how much of each stream is done before


@dataclass
class Work:
    """Work on a stream: what it does, and the memory that it reads and writes."""

    run: Callable[[], object]
    reads: Sequence[int] = ()
    writes: Sequence[int] = ()
    late: tuple[int, int, int] | None = None  # a copy to this machine, which arrives when it is waited for


@dataclass(frozen=True)
class EncodedMap:
    """What a tensor map says: where a tensor is, bytes of an element, extents of it and of a box."""

    place: int
    size: int
    shape: tuple[int, ...]
    box: tuple[int, ...]


@dataclass
class Capture:
    """A capture on a stream: its graph so far, the thread that began it and how, and whether it is still valid."""

    thread: int
    mode: int
    graph: list[Work] = field(default_factory=list)
    valid: bool = True


@dataclass(eq=False)
class Event:
    """An event: what is done when it is, and when that was."""

    done: Clock = field(default_factory=dict)
    time: float = 0.0
    destroyed: bool = False


@dataclass
class Uses:
    """The last uses of an allocation: by which stream at which of its ticks."""

    written: tuple[int, int] | None = None
    read: Clock = field(default_factory=dict)


def _merge(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        clock[stream] = max(tick, clock.get(stream, 0))


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
        self.blocking: dict[int, bool] = {DEFAULT: True}  # streams
        self.captures: dict[int, Capture] = {}  # by stream
        self.dead, self.limit = False, 1 << 40  # bytes of memory
        self.races: list[str] = []
        self._modes: dict[int, int] = {}  # of threads
        self._done: dict[int, Clock] = {DEFAULT: {}}  # by stream: what is done before its next work
        self._ticks: Counter[int] = Counter()
        self._here: Clock = {}  # what this machine has waited for
        self._late: list[tuple[int, int, int, bytes]] = []  # copies: stream, tick, address, data
        self._uses: dict[int, Uses] = {}
        self._lock = RLock()
        self.tensor_maps: dict[int, EncodedMap] = {}  # by address
        self._encode = ENCODE(self._encoded)
        self._functions = {"cuTensorMapEncodeTiled": ctypes.cast(self._encode, ctypes.c_void_p).value}

    def __getattr__(self, name: str) -> Any:
        free = ("cuInit", "cuCtxSetCurrent", "cuFuncSetAttribute", "cuGraphDestroy", "cuModuleUnload",
                "cuGraphExecDestroy")  # fmt: skip
        found = {
            **dict.fromkeys(free, lambda *args: (0,)),
            **dict.fromkeys(("cuDeviceGet", "cuDevicePrimaryCtxRetain"), lambda *args: (0, 1)),
            "cuDeviceGetAttribute": lambda name, device: (0, _ATTRIBUTES[name]),
            "cuGetProcAddress": lambda name, version, flags: (0, self._functions[name.decode()], 0),
            "cuGetErrorString": lambda code: (0, f"error {code}".encode()),
            "cuModuleLoadData": self._load, "cuModuleGetFunction": lambda code, name: (0, code),
            "cuMemAlloc": self._allocate, "cuMemFree": self._free,
            "cuMemcpyHtoDAsync": self._upload, "cuMemcpyDtoHAsync": self._download, "cuMemcpyDtoDAsync": self._copy,
            "cuMemsetD8Async": self._fill, "cuLaunchKernel": self._launch,
            "cuStreamCreate": self._create, "cuStreamDestroy": self._destroy, "cuStreamSynchronize": self._synchronize,
            "cuStreamBeginCapture": self._capture, "cuStreamEndCapture": self._captured,
            "cuStreamIsCapturing": self._is_capturing, "cuThreadExchangeStreamCaptureMode": self._exchange,
            "cuGraphInstantiate": lambda graph, flags: (0, graph), "cuGraphLaunch": self._replay,
            "cuEventCreate": lambda flags: (0, Event()), "cuEventRecord": self._record,
            "cuEventDestroy": self._end_event, "cuStreamWaitEvent": self._wait_event,
            "cuEventSynchronize": self._synchronize_event, "cuEventElapsedTime": lambda a, b: (0, b.time - a.time),
        }.get(name)  # fmt: skip
        if found is None:
            raise AttributeError(name)

        def locked(*args: Any) -> Any:
            with self._lock:
                self.calls.append(name)
                return found(*args)

        return locked

    # --- order --------------------------------------------------------------------------------------------------------

    def _error(self, stream: int) -> int:
        """The error of work on a stream, beside what a capture takes."""
        if self.dead:
            return DEAD
        if stream not in self.blocking:
            return BAD_HANDLE
        broken = [c for s, c in self.captures.items() if stream == DEFAULT and self.blocking[s]]
        for capture in broken:
            capture.valid = False
        capture = self.captures.get(stream)
        return IMPLICIT if broken else INVALIDATED if capture and not capture.valid else 0

    def _does(self, stream: int, *work: Work) -> tuple[int]:
        """Work on a stream: done, or captured."""
        code = self._error(stream)
        if not code and stream in self.captures:
            self.captures[stream].graph += work
        elif not code:
            for each in work:
                self._do(stream, each)
        return (code,)

    def _do(self, stream: int, work: Work) -> None:
        done = self._done[stream]
        _merge(done, self._here)
        for other in self.blocking if stream == DEFAULT else [DEFAULT] if self.blocking[stream] else ():
            if self.blocking[other]:
                _merge(done, self._done[other])
        self._ticks[stream] += 1
        tick = done[stream] = self._ticks[stream]
        for place in work.reads:
            uses = self._uses_of(place)
            self._ordered("read", place, done, [uses.written] if uses.written else [])
            uses.read[stream] = tick
        for place in work.writes:
            uses = self._uses_of(place)
            self._ordered("write", place, done, [*([uses.written] if uses.written else []), *uses.read.items()])
            uses.written, uses.read = (stream, tick), {}
        work.run()
        if work.late is not None:
            target, source, nbytes = work.late
            self._late.append((stream, tick, target, bytes(bytes_at(source, nbytes))))

    def _uses_of(self, place: int) -> Uses:
        """Of the allocation that an address is in, or of the address itself."""
        begins = sorted(self.memory)
        at = bisect_right(begins, place) - 1
        inside = at >= 0 and place < begins[at] + self.memory[begins[at]].nbytes
        return self._uses.setdefault(begins[at] if inside else place, Uses())

    def _ordered(self, what: str, place: int, done: Clock, before: Sequence[tuple[int, int]]) -> None:
        for stream, tick in before:
            if done.get(stream, 0) < tick:
                self.races.append(f"{what} of {place:#x} is not after what stream {stream} does with it")

    def _waited(self, clock: Clock) -> None:
        """This machine has waited: copies arrive."""
        _merge(self._here, clock)
        for copy in [*self._late]:
            stream, tick, target, data = copy
            if self._here.get(stream, 0) >= tick:
                ctypes.memmove(target, data, len(data))
                self._late.remove(copy)

    def others(self, stream: int, reads: Sequence[int] = (), writes: Sequence[int] = ()) -> int:
        """Work of somebody else on a stream; its error."""
        with self._lock:
            return self._does(stream, Work(lambda: None, reads, writes))[0]

    # --- streams, events ----------------------------------------------------------------------------------------------

    def _create(self, flags: int) -> tuple[int, int]:
        stream = 8 + len(self._done)  # behind the names of default streams
        self.blocking[stream], self._done[stream] = not flags & 1, {}
        return 0, stream

    def _destroy(self, stream: int) -> tuple[int]:
        return (int(self.blocking.pop(stream) is None),)

    def _synchronize(self, stream: int) -> tuple[int]:
        if stream in self.captures:
            self.captures[stream].valid = False
            return (UNSUPPORTED,)
        code = self._error(stream)
        if not code:
            self._waited(self._done[stream])
        return (code,)

    def _record(self, event: Event, stream: int) -> tuple[int]:
        assert stream not in self.captures, "an event of a captured stream is part of the graph"
        code = BAD_HANDLE if event.destroyed else self._error(stream)
        if not code:
            event.done, event.time = {**self._done[stream]}, self.clock
            if stream == DEFAULT:
                for other in self.blocking:
                    if self.blocking[other]:
                        _merge(event.done, self._done[other])
        return (code,)

    def _end_event(self, event: Event) -> tuple[int]:
        event.destroyed = True
        return (0,)

    def _wait_event(self, stream: int, event: Event, flags: int) -> tuple[int]:
        code = BAD_HANDLE if event.destroyed else self._error(stream)
        if not code and stream in self.captures:
            self.captures[stream].valid, code = False, ISOLATION
        elif not code:
            _merge(self._done[stream], event.done)
        return (code,)

    def _synchronize_event(self, event: Event) -> tuple[int]:
        if not event.destroyed and not self.dead:
            self._waited(event.done)
        return (BAD_HANDLE if event.destroyed else DEAD if self.dead else 0,)

    # --- captures -----------------------------------------------------------------------------------------------------

    def _exchange(self, mode: int) -> tuple[int, int]:
        before = self._modes.get(get_ident(), GLOBAL)
        self._modes[get_ident()] = mode
        return 0, before

    def _unsafe(self) -> int:
        """The error of what is not safe while somebody captures."""
        own, mode = get_ident(), self._modes.get(get_ident(), GLOBAL)
        hurt = [
            c
            for c in self.captures.values()
            if mode != RELAXED and (c.mode != RELAXED if c.thread == own else mode == c.mode == GLOBAL)
        ]
        for capture in hurt:
            capture.valid = False
        return DEAD if self.dead else UNSUPPORTED if hurt else 0

    def _capture(self, stream: int, mode: int) -> tuple[int]:
        if stream in self.captures or stream == DEFAULT:
            return (UNSUPPORTED,)
        code = self._error(stream)
        if not code:
            self.captures[stream] = Capture(get_ident(), mode)
        return (code,)

    def _captured(self, stream: int) -> tuple[int, list[Work] | None]:
        found = self.captures.pop(stream)
        wrong = found.mode != RELAXED and found.thread != get_ident()
        return (0, found.graph) if found.valid and not wrong else (INVALIDATED, None)

    def _is_capturing(self, stream: int) -> tuple[int, int]:
        if stream == DEFAULT and any(self.blocking[s] for s in self.captures):
            return IMPLICIT, 0
        return (DEAD if self.dead else 0), int(stream in self.captures)

    def _replay(self, graph: list[Work], stream: int) -> tuple[int]:
        if stream in self.captures:
            self.captures[stream].valid = False
            return (UNSUPPORTED,)
        return self._does(stream, *graph)

    # --- memory, kernels ----------------------------------------------------------------------------------------------

    def _load(self, data: bytes) -> tuple[int, GridCode | None]:
        code = self._unsafe()
        found = self.codes.get(data)
        return (code, found) if code or found else (NO_BINARY, None)

    def _allocate(self, nbytes: int) -> tuple[int, int]:
        code = self._unsafe()
        if code or sum(array.nbytes - 256 for array in self.memory.values()) + nbytes > self.limit:
            return code or OUT_OF_MEMORY, 0
        array = np.zeros(nbytes + 256, np.uint8)
        place = -(-array.ctypes.data // 256) * 256
        self.memory[place] = array
        return 0, place

    def _free(self, place: int) -> tuple[int]:
        for clock in self._done.values():  # it waits for all
            self._waited(clock)
        self.memory.pop(place)
        self._uses.pop(place, None)
        return (self._unsafe(),)

    def _upload(self, place: int, source: int, nbytes: int, stream: int) -> tuple[int]:
        return self._does(stream, Work(lambda: ctypes.memmove(place, source, nbytes), (), (place,)))

    def _download(self, target: int, place: int, nbytes: int, stream: int) -> tuple[int]:
        return self._does(stream, Work(lambda: None, (place,), (), (target, place, nbytes)))

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> tuple[int]:
        return self._does(stream, Work(lambda: ctypes.memmove(target, source, nbytes), (source,), (target,)))

    def _fill(self, place: int, value: int, nbytes: int, stream: int) -> tuple[int]:
        return self._does(stream, Work(lambda: ctypes.memset(place, value, nbytes), (), (place,)))

    def _encoded(self, *args: Any) -> int:
        """Keeps CUDA's rules of tensor maps with swizzled rows of 128 bytes (cuTensorMapEncodeTiled)."""
        at, dtype, rank, place, dims, strides, box, steps, interleave, swizzle, _, fill = args
        size = _ITEM_BYTES[dtype]
        extents, inside = [dims[d] for d in range(rank)], [box[d] for d in range(rank)]
        apart = [size, *(strides[d] for d in range(rank - 1))]
        ends = [n * step for n, step in zip(extents, apart, strict=True)]
        right = (
            at % 64 == 0 and place % 16 == 0 and 1 <= rank <= 5 and (interleave, swizzle, fill) == (0, 3, 0)
            and all(1 <= n <= 256 for n in inside) and inside[0] * size <= 128 and inside[0] * size % 16 == 0
            and all(step % 16 == 0 and step >= end for step, end in zip(apart[1:], ends, strict=False))
            and all(steps[d] == 1 for d in range(rank))
        )  # fmt: skip
        if not right:
            return INVALID_VALUE
        self.tensor_maps[at] = EncodedMap(place, size, tuple(extents[::-1]), tuple(inside[::-1]))
        return 0

    def _check_maps(self, launch: LaunchCode, pointers: Sequence[int], places: Sequence[int]) -> None:
        """The maps of a launch are those of its tensors where they are."""
        for known, at in zip(launch.maps, pointers, strict=True):
            wanted = EncodedMap(places[known.argument] + known.offset, ITEM_BYTES[known.dtype], known.shape, known.box)
            assert self.tensor_maps[at] == wanted

    def _launch(self, code: GridCode, *args: int) -> tuple[int]:
        count = len(code.nbytes) + 1
        (launch,) = code.launches if len(code.launches) == 1 else (None,)  # of several none has maps
        assert launch or not any(one.maps for one in code.launches)
        given = len(launch.maps) if launch else 0
        pointers = [*(ctypes.c_uint64 * (count + given)).from_address(args[8])]
        places = [ctypes.c_uint64.from_address(at).value for at in pointers[:count]]
        if launch:
            self._check_maps(launch, pointers[count:], places)
        reads = [p for i, p in enumerate(places[:-1]) if i not in code.written]
        writes = [p for i, p in enumerate(places) if i in code.written or (i == count - 1 and code.workspace)]
        return self._does(args[7], Work(lambda: self._execute(code, places[:-1]), reads, writes))

    def _execute(self, code: GridCode, places: list[int]) -> None:
        memory = [bytes_at(place, n) for place, n in zip(places, code.nbytes, strict=True)]
        GridEmulator().run(code.packed(), memory)
        self.clock += LAUNCH_MILLISECONDS


def emulated_gpu(monkeypatch: pytest.MonkeyPatch, codes: Iterable[GridCode]) -> tuple[driver.Gpu, EmulatedDriver]:
    """The first GPU of this machine, by such a driver."""
    made = EmulatedDriver([*codes])
    monkeypatch.setattr(driver, "require", lambda name, extra: made)
    driver.first_gpu.cache_clear()
    return driver.Gpu(), made

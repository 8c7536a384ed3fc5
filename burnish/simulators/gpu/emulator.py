"""Coroutine runner: kernels for a grid on a CPU, every thread a greenlet, each access of memory recorded and checked.

The same LLVM IR that becomes PTX runs, compiled for this machine. Threads of a block run one after another in shuffled
order up to the next barrier, so that a missing one shows in the results; and whatever the order was, records tell
races, places outside of all buffers, how well accesses of a warp are coalesced, and bank conflicts.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from burnish.base.optional import require
from burnish.codegen.gridcode import Extents, GridCode, LaunchCode
from burnish.codegen.objects import optimize, parse, target_machine
from burnish.errors import VerificationError
from burnish.machines.nvptx.machine import NVPTX
from burnish.machines.nvptx.tensor_copies import MAP_BYTES
from burnish.machines.target import Target, host
from burnish.runtime.buffers import address_of
from burnish.runtime.gpu.bench import EmulatedBench
from burnish.runtime.gpu.records import Accesses, LaunchCounts, MemoryRegion
from burnish.simulators.gpu.groups import GROUP, grouped_bytes, is_grouped
from burnish.simulators.gpu.instrument import EVENTS, INDICES, RECORD, Instrumented, instrumented
from burnish.simulators.gpu.pending import Pending
from burnish.simulators.gpu.warp import WARP, input_bytes, together

GAP = 4096  # bytes between buffers that belong to none: an access of these is reported
RECORDS = 1 << 18  # that are kept before they are copied
NOBODY, SEVERAL = -1, -2  # in the place of a block's number
FILL = 0xFF  # every byte of memory that nobody has written: NaN, or -1


class _Built:
    """One kernel for this CPU: its functions, and the addresses of what the prelude declares."""

    def __init__(self, code: GridCode) -> None:
        made: Instrumented = instrumented(code.ir)
        machine = target_machine(host())
        module = parse(made.text, machine)
        module.verify()
        optimize(module, machine)
        engine_machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
            cpu=host().cpu, features=host().feature_string, opt=1, jit=True
        )
        self.engine = llvm.create_mcjit_compiler(module, engine_machine)
        self.engine.finalize_object()
        self.sites, self.operations, self.queued = made.sites, made.operations, made.queued
        self.aligned = np.array(made.aligned, np.int64)
        self.shared = {name: (self.address(name), size) for name, size in made.shared.items()}
        self.constants = [
            MemoryRegion(name, self.address(name), size, constant=True) for name, size in made.constants.items()
        ]

    def address(self, name: str) -> int:
        """The address of a function or variable."""
        found: int = self.engine.get_function_address(name) or self.engine.get_global_value_address(name)
        return found

    def variable(self, name: str, count: int = 1) -> Any:
        """Words of eight bytes of the prelude."""
        return (ctypes.c_int64 * count).from_address(self.address(name))


@dataclass(frozen=True)
class _Yield:
    """Reason why a thread has yielded: at a barrier (no operation), or for what its warp does together.

    ``blocked``: for a phase of an mbarrier that has not ended; ``fault``: it did what no thread may do.
    """

    operation: str | None = None
    data: bytes = b""
    epoch: int = 0
    blocked: bool = False
    fault: str = ""


class GridEmulator:
    """GPU emulator: executes kernels for a grid on this CPU and checks them; ``counts`` is what all have done.

    ``seed`` decides the order of threads and blocks. Needs the package ``greenlet``. Every run raises VerificationError
    for a race, an access outside of the kernel's buffers, a barrier that some threads of a block do not reach, and an
    operation of a warp that not all of its threads execute.
    """

    def __init__(self, seed: int = 0) -> None:
        self.greenlet = require("greenlet", extra="dev").greenlet
        self.random = random.Random(seed)
        self.counts = LaunchCounts()
        self._built: dict[bytes, tuple[GridCode, _Built]] = {}

    def bench(self, cpu: str) -> EmulatedBench:
        """Measurement bench whose clock counts what kernels do."""
        del cpu
        return EmulatedBench(self)

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        """Runs one kernel on the bytes of its buffers; see :class:`burnish.runtime.device.Device`."""
        if code not in self._built:
            found = GridCode.unpacked(code)
            self._built[code] = found, _Built(found)
        grid, built = self._built[code]
        space = _Memory(grid, memory)
        for launch in grid.launches:
            self.counts.add(_LaunchRun(self, built, launch, space).run())
        space.copy_back(memory, grid.written)


class _Memory:
    """Copies of a kernel's buffers and its workspace in one arena, with gaps between that nothing may touch."""

    def __init__(self, code: GridCode, memory: Sequence[np.ndarray]) -> None:
        sizes = [*code.nbytes, code.workspace]
        offsets, total = [], GAP
        for size in sizes:
            offsets.append(total)
            total += -(-size // 256) * 256 + GAP
        self.arena = np.full(total + 256, FILL, np.uint8)
        begin = address_of(self.arena)
        shift = -begin % 256
        self.places = [begin + shift + offset for offset in offsets]
        self.sizes = sizes
        self.offsets = [shift + offset for offset in offsets]
        for offset, array in zip(self.offsets, memory, strict=False):
            self.arena[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        names = [*(f"parameter {i}" for i in range(len(code.nbytes))), "workspace"]
        self.regions = [
            MemoryRegion(name, at, size) for name, at, size in zip(names, self.places, sizes, strict=True) if size
        ]
        self.range = (begin, len(self.arena))

    def copy_back(self, memory: Sequence[np.ndarray], written: Sequence[int]) -> None:
        """Writes what kernels have written to where it came from."""
        for i in written:
            array = memory[i].reshape(-1).view(np.uint8)
            array[:] = self.arena[self.offsets[i] : self.offsets[i] + array.nbytes]


class _LaunchRun:
    """One launch: blocks one after another, each with its threads as coroutines."""

    def __init__(self, device: GridEmulator, built: _Built, launch: LaunchCode, space: _Memory) -> None:
        self.device, self.built, self.launch, self.space = device, built, launch, space
        self.maps = [np.zeros(MAP_BYTES, np.uint8) for _ in launch.maps]  # known by where they are
        self.by_map = {
            address_of(at): (m, space.places[m.argument] + m.offset)
            for at, m in zip(self.maps, launch.maps, strict=True)
        }
        kinds = [ctypes.c_void_p] * (len(space.places) + len(self.maps))
        self.function = ctypes.CFUNCTYPE(None, *kinds)(built.address(launch.name))
        self.index = (ctypes.c_int32 * len(INDICES)).from_address(built.address("gpu.index"))
        self.who, self.count = built.variable("gpu.who"), built.variable("gpu.count")
        self.records = np.empty((RECORDS, RECORD), np.int64)
        self.drained: list[np.ndarray] = []
        shared = [MemoryRegion(name, at, size, shared=True) for name, (at, size) in built.shared.items()]
        self.regions = [*space.regions, *shared, *built.constants]
        self.results: dict[int, bytes] = {}
        self.pending = Pending(built.sites, self._written)
        self.recorded = self.current = self.epoch = 0
        self.hub: Any = None  # where threads come back to
        self.ending = False  # threads run to their end without waiting: the block has failed
        self._connect([*shared, *built.constants])

    def _connect(self, own: list[MemoryRegion]) -> None:
        """Connects the prelude: buffers to write to, memory regions in addition to the launch's arguments, and
        callbacks.
        """
        self.hub = self.device.greenlet.getcurrent()

        def barrier() -> None:
            if not self.ending:
                self.hub.switch(_Yield())

        def collective(operation: int, given: int, result: int) -> None:
            if not self.ending:
                name = self.built.operations[operation]
                data = ctypes.string_at(given, grouped_bytes(name) if is_grouped(name) else input_bytes(name))
                back: bytes = self.hub.switch(_Yield(name, data, self.epoch))
                if not self.ending:
                    ctypes.memmove(result, back, len(back))

        def full() -> None:
            self._drain()

        def copy(to: int, begin: int, count: int, nbytes: int) -> None:
            if not self.ending:
                self.pending.copy(self.current, self.epoch, self._position(), to, begin, count, nbytes)

        def queue(number: int) -> None:
            if not self.ending:
                self.pending.queue(self.built.queued[number], self.current, self.epoch, self._position())

        def box(to: int, of: int, bar: int, at: int) -> None:
            source = self.by_map[of]
            where = [*(ctypes.c_int32 * len(source[0].shape)).from_address(at)]
            who = self.current, self.epoch
            self._checked(lambda: self.pending.copy_box(who, self._position(), to, source, bar, where))

        def arrivals(event: int, bar: int, number: int) -> None:
            boxes, who = self.pending.boxes, (self.current, self.epoch)
            if EVENTS[event] == "init":
                self._checked(lambda: boxes.init(bar, number, who))
            elif EVENTS[event] == "publish":
                boxes.publish(self.current)
            elif EVENTS[event] == "expect":
                self._checked(lambda: boxes.expect(bar, number, who))
            else:
                while not self._checked(
                    lambda: self.pending.wait_boxes(self.current, self.epoch, self._position(), bar, number)
                ):
                    self.hub.switch(_Yield(blocked=True))

        word = ctypes.c_void_p
        self.callbacks = [
            ctypes.PYFUNCTYPE(None)(barrier),
            ctypes.PYFUNCTYPE(None, ctypes.c_int64, word, word)(collective),
            ctypes.PYFUNCTYPE(None)(full),
            ctypes.PYFUNCTYPE(None, word, word, ctypes.c_int32, ctypes.c_int32)(copy),
            ctypes.PYFUNCTYPE(None, ctypes.c_int64)(queue),
            ctypes.PYFUNCTYPE(None, word, word, word, word)(box),
            ctypes.PYFUNCTYPE(None, ctypes.c_int32, word, ctypes.c_int32)(arrivals),
        ]
        calls = self.built.variable("gpu.calls", len(self.callbacks))
        for i, callback in enumerate(self.callbacks):
            calls[i] = ctypes.cast(callback, word).value
        self.built.variable("gpu.records")[0] = address_of(self.records)
        self.built.variable("gpu.limit")[0] = RECORDS
        self.count[0] = 0
        low = min(r.begin for r in own)
        high = max(r.begin + r.nbytes for r in own)
        known = self.built.variable("gpu.range", 4)
        known[:] = [*self.space.range, low, high - low]

    def _checked(self, do: Callable[[], object]) -> bool:
        """Execution of what a thread does, whose errors end the block; whether it is done, also if that is ending."""
        if self.ending:
            return True
        try:
            return do() is not False
        except VerificationError as error:
            self.hub.switch(_Yield(fault=str(error)))
            return True

    def _drain(self) -> None:
        """Keeps the records that there are, and makes room."""
        self.drained.append(self.records[: self.count[0]].copy())
        self.recorded += int(self.count[0])
        self.count[0] = 0

    def _position(self) -> int:
        """Number of records."""
        return self.recorded + int(self.count[0])

    def _written(self, records: np.ndarray) -> None:
        """Appends records of asynchronous accesses, which no thread makes itself."""
        self._drain()
        self.drained.append(records)
        self.recorded += len(records)

    def run(self) -> LaunchCounts:
        """Runs all blocks, once; what they did."""
        try:
            return self._blocks()
        finally:  # the greenlet of a thread must not outlive it in a cycle of references, as `ctypes.cast` makes one
            self.hub = None

    def _blocks(self) -> LaunchCounts:
        total = LaunchCounts()
        blocks = _positions(self.launch.grid)
        self.device.random.shuffle(blocks)
        writers = _Writers()
        for number, block in enumerate(blocks):
            for at, size in self.built.shared.values():
                ctypes.memset(at, FILL, size)
            self.recorded = 0
            self.pending.begin()
            barriers = self._block(block)
            self._drain()
            found = Accesses(np.concatenate(self.drained), self.regions, self.pending.periods())
            self.drained.clear()
            self._check(found, block)
            writers.add(found, number, self)
            counts = found.counts()
            counts.barriers, counts.blocks = barriers, 1
            total.add(counts)
        return total

    def _check(self, found: Accesses, block: Extents) -> None:
        """Raises VerificationError for what no thread may do."""
        for what, *sites in self._faults(found):
            at = " and ".join(f"'{self.built.sites[site]}'" for site in sites)
            raise VerificationError(f"kernel '{self.launch.name}', block {list(block)}: {what}, at {at}")
        if self.pending.boxes.is_copying:
            self.fail(f"block {list(block)} ends before a copy of a box into its shared memory has ended")

    def _faults(self, found: Accesses) -> Iterator[tuple[Any, ...]]:
        """Each kind of fault of a block's threads, and the sites in its code."""
        if (wrong := found.outside()) is not None:
            site, thread, address = wrong
            yield f"thread {thread} touches {self._nearest(address)}, outside of all buffers", site
        aligned = self.built.aligned
        for odd in np.flatnonzero(found.address % aligned[found.site])[:1]:
            site = int(found.site[odd])
            yield f"thread {found.thread[odd]} is not at a multiple of {aligned[site]} bytes", site
        if (early := found.unfinished()) is not None:
            site, thread, what, other = early
            yield f"thread {thread} touches what a {what} of thread {other} has not ended with", site
        if (race := found.race()) is not None:
            one, first, other, second = race
            yield f"threads {first} and {second} touch one place without a barrier between", one, other

    def _nearest(self, address: int) -> str:
        near = min(self.regions, key=lambda r: max(r.begin - address, address - r.begin - r.nbytes))
        beyond = address - near.begin - near.nbytes
        return (
            f"{beyond} bytes behind {near.name}" if beyond >= 0 else f"{near.begin - address} bytes before {near.name}"
        )

    # --- one block ----------------------------------------------------------------------------------------------------

    def _block(self, block: Extents) -> int:
        """Runs the threads of one block to their end; the number of barriers that they came to."""
        threads = _positions(self.launch.block)
        self.index[0:3] = list(block)
        lanes = [self.device.greenlet(self._thread) for _ in threads]
        try:
            return self._rounds(threads, lanes)
        except BaseException:
            self.ending = True
            for lane in lanes:  # native frames cannot be unwound
                while lane:
                    lane.switch(b"")
            raise

    def _rounds(self, threads: list[Extents], lanes: list[Any]) -> int:
        """See :meth:`_block`: all threads up to the next barrier, until they end."""
        ready, epoch = list(range(len(lanes))), 0
        waiting: dict[int, _Yield] = {}
        while ready:
            self.device.random.shuffle(ready)
            for i in ready:
                self.index[3:6] = list(threads[i])
                self.who[0] = i | epoch << 32
                self.current, self.epoch = i, epoch
                found = lanes[i].switch(self.results.pop(i, b"")) if lanes[i] else lanes[i].switch()
                if found is None:
                    waiting.pop(i, None)
                else:
                    waiting[i] = found
                    if found.fault:
                        self.fail(found.fault)
            blocked = [i for i, one in waiting.items() if one.blocked]
            if blocked and any(i not in waiting or not waiting[i].blocked for i in ready):
                ready = blocked
            else:
                ready = self._together(waiting, len(lanes))
                if blocked and not ready:
                    self.fail(f"thread {blocked[0]} waits for a phase of an mbarrier that does not end")
                ready += blocked
            for i in blocked:
                del waiting[i]
            if not ready and waiting:
                if len(waiting) != len(lanes):
                    ended = len(lanes) - len(waiting)
                    self.fail(
                        f"{ended} of {len(lanes)} threads ended, and never come to the barrier at which the others wait"
                    )
                epoch += 1
                ready = list(waiting)
                waiting.clear()
        return epoch

    def _thread(self) -> None:
        self.function(*self.space.places, *self.by_map)

    def _together(self, waiting: dict[int, _Yield], threads: int) -> list[int]:
        """Does what whole warps wait for; the threads that go on then."""
        ready: list[int] = []
        asked = {i: w.operation for i, w in waiting.items() if w.operation is not None}
        units = {(GROUP if is_grouped(name) else WARP, i) for i, name in asked.items()}
        for size, number in sorted({(size, i // size) for size, i in units}):
            lanes = range(number * size, (number + 1) * size)
            kinds = {asked.get(i) for i in lanes}
            if len(kinds) != 1 or lanes[-1] >= threads:
                what = "warp" if size == WARP else "group of warps"
                self.fail(f"{what} {number}: not all of its threads execute what it has to do together")
            (name,) = kinds
            assert name is not None
            data = [waiting[i].data for i in lanes]
            if size == GROUP:
                results = self.pending.together(name, number, waiting[lanes[0]].epoch, self._position(), data)
            else:
                results = together(name, data)
            for i, result in zip(lanes, results, strict=True):
                self.results[i] = result
                del waiting[i]
            ready += lanes
        return ready

    def fail(self, text: str) -> None:
        """Raises VerificationError about this launch."""
        raise VerificationError(f"kernel '{self.launch.name}': {text}")


class _Writers:
    """Race detection between blocks: which block wrote each byte of global memory, and no other one may touch it in the
    same launch.
    """

    def __init__(self) -> None:
        self.writer: dict[int, np.ndarray] = {}
        self.reader: dict[int, np.ndarray] = {}

    def add(self, found: Accesses, block: int, run: _LaunchRun) -> None:
        """Adds what a block touched. Raises VerificationError for what another one wrote, or wrote and another read."""
        outer = found.kind(shared=False)
        for number, region in enumerate(found.regions):
            mine = outer & (found.region == number)
            if not mine.any():
                continue
            writer = self.writer.setdefault(number, np.full(region.nbytes, NOBODY, np.int32))
            reader = self.reader.setdefault(number, np.full(region.nbytes, NOBODY, np.int32))
            read, written = (np.unique(found.words(mine & w)[0]) - region.begin for w in (~found.writes, found.writes))
            clash = [
                (places[at] != NOBODY) & (places[at] != block)
                for places, at in ((writer, read), (writer, written), (reader, written))
            ]
            if any(bad.any() for bad in clash):
                run.fail(f"two blocks touch one place of {region.name}, which one of them writes")
            reader[read] = np.where((reader[read] == NOBODY) | (reader[read] == block), block, SEVERAL)
            writer[written] = block


def _positions(extents: Extents) -> list[Extents]:
    """All positions, x fastest."""
    x, y, z = extents
    return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def emulated(target: Target, seed: int = 0) -> Target:
    """The target with this CPU in the place of its device: what is compiled for it runs, slowly, and is checked.

    Its modules run here; saved ones, as those of the target itself, run on the real device. ``seed`` decides the order
    of threads. Worker processes find the machine of the first seed by its path; other seeds are of this process alone.
    """
    if target.machine is NVPTX and seed == 0:
        return replace(target, machine=EMULATED)
    return replace(target, machine=target.machine.with_(device=partial(GridEmulator, seed)))


EMULATED = NVPTX.with_(device=GridEmulator, import_path=f"{__name__}:EMULATED")

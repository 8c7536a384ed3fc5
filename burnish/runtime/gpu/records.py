"""Counts and checks of recorded accesses: coalescing, bank conflicts, races, places outside of all buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

WARP = 32
SECTOR = 32  # bytes that global memory hands out at least
BANKS, BANK = 32, 4  # of shared memory: words of four bytes, one of each bank at a time


@dataclass
class LaunchCounts:
    """Performance counters of a kernel launch.

    ``global_loads`` and ``global_stores``: of threads. ``load_requests``: of warps; ``load_sectors``: pieces of 32
    bytes that these touch, ``ideal_sectors`` the fewest that their bytes fit into, so that their ratio is 1 where
    accesses are coalesced. ``shared_accesses``: of threads; ``shared_requests`` of warps, ``shared_passes``: how often
    banks are asked for these; more than ``shared_ideal`` are bank conflicts. ``barriers``: of blocks.
    """

    global_loads: int = 0
    global_load_bytes: int = 0
    global_stores: int = 0
    load_requests: int = 0
    load_sectors: int = 0
    ideal_sectors: int = 0
    store_sectors: int = 0
    ideal_store_sectors: int = 0
    shared_accesses: int = 0
    shared_requests: int = 0
    shared_passes: int = 0
    shared_ideal: int = 0
    barriers: int = 0
    blocks: int = 0

    def add(self, other: LaunchCounts) -> None:
        """Adds what another launch did."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    @property
    def sectors_per_ideal(self) -> float:
        """Sectors touched by global loads, relative to the fewest possible: 1 where accesses are coalesced."""
        return self.load_sectors / max(self.ideal_sectors, 1)

    @property
    def conflicts_per_ideal(self) -> float:
        """Shared-memory passes, relative to those without bank conflicts."""
        return self.shared_passes / max(self.shared_ideal, 1)


@dataclass(frozen=True)
class MemoryRegion:
    """Memory that a kernel may touch."""

    name: str
    begin: int
    nbytes: int
    shared: bool = False
    constant: bool = False


@dataclass(frozen=True)
class Period:
    """Pieces of shared memory that a copy writes, or a tensor core reads, while threads do other things.

    From record ``begin`` on and ``epoch`` barriers, up to record ``end`` and ``last`` barriers, of a thread. ``waits``:
    of a copy that every thread waits for itself, for each that has the number of records before; None for others.
    """

    what: str
    places: tuple[int, ...]
    nbytes: int  # of each piece
    writes: bool
    thread: int
    begin: int
    epoch: int
    end: int = 1 << 62
    last: int = 1 << 31
    waits: Mapping[int, int] | None = None


class Accesses:
    """Access records of one block: address, site, bytes, direction, thread and the number of barriers before."""

    def __init__(self, records: np.ndarray, regions: Sequence[MemoryRegion], periods: Sequence[Period] = ()) -> None:
        self.periods = periods
        self.address = records[:, 0]
        self.site, self.size = records[:, 1] >> 16, (records[:, 1] >> 1) & 0x7FFF
        self.writes = (records[:, 1] & 1).astype(bool)
        self.thread, self.epoch = records[:, 2] & 0xFFFFFFFF, records[:, 2] >> 32
        self.regions = sorted(regions, key=lambda r: r.begin)
        begins = np.array([r.begin for r in self.regions], np.int64)
        ends = np.array([r.begin + r.nbytes for r in self.regions], np.int64)
        at = np.searchsorted(begins, self.address, "right") - 1
        inside = (at >= 0) & (self.address + self.size <= ends[np.maximum(at, 0)])
        self.region = np.where(inside, at, -1)

    def outside(self) -> tuple[int, int, int] | None:
        """Site, thread and address of the first access outside of all buffers, or store to constants."""
        constant = np.array([r.constant for r in self.regions])[np.maximum(self.region, 0)]
        wrong = np.flatnonzero((self.region < 0) | (constant & self.writes))
        if not len(wrong):
            return None
        first = wrong[0]
        return int(self.site[first]), int(self.thread[first]), int(self.address[first])

    def kind(self, shared: bool) -> np.ndarray:
        """Mask of records of shared memory, or of global memory that is no constant."""
        wanted = np.array([r.shared == shared and not r.constant for r in self.regions])
        return (self.region >= 0) & wanted[np.maximum(self.region, 0)]

    def words(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every byte that the chosen records touch: its address, and the number of the record."""
        numbers = np.flatnonzero(chosen)
        sizes = self.size[numbers]
        owners = np.repeat(numbers, sizes)
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.address[owners] + (np.arange(len(owners)) - starts), owners

    def race(self) -> tuple[int, int, int, int] | None:
        """Two sites and threads that touch one byte between the same barriers, one writing; None if there are none."""
        every = self.region >= 0
        written = np.unique(self.region[every & self.writes])
        chosen = every & np.isin(self.region, written)
        if not chosen.any():
            return None
        at, owner = self.words(chosen)
        keep = (at & 3 == 0) | (self.size[owner] < 4) if bool((self.size[chosen] % 4 == 0).all()) else slice(None)
        at, owner = at[keep], owner[keep]
        epoch, thread, writes = self.epoch[owner], self.thread[owner], self.writes[owner]
        order = np.lexsort((thread, at, epoch))
        at, epoch, thread, writes, owner = at[order], epoch[order], thread[order], writes[order], owner[order]
        first = np.r_[True, (at[1:] != at[:-1]) | (epoch[1:] != epoch[:-1])]
        group = np.cumsum(first) - 1
        begins = np.flatnonzero(first)
        any_write = np.maximum.reduceat(writes.astype(np.int8), begins) > 0
        several = np.maximum.reduceat(thread, begins) != np.minimum.reduceat(thread, begins)
        bad = np.flatnonzero(any_write & several)
        if not len(bad):
            return None
        members = np.flatnonzero(group == bad[0])
        writer = members[writes[members]][0]
        other = members[thread[members] != thread[writer]][0]
        return (
            int(self.site[owner[writer]]), int(thread[writer]), int(self.site[owner[other]]), int(thread[other]),
        )  # fmt: skip

    def unfinished(self) -> tuple[int, int, str, int] | None:
        """An access, by site and thread, of what something has not ended with, and what that is, of which thread; None.

        One of them writes. For threads beside that of the period this begins and ends with barriers.
        """
        if not self.periods:
            return None
        number = np.repeat(np.arange(len(self.periods)), [len(p.places) * (p.nbytes // BANK) for p in self.periods])
        every = [np.add.outer(p.places, np.arange(0, p.nbytes, BANK)).reshape(-1) for p in self.periods]
        word = np.concatenate(every) // BANK
        order = np.argsort(word, kind="stable")
        word, number = word[order], number[order]
        at, owner = self.words(self.kind(shared=True))
        first = np.flatnonzero(np.r_[True, (at[1:] // BANK != at[:-1] // BANK) | (owner[1:] != owner[:-1])])
        at, owner = at[first] // BANK, owner[first]
        low, high = np.searchsorted(word, at, "left"), np.searchsorted(word, at, "right")
        count = high - low
        record = np.repeat(owner, count)
        start = np.repeat(low - (np.cumsum(count) - count), count)
        period = number[start + np.arange(len(record))]
        fields = ("writes", "thread", "begin", "end", "epoch", "last")
        writes, thread, begin, end, epoch, last = (
            np.array([getattr(p, name) for p in self.periods])[period] for name in fields
        )
        same = self.thread[record] == thread
        inside = np.where(same, (record > begin) & (record < end), False)
        other = ~same & (self.epoch[record] >= epoch) & (self.epoch[record] <= last)
        # Within one period between barriers two threads are ordered by nothing; that is found as a race.
        meanwhile = other & ((self.epoch[record] > epoch) & (self.epoch[record] < last))
        early = np.where(self._own_waits()[period], self._unwaited(record, period), inside | meanwhile)
        bad = np.flatnonzero(early & (writes | self.writes[record]))
        if not len(bad):
            return self._overwritten()
        found, what = record[bad[0]], self.periods[period[bad[0]]]
        return int(self.site[found]), int(self.thread[found]), what.what, what.thread

    def _overwritten(self) -> tuple[int, int, str, int] | None:
        """As :meth:`unfinished`, of copies that every thread waits for itself, which begin before what reads there has
        ended: the site is that of the record in front of it.
        """
        readers = [p for p in self.periods if p.waits is None]
        fields = ("thread", "begin", "end", "last")
        thread, begin, end, last = (np.array([getattr(p, name) for p in readers], np.int64) for name in fields)
        for copy in (p for p in self.periods if p.waits is not None):
            ended = (copy.epoch > last) | ((thread == copy.thread) & (copy.begin >= end))
            for number in np.flatnonzero((copy.begin >= begin) & ~ended):
                one = readers[number]
                apart = np.array(one.places) - copy.places[0]
                if ((apart > -one.nbytes) & (apart < copy.nbytes)).any():
                    return int(self.site[max(copy.begin, 0)]), copy.thread, one.what, one.thread
        return None

    def _own_waits(self) -> np.ndarray:
        """Mask of periods of copies that every thread waits for itself."""
        return np.array([p.waits is not None for p in self.periods])

    def _unwaited(self, record: np.ndarray, period: np.ndarray) -> np.ndarray:
        """Mask of pairs of a record and such a period: neither before the copy by a barrier, or by the thread that
        began it, nor after the thread's own wait, or a barrier behind that of another one.
        """
        never = 1 << 62
        ends = np.full((len(self.periods), int(self.thread.max(initial=0)) + 1), never)
        for number, p in enumerate(self.periods):
            for thread, position in (p.waits or {}).items():
                if thread < ends.shape[1]:
                    ends[number, thread] = position
        begin, epoch, last, own = (
            np.array([getattr(p, name) for p in self.periods])[period] for name in ("begin", "epoch", "last", "thread")
        )
        thread, at = self.thread[record], self.epoch[record]
        before = (at < epoch) | ((thread == own) & (record <= begin))
        after = (record >= ends[period, thread]) | (at > last)
        unordered: np.ndarray = ~before & ~after
        return unordered

    def counts(self) -> LaunchCounts:
        """Performance counters of the block, by warps: the k-th execution of a site by each of its threads is one
        request.
        """
        found = LaunchCounts()
        outer = self.kind(shared=False)
        loads, stores = outer & ~self.writes, outer & self.writes
        found.global_loads, found.global_stores = int(loads.sum()), int(stores.sum())
        found.global_load_bytes = int(self.size[loads].sum())
        found.load_requests, found.load_sectors, found.ideal_sectors = self._sectors(loads)
        _, found.store_sectors, found.ideal_store_sectors = self._sectors(stores)
        inner = self.kind(shared=True)
        found.shared_accesses = int(inner.sum())
        found.shared_requests, found.shared_passes, found.shared_ideal = self._passes(inner)
        return found

    def _requests(self, chosen: np.ndarray) -> np.ndarray:
        """The number of the request of each chosen record."""
        thread, site = self.thread[chosen], self.site[chosen]
        order = np.lexsort((site, thread))
        t, s = thread[order], site[order]
        first = np.r_[True, (t[1:] != t[:-1]) | (s[1:] != s[:-1])]
        begins = np.flatnonzero(first)
        times = np.arange(len(t)) - np.repeat(begins, np.diff(np.r_[begins, len(t)]))
        keys = np.empty((len(t), 3), np.int64)
        keys[order] = np.stack([t // WARP, s, times], axis=1)
        return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)

    def _sectors(self, chosen: np.ndarray) -> tuple[int, int, int]:
        """Requests, sectors that they touch, and the fewest that what they touch fits into."""
        if not chosen.any():
            return 0, 0, 0
        request = self._requests(chosen)
        first, last = self.address[chosen] // SECTOR, (self.address[chosen] + self.size[chosen] - 1) // SECTOR
        pairs = np.concatenate([np.stack([request, first], 1), np.stack([request, last], 1)])
        touched = len(np.unique(pairs, axis=0))
        places = np.unique(np.stack([request, self.address[chosen], self.size[chosen]], 1), axis=0)
        bytes_ = np.bincount(places[:, 0], places[:, 2])
        return int(request.max()) + 1, touched, int(np.ceil(bytes_ / SECTOR).sum())

    def _passes(self, chosen: np.ndarray) -> tuple[int, int, int]:
        """Requests, passes over the banks that they take, and the fewest that what they touch needs.

        Of accesses of 8 or 16 bytes half a warp or a quarter is served at a time.
        """
        if not chosen.any():
            return 0, 0, 0
        request = self._requests(chosen)
        count = int(request.max()) + 1
        size, thread, address = self.size[chosen], self.thread[chosen] % WARP, self.address[chosen]
        part = request * 4 + np.where(size == 16, thread // 8, np.where(size == 8, thread // 16, 0))
        words = np.maximum(size // BANK, 1)
        owners = np.repeat(np.arange(len(size)), words)
        starts = np.repeat(np.cumsum(words) - words, words)
        word = address[owners] // BANK + (np.arange(len(owners)) - starts)
        distinct = np.unique(np.stack([part[owners], word], 1), axis=0)
        bank = np.stack([distinct[:, 0], distinct[:, 1] % BANKS], 1)
        groups, load = np.unique(bank, axis=0, return_counts=True)
        begins = np.flatnonzero(np.r_[True, groups[1:, 0] != groups[:-1, 0]])
        passes = np.maximum.reduceat(load, begins)
        each = np.bincount(distinct[:, 0])
        return count, int(passes.sum()), int(np.ceil(each[each > 0] / BANKS).sum())

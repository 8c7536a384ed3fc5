"""Liveness counters: the linear allocation of thesis-chen section 3.2 (figure 3.4), by tags that are recycled.

It walks the operations once. Each copy of a value has a counter of the reads that are left. An operation writes in
place where that of its operand is 1; a block whose counter comes to 0 is recycled. It makes blocks, not one arena: what
a framework would hand out by an allocator while it runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from burnish.memory.work import Order, Work

RANGES = (1, 2, 4, 8, 16)  # times that a recycled block may be larger, or smaller before it grows, than what takes it


@dataclass(frozen=True)
class Blocks:
    """Bytes of each block, and for every copy, by birth, the block that it lies in."""

    nbytes: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all blocks."""
        return sum(self.nbytes)


def allocate(work: Work, order: Order, *, in_place: bool = True, recycle: bool = True) -> Blocks:
    """Blocks for the copies of an order: the fewest bytes of all ``RANGES``, as MXNet searches its match range.

    Without ``in_place`` and ``recycle`` every copy has its own: "no optimization" of section 3.4; with the first alone
    it is "inplace", with both "sharing".
    """
    tried = RANGES if recycle else RANGES[:1]
    return min((_allocate(work, order, in_place, recycle, most) for most in tried), key=lambda blocks: blocks.total)


def _allocate(work: Work, order: Order, in_place: bool, recycle: bool, most: int) -> Blocks:
    """Blocks, of which a recycled one has up to ``most`` times the bytes of what takes it, or as small a part."""
    readers = _reads(work, order)
    left = list(readers)
    latest: dict[int, int] = {}
    blocks: list[int] = []
    home: list[int] = []
    free: list[tuple[int, int]] = []  # (bytes, block), sorted

    def release(copy: int) -> None:
        if recycle:
            insort(free, (blocks[home[copy]], home[copy]))

    for number in order:
        operation = work.operations[number]
        taken = None
        if in_place and operation.writes:
            size = work.nbytes[operation.writes[0]]
            own = (latest[v] for v in operation.in_place)
            taken = next((c for c in own if left[c] == 1 and blocks[home[c]] >= size > 0), None)
        born = []
        for position, v in enumerate(operation.writes):
            if taken is not None and position == 0:
                home.append(home[taken])
            else:
                home.append(_block(work.nbytes[v], blocks, free, most))
            born.append(len(home) - 1)
        for v in operation.reads:
            copy = latest[v]
            left[copy] -= 1
            if left[copy] == 0 and copy != taken:
                release(copy)
        latest.update(zip(operation.writes, born, strict=True))
        for copy in born:
            if readers[copy] == 0:
                release(copy)
    return Blocks(tuple(blocks), tuple(home))


def _reads(work: Work, order: Order) -> list[int]:
    """Number of times each copy is read; once more if it lives to the end."""
    counts: list[int] = []
    latest: dict[int, int] = {}
    for number in order:
        for v in work.operations[number].reads:
            counts[latest[v]] += 1
        for v in work.operations[number].writes:
            latest[v] = len(counts)
            counts.append(0)
    for v in work.keep & latest.keys():
        counts[latest[v]] += 1
    return counts


def _block(nbytes: int, blocks: list[int], free: list[tuple[int, int]], most: int) -> int:
    """A recycled block of the nearest size, which grows if it is smaller, else a new one."""
    at = bisect_left(free, (nbytes, -1))
    if at < len(free) and free[at][0] <= most * nbytes:
        return free.pop(at)[1]
    if at > 0 and free[at - 1][0] * most >= nbytes:
        block = free.pop(at - 1)[1]
        blocks[block] = nbytes
        return block
    blocks.append(nbytes)
    return len(blocks) - 1

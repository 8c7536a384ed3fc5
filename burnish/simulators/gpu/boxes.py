"""Copies of boxes of tensors (TMA) on a CPU: mbarriers, phases, and bytes that arrive when somebody waits for them.

A copy writes nothing before a thread waits for its phase: until then the place holds 0xFF.

Source: PTX ISA, "mbarrier" (phases, pending arrivals, transaction counts), "cp.async.bulk.tensor".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product

from burnish.errors import VerificationError
from burnish.loops.expr import ITEM_BYTES
from burnish.machines.nvptx.tensor_copies import TensorMap
from burnish.machines.scopes import PIECE_BYTES, SWIZZLED_BYTES, swizzle
from burnish.runtime.gpu.records import SECTOR, Period

ROW_BYTES = 128
FILL = 0xFF


@dataclass
class BoxCopy:
    """One copy of a box: the rows of it, the phase of its mbarrier, its period in the records."""

    to: int
    rows: list[bytes]
    phase: int
    period: int
    arrived: bool = False


@dataclass
class Mbarrier:
    """An mbarrier: threads that have to arrive, bytes that are still to come in its phase, and its copies."""

    count: int
    pending: int
    begun: tuple[int, int]  # the thread that initialized it, and barriers before
    published: bool = False  # by that thread, to the unit that copies
    phase: int = 0
    bytes_left: int = 0
    copies: list[BoxCopy] = field(default_factory=list)

    def arrive(self, nbytes: int) -> None:
        """Arrival of one thread, with ``nbytes`` more bytes expected in the phase (``arrive.expect_tx``)."""
        if not self.pending:
            raise VerificationError("mbarrier: more threads arrive than its phase waits for")
        self.pending -= 1
        self.bytes_left += nbytes

    def advance(self) -> None:
        """Ends the phase if all threads have arrived: then its copies end, as late as they may."""
        if self.pending:
            return
        for one in self.copies:
            if one.phase == self.phase and not one.arrived:
                _write(one)
                self.bytes_left -= sum(map(len, one.rows))
        if self.bytes_left == 0:
            self.phase, self.pending = self.phase + 1, self.count


class BoxCopies:
    """Copies of boxes of one block. ``reads`` keeps records of what they read, of a thread and its epoch."""

    def __init__(self, reads: Callable[[list[tuple[int, int]], int, int], None]) -> None:
        self.reads = reads
        self.begin()

    def begin(self) -> None:
        """A block begins."""
        self.mbarriers: dict[int, Mbarrier] = {}

    @property
    def is_copying(self) -> bool:
        """Whether there are copies that nobody has waited for yet."""
        return any(not one.arrived for bar in self.mbarriers.values() for one in bar.copies)

    def init(self, at: int, count: int, who: tuple[int, int]) -> None:
        """An mbarrier begins its first phase."""
        if at % 8:
            raise VerificationError("mbarrier: found an address that is no multiple of 8 bytes")
        self.mbarriers[at] = Mbarrier(count, count, who)

    def publish(self, thread: int) -> None:
        """Fence of a thread: copies see the mbarriers that it has initialized."""
        for bar in self.mbarriers.values():
            bar.published = bar.published or bar.begun[0] == thread

    def expect(self, at: int, nbytes: int, who: tuple[int, int]) -> None:
        """A thread arrives at an mbarrier, and says how many bytes are to come in its phase."""
        self._known(at, who).arrive(nbytes)

    def _known(self, at: int, who: tuple[int, int]) -> Mbarrier:
        found = self.mbarriers.get(at)
        if found is None:
            raise VerificationError(f"mbarrier: thread {who[0]} uses one that is not initialized")
        thread, epoch = found.begun
        if thread != who[0] and epoch == who[1]:
            raise VerificationError(
                f"mbarrier: thread {who[0]} uses what thread {thread} initializes without a barrier between"
            )
        return found

    def copy(
        self, to: int, source: tuple[TensorMap, int], at: int, where: list[int], who: tuple[int, int], period: int
    ) -> Period:
        """A thread ``who`` (its number, barriers before) begins a copy; its period, without its end."""
        bar, (known, base) = self._known(at, who), source
        if not bar.published:
            raise VerificationError("mbarrier: a copy counts at one that no fence of the asynchronous proxy follows")
        if to % SWIZZLED_BYTES:
            raise VerificationError(f"copy of a box: its place is no multiple of {SWIZZLED_BYTES} bytes")
        rows, read = [], []
        for place, count, skipped in _rows(known, base, where):
            data = ctypes.string_at(place, count) if count else b""
            rows.append((b"\0" * skipped + data).ljust(ROW_BYTES, b"\0"))
            ends = [place, *range((place // SECTOR + 1) * SECTOR, place + count, SECTOR), place + count]
            read += [(a, b - a) for a, b in pairwise(ends)] if count else []
        ctypes.memset(to, FILL, len(rows) * ROW_BYTES)
        bar.copies.append(BoxCopy(to, rows, bar.phase, period))
        self.reads(read, *who)
        return Period("copy", (to,), len(rows) * ROW_BYTES, True, who[0], -1, who[1], waits={})

    def waited(self, at: int, parity: int, who: tuple[int, int]) -> list[int] | None:
        """The periods of copies that have ended where a thread waits for a phase; None where it has to wait."""
        bar = self._known(at, who)
        if bar.phase % 2 == parity:
            bar.advance()
        if bar.phase % 2 == parity:
            return None
        return [one.period for one in bar.copies if one.phase < bar.phase]


def _rows(known: TensorMap, base: int, where: list[int]) -> Iterator[tuple[int, int, int]]:
    """Rows of a box: of each where its bytes in the tensor begin, their number, and bytes of zeros before them."""
    size, shape = ITEM_BYTES[known.dtype], known.shape
    first = list(reversed(where))
    begin, wide = first[-1], known.box[-1]
    low, high = max(begin, 0), min(begin + wide, shape[-1])
    for inside in product(*map(range, known.box[:-1])):
        index = [i + j for i, j in zip(first[:-1], inside, strict=True)]
        if high <= low or any(not 0 <= i < n for i, n in zip(index, shape[:-1], strict=True)):
            yield 0, 0, 0
            continue
        flat = 0
        for i, n in zip((*index, low), shape, strict=True):
            flat = flat * n + i
        yield base + flat * size, (high - low) * size, (low - begin) * size


def _write(one: BoxCopy) -> None:
    for number, row in enumerate(one.rows):
        for piece in range(0, ROW_BYTES, PIECE_BYTES):
            at = one.to + int(swizzle(number * ROW_BYTES + piece))
            ctypes.memmove(at, row[piece : piece + PIECE_BYTES], PIECE_BYTES)
    one.arrived = True

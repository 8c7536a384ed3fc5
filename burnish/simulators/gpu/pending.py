"""In-flight cp.async copies and wgmma products: they complete as late as the memory model allows, and are recorded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from burnish.machines.nvptx.tensor_copies import TensorMap
from burnish.machines.scopes import PIECE_BYTES
from burnish.runtime.gpu.records import Period
from burnish.simulators.gpu.boxes import BoxCopies
from burnish.simulators.gpu.groups import GROUP, GroupOfWarps, PendingProduct
from burnish.simulators.gpu.instrument import BOX_READ, READ, WRITTEN

FILL = 0xFF  # every byte that a copy has not written yet
Write = Callable[[np.ndarray], None]


@dataclass
class _Copy:
    """One copy: where to, the bytes, its number among periods, and its group, once it has one."""

    to: int
    data: bytes
    period: int
    group: int | None = None


class Pending:
    """In-flight copies and products of one block. ``write`` keeps records of accesses that no thread makes itself."""

    def __init__(self, sites: Sequence[str], write: Write) -> None:
        self.arrives = sites.index("a copy that ends")
        self.read, self.after = sites.index(READ), sites.index(WRITTEN)
        self.write, self.box = write, sites.index(BOX_READ)
        self.boxes = BoxCopies(self._box_reads)
        self.begin()

    def begin(self) -> None:
        """A block begins: nothing goes on."""
        self._periods: list[Period] = []
        self._copies: dict[int, list[_Copy]] = {}
        self._groups: dict[int, int] = {}
        self._products: dict[int, GroupOfWarps] = {}
        self._arrived: dict[int, dict[str, int]] = {}
        self.boxes.begin()

    def periods(self) -> list[Period]:
        """All that have gone on in the block."""
        return self._periods

    # --- copies -------------------------------------------------------------------------------------------------------

    def copy(self, thread: int, epoch: int, position: int, to: int, begin: int, count: int, nbytes: int) -> None:
        """A thread begins a copy of ``count`` bytes, and zeros up to ``nbytes``."""
        data = ctypes.string_at(begin, count) if count else b""
        ctypes.memset(to, FILL, nbytes)
        self._periods.append(Period("copy", (to,), nbytes, True, thread, position - 1, epoch))
        self._copies.setdefault(thread, []).append(_Copy(to, data.ljust(nbytes, b"\0"), len(self._periods) - 1))

    def _arrive(self, thread: int, epoch: int, position: int, but: int) -> None:
        groups, records = self._groups.get(thread, 0), []
        left = []
        for one in self._copies.get(thread, ()):
            if one.group is None or one.group >= groups - but:
                left.append(one)
                continue
            ctypes.memmove(one.to, one.data, len(one.data))
            records.append(_record(one.to, self.arrives, len(one.data), True, thread, epoch))
            self._end(one.period, position, epoch)
        self._copies[thread] = left
        if records:
            self.write(np.array(records, np.int64))

    def _end(self, period: int, position: int, epoch: int) -> None:
        self._periods[period] = replace(self._periods[period], end=position, last=epoch)

    # --- boxes of tensors ---------------------------------------------------------------------------------------------

    def copy_box(
        self, who: tuple[int, int], position: int, to: int, source: tuple[TensorMap, int], at: int, where: list[int]
    ) -> None:
        """A thread ``who`` (its number, barriers before) begins a copy of a box, whose bytes the mbarrier counts."""
        found = self.boxes.copy(to, source, at, where, who, len(self._periods))
        self._periods.append(replace(found, begin=position - 1))

    def wait_boxes(self, thread: int, epoch: int, position: int, at: int, parity: int) -> bool:
        """Whether a phase of an mbarrier has ended, for which a thread waits."""
        ended = self.boxes.waited(at, parity, (thread, epoch))
        for number in ended or ():
            period = self._periods[number]
            assert period.waits is not None
            if thread not in period.waits:
                waits = {**period.waits, thread: position}
                self._periods[number] = replace(period, waits=waits, last=min(period.last, epoch))
        return ended is not None

    def _box_reads(self, places: list[tuple[int, int]], thread: int, epoch: int) -> None:
        records = [_record(at, self.box, nbytes, False, thread, epoch) for at, nbytes in places]
        if records:
            self.write(np.array(records, np.int64))

    # --- queues -------------------------------------------------------------------------------------------------------

    def queue(self, name: str, thread: int, epoch: int, position: int) -> None:
        """A thread says that something is a group, or waits for groups."""
        what, _, rest = name.removeprefix("gpu.").partition(".")
        verb, _, number = rest.partition(".")
        if what == "copies":
            if verb == "wait":
                self._arrive(thread, epoch, position, int(number))
            elif verb == "commit":
                for one in self._copies.get(thread, ()):
                    one.group = self._groups.get(thread, 0) if one.group is None else one.group
                self._groups[thread] = self._groups.get(thread, 0) + 1
            return
        # Of four warps the last thread that comes to a function executes it.
        group = thread // GROUP
        seen = self._arrived.setdefault(group, {})
        seen[name] = seen.get(name, 0) + 1
        if seen[name] % GROUP == 0:
            products = self._of(group, epoch, position)
            if verb == "start":
                products.started = True
            elif verb == "commit":
                products.commit()
            else:
                products.finish(int(number))

    def together(self, name: str, group: int, epoch: int, position: int, inputs: Sequence[bytes]) -> list[bytes]:
        """Warpgroup operation, executed by four warps together; the bytes returned to each thread."""
        return self._of(group, epoch, position).execute(name, inputs)

    def _of(self, group: int, epoch: int, position: int) -> GroupOfWarps:
        products = self._products.setdefault(group, GroupOfWarps(_ignored, _ignored))
        thread = group * GROUP

        def began(product: PendingProduct) -> None:
            places = tuple(product.places().tolist())
            product.period = len(self._periods)
            self._periods.append(Period("product", places, PIECE_BYTES, False, thread, position, epoch))
            self._reads(places, self.read, thread, epoch)

        def ended(product: PendingProduct) -> None:
            self._end(product.period, position, epoch)
            self._reads(self._periods[product.period].places, self.after, thread, epoch)

        products.began, products.ended = began, ended
        return products

    def _reads(self, places: Sequence[int], site: int, thread: int, epoch: int) -> None:
        records = [_record(at, site, PIECE_BYTES, False, thread, epoch) for at in places]
        self.write(np.array(records, np.int64))


def _ignored(product: PendingProduct) -> None:
    del product


def _record(address: int, site: int, nbytes: int, writes: bool, thread: int, epoch: int) -> tuple[int, int, int]:
    return address, site << 16 | nbytes << 1 | int(writes), thread | epoch << 32

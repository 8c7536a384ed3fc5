"""Operations of a static order with bytes and seconds, and what is live while they run, some of them more than once.

Grammar::

    work      ::= Work(operations, nbytes, keep, forward)     values are numbers: positions in ``nbytes``
    operation ::= Operation(reads, writes, seconds, in_place, again, cheap, name, after)
    order     ::= positions of operations, in which an operation may stand several times

An order says everything about a plan with recomputation: an operation reads the latest copies of its operands, and a
copy is live from the run that writes it to the last run that reads it before it is written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

import numpy as np
from numpy.typing import NDArray

from burnish.errors import VerificationError
from burnish.loops.expr import ALIGNMENT
from burnish.memory.lifetimes import Interval
from burnish.memory.liveness import copies_of
from burnish.memory.settle import settled
from burnish.memory.share import ArenaPlan, plan, round_up

Order = Sequence[int]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A kernel call: the values that it reads and writes, and what it takes in seconds.

    ``in_place``: operands whose memory its first result may take. ``again``: it may run more than once, which what
    updates a state may not. ``cheap``: element-wise or a reduction, in contrast to a convolution or a product.
    ``name``: for people. ``after``: operations that may not run any more behind it, as those that read a state that it
    updates in place, or those that write pieces of a buffer that it reads.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    seconds: float = 0.0
    in_place: tuple[int, ...] = ()
    again: bool = True
    cheap: bool = False
    name: str = ""
    after: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Work:
    """Operations in an order that works, and the bytes of the values that they write.

    ``keep``: values that live to the end. ``forward``: positions of the operations of the forward pass, which may be
    mirrored; all that the others need of them is known when the last of these has run. Raises VerificationError where
    an operation reads what no earlier one writes, or two write the same value.
    """

    operations: tuple[WorkItem, ...]
    nbytes: tuple[int, ...]
    keep: frozenset[int] = frozenset()
    forward: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        written: set[int] = set()
        for number, operation in enumerate(self.operations):
            missing = set(operation.reads) - written
            if missing:
                raise VerificationError(f"operation {number} reads values {sorted(missing)} before they are written")
            if written & set(operation.writes):
                found = sorted(written & set(operation.writes))
                raise VerificationError(f"operation {number} writes values {found}, which an earlier one wrote")
            written |= set(operation.writes)

    def __len__(self) -> int:
        return len(self.operations)

    @cached_property
    def seconds(self) -> float:
        """Seconds of all operations, once each."""
        return self.order_seconds(range(len(self)))

    @cached_property
    def boundary(self) -> int:
        """Where the backward pass begins: behind the last operation of the forward pass."""
        return max(self.forward, default=-1) + 1

    @cached_property
    def repeatable(self) -> frozenset[int]:
        """The operations of the forward pass that may run again."""
        return frozenset(n for n in self.forward if self.operations[n].again)

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """The operation that writes each value; -1 for none."""
        found = [-1] * len(self.nbytes)
        for number, operation in enumerate(self.operations):
            for value in operation.writes:
                found[value] = number
        return tuple(found)

    @cached_property
    def rounded(self) -> Ints:
        """Bytes of each value in whole cache lines, as it lies in an arena."""
        return np.array([round_up(n, ALIGNMENT) for n in self.nbytes], np.int64)

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """Seconds of each operation."""
        return np.array([o.seconds for o in self.operations], np.float64)

    @cached_property
    def tables(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """Reads, writes and in-place operands of all operations: where each one's begin, and their values."""
        reads, writes, places = (
            _flat([getattr(o, field) for o in self.operations]) for field in ("reads", "writes", "in_place")
        )
        return *reads, *writes, *places

    @cached_property
    def after(self) -> tuple[Ints, Ints]:
        """Operations that may not run behind each: where each one's begin, and all."""
        return _flat([o.after for o in self.operations])

    def order_seconds(self, order: Order) -> float:
        """Seconds of all runs."""
        return fsum(self.operations[n].seconds for n in order)  # in any order the same

    def copies(self, order: Order | Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """The copies of an order, by birth: the value of each, the runs that write it and that read it last; and the
        bytes that are live at each run.
        """
        keep = np.zeros(len(self.nbytes), np.bool_)
        keep[list(self.keep)] = True
        return copies_of(np.asarray(order, np.int64), self.tables, self.rounded, keep)

    def live(self, order: Order) -> int:
        """The most bytes that are live at a run."""
        profile = self.copies(order)[3]
        return int(profile.max()) if len(profile) else 0

    def intervals(self, order: Order) -> tuple[list[Interval], list[tuple[str, str]]]:
        """The copies as buffers, and which pairs of them may share memory in place."""
        value, first, last, _ = self.copies(order)
        buffers = [
            Interval(str(c), self.nbytes[v], int(a), int(b))
            for c, (v, a, b) in enumerate(zip(value.tolist(), first, last, strict=True))
        ]
        latest: dict[int, int] = {}
        pairs, born = [], 0
        for number in order:
            operation = self.operations[number]
            if operation.writes:
                pairs += [(str(latest[v]), str(born)) for v in operation.in_place]
            for v in operation.writes:
                latest[v] = born
                born += 1
        return buffers, pairs

    def arena(self, order: Order, enough: int = 0) -> ArenaPlan:
        """The copies' places in one arena, which is not made smaller than ``enough`` bytes."""
        return plan(*self.intervals(order), enough=enough)

    def reordered(self, order: Order) -> Work:
        """The work with its operations in another order, in which each stands once."""
        new = {old: position for position, old in enumerate(order)}
        moved = (self.operations[n] for n in order)
        operations = tuple(replace(o, after=tuple(new[n] for n in o.after)) for o in moved)
        return Work(operations, self.nbytes, self.keep, frozenset(new[n] for n in self.forward))

    def settled(self, order: Order) -> list[int]:
        """The order with operations put off that others may not run behind, until these have run for the last time."""
        if not self.after[1].size:
            return list(order)
        read_starts, reads, *_ = self.tables
        producer = np.array(self.producer, np.int64)
        return [int(n) for n in settled(np.asarray(order, np.int64), read_starts, reads, producer, *self.after)]

    def check(self, order: Order) -> None:
        """Raises VerificationError unless each operation runs, after what it needs, before what forbids it, and once
        if it must.
        """
        written: set[int] = set()
        runs = [0] * len(self)
        forbidden: set[int] = set()
        for number in order:
            operation = self.operations[number]
            if number in forbidden:
                raise VerificationError(f"order: '{operation.name}' runs behind what must be the last to use a state")
            forbidden.update(operation.after)
            missing = set(operation.reads) - written
            if missing:
                raise VerificationError(f"order: '{operation.name}' runs before values {sorted(missing)} are written")
            written |= set(operation.writes)
            runs[number] += 1
        wrong = [n for n, count in enumerate(runs) if not count or (count > 1 and not self.operations[n].again)]
        if wrong:
            raise VerificationError(f"order: operations {wrong[:8]} run not at all, or again though they may not")


def _flat(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    return starts, np.array([v for row in rows for v in row], np.int64)

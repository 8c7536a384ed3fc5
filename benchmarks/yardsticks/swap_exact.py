"""Exact transfers: the fewest moved bytes over all orders of the steps, by dynamic programming over valid states.

Jia's Algorithm 3 (thesis-jia §4.5), corrected. As printed, line 16 fixes the tensors cached before the last operation
to T' = (T ∖ OUT) ∩ A(S'): a subset of T. The whole graph is asked for with T = ∅, so every T' is ∅ too, and the sum is
that of all inputs of all operations: nothing is ever cached. The minimum must run over every T' with
T ∖ OUT ⊆ T' ⊆ A(S') and size(T' ∪ IN ∪ OUT) ≤ cap: what was kept may leave while an operation runs. Here the recurrence
goes forwards, from the empty set; a state also knows which of its tensors slow memory lacks, so stores are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from burnish.errors import ParameterError
from burnish.memory.swap.plan import SwapPlan, replay, write_out
from burnish.memory.swap.policies import least_recently_used
from burnish.memory.swap.problem import SwapProblem

LIMIT = 100_000  # labels, some seconds to a minute


class Label(NamedTuple):
    """A way to have executed the steps ``done``: bytes moved, tensors in fast memory, those without a copy in slow.

    All sets are masks of bits. ``kept`` was in fast memory beside what ``step`` needed, which ran last.
    """

    moved: int
    done: int
    fast: int
    dirty: int
    parent: Label | None = None
    step: int = -1
    kept: int = 0


def exact(problem: SwapProblem, capacity: int, reorder: bool = True, limit: int = LIMIT) -> SwapPlan:
    """The plan of the fewest moved bytes; over the given order alone if not ``reorder``.

    For small graphs (about 40 steps): raises ParameterError if more than ``limit`` labels are needed, and for a
    capacity in which a step does not fit.
    """
    problem.require(capacity, "exact")
    space = _Space.of(problem, capacity)
    most = least_recently_used(problem, capacity, drop_dead=True).moved  # some plan moves no more than this
    layer = [Label(0, 0, 0, 0)]
    labels = 0
    for position in range(len(problem.steps)):
        found: dict[int, dict[tuple[int, int], Label]] = {}
        for label in layer:
            for step in space.ready(label.done) if reorder else (position,):
                for after in space.run(label, step):
                    same = found.setdefault(after.done, {})
                    key = after.fast, after.dirty
                    if after.moved + space.at_least(after) <= most and (
                        key not in same or after.moved < same[key].moved
                    ):
                        same[key] = after
        layer = [label for same in found.values() for label in space.undominated([*same.values()])]
        labels += len(layer)
        if labels > limit:
            raise ParameterError(
                f"exact: {len(problem.steps)} steps: found more than {limit} states; allowed: a smaller graph, or the "
                "plan of a fixed order"
            )
    return space.plan(min(layer, key=lambda label: label.moved))


@dataclass(frozen=True, eq=False)
class _Space:
    """The problem in masks: bit i is the i-th tensor of ``names``, or the i-th step."""

    problem: SwapProblem
    capacity: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    reads: tuple[int, ...]  # by step, of tensors
    writes: tuple[int, ...]
    before: tuple[int, ...]  # by step, of steps
    readers: tuple[int, ...]  # by tensor, of steps
    producer: tuple[int, ...]  # by tensor, the one step or none
    results: int

    @staticmethod
    def of(problem: SwapProblem, capacity: int) -> _Space:
        names = tuple(problem.nbytes)
        bit = {name: 1 << i for i, name in enumerate(names)}
        producer = tuple(1 << problem.producer[n] if n in problem.producer else 0 for n in names)
        by_name = dict(zip(names, producer, strict=True))
        return _Space(
            problem,
            capacity,
            names,
            tuple(problem.nbytes[n] for n in names),
            tuple(sum(bit[n] for n in s.reads) for s in problem.steps),
            tuple(sum(bit[n] for n in s.writes) for s in problem.steps),
            tuple(_union(by_name[n] for n in s.reads) for s in problem.steps),
            tuple(sum(1 << i for i in problem.readers[n]) for n in names),
            producer,
            sum(bit[n] for n in problem.results),
        )

    def ready(self, done: int) -> Iterator[int]:
        """The steps that can run next."""
        for step, before in enumerate(self.before):
            if not done >> step & 1 and before & ~done == 0:
                yield step

    def size(self, tensors: int) -> int:
        """Bytes of a set of tensors."""
        return sum(self.sizes[i] for i in _bits(tensors))

    def run(self, label: Label, step: int) -> Iterator[Label]:
        """Successor labels after ``step``: one for every largest set of tensors that can stay in memory with it.

        Nothing leaves before it must: what stays can leave later for no more. What leaves and is still to be read is
        stored if slow memory lacks it; results are stored by the step that writes them.
        """
        need = self.reads[step] | self.writes[step]
        done = label.done | 1 << step
        moved = label.moved + self.size(self.reads[step] & ~label.fast) + self.size(self.writes[step] & self.results)
        rest = label.fast & ~need
        for kept in self.largest(rest, self.capacity - self.size(need)):
            evicted = rest & ~kept & label.dirty
            fast = self.alive(kept | need, done)
            dirty = (label.dirty & ~evicted | self.writes[step] & ~self.results) & fast
            yield Label(moved + self.size(evicted), done, fast, dirty, label, step, kept)

    def alive(self, tensors: int, done: int) -> int:
        """Subset of ``tensors`` that a step outside of ``done`` reads."""
        return sum(1 << i for i in _bits(tensors) if self.readers[i] & ~done)

    def largest(self, tensors: int, room: int) -> list[int]:
        """The subsets of at most ``room`` bytes to which no further one of ``tensors`` can be added."""
        if self.size(tensors) <= room:
            return [tensors]
        items = sorted(_bits(tensors), key=lambda i: -self.sizes[i])
        found: list[int] = []

        def extend(position: int, chosen: int, left: int, smallest: float) -> None:
            if position == len(items):
                if smallest > left:
                    found.append(chosen)
                return
            size = self.sizes[items[position]]
            if size <= left:
                extend(position + 1, chosen | 1 << items[position], left - size, smallest)
            extend(position + 1, chosen, left, min(smallest, size))

        extend(0, 0, room, float("inf"))
        return found

    def at_least(self, label: Label) -> int:
        """Bytes that every completion moves: it loads what is still read and not in fast memory, and stores results."""
        total = 0
        for i, size in enumerate(self.sizes):
            made = self.producer[i] & ~label.done == 0
            if (made and not label.fast >> i & 1 and self.readers[i] & ~label.done) or (
                not made and self.results >> i & 1
            ):
                total += size
        return total

    def undominated(self, labels: list[Label]) -> list[Label]:
        """The labels, all of the same steps, that no other one can turn into for as few bytes.

        One turns into another by loading what it lacks and storing what only it has no copy of.
        """
        kept: list[Label] = []
        for label in sorted(labels, key=lambda b: (b.moved, -b.fast.bit_count(), b.dirty.bit_count())):
            if not any(
                other.moved + self.size(label.fast & ~other.fast) + self.size(other.dirty & ~label.dirty) <= label.moved
                for other in kept
            ):
                kept.append(label)
        return kept

    def plan(self, last: Label) -> SwapPlan:
        """The actions that lead to a label."""
        path: list[Label] = []
        at: Label | None = last
        while at is not None and at.parent is not None:
            path.append(at)
            at = at.parent
        path.reverse()
        stored: dict[str, bool] = {}
        for label in path:
            assert label.parent is not None
            need = self.reads[label.step] | self.writes[label.step]
            stored.update(dict.fromkeys(self.named(label.parent.dirty & ~need & ~label.kept), True))
        order = [label.step for label in path]
        actions = write_out(self.problem, order, [self.named(label.kept) for label in path], stored)
        return replay(self.problem, self.capacity, actions, "exact", proven=True)

    def named(self, tensors: int) -> list[str]:
        """The names of a set."""
        return [self.names[i] for i in _bits(tensors)]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _union(masks: Iterator[int]) -> int:
    total = 0
    for mask in masks:
        total |= mask
    return total

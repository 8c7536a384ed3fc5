"""Recomputation by mirror counts: Algorithm 6 of thesis-chen section 3.3, and the counts that its plans choose.

A mirror count says how often the operation that made a value is copied into the backward pass: 0 keeps the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.errors import ParameterError
from burnish.memory.stages import ForwardStage, stages
from burnish.memory.work import Work

Counts = Mapping[int, int]
"""Mirror counts of operations by position; those that are missing are 0."""

TRIES = 32  # budgets of Algorithm 7 that are searched


@dataclass(frozen=True, slots=True)
class MirrorNode:
    """A node of the graph that Algorithm 6 makes: a copy of an operation (0: itself), and the copies that it reads."""

    operation: int
    copy: int
    reads: tuple[tuple[int, int], ...]


def mirrored(work: Work, counts: Counts) -> list[MirrorNode]:
    """Algorithm 6: the graph with copies of operations of the forward pass, in its logical order.

    Copy k of an operation reads copy ``min(k, m)`` of each that makes an operand; an operation of the backward pass
    reads the last copies. First all of the forward pass runs, then before each operation of the backward pass what is
    missing of its ancestors. Raises ParameterError for counts of operations that may not run again.
    """
    wrong = sorted(n for n, m in counts.items() if m and n not in work.repeatable)
    if wrong:
        raise ParameterError(
            f"mirror: found counts for operations {wrong[:8]}; allowed: the forward pass's that repeat"
        )
    makers = [tuple(dict.fromkeys(work.producer[v] for v in o.reads)) for o in work.operations]

    def node(operation: int, k: int) -> MirrorNode:
        return MirrorNode(operation, k, tuple((u, min(k, counts.get(u, 0))) for u in makers[operation]))

    result = [node(n, 0) for n in range(work.boundary)]
    done = {(n, 0) for n in range(work.boundary)}
    for n in range(work.boundary, len(work)):
        own = MirrorNode(n, 0, tuple((u, counts.get(u, 0)) for u in makers[n]))
        stack = [(read, False) for read in reversed(own.reads)]
        while stack:
            key, ready = stack.pop()
            if key in done:
                continue
            made = node(*key)
            if ready:
                result.append(made)
                done.add(key)
            else:
                stack.append((key, True))
                stack += [(read, False) for read in reversed(made.reads)]
        result.append(own)
        done.add((n, 0))
    return result


def mirrored_order(work: Work, counts: Counts) -> list[int]:
    """The operations of :func:`mirrored`, as an order."""
    return [copy.operation for copy in mirrored(work, counts)]


def drop_cheap(work: Work) -> dict[int, int]:
    """Section 3.3.2: the results of what is cheap are dropped: normalization, activation, pooling."""
    return {n: 1 for n in work.repeatable if work.operations[n].cheap}


def by_name(work: Work, mirror: Mapping[str, int]) -> dict[int, int]:
    """The user's own counts, by the name of a node that an operation computes.

    Raises ParameterError for a name that no operation of the forward pass has, and for a count that is none.
    """
    names: dict[str, int] = {}
    for n in sorted(work.repeatable):
        names.update((part.strip(), n) for part in work.operations[n].name.split(" + "))
    counts: dict[int, int] = {}
    for name, count in mirror.items():
        if name not in names:
            some = ", ".join(list(names)[:8])
            raise ParameterError(f"mirror: found '{name}'; allowed: nodes of the forward pass: {some}, …")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ParameterError(f"mirror: '{name}': found {count!r}; allowed: an integer from 0")
        counts[names[name]] = max(count, counts.get(names[name], 0))
    return counts


def with_budget(work: Work, segment: float, cuts: Sequence[ForwardStage] | None = None) -> dict[int, int]:
    """Algorithm 7: greedy segments of at least ``segment`` bytes, each of which keeps what the next one reads.

    ``cuts``: where segments may end (C in the paper). What crosses the end of a segment is a set of values, since a
    recurrent network has no point that a single one crosses. The last segment is kept: it is needed at once.
    """
    counts: dict[int, int] = {}
    parts = list(stages(work) if cuts is None else cuts)
    temporary, begin = 0, 0
    for number, stage in enumerate(parts):
        temporary += stage.made
        if temporary > segment and number + 1 < len(parts):
            counts.update(_segment(work, parts[begin : number + 1]))
            temporary, begin = 0, number + 1
    return counts


def _segment(work: Work, parts: Sequence[ForwardStage]) -> dict[int, int]:
    """Counts of 1 for the operations of stages, but for those whose results cross their end."""
    kept = {work.producer[v] for v in parts[-1].crossing}
    inside = [n for stage in parts for n in stage.operations if n in work.repeatable]
    return {n: 1 for n in inside if n not in kept}


def budgets(work: Work, tries: int = TRIES) -> list[float]:
    """The budgets of segments that the search over Algorithm 7 tries: from the largest value to the sum of all."""
    made = [work.nbytes[v] for n in work.forward for v in work.operations[n].writes]
    if not made or max(made) == 0:
        return []
    return [float(b) for b in np.geomspace(max(made) / 2, sum(made), tries)]


def sublinear(work: Work, tries: int = TRIES) -> dict[int, int]:
    """The counts of Algorithm 7 with the least live bytes, of ``tries`` budgets."""
    cuts = stages(work)
    found = [with_budget(work, budget, cuts) for budget in budgets(work, tries)]
    return min([{}, *found], key=lambda counts: work.live(mirrored_order(work, counts)))

"""Stages: the forward pass cut where few bytes cross, and the part of the backward pass that belongs to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from burnish.memory.work import Work


@dataclass(frozen=True, slots=True)
class ForwardStage:
    """Consecutive operations of the forward pass: ``made``: the bytes of what they write.

    ``crossing``: the values that are written here or before, and that later stages of the forward pass read.
    """

    operations: tuple[int, ...]
    made: int
    crossing: tuple[int, ...]


def stages(work: Work, most: int | None = None) -> list[ForwardStage]:
    """The forward pass in stages, which end where no more bytes cross than around; ``most`` of them."""
    chain = [n for n in range(work.boundary) if n in work.forward]
    last = _last_readers(work, chain)
    ends = _ends(work, chain, last, most)
    result, begin = [], 0
    crossing: set[int] = set()
    for end in ends:
        inside = tuple(chain[begin:end])
        made = [v for n in inside for v in work.operations[n].writes]
        crossing = {v for v in {*crossing, *made} if last.get(v, -1) >= end}
        result.append(ForwardStage(inside, sum(work.nbytes[v] for v in made), tuple(sorted(crossing))))
        begin = end
    return result


def _last_readers(work: Work, chain: Sequence[int]) -> dict[int, int]:
    """Last place in the forward pass that reads each value."""
    return {v: place for place, n in enumerate(chain) for v in work.operations[n].reads}


def _ends(work: Work, chain: Sequence[int], last: Mapping[int, int], most: int | None) -> list[int]:
    """Places in the forward pass behind which no more bytes cross than around.

    Of more than ``most`` only some: of as many in a row that with the fewest bytes, of equal ones the last.
    """
    if not chain:
        return []
    change = np.zeros(len(chain) + 1, np.int64)
    for place, n in enumerate(chain):
        for v in work.operations[n].writes:
            if last.get(v, -1) > place:
                change[place] += work.nbytes[v]
                change[last[v]] -= work.nbytes[v]
    behind = np.cumsum(change)[: len(chain) - 1].tolist()
    found: list[int] = []
    runs = [(nbytes, [place for place, _ in same]) for nbytes, same in groupby(enumerate(behind), key=itemgetter(1))]
    for number, (nbytes, places) in enumerate(runs):
        around = [runs[i][0] for i in (number - 1, number + 1) if 0 <= i < len(runs)]
        if all(nbytes <= other for other in around):
            found += places
    if most is not None and len(found) >= most:
        row = -(-len(found) // max(1, most - 1))
        rows = [found[i : i + row] for i in range(0, len(found), row)]
        found = [min(places, key=lambda place: (behind[place], -place)) for places in rows]
    return [*(place + 1 for place in found), len(chain)]


def backward_parts(work: Work, parts: Sequence[ForwardStage]) -> list[list[int]]:
    """The operations behind the forward pass, by stage: each reads what a stage makes, or what enters it.

    In their order, stages only go back: what belongs to a stage is run when those behind it are done.
    """
    at_hand: dict[int, int] = {}  # the last stage at which a value is there, if only what crosses is kept
    for number, stage in enumerate(parts):
        at_hand.update((v, number) for n in stage.operations for v in work.operations[n].writes)
        at_hand.update((v, number + 1) for v in stage.crossing)
    result: list[list[int]] = [[] for _ in parts]
    current = len(parts) - 1
    for n in range(work.boundary, len(work)):
        current = min([current, *(at_hand.get(v, current) for v in work.operations[n].reads)])
        result[current].append(n)
    return result

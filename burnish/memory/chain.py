"""Optimal recomputation of a chain of stages: dynamic program over heterogeneous chains (Beaumont et al. 2019).

Stages are those of :mod:`burnish.memory.stages`. The program chooses for every part of the chain, in every amount of
memory, whether to run its first stage and keep all that the backward pass needs of it, or to run several and keep only
what crosses the end. One table answers for all budgets up to the largest. Segments of segments (thesis-chen section
3.3.4, O(log n) memory) are among the plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from burnish.base.jit import njit
from burnish.memory.stages import ForwardStage, backward_parts, stages
from burnish.memory.work import Work

SLOTS = 400  # into which the largest budget is divided
MOST_STAGES = 84  # time grows with their third power
NO_PLAN, KEEP_ALL = -2, -1


@dataclass(frozen=True)
class Profile:
    """Costs of each stage: seconds forward and backward; bytes that cross its end, and that its backward part needs;
    and the most that is live in its parts: forward without keeping, with keeping, and backward.

    Live bytes exclude those that earlier stages keep.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    crossing: tuple[int, ...]
    kept: tuple[int, ...]
    passing: tuple[int, ...]
    keeping: tuple[int, ...]
    returning: tuple[int, ...]


class ChainTable:
    """Dynamic program over the stages of a chain: plans for all budgets up to ``most`` bytes, in ``slots``.

    ``longest``: stages that run at most without keeping anything between them (None: any number of them).
    """

    def __init__(self, profile: Profile, most: int, slots: int = SLOTS, longest: int | None = None) -> None:
        self.count, self.slots, self.unit = len(profile.forward), slots, max(1.0, most / slots)
        self.longest = min(longest or self.count, self.count)
        sizes = (profile.crossing, profile.kept, profile.passing, profile.keeping, profile.returning)
        held = [np.ceil(np.array(s, np.float64) / self.unit - 1e-9).astype(np.int64) for s in sizes]
        times = np.array(profile.forward, np.float64), np.array(profile.backward, np.float64)
        self._seconds, self._choice = _solve(*times, *held, slots, self.longest)
        self.crossing, self.kept = held[:2]

    @cached_property
    def feasible(self) -> list[int]:
        """The slots for which there is a plan, of which each is faster than with fewer, ascending."""
        seconds = self._seconds[0, min(self.count - 1, self.longest)]
        better = [m for m in range(1, self.slots + 1) if seconds[m] < seconds[m - 1] * (1 - 1e-6)]
        return ([0] if np.isfinite(seconds[0]) else []) + better

    def chosen(self, first: int, last: int, slots: int) -> int:
        """First choice of the fastest plan of stages ``first`` to ``last``: KEEP_ALL, or the stage to cut before."""
        return int(self._choice[first, min(last - first, self.longest), slots])


class ChainPlanner:
    """The stages of a work, and the table of plans for budgets up to ``most`` bytes."""

    def __init__(self, work: Work, most: int) -> None:
        self.work, self.most = work, most
        self.stages = stages(work, MOST_STAGES)

    @cached_property
    def parts(self) -> list[list[int]]:
        """The operations of the backward pass, by stage."""
        return backward_parts(self.work, self.stages)

    @cached_property
    def table(self) -> ChainTable:
        """The plans."""
        return ChainTable(profile(self.work, self.stages, self.parts), self.most)

    @property
    def feasible(self) -> list[int]:
        """See :attr:`ChainTable.feasible`; none without stages."""
        return self.table.feasible if self.stages else []

    def order(self, slots: int) -> list[int]:
        """The order of the fastest plan in ``slots`` slots of memory, which :attr:`feasible` must hold."""
        table = self.table
        inside = [[n for n in stage.operations if n in self.work.repeatable] for stage in self.stages]
        begins = [stage.operations[0] for stage in self.stages] + [self.work.boundary]
        # What is in the forward pass and may not run again, or is no part of it, runs with the stage it lies in, once.
        first = [list(range(a, b)) for a, b in zip([0, *begins[1:-1]], begins[1:], strict=True)]
        order: list[int] = []
        ran: set[int] = set()

        def run(stage: int) -> None:
            order.extend(inside[stage] if stage in ran else first[stage])
            ran.add(stage)

        # A stack in place of recursion: last in, first out. Behind a cut the later part comes first, as the backward
        # pass goes from the end; then the earlier part runs again from its input, with all of its memory.
        pending = [("plan", 0, len(self.stages) - 1, slots)]
        while pending:
            kind, low, high, memory = pending.pop()
            if kind == "back":
                order.extend(self.parts[low])
                continue
            chosen = table.chosen(low, high, memory)
            assert chosen != NO_PLAN
            if chosen == KEEP_ALL:
                run(low)
                pending.append(("back", low, low, 0))
                if low < high:
                    pending.append(("plan", low + 1, high, memory - table.kept[low]))
                continue
            for stage in range(low, chosen):
                run(stage)
            pending.append(("plan", low, chosen - 1, memory))
            pending.append(("plan", chosen, high, memory - table.crossing[chosen - 1]))
        return order


def profile(work: Work, parts: Sequence[ForwardStage], backward: Sequence[Sequence[int]]) -> Profile:
    """Costs of stages, from the liveness of the step without recomputation, and of the forward pass alone."""
    live = work.copies(range(len(work)))[3]
    ends = [stage.operations[-1] + 1 for stage in parts]
    ends[-1:] = [work.boundary]
    begins = [0, *ends[:-1]]
    needed = {v for n in range(work.boundary, len(work)) for v in work.operations[n].reads} | work.keep
    kept, before = [], [0]
    for a, b, stage in zip(begins, ends, parts, strict=True):
        made = {v for n in range(a, b) for v in work.operations[n].writes}
        kept.append(int(sum(work.rounded[v] for v in made & (needed | {*stage.crossing}))))
        before.append(before[-1] + kept[-1])
    passing = _forward_live(work)
    at = {n: i for i, n in enumerate(range(len(work)))}
    return Profile(
        forward=tuple(sum(work.operations[n].seconds for n in s.operations if n in work.repeatable) for s in parts),
        backward=tuple(sum(work.operations[n].seconds for n in part) for part in backward),
        crossing=tuple(int(sum(work.rounded[v] for v in s.crossing)) for s in parts),
        kept=tuple(kept),
        passing=tuple(int(passing[a:b].max()) for a, b in zip(begins, ends, strict=True)),
        keeping=tuple(int(live[a:b].max()) - before[i] for i, (a, b) in enumerate(zip(begins, ends, strict=True))),
        returning=tuple(
            max((int(live[at[n]]) for n in part), default=before[i]) - before[i] for i, part in enumerate(backward)
        ),
    )


def _forward_live(work: Work) -> Any:
    """Bytes live at each run of the forward pass where nothing is kept for the backward pass."""
    forward = Work(work.operations[: work.boundary], work.nbytes, frozenset(), work.forward)
    return forward.copies(range(work.boundary))[3]


@njit(cache=True, nogil=True)
def _solve(
    forward: Any,
    backward: Any,
    crossing: Any,
    kept: Any,
    passing: Any,
    keeping: Any,
    returning: Any,
    slots: Any,
    longest: Any,
) -> tuple[Any, Any]:
    """Least seconds of stages s to t in m slots, and the choice that gives them: KEEP_ALL of s, or where to cut.

    At [s, t - s, m]; at [s, longest, m] those of s to the last stage, where these are more than ``longest``.
    """
    # The recursion of Beaumont et al. 2019 for heterogeneous chains. Slots m do not count the input of s, which whoever
    # asks for the part holds. Parts go by length, since each is made of shorter ones; float32 halves the largest table.
    count = len(forward)
    cost = np.full((count, longest + 1, slots + 1), np.inf, np.float32)
    choice = np.full((count, longest + 1, slots + 1), NO_PLAN, np.int16)
    total = np.zeros(count + 1)
    for i in range(count):
        total[i + 1] = total[i] + forward[i]
    for length in range(count):
        column = min(length, longest)
        # No plan asks for more than the longest part, but for the rest of the chain.
        for s in range(0 if length < longest else count - 1 - length, count - length):
            t = s + length
            # Least slots: of the first stage alone if that is kept, since the rest has its own bound; or of all stages
            # that may run without keeping, up to the last cut.
            least_keep = max(keeping[s], returning[s])
            least_pass = 0
            for k in range(s, min(t, s + longest)):
                least_pass = max(least_pass, passing[k])
            for m in range(slots + 1):
                best = np.inf
                chosen = NO_PLAN
                if m >= least_keep:
                    if length == 0:
                        best = forward[s] + backward[s]
                        chosen = KEEP_ALL
                    # What s keeps stays until its backward part, which comes last: the rest has that much less.
                    elif m >= kept[s] and cost[s + 1, min(length - 1, longest), m - kept[s]] < np.inf:
                        best = forward[s] + backward[s] + cost[s + 1, min(length - 1, longest), m - kept[s]]
                        chosen = KEEP_ALL
                if m >= least_pass:
                    for k in range(s + 1, min(t, s + longest) + 1):
                        # Cut before k: s to k - 1 run and keep nothing but the input of k. That takes its slots while k
                        # to t run, and is gone when s to k - 1 run again, which therefore have all of m.
                        rest = m - crossing[k - 1]
                        if rest < 0:
                            continue
                        seconds = total[k] - total[s] + cost[k, min(t - k, longest), rest] + cost[s, k - 1 - s, m]
                        # Strictly less: of equal plans the one that repeats least, as keeping is tried first.
                        if seconds < best:
                            best = seconds
                            chosen = k
                cost[s, column, m] = best
                choice[s, column, m] = chosen
    return cost, choice

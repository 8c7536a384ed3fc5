"""A memory budget as a contract: the fastest order found whose arena fits, or the smallest budget that can be kept.

Both planners run on a ladder of limits that does not depend on the budget: greedy eviction and the dynamic program over
stages. A larger budget sees all orders that a smaller one sees, and more: so it is never slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from burnish.errors import ParameterError
from burnish.memory.chain import Chain
from burnish.memory.counters import allocate
from burnish.memory.greedy import RULES, evict
from burnish.memory.mirror import drop_cheap, mirrored_order, recursive, sublinear
from burnish.memory.sizes import text_of
from burnish.memory.undo import without_waste
from burnish.memory.work import Order, Work

STEP = 0.95  # from one limit of the ladder to the next
REACH = 0.6  # of a budget: limits below are not tried for it, unless nothing else fits
BISECTIONS = 12  # to find the smallest limit for which there is a plan
PARTS = ((1, 4), (1, 6), (3, 3), (8, 2))  # checkpoints and depth of recursive plans that are tried for the least memory


@dataclass(frozen=True)
class Recomputation:
    """An order of a work with the seconds of all runs and the bytes of its arena. ``strategy`` made it."""

    strategy: str
    order: tuple[int, ...]
    seconds: float
    live: int
    arena: int

    def extra(self, work: Work) -> float:
        """Seconds of repeated runs, as a share of those of the step without."""
        return self.seconds / work.seconds - 1.0 if work.seconds else 0.0


class Planner:
    """Orders of a work for any budgets; what is found for one is kept for the next.

    ``arena``: bytes of the arena of an order, as it will be built; by default those of the plan of its copies.
    """

    def __init__(self, work: Work, arena: Callable[[Order], int] | None = None) -> None:
        self.work = work
        self._measure = arena or (lambda order: work.arena(order).arena_bytes)
        self._found: dict[tuple[str, int], Recomputation | None] = {}

    @cached_property
    def unplanned(self) -> Recomputation:
        """The step without recomputation."""
        return self._made("none", range(len(self.work)))

    @cached_property
    def least(self) -> Recomputation:
        """The plan of the smallest arena found; of equal ones the fastest."""
        return min(self._smallest(), key=lambda plan: (plan.arena, plan.seconds))

    def within(self, budget: int) -> Recomputation:
        """The fastest plan found whose arena is at most ``budget`` bytes.

        Raises ParameterError with the smallest budget that can be kept.
        """
        if self.unplanned.arena <= budget:
            return self.unplanned
        if self.least.arena > budget:
            raise ParameterError(
                f"memory_budget: found {text_of(budget)} ({budget} bytes); allowed: {self.least.arena} bytes "
                f"({text_of(self.least.arena)}) or more, the least that a plan was found for"
            )
        best = self.least
        for plan in self._candidates(budget):
            if plan.seconds < best.seconds and self._arena_of(plan).arena <= budget:
                best = self._arena_of(plan)
        return best

    def _candidates(self, budget: int) -> Iterator[Recomputation]:
        """Plans that might fit, by ascending seconds."""
        limits = [limit for limit in self._ladder() if REACH * budget <= limit <= budget]
        plans = [self._greedy(limit, rule) for limit in limits for rule in RULES]
        plans += [self._chained(slots) for slots in self._slots(budget)]
        fitting = [p for p in plans if p is not None and p.live <= budget]
        return iter(sorted(fitting, key=lambda p: p.seconds))

    def _ladder(self) -> list[int]:
        limits = [float(self.unplanned.arena)]
        while limits[-1] > self.least.arena:
            limits.append(limits[-1] * STEP)
        return [int(limit) for limit in limits]

    @cached_property
    def _chain(self) -> Chain:
        return Chain(self.work, int(1.2 * self.unplanned.live))

    def _slots(self, budget: int) -> list[int]:
        """Of the dynamic program's plans those around the largest that fits: what is live is below its own figure."""
        feasible = self._chain.feasible
        low, high = 0, len(feasible)
        while low < high:
            middle = (low + high) // 2
            plan = self._chained(feasible[middle])
            if plan is not None and plan.live <= budget:
                low = middle + 1
            else:
                high = middle
        return feasible[max(0, low - 3) : low]

    def _greedy(self, limit: int, rule: int) -> Recomputation | None:
        key = (f"greedy {rule}", limit)
        if key not in self._found:
            order = evict(self.work, limit, rule)
            self._found[key] = None if order is None else self._polished("greedy", order, limit)
        return self._found[key]

    def _chained(self, slots: int) -> Recomputation | None:
        key = ("chain", slots)
        if key not in self._found:
            order = self._chain.order(slots)
            self._found[key] = self._polished("chain", order, int(slots * self._chain.unit))
        return self._found[key]

    def _polished(self, strategy: str, order: Order, limit: int) -> Recomputation:
        return self._made(strategy, without_waste(self.work, order, max(limit, self.work.live(order))), placed=False)

    def _made(self, strategy: str, order: Order, placed: bool = True) -> Recomputation:
        seconds, live = self.work.order_seconds(order), self.work.live(order)
        made = Recomputation(strategy, tuple(order), seconds, live, -1)
        return self._arena_of(made) if placed else made

    def _arena_of(self, plan: Recomputation) -> Recomputation:
        """The plan with its arena, which takes a while to find and is found once."""
        if plan.arena >= 0:
            return plan
        key = ("arena", hash(plan.order))
        if key not in self._found:
            self._found[key] = replace(plan, arena=self._measure(plan.order))
        found = self._found[key]
        assert found is not None
        return found

    def _smallest(self) -> list[Recomputation]:
        """Plans of little memory: of the greedy ones that of the smallest limit, and the recursive ones."""
        work, plans = self.work, [self.unplanned]
        for rule in RULES:
            low, high = 0, self.unplanned.live
            best = None
            for _ in range(BISECTIONS):
                middle = (low + high) // 2
                plan = self._greedy(middle, rule)
                low, high, best = (low, middle, plan) if plan is not None else (middle, high, best)
            plans += [best] if best is not None else []
        plans += [p for slots in self._chain.feasible[:4] if (p := self._chained(slots)) is not None]
        for checkpoints, depth in PARTS:
            order = mirrored_order(work, recursive(work, checkpoints, depth))
            if len(order) < 16 * len(work):
                plans.append(self._polished("recursive", order, 0))
        least = min(p.live for p in plans)
        return [self._arena_of(p) for p in plans if p.live <= 1.1 * least]


def strategies(work: Work, arena: Callable[[Order], int] | None = None) -> Mapping[str, Recomputation]:
    """The strategies of thesis-chen section 3.4, and the smallest arenas: what each needs, by name.

    "none", "inplace" and "sharing" allocate blocks by liveness counters; "packed" places the same copies in one arena;
    "drop-cheap" (there "drop bn-relu") and "sublinear" (Algorithm 7) recompute, placed in an arena as well.
    """
    base = range(len(work))
    planner = Planner(work, arena)
    live = planner.unplanned.live

    def counted(name: str, in_place: bool, recycle: bool) -> Recomputation:
        total = allocate(work, base, in_place=in_place, recycle=recycle).total
        return Recomputation(name, tuple(base), work.seconds, live, total)

    found = [
        counted("none", False, False),
        counted("inplace", True, False),
        counted("sharing", True, True),
        replace(planner.unplanned, strategy="packed"),
        planner._made("drop-cheap", mirrored_order(work, drop_cheap(work))),
        planner._made("sublinear", mirrored_order(work, sublinear(work))),
        replace(planner.least, strategy="least"),
    ]
    return {plan.strategy: plan for plan in found}

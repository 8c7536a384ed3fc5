"""A memory budget as a contract: the fastest order found whose arena fits, or the smallest budget that can be kept.

Both planners run on a ladder of limits that does not depend on the budget: greedy eviction and the dynamic program over
stages. A larger budget sees all orders that a smaller one sees, and more: so it is never slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from burnish.base.sizes import text_of
from burnish.errors import ParameterError
from burnish.loops.expr import ALIGNMENT
from burnish.memory.chain import ChainPlanner
from burnish.memory.greedy import RULES, evict
from burnish.memory.optimal import optimum
from burnish.memory.share import ArenaPlan
from burnish.memory.undo import without_waste
from burnish.memory.work import Order, Work

STEP = 0.95  # from one limit of the ladder to the next
SMALL, DRAWS = 300, 5  # up to so many operations, so many orders more are drawn for each limit and each rule
REACH = 0.75  # of a budget: limits below are not tried for more operations, unless nothing else fits
HUGE, LOW = 4000, 0.15  # of more operations, greedy orders below such a part of all live bytes are slower than chains
TAKEN = 2  # of the greedy orders for a limit, the fastest, from which waste is taken out
CHAINS, NEAR_CHAINS = 32, 3  # of the dynamic program's plans, those tried for few operations, and for many
PLACED = 3  # of plans of little memory and many operations, those for which the arena is planned
BISECTIONS = 12  # to find the smallest limit for which there is a plan
FAILURES = 6  # limits in a row for which there is none, before smaller ones are left out
SOLVED = 48  # operations, up to which an integer program is solved if there is time
GAPS = 3  # times that it is solved again where its arena has gaps


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

    ``seconds``: for how long an integer program may look for the fastest order of few operations. ``packed``: the arena
    of an order, which need not be smaller than a number of bytes; by default that of the work.
    """

    def __init__(
        self, work: Work, seconds: float = 0.0, packed: Callable[[Order, int], ArenaPlan] | None = None
    ) -> None:
        self.work = work
        self.seconds = seconds
        self._arena = packed or work.arena
        self._orders: dict[tuple[int, int, int], list[int] | None] = {}
        self._limits: set[int] = set()
        self._chains: dict[int, Recomputation] = {}
        self._plans: dict[tuple[int, ...], Recomputation] = {}
        self._packed: set[tuple[int, ...]] = set()  # orders whose arena is as small as can be found

    @cached_property
    def unplanned(self) -> Recomputation:
        """The step without recomputation."""
        return self.placed(self._made("none", range(len(self.work))))

    @cached_property
    def least(self) -> Recomputation:
        """The plan of the smallest arena found; of equal ones the fastest."""
        plans = sorted({p.order: p for p in self._smallest()}.values(), key=lambda p: (p.live, p.seconds))
        most = len(plans) if len(self.work) <= SMALL else PLACED
        placed = [self.placed(p) for p in plans[:most]]
        return min(placed, key=lambda plan: (plan.arena, plan.seconds))

    def within(self, budget: int) -> Recomputation:
        """The fastest plan found whose arena is at most ``budget`` bytes.

        Raises ParameterError with the smallest budget that can be kept.
        """
        if self.unplanned.arena <= budget:
            return self.unplanned
        self._try(budget)
        found = self._fastest(budget)
        if found is None and self.least.arena <= budget:
            found = self._fastest(budget)
        if found is None:
            raise ParameterError(
                f"memory_budget: found {budget} bytes ({text_of(budget)}); allowed: {self.least.arena} bytes "
                f"({text_of(self.least.arena)}) or more, the least that a plan was found for"
            )
        return self._solved(budget, found) if self.seconds and len(self.work) <= SOLVED else found

    def placed(self, plan: Recomputation, enough: int = 0) -> Recomputation:
        """The plan with its arena, which is as small as can be found, or ``enough``: it takes a while, and is kept."""
        known = self._plans.get(plan.order, plan)
        if known.arena < 0 or (known.arena > enough and known.order not in self._packed):
            known = replace(known, arena=self._arena(known.order, enough).arena_bytes)
            self._plans[plan.order] = known
            if not 0 < known.arena <= enough:
                self._packed.add(known.order)
        return known

    def ordered(self, strategy: str, order: Order) -> Recomputation:
        """The plan of an order that a strategy of this name made."""
        order = self.work.settled(order)
        seconds, live = self.work.order_seconds(order), self.work.live(order)
        return self.placed(Recomputation(strategy, tuple(order), seconds, live, -1))

    def _fastest(self, budget: int) -> Recomputation | None:
        """The fastest of all plans so far that fits; None if none does."""
        for plan in sorted(self._plans.values(), key=lambda p: p.seconds):
            if plan.live < budget + ALIGNMENT and self.placed(plan, budget).arena <= budget:
                return self.placed(plan, budget)
        return None

    def _try(self, budget: int) -> None:
        """Makes plans that might fit: what is made for a limit does not depend on the budget."""
        few = len(self.work) <= SMALL
        least = max(REACH * budget, LOW * self.unplanned.live if len(self.work) > HUGE else 0)
        for limit in self._ladder:
            if limit <= budget and (few or limit >= least):
                self._greedy(limit, 1 + (DRAWS if few else 0))
        for slots in self._slots(budget, few):
            self._chained(slots)

    def _greedy(self, limit: int, draws: int) -> None:
        """The plans of greedy orders for a limit; those that are made of slow ones are left out."""
        if limit in self._limits:
            return
        self._limits.add(limit)
        found = [self._evicted(limit, rule, seed) for rule in RULES for seed in range(draws)]
        distinct = {tuple(order) for order in found if order is not None}
        for order in sorted(distinct, key=self.work.order_seconds)[:TAKEN]:
            self._polished("greedy", order, limit)

    @cached_property
    def _ladder(self) -> list[int]:
        """Limits to plan for, the same for all budgets."""
        limits = [self.work.live(range(len(self.work)))]
        while limits[-1] > ALIGNMENT and len(limits) < 200:
            limits.append(int(limits[-1] * STEP))
        return limits

    @cached_property
    def _chain(self) -> ChainPlanner:
        return ChainPlanner(self.work, int(1.2 * self.unplanned.live))

    def _slots(self, budget: int, few: bool) -> list[int]:
        """Slots of the dynamic program's plans that fit, or the largest: live bytes are below its own figure.

        ``few``: some of all plans, evenly spread.
        """
        feasible = self._chain.feasible
        if few:
            return feasible[:: max(1, -(-len(feasible) // CHAINS))]
        low, high = 0, len(feasible)
        while low < high:
            middle = (low + high) // 2
            if self._chained(feasible[middle]).live <= budget:
                low = middle + 1
            else:
                high = middle
        return feasible[max(0, low - NEAR_CHAINS) : low]

    def _evicted(self, limit: int, rule: int, seed: int = 0) -> list[int] | None:
        key = (limit, rule, seed)
        if key not in self._orders:
            self._orders[key] = evict(self.work, limit, rule, seed)
        return self._orders[key]

    def _chained(self, slots: int) -> Recomputation:
        if slots not in self._chains:
            limit = int(slots * self._chain.table.unit)
            self._chains[slots] = self._polished("chain", self._chain.order(slots), limit)
        return self._chains[slots]

    def _polished(self, strategy: str, order: Order, limit: int) -> Recomputation:
        """The plan of an order, without its waste in the memory that it needs or may have."""
        return self._made(strategy, without_waste(self.work, order, max(limit, self.work.live(order))))

    def _made(self, strategy: str, order: Order) -> Recomputation:
        key = tuple(self.work.settled(order))
        if key not in self._plans:
            made = Recomputation(strategy, key, self.work.order_seconds(key), self.work.live(key), -1)
            self._plans[key] = made
        return self._plans[key]

    def _solved(self, budget: int, found: Recomputation) -> Recomputation:
        """The order of an integer program, if it is faster; of one for fewer live bytes where its arena has gaps."""
        limit = budget
        for _ in range(GAPS):
            best = optimum(self.work, limit, self.seconds, found.seconds)
            if best.order is None or best.seconds >= found.seconds:
                return found
            plan = self.placed(self._made("optimum", best.order), budget)
            if plan.arena <= budget:
                return plan
            limit -= plan.arena - budget
        return found

    def _smallest(self) -> list[Recomputation]:
        """Plans of little memory: greedy ones of the smallest limits, and those of few slots."""
        work, plans = self.work, [self.unplanned]
        draws = range(1 + (DRAWS if len(work) <= SMALL else 0))
        for rule in RULES:
            low, high = 0, self.unplanned.live
            best = None
            for _ in range(BISECTIONS):
                middle = (low + high) // 2
                order = self._evicted(middle, rule)
                low, high, best = (low, middle, order) if order is not None else (middle, high, best)
            plans += [self._polished("greedy", best, 0)] if best is not None else []
        least, failures = min(p.live for p in plans), 0
        for limit in (limit for limit in self._ladder if limit < least):  # a smaller limit may do where a larger fails
            orders = [self._evicted(limit, rule, seed) for rule in RULES for seed in draws]
            found = [self._polished("greedy", order, 0) for order in orders if order is not None]
            plans += found
            failures = 0 if found else failures + 1
            if failures == FAILURES:
                break
        plans += [self._chained(slots) for slots in self._chain.feasible[:4]]
        return plans

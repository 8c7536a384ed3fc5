"""Strategies of thesis-chen section 3.4 by name, and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from burnish.base.sizes import RECOMPUTING, parse_budget
from burnish.errors import ParameterError
from burnish.memory.budget import Planner, Recomputation
from burnish.memory.counters import allocate
from burnish.memory.mirror import by_name, drop_cheap, mirrored_order, sublinear
from burnish.memory.work import Work


def _blocks(in_place: bool, recycle: bool) -> Callable[[Planner], Recomputation]:
    """The step as it is, in blocks that liveness counters hand out."""

    def planned(planner: Planner) -> Recomputation:
        order = planner.unplanned.order
        total = allocate(planner.work, order, in_place=in_place, recycle=recycle).total
        return replace(planner.unplanned, arena=total)

    return planned


STRATEGIES: Mapping[str, Callable[[Planner], Recomputation]] = {
    "none": _blocks(False, False),
    "inplace": _blocks(True, False),
    "sharing": _blocks(True, True),
    "packed": lambda planner: planner.unplanned,
    "drop-cheap": lambda planner: planner.ordered("", mirrored_order(planner.work, drop_cheap(planner.work))),
    "sublinear": lambda planner: planner.ordered("", mirrored_order(planner.work, sublinear(planner.work))),
    "least": lambda planner: planner.least,
}
"""The first three allocate blocks by liveness counters; "packed" places the same copies in one arena.

The others recompute, and are packed: "drop-cheap" (in the thesis "drop bn-relu") what is no convolution or product,
"sublinear" by Algorithm 7 with a search over its budget, "least" as the smallest arena of all plans needs it.
"""


def by_strategy(planner: Planner, name: str) -> Recomputation:
    """The plan of a strategy. Raises ParameterError for an unknown one."""
    if name not in STRATEGIES:
        raise ParameterError(f"strategy: found {name!r}; allowed: {', '.join(STRATEGIES)}")
    return replace(STRATEGIES[name](planner), strategy=name)


def strategies(work: Work) -> Mapping[str, Recomputation]:
    """Plans of all strategies, by name."""
    planner = Planner(work)
    return {name: by_strategy(planner, name) for name in STRATEGIES}


def wanted(planner: Planner, budget: str | int | Mapping[str, int]) -> Recomputation:
    """The plan that a user asks for: a budget, a strategy that recomputes, or mirror counts of nodes by name.

    Raises ParameterError with the smallest budget that can be kept, or for what is none of these.
    """
    if isinstance(budget, Mapping):
        return planner.ordered("mirror", mirrored_order(planner.work, by_name(planner.work, budget)))
    if budget in RECOMPUTING:
        return by_strategy(planner, str(budget))
    return planner.within(parse_budget("memory_budget", budget))

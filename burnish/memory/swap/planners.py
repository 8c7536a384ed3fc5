"""Planners by name: the plan of the fewest bytes that is found soon, and the policies that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from burnish.memory.swap.fixed import fixed
from burnish.memory.swap.plan import SwapPlan
from burnish.memory.swap.policies import least_recently_used, streaming
from burnish.memory.swap.problem import SwapProblem

SECONDS = 5.0  # of the integer program of a plan

_careful = partial(least_recently_used, drop_dead=True)


def best(problem: SwapProblem, capacity: int) -> SwapPlan:
    """The plan that moves the fewest bytes in the order of the steps, as far as it is found in a few seconds."""
    return min(fixed(problem, capacity, SECONDS), _careful(problem, capacity), key=lambda p: p.moved)


PLANNERS: Mapping[str, Callable[[SwapProblem, int], SwapPlan]] = {
    "best": best,
    "streaming": streaming,
    "lru": least_recently_used,
    "lru drop dead": _careful,
}

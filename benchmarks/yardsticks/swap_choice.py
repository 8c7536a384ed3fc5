"""Keep, recompute or move: for every tensor that does not fit until its next use, whichever takes the least time.

Small problems are an integer program (``swap_repeats.py``); others are simulated (``swap_simulation.py``), or only
moved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.yardsticks.swap_repeats import RepeatedSteps
from benchmarks.yardsticks.swap_simulation import NoRoom, Simulation
from burnish.errors import ParameterError
from burnish.memory.swap.fixed import SECONDS, fixed
from burnish.memory.swap.plan import SwapPlan, replay
from burnish.memory.swap.problem import SwapProblem

MOST_EXACT = 60  # steps that the integer program takes
CAUTION = (1.0, 1.5, 3.0, 10.0)  # times what running steps again seems to cost, as inputs may leave until then


@dataclass(frozen=True)
class Rates:
    """Rates of moving and running: ``bandwidth`` between the memories in bytes a second, ``seconds`` by step."""

    bandwidth: float
    seconds: tuple[float, ...]

    def extra(self, plan: SwapPlan) -> float:
        """Seconds of a plan beyond running every step once: of moved bytes and of repeated steps, one after another."""
        runs = sum(self.seconds[a.step] for a in plan.actions if a.kind == "run")
        return plan.moved / self.bandwidth + runs - sum(self.seconds)


def choose(
    problem: SwapProblem, capacity: int, rates: Rates, seconds: float = SECONDS, most: int = MOST_EXACT
) -> SwapPlan:
    """The plan of the least extra time that was found; never slower than moving alone in the same order.

    Problems of up to ``most`` steps are solved as an integer program, ``proven`` if it ended within ``seconds``; others
    by simulated executions. Raises ParameterError for a capacity
    in which a step does not fit, and for rates that are not one for each step and positive.
    """
    if len(rates.seconds) != len(problem.steps) or rates.bandwidth <= 0 or min(rates.seconds, default=0) < 0:
        raise ParameterError(
            f"choose: rates: found bandwidth {rates.bandwidth} and {len(rates.seconds)} seconds; allowed: a positive "
            f"bandwidth and {len(problem.steps)} seconds of at least 0"
        )
    plans = [fixed(problem, capacity, seconds), greedy(problem, capacity, rates)]
    best = replace(min((p for p in plans if p is not None), key=rates.extra), proven=False)
    if len(problem.steps) > most:
        return best
    formulation = RepeatedSteps(problem, capacity, rates.bandwidth, rates.seconds)
    found = formulation.solve(seconds, "moves and recomputation")
    return found if found is not None and rates.extra(found) <= rates.extra(best) else best


def greedy(problem: SwapProblem, capacity: int, rates: Rates) -> SwapPlan | None:
    """The best of several simulated executions; None where recomputation finds no room in any."""
    moving = {name: nbytes / rates.bandwidth for name, nbytes in problem.nbytes.items()}
    best: SwapPlan | None = None
    for caution in CAUTION:
        try:
            actions = Simulation(problem, capacity, moving, rates.seconds, caution).execute()
        except NoRoom:
            continue
        plan = replay(problem, capacity, actions, "moves and recomputation")
        if best is None or rates.extra(plan) < rates.extra(best):
            best = plan
    return best

"""Keep, recompute or move: for every tensor that does not fit until its next use, whichever takes the least time.

Small problems are an integer program (``again.py``). Of others, the best plan of moves alone is improved: where it saves
time, loads of a tensor are replaced by running its step again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from burnish.errors import ParameterError, VerificationError
from burnish.memory.swap.again import Program
from burnish.memory.swap.fixed import SECONDS, fixed
from burnish.memory.swap.plan import Action, SwapPlan, replay
from burnish.memory.swap.problem import SwapProblem

MOST_EXACT = 60  # steps that the integer program takes


@dataclass(frozen=True)
class Rates:
    """What moving and running cost: ``bandwidth`` between the memories in bytes a second, ``seconds`` by step."""

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
    by replacing moves of the best plan without recomputation where that saves time. Raises ParameterError for a capacity
    in which a step does not fit, and for rates that are not one for each step and positive.
    """
    if len(rates.seconds) != len(problem.steps) or rates.bandwidth <= 0 or min(rates.seconds, default=0) < 0:
        raise ParameterError(
            f"choose: rates: found bandwidth {rates.bandwidth} and {len(rates.seconds)} seconds; allowed: a positive "
            f"bandwidth and {len(problem.steps)} seconds of at least 0"
        )
    moves = fixed(problem, capacity, seconds)
    best = replace(min((moves, greedy(problem, moves, rates)), key=rates.extra), proven=False)
    if len(problem.steps) > most:
        return best
    found = Program(problem, capacity, rates.bandwidth, rates.seconds).solve(seconds, "moves and recomputation")
    return found if found is not None and rates.extra(found) <= rates.extra(best) else best


def greedy(problem: SwapProblem, plan: SwapPlan, rates: Rates) -> SwapPlan:
    """The plan with loads of a tensor replaced by running its step again, where inputs are there and it saves time.

    A tensor none of whose loads is left is not stored either. Takes tensors in the order of the time saved.
    """
    worth = []
    for name, step in problem.producer.items():
        loads = sum(a == Action("load", name) for a in plan.actions)
        kept_store = name in problem.results
        saved = problem.nbytes[name] * (loads + (not kept_store)) / rates.bandwidth - loads * rates.seconds[step]
        if loads and saved > 0:
            worth.append((saved, name, step))
    for _, name, step in sorted(worth, reverse=True):
        drop_store = name not in problem.results
        actions: list[Action] = []
        for action in plan.actions:
            if action == Action("load", name):
                actions.append(Action("run", "", step))
            elif not (drop_store and action == Action("store", name)):
                actions.append(action)
        better = _replayed(problem, plan.capacity, _postponed(problem, actions))
        if better is not None and rates.extra(better) < rates.extra(plan):
            plan = better
    return plan


def _postponed(problem: SwapProblem, actions: list[Action]) -> list[Action]:
    """Runs that repeat a step moved behind the loads that follow them: their inputs may be among those."""
    result: list[Action] = []
    waiting: list[Action] = []
    done: set[int] = set()
    for action in actions:
        if action.kind == "run" and action.step in done:
            waiting.append(action)
            continue
        if action.kind != "load":
            result += sorted(waiting, key=lambda a: a.step)
            waiting = []
        done.add(action.step)
        result.append(action)
    return _without_spare_outputs(problem, result + waiting)


def _without_spare_outputs(problem: SwapProblem, actions: list[Action]) -> list[Action]:
    """Drops, right after a repeated run, of what it wrote beyond the tensors used before they next leave."""
    fast: set[str] = set()
    done: set[int] = set()
    result: list[Action] = []
    for position, action in enumerate(actions):
        result.append(action)
        if action.kind == "load":
            fast.add(action.tensor)
        elif action.kind == "drop":
            fast.discard(action.tensor)
        elif action.kind == "run":
            new = [name for name in problem.steps[action.step].writes if name not in fast]
            fast.update(new)
            if action.step in done:
                spare = [name for name in new if not _used_before_leaving(problem, actions[position + 1 :], name)]
                result += [Action("drop", name) for name in spare]
                fast.difference_update(spare)
            done.add(action.step)
    return result


def _used_before_leaving(problem: SwapProblem, actions: Iterable[Action], name: str) -> bool:
    for action in actions:
        if action.tensor == name:
            return action.kind == "drop"
        if action.kind == "run" and name in problem.steps[action.step].reads:
            return True
    return False


def _replayed(problem: SwapProblem, capacity: int, actions: list[Action]) -> SwapPlan | None:
    """The plan, or None where it does not fit or lacks an input."""
    try:
        return replay(problem, capacity, actions, "moves and recomputation")
    except VerificationError:
        return None

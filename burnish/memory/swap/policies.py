"""Baselines without an optimizer: streaming every tensor, and the least recently used with and without lifetimes."""

from __future__ import annotations

from burnish.memory.swap.plan import Action, SwapPlan, replay
from burnish.memory.swap.problem import SwapProblem


def streaming(problem: SwapProblem, capacity: int) -> SwapPlan:
    """Streaming: an operator loads all that it reads, and stores what it writes if it is read later or is a result.

    What the next step of the same operator reads again stays: an operator in blocks loads nothing for each block anew.
    Raises ParameterError for a capacity in which a step does not fit.
    """
    problem.require(capacity, "streaming")
    actions: list[Action] = []
    fast: set[str] = set()
    for i, step in enumerate(problem.steps):
        actions += [Action("load", name) for name in step.reads if name not in fast]
        actions.append(Action("run", "", i))
        wanted = [name for name in step.writes if problem.readers[name] or name in problem.results]
        actions += [Action("store", name) for name in wanted]
        last = i + 1 == len(problem.steps) or problem.operators[i + 1] != problem.operators[i]
        fast = set() if last else {*step.reads} & {*problem.steps[i + 1].reads}
        actions += [Action("drop", name) for name in problem.needs(i) if name not in fast]
    return replay(problem, capacity, actions, "streaming")


def least_recently_used(problem: SwapProblem, capacity: int, drop_dead: bool = False) -> SwapPlan:
    """LRU: where room is needed, the tensor used longest ago leaves; one that was never stored is written back.

    By history alone it writes back what no later step reads too. ``drop_dead``: tensors leave after their last use, for
    nothing. Raises ParameterError for a capacity in which a step does not fit.
    """
    method = "LRU that drops dead tensors" if drop_dead else "LRU"
    problem.require(capacity, method)
    actions: list[Action] = []
    fast: dict[str, None] = {}  # the longest unused first
    slow = problem.nbytes.keys() - problem.producer.keys()
    used = 0

    def leave(name: str, write: bool) -> None:
        nonlocal used, slow
        if write and name not in slow:
            actions.append(Action("store", name))
            slow |= {name}
        actions.append(Action("drop", name))
        del fast[name]
        used -= problem.nbytes[name]

    for i, step in enumerate(problem.steps):
        for name in problem.needs(i):
            if name in fast:
                fast[name] = fast.pop(name)
        for name in problem.needs(i):
            if name in fast:
                continue
            while used + problem.nbytes[name] > capacity:
                leave(next(other for other in fast if other not in problem.needs(i)), write=True)
            if name in step.reads:
                actions.append(Action("load", name))
            fast[name] = None
            used += problem.nbytes[name]
        actions.append(Action("run", "", i))
        for name in [n for n in fast if drop_dead and not any(r > i for r in problem.readers[n])]:
            leave(name, write=name in problem.results)
    for name in list(fast):
        leave(name, write=name in problem.results)
    return replay(problem, capacity, actions, method)

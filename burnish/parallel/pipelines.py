"""Search over pipelines (1F1B): stages and micro-batches, then the configuration of every layer within them.

The thesis leaves the pipeline dimension open. Here a pipeline is a strategy of a model of micro-batches
(:func:`burnish.parallel.baselines.pipeline`), so the same simulator says what it takes, and the same sweeps over blocks
(all micro-batches of a layer) move layers between stages or split them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.errors import PlanError
from burnish.parallel.baselines import pipeline
from burnish.parallel.costs import Costs
from burnish.parallel.machine import Machine
from burnish.parallel.operations import Model
from burnish.parallel.search import Objective, search
from burnish.parallel.simulate import Choice, Simulator
from burnish.parallel.space import Space
from burnish.parallel.taskgraph import Problem
from burnish.search.budget import Budget

MICRO_BATCHES = (2, 4, 8, 16, 32)


@dataclass(frozen=True, eq=False)
class Pipelined:
    """The best pipeline found: its stages and micro-batches, its strategy in the simulator's space, ns of a step.

    ``times``: ns by (stages, micro-batches) of plain 1F1B pipelines, inf where one does not fit the devices' memory.
    """

    stages: int
    micro_batches: int
    simulator: Simulator
    choice: Choice
    ns: int
    times: dict[tuple[int, int], float]


def best_pipeline(
    micro: Callable[[int], Model | None],
    machine: Machine,
    costs: Costs,
    budget: Budget,
    *,
    synchronization: str = "overlapped",
    counts: Sequence[int] = MICRO_BATCHES,
    slots: int = 2,
) -> Pipelined:
    """The fastest pipeline found within a budget.

    ``micro``: the model of one of so many micro-batches, None where the batch cannot be cut so. Every number of stages
    that divides the devices is tried with every number of micro-batches; then the layers of the best one are searched
    with what is left of the budget. Memory is that of the simulated step: results are freed after their backward tasks.
    Raises PlanError where no pipeline fits.
    """
    begun = budget.clock()
    times: dict[tuple[int, int], float] = {}
    best: tuple[float, int, int, Simulator, Choice] | None = None
    for count in counts:
        model = micro(count)
        for stages in _stages(machine, model):
            if model is None or (best is not None and _spent(budget, begun) > 0.5):
                continue
            simulator, choice = _made(model, machine, costs, synchronization, stages, count)
            ns = float(simulator.full(choice))
            fits = _fits(simulator, choice, slots)
            times[stages, count] = ns if fits else np.inf
            if fits and (best is None or ns < best[0]):
                best = ns, stages, count, simulator, choice
    if best is None:
        raise PlanError("no pipeline fits the devices' memory; allowed: more micro-batches, or devices of more memory")
    ns, stages, count, simulator, choice = best
    found, took = _searched(simulator, choice, budget, begun, slots)
    return Pipelined(stages, count, simulator, found, took, times)


def _stages(machine: Machine, model: Model | None) -> list[int]:
    """Numbers of stages, from two on."""
    most = 0 if model is None else min(machine.size, len(model.operations))
    return [n for n in range(2, most + 1) if machine.size % n == 0]


def _made(
    model: Model, machine: Machine, costs: Costs, synchronization: str, stages: int, count: int
) -> tuple[Simulator, Choice]:
    """The simulator of a pipeline, and its strategy."""
    made = pipeline(model, machine, stages, count)
    space = Space(made.model, machine, strided=False, also=[made.strategy])
    problem = Problem(space, costs, synchronization, order=made.order)
    return Simulator(problem, checkpoints=4), space.choice(made.strategy)


def _spent(budget: Budget, begun: float) -> float:
    """The share of the seconds that are spent."""
    return 0.0 if budget.seconds is None else (budget.clock() - begun) / budget.seconds


def _searched(simulator: Simulator, choice: Choice, budget: Budget, begun: float, slots: int) -> tuple[Choice, int]:
    """Layers moved and split by sweeps over blocks, kept if the devices hold what the step then needs."""
    now = simulator.full(choice)
    left = None if budget.seconds is None else budget.seconds - (budget.clock() - begun)
    if left is not None and left <= 0:
        return choice, now
    own = Budget(budget.trials, left, budget.clock)
    found = search(simulator, {"pipeline": choice}, own, objective=Objective(memory=False, slots=slots), summed=False)
    fits = _fits(simulator, found.choice, slots)
    return (found.choice, found.ns) if fits else (choice, now)


def _fits(simulator: Simulator, choice: Choice, slots: int) -> bool:
    """Whether the devices hold what the step needs, as it is simulated."""
    if simulator.fits(choice, slots):
        return True
    held = np.array([device.memory for device in simulator.problem.machine.devices])
    return bool((simulator.peak_memory(choice, slots) <= held).all())

"""Search over pipelines (1F1B): stages and micro-batches, then where the stages of the best one begin.

The thesis leaves the pipeline dimension open. Here a pipeline is a strategy of a model of micro-batches
(:func:`burnish.parallel.simulate.baselines.pipeline`), so the same simulator says what it takes, and programs of
devices execute what is found (``stages.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.errors import PlanError
from burnish.parallel.model.costs import Costs
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import OperationGraph
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Strategy
from burnish.parallel.simulate.baselines import equal_stages, pipeline
from burnish.parallel.simulate.simulate import Choice, Simulator
from burnish.parallel.simulate.taskgraph import Problem
from burnish.search.budget import Budget

MICRO_BATCHES = (2, 4, 8, 16, 32)


@dataclass(frozen=True, eq=False)
class Pipelined:
    """The best pipeline found: its stages and micro-batches, the model of one of these and its strategy, ns of a step;
    how many were simulated, and the seconds of the search.

    ``choice``: the strategy of all micro-batches in the simulator's space. ``times``: ns by (stages, micro-batches) of
    pipelines with stages of equal arithmetic, inf where one does not fit the devices' memory.
    """

    stages: int
    micro_batches: int
    model: OperationGraph
    strategy: Strategy
    simulator: Simulator
    choice: Choice
    ns: int
    times: dict[tuple[int, int], float]
    trials: int
    seconds: float

    @property
    def name(self) -> str:
        """Name of the candidate, for people."""
        return f"pipeline of {self.stages} stages, {self.micro_batches} micro-batches"


@dataclass(frozen=True, eq=False)
class _Tried:
    """A pipeline with its simulated step."""

    model: OperationGraph
    strategy: Strategy
    simulator: Simulator
    choice: Choice
    ns: int
    fits: bool


def best_pipeline(
    micro: Callable[[int, int], OperationGraph | None],
    machine: DeviceCluster,
    costs: Costs,
    budget: Budget,
    *,
    synchronization: str = "overlapped",
    counts: Sequence[int] = MICRO_BATCHES,
    slots: int = 2,
) -> Pipelined:
    """The fastest pipeline found within a budget.

    ``micro``: the model of a micro-batch by the numbers of them and of devices that share each; None where the batch
    cannot be cut so. Every number of stages that divides the devices is tried with every number of micro-batches; then
    the begins of the best one's stages move, one at a time, as long as that makes a step shorter and the budget lasts.
    Memory is that of the simulated step: results are freed after their backward tasks. Raises PlanError where no
    pipeline fits.
    """
    begun = budget.clock()
    times: dict[tuple[int, int], float] = {}
    best: tuple[_Tried, int, int] | None = None
    for count in counts:
        for stages in [n for n in range(2, machine.size + 1) if machine.size % n == 0]:
            if best is not None and _spent(budget, begun) > 0.5:
                continue
            model = micro(count, machine.size // stages)
            if model is None or stages > len(model.operations):
                continue
            tried = _tried(model, machine, costs, synchronization, equal_stages(model, stages), count, slots)
            times[stages, count] = tried.ns if tried.fits else np.inf
            if tried.fits and (best is None or tried.ns < best[0].ns):
                best = tried, stages, count
    if best is None:
        raise PlanError("no pipeline fits the devices' memory; allowed: more micro-batches, or devices of more memory")
    now, stages, count = best
    begins, moved, trials = equal_stages(now.model, stages), True, 0
    while moved:
        moved = False
        for i in range(stages - 1):
            for step in (-1, 1):
                low, high = begins[i - 1] if i else 0, [*begins, len(now.model.operations)][i + 1]
                own = [*begins[:i], begins[i] + step, *begins[i + 1 :]]
                if not low < own[i] < high or _spent(budget, begun) >= 1 or trials == budget.trials:
                    continue
                trials += 1
                tried = _tried(now.model, machine, costs, synchronization, own, count, slots)
                if tried.fits and tried.ns < now.ns:
                    now, begins, moved = tried, own, True
    trials, seconds = trials + len(times), budget.clock() - begun
    return Pipelined(stages, count, now.model, now.strategy, now.simulator, now.choice, now.ns, times, trials, seconds)


def _tried(
    model: OperationGraph,
    machine: DeviceCluster,
    costs: Costs,
    synchronization: str,
    begins: Sequence[int],
    count: int,
    slots: int,
) -> _Tried:
    """The pipeline whose stages begin so, simulated."""
    made = pipeline(model, machine, len(begins) + 1, count, begins)
    space = StrategySpace(made.model, machine, strided=False, also=[made.strategy])
    simulator = Simulator(Problem(space, costs, synchronization, order=made.order), checkpoints=4)
    choice = space.choice(made.strategy)
    return _Tried(model, made.own, simulator, choice, simulator.full(choice), _fits(simulator, choice, slots))


def _spent(budget: Budget, begun: float) -> float:
    """The share of the seconds that are spent."""
    return 0.0 if budget.seconds is None else (budget.clock() - begun) / budget.seconds


def _fits(simulator: Simulator, choice: Choice, slots: int) -> bool:
    """Whether the devices hold what the step needs, as it is simulated."""
    if simulator.fits(choice, slots):
        return True
    held = np.array([device.memory for device in simulator.problem.machine.devices])
    return bool((simulator.peak_memory(choice, slots) <= held).all())

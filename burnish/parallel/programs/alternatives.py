"""Alternatives for a step on many devices: splits that keep all results, splits that recompute, a pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from burnish.errors import PlanError
from burnish.graph.graph import Graph
from burnish.parallel.model.costs import Costs
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import OperationGraph, operations
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Strategy
from burnish.parallel.programs.micro import micro_graph
from burnish.parallel.programs.pipelines import best_pipeline
from burnish.parallel.programs.stages import check_pipeline
from burnish.parallel.simulate.exact import optimum
from burnish.parallel.simulate.search import Found, PlanObjective, search
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from burnish.search.budget import Budget, Event
from burnish.train.step import Train

SPLITS, RECOMPUTED = "splits", "splits, recomputed"
MIN_SHARE = 0.2  # of the time budget that each search has, even when less is left of it
SMALL = 10.0  # decimal logarithm of the strategies of a space that is searched whole, by branch and bound


@dataclass(frozen=True, eq=False)
class SimulatedStrategy:
    """A strategy that fits the devices' memory, for ``model``, simulated: ``cost`` is what the search's objective says.

    ``found``: what a search over splits found; None of a pipeline, whose model is that of a micro-batch. ``seconds``
    and ``trials``: of the search, which ended for the reason ``stop_reason``.
    """

    name: str
    model: OperationGraph
    strategy: Strategy
    simulator: Simulator
    choice: np.ndarray
    cost: float
    seconds: float
    trials: int
    stop_reason: str
    found: Found | None = None


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """Arguments of a search for a parallelization strategy: the graph, the machine, the costs, limits and the seed.

    ``seconds``: of each search, or of all together where there is a ``deadline``, on the clock of ``time.monotonic``.
    ``trains``: whether it is for training, not inference.
    """

    graph: Graph
    machine: DeviceCluster
    costs: Costs
    synchronization: str
    sparse: bool
    objective: PlanObjective
    strided: bool
    parameters: Collection[str] | None
    groups: Sequence[Sequence[str]]
    seconds: float
    seed: int
    progress: Callable[[Event], None] | None = None
    deadline: float | None = None
    trains: bool = True

    def allowed(self, share: float, of_left: float) -> float:
        """Seconds of one search: a share of the whole limit, but only so much of what is left until the deadline.

        A fifth of the limit at least: with none at all, nothing would be found.
        """
        if self.deadline is None:
            return share * self.seconds
        left = self.deadline - time.monotonic()
        return max(min(share * self.seconds, of_left * left), MIN_SHARE * self.seconds)

    def problem(self, model: OperationGraph, starts: Mapping[str, Strategy], recompute: bool) -> Problem:
        """The problem of a model's splits."""
        also = [*starts.values()]
        space = StrategySpace(model, self.machine, strided=self.strided, also=also, recompute=recompute)
        return Problem(space, self.costs, self.synchronization, self.sparse, trains=self.trains)


def split(
    request: SearchRequest, model: OperationGraph, starts: Mapping[str, Strategy], recompute: bool
) -> SimulatedStrategy:
    """The best splits found, of results that are computed again in the backward pass where that makes them fit.

    Small spaces are searched whole after that. Raises PlanError where nothing fits.
    """
    problem = request.problem(model, starts, recompute)
    simulator, space, objective = Simulator(problem), problem.space, request.objective
    choices = {name: space.choice(strategy) for name, strategy in starts.items()}
    found = search(
        simulator, {**choices, "random": space.random(request.seed)}, Budget(seconds=request.allowed(1, 0.6)),
        seed=request.seed, objective=objective, progress=request.progress,
    )  # fmt: skip
    if problem.log10_size <= SMALL and not objective.per_byte:
        best = optimum(simulator, found.choice, request.allowed(1, 0.4))
        if best.ns < found.ns and objective.excess(simulator, best.choice) <= 1:
            found = replace(found, choice=best.choice, ns=best.ns)
    strategy = space.strategy(found.choice)
    again = any(chosen.recompute for chosen in strategy.configurations.values())
    if again:
        strategy = replace(strategy, memory=int(min(device.memory for device in request.machine.devices)))
    cost = objective.cost(simulator, found.choice, found.ns)
    report = found.report
    return SimulatedStrategy(
        RECOMPUTED if again else SPLITS, model, strategy, simulator, found.choice, cost, report.seconds, report.trials,
        report.stop_reason, found,
    )  # fmt: skip


def pipelined(request: SearchRequest, train: Train) -> SimulatedStrategy:
    """The best pipeline found that can be executed. Raises PlanError, with the reason, where there is none."""
    check_pipeline(request.graph, train)
    reasons: list[str] = []

    @cache
    def cut(count: int) -> Graph | None:
        try:
            return micro_graph(request.graph, count)
        except PlanError as error:
            reasons.append(str(error))
            return None

    @cache
    def of_batch(count: int) -> OperationGraph | None:
        graph = cut(count)
        return None if graph is None else operations(graph, request.parameters, request.groups)

    def micro(count: int, devices: int) -> OperationGraph | None:
        return of_batch(count) if cut(count * devices) is not None else None

    objective = request.objective
    try:
        found = best_pipeline(
            micro, request.machine, request.costs, Budget(seconds=request.allowed(0.5, 0.8)),
            synchronization=request.synchronization, slots=objective.slots,
        )  # fmt: skip
    except PlanError:
        if reasons and all(of_batch(count) is None for count in (2, 4)):
            raise PlanError(reasons[0]) from None
        raise
    cost = objective.cost(found.simulator, found.choice, found.ns)
    return SimulatedStrategy(
        found.name, found.model, found.strategy, found.simulator, found.choice, cost, found.seconds, found.trials,
        "exhausted",
    )  # fmt: skip

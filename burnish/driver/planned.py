"""Planning of training on many devices: a strategy with its simulated step, memory, bound, and comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from burnish.arguments import check_number
from burnish.driver.calibration import Ranks, calibrate, optimizer_slots
from burnish.driver.fit_ranks import faster_plan
from burnish.driver.importing import import_model
from burnish.driver.rank_memory import kept_bytes, rank_memory
from burnish.errors import PlanError
from burnish.graph.domain import input_domains
from burnish.graph.graph import Graph
from burnish.measure.samples import random_inputs
from burnish.parallel.baselines import data_parallel, expert, model_parallel
from burnish.parallel.bound import Bound, lower_bound
from burnish.parallel.costs import Costs, Roofline
from burnish.parallel.exact import optimum
from burnish.parallel.machine import Machine
from burnish.parallel.operations import Model, operations
from burnish.parallel.plans import Splits, splits_of
from burnish.parallel.presets import machine as find_machine
from burnish.parallel.search import Found, Objective, search
from burnish.parallel.simulate import Simulator
from burnish.parallel.space import Space
from burnish.parallel.strategy import Strategy, parse_strategy
from burnish.parallel.taskgraph import Problem
from burnish.parallel.timeline import Timeline
from burnish.runtime.steps import TensorSpec
from burnish.search.budget import Budget, Event
from burnish.target import target as find_target
from burnish.train.step import Train, noted_labels, training_graph

BASELINES: Mapping[str, Callable[[Model, Machine], Strategy]] = {
    "data parallel": data_parallel, "expert": expert, "model parallel": model_parallel,
}  # fmt: skip


ROOFLINE, FASTEST = Roofline(), Objective()
PLAIN = "data parallelism"
AGAIN = 2  # searches more where the programs of what was found have no room, each within less
SMALL = 10.0  # decimal logarithm of the strategies of a space that is searched whole, by branch and bound


@dataclass(frozen=True, eq=False)
class Plan:
    """A strategy for a model on a machine, and what is predicted of it.

    ``milliseconds``: of a simulated step; ``baselines``: those of other strategies by name, inf where one does not fit
    the devices' memory. ``bound``: what no strategy of the space falls below; None where it was not asked for.
    ``measured``: milliseconds of a step of the strategy that was found and of data parallelism, if both were timed;
    the faster one is the strategy. ``allocated``: bytes that each device's program allocates on this machine's cores,
    where they are measured. ``slots``: arrays of the optimizer's state for each parameter.
    """

    model: Model
    machine: Machine
    strategy: Strategy
    simulator: Simulator
    choice: np.ndarray
    baselines: Mapping[str, float]
    bound: Bound | None
    stop_reason: str
    seconds: float
    trials: int
    measured: Mapping[str, float] = field(default_factory=dict)
    allocated: tuple[int, ...] = ()
    slots: int = 2

    @cached_property
    def milliseconds(self) -> float:
        """Of a simulated step."""
        return self.simulator.full(self.choice) / 1e6

    @property
    def gap(self) -> float | None:
        """(found − bound) / found."""
        return None if self.bound is None else self.bound.gap(self.milliseconds * 1e6)

    @property
    def is_data_parallel(self) -> bool:
        """Whether the strategy is plain data parallelism: nothing better was found."""
        return self.strategy == data_parallel(self.model, self.machine)

    @property
    def memory(self) -> np.ndarray:
        """Bytes that each device needs, as the search estimates them."""
        return self.simulator.memory(self.choice, self.slots)

    @property
    def timeline(self) -> Timeline:
        """Tasks and transfers of the simulated step."""
        return self.simulator.timeline(self.choice)

    @property
    def splits(self) -> Splits:
        """What programs of devices are made from."""
        return splits_of(self.model, self.strategy)

    def text(self) -> str:
        """The strategy as text, which :func:`read_plan` and ``burnish train --plan`` read."""
        return self.strategy.text(self.model, self.machine)

    def save(self, path: str | Path) -> None:
        """Writes the text. Raises OSError."""
        Path(path).write_text(self.text(), encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """The plan and what is predicted of it, as JSON."""
        moved, summed = self.simulator.bytes(self.choice)
        return {
            "machine": self.machine.name, "devices": self.machine.size, "operations": len(self.model.operations),
            "milliseconds": self.milliseconds, "data_parallel": self.is_data_parallel,
            "baselines": {name: None if np.isinf(ms) else ms for name, ms in self.baselines.items()},
            "bound": None if self.bound is None else self.bound.ns / 1e6, "gap": self.gap,
            "memory": [float(n) for n in self.memory], "limits": [float(d.memory) for d in self.machine.devices],
            "bytes": {"activations": moved, "gradients": summed},
            "search": {"seconds": self.seconds, "trials": self.trials, "stop_reason": self.stop_reason},
            "measured": dict(self.measured), "allocated": [*self.allocated], "strategy": self.text(),
        }  # fmt: skip


def plan(
    model: Any,
    devices: str | Path | Machine = "host:2",
    *,
    seconds: float = 10.0,
    seed: int = 0,
    groups: Sequence[Sequence[str]] = (),
    parameters: Sequence[str] | None = None,
    costs: Costs = ROOFLINE,
    synchronization: str = "overlapped",
    sparse: bool = False,
    objective: Objective = FASTEST,
    bound: bool = True,
    strided: bool = True,
    recompute: bool = False,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    progress: Callable[[Event], None] | None = None,
    measure: bool | Ranks = False,
) -> Plan:
    """The fastest strategy found for a training step of ``model`` on ``devices``, which need not be there.

    ``model``: an ONNX file, a :class:`Graph`, or what :func:`burnish.compile` imports. ``devices``: a preset such as
    "p100:4x4" or "host:2", a file cluster.toml, or a :class:`Machine`. ``groups``: names of nodes that form one
    operation each. ``synchronization``: "overlapped" ring all-reduces, or "after" the step and linear in replicas.
    Small spaces are searched whole after that, by branch and bound, for as many seconds again.
    ``sparse``: gradients of rows that an index picks are summed as rows. ``seconds``: of search. ``recompute``: a
    strategy beyond a device's memory may compute results again; such a plan is simulated, and not executed yet.

    ``measure``: on cores of this machine, links and parts of operations are timed first, and the plan and data
    parallelism last, of which the faster one is returned; :class:`burnish.driver.calibration.Ranks` says how to train.

    The plan is never predicted slower than data parallelism, if that fits the devices' memory: it is a start of the
    search. Raises PlanError, for one where nothing fits.
    """
    check_number("plan: seconds", seconds, 0, open_below=True)
    graph = model if isinstance(model, Graph) else import_model(model, shapes, None, training=True).graph
    machine = devices if isinstance(devices, Machine) else find_machine(str(devices))
    ranks = (Ranks() if measure is True else measure) or None
    if ranks is not None:
        parameters = ranks.train.parameters if parameters is None else tuple(parameters)
        ranks = replace(ranks, train=replace(ranks.train, parameters=parameters))
    found = operations(graph, parameters, groups)
    starts = {name: make(found, machine) for name, make in BASELINES.items()}
    if ranks is not None and recompute:
        raise PlanError(
            "plan: found measure with recompute; allowed: one of them, since such plans are not executed yet"
        )
    if ranks is not None:
        known = calibrate(Space(found, machine, strided=strided, also=[*starts.values()]), ranks)
        machine, costs = known.machine, known.costs
        objective = replace(objective, slots=optimizer_slots(ranks.train))
    space = Space(found, machine, strided=strided, also=[*starts.values()], recompute=recompute)
    problem = Problem(space, costs, synchronization, sparse)
    simulator = Simulator(problem)
    choices = {name: space.choice(strategy) for name, strategy in starts.items()}
    begin = {**choices, "random": space.random(seed)}

    def planned(aim: Objective) -> Plan:
        result = search(simulator, begin, Budget(seconds=seconds), seed=seed, objective=aim, progress=progress)
        if problem.log10_size <= SMALL and not aim.per_byte:
            best = optimum(simulator, result.choice, seconds)
            if best.ns < result.ns and aim.excess(simulator, best.choice) <= 1:
                result = replace(result, choice=best.choice, ns=best.ns)
        return _planned(simulator, result, None, [*starts], aim.slots)

    made = planned(objective)
    if ranks is not None:
        made = _measured(*_with_room(made, planned, objective, ranks), ranks)
    return replace(made, bound=lower_bound(problem)) if bound else made


def _with_room(
    made: Plan, planned: Callable[[Objective], Plan], objective: Objective, ranks: Ranks
) -> tuple[Plan, tuple[int, ...]]:
    """The plan, or one found within less where its programs need more than there is; and what its programs need."""
    needed = _needed(made, made.splits, ranks)
    for _ in range(AGAIN):
        over = max(a / b.memory for a, b in zip(needed, made.machine.devices, strict=True))
        if over <= 1:
            break
        objective = replace(objective, share=objective.share / over)
        try:
            made = planned(objective)
        except PlanError:  # nothing is estimated to fit: _measured tells what there is
            break
        needed = _needed(made, made.splits, ranks)
    return made, needed


def _needed(found: Plan, splits: Splits, ranks: Ranks) -> tuple[int, ...]:
    """Bytes that each device's program of a plan allocates."""
    step = training_graph(found.model.graph, replace(ranks.train, guard=True))
    size, own = found.machine.size, find_target(ranks.target)
    devices = rank_memory(step, splits, size, own, exact=ranks.exact, cache_dir=ranks.cache_dir)
    return tuple(kept_bytes(memory) for memory in devices)


def _planned(simulator: Simulator, found: Found, bound: Bound | None, names: Sequence[str], slots: int) -> Plan:
    problem = simulator.problem
    times = {
        name: found.starts[name] / 1e6 if np.isinf(found.starts[name]) else found.times[name] / 1e6 for name in names
    }
    return Plan(
        problem.model, problem.machine, problem.space.strategy(found.choice), simulator, found.choice, times, bound,
        found.report.stop_reason, found.report.seconds, found.report.trials, slots=slots,
    )  # fmt: skip


def _measured(found: Plan, allocated: tuple[int, ...], ranks: Ranks) -> Plan:
    """The plan, whose programs need what is ``allocated``, or data parallelism where that is faster as measured with
    random data, or alone has room.

    Raises PlanError where neither has room on the devices.
    """
    graph, plain = found.model.graph, data_parallel(found.model, found.machine)
    strategies = {"plan": found.strategy} if found.is_data_parallel else {"plan": found.strategy, PLAIN: plain}
    plans = {name: splits_of(found.model, strategy) for name, strategy in strategies.items()}
    needed = {name: allocated if name == "plan" else _needed(found, own, ranks) for name, own in plans.items()}
    room = [device.memory for device in found.machine.devices]
    fitting = {n: p for n, p in plans.items() if all(a <= b for a, b in zip(needed[n], room, strict=True))}
    if not fitting:
        least = min(max(each) for each in needed.values())
        raise PlanError(f"plan for '{found.machine.name}': a device needs {least} bytes; there are {min(room)}")
    used, seconds = next(iter(fitting)), dict[str, float]()
    if len(fitting) > 1:
        used, seconds = faster_plan(
            graph, step_inputs(graph, ranks.train), ranks.train, fitting, found.machine.size, kind=ranks.kind,
            threads=ranks.threads, steps=ranks.steps, timeout=ranks.timeout, target=ranks.target, exact=ranks.exact,
            cache_dir=ranks.cache_dir, clock=ranks.clock,
        )  # fmt: skip
    measured = {name: 1e3 * took for name, took in seconds.items()}
    choice = found.simulator.problem.space.choice(strategies[used])
    return replace(found, strategy=strategies[used], choice=choice, measured=measured, allocated=needed[used])


def step_inputs(graph: Graph, train: Train, seed: int = 0) -> dict[str, np.ndarray]:
    """A random batch for a step of training, by name, labels among it."""
    step = training_graph(graph, train)
    specs = [
        TensorSpec(name, step.types[name].shape, step.types[name].dtype)
        for name in step.inputs
        if name not in step.states
    ]
    domains = input_domains(step)
    for number, count, _ in noted_labels(graph, train):
        if number is not None and count is not None:
            domains[step.inputs[number]] = (0, count - 1)
    return random_inputs(specs, seed, domains)


def data_parallel_splits(graph: Graph, ranks: int, parameters: Sequence[str] | None = None) -> Splits:
    """The splits of data parallelism over so many devices of this machine."""
    model = operations(graph, parameters)
    return splits_of(model, data_parallel(model, find_machine(f"host:{ranks}")))


def read_plan(text: str, graph: Graph, ranks: int, parameters: Sequence[str] | None = None) -> Splits:
    """The splits of a strategy's text for a graph, on so many devices of this machine.

    Raises PlanError naming the line, for a strategy of another model or of another number of devices.
    """
    model = operations(graph, parameters)
    return splits_of(model, parse_strategy(text, model, find_machine(f"host:{ranks}")))

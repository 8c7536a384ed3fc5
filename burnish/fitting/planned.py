"""Planning of training and inference on many devices: a strategy, its simulated step, memory, bound, and comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from burnish.base.arguments import check_count, check_number, refusal, typed
from burnish.driver.importing import import_model
from burnish.errors import PlanError
from burnish.fitting.ranks import faster_plan
from burnish.fitting.single import import_batch
from burnish.frontend.torch.export import import_torch, is_network
from burnish.frontend.torch.signature import CallSignature
from burnish.graph.domain import input_domains
from burnish.graph.graph import Graph
from burnish.graph.specialize import graph_at
from burnish.machines.target import target as find_target
from burnish.measure.samples import random_inputs
from burnish.parallel.model.costs import Costs, Roofline
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import OperationGraph, operations
from burnish.parallel.model.presets import machine as find_machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Strategy, micro_batches_of, parse_strategy
from burnish.parallel.programs.alternatives import (
    RECOMPUTED,
    SPLITS,
    SearchRequest,
    SimulatedStrategy,
    pipelined,
    split,
)
from burnish.parallel.programs.calibration import LaunchConfig, calibrate, optimizer_slots
from burnish.parallel.programs.micro import micro_graph
from burnish.parallel.programs.parallel_plan import Plan
from burnish.parallel.programs.plans import Stages, TensorSplits, splits_of, stages_of
from burnish.parallel.programs.ranks import Settings, kept_bytes, plan_memory
from burnish.parallel.simulate.baselines import data_parallel, expert, model_parallel
from burnish.parallel.simulate.bound import lower_bound
from burnish.parallel.simulate.search import PlanObjective
from burnish.parallel.simulate.simulate import Simulator
from burnish.parallel.simulate.taskgraph import Problem
from burnish.runtime.steps import TensorSpec
from burnish.search.budget import Event
from burnish.train.step import Train, noted_labels, parameters_of, training_graph

BASELINES: Mapping[str, Callable[[OperationGraph, DeviceCluster], Strategy]] = {
    "data parallel": data_parallel, "expert": expert, "model parallel": model_parallel,
}  # fmt: skip


ROOFLINE, FASTEST = Roofline(), PlanObjective()
PLAIN = "data parallelism"
AGAIN = 2  # searches more where the programs of what was found have no room, each within less


@typed
def plan(
    model: Any,
    example_inputs: Any = None,
    train: Train | None = None,
    devices: str | Path | DeviceCluster = "host:2",
    *,
    seconds: float = 10.0,
    seed: int = 0,
    groups: Sequence[Sequence[str]] = (),
    parameters: Sequence[str] | None = None,
    costs: Costs = ROOFLINE,
    synchronization: str = "overlapped",
    sparse: bool = False,
    objective: PlanObjective = FASTEST,
    bound: bool = True,
    strided: bool = True,
    recompute: bool | None = None,
    pipelines: bool = True,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    dynamic: Any = None,
    progress: Callable[[Event], None] | None = None,
    measure: bool | LaunchConfig = False,
    deadline: float | None = None,
) -> Plan:
    """The fastest strategy found for a training step of ``model``, or for its inference, on ``devices``, which need not
    be there.

    ``model``, ``example_inputs``, ``train``, ``shapes``, ``dynamic``: as for :func:`burnish.compile`: an ONNX file or
    ``ModelProto``, a :class:`Graph`, or a network of PyTorch with example inputs; without ``train`` it is inference
    that is planned. Where dimensions are open it is planned at their hints; what :meth:`Plan.compile` makes of it takes
    all sizes. A file that leaves its batch open is planned for training by 32 rows, unless ``shapes`` says others.
    ``devices``: a preset such as "p100:4x4" or "host:2", a file cluster.toml, or a :class:`DeviceCluster`. ``groups``:
    names of nodes that form one operation each. ``synchronization``: "overlapped" ring all-reduces, or "after" the step
    and linear in replicas.
    Small spaces are searched whole after that, by branch and bound, for as many seconds again.
    ``sparse``: gradients of rows that an index picks are summed as rows. ``seconds``, ``seed``: of search.
    ``recompute``: whether a strategy beyond a device's memory may compute results again; None: where memory binds,
    as one of data parallelism, an expert's or a layer a device does not fit. ``pipelines``: whether pipelines
    (1F1B) are looked for as well, for half the seconds, if micro-batches of the model can be computed apart; for
    training alone, as recomputation.
    ``deadline``: when all searches end, by ``time.monotonic``, but for a fifth of the seconds that each of them has
    in any case; measuring puts it off.

    ``measure``: on cores of this machine, links and parts of operations are timed first, and the best splits, the best
    pipeline and data parallelism last, of which the fastest is returned;
    :class:`burnish.parallel.programs.calibration.LaunchConfig` says how to train.

    The plan is never predicted slower than data parallelism, if that fits the devices' memory: it is a start of the
    search. Raises PlanError, for one where nothing fits.

    >>> x, w = bn.sym.variable("x"), bn.sym.constant(np.ones(3, "f4"), "w")
    >>> graph = bn.sym.graph(bn.sym.sum(x * w, axis=-1), {"x": (2, 3)})
    >>> found = bn.plan(graph, None, bn.Train("mse", bn.SGD(0.1)), "host:2", seconds=0.1, pipelines=False)
    >>> found.machine.size, found.milliseconds <= found.baselines["data parallel"]
    (2, True)
    """
    check_number("plan: seconds", seconds, 0, open_below=True)
    check_count("plan: seed", seed, 0)
    if not isinstance(measure, (bool, LaunchConfig)):
        raise refusal("plan: measure", measure, "True, False, or a LaunchConfig")
    machine = devices if isinstance(devices, DeviceCluster) else find_machine(str(devices))
    ranks = (LaunchConfig() if measure is True else measure) or None
    if train is None and ranks is not None:
        train = ranks.train
    if train is not None:
        objective = replace(objective, slots=optimizer_slots(train))
    elif recompute:
        raise refusal("recompute", recompute, "None or False for inference, which has no results to compute again")
    imported = _imported(model, example_inputs, shapes, dynamic, train)
    graph, train = imported.graph, imported.train
    parameters = imported.parameters if parameters is None else parameters
    if ranks is not None:
        if train is not None and parameters is not None:
            train = replace(train, parameters=tuple(parameters))
        ranks = replace(ranks, train=train)
    found = operations(graph, parameters, groups)
    starts = {name: make(found, machine) for name, make in BASELINES.items()}
    if ranks is not None:
        began = time.monotonic()
        known = calibrate(StrategySpace(found, machine, strided=strided, also=[*starts.values()]), ranks)
        machine, costs = known.machine, known.costs
        deadline = None if deadline is None else deadline + time.monotonic() - began
    request = SearchRequest(
        graph, machine, costs, synchronization, sparse, objective, strided, parameters, groups, seconds, seed, progress,
        deadline, train is not None,
    )  # fmt: skip
    considered: dict[str, float | str] = {}
    made: list[SimulatedStrategy] = []

    def attempt(name: str, find: Callable[[], SimulatedStrategy]) -> SimulatedStrategy | None:
        """Notes an alternative, or why there is none."""
        try:
            own = find()
        except PlanError as error:
            considered[name] = str(error)
            return None
        if own.name not in considered:
            considered[own.name] = own.simulator.full(own.choice) / 1e6
            made.append(own)
        return own

    own = None if recompute else attempt(SPLITS, partial(split, request, found, starts, False))
    kept = own is not None and own.found is not None and all(np.isfinite(own.found.starts[name]) for name in starts)
    if recompute or (recompute is None and not kept and train is not None):
        attempt(RECOMPUTED, partial(split, request, found, starts, True))
    if pipelines and machine.size > 1 and train is not None:
        attempt("pipeline", partial(pipelined, request, train))
    if ranks is not None:
        made = [_with_room(own, request, starts, ranks) for own in made]
        considered.update((own.name, own.simulator.full(own.choice) / 1e6) for own in made)
    if not made:
        raise PlanError("; ".join(f"{name}: {reason}" for name, reason in considered.items()))
    times = _baselines(request, found, starts, made)
    plans = [_planned(request, own, times, considered, bound) for own in sorted(made, key=lambda own: own.cost)]
    chosen = plans[0] if ranks is None else _measured(plans, found, ranks)
    return replace(chosen, train=train, opened=imported.opened, signature=imported.signature)


@dataclass(frozen=True, eq=False)
class ModelToPlan:
    """A model that is imported to be planned: its ``graph`` at the hints, ``opened`` with the dimensions that are open,
    or None; its ``parameters``, where a network of PyTorch says which; and how it is trained, with these.
    """

    graph: Graph
    train: Train | None
    opened: Graph | None = None
    parameters: tuple[str, ...] | None = None
    signature: CallSignature | None = None


def _imported(
    model: Any,
    example_inputs: Any,
    shapes: Mapping[str, Sequence[int | str]] | None,
    dynamic: Any,
    train: Train | None,
) -> ModelToPlan:
    trains, signature = train is not None, None
    named = None if train is None else train.parameters
    weights: Collection[str] | None = None
    if is_network(model):
        if shapes is not None:
            raise refusal("shapes", shapes, "None for networks of PyTorch, whose example inputs say them")
        network = import_torch(model, example_inputs, dynamic, training=trains)
        graph, weights, signature = network.graph, network.parameters, None if trains else network.signature
        named = network.parameters if named is None and trains else named
    elif example_inputs is not None or dynamic is not None:
        name, found = ("dynamic", dynamic) if example_inputs is None else ("example_inputs", example_inputs)
        raise refusal(name, type(found).__name__, "None for models that are no network of PyTorch")
    else:
        imported = import_batch(model, None, shapes) if trains else import_model(model, shapes)
        graph, weights = imported.graph, imported.weights
    opened = graph if graph.dims else None
    graph = graph_at(graph, {d.name: d.hint for d in graph.dims})
    train = None if train is None else replace(train, parameters=parameters_of(graph, train, weights))
    return ModelToPlan(graph, train, opened, named, signature)


def _with_room(
    own: SimulatedStrategy, request: SearchRequest, starts: Mapping[str, Strategy], ranks: LaunchConfig
) -> SimulatedStrategy:
    """The alternative, or splits found within less where those of it need more than there is for their programs."""
    for _ in range(AGAIN if own.name == SPLITS else 0):
        try:
            needed = _needed(request.graph, splits_of(own.model, own.strategy), request.machine, ranks)
            over = max(a / b.memory for a, b in zip(needed, request.machine.devices, strict=True))
            if over <= 1:
                break
            request = replace(request, objective=replace(request.objective, share=request.objective.share / over))
            own = split(request, own.model, starts, False)
        except PlanError:  # nothing is estimated to fit, or has a program: _measured tells what there is
            break
    return own


def _needed(
    graph: Graph, placed: TensorSplits | Stages, machine: DeviceCluster, ranks: LaunchConfig
) -> tuple[int, ...]:
    """Bytes that each device's program allocates. Raises PlanError."""
    guarded = None if ranks.train is None else replace(ranks.train, skip_nonfinite=True)
    settings = Settings(ranks.exact, ranks.cache_dir)
    found = plan_memory(graph, guarded, placed, machine.size, find_target(ranks.target), settings)
    return tuple(kept_bytes(memory) for memory in found)


def _baselines(
    request: SearchRequest, model: OperationGraph, starts: Mapping[str, Strategy], made: Sequence[SimulatedStrategy]
) -> dict[str, float]:
    """Milliseconds of the starts, inf where one does not fit."""
    known = next((own for own in made if own.found is not None), None)
    simulator = Simulator(request.problem(model, starts, False)) if known is None else known.simulator
    choices = {name: simulator.problem.space.choice(strategy) for name, strategy in starts.items()}
    fits = {n: not request.objective.memory or simulator.fits(c, request.objective.slots) for n, c in choices.items()}
    return {name: simulator.full(choice) / 1e6 if fits[name] else np.inf for name, choice in choices.items()}


def _planned(
    request: SearchRequest,
    own: SimulatedStrategy,
    times: Mapping[str, float],
    considered: Mapping[str, float | str],
    bound: bool,
) -> Plan:
    best = lower_bound(own.simulator.problem) if bound and own.found is not None else None
    return Plan(
        request.graph, own.model, request.machine, own.strategy, own.simulator, own.choice, times, best,
        own.stop_reason, own.seconds, own.trials, considered, own.name, slots=request.objective.slots,
    )  # fmt: skip


def _measured(found: Sequence[Plan], model: OperationGraph, ranks: LaunchConfig) -> Plan:
    """Fastest of the plans and data parallelism as measured with random data, among those with room.

    Raises PlanError where none has room on the devices.
    """
    graph, machine = found[0].graph, found[0].machine
    plain = data_parallel(model, machine)
    plans: dict[str, Plan] = {}
    for own in found:
        plans.setdefault("pipeline" if own.is_pipeline else "plan", own)
    placements = {name: own.placement for name, own in plans.items()}
    if not any(own.is_data_parallel for own in plans.values()):
        placements[PLAIN] = splits_of(model, plain)
    needed, refused = dict[str, tuple[int, ...]](), list[PlanError]()
    for name, placed in placements.items():
        try:
            needed[name] = _needed(graph, placed, machine, ranks)
        except PlanError as error:
            refused.append(error)
    room = [device.memory for device in machine.devices]
    fitting = {n: placements[n] for n in needed if all(a <= b for a, b in zip(needed[n], room, strict=True))}
    if not fitting:
        if not needed:
            raise refused[0]
        least = min(max(each) for each in needed.values())
        raise PlanError(f"plan for '{machine.name}': a device needs {least} bytes; there are {min(room)}")
    used, seconds = next(iter(fitting)), dict[str, float]()
    if len(fitting) > 1:
        used, seconds = faster_plan(graph, step_inputs(graph, ranks.train), fitting, machine.size, ranks)
    measured = {name: 1e3 * took for name, took in seconds.items()}
    if used in plans:
        return replace(plans[used], measured=measured, allocated=needed[used])
    base = next((own for own in plans.values() if not own.is_pipeline), None)
    simulator = _simulator(found[0], model, plain) if base is None else base.simulator
    choice = simulator.problem.space.choice(plain)
    return replace(
        base or found[0], name=PLAIN, model=model, strategy=plain, simulator=simulator, choice=choice,
        measured=measured, allocated=needed[used],
    )  # fmt: skip


def _simulator(of: Plan, model: OperationGraph, strategy: Strategy) -> Simulator:
    """Simulator of a strategy, with the costs of a plan, for where only a pipeline was found."""
    old = of.simulator.problem
    return Simulator(
        Problem(StrategySpace(model, of.machine, strided=False, also=[strategy]), old.costs, old.synchronization)
    )


def step_inputs(graph: Graph, train: Train | None, seed: int = 0) -> dict[str, np.ndarray]:
    """A random batch for a step of training, by name, labels among it; for one of inference without ``train``."""
    step = graph if train is None else training_graph(graph, train)
    specs = [
        TensorSpec(name, step.types[name].shape, step.types[name].dtype)
        for name in step.inputs
        if name not in step.states
    ]
    domains = input_domains(step)
    for number, count, _ in [] if train is None else noted_labels(graph, train):
        if number is not None and count is not None:
            domains[step.inputs[number]] = (0, count - 1)
    return random_inputs(specs, seed, domains)


def data_parallel_splits(graph: Graph, ranks: int, parameters: Sequence[str] | None = None) -> TensorSplits:
    """Splits of data parallelism over ``ranks`` devices of this machine."""
    model = operations(graph, parameters)
    return splits_of(model, data_parallel(model, find_machine(f"host:{ranks}")))


def read_plan(text: str, graph: Graph, ranks: int, parameters: Sequence[str] | None = None) -> TensorSplits | Stages:
    """Splits or pipeline of a strategy's text for a graph, on ``ranks`` devices of this machine.

    Raises PlanError naming the line, for a strategy of another model or of another number of devices, and for a
    pipeline's micro-batches that the model's batch cannot be divided into.
    """
    count = micro_batches_of(text)
    model = operations(graph if count is None else micro_graph(graph, count), parameters)
    strategy = parse_strategy(text, model, find_machine(f"host:{ranks}"))
    return splits_of(model, strategy) if count is None else stages_of(model, strategy)

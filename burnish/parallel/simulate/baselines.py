"""Baseline strategies: data, model, expert-designed (thesis-jia section 3.7.2) and pipeline parallelism.

Expert-designed: one weird trick for networks with convolutions (Krizhevsky 2014: data parallel, but operations of many
parameters and little else split by parameters), and for recurrent ones a layer a device within a node, data parallel
over nodes (Wu et al. 2016, GNMT).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.errors import PlanError
from burnish.ops import operator_named
from burnish.parallel.model.machine import DeviceCluster
from burnish.parallel.model.operations import Operation, OperationGraph, micro_batches
from burnish.parallel.model.strategy import Configuration, Strategy, split

DENSE = 64  # elements of parameters for each element of a sample's result: from here on a layer is dense


def data_parallel(model: OperationGraph, machine: DeviceCluster) -> Strategy:
    """Every operation split by samples over all devices."""
    everything = range(machine.size)
    return Strategy({op.name: split(op, {"sample": machine.size}, everything) for op in model.operations})


def model_parallel(model: OperationGraph, machine: DeviceCluster) -> Strategy:
    """Every operation whole on one device, in blocks of about equal arithmetic in the order of the model."""
    weights = [1.0 + work_of(op) for op in model.operations]
    total, done = sum(weights), 0.0
    chosen = {}
    for op, weight in zip(model.operations, weights, strict=True):
        device = min(int((done + weight / 2) * machine.size / total), machine.size - 1)
        chosen[op.name] = Configuration((1,) * len(op.axes), (device,))
        done += weight
    return Strategy(chosen)


def expert(model: OperationGraph, machine: DeviceCluster) -> Strategy:
    """The expert-designed strategy of the model's kind: recurrent or not."""
    recurrent = [op for op in model.operations if any(operator_named(n.op).traits.recurrent for n in op.nodes)]
    return _layers(model, machine) if recurrent else one_weird_trick(model, machine)


def one_weird_trick(model: OperationGraph, machine: DeviceCluster) -> Strategy:
    """Data parallel, but dense layers split by their parameters over all devices."""
    chosen = {}
    for op in model.operations:
        roles = {"parameter": machine.size} if _is_dense(op, machine.size) else {"sample": machine.size}
        chosen[op.name] = split(op, roles, range(machine.size))
    return Strategy(chosen)


def _is_dense(op: Operation, devices: int) -> bool:
    """Whether it has far more parameters than results a sample, along an axis that is long enough."""
    axes = [a.extent for a in op.axes if a.role == "parameter"]
    samples = next((a.extent for a in op.axes if a.role == "sample"), 1)
    held = sum(op.types[name].size for name in op.parameters)
    results = op.types[op.outputs[0]].size // samples
    return bool(axes) and max(axes) >= devices and held >= DENSE * max(results, 1)


def _layers(model: OperationGraph, machine: DeviceCluster) -> Strategy:
    """A layer (the operations that share weights) on one device of every node, samples split over the nodes."""
    nodes, per_node = len(machine.nodes), min(map(len, machine.nodes))
    layers: dict[tuple[str, ...], int] = {}
    chosen = {}
    for op in model.operations:
        number = layers.setdefault(op.parameters or (op.name,), len(layers)) % per_node
        chosen[op.name] = split(op, {"sample": nodes}, [node[number] for node in machine.nodes])
    return Strategy(chosen)


def work_of(op: Operation) -> float:
    """A measure of an operation's arithmetic for balancing: elements of results times parameters a result."""
    samples = next((a.extent for a in op.axes if a.role == "sample"), 1)
    results = float(op.types[op.outputs[0]].size)
    return results + samples * sum(op.types[name].size for name in op.parameters)


# --- pipelines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineStrategy:
    """A pipeline: the model of all micro-batches and its strategy, that of one micro-batch, and the order of tasks for
    the problem.
    """

    model: OperationGraph
    strategy: Strategy
    own: Strategy
    order: tuple[tuple[int, int], ...]


def pipeline(
    model: OperationGraph, machine: DeviceCluster, stages: int, count: int, begins: Sequence[int] | None = None
) -> PipelineStrategy:
    """Stages on consecutive devices, ``count`` micro-batches of the model's size, by 1F1B.

    ``begins``: the first operation of each stage but the first; None: stages of about equal arithmetic. Stage s of S
    works on at most S - s micro-batches at a time (PipeDream-Flush, Narayanan et al. 2021): the forward task of batch
    k + S - s waits for the backward one of batch k. Within a stage samples are split. Raises PlanError unless the
    stages divide the devices.
    """
    if not 1 <= stages <= min(machine.size, len(model.operations)) or machine.size % stages:
        raise PlanError(
            f"{stages} stages on {machine.size} devices, {len(model.operations)} operations; allowed: a number of "
            "operations or fewer that divides the devices"
        )
    each = machine.size // stages
    begins = equal_stages(model, stages) if begins is None else begins
    stage = [bisect_right(begins, i) for i in range(len(model.operations))]
    whole = micro_batches(model, count)
    chosen, own = {}, {}
    for i, op in enumerate(whole.operations):
        first = stage[i % len(stage)] * each
        chosen[op.name] = split(op, {"sample": each}, range(first, first + each))
        if i < len(stage):
            own[model.operations[i].name] = chosen[op.name]
    made = {name: i for i, op in enumerate(model.operations) for name in op.outputs}
    order = []
    for i, op in enumerate(model.operations):
        if any(stage[made[name]] == stage[i] for name in op.inputs if name in made):
            continue
        flight = stages - stage[i]
        order += [(k * len(stage) + i, (k + flight) * len(stage) + i) for k in range(count - flight)]
    return PipelineStrategy(whole, Strategy(chosen), Strategy(own, count), tuple(order))


def equal_stages(model: OperationGraph, stages: int) -> list[int]:
    """The first operation of each stage but the first, for stages of about equal arithmetic, none of them empty."""
    weights = [work_of(op) for op in model.operations]
    total, done = sum(weights), 0.0
    found: list[int] = []
    for i, weight in enumerate(weights):
        left = len(weights) - i
        wanted = min(int((done + weight / 2) * stages / total), stages - 1)
        if i and len(found) < stages - 1 and (wanted > len(found) or left == stages - 1 - len(found)):
            found.append(i)
        done += weight
    return found

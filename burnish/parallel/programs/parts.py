"""Operator parts as graphs of their own, to be compiled and timed: what one device computes of an operation.

A part's graph is what :mod:`burnish.parallel.programs.program` makes of the operation alone, forward or backward, for
the device of a largest part: so boxes, halos, terms of sums and the order in which gradients are packed are those of a
step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from burnish.graph.decompose import decompose
from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.loops.expr import FLOATS
from burnish.parallel.model.operations import Operation, OperationGraph
from burnish.parallel.model.placement import TensorSplit, added_up, split_of_boxes
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Configuration, Strategy
from burnish.parallel.programs.plans import TensorSplits, splits_of
from burnish.parallel.programs.program import BUCKET, DeviceProgram, programs
from burnish.parallel.simulate.assign import assign


@dataclass(frozen=True, eq=False)
class OperationPart:
    """One device's share of an operation: the forward task, or the backward one, which computes gradients of its
    parameters and, with ``gradient``, of its inputs. ``degrees``: parts along the operation's axes.
    """

    op: Operation
    degrees: tuple[int, ...]
    backward: bool
    gradient: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Extents along the axes of a largest part."""
        return tuple(-(-axis.extent // degree) for axis, degree in zip(self.op.axes, self.degrees, strict=True))

    @property
    def wanted(self) -> tuple[str, ...]:
        """Tensors whose gradients the backward task computes."""
        names = [*self.op.inputs, *self.op.parameters] if self.gradient else [*self.op.parameters]
        return tuple(name for name in names if self.op.types[name].dtype in FLOATS)


def parts_of(space: StrategySpace, trains: bool = True) -> list[OperationPart]:
    """The parts of all configurations of a space, each once: forward, and in training also backward."""
    model = space.model
    made = {name for op in model.operations for name in op.outputs}
    found: dict[tuple[str, tuple[int, ...], bool], OperationPart] = {}
    for members in space.classes:
        op, first = model.operations[members[0]], int(space.first[members[0]])
        gradient = any(name in made for name in op.inputs)
        for number in range(int(space.count[members[0]])):
            for backward in (False, True) if trains else (False,):
                part = OperationPart(op, space.configuration(first + number).degrees, backward, gradient)
                found.setdefault((op.signature, part.sizes, backward), part)
    return list(found.values())


def part_program(model: OperationGraph, part: OperationPart) -> DeviceProgram | None:
    """The program of a part, whose inputs are what its device reads; None for a backward task with nothing to do.

    Raises UnsupportedOperator for an operation without a gradient, PlanError for degrees that do not fit it.
    """
    whole = _operation_graph(model, part.op)
    count = prod(part.degrees)
    single = OperationGraph(whole, (part.op,), frozenset(part.op.parameters))
    plan = splits_of(single, Strategy({part.op.name: Configuration(part.degrees, tuple(range(count)))}))
    device = 0
    for degree in part.degrees:  # the part in the middle along every axis, as costs.largest_parts has it
        device = device * degree + degree // 2
    if not part.backward:
        return _program_of(whole, plan, count, device, {})
    floats = [name for name in part.op.outputs if part.op.types[name].dtype in FLOATS]
    if not floats or not part.wanted:
        return None
    found = _backward(gradients(whole, floats, part.wanted), part.op, part.wanted)
    if not found.nodes:
        return None
    given = {name: added_up(split) for name, split in plan.splits.items()}
    given |= {f"{name}.seed": given[name] for name in floats}
    for name, boxes in assign(decompose(whole), plan.splits, count, plan.inner).held.items():
        split = split_of_boxes(whole.types[name].shape, boxes)
        given |= {} if split is None else {name: split}
    given = {name: split for name, split in given.items() if name in found.inputs}
    return _program_of(found, TensorSplits({}), count, device, given)


def _operation_graph(model: OperationGraph, op: Operation) -> Graph:
    """An operation's nodes as a graph: activations and parameters are inputs."""
    b = GraphBuilder()
    made = {name for node in op.nodes for name in node.outputs}
    for name in dict.fromkeys(name for node in op.nodes for name in node.inputs if name not in made):
        if name in model.graph.constants and name not in op.parameters:
            b.constant(model.graph.constants[name], name)
        else:
            b.input(name, op.types[name].shape, op.types[name].dtype)
    for node in op.nodes:
        _copy(b, node)
    return b.build(*op.outputs)


def _backward(whole: Graph, op: Operation, wanted: Sequence[str]) -> Graph:
    """The backward nodes alone, which read what the forward task left."""
    forward = {name for node in op.nodes for name in node.outputs}
    last = [node for node in whole.nodes if node.outputs[0] in whole.outputs[-len(wanted) :]]
    found = [node.inputs[0] for node in last]  # those of identity, which only names a gradient
    needed, kept = {*found}, list[Node]()
    for node in reversed(whole.nodes):
        if needed & {*node.outputs} and not {*node.outputs} & forward:
            kept.insert(0, node)
            needed.update(node.inputs)
    b = GraphBuilder()
    made = {name for node in kept for name in node.outputs}
    for name in dict.fromkeys(name for node in kept for name in node.inputs if name not in made):
        if name in whole.constants:
            b.constant(whole.constants[name], name)
        else:
            b.input(name, whole.types[name].shape, whole.types[name].dtype)
    for node in kept:
        _copy(b, node)
    return b.build(*[name for name in dict.fromkeys(found) if name in made])


def _copy(b: GraphBuilder, node: Node) -> None:
    b.add_many(node.op, *node.inputs, names=node.outputs, node=node.name, **node.attrs)


def _program_of(
    graph: Graph, plan: TensorSplits, devices: int, device: int, given: Mapping[str, TensorSplit]
) -> DeviceProgram:
    """Program of one device, in which sends are outputs, and receipts inputs, like any other."""
    return programs(graph, plan.splits, devices, BUCKET, plan.inner, given)[device]

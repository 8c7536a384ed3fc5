"""Operations of a model to place: groups of a graph's nodes, and the axes along which each may be split (SOAP).

Source: thesis-jia section 3.3: sample, attribute and parameter dimensions of an operator's output (table 3.1); here
they follow from its definition, as does the sum that may be split (``reduction``: parts of it are added up).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from burnish.errors import PlanError
from burnish.graph.graph import Graph, Node, TensorType
from burnish.loops.expr import FLOATS, Reduce
from burnish.ops.classify import elementwise_inputs, fusion_class, is_view
from burnish.ops.reads import Boxes, Interval, Region, boxes_between, merged, read_regions, whole
from burnish.ops.reads import volume as volume_of
from burnish.parallel.model.values import reads_of

MAX_AXES = 5
ROLES = ("sample", "attribute", "parameter", "reduction")


@dataclass(frozen=True)
class SplitAxis:
    """A dimension that may be split. ``dim``: of the output; -1 for a reduction, then ``name`` is its variable."""

    name: str
    extent: int
    role: str
    dim: int


@dataclass(frozen=True)
class TensorEdge:
    """A tensor that one operation makes and another reads; numbers of operations."""

    producer: int
    consumer: int
    tensor: str


@dataclass(frozen=True, eq=False)
class Operation:
    """Nodes that run as one task for each part of their result.

    ``outputs``: the tensors that others read, all split alike along ``axes``; ``inputs``: activations that it reads;
    ``parameters``: what is trained of what it reads. ``signature``: equal for equal definitions, shapes and attributes.
    Of a micro-batch, ``micro_batches`` is how many there are, and ``whole_name`` its name in the whole model.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[SplitAxis, ...]
    types: Mapping[str, TensorType]
    signature: str
    micro_batches: int = 1
    whole_name: str = ""

    def regions(self, intervals: Sequence[Interval]) -> dict[str, Region]:
        """Tensor -> the region of it that a part computes or reads, for each column of intervals of its axes."""
        columns = intervals[0][0].shape[0] if intervals else 1
        found: dict[str, list[Boxes]] = {}
        for name in self.outputs:
            box = whole(self.types[name].shape, columns)
            for axis, (low, high) in zip(self.axes, intervals, strict=True):
                if axis.dim >= 0:
                    box.low[axis.dim], box.high[axis.dim] = low, high
            found[name] = [boxes_between(box.low, box.high)]
        narrowed = {
            axis.name: span for axis, span in zip(self.axes, intervals, strict=True) if axis.dim < 0
        }  # fmt: skip
        for node in reversed(self.nodes):
            wanted = {i: merged(found[name]) for i, name in enumerate(node.outputs) if name in found}
            if not wanted:
                continue
            types = [self.types[name] for name in node.inputs]
            own = narrowed if node is self.nodes[-1] else {}
            shapes = [t.shape for t in types]
            for operand, region in read_regions(reads_of(node, types), shapes, wanted, own).items():
                found.setdefault(node.inputs[operand], []).extend(region)
        return {name: merged(boxes) for name, boxes in found.items()}

    def full(self, columns: int) -> list[Interval]:
        """Intervals of all axes, unsplit."""
        return [(np.zeros(columns, np.int64), np.full(columns, a.extent, np.int64)) for a in self.axes]


@dataclass(frozen=True, eq=False)
class OperationGraph:
    """Operation graph: operations in topological order, and the names of its parameters."""

    graph: Graph
    operations: tuple[Operation, ...]
    parameters: frozenset[str]

    @cached_property
    def index(self) -> dict[str, int]:
        """Number of an operation by its name."""
        return {op.name: i for i, op in enumerate(self.operations)}

    @cached_property
    def edges(self) -> tuple[TensorEdge, ...]:
        """Tensors between operations, in order of their consumers."""
        made = {name: i for i, op in enumerate(self.operations) for name in op.outputs}
        return tuple(TensorEdge(made[t], j, t) for j, op in enumerate(self.operations) for t in op.inputs if t in made)

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """Parameter -> the operations that read it: several where weights are shared."""
        found: dict[str, list[int]] = {}
        for i, op in enumerate(self.operations):
            for name in op.parameters:
                found.setdefault(name, []).append(i)
        return {name: tuple(numbers) for name, numbers in found.items()}

    def blocks(self) -> list[list[int]]:
        """Operations of equal signature that share the same weights, or share none: repeated blocks of a model."""
        found: dict[tuple[str, frozenset[str]], list[int]] = {}
        for i, op in enumerate(self.operations):
            shared = frozenset(name for name in op.parameters if len(self.readers[name]) > 1)
            found.setdefault((op.signature, shared), []).append(i)
        return list(found.values())


def trained(graph: Graph) -> frozenset[str]:
    """The tensors taken for parameters unless they are named: float constants and states of a dimension or more."""
    names = [*graph.constants, *graph.states]
    return frozenset(n for n in names if graph.types[n].dtype in FLOATS and graph.types[n].shape)


def operations(
    graph: Graph, parameters: Collection[str] | None = None, groups: Sequence[Collection[str]] = ()
) -> OperationGraph:
    """The operations of a graph, folded: element-wise nodes of one activation join its producer, views their reader.

    ``parameters``: default :func:`trained`. ``groups``: names of nodes that form one operation each (a step of a
    recurrent layer). Raises PlanError for an unknown name, groups that wait for each other, and symbolic shapes.
    """
    if graph.dims:
        raise PlanError(f"a model with open dimensions {', '.join(d.name for d in graph.dims)}; allowed: fixed shapes")
    names = trained(graph) if parameters is None else frozenset(parameters)
    unknown = sorted(names - graph.types.keys())
    if unknown:
        raise PlanError(f"parameter '{unknown[0]}' is no tensor of the model; allowed: its constants and inputs")
    members = _ordered(graph, _folded(graph, names, _chosen(graph, groups)))
    readers = graph.consumers()
    known: dict[str, tuple[SplitAxis, ...]] = {}
    return OperationGraph(graph, tuple(_operation(graph, names, nodes, readers, known) for nodes in members), names)


def _chosen(graph: Graph, groups: Sequence[Collection[str]]) -> dict[str, int]:
    """Output of a node -> number of the group that was asked for."""
    by_name = {word: node for node in graph.nodes for word in (node.name, *node.outputs)}
    chosen: dict[str, int] = {}
    for number, group in enumerate(groups):
        for name in group:
            if name not in by_name:
                raise PlanError(f"group {number}: node '{name}'; allowed: names of the model's nodes")
            if chosen.setdefault(by_name[name].outputs[0], number) != number:
                raise PlanError(f"group {number}: node '{name}' is in another group too; allowed: each in one")
    return chosen


def _folded(graph: Graph, parameters: frozenset[str], chosen: Mapping[str, int]) -> list[int]:
    """For every node the number of its group: the first node's position, or beyond those for chosen groups."""
    position = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
    readers = graph.consumers()
    group = [
        len(graph.nodes) + chosen[n.outputs[0]] if n.outputs[0] in chosen else i for i, n in enumerate(graph.nodes)
    ]
    for i, node in enumerate(graph.nodes):
        if node.outputs[0] in chosen:
            continue
        made = [name for name in node.inputs if name in position]
        alone = len(made) == 1 and len(readers[made[0]]) == 1 and made[0] not in graph.outputs
        if alone and _is_pointwise(graph, node, made[0]):
            group[i] = group[position[made[0]]]
    size = Counter(group)
    for i in reversed(range(len(graph.nodes))):  # views, the last first, so that chains of them join
        node = graph.nodes[i]
        users = readers[node.outputs[0]]
        single = len(users) == 1 and len(node.outputs) == 1 and node.outputs[0] not in graph.outputs
        if single and group[i] == i and size[i] == 1 and _is_view(graph, node):
            group[i] = group[position[users[0].outputs[0]]]
    return group


def _is_pointwise(graph: Graph, node: Node, made: str) -> bool:
    known = reads_of(node, [graph.types[name] for name in node.inputs])
    if known.opaque or len(node.outputs) != 1 or graph.types[made].shape != graph.types[node.outputs[0]].shape:
        return False
    operands = {f"x{i}" for i, name in enumerate(node.inputs) if name == made}
    return fusion_class(known.outputs) == "injective" and operands <= elementwise_inputs(known.outputs)


def _is_view(graph: Graph, node: Node) -> bool:
    known = reads_of(node, [graph.types[name] for name in node.inputs])
    return not known.opaque and is_view(known.outputs)


def _ordered(graph: Graph, group: Sequence[int]) -> list[list[Node]]:
    """The groups in topological order, their nodes in the graph's."""
    members: dict[int, list[Node]] = {}
    made: dict[str, int] = {}
    for number, node in zip(group, graph.nodes, strict=True):
        members.setdefault(number, []).append(node)
        made.update(dict.fromkeys(node.outputs, number))
    waits = {
        number: {made[t] for node in nodes for t in node.inputs if t in made} - {number}
        for number, nodes in members.items()
    }
    first = {number: list(group).index(number) for number in members}
    ordered: list[int] = []
    done: set[int] = set()
    pending = sorted(members, key=lambda number: first[number])
    while pending:
        free = next((n for n in pending if waits[n] <= done), None)
        if free is None:
            names = ", ".join(members[n][0].outputs[0] for n in pending[:4])
            raise PlanError(f"groups that wait for each other: those of {names}; allowed: groups without circles")
        pending.remove(free)
        ordered.append(free)
        done.add(free)
    return [members[number] for number in ordered]


def _operation(
    graph: Graph,
    parameters: frozenset[str],
    nodes: Sequence[Node],
    readers: Mapping[str, Sequence[Node]],
    known: dict[str, tuple[SplitAxis, ...]],
) -> Operation:
    """The operation of a group of nodes; ``known``: axes by signature."""
    own = {name for node in nodes for name in node.outputs}
    inside = {id(node) for node in nodes}
    outputs = [
        name
        for node in nodes
        for name in node.outputs
        if name in graph.outputs or any(id(reader) not in inside for reader in readers[name])
    ] or [nodes[-1].outputs[0]]
    outputs.sort(key=lambda name: name not in nodes[-1].outputs)
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name not in own)
    activations = tuple(n for n in read if n not in parameters and n not in graph.constants)
    types = {name: graph.types[name] for node in nodes for name in (*node.inputs, *node.outputs)}
    bare = Operation(
        outputs[0], tuple(nodes), activations, tuple(n for n in read if n in parameters), tuple(outputs), (), types, ""
    )
    signature = _signature(bare, graph)
    if signature not in known:
        known[signature] = _axes(bare)
    return replace(bare, axes=known[signature], signature=signature)


def _axes(op: Operation) -> tuple[SplitAxis, ...]:
    """The axes of an operation: the dimensions that all its results have, by role, and the sum of its last node."""
    last = op.nodes[-1]
    known = reads_of(last, [op.types[name] for name in last.inputs])
    shape = op.types[op.outputs[0]].shape
    if known.opaque:
        return ()
    dims = [
        d
        for d, extent in enumerate(shape)
        if extent > 1 and all(d < len(s) and s[d] == extent for s in (op.types[n].shape for n in op.outputs))
    ]
    if len(dims) > MAX_AXES - 1:
        dims = sorted([dims[0], *sorted(dims[1:], key=lambda d: -shape[d])[: MAX_AXES - 2]])
    names = _names(op, len(shape))
    axes = [SplitAxis(names[d], shape[d], "attribute", d) for d in dims]
    axes = [SplitAxis(a.name, a.extent, _role(op, axes, i), a.dim) for i, a in enumerate(axes)]
    body = known.outputs[0].body
    if isinstance(body, Reduce) and body.kind == "sum" and len(op.outputs) == len(last.outputs) == 1:
        longest = max(body.axes, key=lambda a: a.extent)
        if longest.extent > 1 and len(axes) < MAX_AXES:
            axes.append(SplitAxis(f"{known.outputs[0].name}.{longest.var.name}", int(longest.extent), "reduction", -1))
    return tuple(axes)


def _names(op: Operation, rank: int) -> tuple[str, ...]:
    """Names of the dimensions: those of the first node that has such a result."""
    shape = op.types[op.outputs[0]].shape
    for node in op.nodes:
        known = reads_of(node, [op.types[name] for name in node.inputs])
        if op.types[node.outputs[0]].shape == shape and len(known.axes[0]) == rank:
            return known.axes[0]
    return tuple(f"d{d}" for d in range(rank))


def _role(op: Operation, axes: Sequence[SplitAxis], number: int) -> str:
    """Role of an axis, one of ROLES: compares what is read for all of it and for its first half."""
    asked = replace(op, axes=tuple(axes))
    spans = asked.full(2)
    spans[number] = (np.zeros(2, np.int64), np.array([axes[number].extent, axes[number].extent // 2]))
    regions = asked.regions(spans)
    for name in op.parameters:
        if name in regions and volume_of(regions[name])[0] != volume_of(regions[name])[1]:
            return "parameter"
    if axes[number].dim != 0:
        return "attribute"
    own = spans[number]
    for name in op.inputs:
        for box in regions.get(name, ()):
            if not (box.low.shape[0] and (box.low[0] == own[0]).all() and (box.high[0] == own[1]).all()):
                return "attribute"
    return "sample"


def _signature(op: Operation, graph: Graph) -> str:
    """Nodes with their attributes and types, tensors numbered in order of their appearance."""
    number: dict[str, int] = {}
    words = []
    for node in op.nodes:
        inputs = [
            f"{'w' if n in op.parameters else 'g' if n in graph.inputs else 't'}{number.setdefault(n, len(number))}:"
            f"{op.types[n]}"
            for n in node.inputs
        ]
        attrs = [f"{k}={v}" for k, v in sorted(node.attrs.items())]
        outputs = [f"{number.setdefault(n, len(number))}{'!' * (n in op.outputs)}" for n in node.outputs]
        words.append(f"{','.join(outputs)}={node.op}({','.join([*inputs, *attrs])})")
    return ";".join(words)


def micro_batches(model: OperationGraph, count: int) -> OperationGraph:
    """Gradient accumulation: a step of ``count`` batches of the model's size, gradients summed; its operations
    ``count`` times.

    Activations and operations of batch k have the suffix ``#k``; parameters are shared.
    """
    if count < 1:
        raise PlanError(f"{count} micro-batches; allowed: 1 or more")
    fixed = {*model.parameters, *model.graph.constants}

    def renamed(names: Sequence[str], k: int) -> tuple[str, ...]:
        return tuple(n if n in fixed else f"{n}#{k}" for n in names)

    made = []
    for k in range(count):
        for op in model.operations:
            nodes = tuple(replace(n, inputs=renamed(n.inputs, k), outputs=renamed(n.outputs, k)) for n in op.nodes)
            types = {renamed((name,), k)[0]: kind for name, kind in op.types.items()}
            (name,) = renamed((op.name,), k)
            made.append(
                replace(
                    op,
                    name=name,
                    nodes=nodes,
                    inputs=renamed(op.inputs, k),
                    outputs=renamed(op.outputs, k),
                    types=types,
                    micro_batches=count,
                    whole_name=op.name,
                )
            )
    return OperationGraph(model.graph, tuple(made), model.parameters)

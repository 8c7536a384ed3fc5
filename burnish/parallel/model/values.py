"""The values of a graph as parts see them: the definition of each, what a part reads, how axes index operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from burnish import ops
from burnish.graph.graph import Graph, Node, TensorType
from burnish.loops.expr import Expr, Reduce, Var
from burnish.loops.linear import to_linear
from burnish.loops.simplify import simplify
from burnish.loops.tensor import Tensor
from burnish.ops.classify import fusion_class
from burnish.ops.operator import Nested
from burnish.ops.part import Box, Reads, attributes_of, part_reads, sum_of, whole
from burnish.ops.reads import ReadMap, read_map


@dataclass(frozen=True)
class NodeOutput:
    """One output of a node."""

    node: Node
    number: int

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.node.outputs[self.number]


def reads_of(node: Node, types: Sequence[TensorType]) -> ReadMap:
    """Read map of a node whose inputs have these types."""
    return read_map(
        ops.operator_named, node.op, tuple(sorted(node.attrs.items())), tuple((t.shape, t.dtype) for t in types)
    )


class GraphValues:
    """The values of a graph by name, with what follows from their operators' definitions."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made = {name: NodeOutput(node, i) for node in graph.nodes for i, name in enumerate(node.outputs)}

    def __iter__(self) -> Iterator[NodeOutput]:
        return iter(self.made.values())

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        """Tensor name -> the nodes that read it."""
        return self.graph.consumers()

    def has_definition(self, node: Node) -> bool:
        """Whether a node can be computed in parts: it is neither opaque nor rounds of a body."""
        operator = ops.operator_named(node.op)
        return operator.extern is None and not operator.rounds

    def attributes(self, node: Node) -> Nested:
        """A node's attributes as pairs, defaults left out."""
        return attributes_of(ops.operator_named(node.op), node.attrs)

    def types(self, node: Node) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shapes and dtypes of a node's inputs."""
        return tuple((self.graph.types[name].shape, self.graph.types[name].dtype) for name in node.inputs)

    def tensor(self, value: NodeOutput) -> Tensor:
        """The definition of a value over placeholders ``x0``, ``x1``…"""
        return self.read_map(value.node).outputs[value.number]

    def read_map(self, node: Node) -> ReadMap:
        """Read map of a node."""
        return reads_of(node, [self.graph.types[name] for name in node.inputs])

    def kinds(self, node: Node) -> frozenset[str]:
        """The fusion classes of a node's outputs; "extern" without a definition."""
        if not self.has_definition(node):
            return frozenset({"extern"})
        return frozenset(fusion_class([self.tensor(NodeOutput(node, i))]) for i in range(len(node.outputs)))

    def summed(self, value: NodeOutput) -> tuple[int, ...]:
        """The extents of the axes of the sum that a value is, () if it is none that can be split."""
        return sum_of(self.tensor(value)).extents if self.has_definition(value.node) else ()

    def reads(self, value: NodeOutput, box: Box, reduced: Box) -> Reads:
        """Input regions of a part of a value."""
        node = value.node
        if not self.has_definition(node):
            return Reads(tuple(whole(shape) for shape, _ in self.types(node)), True)
        return part_reads(
            ops.operator_named, node.op, self.attributes(node), self.types(node), value.number, box, reduced
        )

    def axes_along(self, value: NodeOutput, position: int) -> list[int | None]:
        """Axis alignment: for every dimension of an input, the axis of a value that runs along it: dimensions first,
        then summed axes; None where there is none. Several indices, or one of several variables, count by the axis of
        the largest step.
        """
        tensor = self.tensor(value)
        numbers = {v.name: i for i, v in enumerate(tensor.axes)}
        body = tensor.body
        if isinstance(body, Reduce) and body.kind == "sum":
            numbers |= {f"{tensor.name}.{a.var.name}": len(tensor.axes) + i for i, a in enumerate(body.axes)}
        extents = [*tensor.shape, *self.summed(value)]
        ranges = {name: extents[i] for name, i in numbers.items()}
        found: list[int | None] = [None] * len(self.graph.types[value.node.inputs[position]].shape)
        for access in self.read_map(value.node).accesses:
            if (access.operand, access.output) != (position, value.number):
                continue
            for d, index in enumerate(access.indices):
                axis = _main_axis(simplify(index, ranges), numbers, extents)
                found[d] = axis if found[d] is None else found[d]
        return found


def _main_axis(index: Expr, numbers: dict[str, int], extents: list[int]) -> int | None:
    """The axis along which an index runs: itself, or the one whose steps reach furthest."""
    if isinstance(index, Var):
        return numbers.get(index.name)
    terms, _ = to_linear(index)
    best: tuple[int, int] | None = None
    for atom, coefficient in terms.items():
        for name in atom.variables:
            if name in numbers:
                reach = abs(coefficient) * extents[numbers[name]] if isinstance(atom, Var) else extents[numbers[name]]
                best = max(best, (reach, numbers[name])) if best is not None else (reach, numbers[name])
    return None if best is None else best[1]

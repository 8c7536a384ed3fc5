"""Micro-batches: the graph for one of several equal parts of a batch, from the graph for the whole.

What of every tensor belongs to a part follows from the definitions of operators, by interval analysis; so do attributes
that hold the size of the batch, such as the shape of a reshape: those with which the operator is the part's definition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from burnish import ops
from burnish.errors import ModelError, PlanError, UnsupportedOperator
from burnish.graph.graph import Attribute, Graph, GraphBuilder, Node, TensorType
from burnish.ops.part import Box, attributes_of, is_part, whole
from burnish.parallel.model.values import GraphValues, NodeOutput

ALLOWED = "allowed in a pipeline: operators that compute each sample of a batch by itself"


def micro_graph(graph: Graph, count: int) -> Graph:
    """``graph`` for one of ``count`` equal parts of the batch, which is dimension 0 of its inputs; names are the same.

    Constants of which each part would read its own rows are cut, if these rows are equal. Raises PlanError for a batch
    that cannot be divided so, and, naming the node, for one that mixes samples or takes its result from their position
    in the batch.
    """
    if count < 1:
        raise PlanError(f"{count} micro-batches; allowed: 1 or more")
    if graph.states or graph.dims:
        found = [*graph.states, *(d.name for d in graph.dims)]
        raise PlanError(f"micro-batches of a graph with states or open dimensions {found}; allowed: without")
    return graph if count == 1 else _Cutter(graph, count).run()


class _Cutter:
    """The graph of the first part under construction. ``axis``: the dimension of samples, of tensors that have one."""

    def __init__(self, graph: Graph, count: int) -> None:
        self.graph, self.count, self.values = graph, count, GraphValues(graph)
        self.b = GraphBuilder()
        self.b.trained = graph.trained
        self.axis: dict[str, int] = {}

    def run(self) -> Graph:
        """The graph."""
        cut = self._cut_constants()
        for name in self.graph.inputs:
            t = self.graph.types[name]
            if t.shape:
                if t.shape[0] % self.count:
                    found = f"input '{name}': {t.shape[0]} samples in {self.count} micro-batches"
                    raise PlanError(f"{found}; allowed: a number that divides them")
                self.axis[name] = 0
            self.b.input(name, self._shape(name), t.dtype)
        for name, value in self.graph.constants.items():
            self.b.constant(value, name)
        for node in self.graph.nodes:
            self._node(node, cut)
        return self.b.build(*self.graph.outputs)

    def _cut_constants(self) -> dict[str, np.ndarray]:
        """Constants whose first dimension may be cut, as all parts of it are equal: the part."""
        found = {}
        for name, value in self.graph.constants.items():
            if value.ndim and value.shape[0] and value.shape[0] % self.count == 0:
                part = value[: value.shape[0] // self.count]
                if all(np.array_equal(part, other) for other in np.split(value, self.count)):
                    found[name] = part
        return found

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape of a part's share of a tensor."""
        shape, axis = self.graph.types[name].shape, self.axis.get(name)
        return tuple(n // self.count if d == axis else n for d, n in enumerate(shape))

    def _box(self, name: str, axis: int | None, part: int) -> Box:
        """A part's share of a tensor, all of it without an axis."""
        box = list(whole(self.graph.types[name].shape))
        if axis is not None:
            size = box[axis][1] // self.count
            box[axis] = (part * size, (part + 1) * size)
        return tuple(box)

    def _node(self, node: Node, cut: dict[str, np.ndarray]) -> None:
        inputs, own = list(node.inputs), dict[str, int]()
        if any(name in self.axis for name in inputs):
            if not self.values.has_definition(node):
                raise PlanError(f"node '{node.name}' ({node.op}) has no definition; {ALLOWED}")
            for number, name in enumerate(node.outputs):
                axes = self._axes(NodeOutput(node, number), cut)
                if axes is None:
                    raise PlanError(f"node '{node.name}' ({node.op}) mixes the samples of a batch; {ALLOWED}")
                self.axis[name] = axes[0]
                own |= dict.fromkeys(axes[1], 0)
        for name in own:
            fresh = self.b.fresh(f"{name}.part")
            self.b.constant(np.ascontiguousarray(cut[name]), fresh)
            inputs = [fresh if n == name else n for n in inputs]
        self.b.add_many(node.op, *inputs, names=node.outputs, node=node.name, **self._attributes(node, inputs, own))

    def _axes(self, value: NodeOutput, cut: dict[str, np.ndarray]) -> tuple[int, list[str]] | None:
        """The dimension of samples of a value, and the constants of which a part reads its own rows."""
        for d, extent in enumerate(self.graph.types[value.name].shape):
            if extent and extent % self.count == 0:
                found = self._read_along(value, d, cut)
                if found is not None:
                    return d, found
        return None

    def _read_along(self, value: NodeOutput, d: int, cut: dict[str, np.ndarray]) -> list[str] | None:
        """Constants that are cut, if parts along a dimension read no more than their own samples, else None."""
        rows: set[str] = set()
        for part in dict.fromkeys((0, 1, self.count - 1)):
            boxes = self.values.reads(value, self._box(value.name, d, part), ()).boxes
            for name, box in zip(value.node.inputs, boxes, strict=True):
                if box is None:
                    continue
                axis = self.axis.get(name)
                own = self._box(name, 0 if axis is None and name in cut else axis, part)
                if axis is not None and box[axis] != own[axis]:
                    return None
                if axis is None and name in cut and box[0] == own[0]:
                    rows.add(name)
                elif axis is None and part and box != self._free(value, d, name):
                    return None
        return sorted(rows)

    def _free(self, value: NodeOutput, d: int, name: str) -> Box | None:
        """Box that the first part reads of a tensor common to all parts."""
        boxes = self.values.reads(value, self._box(value.name, d, 0), ()).boxes
        return boxes[value.node.inputs.index(name)]

    def _attributes(self, node: Node, inputs: Sequence[str], own: dict[str, int]) -> dict[str, Attribute]:
        """The attributes with which a node computes a part; its own where they do."""
        if not any(name in self.axis for name in node.outputs):
            return dict(node.attrs)
        given = [self._box(name, self.axis.get(name, own.get(name)), self.count - 1) for name in node.inputs]
        types = [self.b.types[name] for name in inputs]
        for attrs in _smaller(node.attrs, self.count):
            if self._is_part(node, types, attrs, given):
                return attrs
        raise PlanError(
            f"node '{node.name}' ({node.op}) computes by the position of a sample in the batch, or its attributes are "
            f"those of the whole batch; {ALLOWED}"
        )

    def _is_part(
        self, node: Node, types: Sequence[TensorType], attrs: dict[str, Attribute], given: Sequence[Box]
    ) -> bool:
        """Whether a node with these attributes computes the last part of its results."""
        try:
            found = ops.infer(node.op, [(t.shape, t.dtype) for t in types], attrs)
        except (ModelError, UnsupportedOperator):
            return False
        if [tuple(shape) for shape, _ in found] != [self._shape(name) for name in node.outputs]:
            return False
        operator = ops.operator_named(node.op)
        both = self.values.attributes(node), attributes_of(operator, attrs)
        parts = [
            (self._box(name, self.axis[name], 0), self._box(name, self.axis[name], self.count - 1))
            for name in node.outputs
        ]
        types_of = self.values.types(node)
        return all(is_part(ops.operator_named, node.op, both, types_of, i, p, given) for i, p in enumerate(parts))


def _smaller(attrs: Mapping[str, Attribute], count: int) -> Iterator[dict[str, Attribute]]:
    """The attributes, and those with one number or two of them divided by ``count``."""
    yield dict(attrs)
    places = [
        (key, i) for key, value in attrs.items() for i, n in enumerate(value if isinstance(value, tuple) else (value,))
        if isinstance(n, int) and not isinstance(n, bool) and n and n % count == 0
    ]  # fmt: skip
    for chosen in (*((place,) for place in places), *itertools.combinations(places, 2)):
        found = dict(attrs)
        for key, i in chosen:
            value = found[key]
            if isinstance(value, tuple):
                found[key] = (*value[:i], value[i] // count, *value[i + 1 :])  # type: ignore[operator]
            else:
                found[key] = value // count  # type: ignore[operator]
        yield found

"""Row locality: which nodes of a training graph work row by row, so that they can run on a part of the vertices.

It follows from the operators' definitions: whether what an element of a row reads lies in the same row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from burnish import ops
from burnish.graph.graph import Graph, Node
from burnish.loops.expr import Binary, Const, Expr, Load, Reduce, Var
from burnish.loops.sizes import is_size
from burnish.loops.tensor import Tensor, stages
from burnish.loops.traverse import transform
from burnish.ops.reads import accesses, bodies, defined

Kind = Literal["plain", "rows", "sum", "gather"]
REDUCTIONS = ("sum", "max", "min")  # whose results over parts of the rows make that over all


@dataclass(frozen=True)
class Axes:
    """Where vertices lie in the tensors of a graph: ``rows``, the axis whose extent is their number, by tensor.

    ``offsets`` and ``edges``: tensors with one element more than vertices, and those of other open extents.
    ``vertices``: the dimension.
    """

    rows: Mapping[str, int]
    offsets: frozenset[str]
    edges: frozenset[str]
    vertices: int

    @property
    def structure(self) -> frozenset[str]:
        """Tensors that are no rows, but differ from graph to graph."""
        return self.offsets | self.edges


@dataclass(frozen=True)
class Role:
    """Role of a node for rows: ``plain`` has none, ``rows`` maps rows to rows, ``sum`` reduces all of
    them by ``reduction``, ``gather`` reads other rows, those of its inputs ``gathered``.
    """

    kind: Kind
    gathered: frozenset[str] = frozenset()
    reduction: str = ""


def axes_of(graph: Graph, vertices: int) -> Axes:
    """Where vertices lie in a graph whose numbers of vertices, ``vertices``, and of edges are dimensions."""
    rows: dict[str, int] = {}
    offsets, edges = set(), set()
    for name, t in graph.types.items():
        axes = [d for d, extent in enumerate(t.shape) if is_size(extent)]
        if len(axes) == 1 and t.shape[axes[0]] == vertices:
            rows[name] = axes[0]
        elif len(axes) == 1 and t.shape[axes[0]] == vertices + 1:
            offsets.add(name)
        elif axes:
            edges.add(name)
    return Axes(rows, frozenset(offsets), frozenset(edges), vertices)


def role_of(node: Node, graph: Graph, axes: Axes, first: str | None = None) -> Role:
    """Role of a node for rows. ``first``: the tensor that holds the number of the first row, if there is one."""
    given, made = [n for n in node.inputs if n in axes.rows], [n for n in node.outputs if n in axes.rows]
    structure = axes.structure & {*node.inputs, *node.outputs}
    if not given and not made and not structure:
        return Role("plain")
    everything = frozenset(given)
    if ops.is_opaque(node.op):
        return Role("gather", everything)
    names = {f"x{i}": name for i, name in enumerate(node.inputs)}
    outputs = definition_of(node, graph)
    if structure:
        return Role("gather", _gathered(outputs, names, axes))
    own = {x: axes.rows[name] for x, name in names.items() if name in axes.rows}
    start = next((x for x, name in names.items() if name == first), None)
    found = {_reduced(t, own, axes.rows.get(name), axes.vertices, start)
             for t, name in zip(outputs, node.outputs, strict=True)}  # fmt: skip
    (reduction, *others) = found
    if others or reduction is None:
        return Role("gather", everything)
    return Role("sum", reduction=reduction) if reduction else Role("rows")


def definition_of(node: Node, graph: Graph) -> tuple[Tensor, ...]:
    """The outputs of a node over placeholders ``x0``, ``x1``…"""
    types = tuple((graph.types[n].shape, graph.types[n].dtype) for n in node.inputs)
    return defined(ops.operator_named, node.op, tuple(node.attrs.items()), types)


def _reduced(
    output: Tensor, own: Mapping[str, int], wanted: int | None, vertices: int, start: str | None
) -> str | None:
    """Reduction of all rows to an output; "" if each of its rows reads the same row of inputs, None for neither.

    ``own``: the axis of rows by input; ``wanted``: that of the output, if it has rows.
    """
    rows = {a.indices[own[a.source.name]] for a in accesses(output) if a.source.name in own}
    if not rows and wanted is not None:
        rows = {output.axes[wanted]}
    if len(rows) != 1:
        return None
    (row,) = rows
    inner = {t.name for t in stages([output]) if t.body is not None}
    if not isinstance(row, Var) or any(_mentions(body, row, own, inner, start) for body in bodies(output)):
        return None
    if row in output.axes:
        return ""
    body = output.body
    if not isinstance(body, Reduce) or body.kind not in REDUCTIONS:
        return None
    extents = {f"{output.name}.{a.var.name}": a.extent for a in body.axes}
    return body.kind if extents.get(row.name) == vertices else None


def _mentions(body: Expr, row: Var, own: Mapping[str, int], inner: Collection[str], start: str | None) -> bool:
    """Whether the row's number counts other than in reads of that row or added to ``start``, the first row's number.

    ``inner``: stages whose indices do not count, as their bodies are looked at where they are read.
    """

    def without(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer.name in own:
            axis = own[e.buffer.name]
            return Load(e.buffer, (*e.indices[:axis], Const(0, row.dtype), *e.indices[axis + 1 :]))
        if isinstance(e, Load) and e.buffer.name in inner:
            return Const(0, e.dtype)
        if isinstance(e, Binary) and e.op == "+" and row in (e.a, e.b):
            other = e.b if e.a == row else e.a
            if isinstance(other, Load) and other.buffer.name == start:
                return other
        return e

    return row.name in transform(body, without).variables


def _gathered(outputs: tuple[Tensor, ...], names: Mapping[str, str], axes: Axes) -> frozenset[str]:
    """The inputs of which other rows are read, as far as the structure says."""
    found: set[str] = set()
    for t in outputs:
        own = t.axes[0] if t.shape and t.shape[0] == axes.vertices else None
        for access in accesses(t):
            tensor = names[access.source.name]
            if tensor in axes.rows and access.indices[axes.rows[tensor]] != own:
                found.add(tensor)
    return frozenset(found)

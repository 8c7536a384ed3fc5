"""Row locality: which nodes of a training graph work row by row, so that they can run on a part of the vertices.

It follows from the operators' definitions: whether what an element of a row reads lies in the same row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from burnish import ops
from burnish.graph.graph import Graph, Node
from burnish.loops.expr import Binary, Const, Expr, Load, Reduce, Var
from burnish.loops.loaded import is_loaded
from burnish.loops.sizes import is_size
from burnish.loops.tensor import Tensor, placeholder, stages
from burnish.loops.traverse import loads, transform

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
    """What a node does with rows: ``plain`` has none, ``rows`` maps rows to rows, ``sum`` reduces all of
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
    """What a node does with rows. ``first``: the tensor that says which number the first row has, if there is one."""
    given, made = [n for n in node.inputs if n in axes.rows], [n for n in node.outputs if n in axes.rows]
    structure = axes.structure & {*node.inputs, *node.outputs}
    if not given and not made and not structure:
        return Role("plain")
    everything = frozenset(given)
    if ops.is_opaque(node.op):
        return Role("gather", everything)
    inputs = [placeholder(graph.types[n].shape, graph.types[n].dtype, f"x{i}") for i, n in enumerate(node.inputs)]
    outputs = ops.operator_named(node.op).define("y", inputs, node.attrs)
    names = dict(zip((t.name for t in inputs), node.inputs, strict=True))
    if structure:
        return Role("gather", _gathered(outputs, names, axes))
    own = {t.name: axes.rows[n] for t, n in zip(inputs, node.inputs, strict=True) if n in axes.rows}
    start = next((t.name for t, n in zip(inputs, node.inputs, strict=True) if n == first), None)
    kinds = _stage_kinds(outputs, own, {t.name: axes.rows.get(n) for t, n in zip(outputs, node.outputs, strict=True)},
                         axes.vertices, start)  # fmt: skip
    if kinds is None:
        return Role("gather", everything)
    found = {kinds[t.name] for t in outputs}
    if all(isinstance(kind, int) for kind in found):
        return Role("rows")
    (kind, *others) = found
    if not others and isinstance(kind, str):
        return Role("sum", reduction=kind)
    return Role("gather", everything)


_Stage = int | str | None  # the axis of its rows, or how all are reduced, or none


def _stage_kinds(
    outputs: tuple[Tensor, ...], own: Mapping[str, int], wanted: Mapping[str, int | None], vertices: int,
    start: str | None,
) -> dict[str, _Stage] | None:  # fmt: skip
    """What each stage is to rows; None if one reads other rows than its own."""
    kinds: dict[str, _Stage] = dict(own)
    for t in stages(outputs):
        if t.body is None:
            kinds.setdefault(t.name, None)
            continue
        kind = _stage_kind(t, kinds, wanted.get(t.name), vertices, start)
        if kind == "other":
            return None
        kinds[t.name] = kind
    return kinds


def _stage_kind(t: Tensor, kinds: Mapping[str, _Stage], wanted: int | None, vertices: int, start: str | None) -> _Stage:
    assert t.body is not None
    read = reads_of(t)
    if any(isinstance(kinds[e.buffer.name], str) for e in read):
        return "other"
    rows: set[Expr] = set()
    for e in read:
        axis = kinds[e.buffer.name]
        if isinstance(axis, int):
            rows.add(e.indices[axis])
    if not rows:
        if wanted is None:
            return None
        return wanted if not _mentions(t.body, t.axes[wanted], kinds, start) else "other"
    if len(rows) > 1:
        return "other"
    (row,) = rows
    if not isinstance(row, Var) or _mentions(t.body, row, kinds, start):
        return "other"
    if row in t.axes:
        return t.axes.index(row)
    if not isinstance(t.body, Reduce) or t.body.kind not in REDUCTIONS:
        return "other"
    return t.body.kind if {a.var: a.extent for a in t.body.axes}.get(row) == vertices else "other"


def _mentions(body: Expr, row: Var, kinds: Mapping[str, _Stage], start: str | None) -> bool:
    """Whether the number of the row counts but for what is read of it, or beside ``start``, the first row's number."""

    def without(e: Expr) -> Expr:
        if isinstance(e, Load) and isinstance(kinds[e.buffer.name], int):
            axis = kinds[e.buffer.name]
            assert isinstance(axis, int)
            return Load(e.buffer, (*e.indices[:axis], Const(0, row.dtype), *e.indices[axis + 1 :]))
        if isinstance(e, Binary) and e.op == "+" and row in (e.a, e.b):
            other = e.b if e.a == row else e.a
            if isinstance(other, Load) and other.buffer.name == start:
                return other
        return e

    inner = body.body if isinstance(body, Reduce) else body
    return row.name in transform(inner, without).variables


def _gathered(outputs: tuple[Tensor, ...], names: Mapping[str, str], axes: Axes) -> frozenset[str]:
    """The inputs of which other rows are read, as far as the structure says."""
    found: set[str] = set()
    far: set[str] = set()  # stages of which other rows are read
    for t in reversed(stages(outputs)):
        if t.body is None:
            continue
        own = t.axes[0] if t.shape and t.shape[0] == axes.vertices else None
        for e in reads_of(t):
            name = e.buffer.name
            tensor = names.get(name)
            if tensor is not None and tensor not in axes.rows:
                continue
            axis = axes.rows[tensor] if tensor is not None else 0
            if not e.indices or (t.name not in far and e.indices[axis] == own):
                continue
            far.add(name)
            if tensor is not None:
                found.add(tensor)
    return frozenset(found)


def reads_of(t: Tensor) -> tuple[Load, ...]:
    """All elements that a stage reads, also those that say how far it reduces."""
    if t.body is None:
        return ()
    found = list(loads(t.body))
    for axis in t.body.axes if isinstance(t.body, Reduce) else ():
        if is_loaded(axis.extent):
            found += (*loads(axis.extent.begin), *loads(axis.extent.end))
    return tuple(found)

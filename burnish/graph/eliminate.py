"""Elimination of nodes that change nothing, of views of views, and of repeated computations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from burnish import ops
from burnish.graph.graph import Attribute, Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.expr import FLOATS, Load
from burnish.loops.simplify import simplify
from burnish.loops.tensor import placeholder


def eliminate(graph: Graph) -> Graph:
    """``graph`` without dead nodes, without nodes that return their input, and with one node per computation."""
    seen: dict[object, tuple[str, ...]] = {}

    def rule(new: Rewrite, node: Node) -> Sequence[str] | None:
        if _returns_input(new, node) or _adds_nothing(new, node):
            return [_data_input(new, node)]
        view = _view_of_view(new, node)
        if view is not None:
            return view
        key = (node.op, node.inputs, _frozen(node))
        if key in seen:
            return seen[key]
        seen[key] = new.keep(node)
        return seen[key]

    return rewrite(graph, rule)


def _frozen(node: Node) -> tuple[tuple[str, Attribute], ...]:
    return tuple(sorted(node.attrs.items()))


def _returns_input(new: Rewrite, node: Node) -> bool:
    if len(node.inputs) != 1 or len(node.outputs) != 1 or ops.is_opaque(node.op):
        return False
    source = new.types[node.inputs[0]]
    return returns_input(node.op, source.shape, source.dtype, _frozen(node))


@lru_cache(maxsize=1 << 16)
def returns_input(op: str, shape: tuple[int, ...], dtype: str, attrs: tuple[tuple[str, Attribute], ...]) -> bool:
    """Whether an operator of one input returns just that: its definition simplifies to ``y[i, …] = x[i, …]``.

    This finds identity, a cast to the same dtype, and reshape, transpose, expand, slice or pad without effect.
    """
    x = placeholder(shape, dtype, "x")
    (y,) = ops.OPERATORS[op].define("y", [x], dict(attrs))
    if y is x:
        return True
    if y.shape != x.shape or not isinstance(y.body, Load) or y.body.buffer != x.buffer:
        return False
    ranges = {axis.name: extent for axis, extent in zip(y.axes, y.shape, strict=True)}
    return all(
        simplify(index, ranges) == simplify(axis, ranges) for index, axis in zip(y.body.indices, y.axes, strict=True)
    )


_NEUTRAL = {"add": -0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}  # of floats: -0.0 + 0.0 is 0.0


def _adds_nothing(new: Rewrite, node: Node) -> bool:
    """Whether the node adds zeros to, or multiplies by ones, a tensor of the output's shape, and keeps every bit."""
    if node.op not in _NEUTRAL:
        return False
    source = _data_input(new, node)
    other = node.inputs[1] if source == node.inputs[0] else node.inputs[0]
    if other not in new.constants or (node.op in ("sub", "div") and other == node.inputs[0]):
        return False
    value, output = new.constants[other], new.source.types[node.outputs[0]]
    if new.types[source] != output or value.size > 4096:
        return False
    neutral = _NEUTRAL[node.op]
    signed = output.dtype in FLOATS and not np.all(np.signbit(value) == np.signbit(neutral))
    return bool(np.all(value == neutral)) and not signed


def _data_input(new: Rewrite, node: Node) -> str:
    """The first input that is no constant; the first input if all are."""
    return next((name for name in node.inputs if name not in new.constants), node.inputs[0])


def _view_of_view(new: Rewrite, node: Node) -> Sequence[str] | None:
    """reshape ∘ reshape and transpose ∘ transpose as one node, or none where they undo each other."""
    before = new.producer(node.inputs[0]) if node.inputs else None
    if before is None or before.op != node.op:
        return None
    source = before.inputs[0]
    shape = new.source.types[node.outputs[0]].shape
    if node.op == "reshape":
        return [source] if new.types[source].shape == shape else new.replace(node, "reshape", source, shape=shape)
    if node.op == "transpose":
        first, second = permutation(new, before), permutation(new, node)
        perm = tuple(first[p] for p in second)
        return [source] if perm == tuple(range(len(perm))) else new.replace(node, "transpose", source, perm=perm)
    return None


def permutation(new: Rewrite, node: Node) -> tuple[int, ...]:
    """Dimensions of a transpose's input in the order of its output; without the attribute they are turned around."""
    rank = len(new.types[node.inputs[0]].shape)
    perm = node.attrs.get("perm")
    return tuple(reversed(range(rank))) if perm is None else perm  # type: ignore[return-value]

"""Merged gradient sums: of products along a joined reduction, of slices' gradients as a join of what they got.

The gradient of a weight that all steps of an unrolled recurrence read is a product of one step each, as large as the
weight; the gradient of what the steps read slices of is mostly zeros. Joined, each is computed and written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.graph.graph import GraphBuilder, Node

LEAST = 3  # parts from which on a join pays


class Sums:
    """Joins parts of sums in a graph that is being made. ``joined`` remembers joins, which several sums may share."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.joined: dict[tuple[str, ...], str] = {}

    def join(self, parts: Sequence[str]) -> list[str]:
        """Names whose sum is that of ``parts``, the fewer the better."""
        if len(parts) < LEAST:
            return list(parts)
        made = {name: node for node in self.builder.nodes for name in node.outputs}
        return self._slices(self._products(list(parts), made), made)

    # --- products -----------------------------------------------------------------------------------------------------

    def _products(self, parts: list[str], made: dict[str, Node]) -> list[str]:
        """Products ``x.T @ y`` of equal shapes, or views of such, as one of all rows of ``x`` and ``y``."""
        groups: dict[tuple[object, ...], list[str]] = {}
        for name in parts:
            product = _behind_view(name, made)
            if product is not None and _sums_rows(product, self.builder):
                shapes = (self.builder.types[product.outputs[0]], self.builder.types[name].shape)
                groups.setdefault(shapes, []).append(name)
        rest = list(parts)
        for group in groups.values():
            if len(group) < LEAST:
                continue
            rest = [name for name in rest if name not in group]
            nodes = [node for name in reversed(group) if (node := _behind_view(name, made)) is not None]
            left, right = (self._rows(tuple(node.inputs[side] for node in nodes)) for side in (0, 1))
            total = self.builder.add(nodes[0].op, left, right, transpose_a=True)
            shape = self.builder.types[group[0]].shape
            rest.append(total if self.builder.types[total].shape == shape else self._viewed(total, shape))
        return rest

    def _rows(self, names: tuple[str, ...]) -> str:
        if names not in self.joined:
            self.joined[names] = self.builder.add("concat", *names, axis=0)
        return self.joined[names]

    def _viewed(self, name: str, shape: tuple[int, ...]) -> str:
        return self.builder.add("reshape", name, shape=shape)

    # --- slices -------------------------------------------------------------------------------------------------------

    def _slices(self, parts: list[str], made: dict[str, Node]) -> list[str]:
        """Gradients of slices of rows that together are all rows, as a join of what they got."""
        found: dict[int, tuple[int, str, str]] = {}  # first row -> rows, what the slice got, the part
        for name in parts:
            sliced = _sliced_rows(made.get(name), self.builder)
            if sliced is not None:
                found.setdefault(sliced[0], (sliced[1], made[name].inputs[0], name))
        order, end = list[tuple[str, str]](), 0
        while end in found:
            rows, seed, name = found[end]
            order.append((seed, name))
            end += rows
        if len(order) < LEAST or end != self.builder.types[order[0][1]].shape[0]:
            return parts
        taken = {name for _, name in order}
        return [*(name for name in parts if name not in taken), self._rows(tuple(seed for seed, _ in order))]


def _behind_view(name: str, made: dict[str, Node]) -> Node | None:
    """The node that computes a tensor, or what it is a reshaped view of."""
    node = made.get(name)
    return made.get(node.inputs[0]) if node is not None and node.op == "reshape" else node


def _sums_rows(node: Node, builder: GraphBuilder) -> bool:
    """Whether a node is a product of two matrices that sums over the rows of both."""
    transposed = node.op == "matmul" and node.attrs.get("transpose_a") and not node.attrs.get("transpose_b")
    return bool(transposed) and all(len(builder.types[name].shape) == 2 for name in node.inputs)


def _sliced_rows(node: Node | None, builder: GraphBuilder) -> tuple[int, int] | None:
    """The first row and the number of rows of a slice whose gradient a node is; None for other nodes and slices."""
    if node is None or node.op != "adjoint" or node.attrs["operator"] != "slice":
        return None
    attrs: dict[str, Any] = dict(node.attrs["attributes"])  # type: ignore[arg-type]
    shape, starts, extents = builder.types[node.outputs[0]].shape, attrs["starts"], attrs["extents"]
    plain = all(step == 1 for step in attrs.get("steps") or ())
    whole = tuple(starts[1:]) == (0,) * (len(shape) - 1) and tuple(extents[1:]) == shape[1:]
    return (starts[0], extents[0]) if plain and whole else None

"""Merged gradient sums: of products along a joined reduction, of slices' gradients as a join of what they got.

The gradient of a weight that all steps of an unrolled recurrence read is a product of one step each, as large as the
weight; the gradient of what the steps read slices of is mostly zeros. Joined, each is computed and written once. Where
the recurrence is divided into segments, the products of one are joined, and added to those of the segments behind it:
what they read is needed no longer than the segment is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.graph.graph import GraphBuilder, Node, TensorType

_Shapes = tuple[TensorType, tuple[int, ...]]  # of a product, and of the view of it that is a part

LEAST = 3  # parts from which on a join pays


class Sums:
    """Joins parts of sums in a graph that is being made. ``joined`` remembers joins, which several sums may share."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.joined: dict[tuple[str, ...], str] = {}
        forward = builder.nodes if builder.segments else ()
        self.forward = {name for node in forward for name in node.outputs}
        self.weights = builder.lasting() if builder.segments else set[str]()
        self.settled: dict[str, dict[_Shapes, str]] = {}  # of tensors, the sums of products of segments that are done

    def total(self, name: str, parts: Sequence[str]) -> list[str]:
        """Names whose sum is the adjoint of a tensor, the fewer the better: of ``parts``, and of what is settled."""
        if name not in self.settled:
            return self.join(parts)
        self._settle(name, parts, self._made())
        return [self._viewed(total, shape) for (_, shape), total in self.settled.pop(name).items()]

    def join(self, parts: Sequence[str]) -> list[str]:
        """Names whose sum is that of ``parts``, the fewer the better."""
        if len(parts) < LEAST:
            return list(parts)
        made = self._made()
        return self._slices(self._products(list(parts), made), made)

    def settle(self, parts: dict[str, list[str]]) -> None:
        """Adds up the parts of the adjoints of weights, at the end of a segment, to the sums of those behind it."""
        made = self._made()
        for name in [name for name in parts if name in self.weights]:
            self._settle(name, parts[name], made)
            parts[name] = []

    def _settle(self, name: str, parts: Sequence[str], made: dict[str, Node]) -> None:
        groups = self._groups(parts, made)
        for shapes, group in groups.items():
            self._accumulate(name, shapes, self._product(group, made))
        products = {part for group in groups.values() for part in group}
        for part in (part for part in parts if part not in products):
            t = self.builder.types[part]
            self._accumulate(name, (t, t.shape), part)

    def _accumulate(self, name: str, shapes: _Shapes, term: str) -> None:
        totals = self.settled.setdefault(name, {})
        totals[shapes] = self.builder.add("add_term", totals[shapes], term) if shapes in totals else term

    def _made(self) -> dict[str, Node]:
        return {name: node for node in self.builder.nodes for name in node.outputs}

    # --- products -----------------------------------------------------------------------------------------------------

    def _products(self, parts: list[str], made: dict[str, Node]) -> list[str]:
        """Products ``x.T @ y`` of equal shapes, or views of such, as one of all rows of ``x`` and ``y``."""
        rest = list(parts)
        for (_, shape), group in self._groups(parts, made).items():
            if len(group) >= LEAST:
                rest = [name for name in rest if name not in group]
                rest.append(self._viewed(self._product(group, made), shape))
        return rest

    def _groups(self, parts: Sequence[str], made: dict[str, Node]) -> dict[_Shapes, list[str]]:
        """Products ``x.T @ y`` among parts, or views of such, by the type of the product and the shape of the part."""
        groups: dict[_Shapes, list[str]] = {}
        for name in parts:
            product = _behind_view(name, made)
            if product is not None and _sums_rows(product, self.builder):
                shapes = (self.builder.types[product.outputs[0]], self.builder.types[name].shape)
                groups.setdefault(shapes, []).append(name)
        return groups

    def _product(self, group: Sequence[str], made: dict[str, Node]) -> str:
        """The sum of products as one of all rows."""
        nodes = [node for name in reversed(group) if (node := _behind_view(name, made)) is not None]
        if len(nodes) == 1:
            return nodes[0].outputs[0]
        left, right = (self._rows(tuple(node.inputs[side] for node in nodes)) for side in (0, 1))
        return self.builder.add(nodes[0].op, left, right, transpose_a=True)

    def _rows(self, names: tuple[str, ...]) -> str:
        if names not in self.joined:
            op = "concat" if self.forward.isdisjoint(names) else "copied_concat"
            self.joined[names] = self.builder.add(op, *names, axis=0)
        return self.joined[names]

    def _viewed(self, name: str, shape: tuple[int, ...]) -> str:
        same = self.builder.types[name].shape == shape
        return name if same else self.builder.add("reshape", name, shape=shape)

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

"""Products of one tensor with several constant matrices, as one product: queries, keys and values of attention.

On a grid of threads a product of few rows leaves multiprocessors without work, and every launch takes its time. So
matrices that the same rows are multiplied by stand next to each other, biases too, and results are slices of one::

    x @ a + p,  x @ b + q  →  y = x @ concat(a, b) + concat(p, q);  y[..., :n],  y[..., n:]

Only where what follows reads the slices where they lie: they are moved or scaled on the way to a product, into whose
kernel that goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.sizes import is_size
from burnish.machines.target import Target

TILE = 64  # rows and columns of the output of a block of threads


@dataclass(frozen=True)
class Siblings:
    """Products of one tensor: their nodes, and the additions of a constant vector that follow each (or none)."""

    products: tuple[Node, ...]
    sums: tuple[Node, ...]

    @property
    def results(self) -> tuple[Node, ...]:
        """The nodes whose results become slices."""
        return self.sums or self.products


def merge_products(graph: Graph, target: Target) -> Graph:
    """Graph with sibling products as one, where ``target`` is a grid of threads."""
    if target.machine.dialect.grid is None:
        return graph
    readers = graph.consumers()
    families: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "matmul" and _is_layer(graph, node):
            families.setdefault((node.inputs[0], tuple(sorted(node.attrs.items()))), []).append(node)
    found = [_siblings(graph, nodes, readers) for nodes in families.values() if len(nodes) > 1]
    worth = [s for s in found if s is not None and _pays(graph, s, readers, target)]
    if not worth:
        return graph
    own = {node.outputs[0]: s for s in worth for node in (*s.products, *s.sums)}
    made: dict[str, str] = {}
    return rewrite(graph, lambda new, node: _rule(new, node, own, made))


def _is_layer(graph: Graph, node: Node) -> bool:
    x, weight = (graph.types[name] for name in node.inputs)
    known = node.inputs[1] in graph.constants and len(weight.shape) == 2 and len(x.shape) >= 2
    return known and not node.attrs.get("transpose_a") and not any(map(is_size, x.shape))


def _siblings(graph: Graph, nodes: Sequence[Node], readers: Mapping[str, Sequence[Node]]) -> Siblings | None:
    if any(node.outputs[0] in graph.outputs for node in nodes):
        return None
    sums = []
    for node in nodes:
        after = readers.get(node.outputs[0], ())
        if len(after) == 1 and after[0].op == "add":
            (vector,) = [name for name in after[0].inputs if name != node.outputs[0]] or [""]
            columns = graph.types[node.outputs[0]].shape[-1]
            known = graph.constants.get(vector)
            if known is not None and known.shape[-1:] == (columns,) and known.size == columns:
                sums.append(after[0])
    if len(sums) not in (0, len(nodes)):
        return None
    return Siblings(tuple(nodes), tuple(sums))


def _pays(graph: Graph, s: Siblings, readers: Mapping[str, Sequence[Node]], target: Target) -> bool:
    """Whether no product alone has a block for every multiprocessor, and all results only go into products."""
    for node in s.results:
        shape = graph.types[node.outputs[0]].shape
        if -(-prod(shape[:-1]) // TILE) * -(-shape[-1] // TILE) >= target.cores:
            return False
    return all(_goes_into_products(graph, node.outputs[0], readers) for node in s.results)


def _goes_into_products(graph: Graph, name: str, readers: Mapping[str, Sequence[Node]]) -> bool:
    after = readers.get(name, ())
    if name in graph.outputs or not after:
        return False
    for node in after:
        facts = facts_of(graph, node)
        varying = [n for n in node.inputs if n not in graph.constants]
        if facts.kind == "complex":
            continue
        if facts.kind != "injective" or len(varying) != 1 or not (facts.moves or facts.scales):
            return False
        if not _goes_into_products(graph, node.outputs[0], readers):
            return False
    return True


def _rule(new: Rewrite, node: Node, own: Mapping[str, Siblings], made: dict[str, str]) -> Sequence[str] | None:
    name = node.outputs[0]
    if name not in own:
        return None
    if name not in made:
        _merge(new, own[name], made)
    return [made[name]]


def _merge(new: Rewrite, s: Siblings, made: dict[str, str]) -> None:
    first, graph = s.products[0], new.source
    across = 0 if first.attrs.get("transpose_b") else 1
    weights = np.concatenate([graph.constants[p.inputs[1]] for p in s.products], across)
    attrs: dict[str, Any] = dict(first.attrs)
    y = new.add("matmul", first.inputs[0], new.constant(weights), node=first.name, **attrs)
    if s.sums:
        vectors = [next(graph.constants[n] for n in a.inputs if n in graph.constants).reshape(-1) for a in s.sums]
        y = new.add("add", y, new.constant(np.concatenate(vectors)), node=s.sums[0].name)
    shape = new.types[y].shape
    columns = [graph.types[p.outputs[0]].shape[-1] for p in s.products]
    for number, (begin, n) in enumerate(zip(accumulate(columns, initial=0), columns, strict=False)):
        starts, extents = (0,) * (len(shape) - 1) + (begin,), (*shape[:-1], n)
        part = new.add("slice", y, starts=starts, extents=extents, node=s.results[number].name)
        made.update({nodes[number].outputs[0]: part for nodes in (s.products, s.sums) if nodes})

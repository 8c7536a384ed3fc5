"""If, Loop and Scan of which values decide what runs, as nodes with bodies: one graph, where types are static."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from burnish.frontend.onnx.context import OnnxContext, RuntimeValue
from burnish.frontend.onnx.nodes import names_read, translate_subgraph
from burnish.graph.flow import as_body, invariant_nodes
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.rewrite import drop_dead
from burnish.loops.sizes import is_size
from burnish.ops.control import BRANCH, ENDLESS, LOOP
from burnish.ops.operator import Body


@dataclass
class _Inner:
    """A body that is being made of a subgraph, which may read the tensors ``also`` too. ``around``: its inputs and
    constants that are tensors of the graph around it, by which of these they are.
    """

    outer: OnnxContext
    graph: onnx.GraphProto
    also: Sequence[str] = ()
    context: OnnxContext = field(init=False)
    around: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        builder, around = GraphBuilder(), self.outer.builder
        names = {name: self.outer.names[name] for name in names_read(self.graph) if name in self.outer.names}
        for name in dict.fromkeys((*names.values(), *self.also)):
            if name in self.outer.lists:
                continue
            if name in around.constants:
                builder.constant(around.constants[name], name)
            else:
                t = around.types[name]
                builder.input(name, t.shape, t.dtype)
            self.around[name] = name
        sizes = {name: value for name, value in self.outer.sizes.items() if name in self.around}
        self.context = replace(self.outer, builder=builder, made=set(), names=names, sizes=sizes, constants={})

    def input(self, what: str, shape: Sequence[int], dtype: str) -> str:
        """An input that is not around."""
        return self.context.builder.input(self.context.builder.fresh(what), shape, dtype)

    def built(self, results: Sequence[str]) -> Graph:
        """The body as a graph, whose results are computed by nodes, each once."""
        builder, found = self.context.builder, list[str]()
        made = {name for node in builder.nodes for name in node.outputs}
        for name in results:
            fresh = name in made and name not in found
            found.append(name if fresh else builder.add("identity", name, name=builder.fresh(f"{name}.result")))
        return drop_dead(builder.build(*found))


def branch(c: OnnxContext, condition: str, bodies: Sequence[onnx.GraphProto]) -> list[str]:
    """A node of two bodies, the first of which runs where the condition is true. Raises RuntimeValue where results are
    of different types, and ModelError for a body that is not valid for its operands.
    """
    parts = []
    for body in bodies:
        inner = _Inner(c, body)
        parts.append((inner, inner.built(translate_subgraph(inner.context, body, []))))
    kinds = [[str(graph.types[name]) for name in graph.outputs] for _, graph in parts]
    if kinds[0] != kinds[1]:
        found = f"results {', '.join(kinds[0])} of one branch, {', '.join(kinds[1])} of the other"
        raise RuntimeValue(f"{c.node}: found {found}; allowed: the same types", condition)
    operands = _Operands(c, [c.reshape(condition, ())])
    then, other = (operands.body(inner, graph, []) for inner, graph in parts)
    return _added(c, BRANCH, operands.names, then=then, other=other)


Round = Callable[[OnnxContext, str, list[str]], list[str]]
"""What a round adds to the context of its body, which knows its number and states: the condition and other results."""


def loop(
    c: OnnxContext,
    body: onnx.GraphProto,
    limit: str,
    condition: str,
    states: Sequence[str],
    translate: Round,
    rounds: int,
    also: Sequence[str] = (),
) -> list[str]:
    """A node whose body runs as often as ``limit`` and ``condition`` say ("": no limit, true); see ``ops/control.py``.

    ``rounds``: how many there are, if that is known, else 0; ``also``: tensors that ``translate`` reads besides those
    that ``body`` does. Raises RuntimeValue where types change from round to round, or where results of every round are
    of unknown number.
    """
    inner = _Inner(c, body, also)
    number = inner.input("round", (), "int64")
    now = [inner.input("state", c.shape(s), c.dtype(s)) for s in states]
    going, *results = translate(inner.context, number, now)
    for old, new in zip(states, results, strict=False):
        found, wanted = (f"{ctx.dtype(n)}{list(ctx.shape(n))}" for ctx, n in ((inner.context, new), (c, old)))
        if found != wanted:
            if c.dtype(old) != inner.context.dtype(new):
                c.invalid(f"carried value '{new}'", f"dtype {inner.context.dtype(new)}", f"{c.dtype(old)}, as before")
            raise RuntimeValue(f"{c.node}: found a state that becomes {found}; allowed: {wanted}, as before", "")
    known = inner.context.builder.constants.get(going)
    if len(results) > len(states) and (known is None or not known.all()):
        raise RuntimeValue(f"{c.node}: found results of rounds whose number values decide; allowed: a known number", "")
    inner.context.begin(c.node)
    graph = inner.built([inner.context.reshape(going, ()), *results])
    graph = _without_invariants(c, inner, graph)
    most = c.reshape(limit, ()) if limit else c.constant(ENDLESS, "int64")
    first = c.reshape(condition, ()) if condition else c.constant(True, "bool")
    operands = _Operands(c, [most, first, *states])
    own = operands.body(inner, graph, [number, "", *now])
    return _added(c, LOOP, operands.names, body=own, states=len(states), rounds=rounds)


def empty_results(
    c: OnnxContext, body: onnx.GraphProto, feeds: Sequence[tuple[Sequence[int], str]], skip: int
) -> list[str]:
    """Stacked results of a loop without iterations: tensors [0, ...] of the types of a body's results after the first
    ``skip``. ``feeds``: the types of the subgraph's inputs.
    """
    inner = _Inner(c, body)
    results = translate_subgraph(inner.context, body, [inner.input("feed", shape, dtype) for shape, dtype in feeds])
    types = [inner.context.builder.types[name] for name in results[skip:]]
    if any(is_size(d) for t in types for d in t.shape):
        raise RuntimeValue(f"{c.node}: found no rounds, and results of open sizes; allowed: one round", "")
    return [c.constant(np.zeros((0, *t.shape)), t.dtype) for t in types]


@dataclass
class _Operands:
    """The operands of a node with bodies, in order."""

    context: OnnxContext
    names: list[str]

    def body(self, inner: _Inner, graph: Graph, own: Sequence[str]) -> Body:
        """A graph as a body; ``own``: its inputs that are the first operands, "" for one that it does not know."""
        places = {name: i for i, name in enumerate(own) if name}
        read = {name for node in graph.nodes for name in node.inputs}
        for name in (*graph.inputs, *graph.constants):
            if name in places or name not in read:
                continue
            around = inner.around.get(name) or self.context.constant(graph.constants[name])
            if around not in self.names[len(own) :]:
                self.names.append(around)
            places[name] = self.names.index(around, len(own))
        return as_body(graph, places)


def _added(c: OnnxContext, op: str, operands: Sequence[str], **attrs: Any) -> list[str]:
    """The results of a node that was added."""
    names = [c.builder.fresh(f"{c.node.stem}.{op}")]
    made = c.builder.add_many(op, *operands, names=names, node=c.node.name, **attrs)
    c.made.update(made)
    return list(made)


def _without_invariants(c: OnnxContext, inner: _Inner, graph: Graph) -> Graph:
    """The body of a loop without the nodes that compute the same in every round, which are added around it."""
    moved = invariant_nodes(graph, [name for name in graph.inputs if name in inner.around])
    for node in moved:
        for name in node.inputs:
            if name not in inner.around:
                inner.around[name] = c.constant(graph.constants[name])
        fresh = [c.builder.fresh(f"{c.node.stem}.{node.op}") for _ in node.outputs]
        operands = [inner.around[name] for name in node.inputs]
        made = c.builder.add_many(node.op, *operands, names=fresh, node=node.name, **node.attrs)
        inner.around |= dict(zip(node.outputs, made, strict=True))
    gone = {name: None for node in moved for name in node.outputs}
    inputs = (*graph.inputs, *gone)
    nodes = [node for node in graph.nodes if not gone.keys() & {*node.outputs}]
    return drop_dead(replace(graph, inputs=inputs, nodes=tuple(nodes)))

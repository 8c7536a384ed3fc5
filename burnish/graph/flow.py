"""Control flow that values decide, as nodes: their bodies as graphs of their own, and graphs as bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.ops import OPERATORS
from burnish.ops.operator import Body


def bodies_of(node: Node) -> tuple[str, ...]:
    """The attributes of a node that hold bodies of which values decide which run how often; of others none."""
    return OPERATORS[node.op].bodies


def moving(node: Node) -> int:
    """Number of first operands that decide, or change from round to round: the others are read as they are."""
    return 2 + cast(int, node.attrs["states"]) if "states" in node.attrs else 1


def body_graph(graph: Graph, node: Node, number: int) -> Graph:
    """A body of ``node`` as a graph whose names no other has: operands that are constants are its constants, too.

    Its inputs are the node's operands, as many as it knows, in order; the first of a loop is the number of the round.
    """
    builder, first = GraphBuilder(), moving(node)
    nodes, results = cast(Body, node.attrs[bodies_of(node)[number]])
    names: dict[str, str] = {}
    for i, value in enumerate(node.inputs):
        name = body_name(node, number, f"{i}")
        if i >= first and value in graph.constants:
            names[f"{i}"] = builder.constant(graph.constants[value], name)
        else:
            t = graph.types[value]
            names[f"{i}"] = builder.input(name, t.shape, t.dtype)
    for op, inputs, outputs, attrs in nodes:
        fresh = [body_name(node, number, name) for name in outputs]
        made = builder.add_many(op, *(names[n] for n in inputs), names=fresh, node=node.name, **dict(attrs))
        names |= dict(zip(outputs, made, strict=True))
    return builder.build(*(names[name] for name in results))


def body_name(node: Node, number: int, name: str) -> str:
    """The name in the graph of a body of one of its values."""
    return f"{node.outputs[0]}/{number}/{name}"


def as_body(graph: Graph, places: Mapping[str, int]) -> Body:
    """A graph as a body; ``places``: which operand each of its inputs and constants is. Its outputs are computed by
    nodes, each once.
    """
    names = {name: f"{place}" for name, place in places.items()}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(names[name] for name in node.inputs)
        names |= {name: f"v{len(names) + k}" for k, name in enumerate(node.outputs)}
        nodes.append((node.op, inputs, tuple(names[n] for n in node.outputs), tuple(sorted(node.attrs.items()))))
    return tuple(nodes), tuple(names[name] for name in graph.outputs)


def invariant_nodes(graph: Graph, fixed: Sequence[str]) -> list[Node]:
    """The nodes of a body that compute the same in every round of what ``fixed`` inputs are, in order; no results."""
    same, found = {*fixed}, list[Node]()
    for node in graph.nodes:
        known = same.issuperset(name for name in node.inputs if name not in graph.constants)
        plain = OPERATORS[node.op].extern is None and not {*node.outputs} & {*graph.outputs}
        if known and plain and not same.isdisjoint(node.inputs):
            same.update(node.outputs)
            found.append(node)
    return found

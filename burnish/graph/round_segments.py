"""Rounds of a body (scan, recurrent layers) in segments of time: one node for each, between which states go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from burnish.graph.graph import Attribute, Graph, GraphBuilder, Node
from burnish.graph.rounds import has_rounds, operands_of, rounds_of
from burnish.loops.sizes import is_size
from burnish.ops.operator import Body


def known_rounds(graph: Graph, node: Node) -> int:
    """Number of rounds of a node that repeats a body; 0 for nodes without, or where only a call knows it."""
    rounds = rounds_of(graph, node) if has_rounds(node) else 0
    return 0 if is_size(rounds) else rounds


def segmented(
    builder: GraphBuilder, node: Node, count: int, part: Callable[[str, int], str], whole: Callable[[str], str]
) -> dict[str, list[str]]:
    """Adds a node with rounds as ``count`` nodes, the states of each the first values of the next; of results of every
    round the parts, in order of time, by the name of the result.

    ``part``: the name of segment i of a sequence; ``whole``: that of an operand which all rounds read, or a first
    state. Final values of states that are no results of every round keep their names.
    """
    own, (attrs, shown) = operands_of(node), _shown_apart(node)
    states, fixed = [whole(name) for name in own.states], [whole(name) for name in own.fixed]
    backwards = bool(node.attrs.get("reverse", False))
    order = [*reversed(range(count))] if backwards else [*range(count)]
    found: dict[int, tuple[str, ...]] = {}
    for i in order:
        last = i == order[-1]
        names = [n if last and k not in shown and k < len(states) else "" for k, n in enumerate(node.outputs)]
        names[0] = names[0] or builder.fresh(f"{node.outputs[0]}.part{i}")
        moving = [part(name, i) for name in own.sequences]
        called = f"{node.name}.part{i}"
        found[i] = builder.add_many(node.op, *states, *moving, *fixed, names=names, node=called, **attrs)
        states = [*found[i][: len(states)]]
    return {node.outputs[k]: [found[i][place] for i in range(count)] for k, place in shown.items()}


def _shown_apart(node: Node) -> tuple[dict[str, Attribute], dict[int, int]]:
    """The attributes of a node whose states are no results of every round, but copied into further ones that are; and
    of each result of every round its number there.
    """
    nodes, results = cast(Body, node.attrs["body"])
    states, every = cast(int, node.attrs["states"]), cast(tuple[int, ...], node.attrs["every"])
    taken = {name for _, inputs, outputs, _ in nodes for name in (*inputs, *outputs)}
    copies, shown = list[tuple[str, tuple[str, ...], tuple[str, ...], tuple[()]]](), dict[int, int]()
    for i in sorted(every):
        shown[i] = i
        if i < states:
            name = f"{results[i]}.shown"
            while name in taken:
                name += "'"
            taken.add(name)
            shown[i] = len(results) + len(copies)
            copies.append(("identity", (results[i],), (name,), ()))
    body = (*nodes, *copies), (*results, *(outputs[0] for _, _, outputs, _ in copies))
    attrs: dict[str, Attribute] = {**node.attrs, "body": body, "every": tuple(range(states, len(body[1])))}
    return attrs, shown

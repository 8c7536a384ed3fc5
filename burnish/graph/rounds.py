"""One round of a node that repeats a body (scan, recurrent layers), as a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from burnish.graph.graph import Graph, GraphBuilder, Node
from burnish.graph.rewrite import drop_dead
from burnish.ops import OPERATORS
from burnish.ops.operator import Body
from burnish.ops.scan import NAME, Operands


def has_rounds(node: Node) -> bool:
    """Whether a node repeats a body."""
    return OPERATORS[node.op].rounds


def round_graph(graph: Graph, node: Node) -> Graph:
    """One round of ``node`` as a graph whose names no other has: operands that are constants are its constants, too."""
    builder, own = GraphBuilder(), operands_of(node)
    nodes, results = cast(Body, node.attrs["body"])
    names: dict[str, str] = {}
    for i, value in enumerate(node.inputs):
        t, name = graph.types[value], round_name(node, f"{i}")
        if value in graph.constants and value in own.fixed:
            names[f"{i}"] = builder.constant(graph.constants[value], name)
        else:
            sequence = len(own.states) <= i < len(own.states) + len(own.sequences)
            names[f"{i}"] = builder.input(name, t.shape[1:] if sequence else t.shape, t.dtype)
    for op, inputs, outputs, attrs in nodes:
        fresh = [round_name(node, name) for name in outputs]
        made = builder.add_many(op, *(names[n] for n in inputs), names=fresh, node=node.name, **dict(attrs))
        names |= dict(zip(outputs, made, strict=True))
    return builder.build(*(names[name] for name in results))


def add_rounds(
    builder: GraphBuilder,
    body: Callable[[GraphBuilder, Sequence[str]], Sequence[str]],
    operands: Operands,
    every: Sequence[int],
    reverse: bool,
) -> tuple[str, ...]:
    """Adds a node that repeats a body to a graph, and gives the names of its results.

    ``body`` adds one round to a builder of its own, whose inputs it is given the names of, in the order of states,
    sequences and others; it gives the names of the results. Its constants become operands.
    """
    values = (*operands.states, *operands.sequences, *operands.fixed)
    states, moving = len(operands.states), len(operands.states) + len(operands.sequences)
    inner = GraphBuilder()
    for i, name in enumerate(values):
        t = builder.types[name]
        inner.input(f"{i}", t.shape[1:] if states <= i < moving else t.shape, t.dtype)
    results = tuple(body(inner, [f"{i}" for i in range(len(values))]))
    made = drop_dead(inner.build(*results))
    names = {name: f"{len(values) + i}" for i, name in enumerate(made.constants)}
    nodes = tuple(
        (n.op, tuple(names.get(x, x) for x in n.inputs), n.outputs, tuple(sorted(n.attrs.items()))) for n in made.nodes
    )
    shared = [builder.constant(array) for array in made.constants.values()]
    return builder.add_many(
        NAME, *values, *shared, body=(nodes, results), states=states, sequences=len(operands.sequences),
        every=tuple(every), reverse=reverse,
    )  # fmt: skip


def operands_of(node: Node) -> Operands:
    """Operands of the node by role."""
    return Operands.of(node.inputs, node.attrs["states"], node.attrs["sequences"])  # type: ignore[arg-type]


def round_name(node: Node, name: str) -> str:
    """The name in the graph of one round of a value of the body."""
    return f"{node.outputs[0]}/{name}"


def rounds_of(graph: Graph, node: Node) -> int:
    """Number of rounds: the length of the sequences, a number or a size."""
    return graph.types[operands_of(node).sequences[0]].shape[0]

"""Concatenations of many parts: as several of few, but for those that need no copy."""

import numpy as np

from burnish.graph import Graph, GraphBuilder
from burnish.graph.divide import MOST_PARTS, divide_joins, joins_in_place
from burnish.graph.evaluate import evaluate
from burnish.graph.verify import verify


def joined(count: int, width: int, computed: bool) -> Graph:
    """``count`` rows of ``width`` numbers, one after the other."""
    g = GraphBuilder()
    parts = [g.input(f"x{i}", (1, width)) for i in range(count)]
    if computed:
        parts = [g.add("relu", part) for part in parts]
    return g.build(g.add("tanh", g.add("concat", *parts, axis=0)))


def test_a_join_of_many_inputs_is_divided_and_stays_the_same() -> None:
    graph = joined(MOST_PARTS**2 + 3, 2, computed=False)
    divided = divide_joins(graph, 16)
    verify(divided)
    assert max(len(node.inputs) for node in divided.nodes) == MOST_PARTS
    feeds = {name: np.full((1, 2), i, np.float32) for i, name in enumerate(graph.inputs)}
    (expected,), (found,) = evaluate(graph, feeds).values(), evaluate(divided, feeds).values()
    np.testing.assert_array_equal(found, expected)


def test_a_join_whose_parts_are_computed_in_place_is_not() -> None:
    graph = joined(2 * MOST_PARTS, 1024, computed=True)
    assert len(joins_in_place(graph, 16)) == 1
    assert divide_joins(graph, 16) is not None
    assert [len(n.inputs) for n in divide_joins(graph, 16).nodes if n.op == "concat"] == [2 * MOST_PARTS]


def test_a_join_of_few_parts_is_left_alone() -> None:
    graph = joined(MOST_PARTS, 2, computed=False)
    assert divide_joins(graph, 16) is graph

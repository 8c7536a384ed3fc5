"""Outputs that no node computes get a copy, under the output's name where that is free."""

import numpy as np

from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.outputs import own_outputs
from burnish.graph.verify import verify


def text(graph: Graph) -> list[str]:
    verify(graph)
    return str(graph).splitlines()


def test_outputs_with_memory_of_their_own_stay() -> None:
    b = GraphBuilder()
    graph = b.build(b.add("relu", b.input("x", (3,)), name="y"))
    assert own_outputs(graph) is graph


def test_an_input_is_copied_under_a_new_name() -> None:
    b = GraphBuilder()
    assert text(own_outputs(b.build(b.input("x", (3,))))) == [
        "graph(x: float32[3]) -> (x.1):",
        "  x.1 = identity(x) : float32[3]",
    ]


def test_a_constant_gives_its_name_to_the_copy() -> None:
    b = GraphBuilder()
    y = b.add("add", b.input("x", (2,)), b.constant(np.ones(2, np.float32), "c"), name="y")
    assert text(own_outputs(b.build("c", y))) == [
        "graph(x: float32[2]) -> (c, y):",
        "  const c.1: float32[2] = [1.0, 1.0]",
        "  y = add(x, c.1) : float32[2]",
        "  c = identity(c.1) : float32[2]",
    ]


def test_what_is_listed_again_is_copied() -> None:
    b = GraphBuilder()
    b.constant(np.ones(2, np.float32), "c")
    y = b.add("relu", b.input("x", (2,)), name="y")
    assert text(own_outputs(b.build(y, "c", y, "c"))) == [
        "graph(x: float32[2]) -> (y, c, y.1, c.2):",
        "  const c.1: float32[2] = [1.0, 1.0]",
        "  y = relu(x) : float32[2]",
        "  c = identity(c.1) : float32[2]",
        "  y.1 = identity(y) : float32[2]",
        "  c.2 = identity(c) : float32[2]",
    ]

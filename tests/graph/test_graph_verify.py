from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from burnish.errors import VerificationError
from burnish.graph import Graph, GraphBuilder, Node, TensorType
from burnish.graph.verify import verify


def small() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (2, 3))
    w = g.constant(np.ones((3, 4), np.float32), "w")
    return g.build(g.add("relu", g.add("matmul", x, w, name="m"), name="y"))


def test_a_well_formed_graph_passes() -> None:
    verify(small())


def reversed_nodes(g: Graph) -> Graph:
    return replace(g, nodes=g.nodes[::-1])


def cycle(g: Graph) -> Graph:
    return replace(g, nodes=(replace(g.nodes[0], inputs=("y", "w")), g.nodes[1]))


def undefined(g: Graph) -> Graph:
    return replace(g, nodes=(replace(g.nodes[0], inputs=("q", "w")), g.nodes[1]))


def twice(g: Graph) -> Graph:
    return replace(g, nodes=(*g.nodes, Node("relu", ("m",), ("y",), {}, "again")))


def wrong_type(g: Graph) -> Graph:
    return replace(g, types={**g.types, "y": TensorType((2, 5))})


def wrong_constant(g: Graph) -> Graph:
    return replace(g, constants={"w": np.ones((3, 4), np.float64)})


def unknown_operator(g: Graph) -> Graph:
    return replace(g, nodes=(g.nodes[0], replace(g.nodes[1], op="frobnicate")))


def too_many_outputs(g: Graph) -> Graph:
    return replace(g, nodes=(g.nodes[0], replace(g.nodes[1], outputs=("y", "z"))))


def missing_output(g: Graph) -> Graph:
    return replace(g, outputs=("gone",))


def stray_type(g: Graph) -> Graph:
    return replace(g, types={**g.types, "stray": TensorType((1,))})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (reversed_nodes, "node 0 'y' .relu. reads 'm', which is defined only later"),
        (cycle, "reads 'y', which depends on itself: the graph has a cycle"),
        (undefined, "reads 'q', which nothing defines"),
        (twice, "'y' is defined twice: by node 1 'y' and by node 2 'again'"),
        (wrong_type, r"output 'y' is float32\[2, 5\], its definition gives float32\[2, 4\]"),
        (wrong_constant, r"constant 'w' is float64\[3, 4\], its type says float32\[3, 4\]"),
        (unknown_operator, "node 1 'y': unknown operator 'frobnicate'"),
        (too_many_outputs, "has 2 outputs; its definition 1"),
        (missing_output, "graph output 'gone' is defined by no input, constant or node"),
        (stray_type, r"names that nothing defines: \['stray'\]"),
    ],
)
def test_every_violation_is_named(damage: Callable[[Graph], Graph], message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(damage(small()))

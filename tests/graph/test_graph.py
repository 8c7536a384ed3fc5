import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.graph import GraphBuilder, Node, TensorType


def test_a_graph_prints_as_text() -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 3, 8, 8))
    w = g.constant(np.zeros((4, 3, 3, 3), np.float32), "w")
    half = g.constant(0.5, "half")
    y = g.add("relu", g.add("conv2d", x, w, strides=(2, 2), name="c"), name="r")
    graph = g.build(g.add("mul", y, half, name="y"))
    assert str(graph) == (
        "graph(x: float32[1, 3, 8, 8]) -> (y):\n"
        "  const w: float32[4, 3, 3, 3]\n"
        "  const half: float32[] = 0.5\n"
        "  c = conv2d(x, w, strides=(2, 2)) : float32[1, 4, 3, 3]\n"
        "  r = relu(c) : float32[1, 4, 3, 3]\n"
        "  y = mul(r, half) : float32[1, 4, 3, 3]\n"
    )


def test_types_know_their_size() -> None:
    t = TensorType((2, 3), "float16")
    assert (t.size, t.nbytes, str(t)) == (6, 12, "float16[2, 3]")


def test_names_are_made_unique() -> None:
    g = GraphBuilder()
    x = g.input("x", (2,))
    names = [g.add("relu", x) for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name.startswith("relu") for name in names)


def test_nodes_of_several_outputs() -> None:
    g = GraphBuilder()
    gates, h, c, r = (g.input(n, s) for n, s in (("g", (2, 12)), ("h", (2, 3)), ("c", (2, 3)), ("r", (4, 3, 3))))
    new_h, new_c = g.add_many("lstm_cell", gates, h, c, r, names=["hidden", "cell"])
    graph = g.build(new_h, new_c)
    assert graph.outputs == ("hidden", "cell")
    assert graph.producers() == {"hidden": graph.nodes[0], "cell": graph.nodes[0]}
    assert graph.consumers()["r"] == [graph.nodes[0]]


def test_rename_reaches_later_uses() -> None:
    g = GraphBuilder()
    x = g.input("x", (2,))
    a = g.add("relu", x, name="a")
    g.add("exp", a, name="b")
    g.rename("a", "z")
    graph = g.build("b")
    assert graph.nodes == (Node("relu", ("x",), ("z",), {}, "a"), Node("exp", ("z",), ("b",), {}, "b"))


def test_unused_constants_are_dropped_and_inputs_stay() -> None:
    g = GraphBuilder()
    x = g.input("x", (2,))
    g.input("unused", (3,))
    g.constant(1.0, "spare")
    graph = g.build(g.add("relu", x, name="y"))
    assert graph.inputs == ("x", "unused")
    assert graph.constants == {}
    assert set(graph.types) == {"x", "unused", "y"}


def test_malformed_additions_are_refused_by_name() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 3))
    with pytest.raises(ModelError, match="'x' is defined twice"):
        g.input("x", (2,))
    with pytest.raises(ModelError, match=r"node 'n': inputs \['nothing'\] are not defined before it"):
        g.add("relu", "nothing", node="n")
    with pytest.raises(ModelError, match="unknown operator 'frobnicate'"):
        g.add("frobnicate", x)
    with pytest.raises(ModelError, match="matmul"):
        g.add("matmul", x, x)
    with pytest.raises(ModelError, match=r"outputs \['z'\] are not defined"):
        g.build("z")

"""Equal constants become one, and only equal ones."""

from __future__ import annotations

import numpy as np

from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.graph.share import share_constants

WEIGHT = np.random.default_rng(0).standard_normal((8, 8)).astype("float32")


def unrolled(*weights: np.ndarray) -> Graph:
    """A product by each of the weights, one after the other."""
    g = GraphBuilder()
    x = g.input("x", (2, 8))
    for i, weight in enumerate(weights):
        x = g.add("tanh", g.add("matmul", x, g.constant(weight, f"w{i}")))
    return g.build(x)


def test_equal_weights_are_shared() -> None:
    graph = unrolled(WEIGHT, WEIGHT.copy(), WEIGHT.T.copy().T)
    shared = share_constants(graph)
    assert list(shared.constants) == ["w0"]
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 8)).astype("float32")}
    (expected,), (found,) = evaluate(graph, feeds).values(), evaluate(shared, feeds).values()
    np.testing.assert_array_equal(found, expected)


def test_what_differs_stays() -> None:
    other = WEIGHT.copy()
    other[3, 5] = np.nextafter(other[3, 5], np.float32(9))  # not among the elements sampled
    zero, negative = WEIGHT.copy(), WEIGHT.copy()
    zero[1, 1], negative[1, 1] = 0.0, -0.0
    graph = unrolled(WEIGHT, other, zero, negative)
    assert share_constants(graph).constants.keys() == graph.constants.keys()


def test_missing_values_are_equal_to_themselves() -> None:
    missing = np.full((8, 8), np.nan, np.float32) + WEIGHT
    assert len(share_constants(unrolled(missing, missing.copy())).constants) == 1


def test_tensors_of_one_value_stay_apart() -> None:
    view, whole = np.broadcast_to(np.float32(0.5), (8, 8)), np.full((8, 8), 0.5, np.float32)
    assert len(share_constants(unrolled(view, view, whole, whole.copy())).constants) == 4


def test_shared_weights_make_equal_nodes_one() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 8))
    a, b = (g.add("matmul", x, g.constant(WEIGHT.copy(), name)) for name in "ab")
    assert [n.op for n in optimize(g.build(g.add("add", a, b))).nodes] == ["matmul", "add"]

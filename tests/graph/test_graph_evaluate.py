import numpy as np
import pytest

from burnish.errors import InputError
from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate

RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((3, 4), dtype=np.float32)


def small() -> Graph:
    g = GraphBuilder()
    m = g.add("matmul", g.input("x", (2, 3)), g.constant(W, "w"), name="m")
    return g.build(g.add("relu", m, name="y"), m)


def test_values_of_outputs_and_kept_tensors() -> None:
    x = RANDOM.standard_normal((2, 3), dtype=np.float32)
    values = evaluate(small(), {"x": x}, keep=["x"])
    np.testing.assert_allclose(values["y"], np.maximum(x @ W, 0), rtol=1e-6)
    assert list(values) == ["y", "m", "x"]


def test_float64_override() -> None:
    x = RANDOM.standard_normal((2, 3), dtype=np.float32)
    values = evaluate(small(), {"x": x}, dtype_override="float64")
    assert values["m"].dtype == np.float64
    np.testing.assert_allclose(values["m"], x.astype(np.float64) @ W.astype(np.float64), rtol=1e-14)


def test_an_output_may_be_an_input_or_a_constant() -> None:
    g = GraphBuilder()
    graph = g.build(g.input("x", (2,)), g.constant(np.float32(3.0), "c"))
    assert evaluate(graph, {"x": np.zeros(2, np.float32)})["c"] == 3.0


def test_wrong_feeds_are_refused() -> None:
    with pytest.raises(InputError, match="input 'x' is missing; given: y"):
        evaluate(small(), {"y": np.zeros(1)})
    with pytest.raises(InputError, match=r"input 'x': found float64\[2, 3\]; allowed: float32\[2, 3\]"):
        evaluate(small(), {"x": np.zeros((2, 3))})

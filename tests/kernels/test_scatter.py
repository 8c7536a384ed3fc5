"""Gradients of gathers: terms that go to positions that data choose, against sums in NumPy and the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph, GraphBuilder
from burnish.kernels.cpu.scatter import SCATTER
from burnish.loops import evaluate as oracle
from burnish.ops import operator_named
from burnish.ops.adjoint import derive

CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("gather", (50, 32), (7,), {}),
    ("gather", (9, 150), (3, 5), {}),
    ("gather", (300, 7), (64,), {}),
    ("gather", (40, 1), (64,), {}),
    ("gather", (5, 33, 48), (40,), {"axis": 1}),
    ("gather", (3, 20), (4, 6), {"axis": 1}),
    ("gather", (1, 40), (6,), {}),
    ("gather", (20, 3, 70), (0,), {}),
    ("gather_elements", (12, 40), (12, 9), {"axis": 1}),
    ("gather_elements", (30, 40), (65, 38), {"axis": 0}),
    ("gather_nd", (9, 8, 33), (70, 2), {}),
    ("gather_nd", (3, 40, 19), (3, 50, 1), {"batch_dims": 1}),
]


def graph_of(op: str, data: tuple[int, ...], index: tuple[int, ...], attrs: dict[str, Any]) -> Graph:
    """The gradient by the data alone."""
    b = GraphBuilder()
    x, at = b.input("x", data), b.input("index", index, "int64")
    return gradients(b.build(b.add(op, x, at, **attrs)), [b.nodes[-1].outputs[0]], ["x"])


def feeds(graph: Graph, data: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Random numbers, and positions in and out of range on both sides."""
    rng = np.random.default_rng(0)
    least = min(n for n in data)
    return {
        name: rng.integers(-least - 2, least + 2, graph.types[name].shape)
        if graph.types[name].dtype == "int64"
        else rng.standard_normal(graph.types[name].shape).astype("f4")
        for name in graph.inputs
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_gathers_agree_with_the_definition(case: tuple[Any, ...]) -> None:
    graph = graph_of(*case)
    given = feeds(graph, case[1])
    module = bn.compile(graph, threads=2)
    wanted = [evaluate(graph, given, "float64")[name] for name in graph.outputs]
    for found, right in zip(module(**given), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * max(1.0, float(np.abs(right).max(initial=0))))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_that_meet_are_added_in_their_order(dtype: str) -> None:
    b = GraphBuilder()
    table, ids = b.input("table", (37, 50)), b.input("ids", (4, 25), dtype)
    graph = gradients(b.build(b.add("gather", table, ids)), [b.nodes[-1].outputs[0]], ["table"])
    module = bn.compile(graph, threads=2)
    assert [k["template"] for k in module.executable.info["kernels"]].count("scatter") == 1
    rng = np.random.default_rng(1)
    ids_now = rng.integers(0, 37, (4, 25)).astype(dtype)
    seed = rng.standard_normal((4, 25, 50)).astype("f4")
    wanted = np.zeros((37, 50), "f4")
    np.add.at(wanted, ids_now, seed)
    one = bn.compile(graph, threads=1)
    given = {"table": np.zeros((37, 50), "f4"), "ids": ids_now, graph.inputs[-1]: seed}
    assert np.array_equal(module(**given)[1], wanted) and np.array_equal(one(**given)[1], wanted)


@pytest.mark.parametrize("vectors", [1, 2, 4])
@pytest.mark.parametrize("width", [31, 32, 200])
def test_all_choices_compute_the_same(check: Any, vectors: int, width: int) -> None:
    check(SCATTER, "adjoint", [derivative((70, width), (90,))], choice={"vectors": vectors}, threads=3)
    check(SCATTER, "adjoint", [derivative((70, width), (90,))], choice={"vectors": vectors}, edge="start")


def derivative(data: tuple[int, ...], index: tuple[int, ...]) -> Any:
    """The gradient of a gather of rows as a definition."""
    found = derive(operator_named, "gather", (), ((data, "float32"), (index, "int64")), 0, (0,)).result
    assert found is not None
    return found


def test_the_oracle_visits_each_term_of_a_large_one_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    dx = derivative((60, 5), (40,))
    given = {t.name: rng.standard_normal(t.shape).astype("f4") for t in dx.inputs if t.dtype == "float32"}
    given |= {t.name: rng.integers(-70, 70, t.shape) for t in dx.inputs if t.dtype == "int64"}
    plain = oracle.evaluate([dx], given, "float64")
    monkeypatch.setattr(oracle, "BLOCK", 64)
    np.testing.assert_allclose(oracle.evaluate([dx], given, "float64"), plain, rtol=1e-12)

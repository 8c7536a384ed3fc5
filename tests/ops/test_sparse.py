"""Aggregation over neighbours against loops over edges, its gradients against differences, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from burnish.errors import ModelError, VerificationError
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import gradients
from burnish.graph.graph import GraphBuilder
from burnish.graph.verify import verify
from burnish.loops.interpret import run_program
from burnish.loops.tensor import create_program, placeholder
from burnish.loops.verify import verify as verify_program
from burnish.ops import OPERATORS, infer
from tests.ops.test_gradients import directional

# Isolated vertices (1, 4, 6), a heavy one (2), a self loop (3), duplicates, sources in no order.
OFFSETS = np.array([0, 2, 2, 9, 11, 11, 12, 12])
SOURCES = np.array([4, 1, 8, 0, 4, 4, 4, 2, 7, 3, 5, 0], np.int32)
ROWS, COUNT, EDGES = 7, 9, 12


def transpose(offsets: np.ndarray, sources: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    targets = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.argsort(sources, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(sources, minlength=count))])
    return starts, targets[order].astype(np.int32), order.astype(np.int32)


BACK = transpose(OFFSETS, SOURCES, COUNT)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def evaluated(op: str, arrays: Sequence[np.ndarray], **attrs: Any) -> np.ndarray:
    b = GraphBuilder()
    feeds = {f"in{i}": a for i, a in enumerate(arrays)}
    for name, a in feeds.items():
        b.input(name, a.shape, str(a.dtype))
    (out,) = b.add_many(op, *feeds, **attrs)
    return evaluate(b.build(out), feeds)[out]


def neighbours(v: int) -> np.ndarray:
    return SOURCES[OFFSETS[v] : OFFSETS[v + 1]]


def reduced(x: np.ndarray, reduction: str) -> np.ndarray:
    kind = {"sum": np.sum, "mean": np.mean, "max": np.max}[reduction]
    none = np.zeros(x.shape[1:])
    return np.stack([kind(x[neighbours(v)], axis=0) if len(neighbours(v)) else none for v in range(ROWS)])


def attended(
    x: np.ndarray, left: np.ndarray, right: np.ndarray, slope: float, edges: np.ndarray | None = None
) -> np.ndarray:
    """``edges``: what is added to the score of each, [E, H]."""
    found = np.zeros((ROWS, *x.shape[1:]))
    for v in range(ROWS):
        score = left[neighbours(v)] + right[v] + (0 if edges is None else edges[OFFSETS[v] : OFFSETS[v + 1]])
        weight = np.exp(np.where(score > 0, score, slope * score))
        if len(weight):
            found[v] = ((weight / weight.sum(0))[:, :, None] * x[neighbours(v)]).sum(0)
    return found


@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_neighbours_are_reduced(reduction: str, dtype: str, index: str) -> None:
    x = normal(COUNT, 5).astype(dtype)
    found = evaluated("aggregate", [x, OFFSETS.astype(index), SOURCES.astype(index)], reduction=reduction)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, reduced(x, reduction), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("features", [0, 1, 3])
def test_a_graph_without_edges_gives_zeros(features: int) -> None:
    nothing = np.zeros(0, np.int32)
    for reduction in ("sum", "mean", "max"):
        found = evaluated("aggregate", [normal(4, features), np.zeros(4, np.int64), nothing], reduction=reduction)
        np.testing.assert_array_equal(found, np.zeros((3, features)))


def test_weights_attention_and_edges() -> None:
    x, weights = normal(COUNT, 5), normal(EDGES, seed=1)
    found = evaluated("aggregate_weighted", [x, weights, OFFSETS, SOURCES])
    expected = [(weights[OFFSETS[v] : OFFSETS[v + 1], None] * x[neighbours(v)]).sum(0) for v in range(ROWS)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    y, targets = normal(ROWS, 5, seed=2), np.repeat(np.arange(ROWS), np.diff(OFFSETS)).astype(np.int32)
    found = evaluated("edge_dot", [x, y, SOURCES, targets])
    np.testing.assert_allclose(found, (x[SOURCES] * y[targets]).sum(1), rtol=1e-12)
    x, left, right = normal(COUNT, 2, 3), 3 * normal(COUNT, 2, seed=3), 3 * normal(ROWS, 2, seed=4)
    found = evaluated("attention", [x, left, right, OFFSETS, SOURCES], slope=0.3)
    np.testing.assert_allclose(found, attended(x, left, right, 0.3), rtol=1e-12, atol=1e-12)
    edge = normal(2, seed=5)
    found = evaluated("attention_weighted", [x, left, right, edge, weights, OFFSETS, SOURCES], slope=0.3)
    expected = attended(x, left, right, 0.3, weights[:, None] * edge)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    found = evaluated("attention_weighted", [x, left - 900, right, edge, weights, OFFSETS, SOURCES], slope=1.0)
    np.testing.assert_allclose(found, attended(x, left, right, 1.0, weights[:, None] * edge), rtol=1e-9)


def test_weighted_maxima() -> None:
    x, weights = normal(COUNT, 5), normal(EDGES, seed=1)
    found = evaluated("aggregate_weighted", [x, weights, OFFSETS, SOURCES], reduction="max")
    expected = [
        (weights[OFFSETS[v] : OFFSETS[v + 1], None] * x[neighbours(v)]).max(0, initial=-np.inf) for v in range(ROWS)
    ]
    np.testing.assert_array_equal(found, np.where(np.isinf(expected), 0, expected))


def test_structures_are_sorted() -> None:
    starts, targets, order = BACK
    np.testing.assert_array_equal(evaluated("csr_offsets", [SOURCES], extent=COUNT), starts)
    np.testing.assert_array_equal(evaluated("csr_order", [SOURCES], extent=COUNT), order)
    np.testing.assert_array_equal(evaluated("csr_targets", [OFFSETS], extent=EDGES)[order], targets)
    assert evaluated("csr_degrees", [OFFSETS], dtype="float64").ravel().tolist() == [2, 1, 7, 2, 1, 1, 1]
    with pytest.raises(IndexError, match="found 0 to 8; allowed: 0 to 7"):
        evaluated("csr_offsets", [SOURCES], extent=8)


@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_edge_lists_are_reduced_by_segment(reduction: str) -> None:
    values, segments = normal(6, 4), np.array([3, 0, 3, 4, 0, 3], np.int32)
    kind = {"sum": np.sum, "mean": np.mean, "max": np.max}[reduction]
    found = evaluated("segment_reduce", [values, segments], extent=6, reduction=reduction)
    expected = [kind(values[segments == s], axis=0) if s in segments else np.zeros(4) for s in range(6)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_programs_mean_what_definitions_do() -> None:
    x, weights = normal(COUNT, 3), normal(EDGES, seed=1)
    left, right = normal(COUNT, 2, seed=2), normal(ROWS, 2, seed=3)
    cases: Sequence[tuple[str, Sequence[np.ndarray], Mapping[str, Any]]] = (
        ("aggregate", [x, OFFSETS, SOURCES], {"reduction": "max"}),
        ("aggregate", [x, OFFSETS, SOURCES], {"reduction": "mean"}),
        ("aggregate_weighted", [x, weights, OFFSETS, SOURCES], {}),
        ("attention", [normal(COUNT, 2, 3), left, right, OFFSETS, SOURCES], {}),
        ("attention_weighted", [normal(COUNT, 2, 3), left, right, normal(2), weights, OFFSETS, SOURCES], {}),
    )
    for op, arrays, attrs in cases:
        inputs = [placeholder(a.shape, str(a.dtype), f"in{i}") for i, a in enumerate(arrays)]
        outputs = OPERATORS[op].define("y", inputs, attrs)
        program = create_program("p", inputs, outputs)
        verify_program(program)
        found = run_program(program, {f"in{i}": a for i, a in enumerate(arrays)})["y"]
        np.testing.assert_allclose(found, evaluated(op, arrays, **attrs), rtol=1e-12, atol=1e-12)


STRUCTURE = [OFFSETS, SOURCES]
TARGETS = np.repeat(np.arange(ROWS), np.diff(OFFSETS))
CASES: Sequence[tuple[str, Sequence[np.ndarray], Mapping[str, Any]]] = (
    *(("aggregate", [normal(COUNT, 4), *STRUCTURE], {"reduction": r}) for r in ("sum", "mean", "max")),
    *(("aggregate", [normal(COUNT, 4), *STRUCTURE, *BACK[:2]], {"reduction": r}) for r in ("sum", "mean", "max")),
    ("aggregate_weighted", [normal(COUNT, 4), normal(EDGES, seed=1), *STRUCTURE], {}),
    ("aggregate_weighted", [normal(COUNT, 4), normal(EDGES, seed=1), *STRUCTURE, *BACK], {}),
    ("aggregate_weighted", [normal(COUNT, 4), normal(EDGES, seed=1), *STRUCTURE], {"reduction": "max"}),
    ("aggregate_weighted", [normal(COUNT, 4), normal(EDGES, seed=1), *STRUCTURE, *BACK], {"reduction": "max"}),
    ("edge_dot", [normal(COUNT, 4), normal(ROWS, 4, seed=1), SOURCES, TARGETS], {}),
    *(("attention_weighted", [normal(COUNT, 2, 3), 2 * normal(COUNT, 2, seed=1), 2 * normal(ROWS, 2, seed=2),
       normal(2, seed=3), normal(EDGES, seed=4), *STRUCTURE, *back], {"slope": 0.3}) for back in ((), BACK)),
    ("attention", [normal(COUNT, 2, 3), normal(COUNT, 2, seed=1), normal(ROWS, 2, seed=2), *STRUCTURE], {"slope": 0.3}),
    ("attention", [normal(COUNT, 1, 4), normal(COUNT, 1, seed=1), normal(ROWS, 1, seed=2), *STRUCTURE, *BACK[:2]], {}),
    *(("segment_reduce", [normal(6, 4), np.array([3, 0, 3, 4, 0, 3])], {"extent": 6, "reduction": r})
      for r in ("sum", "mean", "max")),
)  # fmt: skip


@pytest.mark.parametrize("op, arrays, attrs", CASES)
def test_gradients_equal_differences(op: str, arrays: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> None:
    b = GraphBuilder()
    feeds = {f"in{i}": a for i, a in enumerate(arrays)}
    for name, a in feeds.items():
        b.input(name, a.shape, str(a.dtype))
    outputs = b.add_many(op, *feeds, **attrs)
    graph = b.build(*outputs)
    verify(graph)
    directional(graph, list(outputs), feeds, [name for name, a in feeds.items() if a.dtype == np.float64])


def test_equal_maxima_share_the_gradient() -> None:
    b = GraphBuilder()
    x, o, s = b.input("x", (2, 1), "float64"), b.input("o", (2,), "int64"), b.input("s", (3,), "int32")
    graph = b.build(b.add("aggregate", x, o, s, reduction="max"))
    backward = gradients(graph, graph.outputs, ["x"])
    feeds = {"x": np.ones((2, 1)), "o": np.array([0, 3]), "s": np.array([0, 1, 1], np.int32)}
    seeds = {name: np.ones((1, 1)) for name in backward.inputs if name not in feeds}
    found = evaluate(backward, {**feeds, **seeds}, "float64")[backward.outputs[-1]]
    np.testing.assert_allclose(found.ravel(), [1 / 3, 2 / 3])


@pytest.mark.parametrize("offsets, first", [([0, 5, 3, 12, 12, 12, 12, 12], 5), ([0, 2, 2, 9, 11, 11, 12, 99], 12)])
def test_the_oracle_finds_offsets_that_are_none(offsets: Sequence[int], first: int) -> None:
    with pytest.raises(VerificationError, match=f"runs from {first} to"):
        evaluated("aggregate", [normal(COUNT, 2), np.array(offsets), SOURCES])


def test_types_are_refused_by_name() -> None:
    f, i = "float32", "int32"
    structure = [((5,), i), ((9,), i)]
    with pytest.raises(ModelError, match=r"aggregate 'y': input 'sources': found dtype float32"):
        infer("aggregate", [((7, 3), f), ((5,), i), ((9,), f)])
    with pytest.raises(ModelError, match=r"input 'offsets_t': found shape \[5\]; allowed: shape \[8\]"):
        infer("aggregate", [((7, 3), f), *structure, ((5,), i), ((9,), i)])
    with pytest.raises(ModelError, match="found 1 of the transpose's tensors; allowed: all or none"):
        infer("aggregate", [((7, 3), f), *structure, ((8,), i)])
    with pytest.raises(ModelError, match="attribute 'reduction': found min"):
        infer("aggregate", [((7, 3), f), *structure], {"reduction": "min"})
    with pytest.raises(ModelError, match=r"input 'weights': found shape \[8\]"):
        infer("aggregate_weighted", [((7, 3), f), ((8,), f), *structure])
    with pytest.raises(ModelError, match=r"input 'right': found shape \[5, 2\]; allowed: shape \[4, 2\]"):
        infer("attention", [((7, 2, 3), f), ((7, 2), f), ((5, 2), f), *structure])

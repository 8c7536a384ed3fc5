"""Sums of many gradients joined into one product, or one tensor, against NumPy."""

from __future__ import annotations

import numpy as np

import burnish as bn
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import backpropagate, gradients
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.rewrite import drop_dead

RNG = np.random.default_rng(0)
STEPS, ROWS, WIDTH = 4, 3, 5


def recurrence(steps: int = STEPS, dropped: int = 0) -> Graph:
    """``h = tanh(x[t] + h @ w)`` over all steps but ``dropped`` ones, unrolled; the gradients by x and w."""
    b = GraphBuilder()
    x, w = b.input("x", (steps * ROWS, WIDTH)), b.input("w", (WIDTH, WIDTH))
    h = b.constant(np.ones((ROWS, WIDTH), "f4") / 2)
    for t in range(steps - dropped):
        part = b.add("slice", x, starts=(t * ROWS, 0), extents=(ROWS, WIDTH))
        h = b.add("tanh", b.add("add", part, b.add("matmul", h, w)))
    return gradients(b.build(b.add("reduce_sum", b.add("mul", h, h), keepdims=False)), "reduce_sum", ("x", "w"))


def expected(x: np.ndarray, w: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    states = [np.full((ROWS, WIDTH), 0.5)]
    for t in range(steps):
        states.append(np.tanh(x[t * ROWS : (t + 1) * ROWS] + states[-1] @ w))
    dx, dw, dh = np.zeros_like(x), np.zeros_like(w), 2 * states[-1]
    for t in reversed(range(steps)):
        inner = dh * (1 - states[t + 1] ** 2)
        dx[t * ROWS : (t + 1) * ROWS] = inner
        dw += states[t].T @ inner
        dh = inner @ w.T
    return dx, dw


def test_gradients_of_an_unrolled_recurrence_are_joined() -> None:
    x, w = RNG.normal(size=(STEPS * ROWS, WIDTH)), RNG.normal(size=(WIDTH, WIDTH))
    graph = drop_dead(recurrence())
    products = [n for n in graph.nodes if n.op == "matmul" and n.attrs.get("transpose_a")]
    assert [graph.types[n.inputs[0]].shape for n in products] == [(STEPS * ROWS, WIDTH)]
    assert not [n for n in graph.nodes if n.op == "adjoint" and n.attrs["operator"] == "slice"]
    feeds = {"x": x.astype("f4"), "w": w.astype("f4")}
    found = bn.compile(graph, threads=2)(*feeds.values())[1:]
    for got, wanted in zip(found, expected(x, w, STEPS), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5)


def test_rows_that_nothing_reads_have_a_gradient_of_zero() -> None:
    x, w = RNG.normal(size=(STEPS * ROWS, WIDTH)), RNG.normal(size=(WIDTH, WIDTH))
    graph = recurrence(dropped=1)
    found = evaluate(graph, {"x": x.astype("f4"), "w": w.astype("f4")}, "float64")
    wanted = expected(x, w, STEPS - 1)
    np.testing.assert_allclose(found["x.grad"], wanted[0], atol=1e-5)
    np.testing.assert_allclose(found["w.grad"], wanted[1], atol=1e-5)


def test_overlapping_slices_are_added() -> None:
    b = GraphBuilder()
    x = b.input("x", (6, 2))
    parts = [b.add("slice", x, starts=(start, 0), extents=(3, 2)) for start in (0, 3, 2, 0)]
    total = b.add("add", b.add("add", parts[0], parts[1]), b.add("add", parts[2], parts[3]))
    graph = gradients(b.build(b.add("reduce_sum", total, keepdims=False)), "reduce_sum", ["x"])
    found = evaluate(graph, {"x": np.zeros((6, 2), "f4")})["x.grad"]
    assert found[:, 0].tolist() == [2, 2, 3, 2, 2, 1]


def test_segments_add_up_what_they_give_to_weights() -> None:
    """Products of one segment are joined, and added to the sum of those behind it."""
    b = GraphBuilder()
    x, w = b.input("x", (STEPS * ROWS, WIDTH)), b.state("w", RNG.normal(size=(WIDTH, WIDTH)).astype("f4"))
    h, begins = b.constant(np.ones((ROWS, WIDTH), "f4") / 2), []
    for t in range(STEPS):
        begins += [len(b.nodes)] if t in (2,) else []
        part = b.add("slice", x, starts=(t * ROWS, 0), extents=(ROWS, WIDTH))
        h = b.add("tanh", b.add("add", part, b.add("matmul", h, w)))
    loss = b.add("reduce_sum", b.add("mul", h, h), keepdims=False)
    b.segments = tuple(begins)
    (gradient,) = backpropagate(b, {loss: b.constant(1.0)}, ["w"])
    graph = drop_dead(b.build(loss, gradient))
    products = [n for n in graph.nodes if n.op == "matmul" and n.attrs.get("transpose_a")]
    assert [graph.types[n.inputs[0]].shape for n in products] == [(2 * ROWS, WIDTH)] * 2
    assert [n.op for n in graph.nodes if products[0].outputs[0] in n.inputs] == ["add_term"]
    values = RNG.normal(size=(STEPS * ROWS, WIDTH)).astype("f4")
    found = evaluate(graph, {"x": values, "w": graph.states["w"].initial}, "float64")
    wanted = expected(values, graph.states["w"].initial, STEPS)[1]
    np.testing.assert_allclose(found[gradient], wanted, atol=1e-5)

"""Attention in steps of training: gathered to one node, right by blocks of rows, without a matrix of all scores."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.row_attention import gather_attention
from burnish.machines.target import target
from burnish.ops import row_attention
from burnish.simulators.gpu.emulator import emulated
from burnish.train.step import training_graph

SHAPE = (2, 2, 24, 16)


def layer(causal: bool, shape: tuple[int, ...] = SHAPE) -> Graph:
    """Queries by a weight, keys and values as they are given."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    q, k, v = (b.input(name, shape) for name in "qkv")
    weight = b.constant(rng.standard_normal((shape[-1], shape[-1]), "f4") / 4, "w")
    keys = b.constant(rng.standard_normal(shape, "f4"), "bias")
    q, k = b.add("mul", b.add("matmul", q, weight), b.constant(0.25, dtype="float32")), b.add("add", k, keys)
    scores = b.add("matmul", q, k, transpose_b=True)
    if causal:
        mask = b.constant(np.tri(shape[-2], dtype=bool))
        scores = b.add("where", mask, scores, b.constant(-np.inf, dtype="float32"))
    else:
        scores = b.add("div", scores, b.constant(2.0, dtype="float32"))
    return b.build(b.add("matmul", b.add("softmax", scores), v))


def feeds(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(graph.types[name].shape, "f4") for name in graph.inputs]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [1 << 30, 4 * 4 * 24 * 16])
def test_gathered_attention_and_its_gradient_are_the_same(
    causal: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_attention, "BLOCK_BYTES", block)
    graph = layer(causal)
    gathered = gather_attention(graph)
    assert [n.op for n in gathered.nodes if n.op in ("softmax", "row_attention")] == ["row_attention"]
    wrt = [*graph.inputs, "w", "bias"]
    whole, parted = (bn.gradients(g, graph.outputs[0], wrt) for g in (graph, gathered))
    seed = np.random.default_rng(2).standard_normal(graph.types[graph.outputs[0]].shape).astype("f4")
    values = dict(zip(whole.inputs, [*feeds(graph), seed], strict=True))
    one, other = evaluate(whole, values), evaluate(parted, values)
    for a, b in zip(whole.outputs, parted.outputs, strict=True):
        np.testing.assert_allclose(other[b], one[a], rtol=1e-4, atol=1e-5)


def test_what_is_no_attention_stays() -> None:
    b = GraphBuilder()
    q, v = b.input("q", SHAPE), b.input("v", SHAPE)
    scores = b.add("add", b.add("matmul", q, q, transpose_b=True), b.input("bias", (24, 24)))
    graph = b.build(b.add("matmul", b.add("softmax", scores), v))
    assert "softmax" in {n.op for n in gather_attention(graph).nodes}
    b = GraphBuilder()
    shares = b.add("softmax", b.add("matmul", b.input("q", SHAPE), b.input("k", SHAPE), transpose_b=True))
    graph = b.build(b.add("matmul", shares, b.input("v", SHAPE)), shares)
    assert "softmax" in {n.op for n in gather_attention(graph).nodes}, "the shares are a result"


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_a_step_on_a_gpu_is_the_cpus(precision: str | None) -> None:
    graph = layer(True)
    recipe = bn.Train("mse", bn.SGD(0.1), precision=precision, parameters=("w", "bias"))
    there, here = (bn.compile(graph, train=recipe, target=t) for t in (emulated(target("cuda:sm_90a")), "cpu"))
    given: list[Any] = [*feeds(graph), np.zeros(SHAPE, "f4")]
    rough = 1e-5 if precision is None else 2e-2
    for _ in range(2):
        np.testing.assert_allclose(there(*given), here(*given), rtol=rough)
    for name in ("w", "bias"):
        np.testing.assert_allclose(there.state[name], here.state[name], rtol=rough, atol=rough / 10)
    kinds = [row["template"] for row in there.info["kernels"]]
    assert any("attention" in kind for kind in kinds)


def test_memory_of_a_step_is_linear_in_the_rows() -> None:
    """No tensor of a step has an element for every pair of rows but those of a block."""
    shape = (4, 8, 8192, 16)
    step = training_graph(gather_attention(layer(False, shape)), bn.Train("mse", parameters=("w", "bias")))
    largest = max(prod(t.shape) for n, t in step.types.items() if n not in step.constants)
    assert largest <= max(row_attention.BLOCK_BYTES // 4, prod(shape)) < 4 * 8 * 8192 * 8192 // 8

"""Attention in steps of training: gathered to one node, right by blocks of rows, without a matrix of all scores."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import torch

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


def test_windows_and_shared_heads_are_gathered() -> None:
    """A sliding window as a mask that is added, heads that are repeated, and heads that are moved behind rows."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    q, (k, v) = b.input("q", (2, 4, 24, 16)), (b.input(name, (2, 2, 24, 16)) for name in "kv")
    away = np.arange(24) - np.arange(24)[:, None]
    mask = b.constant(np.where((away <= 0) & (away > -9), 0, -np.inf).astype("f4"))

    def repeated(x: str) -> str:
        apart = b.add("reshape", x, shape=(2, 2, 1, 24, 16))
        return b.add("reshape", b.add("expand", apart, shape=(2, 2, 2, 24, 16)), shape=(2, 4, 24, 16))

    scaled = b.add("mul", q, b.constant(0.25, dtype="float32"))
    scores = b.add("add", b.add("matmul", scaled, repeated(k), transpose_b=True), mask)
    mixed = b.add("matmul", b.add("softmax", scores), repeated(v))
    graph = b.build(b.add("transpose", mixed, perm=(0, 2, 1, 3)))
    gathered = gather_attention(graph)
    (node,) = gathered.nodes
    assert node.op == "row_attention" and node.inputs == ("q", "k", "v")
    assert node.attrs == {"scale": 0.25, "lower": -8, "upper": 0, "inside": True}
    whole, parted = (bn.gradients(g, graph.outputs[0], ["q", "k", "v"]) for g in (graph, gathered))
    values = {n: rng.standard_normal(whole.types[n].shape).astype("f4") for n in whole.inputs}
    one, other = evaluate(whole, values), evaluate(parted, values)
    for a, b_ in zip(whole.outputs, parted.outputs, strict=True):
        np.testing.assert_allclose(other[b_], one[a], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_err_no_more_than_pytorchs_of_halves(dtype: str) -> None:
    graph = GraphBuilder()
    shape = (1, 2, 48, 32)
    q, k, v = (graph.input(name, shape, dtype) for name in "qkv")
    y, _ = graph.add_many("row_attention", q, k, v, scale=32**-0.5, upper=0)
    step = bn.gradients(graph.build(y), y, ["q", "k", "v"])
    module = bn.compile(step, target=emulated(target("cuda:sm_80")))
    assert sum(row["template"] == "tensor_attention_gradient" for row in module.info["kernels"]) == 2
    torch.manual_seed(0)
    given = [torch.randn(shape).to(getattr(torch, dtype)) for _ in range(4)]
    found = [np.asarray(x).astype("float64") for x in module(*given)][1:]

    def gradients(kind: Any) -> list[np.ndarray]:
        q, k, v = (x.detach().to(kind).requires_grad_() for x in given[:3])
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).backward(given[3].to(kind))
        return [x.grad.double().numpy() for x in (q, k, v)]

    for mine, theirs, right in zip(found, gradients(given[0].dtype), gradients(torch.float64), strict=True):
        assert np.sqrt(np.mean((mine - right) ** 2)) <= 1.1 * np.sqrt(np.mean((theirs - right) ** 2))


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


@pytest.mark.parametrize("precision", [pytest.param(None, marks=pytest.mark.slow), "bfloat16"])
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
    own = "attention_gradient" if precision is None else "tensor_attention_gradient"
    assert kinds.count(own) == 2 == sum("attention_gradient" in kind for kind in kinds), "float32 is strict"


@pytest.mark.slow
def test_gradients_of_float32_are_on_tensor_cores_where_products_may_round() -> None:
    graph, recipe = layer(True), bn.Train("mse", bn.SGD(0.1), parameters=("w", "bias"))
    own, rough = target("cuda:sm_80,tf32"), 5e-3
    there, here = (bn.compile(graph, train=recipe, target=t) for t in (emulated(own), "cpu"))
    kinds = [row["template"] for row in there.info["kernels"]]
    assert kinds.count("tensor_attention_gradient") == 2 and "tensor_attention" in kinds
    given: list[Any] = [*feeds(graph), np.zeros(SHAPE, "f4")]
    for _ in range(2):
        np.testing.assert_allclose(there(*given), here(*given), rtol=rough)
    for name in ("w", "bias"):
        np.testing.assert_allclose(there.state[name], here.state[name], rtol=rough, atol=rough / 10)


def test_memory_of_a_step_is_linear_in_the_rows() -> None:
    """No tensor of a step has an element for every pair of rows but those of a block."""
    shape = (4, 8, 8192, 16)
    step = training_graph(gather_attention(layer(False, shape)), bn.Train("mse", parameters=("w", "bias")))
    largest = max(prod(t.shape) for n, t in step.types.items() if n not in step.constants)
    assert largest <= max(row_attention.BLOCK_BYTES // 4, prod(shape)) < 4 * 8 * 8192 * 8192 // 8

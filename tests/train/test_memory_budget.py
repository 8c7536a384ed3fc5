"""Training steps within a memory budget: what the arena takes, and that every number stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ParameterError
from burnish.graph.graph import Graph, GraphBuilder
from tests.marks import slow

RNG = np.random.default_rng(0)
ROWS, WIDTH = 64, 32


def deep(layers: int = 5) -> Graph:
    """Dense layers with ReLU; every other one has a residual connection."""
    b = GraphBuilder()
    x = b.input("x", (ROWS, WIDTH))
    for i in range(layers):
        weight = b.constant((RNG.normal(size=(WIDTH, WIDTH)) / 5).astype("f4"), f"w{i}")
        y = b.add("relu", b.add("matmul", x, weight, node=f"dense{i}"), node=f"relu{i}")
        x = b.add("add", x, y) if i % 2 else y
    return b.build(b.add("matmul", x, b.constant(RNG.normal(size=(WIDTH, 4)).astype("f4"), "head")))


def convolutions() -> Graph:
    """Convolutions with batch normalization, whose running statistics move with every step, and joined branches."""
    b = GraphBuilder()
    x = b.input("x", (4, 3, 12, 12))
    for i, channels in enumerate((16, 16)):
        inputs = b.types[x].shape[1]
        weight = b.constant((RNG.normal(size=(channels, inputs, 3, 3)) / 6).astype("f4"), f"w{i}")
        y = b.add("conv2d", x, weight, pads=(1, 1, 1, 1), node=f"conv{i}")
        ones, zeros = np.ones(channels, "f4"), np.zeros(channels, "f4")
        own = [b.constant(v.copy(), f"{k}{i}") for k, v in zip("smgv", (ones, zeros, zeros, ones), strict=True)]
        x = b.add("relu", b.add("batch_norm", y, *own))
        if i == 1:
            x = b.add("concat", x, b.add("max_pool2d", x, kernel=(3, 3), pads=(1, 1, 1, 1)), axis=1)
    pooled = b.add("reduce_mean", x, axes=(2, 3), keepdims=False)
    return b.build(b.add("matmul", pooled, b.constant(RNG.normal(size=(32, 4)).astype("f4"), "head")))


def attention(layers: int = 2) -> Graph:
    """Layers of attention: reshapes and slices, which only give memory other names, between products."""
    b = GraphBuilder()
    x = b.input("x", (8, 16, WIDTH))
    for i in range(layers):
        weight = b.constant((RNG.normal(size=(WIDTH, 3 * WIDTH)) / 6).astype("f4"), f"qkv{i}")
        parts = b.add("reshape", b.add("matmul", x, weight), shape=(8, 16, 3, 2, WIDTH // 2))
        q, k, v = (_head(b, parts, n) for n in range(3))
        scores = b.add("softmax", b.add("matmul", q, k, transpose_b=True), axis=-1)
        mixed = b.add(
            "reshape", b.add("transpose", b.add("matmul", scores, v), perm=(0, 2, 1, 3)), shape=(8, 16, WIDTH)
        )
        x = b.add("add", x, b.add("relu", mixed))
    pooled = b.add("reduce_mean", x, axes=(1,), keepdims=False)
    return b.build(b.add("matmul", pooled, b.constant(RNG.normal(size=(WIDTH, 4)).astype("f4"), "head")))


def _head(b: GraphBuilder, parts: str, n: int) -> str:
    one = b.add("slice", parts, starts=(0, 0, n, 0, 0), extents=(8, 16, 1, 2, WIDTH // 2))
    return b.add("transpose", b.add("reshape", one, shape=(8, 16, 2, WIDTH // 2)), perm=(0, 2, 1, 3))


def batches(graph: Graph, count: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    shape = graph.types["x"].shape
    random = np.random.default_rng(1)
    return [(random.normal(size=shape).astype("f4"), random.integers(0, 4, shape[0])) for _ in range(count)]


def compiled(graph: Graph, budget: Any = None) -> bn.Module:
    train = bn.Train(optimizer=bn.SGD(0.1, momentum=0.9), memory_budget=budget)
    return bn.compile(graph, train=train, threads=1)


def after(module: bn.Module, given: list[tuple[np.ndarray, np.ndarray]]) -> tuple[list[float], dict[str, np.ndarray]]:
    losses = [float(module(*pair)) for pair in given]
    return losses, {name: module.state[name].copy() for name in module.state}


@pytest.mark.parametrize("make", slow([deep, convolutions, attention], convolutions, attention))
def test_budgets_are_kept_and_no_bit_changes(make: Any) -> None:
    graph = make()
    given = batches(graph)
    plain = compiled(graph)
    whole = plain.memory["arena"]
    losses, states = after(plain, given)
    extra = [0.0]
    for share in (1.0, 0.9, 0.75, 0.6):
        try:
            module = compiled(graph, int(share * whole))
        except ParameterError:
            assert share < 0.8
            break
        assert module.memory["arena"] <= share * whole
        found_losses, found_states = after(module, given)
        assert found_losses == losses and found_states.keys() == states.keys()
        assert all(np.array_equal(found_states[name], states[name]) for name in states)
        recomputed = module.executable.info["recomputation"]
        assert (recomputed["repeated"] > 0) == (share < 1.0)
        extra.append(recomputed["extra"])
    assert extra == sorted(extra) and len(extra) > 3


def test_a_budget_below_the_least_is_refused_with_the_least() -> None:
    graph = deep(3)
    with pytest.raises(ParameterError, match=r"memory_budget: found 1000 bytes .* allowed: \d+ bytes") as refused:
        compiled(graph, 1000)
    least = int(str(refused.value).split("allowed: ")[1].split(" bytes")[0])
    module = compiled(graph, least)
    assert module.memory["arena"] <= least < compiled(graph).memory["arena"]
    with pytest.raises(ParameterError, match=rf"allowed: {least} bytes"):
        compiled(graph, least - 64)


@pytest.mark.parametrize("budget", slow(["drop-cheap", "sublinear", "least", {"relu1": 1, "dense2": 1}], "least"))
def test_strategies_and_mirror_counts_in_place_of_a_budget(budget: Any) -> None:
    graph = deep(6)
    given = batches(graph)
    plain, module = compiled(graph), compiled(graph, budget)
    assert after(module, given)[0] == after(plain, given)[0]
    recomputed = module.executable.info["recomputation"]
    assert recomputed["repeated"] > 0 and recomputed["calls"] == len(module.executable.steps)
    assert all(np.array_equal(module.state[name], plain.state[name]) for name in plain.state)


def test_wrong_budgets_are_refused_before_any_work() -> None:
    for wrong in ("2 lightyears", 0, True, {"relu": "often"}):
        with pytest.raises(ParameterError, match="Train: memory_budget: found"):
            bn.Train(memory_budget=wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"mirror: found 'nothing'; allowed: nodes of the forward pass"):
        compiled(deep(2), {"nothing": 1})


def test_a_planned_step_is_saved_and_goes_on(tmp_path: Any) -> None:
    graph = deep(3)
    given = batches(graph, 4)
    module = compiled(graph, "least")
    after(module, given[:2])
    module.save(tmp_path / "step.bn")
    again = bn.load(tmp_path / "step.bn")
    assert again.memory["arena"] == module.memory["arena"]
    assert after(again, given[2:])[0] == after(module, given[2:])[0]


def test_updates_run_as_soon_as_gradients_are_there() -> None:
    """The gradients of no two layers are there at once: what is live beside activations is less than all weights."""
    module = compiled(deep(8))
    activations = 2 * 9 * ROWS * WIDTH * 4
    assert module.memory["arena"] < activations + 4 * WIDTH * WIDTH * 4


def test_names_of_a_model_that_training_would_give_as_well() -> None:
    """Two normalizations under the builder's own names: further results of the first take none of the second's."""
    b = GraphBuilder()
    x = b.input("x", (8, 4, 3, 3))
    for _ in range(2):
        ones, zeros = np.ones(4, "f4"), np.zeros(4, "f4")
        x = b.add("batch_norm", x, *(b.constant(v) for v in (ones, zeros, zeros.copy(), ones.copy())))
    graph = b.build(b.add("reduce_mean", x, axes=(2, 3), keepdims=False))
    assert np.isfinite(float(compiled(graph)(*batches(graph, 1)[0])))

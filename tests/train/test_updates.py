"""Updates within the compiled step: clipping, accumulation, loss scaling and guards, against PyTorch's steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ParameterError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.runtime.module import Module
from burnish.train.precision import MixedPrecision, in_half
from tests.marks import slow
from tests.train.networks import B1, B2, W1, W2, perceptron, rows

NAMES = ("w1", "b1", "w2", "b2")


def batches(count: int, size: int = 16) -> list[tuple[np.ndarray, np.ndarray]]:
    data = rows(count * size)
    return [(data["x"][i : i + size], data["label"][i : i + size]) for i in range(0, count * size, size)]


class Peer:
    """The same network in PyTorch."""

    def __init__(self, torch: Any, optimizer: str = "SGD", **arguments: Any) -> None:
        self._torch = torch
        self.parameters = [torch.tensor(a.copy(), requires_grad=True) for a in (W1, B1, W2, B2)]
        self.optimizer = getattr(torch.optim, optimizer)(self.parameters, **arguments)

    def loss(self, x: np.ndarray, label: np.ndarray) -> Any:
        torch, (w1, b1, w2, b2) = self._torch, self.parameters
        return torch.nn.functional.cross_entropy(torch.tanh(torch.tensor(x) @ w1 + b1) @ w2 + b2, torch.tensor(label))

    def step(self, x: np.ndarray, label: np.ndarray, **clip: float) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(x, label)
        loss.backward()
        if "value" in clip:
            self._torch.nn.utils.clip_grad_value_(self.parameters, clip["value"])
        if "norm" in clip:
            self._torch.nn.utils.clip_grad_norm_(self.parameters, clip["norm"])
        self.optimizer.step()
        return float(loss.detach())


def assert_same(step: Module, peer: Peer, atol: float = 1e-5) -> None:
    for name, parameter in zip(NAMES, peer.parameters, strict=True):
        np.testing.assert_allclose(step.state[name], parameter.detach().numpy(), atol=atol)


@pytest.mark.parametrize("clip", [{"norm": 0.05}, {"norm": 100.0}, {"value": 0.01}, {"value": 0.02, "norm": 0.05}])
def test_clipped_steps_are_those_of_torch(clip: dict[str, float]) -> None:
    import torch

    train = bn.Train(optimizer=bn.SGD(0.5, momentum=0.9), clip_norm=clip.get("norm"), clip_value=clip.get("value"))
    step, peer = bn.compile(perceptron(), train=train, threads=2), Peer(torch, lr=0.5, momentum=0.9)
    for x, label in batches(6):
        assert abs(float(step(x, label)) - peer.step(x, label, **clip)) < 1e-5
    assert_same(step, peer)


def test_the_rate_follows_its_schedule_from_step_to_step() -> None:
    import torch

    step = bn.compile(perceptron(), train=bn.Train(optimizer=bn.SGD(0.5), schedule=bn.CosineDecay(8)), threads=1)
    peer = Peer(torch, lr=0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(peer.optimizer, 8)
    for x, label in batches(8):
        step(x, label)
        peer.step(x, label)
        scheduler.step()
    assert_same(step, peer)
    assert step.state["optimizer.learning_rate"] == 0.5  # what the schedule's factor multiplies


def test_accumulated_batches_make_one_step() -> None:
    import torch

    train = bn.Train(optimizer=bn.Adam(0.01), accumulation_steps=3, clip_norm=0.5)
    step, peer = bn.compile(perceptron(), train=train, threads=2), Peer(torch, "Adam", lr=0.01)
    given = batches(9)
    for number in range(0, 9, 3):
        before = step.state["w1"]
        for call, pair in enumerate(given[number : number + 3]):
            assert np.array_equal(step.state["w1"], before), "only the last batch of three moves parameters"
            assert step.state["optimizer.calls"] == call
            step(*pair)
        peer.step(*(np.concatenate(arrays) for arrays in zip(*given[number : number + 3], strict=True)), norm=0.5)
        assert_same(step, peer)
    assert step.state["optimizer.step"] == 3 and not step.state["w1.sum"].any()


def test_a_guarded_step_changes_nothing_where_the_loss_is_not_finite() -> None:
    train = bn.Train(optimizer=bn.Adam(0.01), skip_nonfinite=True, accumulation_steps=2)
    step, (first, second) = bn.compile(perceptron(), train=train, threads=1), batches(2)
    step(*first)
    before = dict(step.state)
    assert np.isnan(step(np.full_like(first[0], np.nan), first[1]))
    assert all(np.array_equal(step.state[name], value) for name, value in before.items())
    assert np.isfinite(step(*second)) and step.state["optimizer.step"] == 1


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_guarded_step_refuses_gradients_that_are_not_finite(clip: float | None) -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 3))
    graph = b.build(b.add("sqrt", b.add("matmul", x, b.constant(np.ones((3, 1), "f4"), "w"))))
    label = np.zeros((4, 1), "f4")
    step = bn.compile(graph, train=bn.Train("mse", bn.SGD(0.1), clip_norm=clip, skip_nonfinite=True), threads=1)
    assert np.isnan(step(np.zeros((4, 3), "f4"), label))  # the root of 0 has no finite slope
    assert np.array_equal(step.state["w"], np.ones((3, 1), "f4")) and step.state["optimizer.step"] == 0
    assert np.isfinite(step(np.ones((4, 3), "f4"), label)) and step.state["optimizer.step"] == 1


@pytest.mark.parametrize("dtype", slow(["bfloat16", "float16"], "float16"))
def test_half_precision_stays_near_float32(dtype: str) -> None:
    plain = bn.Train(optimizer=bn.SGD(0.2, momentum=0.9))
    full = bn.compile(perceptron(), train=plain, threads=1)
    half = bn.compile(perceptron(), train=replace(plain, precision=dtype), threads=1)
    losses = np.array([[float(full(*pair)), float(half(*pair))] for pair in batches(20)])
    assert half.state["w1"].dtype == np.float32
    assert not np.array_equal(losses[:, 0], losses[:, 1])
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], rtol=0.02 if dtype == "bfloat16" else 0.003, atol=0.01)
    assert losses[-1, 1] < 0.7 * losses[0, 1]


def test_products_are_in_half_precision_and_losses_are_not() -> None:
    graph = in_half(perceptron(), "bfloat16")
    kinds = {node.op: {graph.types[name].dtype for name in node.outputs} for node in graph.nodes}
    assert kinds["matmul"] == kinds["tanh"] == {"bfloat16"}
    assert graph.types[graph.outputs[0]] == perceptron().types[perceptron().outputs[0]]
    b = GraphBuilder()
    power = b.add("exp", b.add("matmul", b.input("x", (2, 3)), b.constant(np.ones((3, 2), "f4"), "w")))
    kept = in_half(b.build(b.add("softmax", power)), "float16")
    assert {kept.types[node.outputs[0]].dtype for node in kept.nodes if node.op in ("exp", "softmax")} == {"float32"}


def overflowing() -> Graph:
    b = GraphBuilder()
    return b.build(b.add("matmul", b.input("x", (4, 3)), b.constant(np.ones((3, 2), "f4"), "w")))


def test_overflow_leaves_a_step_out_and_halves_the_scale() -> None:
    precision = MixedPrecision("float16", 2.0**20, growth=3)
    train = bn.Train("mse", bn.Adam(0.01), precision=precision)
    step = bn.compile(overflowing(), train=train, threads=1)
    x, label = np.ones((4, 3), "f4"), np.zeros((4, 2), "f4")
    seen = []
    for _ in range(12):
        before = dict(step.state)
        step(x, label)
        skipped = step.state["optimizer.skipped"] > before["optimizer.skipped"]
        seen.append(bool(skipped))
        same = [name for name in ("w", "w.first", "w.second", "optimizer.step")
                if np.array_equal(before[name], step.state[name])]  # fmt: skip
        assert bool(same) == skipped
        factor = float(step.state["optimizer.scale"] / before["optimizer.scale"])
        assert factor == 0.5 if skipped else factor in (1.0, 2.0)
    assert seen[0] and not all(seen), "gradients of 2**20 overflow, those of a smaller scale do not"
    assert step.state["optimizer.skipped"] + step.state["optimizer.step"] == 12
    assert np.isfinite(step.state["w"]).all()


def test_a_scale_of_powers_of_two_changes_nothing() -> None:
    plain, scaled = (
        bn.compile(perceptron(), train=bn.Train(optimizer=bn.SGD(0.1), precision=p), threads=1)
        for p in (MixedPrecision("bfloat16"), MixedPrecision("bfloat16", 1024.0))
    )
    for pair in batches(5):
        assert float(plain(*pair)) == float(scaled(*pair))


def test_wrong_fields_are_refused_by_name() -> None:
    for wrong, named in (
        ({"clip_norm": 0.0}, "clip_norm"), ({"clip_value": -1.0}, "clip_value"),
        ({"accumulation_steps": 0}, "accumulation_steps"), ({"precision": "float8"}, "precision"),
        ({"skip_nonfinite": 1}, "skip_nonfinite"), ({"schedule": "cosine"}, "schedule"),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=f"Train: {named}: found"):
            bn.Train(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="MixedPrecision: dtype"):
        MixedPrecision("float32")

"""Training steps with an open batch: one compiled step, beside the fixed step of each size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import burnish as bn
from burnish.errors import InputError, ModelError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.specialize import graph_at
from burnish.loops.sizes import dim
from burnish.runtime.module import Module
from burnish.runtime.sized import plan_at
from tests.marks import slow
from tests.train.networks import perceptron, rows

MOST = 12
SIZES = (1, MOST)
Network = tuple[nn.Module, Callable[[int], Tensor]]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Words(nn.Module):
    """Tokens to classes, by a transformer's layer or by the sum of their vectors."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(11, 8), layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.words(x)).sum(1))


def perceptron_of_torch() -> Network:
    layers = nn.Linear(6, 9), nn.LayerNorm(9), nn.GELU(), nn.Dropout(0.2), nn.Linear(9, 3)
    return nn.Sequential(*layers), lambda n: torch.randn(n, 6)


def convolutional() -> Network:
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)), lambda n: torch.randn(
        n, 3, 8, 8
    )


def recurrent() -> Network:
    return Recurrent(), lambda n: torch.randn(n, 3, 4)


def transformer() -> Network:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return Words(layer), lambda n: torch.randint(0, 11, (n, 5))


def bag() -> Network:
    return Words(nn.Identity()), lambda n: torch.randint(0, 11, (n, 5))


def same_states(one: Module, other: Module) -> None:
    for name in other.state:
        a, b = np.asarray(one.state[name], "f8"), np.asarray(other.state[name], "f8")
        assert a.shape == b.shape and np.abs(a - b).max() <= 2e-5 * max(1.0, np.abs(b).max()), name


NETWORKS = [perceptron_of_torch, convolutional, recurrent, transformer, bag]


@pytest.mark.parametrize("network", slow(NETWORKS, convolutional, recurrent, transformer))
def test_one_step_equals_the_fixed_step_of_each_size(network: Callable[[], Network]) -> None:
    torch.manual_seed(0)
    model, data = network()
    train = bn.Train(optimizer=bn.SGD(0.1, momentum=0.9), clip_norm=1.0)
    step = bn.compile(model, (data(4),), dynamic={"n": (1, MOST)}, train=train, threads=1)
    for n in SIZES:
        fixed = bn.compile(model, (data(n),), train=train, threads=1)
        step.reset()
        for seed in (0, 1):
            x, label = data(n).numpy(), np.random.default_rng(seed).integers(0, 3, n)
            assert abs(step(x, label) - fixed(x, label)) <= 1e-5
        same_states(step, fixed)
    with pytest.raises(InputError, match="n from 1 to 12"):
        step(data(MOST + 1).numpy(), np.zeros(MOST + 1, np.int64))


@pytest.mark.parametrize("loss", slow(["mse", "absolute", "huber", "binary_logistic"], "absolute", "huber"))
def test_means_are_over_the_rows_of_the_call(loss: str) -> None:
    @cache
    def step(n: int) -> Module:
        return bn.compile(perceptron(n, 4), train=bn.Train(loss, bn.Adam(0.01), skip_nonfinite=True), threads=1)

    opened, rng = step(dim("n", 1, MOST)), np.random.default_rng(0)
    for n in (1, MOST):
        x, label = rows(n)["x"], rng.random((n, 5)).astype("f4")
        opened.reset()
        assert abs(opened(x, label) - step(n)(x, label)) <= 1e-6
        same_states(opened, step(n))


def test_a_memory_budget_holds_at_the_upper_bound() -> None:
    def network(n: int) -> Graph:
        b = GraphBuilder()
        h = b.input("x", (n, 16))
        for i in range(6):
            weight = b.constant(np.eye(16, dtype="f4") + 0.01 * i, f"w{i}")
            h = b.add("tanh", b.add("matmul", h, weight))
        return b.build(b.add("reduce_sum", h, axes=(1,), keepdims=False))

    high = 64
    plain, opened = network(high), network(dim("n", 1, high))
    full = bn.compile(plain, train=bn.Train("mse"), threads=1)
    budget = full.memory["arena"] * 3 // 4
    step = bn.compile(opened, train=bn.Train("mse", memory_budget=budget), threads=1)
    assert step.info["recomputation"]["repeated"] > 0
    assert all(plan_at(step.executable, {"n": n}).arena_bytes <= budget for n in range(1, high + 1))
    x, label = np.random.default_rng(0).normal(size=(high, 16)).astype("f4"), np.ones(high, "f4")
    assert abs(step(x, label) - full(x, label)) <= 1e-5
    same_states(step, full)


def test_batch_statistics_of_one_element_are_refused() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(ModelError, match="allowed: two elements or more a channel"):
        bn.compile(network, (torch.randn(4, 6),), dynamic={"n": (1, 8)}, train=bn.Train())


def test_fit_trains_the_last_batch_by_the_same_step() -> None:
    network = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 5))
    data = rows(39)
    train = bn.Train(optimizer=bn.SGD(0.1))
    given = {"input": data["x"], "label": data["label"]}
    made = bn.fit(network, given, train, epochs=1, example_inputs=torch.randn(16, 12), validation_data=given, threads=1)
    assert made.report.calls == 3 and made.report.left_out == 0 and made.report.evaluations[-1].rows == 39
    assert str(made.step.inputs[0]) == "input: float32[rows, 12]" and "fixed_rows" not in made.step.info


def test_fit_tells_why_a_batch_is_fixed() -> None:
    b = GraphBuilder()
    b.input("x", (8, 12))
    y = b.add("matmul", "x", b.constant(np.ones((12, 5), "f4"), "w"))
    made = bn.fit(b.build(b.add("sub", y, b.add("reduce_mean", y, axes=(0,)))), rows(20), bn.Train(), epochs=1)
    assert "mixes the samples of a batch" in made.step.info["fixed_rows"] and made.report.left_out == 4


def test_a_graph_at_a_size_is_the_static_one() -> None:
    opened, fixed = perceptron(dim("n", 1, MOST)), perceptron(5)
    assert str(graph_at(opened, {"n": 5})) == str(fixed)
    with pytest.raises(ModelError, match="dimension 'n': found 13; allowed: 1 to 12"):
        graph_at(opened, {"n": MOST + 1})

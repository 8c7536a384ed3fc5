"""Losses against PyTorch's; of several outputs; from a graph; and labels that are left out or no class."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import InputError, ModelError, ParameterError
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import backpropagate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.train.losses import LOSSES, Absolute, CrossEntropy, FirstOutput, Huber, Sum, add_loss

RNG = np.random.default_rng(0)


def value_and_gradient(loss: Any, output: np.ndarray, label: np.ndarray) -> tuple[float, np.ndarray]:
    b = GraphBuilder()
    x = b.input("x", output.shape, str(output.dtype))
    value = add_loss(b, loss, [x])
    assert b.types["label"].shape == label.shape and b.types["label"].dtype == str(label.dtype)
    (gradient,) = backpropagate(b, {value: b.constant(1.0, dtype="float64")}, [x])
    graph = b.build(value, gradient)
    found = evaluate(graph, {"x": output, "label": label})
    return float(found[value]), found[gradient]


def class_labels(*shape: int, high: int = 5) -> np.ndarray:
    return RNG.integers(0, high, shape)


def cases() -> list[tuple[Any, np.ndarray, np.ndarray, Callable[[Any, Any, Any], Any]]]:
    left_out = class_labels(3, 4)
    left_out[0] = -100
    left_out[1, 2] = 3
    return [
        (CrossEntropy(), RNG.normal(size=(6, 5)), class_labels(6), lambda f, x, y: f.cross_entropy(x, y)),
        (CrossEntropy(label_smoothing=0.2), RNG.normal(size=(3, 4, 5)), left_out,
         lambda f, x, y: f.cross_entropy(x.flatten(0, 1), y.flatten(), label_smoothing=0.2)),
        (CrossEntropy(ignore=3), RNG.normal(size=(3, 4, 5)), class_labels(3, 4),
         lambda f, x, y: f.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=3)),
        (CrossEntropy(axis=1), RNG.normal(size=(2, 5, 3, 4)), class_labels(2, 3, 4),
         lambda f, x, y: f.cross_entropy(x, y)),
        (Absolute(), RNG.normal(size=(4, 5)), RNG.normal(size=(4, 5)), lambda f, x, y: f.l1_loss(x, y)),
        (Huber(0.7), RNG.normal(size=(4, 5)), RNG.normal(size=(4, 5)), lambda f, x, y: f.huber_loss(x, y, delta=0.7)),
        ("mse", RNG.normal(size=(4, 5)), RNG.normal(size=(4, 5)), lambda f, x, y: f.mse_loss(x, y)),
        ("binary_logistic", RNG.normal(size=(4, 5)), RNG.random((4, 5)),
         lambda f, x, y: f.binary_cross_entropy_with_logits(x, y)),
    ]  # fmt: skip


@pytest.mark.parametrize("case", cases(), ids=lambda c: str(c[0]))
def test_losses_equal_those_of_torch(case: tuple[Any, np.ndarray, np.ndarray, Callable[[Any, Any, Any], Any]]) -> None:
    import torch

    loss, output, label, theirs = case
    x = torch.tensor(output, requires_grad=True)
    wanted = theirs(torch.nn.functional, x, torch.tensor(label))
    wanted.backward()
    value, gradient = value_and_gradient(loss, output, label)
    assert abs(value - wanted.item()) < 1e-12 * max(1.0, abs(wanted.item()))
    np.testing.assert_allclose(gradient, x.grad.numpy(), atol=1e-12)


def linear(*outputs: int) -> Graph:
    """One product for each output."""
    b = GraphBuilder()
    x = b.input("x", (4, 3))
    weights = [b.constant(RNG.normal(size=(3, n)).astype("f4"), f"w{n}") for n in outputs]
    return b.build(*(b.add("matmul", x, w, name=f"y{i}") for i, w in enumerate(weights)))


def test_a_label_beyond_the_last_class_is_refused_and_moves_nothing(tmp_path: Path) -> None:
    step = bn.compile(linear(5), train=bn.Train(optimizer=bn.SGD(0.1)), threads=1)
    x, before = RNG.normal(size=(4, 3)).astype("f4"), {name: step.state[name].copy() for name in step.state}
    step.save(tmp_path / "step.bn")
    for module in (step, copy(step), bn.load(tmp_path / "step.bn")):
        with pytest.raises(
            InputError, match=r"input 'label': found label 7 at \[1\], 2 such in all; allowed: the 5 classes 0 to 4"
        ):
            module(x, np.array([1, 7, 2, 5]))
        assert all(np.array_equal(module.state[name], value) for name, value in before.items())
    assert np.isfinite(step(x, np.array([1, -1, 2, 4])))
    assert np.isnan(step(x, np.full(4, -1)))  # of no label at all there is no mean


def test_labels_of_several_losses_and_an_ignored_one() -> None:
    loss = Sum(("mse", CrossEntropy(ignore=255), CrossEntropy(axis=1)))
    step = bn.compile(linear(6, 5, 3), train=bn.Train(loss, bn.SGD(0.1)), threads=1)
    x, numbers, classes = RNG.normal(size=(4, 3)).astype("f4"), np.zeros((4, 6), "f4"), np.array([0, 1, 2, 0])
    assert np.isfinite(step(x, numbers, np.array([255, 1, -1, 4]), classes))
    with pytest.raises(InputError, match=r"'label.1': found label 254 at \[0\].*and 255, which is left out too"):
        step(x, numbers, np.array([254, 255, 0, 0]), classes)
    with pytest.raises(InputError, match=r"'label.2': found label 3 at \[3\]"):
        step(x, numbers, classes, np.array([0, 1, 2, 3]))


def test_in_the_graph_alone_such_a_label_makes_the_loss_nan_and_no_gradient() -> None:
    value, gradient = value_and_gradient(CrossEntropy(), RNG.normal(size=(4, 5)), np.array([1, 7, 2, 0]))
    assert np.isnan(value) and np.isfinite(gradient[[0, 2, 3]]).all()


def test_several_outputs_have_a_loss_each() -> None:
    loss = Sum((CrossEntropy(), None, "mse"), weights=(1.0, 0.0, 0.25))
    step = bn.compile(linear(5, 2, 6), train=bn.Train(loss, bn.SGD(0.1), parameters=("w5", "w2", "w6")), threads=1)
    weights = {name: step.state[name].copy() for name in ("w5", "w2", "w6")}
    x, classes, numbers = RNG.normal(size=(4, 3)).astype("f4"), class_labels(4), RNG.normal(size=(4, 6)).astype("f4")
    found = step(x, classes, numbers)
    logits = x @ weights["w5"]
    entropy = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(4), classes])
    assert abs(found - (entropy + 0.25 * np.mean((x @ weights["w6"] - numbers) ** 2))) < 1e-5
    assert np.array_equal(step.state["w2"], weights["w2"])
    assert all(not np.array_equal(step.state[name], weights[name]) for name in ("w5", "w6"))


def test_a_loss_that_is_a_graph() -> None:
    b = GraphBuilder()
    y, target, weight = b.input("y", (4, 2)), b.input("target", (4, 2)), b.input("weight", (4, 1))
    square = b.add("mul", b.add("sub", y, target), b.add("sub", y, target))
    loss = b.build(b.add("reduce_sum", b.add("mul", square, weight), keepdims=True))
    step = bn.compile(linear(2), train=bn.Train(loss, bn.SGD(0.05)), threads=1)
    x, t, w = RNG.normal(size=(4, 3)).astype("f4"), RNG.normal(size=(4, 2)).astype("f4"), np.ones((4, 1), "f4")
    wanted = float((((x @ step.state["w2"]) - t) ** 2).sum())
    assert abs(step(x=x, target=t, weight=w) - wanted) < 1e-4
    assert step(x, t, w) < wanted


def test_a_model_that_gives_its_loss() -> None:
    import torch

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 5)

        def forward(self, x: Any, y: Any) -> Any:
            logits = self.layer(x)
            return torch.nn.functional.cross_entropy(logits, y), logits

    torch.manual_seed(0)
    network, x, y = Own(), torch.randn(4, 3), torch.randint(0, 5, (4,))
    step = bn.compile(network, (x, y), train=bn.Train("output", bn.SGD(0.5)), threads=1)
    before = network(x, y)[0].item()
    assert abs(step(x.numpy(), y.numpy()) - before) < 1e-6
    assert step(x.numpy(), y.numpy()) < before


def test_what_is_refused() -> None:
    with pytest.raises(ParameterError, match="CrossEntropy: label_smoothing"):
        CrossEntropy(label_smoothing=1.5)
    with pytest.raises(ParameterError, match=r"Huber: delta: found 0.*above 0"):
        Huber(0.0)
    with pytest.raises(ParameterError, match="Sum: losses: found 'hinge'"):
        Sum(("hinge",))
    with pytest.raises(ParameterError, match="Sum: weights"):
        Sum(("mse",), weights=(1.0, 2.0))
    with pytest.raises(ModelError, match="Sum: found 2 outputs; allowed: 1"):
        bn.compile(linear(2, 5), train=bn.Train(Sum(("mse",))))
    with pytest.raises(ModelError, match=r"cross-entropy: found an output .*along axis 3"):
        bn.compile(linear(2), train=bn.Train(CrossEntropy(axis=3)))
    with pytest.raises(ModelError, match=r"output: found an output .*; allowed: one number"):
        bn.compile(linear(2), train=bn.Train(FirstOutput()))
    b = GraphBuilder()
    other = b.build(b.add("reduce_sum", b.input("y", (3, 3)), keepdims=False))
    with pytest.raises(ModelError, match=r"loss: found a graph of .*; allowed: of the outputs"):
        bn.compile(linear(2), train=bn.Train(other))
    assert set(LOSSES) == {"softmax_cross_entropy", "mse", "absolute", "huber", "binary_logistic", "output"}


def test_wide_sums_of_many_labels() -> None:
    """A compiled mean over two hundred thousand labels has the digits of float32."""
    rng, count = np.random.default_rng(0), 200_000
    logits, label = rng.normal(size=(count, 3)).astype(np.float32), rng.integers(-1, 3, count)
    b = GraphBuilder()
    names = [b.input("x", logits.shape), b.input("y", label.shape, "int64")]
    loss = b.build(CrossEntropy(wide=True).build(b, names[:1], names[1:]))
    found = float(bn.compile(loss, threads=1, rewrite=False)(logits, label))
    x = logits.astype(np.float64)
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    known = label >= 0
    np.testing.assert_allclose(found, -logs[np.flatnonzero(known), label[known]].mean(), rtol=3e-7)

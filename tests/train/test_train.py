"""Training steps, compiled, against PyTorch's own from the same weights and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import InputError, ModelError, ParameterError, UnsupportedOperator
from burnish.graph.graph import Graph, GraphBuilder
from burnish.runtime.executable import CopyStep
from tests.marks import slow

RNG = np.random.default_rng(0)
W1, W2 = (RNG.normal(size=s).astype("f4") / 4 for s in ((12, 24), (24, 5)))
B1, B2 = np.zeros(24, "f4"), np.zeros(5, "f4")
BATCHES = [RNG.normal(size=(16, 12)).astype("f4") for _ in range(15)]


def perceptron() -> Graph:
    b = GraphBuilder()
    x = b.input("x", (16, 12))
    h = b.add("tanh", b.add("add", b.add("matmul", x, b.constant(W1, "w1")), b.constant(B1, "b1")))
    return b.build(b.add("add", b.add("matmul", h, b.constant(W2, "w2")), b.constant(B2, "b2")))


def labels(loss: str) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    if loss == "softmax_cross_entropy":
        return [rng.integers(0, 5, 16) for _ in BATCHES]
    if loss == "binary_logistic":
        return [(rng.random((16, 5)) < 0.5).astype("f4") for _ in BATCHES]
    return [rng.normal(size=(16, 5)).astype("f4") for _ in BATCHES]


OPTIMIZERS: list[tuple[Any, str, dict[str, Any]]] = [
    (bn.SGD(0.1), "SGD", {"lr": 0.1}),
    (bn.SGD(0.05, momentum=0.9, weight_decay=0.01), "SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    (bn.SGD(0.05, momentum=0.9, nesterov=True), "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    (bn.Adam(0.01), "Adam", {"lr": 0.01}),
    (bn.Adam(0.01, weight_decay=0.1), "Adam", {"lr": 0.01, "weight_decay": 0.1}),
    (bn.AdamW(0.01, beta1=0.8, beta2=0.95), "AdamW", {"lr": 0.01, "betas": (0.8, 0.95)}),
]


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "mse", "binary_logistic"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: str(o[0]))
def test_steps_equal_those_of_torch(optimizer: tuple[Any, str, dict[str, Any]], loss: str) -> None:
    import torch

    functional = torch.nn.functional
    functions: dict[str, Callable[..., Any]] = {
        "softmax_cross_entropy": functional.cross_entropy, "mse": functional.mse_loss,
        "binary_logistic": functional.binary_cross_entropy_with_logits,
    }  # fmt: skip
    ours, name, arguments = optimizer
    step = bn.compile(perceptron(), train=bn.Train(loss, ours), threads=2)
    w1, b1, w2, b2 = parameters = [torch.tensor(a.copy(), requires_grad=True) for a in (W1, B1, W2, B2)]
    peer = getattr(torch.optim, name)(parameters, **arguments)
    for x, label in zip(BATCHES, labels(loss), strict=True):
        peer.zero_grad()
        wanted = functions[loss](torch.tanh(torch.tensor(x) @ w1 + b1) @ w2 + b2, torch.tensor(label))
        wanted.backward()
        peer.step()
        assert abs(step(x, label) - wanted.item()) <= 1e-5 * max(1.0, wanted.item())
    for key, parameter in zip(("w1", "b1", "w2", "b2"), parameters, strict=True):
        np.testing.assert_allclose(step.state[key], parameter.detach().numpy(), atol=1e-5)
    assert step.state["optimizer.step"] == len(BATCHES)


def trains_alike(network: Any, step: Any, x: Any, y: Any, rate: float, steps: int, tolerance: float) -> None:
    """Fails unless the losses of a step are PyTorch's, by SGD with momentum 0.9; the network is trained."""
    import torch

    peer = torch.optim.SGD(network.parameters(), rate, momentum=0.9)
    for _ in range(steps):
        peer.zero_grad()
        wanted = torch.nn.functional.cross_entropy(network(x), y)
        wanted.backward()
        peer.step()
        assert abs(step(x.numpy(), y.numpy()) - wanted.item()) < tolerance


def test_a_network_of_torch_with_batch_normalization() -> None:
    import torch

    nn = torch.nn
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 5),
    )  # fmt: skip
    x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,))
    step = bn.compile(network.eval(), x, train=bn.Train(optimizer=bn.SGD(0.05, momentum=0.9)), threads=2)
    network.train()
    trains_alike(network, step, x, y, 0.05, 6, 1e-4)
    for name in ("1.running_mean", "1.running_var"):
        np.testing.assert_allclose(step.state[name], network.state_dict()[name].numpy(), atol=1e-4)
    np.testing.assert_allclose(step.state["0.weight"], network[0].weight.detach().numpy(), atol=1e-4)
    assert not [n for n in step.state if n.startswith("1.running") and n.count(".") > 1]  # buffers have no slots


def test_a_batch_normalization_that_is_applied_twice_moves_its_statistics_twice() -> None:
    import torch

    nn = torch.nn
    torch.manual_seed(2)
    norm = nn.BatchNorm2d(16)
    first, second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)
    network = nn.Sequential(first, norm, nn.ReLU(), second, norm, nn.Flatten(), nn.Linear(256, 5))
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    step = bn.compile(network.eval(), x, train=bn.Train(optimizer=bn.SGD(0.05, momentum=0.9)), threads=1)
    network.train()
    trains_alike(network, step, x, y, 0.05, 4, 1e-4)
    for name in ("4.running_mean", "4.running_var"):
        np.testing.assert_allclose(step.state[name], network.state_dict()[name].numpy(), atol=1e-4)


def test_running_statistics_that_are_something_else_too_are_refused() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4, 8)), b.constant(np.ones((8, 5), "f4"), "w")
    scale, zero = b.constant(np.ones(5, "f4"), "scale"), b.constant(np.zeros(5, "f4"), "zero")
    variance = b.constant(np.ones(5, "f4"), "variance")
    graph = b.build(b.add("batch_norm", b.add("matmul", x, w), scale, zero, zero, variance, node="norm"))
    with pytest.raises(ModelError, match="batch norm 'norm': found running statistics 'zero' that are read"):
        bn.compile(graph, train=bn.Train())
    bn.compile(graph, train=bn.Train(batch_statistics=False))


def test_batch_normalization_by_running_statistics() -> None:
    import torch

    nn = torch.nn
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5)).eval()
    with torch.no_grad():
        network[1].running_mean.normal_()
        network[1].running_var.uniform_(0.5, 2)
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    step = bn.compile(network, x, train=bn.Train(optimizer=bn.SGD(0.05), batch_statistics=False), threads=1)
    assert not [name for name in step.state if "running" in name]
    peer = torch.optim.SGD(network.parameters(), 0.05)
    for _ in range(4):
        peer.zero_grad()
        wanted = nn.functional.cross_entropy(network(x), y)
        wanted.backward()
        peer.step()
        assert abs(step(x.numpy(), y.numpy()) - wanted.item()) < 1e-4
    np.testing.assert_allclose(step.state["1.weight"], network[1].weight.detach().numpy(), atol=1e-5)


def test_a_weights_gradient_its_velocity_and_its_next_value_are_one_kernel() -> None:
    step = bn.compile(perceptron(), train=bn.Train("mse", bn.SGD(0.05, momentum=0.9, weight_decay=0.01)), threads=1)
    fused = [
        k["group"] for k in step.executable.info["kernels"] if "[matmul]" in k["group"] and " add mul " in k["group"]
    ]
    assert len(fused) == 2
    copied = [s for s in step.executable.steps if isinstance(s, CopyStep)]
    assert not copied  # all are written where they are


def test_labels_that_are_left_out_or_no_class() -> None:
    import torch

    step = bn.compile(perceptron(), train=bn.Train(optimizer=bn.SGD(0.0)), threads=1)
    label = labels("softmax_cross_entropy")[0].copy()
    label[::3] = -100
    logits = torch.tanh(torch.tensor(BATCHES[0] @ W1)) @ torch.tensor(W2)
    assert abs(step(BATCHES[0], label) - torch.nn.functional.cross_entropy(logits, torch.tensor(label)).item()) < 1e-5
    label[1] = 5
    with pytest.raises(InputError, match="found label 5 at"):
        step(BATCHES[0], label)


def test_training_goes_on_from_an_artifact_and_the_rate_may_change(tmp_path) -> None:
    step = bn.compile(perceptron(), train=bn.Train("mse", bn.Adam(0.01)), threads=1)
    given = [*zip(BATCHES, labels("mse"), strict=True)]
    first = [float(step(*pair)) for pair in given[:7]]
    step.save(tmp_path / "step.bn")
    rest = [float(step(*pair)) for pair in given[7:]]
    again = bn.load(tmp_path / "step.bn")
    assert [float(again(*pair)) for pair in given[7:]] == rest
    again.reset()  # to what was saved as the beginning: the weights that training began with
    assert [float(again(*pair)) for pair in given[:7]] == first
    before = again.state["w1"]
    again.state["optimizer.learning_rate"] = np.array(0.0)
    again(*given[0])
    assert np.array_equal(again.state["w1"], before)
    again.state["w1"] = np.zeros_like(W1)
    with pytest.raises(InputError, match="state 'w1' is float64"):
        again.state["w1"] = np.zeros(W1.shape)


def test_some_parameters_stay_as_they_are() -> None:
    step = bn.compile(perceptron(), train=bn.Train("mse", parameters=("w2",)), threads=1)
    step(BATCHES[0], labels("mse")[0])
    assert set(step.state) == {"w2", "optimizer.learning_rate", "optimizer.step"}
    assert not np.array_equal(step.state["w2"], W2)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ParameterError, match="Train: loss: found 'hinge'; allowed: softmax_cross_entropy, mse"):
        bn.Train("hinge")
    with pytest.raises(ParameterError, match="SGD: momentum"):
        bn.SGD(0.1, momentum=2.0)
    with pytest.raises(ParameterError, match=r"train: found 'sgd'; allowed: burnish\.Train"):
        bn.compile(perceptron(), train="sgd")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"Train: parameters: found \['w9'\]; allowed: w1, b1, w2, b2"):
        bn.compile(perceptron(), train=bn.Train(parameters=("w9",)))
    b = GraphBuilder()
    both = b.build(b.add("sin", b.input("x", (3,))), "x")
    with pytest.raises(ModelError, match=r"found outputs .*; allowed: one of floating-point numbers"):
        bn.compile(both, train=bn.Train())
    with pytest.raises(ModelError, match="found a model without parameters"):
        bn.compile(both.with_nodes(both.nodes, outputs=("sin",)), train=bn.Train())
    b = GraphBuilder()
    turned = b.add(
        "bitcast", b.add("mul", b.input("x", (3,)), b.constant(np.ones(3, "f4"), "w")), to="float32", node="B"
    )
    with pytest.raises(UnsupportedOperator, match=r"gradient of node 'B' \(bitcast\): bits that"):
        bn.compile(b.build(turned), train=bn.Train("mse"))


@pytest.mark.parametrize("kind", slow(["GRU", "LSTM"], "LSTM"))
def test_a_recurrent_network_whose_gradients_are_joined_from_every_step(kind: str) -> None:
    import torch

    nn = torch.nn
    torch.manual_seed(3)
    more = {"num_layers": 2, "bidirectional": True} if kind == "LSTM" else {}

    class Network(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layers = nn.Embedding(50, 64), getattr(nn, kind)(64, 64, batch_first=True, **more)
            self.out = nn.Linear(64 * (1 + bool(more)), 5)

        def forward(self, x: Any) -> Any:
            return self.out(self.layers(self.embedding(x))[0][:, -1])

    network = Network()
    x, y = torch.randint(0, 50, (16, 6)), torch.randint(0, 5, (16,))
    step = bn.compile(network, (x,), train=bn.Train(optimizer=bn.SGD(0.1, momentum=0.9)), threads=2)
    trains_alike(network, step, x, y, 0.1, 4, 1e-5)
    np.testing.assert_allclose(step.state["embedding.weight"], network.embedding.weight.detach().numpy(), atol=1e-5)


def test_what_is_detached_gets_no_gradient_nor_does_a_row_of_padding() -> None:
    import torch

    nn = torch.nn
    torch.manual_seed(4)

    class Network(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.a, self.b = nn.Embedding(9, 8, padding_idx=2), nn.Linear(8, 8), nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            hidden = self.a(self.embedding(x).sum(1))
            with torch.no_grad():
                other, more = torch.tanh(self.a(hidden)), hidden * 2.0
            return self.b(torch.relu(hidden) + other - more + hidden.detach() * 0.5)

    network = Network()
    x, y = torch.randint(0, 9, (6, 4)), torch.randint(0, 5, (6,))
    step = bn.compile(network, (x,), train=bn.Train(optimizer=bn.SGD(0.2, momentum=0.9)), threads=1)
    trains_alike(network, step, x, y, 0.2, 4, 1e-5)
    for key, parameter in network.named_parameters():
        np.testing.assert_allclose(step.state[key], parameter.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("momentum", [0.3, 0.0])
def test_each_batch_normalization_moves_its_statistics_by_its_own_momentum(momentum: float) -> None:
    import torch

    nn = torch.nn
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=momentum), nn.Linear(16, 5))
    x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
    step = bn.compile(network, x, train=bn.Train(optimizer=bn.SGD(0.1)), threads=1)
    other = bn.compile(network, x, train=bn.Train(optimizer=bn.SGD(0.1), batch_norm_momentum=0.5), threads=1)
    batch = network[0](x).mean(0).detach().numpy()
    step(x.numpy(), y.numpy())
    other(x.numpy(), y.numpy())
    network.train()(x)
    np.testing.assert_allclose(step.state["1.running_mean"], network[1].running_mean.numpy(), atol=1e-6)
    np.testing.assert_allclose(other.state["1.running_mean"], batch / 2, atol=1e-6)


def test_the_mean_of_all_batches_is_refused() -> None:
    import torch

    nn = torch.nn
    network = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None))
    with pytest.raises(
        ModelError, match="module '1': momentum: found None, the mean of all batches; allowed: a number"
    ):
        bn.compile(network, torch.randn(8, 6), train=bn.Train())

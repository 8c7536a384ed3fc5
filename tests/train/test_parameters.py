"""What is trained: parameters of PyTorch wherever they appear, initializers of ONNX; and dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import burnish as bn
from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx import import_onnx, to_onnx
from burnish.frontend.torch.export import import_torch
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from burnish.train.step import training_graph

nn = torch.nn
TRAIN = bn.Train("mse", bn.SGD(0.1, momentum=0.9))


def trained(step: Any) -> set[str]:
    return {name.removesuffix(".velocity") for name in step.state if name.endswith(".velocity")}


class Folded(nn.Module):
    """Parameters in what a compiler would compute once: weight normalization, a product of two, a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        self.left, self.right = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2, 3))
        self.heat = nn.Parameter(torch.tensor(0.3))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return self.normed(x) @ (self.left @ self.right) * self.heat.exp() + self.frozen.abs()


def test_parameters_that_constants_are_made_of_are_trained() -> None:
    torch.manual_seed(0)
    network, x, y = Folded(), torch.randn(5, 4), torch.randn(5, 3)
    step = bn.compile(network, x, train=TRAIN, threads=1)
    names = {name: p for name, p in network.named_parameters() if p.requires_grad}
    assert trained(step) == set(names)
    peer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        peer.zero_grad()
        wanted = nn.functional.mse_loss(network(x), y)
        wanted.backward()
        peer.step()
        assert abs(step(x.numpy(), y.numpy()) - wanted.item()) < 1e-5 * max(1.0, wanted.item())
    for name, parameter in names.items():
        np.testing.assert_allclose(step.state[name], parameter.detach().numpy(), atol=1e-5)
    assert bn.compile(network, x, threads=1)(x).shape == (5, 3)  # inference folds them as before


def test_parameters_that_are_one_tensor_are_trained_as_one() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    network[2].weight = network[0].weight
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    step = bn.compile(network, x, train=TRAIN, threads=1)
    assert trained(step) == {"0.weight"}
    step(x.numpy(), y.numpy())
    nn.functional.mse_loss(network(x), y).backward()
    np.testing.assert_allclose(step.state["0.weight.velocity"], network[0].weight.grad.numpy(), atol=1e-6)


class Named(nn.Module):
    """Parameters that are called as an argument, a result and the labels are."""

    def __init__(self) -> None:
        super().__init__()
        self.Scale = nn.Linear(4, 3)
        for name in ("x", "output", "label"):
            setattr(self, name, nn.Parameter(torch.randn(3)))

    def forward(self, x: Any) -> Any:
        return self.Scale(x) * self.x + self.output * self.label


def test_parameters_have_the_names_of_the_network() -> None:
    torch.manual_seed(0)
    network, x, y = Named(), torch.randn(5, 4), np.ones((5, 3), "f4")
    done = bn.fit(network, {"x": x, "label": y}, TRAIN, example_inputs=x, steps=3, threads=1)
    assert trained(done.step) == {"Scale.weight", "Scale.bias", "p_x", "p_output", "p_label"}
    assert [spec.name for spec in done.step.inputs] == ["x", "label"]
    done.copy_to(network)
    np.testing.assert_allclose(done.predict(x, threads=1), network(x).detach().numpy(), atol=1e-5)


def test_names_are_those_of_the_networks_onnx_file(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    given = (np.ones((8, 4), "f4"), np.ones((8, 3), "f4"))
    own = bn.fit(network, given, TRAIN, example_inputs=torch.ones(4, 4), steps=1, threads=1)
    file = tmp_path / "m.onnx"
    file.write_bytes(to_onnx(own.model).SerializeToString())
    again = bn.fit(str(file), given, TRAIN, steps=1, threads=1)
    assert trained(own.step) == trained(again.step) == {*network.state_dict()}


# --- ONNX -------------------------------------------------------------------------------------------------------------


def recurrent_model() -> onnx.ModelProto:
    """An LSTM, a product whose weight is transposed first, a mask that a Constant holds, and a scale of one element."""
    rng = np.random.default_rng(0)
    arrays = {"W": (1, 12, 4), "R": (1, 12, 3), "B": (1, 24), "out": (5, 3), "scale": (1,)}
    initializers = [numpy_helper.from_array(rng.normal(size=s).astype("f4") / 2, n) for n, s in arrays.items()]
    mask = numpy_helper.from_array(np.linspace(0, 1, 5, dtype="f4"))
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R", "B"], ["", "h"], hidden_size=3),
        helper.make_node("Transpose", ["out"], ["outT"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "outT"], ["product"]),
        helper.make_node("Constant", [], ["mask"], value=mask),
        helper.make_node("Mul", ["product", "mask"], ["masked"]),
        helper.make_node("Mul", ["masked", "scale"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 5])]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, initializers), opset_imports=[helper.make_opsetid("", 17)]
    )


def test_initializers_of_several_floats_are_trained_as_they_are() -> None:
    step = bn.compile(recurrent_model(), train=TRAIN, threads=1)
    assert trained(step) == {"W", "R", "B", "out"}  # neither the mask of a Constant, nor the one element of "scale"
    assert step.state["W"].shape == (1, 12, 4) and step.state["out"].shape == (5, 3)
    before = {name: step.state[name].copy() for name in trained(step)}
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(3, 2, 4)).astype("f4"), rng.normal(size=(1, 2, 5)).astype("f4")
    losses = [float(step(x, y)) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert all(not np.array_equal(step.state[name], old) for name, old in before.items())
    named = bn.compile(recurrent_model(), train=bn.Train("mse", bn.SGD(0.1, 0.9), ("scale", "out")), threads=1)
    assert trained(named) == {"scale", "out"}


# --- dropout ----------------------------------------------------------------------------------------------------------


def dropped(rate: float) -> Any:
    """A perceptron whose hidden units are dropped."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Dropout(rate), nn.Linear(32, 3))


def test_dropout_is_there_in_training_only_and_differs_from_step_to_step() -> None:
    network, x, y = dropped(0.5), torch.randn(4, 6), torch.randn(4, 3)
    plain = nn.functional.mse_loss(network.eval()(x), y).item()
    step = bn.compile(network, x, train=bn.Train("mse", bn.SGD(0.0), seed=7), threads=1)
    assert step.state["random.seed"] == 7
    losses = [float(step(x.numpy(), y.numpy())) for _ in range(40)]
    assert len(set(losses)) == 40 and step.state["random.seed"] == 47
    assert abs(float(np.mean(losses)) - plain) < 0.5 * plain and abs(losses[0] - plain) > 1e-3
    step.state["random.seed"] = np.array(7)
    assert [float(step(x.numpy(), y.numpy())) for _ in range(3)] == losses[:3]
    assert "random.seed" not in bn.compile(dropped(0.0), x, train=bn.Train("mse"), threads=1).state
    np.testing.assert_allclose(bn.compile(network, x, threads=1)(x), network.eval()(x).detach(), atol=1e-5)


def test_the_gradient_is_that_of_what_was_kept() -> None:
    network, x, y = dropped(0.4), torch.randn(4, 6), torch.randn(4, 3)
    step = bn.compile(network, x, train=bn.Train("mse", bn.SGD(0.0, momentum=0.5), seed=3), threads=1)
    value = float(step(x.numpy(), y.numpy()))
    b = GraphBuilder()
    hidden = b.input("h", (4, 32))
    mask = evaluate(
        b.build(b.add("dropout", hidden, b.constant(3), rate=0.4, name="m")), {"h": np.ones((4, 32), "f4")}
    )["m"]
    loss = nn.functional.mse_loss(network[2](network[0](x) * torch.from_numpy(mask)), y)
    loss.backward()
    assert abs(value - loss.item()) < 1e-5
    for name, parameter in network.named_parameters():
        found = step.state[f"{name}.velocity"]
        np.testing.assert_allclose(found, parameter.grad.numpy(), atol=1e-5)


class Channels(nn.Module):
    def __init__(self, drop: Any) -> None:
        super().__init__()
        self.scale, self.drop = nn.Parameter(torch.ones(1, 64, 1, 1)), drop

    def forward(self, x: Any) -> Any:
        return self.drop(x * self.scale)


def test_whole_channels_layers_and_what_is_refused() -> None:
    x = torch.ones(2, 64, 3, 3)
    step = bn.compile(Channels(nn.Dropout2d(0.5)), x, train=bn.Train("mse"), threads=1)
    assert "random.seed" in step.state
    lstm = nn.LSTM(3, 4, 3, dropout=0.5)

    class Top(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lstm

        def forward(self, x: Any) -> Any:
            return self.lstm(x)[0]

    imported = import_torch(Top(), torch.randn(5, 2, 3), training=True)
    made = training_graph(imported.graph, bn.Train("mse"), imported.parameters)
    streams = [node.attrs["stream"] for node in made.nodes if node.op == "dropout"]
    assert streams == [0, 1]  # between three layers
    with pytest.raises(UnsupportedOperator, match=r"aten.alpha_dropout .*: p: found 0.3; allowed: 0 in training"):
        bn.compile(Channels(nn.AlphaDropout(0.3)), x, train=bn.Train("mse"))


def test_dropout_of_onnx() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Dropout", ["h", "rate"], ["y", "mask"])]
    weights = [numpy_helper.from_array(np.ones((4, 4), "f4"), "w"), numpy_helper.from_array(np.float32(0.25), "rate")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, weights), opset_imports=[helper.make_opsetid("", 17)]
    )
    (drop,) = (node for node in import_onnx(model, training=True).graph.nodes if node.op == "dropout")
    assert drop.attrs["rate"] == 0.25
    assert not [node for node in import_onnx(model).graph.nodes if node.op == "dropout"]
    assert "random.seed" in bn.compile(model, train=bn.Train("mse"), threads=1).state


def test_a_network_without_parameters_that_require_a_gradient_is_refused() -> None:
    network = nn.Linear(3, 3).requires_grad_(False)
    with pytest.raises(ModelError, match="without parameters"):
        bn.compile(network, torch.randn(2, 3), train=bn.Train("mse"))


class PartlyFrozen(nn.Module):
    """Frozen parameters that a compiler would compute with once, and one that is a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 4)
        self.first.weight.requires_grad_(False)
        self.scale = nn.Parameter(torch.randn(4), requires_grad=False)
        self.tied = nn.Parameter(self.second.weight.data, requires_grad=False)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).tanh()) * self.scale.abs() + x @ self.tied @ self.first.weight


def test_frozen_parameters_keep_names_and_values_and_follow_what_they_are_tied_to() -> None:
    torch.manual_seed(0)
    network, x, y = PartlyFrozen(), torch.randn(8, 4), torch.randn(8, 4)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    train = bn.Train("mse", bn.SGD(0.1))
    found = bn.fit(network, (x.numpy(), y.numpy()), train, example_inputs=x, epochs=4, threads=1)
    assert {"first.weight", "scale", "second.weight"} <= found.model.constants.keys()
    assert not {"first.weight", "scale", "tied"} & {*found.step.state}
    peer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.1)
    losses = []
    for _ in range(4):
        peer.zero_grad()
        loss = nn.functional.mse_loss(network(x), y)
        loss.backward()
        peer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(found.report.losses, losses, rtol=1e-5)
    wanted = {name: value.clone() for name, value in network.state_dict().items()}
    for name, value in network.state_dict().items():
        value.copy_(before[name])
    found.copy_to(network)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-6)
    assert torch.equal(network.scale, before["scale"]) and torch.equal(network.first.weight, before["first.weight"])

"""Training through torch.compile(backend="burnish"): gradients and trained weights against eager's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.marks import slow

nn = torch.nn

import burnish.torch.dynamo as backend  # noqa: E402
from burnish.torch import (  # noqa: E402
    register,
    report,
)
from tests.frontend.torch.architectures import ARCHITECTURES, inputs_of  # noqa: E402

register()


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        parts = self.project(self.first(x)).split(width, -1)
        q, k, v = (p.view(batch, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.wide(self.second(x))


class Language(nn.Module):
    """Embeddings, a block and a head of classes for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.block = nn.Embedding(50, 32, padding_idx=3), nn.Embedding(16, 32), Block()
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.block(x))).flatten(0, 1)


class Cells(nn.Module):
    """An LSTM, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 16), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        h = c = torch.zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


class Recurrent(nn.Module):
    """torch's own layer, where dynamo breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x)[0][:, -1])


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))


def convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.AvgPool2d(3, 1, 1), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "perceptron": (perceptron, lambda n: torch.randn(n, 8)),
    "convolutional": (convolutional, lambda n: torch.randn(n, 3, 9, 9)),
    "language": (Language, lambda n: torch.randint(0, 50, (n, 8))),
    "cells": (Cells, lambda n: torch.randn(n, 3, 8)),
    "recurrent": (Recurrent, lambda n: torch.randn(n, 3, 8)),
}


def trained(network: Any, inputs: list[Any], labels: list[Any], compiled: bool) -> tuple[Any, list[list[Any]]]:
    """Losses, and the gradients of each step of SGD with momentum."""
    torch._dynamo.reset()

    def loss(x: Any, label: Any) -> Any:
        return nn.functional.cross_entropy(network(x), label)

    call = torch.compile(loss, backend="burnish") if compiled else loss
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    losses, gradients = [], []
    for x, label in zip(inputs, labels, strict=True):
        optimizer.zero_grad()
        value = call(x, label)
        value.backward()
        losses.append(value.item())
        gradients.append([p.grad.clone() for p in network.parameters()])
        optimizer.step()
    return losses, gradients


@pytest.mark.parametrize("name", slow(NETWORKS, "language", "cells"))
def test_gradients_and_weights_are_those_of_eager(name: str) -> None:
    make, draw = NETWORKS[name]
    torch.manual_seed(0)
    network = make()
    twin = copy.deepcopy(network)
    inputs = [draw(6) for _ in range(5)]
    labels = [torch.randint(0, 5, (len(network(x)),)) for x in inputs]
    network.load_state_dict(twin.state_dict())  # what the call above has done to running statistics
    before = report()[-1].number if report() else 0
    losses, found = trained(network, inputs, labels, True)
    wanted_losses, wanted = trained(twin, inputs, labels, False)
    torch.testing.assert_close(losses, wanted_losses, atol=1e-5, rtol=1e-5)
    for step, own in zip(wanted, found, strict=True):
        for a, b in zip(own, step, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(network.state_dict(), twin.state_dict(), atol=1e-5, rtol=1e-5)
    graphs = [g for g in report() if g.number > before]
    assert {g.direction for g in graphs} == {"forward", "backward"}
    assert all(g.whole and g.training and len(g.parts) == 1 for g in graphs), "\n".join(map(str, graphs))
    assert not any(g.recompilations for g in graphs), "parameters that optimizers change are inputs"
    assert len(graphs) == 2, "and no other graph is made for them"


def test_what_is_not_supported_is_left_to_torch_within_the_graph() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 5))
    twin = copy.deepcopy(network)
    x, label = torch.randn(6, 8), torch.randint(0, 5, (6,))
    backend._warned.clear()
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="native_dropout"):
        _, found = trained(network, [x, x], [label, label], True)
    torch.manual_seed(1)
    _, wanted = trained(twin, [x, x], [label, label], False)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)  # with the same random numbers
    forward, backward = report()[-2:]
    assert dict(forward.eager) and len(forward.parts) == 2 and backward.whole


def test_batches_of_other_sizes_and_frozen_parameters() -> None:
    torch.manual_seed(0)
    network = convolutional()
    for parameter in network[0].parameters():
        parameter.requires_grad_(False)
    network.append(nn.Identity())
    twin = copy.deepcopy(network)
    torch._dynamo.reset()
    compiled = torch.compile(network, backend="burnish")
    for rows in (4, 6, 3):
        x = torch.randn(rows, 3, 9, 9, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x).square().sum().backward()
        twin(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, atol=1e-5, rtol=1e-5)
        assert network[0].weight.grad is None
        for a, b in zip(network.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-5)


def test_several_outputs_views_and_accumulated_gradients() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 6, requires_grad=True)
    twin = weight.detach().clone().requires_grad_()

    def several(x: Any, w: Any) -> Any:
        y = x @ w
        return y[:, 2], y.t(), torch.cumsum(y, 1)[1:, ::2], y.index_select(1, torch.tensor([0, 0, 3]))

    torch._dynamo.reset()
    compiled = torch.compile(several, backend="burnish")
    for _ in range(2):
        x = torch.randn(5, 4)
        sum(v.square().sum() for v in compiled(x, weight)).backward()
        sum(v.square().sum() for v in several(x, twin)).backward()
    torch.testing.assert_close(weight.grad, twin.grad, atol=1e-4, rtol=1e-5)


def test_inference_follows_training() -> None:
    torch.manual_seed(0)
    network = convolutional()
    torch._dynamo.reset()
    compiled, x = torch.compile(network, backend="burnish"), torch.randn(4, 3, 9, 9)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(2):
        compiled(x).square().sum().backward()
        optimizer.step()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            network.eval()
            torch.testing.assert_close(compiled(x), network(x), atol=1e-5, rtol=1e-5)
            network.train()


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in ARCHITECTURES if n != "recurrent"])  # which dynamo does not capture
def test_architectures_train_as_one_graph_each_way(name: str) -> None:
    torch.manual_seed(0)
    network, inputs = ARCHITECTURES[name][0]().train(), inputs_of(name)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    twin = copy.deepcopy(network)
    before = report()[-1].number if report() else 0
    torch._dynamo.reset()
    for call in (torch.compile(network, backend="burnish"), twin):
        results = torch.utils._pytree.tree_leaves(call(*inputs))
        sum(r.square().mean() for r in results if r.is_floating_point()).backward()
    graphs = [g for g in report() if g.number > before]
    assert len(graphs) == 2 and all(g.whole for g in graphs), "\n".join(map(str, graphs))
    largest = max(float(p.grad.abs().max()) for p in twin.parameters() if p.grad is not None)
    for a, b in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5 * max(largest, 1.0), rtol=1e-4)

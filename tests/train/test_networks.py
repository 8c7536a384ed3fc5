"""Gradients of networks, compiled, against PyTorch's: what `benchmarks/models.py` builds, scaled down, and more."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import burnish as bn
from benchmarks import models, networks
from benchmarks.architectures import inception, residual, searched
from burnish.frontend.torch.export import import_torch
from burnish.train.losses import CrossEntropy
from burnish.train.step import training_graph
from tests.marks import slow

Network = tuple[nn.Module, Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def classifier(*layers: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


def resnet() -> Network:
    stem = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [networks.BasicBlock(8, 8, 1), networks.BasicBlock(8, 16, 2)]
    return classifier(*stem, *blocks, channels=16), torch.randn(4, 3, 32, 32)


def mobilenet() -> Network:
    blocks = [networks.InvertedResidual(*given) for given in ((8, 8, 1, 1), (8, 12, 2, 3), (12, 12, 1, 3))]
    return classifier(*networks.convolution(3, 8, 3, 2, 1), *blocks, channels=12), torch.randn(4, 3, 17, 16)


def resnext_and_repvgg() -> Network:
    blocks = [residual.Bottleneck(8, 8, 16, 2, 4), residual.RepVggBlock(16, 16, 1)]
    return classifier(nn.Conv2d(3, 8, 3), *blocks, channels=16), torch.randn(4, 3, 14, 14)


def squeezenet_and_inception() -> Network:
    blocks = [inception.fire(8, 4, 8), nn.MaxPool2d(3, 2, ceil_mode=True), inception.chain(16, (8, 3))]
    pooled = inception.Branches(inception.pooled(8, 4), inception.chain(8, (4, (1, 7)), (4, (7, 1))))
    return classifier(nn.Conv2d(3, 8, 3, 2), *blocks, pooled, channels=8), torch.randn(4, 3, 25, 25)


class NasCells(nn.Module):
    """A normal and a reduction cell."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.normal = searched.NormalCell(8, 8, 4, searched.Projection)
        self.reduction = searched.ReductionCell(8, 24, 4, searched.Projection)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.reduction(x, self.normal(x, x))


def bert() -> Network:
    return networks.BertEncoder(16, 2, 2, 32), torch.randint(0, networks.BERT_VOCABULARY, (2, 7))


def lstm_lm() -> Network:
    return networks.LstmLanguageModel(12, 2), torch.randint(0, networks.LSTM_VOCABULARY, (5, 3))


def dqn() -> Network:
    layers = [nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 8, 4, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(72, 18)), torch.randn(2, 4, 52, 52)


def dcgan() -> Network:
    layers = [nn.ConvTranspose2d(10, 12, 4, 1, 0, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
              nn.ConvTranspose2d(12, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
              nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh()]  # fmt: skip
    return nn.Sequential(*layers), torch.randn(4, 10, 1, 1)


class GptBlock(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.joint(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.drop(self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    """A small GPT, whose output layer is its embedding."""

    def __init__(self, words: int = 40, width: int = 16, layers: int = 2, tokens: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(tokens, width) * 0.02)
        self.blocks = nn.Sequential(*(GptBlock(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids) + self.places[: ids.shape[1]])))


class UNet(nn.Module):
    """Two levels down and up again, by a transposed convolution and by interpolation, joined with what was before."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.deep = self.pair(3, 4), self.pair(4, 8), self.pair(8, 8)
        self.rise = nn.ConvTranspose2d(8, 8, 2, 2)
        self.up2, self.up1 = self.pair(16, 8), self.pair(12, 4)
        self.out = nn.Conv2d(4, 3, 1)

    @staticmethod
    def pair(channels: int, width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(2, width), nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(nn.functional.max_pool2d(a, 2))
        c = self.deep(nn.functional.avg_pool2d(b, 2))
        d = self.up2(torch.cat([self.rise(c), b], 1))
        wide = nn.functional.interpolate(d, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.out(self.up1(torch.cat([wide, a], 1)))


class Recurrent(nn.Module):
    def __init__(self, kind: str, **settings: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(6, 8, 2, **settings)
        self.head = nn.Linear(16 if settings.get("bidirectional") else 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, final = self.layer(x)
        return self.head(y) + (final[0] if isinstance(final, tuple) else final).sum()


def recurrent(kind: str, steps: int, **settings: Any) -> Callable[[], Network]:
    return lambda: (Recurrent(kind, **settings), torch.randn(steps, 3, 6))


NETWORKS: dict[str, Callable[[], Network]] = {
    "dcgan": dcgan, "dqn": dqn, "nasrnn": lambda: (searched.NasRnn(8), torch.randn(3, 2, 8)), "lstm_lm": lstm_lm,
    "gru_unrolled": recurrent("GRU", 4), "rnn_rounds": recurrent("RNN", 65),
}  # fmt: skip
SLOW: dict[str, Callable[[], Network]] = {
    "resnet": resnet, "mobilenet": mobilenet, "resnext_repvgg": resnext_and_repvgg, "bert": bert,
    "squeezenet_inception": squeezenet_and_inception, "nas_cells": lambda: (NasCells(), torch.randn(2, 3, 12, 12)),
    "gpt": lambda: (Gpt(), torch.randint(0, 40, (2, 9))), "unet": lambda: (UNet(), torch.randn(2, 3, 12, 16)),
    "lstm_unrolled": recurrent("LSTM", 6, bidirectional=True), "lstm_rounds": recurrent("LSTM", 80),
    "gru_rounds": recurrent("GRU", 70, bidirectional=True),
    "resnet18": lambda: (networks.resnet18(), torch.randn(4, 3, 64, 64)),
    "mobilenet_v2": lambda: (networks.mobilenet_v2(), torch.randn(4, 3, 64, 64)),
}  # fmt: skip


def compare(network: nn.Module, x: Tensor) -> None:
    """Loss and gradients of one step, by the velocities that momentum begins with, against float64.

    Batch norms of few samples amplify rounding: no more is asked than twice what PyTorch's float32 is off by.
    """
    for module in network.modules():
        networks.initialize(module)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    reference, rounded = copy.deepcopy(network).double().train(), copy.deepcopy(network).train()
    y = reference(x.double() if x.is_floating_point() else x)
    label = torch.randn_like(y)
    wanted = nn.functional.mse_loss(y, label)
    wanted.backward()
    nn.functional.mse_loss(rounded(x), label.float()).backward()
    step = bn.compile(network, x, train=bn.Train("mse", bn.SGD(0.0, momentum=0.9)), threads=1)
    assert abs(step(x.numpy(), label.float().numpy()) - wanted.item()) <= 1e-5 * max(1.0, wanted.item())
    known = dict(reference.named_parameters())
    assert {f"{name}.velocity" for name in known} == {n for n in step.state if "velocity" in n}
    largest = max(p.grad.abs().max().item() for p in known.values())
    scales = {n: max(p.grad.abs().max().item(), 1e-3 * largest) for n, p in known.items()}  # of some only rounding
    theirs = max((p.grad - known[n].grad).abs().max().item() / scales[n] for n, p in rounded.named_parameters())
    for name, parameter in known.items():
        found, own = step.state[f"{name}.velocity"], parameter.grad.numpy()
        assert np.abs(found - own).max() <= max(2e-4, 2 * theirs) * scales[name], name


@pytest.mark.parametrize("name", slow(NETWORKS, "gru_unrolled", "dqn", "nasrnn", "rnn_rounds", "dcgan"))
def test_gradients_equal_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    compare(*NETWORKS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_gradients_of_larger_ones_equal_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    compare(*SLOW[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", models.INPUTS)
def test_every_model_of_the_benchmarks_has_a_step(name: str) -> None:
    train = bn.Train("mse")
    if name in models.LIGHT:
        from burnish.frontend.onnx import import_onnx

        found = import_onnx(models.randomized(name), training=True)
        assert found.weights
        step, wanted = training_graph(found.graph, train, found.weights), len(found.weights)
        wanted -= sum(node.op == "batch_norm_training" for node in step.nodes) * 2
    else:
        network, arrays = models.network(name)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.1  # they come with None, which is refused: the mean of all batches
        imported = import_torch(network, tuple(arrays.values()), training=True)
        step, wanted = training_graph(imported.graph, train, imported.parameters), len([*network.parameters()])
    trained = [n for n, s in step.states.items() if step.outputs[s.output] != n and n.count("optimizer") == 0]
    assert len([n for n in trained if n in step.inputs]) >= wanted > 0


def labelled(step: Any, x: Tensor, y: Tensor) -> float:
    return float(step(x.numpy(), y.numpy()))


def curves(network: nn.Module, batches: list[tuple[Tensor, Tensor]], loss: Any, ours: Any, rate: float) -> float:
    """The greatest relative difference of the losses of both, over all steps."""
    step = bn.compile(network, batches[0][0], train=bn.Train(ours, bn.SGD(rate, momentum=0.9)), threads=1)
    network.train()
    peer = torch.optim.SGD(network.parameters(), rate, momentum=0.9)
    worst, first, last = 0.0, 0.0, 0.0
    for x, y in batches:
        peer.zero_grad()
        value = loss(network(x), y)
        value.backward()
        peer.step()
        last = value.item()
        first = first or last
        worst = max(worst, abs(labelled(step, x, y) - last) / max(last, 1e-3))
    assert last < 0.9 * first  # both learn
    return worst


def repeated(x: Tensor, y: Tensor, steps: int, batch: int) -> list[tuple[Tensor, Tensor]]:
    parts = [(x[i : i + batch].contiguous(), y[i : i + batch].contiguous()) for i in range(0, len(x), batch)]
    return [parts[i % len(parts)] for i in range(steps)]


@pytest.mark.slow
def test_curve_of_a_residual_network() -> None:
    torch.manual_seed(1)
    stem = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    network = classifier(*stem, networks.BasicBlock(8, 12, 2), channels=12)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 5, (32,))
    loss = nn.functional.cross_entropy
    assert curves(network, repeated(x, y, 100, 8), loss, "softmax_cross_entropy", 0.005) <= 1e-3


@pytest.mark.slow
def test_curve_of_an_lstm_of_two_layers() -> None:
    torch.manual_seed(1)
    network = Recurrent("LSTM", batch_first=True)
    x = torch.randn(24, 70, 6)
    y = torch.stack([x[..., 0].cumsum(1) > 0, x[..., 1] > 0, x[..., 2].roll(3, 1) > 0], -1).float()
    loss = nn.functional.binary_cross_entropy_with_logits
    assert curves(network, repeated(x, y, 100, 8), loss, "binary_logistic", 0.05) <= 1e-3


@pytest.mark.slow
def test_curve_of_a_small_gpt() -> None:
    torch.manual_seed(1)
    ids = torch.randint(0, 40, (16, 13))
    ids[:, 1::2] = ids[:, 0:-1:2]  # every other word says the one before again
    targets = ids[:, 1:].clone()
    targets[:, ::5] = -100
    batches = repeated(ids[:, :-1], targets, 100, 8)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1)

    assert curves(Gpt(layers=1), batches, loss, CrossEntropy(label_smoothing=0.1), 0.02) <= 1e-3

"""Networks whose training steps are measured, in training mode, each with a batch of inputs and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import networks

SEED = 0


class Workload(NamedTuple):
    """A network, a batch of its inputs, their labels, and whether its images may be stored channels last."""

    network: nn.Module
    x: Tensor
    label: Tensor
    images: bool


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each normalized first (Radford et al. 2019)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def split_heads(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        return x.view(batch, sequence, self.heads, hidden // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        own = self.norm1(x)
        query, key, value = (self.split_heads(linear(own)) for linear in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A GPT: token ids (batch, sequence) to logits (batch, sequence, vocabulary)."""

    def __init__(self, vocabulary: int, positions: int, hidden: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Sequences(nn.Module):
    """The language model of ``networks`` with its first dimensions as PyTorch's loss has them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = networks.LstmLanguageModel()

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids)


def resnet18_cifar() -> nn.Module:
    """ResNet-18 for 3×32×32 images and 10 classes: the first convolution is 3×3, and no pooling follows it."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    channels = 64
    for width, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [networks.BasicBlock(channels, width, stride), networks.BasicBlock(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def perceptron() -> nn.Module:
    """A multi-layer perceptron of 784, 1024, 1024 and 10 units."""
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def _images(network: Callable[[], nn.Module], batch: int, side: int, classes: int) -> Workload:
    x = torch.randn(batch, 3, side, side)
    return Workload(network(), x, torch.randint(0, classes, (batch,)), True)


def _resnet18() -> Workload:
    return _images(networks.resnet18, 16, 224, 1000)


def _resnet18_cifar() -> Workload:
    return _images(resnet18_cifar, 64, 32, 10)


def _mlp() -> Workload:
    return Workload(perceptron(), torch.randn(128, 784), torch.randint(0, 10, (128,)), False)


def _gpt() -> Workload:
    ids = torch.randint(0, 10_000, (8, 128))
    return Workload(Gpt(10_000, 128, 384, 6, 6), ids, ids.roll(-1, 1), False)


def _lstm_lm() -> Workload:
    ids = torch.randint(0, networks.LSTM_VOCABULARY, (35, 20))
    return Workload(Sequences(), ids, ids.roll(-1, 0), False)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "resnet18": _resnet18, "resnet18_cifar": _resnet18_cifar, "mlp": _mlp, "gpt": _gpt, "lstm_lm": _lstm_lm,
}  # fmt: skip


def workload(name: str) -> Workload:
    """A seeded workload by name, its network in training mode with PyTorch's own initial weights."""
    torch.manual_seed(SEED)
    made = WORKLOADS[name]()
    made.network.train()
    return made

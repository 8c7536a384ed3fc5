"""The networks of thesis-chen section 3.4 at any depth and length: residual networks, and an unrolled LSTM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish.graph.graph import Graph, GraphBuilder

EXPANSION = 4  # of a bottleneck's last convolution


@dataclass(frozen=True)
class Residual:
    """A residual network: blocks of each of four stages, with or without bottlenecks (He et al. 2016, table 1)."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool
    width: int = 64
    classes: int = 1000

    @property
    def layers(self) -> int:
        """Convolutions and products, as the depth is counted."""
        return sum(self.blocks) * (3 if self.bottleneck else 2) + 2


PUBLISHED = {
    18: Residual((2, 2, 2, 2), False), 34: Residual((3, 4, 6, 3), False), 50: Residual((3, 4, 6, 3), True),
    101: Residual((3, 4, 23, 3), True), 152: Residual((3, 8, 36, 3), True),
}  # fmt: skip


def residual(depth: int) -> Residual:
    """The published network of a depth, else one whose stages grow together, as in the thesis."""
    if depth in PUBLISHED:
        return PUBLISHED[depth]
    each = max(1, round((depth - 2) / 12))
    return Residual((each, each, each, each), True)


class _Network:
    """A graph under construction, with seeded weights or, to plan only, weights of zeros."""

    def __init__(self, seed: int | None) -> None:
        self.builder = GraphBuilder()
        self.random = None if seed is None else np.random.default_rng(seed)
        self.count = 0

    def weight(self, shape: tuple[int, ...], fan_in: int) -> str:
        self.count += 1
        value = np.zeros(shape, np.float32)
        if self.random is not None:
            value = (self.random.standard_normal(shape) * np.sqrt(2.0 / fan_in)).astype(np.float32)
        return self.builder.constant(value, f"w{self.count}")

    def conv(self, x: str, channels: int, kernel: int, stride: int) -> str:
        """A convolution and a batch normalization."""
        b, inputs = self.builder, self.builder.types[x].shape[1]
        weight = self.weight((channels, inputs, kernel, kernel), inputs * kernel**2)
        name = f"conv{self.count}"
        y = b.add("conv2d", x, weight, pads=(kernel // 2,) * 4, strides=(stride, stride), node=name)
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        values = {"scale": ones, "shift": zeros, "mean": zeros, "variance": ones}
        own = [b.constant(value.copy(), f"{name}.{key}") for key, value in values.items()]
        return b.add("batch_norm", y, *own, node=f"{name}.norm")

    def relu(self, x: str) -> str:
        return self.builder.add("relu", x)

    def block(self, x: str, width: int, stride: int, bottleneck: bool) -> str:
        """A residual block."""
        channels = width * (EXPANSION if bottleneck else 1)
        if bottleneck:
            y = self.relu(self.conv(self.relu(self.conv(x, width, 1, 1)), width, 3, stride))
            y = self.conv(y, channels, 1, 1)
        else:
            y = self.conv(self.relu(self.conv(x, width, 3, stride)), width, 3, 1)
        same = stride == 1 and self.builder.types[x].shape[1] == channels
        shortcut = x if same else self.conv(x, channels, 1, stride)
        return self.relu(self.builder.add("add", y, shortcut))


def resnet(form: Residual, batch: int, size: int, seed: int | None = None) -> Graph:
    """A residual network for images of ``[batch, 3, size, size]``; without ``seed`` its weights are zeros."""
    n = _Network(seed)
    b = n.builder
    x = n.relu(n.conv(b.input("image", (batch, 3, size, size)), form.width, 7, 2))
    x = b.add("max_pool2d", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for stage, count in enumerate(form.blocks):
        for number in range(count):
            x = n.block(x, form.width << stage, 2 if stage and not number else 1, form.bottleneck)
    pooled = b.add("reduce_mean", x, axes=(2, 3), keepdims=False)
    weight = n.weight((b.types[pooled].shape[1], form.classes), b.types[pooled].shape[1])
    bias = b.constant(np.zeros(form.classes, np.float32), "bias")
    return b.build(b.add("add", b.add("matmul", pooled, weight), bias))

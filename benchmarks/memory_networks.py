"""The networks of thesis-chen section 3.4 at any depth and length: residual networks, and unrolled LSTMs."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    def expansion(self) -> int:
        """Channels of a block's result for each of its width."""
        return EXPANSION if self.bottleneck else 1

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


class _Builder:
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
    n = _Builder(seed)
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


def perceptron(layers: int, batch: int, width: int, classes: int = 1000) -> Graph:
    """Layers of products and activations, as many as asked for, and a last product; seeded weights."""
    b = GraphBuilder()
    r = np.random.default_rng(0)
    x = b.input("image", (batch, width))
    for i in range(layers):
        weight = b.constant((r.standard_normal((width, width)) * np.sqrt(2.0 / width)).astype(np.float32), f"w{i}")
        x = b.add("relu", b.add("matmul", x, weight))
    head = r.standard_normal((width, classes)) / np.sqrt(width)
    return b.build(b.add("matmul", x, b.constant(head.astype(np.float32), "head")))


@dataclass(frozen=True)
class UnrolledLstm:
    """LSTM layers that are unrolled over steps, with a softmax at every step (thesis-chen section 3.4.3)."""

    layers: int
    units: int
    batch: int
    inputs: int
    classes: int

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of all weights, which live from the last step to the first."""
        layers = (self.inputs if layer == 0 else self.units for layer in range(self.layers))
        return 4 * self.units * (sum(4 * (width + self.units) for width in layers) + self.classes)

    def graph(self, steps: int, seed: int | None = None) -> Graph:
        """The model; without ``seed`` its weights are zeros."""
        b, r = GraphBuilder(), None if seed is None else np.random.default_rng(seed)

        def weight(name: str, *shape: int) -> str:
            value = np.zeros(shape) if r is None else r.standard_normal(shape) / np.sqrt(self.units)
            return b.constant(value.astype(np.float32), name)

        xs = [b.input(f"x{t}", (self.batch, self.inputs)) for t in range(steps)]
        for layer in range(self.layers):
            width = b.types[xs[0]].shape[1]
            w, own = weight(f"w{layer}", width, 4 * self.units), weight(f"u{layer}", 4, self.units, self.units)
            zeros = np.zeros((self.batch, self.units), np.float32)
            h, c = (b.constant(zeros, f"{name}{layer}") for name in "hc")
            for t, x in enumerate(xs):
                h, c = b.add_many("lstm_cell", b.add("matmul", x, w), h, c, own)
                xs[t] = h
        joined = b.add("concat", *xs, axis=0)
        return b.build(b.add("matmul", joined, weight("head", self.units, self.classes)))


THESIS = UnrolledLstm(layers=4, units=1024, batch=64, inputs=50, classes=5000)
EXECUTED = UnrolledLstm(layers=4, units=256, batch=64, inputs=50, classes=1000)


@dataclass(frozen=True)
class Network:
    """Executed network: a residual network or a perceptron of several layers, for inputs of ``shape``."""

    form: Residual | int
    shape: tuple[int, ...]
    classes: int = 1000

    def graph(self) -> Graph:
        """The model with seeded weights."""
        if isinstance(self.form, Residual):
            return resnet(self.form, self.shape[0], self.shape[2], 0)
        return perceptron(self.form, self.shape[0], self.shape[1], self.classes)


NETWORKS = {
    "perceptron-24": Network(24, (256, 256)),
    "resnet18-4x64": Network(residual(18), (4, 3, 64, 64)),
    "resnet26-4x64": Network(Residual((2, 2, 2, 2), True), (4, 3, 64, 64)),
    "resnet50-2x64": Network(residual(50), (2, 3, 64, 64)),
}
DEEP = Network(replace(residual(1001), width=16), (32, 3, 64, 64))
"""A thousand layers that this machine can run: a quarter as wide as those of the thesis, on smaller images."""

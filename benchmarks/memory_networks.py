"""The networks of thesis-chen section 3.4 at any depth and length: residual networks, and an unrolled LSTM."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from burnish.graph.graph import Graph, GraphBuilder
from burnish.memory.work import Work, WorkItem

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
    """So many layers of products and activations, and a last product; seeded weights."""
    b = GraphBuilder()
    r = np.random.default_rng(0)
    x = b.input("image", (batch, width))
    for i in range(layers):
        weight = b.constant((r.standard_normal((width, width)) * np.sqrt(2.0 / width)).astype(np.float32), f"w{i}")
        x = b.add("relu", b.add("matmul", x, weight))
    head = r.standard_normal((width, classes)) / np.sqrt(width)
    return b.build(b.add("matmul", x, b.constant(head.astype(np.float32), "head")))


def recurrent(steps: int, layers: int = 2, units: int = 64, batch: int = 16, classes: int = 1000) -> Graph:
    """LSTM layers, unrolled over `steps` steps, followed by a matrix product; seeded weights."""
    b, r = GraphBuilder(), np.random.default_rng(0)

    def weight(name: str, *shape: int) -> str:
        return b.constant((r.standard_normal(shape) / np.sqrt(units)).astype(np.float32), name)

    xs = [b.input(f"x{t}", (batch, units)) for t in range(steps)]
    for layer in range(layers):
        w, own = weight(f"w{layer}", units, 4 * units), weight(f"u{layer}", 4, units, units)
        h, c = (b.constant(np.zeros((batch, units), np.float32), f"{name}{layer}") for name in "hc")
        for t, x in enumerate(xs):
            h, c = b.add_many("lstm_cell", b.add("matmul", x, w), h, c, own)
            xs[t] = h
    return b.build(b.add("matmul", xs[-1], weight("head", units, classes)))


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


# --- the unrolled LSTM, as operations: its graph of 120,000 nodes says nothing more of memory ---

FLOPS, BANDWIDTH = 200e9, 10e9  # of one core: what the costs of operations are estimated by


def unrolled(
    length: int, layers: int = 4, units: int = 1024, batch: int = 64, inputs: int = 50, classes: int = 5000
) -> Work:
    """A training step of an LSTM with a softmax at every step (thesis-chen section 3.4.3), in operators as MXNet has.

    Weight gradients are added up in place, one buffer for each weight.
    """
    return _Unrolled(layers, units, batch, inputs, classes).work(length)


class _Unrolled:
    """Operations of a step under construction: forward ones with what their backward ones read."""

    def __init__(self, layers: int, units: int, batch: int, inputs: int, classes: int) -> None:
        self.layers, self.units, self.batch, self.inputs, self.classes = layers, units, batch, inputs, classes
        self.operations: list[WorkItem] = []
        self.nbytes: list[int] = []
        self.tape: list[tuple[str, tuple[int, ...], int, int, float]] = []  # kind, operands, result, weight, seconds
        self.gradients: dict[int, int] = {}
        self.weights: dict[int, int] = {}  # weight -> the value of its gradient

    def value(self, width: int) -> int:
        self.nbytes.append(4 * self.batch * width)
        return len(self.nbytes) - 1

    def forward(self, kind: str, operands: tuple[int, ...], width: int, depth: int = 0, weight: int = -1) -> int:
        """One operator; ``depth``: of a product with a weight; an operand -1 is an input of the model."""
        y = self.value(width)
        reads = tuple(v for v in operands if v >= 0)
        moved = self.nbytes[y] + sum(self.nbytes[v] for v in reads)
        seconds = 2.0 * self.batch * depth * width / FLOPS + moved / BANDWIDTH
        places = tuple(v for v in reads if self.nbytes[v] == self.nbytes[y]) if kind in ("add", "mul", "act") else ()
        self.operations.append(WorkItem(reads, (y,), seconds, places, True, depth == 0, f"{kind}{y}"))
        self.tape.append((kind, operands, y, weight, seconds))
        return y

    def cell(self, x: int, h: int, c: int, layer: int) -> tuple[int, int]:
        """One step of one layer: the next h and c."""
        n = self.units
        first = self.forward("product", (x,), 4 * n, self.inputs if layer == 0 else n, 2 * layer)
        gates = (
            first
            if h < 0
            else self.forward("add", (first, self.forward("product", (h,), 4 * n, n, 2 * layer + 1)), 4 * n)
        )
        i, f, o, z = (self.forward("act", (self.forward("part", (gates,), n),), n) for _ in range(4))
        new = self.forward("mul", (i, z), n)
        if c >= 0:
            new = self.forward("add", (self.forward("mul", (f, c), n), new), n)
        return self.forward("mul", (o, self.forward("act", (new,), n)), n), new

    def work(self, length: int) -> Work:
        states = [(-1, -1)] * self.layers
        for _ in range(length):
            x = -1
            for layer in range(self.layers):
                states[layer] = self.cell(x, *states[layer], layer)
                x = states[layer][0]
            scores = self.forward("product", (x,), self.classes, self.units, 2 * self.layers)
            self.forward("loss", (scores,), self.classes)
        count = len(self.operations)
        for node in reversed(self.tape):
            self.backward(*node)
        keep = frozenset(self.weights.values())
        return Work(tuple(self.operations), tuple(self.nbytes), keep, frozenset(range(count)))

    def backward(self, kind: str, operands: tuple[int, ...], y: int, weight: int, seconds: float) -> None:
        """The gradients of one operator's operands and weight. Activations read their result, products operands."""
        dy = self.gradients.pop(y, None)
        if dy is None and kind != "loss":
            return
        if weight >= 0:
            assert dy is not None
            self.weight_gradient(weight, operands[0], dy, seconds)
        for v in operands:
            if v < 0:
                continue
            if kind == "add":
                self.accumulate(v, dy)
                continue
            needed = {"act": (y,), "loss": (y,), "mul": operands}.get(kind, ())
            dx = len(self.nbytes)
            self.nbytes.append(self.nbytes[v])
            reads = tuple(dict.fromkeys(u for u in (dy, *needed) if u is not None and u >= 0))
            last = v == operands[-1] and dy is not None and self.nbytes[dy] == self.nbytes[v] and kind in ("act", "mul")
            places = (dy,) if last and dy is not None else ()
            self.operations.append(WorkItem(reads, (dx,), seconds, places, name=f"{kind}{y}.gradient"))
            self.accumulate(v, dx)

    def accumulate(self, v: int, more: int | None) -> None:
        assert more is not None
        known = self.gradients.get(v)
        if known is None:
            self.gradients[v] = more
            return
        total = len(self.nbytes)
        self.nbytes.append(self.nbytes[v])
        moved = 3 * self.nbytes[v] / BANDWIDTH
        self.operations.append(WorkItem((known, more), (total,), moved, (known, more), name=f"sum{total}"))
        self.gradients[v] = total

    def weight_gradient(self, weight: int, x: int, dy: int, seconds: float) -> None:
        """Added to the weight's gradient, in the buffer of the first."""
        reads = [dy] if x < 0 else [x, dy]
        if weight in self.weights:
            reads.append(self.weights[weight])
            writes: tuple[int, ...] = ()
        else:
            depth = self.inputs if weight == 0 else self.units
            self.nbytes.append(4 * depth * (self.classes if weight == 2 * self.layers else 4 * self.units))
            self.weights[weight] = len(self.nbytes) - 1
            writes = (self.weights[weight],)
        self.operations.append(WorkItem(tuple(reads), writes, seconds, again=False, name=f"weight{weight}.gradient"))

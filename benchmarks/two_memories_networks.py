"""Steps that `benchmarks.two_memories` plans: GCN, GIN and CommNet on Reddit, residual networks, a long chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import burnish as bn
from burnish.graph.fuse import fuse
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.memory.lifetimes import LifetimeStep
from burnish.memory.swap import SwapProblem, swap_problem
from burnish.train.step import Train, training_graph

VERTICES, EDGES, FEATURES, CLASSES = 232_965, 114_848_857, 602, 41  # Reddit: thesis-jia table 4.4
FLOPS, GATHERED = 200e9, 150e9  # of a core, and bytes of neighbours a second: what seconds are estimated by


@dataclass
class Network:
    """Steps under construction, sizes in bytes of float32, and estimated seconds."""

    steps: list[LifetimeStep] = field(default_factory=list)
    nbytes: dict[str, int] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def vertices(self, name: str, width: int) -> str:
        """A row of ``width`` numbers for each vertex."""
        self.nbytes[name], self.widths[name] = VERTICES * width * 4, width
        return name

    def weight(self, name: str, rows: int, columns: int) -> str:
        self.nbytes[name] = rows * columns * 4
        return name

    def gather(self, x: str, out: str) -> str:
        """The sum of neighbours; ``edges`` are their numbers."""
        self.nbytes["edges"] = EDGES * 4
        self.steps.append(LifetimeStep(("edges", x), (self.vertices(out, self.widths[x]),)))
        self.seconds.append(EDGES * self.widths[x] * 4 / GATHERED)
        return out

    def run(self, reads: tuple[str, ...], writes: tuple[str, ...], flops: float) -> None:
        """Step of a number of operations, a matrix product among them."""
        self.steps.append(LifetimeStep(reads, writes))
        self.seconds.append(flops / FLOPS)

    def problem(self) -> SwapProblem:
        return swap_problem(self.steps, self.nbytes)


def product(rows: int, columns: int) -> float:
    """Operations of a product of all vertices' rows with a matrix."""
    return 2.0 * VERTICES * rows * columns


def gcn(layers: int, hidden: int) -> Network:
    """H' = A (H W), and back."""
    n = Network()
    x = n.vertices("h0", FEATURES)
    widths = [FEATURES, *[hidden] * (layers - 1), CLASSES]
    for i in range(layers):
        a, b = widths[i], widths[i + 1]
        n.run((x, n.weight(f"w{i}", a, b)), (n.vertices(f"p{i}", b),), product(a, b))
        x = n.gather(f"p{i}", f"h{i + 1}")
    g = loss(n, x)
    for i in reversed(range(layers)):
        a, b = widths[i], widths[i + 1]
        dp = n.gather(g, f"dp{i}")
        n.run((dp, f"h{i}"), (n.weight(f"dw{i}", a, b),), product(a, b))
        if i:
            g = n.vertices(f"dh{i}", a)
            n.run((dp, f"w{i}", f"h{i}"), (g,), product(a, b))
    return n


def loss(n: Network, x: str) -> str:
    """The gradient of the softmax cross-entropy by the logits."""
    n.run((x,), (n.vertices("dy", n.widths[x]),), 10.0 * VERTICES * n.widths[x])
    return "dy"


def gin(layers: int, hidden: int) -> Network:
    """H' = relu((A H) U) V, and back."""
    n = Network()
    x = n.vertices("h0", FEATURES)
    widths = [FEATURES, *[hidden] * (layers - 1), CLASSES]
    for i in range(layers):
        a, b = widths[i], widths[i + 1]
        s = n.gather(x, f"s{i}")
        n.run((s, n.weight(f"u{i}", a, hidden)), (n.vertices(f"b{i}", hidden),), product(a, hidden))
        x = n.vertices(f"h{i + 1}", b)
        n.run((f"b{i}", n.weight(f"v{i}", hidden, b)), (x,), product(hidden, b))
    g = loss(n, x)
    for i in reversed(range(layers)):
        a, b = widths[i], widths[i + 1]
        written = (n.vertices(f"db{i}", hidden), n.weight(f"dv{i}", hidden, b))
        n.run((g, f"v{i}", f"b{i}"), written, 2 * product(hidden, b))
        n.run((f"db{i}", f"s{i}"), (n.weight(f"du{i}", a, hidden),), product(a, hidden))
        if i:
            n.run((f"db{i}", f"u{i}"), (n.vertices(f"ds{i}", a),), product(a, hidden))
            g = n.gather(f"ds{i}", f"dh{i}")
    return n


def commnet(layers: int, hidden: int) -> Network:
    """H' = (A H) U + H V, and back."""
    n = Network()
    x = n.vertices("h0", FEATURES)
    widths = [FEATURES, *[hidden] * (layers - 1), CLASSES]
    for i in range(layers):
        a, b = widths[i], widths[i + 1]
        s, y = n.gather(x, f"s{i}"), n.vertices(f"h{i + 1}", b)
        n.run((s, n.weight(f"u{i}", a, b)), (n.vertices(f"p{i}", b),), product(a, b))
        n.run((x, n.weight(f"v{i}", a, b)), (n.vertices(f"q{i}", b),), product(a, b))
        n.run((f"p{i}", f"q{i}"), (y,), 2.0 * VERTICES * b)
        x = y
    g = loss(n, x)
    for i in reversed(range(layers)):
        a, b = widths[i], widths[i + 1]
        n.run((g, f"s{i}"), (n.weight(f"du{i}", a, b),), product(a, b))
        n.run((g, f"h{i}"), (n.weight(f"dv{i}", a, b),), product(a, b))
        if i:
            n.run((g, f"u{i}"), (n.vertices(f"ds{i}", a),), product(a, b))
            n.run((g, f"v{i}"), (n.vertices(f"dq{i}", a),), product(a, b))
            n.gather(f"ds{i}", f"dn{i}")
            g2 = n.vertices(f"dh{i}", a)
            n.run((f"dn{i}", f"dq{i}"), (g2,), 2.0 * VERTICES * a)
            g = g2
    return n


GRAPHS: dict[str, Callable[[], Network]] = {
    "GCN 2": lambda: gcn(2, 128), "GCN 4": lambda: gcn(4, 256), "GIN 2": lambda: gin(2, 256),
    "GIN 4": lambda: gin(4, 256), "GIN 6": lambda: gin(6, 256), "CommNet 2": lambda: commnet(2, 256),
    "GCN 16": lambda: gcn(16, 256),
}  # fmt: skip


def resnet(depth: int, batch: int) -> SwapProblem:
    """A training step of ResNet-18 or ResNet-50 on images of 224×224, a step for each group that becomes one kernel."""
    graph = optimize(training_graph(residual(depth, batch), Train(optimizer=bn.SGD(0.1))))
    groups = fuse(graph)
    steps = [LifetimeStep(g.inputs, g.outputs, alias=g.alias) for g in groups]
    written = {name for g in groups for name in g.outputs}
    nbytes = {name: t.nbytes for name, t in graph.types.items()}
    return swap_problem(steps, nbytes, [name for name in graph.outputs if name in written])


def residual(depth: int, batch: int) -> Graph:
    """The network, with weights of zeros: only sizes count."""
    blocks, expansion = {18: ((2, 2, 2, 2), 1), 50: ((3, 4, 6, 3), 4)}[depth]
    b = GraphBuilder()

    def conv(x: str, channels: int, kernel: int, stride: int) -> str:
        weight = b.constant(np.zeros((channels, b.types[x].shape[1], kernel, kernel), "f4"), b.fresh("w"))
        y = b.add("conv2d", x, weight, pads=(kernel // 2,) * 4, strides=(stride, stride))
        one, zero = np.ones(channels, "f4"), np.zeros(channels, "f4")
        statistics = [b.constant(v.copy(), b.fresh("n")) for v in (one, zero, zero, one)]
        return b.add("batch_norm", y, *statistics)

    x = b.add("relu", conv(b.input("image", (batch, 3, 224, 224)), 64, 7, 2))
    x = b.add("max_pool2d", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            y = x
            for kernel, channels in ((1, width), (3, width), (1, 4 * width)) if expansion > 1 else ((3, width),) * 2:
                step = stride if kernel == 3 and b.types[y].shape[2] == b.types[x].shape[2] else 1
                y = conv(b.add("relu", y) if y is not x else x, channels, kernel, step)
            same = stride == 1 and b.types[x].shape[1] == width * expansion
            x = b.add(
                "relu", b.add("add", y, x if same else conv(x, width * expansion, 1, stride), name=b.fresh("sum"))
            )
    x = b.add("reduce_mean", x, axes=(2, 3), keepdims=False)
    return b.build(b.add("matmul", x, b.constant(np.zeros((b.types[x].shape[1], 1000), "f4"), "head")))


def chain(blocks: int) -> SwapProblem:
    """Three steps a block: forward, its gradient by the input and by a weight; sizes halve three times on the way."""
    steps, nbytes = [], {"h0": 64 << 20}
    for i in range(blocks):
        nbytes |= {f"h{i + 1}": (64 << 20) >> (3 * i // blocks), f"w{i}": 4 << 10 << (2 * (3 * i // blocks))}
        skip = (f"h{i - 1}",) if i % 2 and nbytes[f"h{i - 1}"] == nbytes[f"h{i}"] else ()
        steps.append(LifetimeStep((f"h{i}", f"w{i}", *skip), (f"h{i + 1}",)))
    nbytes[f"g{blocks}"] = nbytes[f"h{blocks}"]
    for i in reversed(range(blocks)):
        nbytes |= {f"g{i}": nbytes[f"h{i}"], f"d{i}": nbytes[f"w{i}"]}
        steps += [
            LifetimeStep((f"g{i + 1}", f"h{i}"), (f"d{i}",)),
            LifetimeStep((f"g{i + 1}", f"w{i}", f"h{i + 1}"), (f"g{i}",)),
        ]
    return swap_problem(steps, nbytes, [f"d{i}" for i in range(blocks)])


def small_step(batch: int, size: int) -> Graph:
    """A training step of a network of three convolutions, with seeded weights."""
    random = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("image", (batch, 3, size, size))
    for channels, stride in ((16, 1), (32, 2), (32, 1)):
        shape = (channels, b.types[x].shape[1], 3, 3)
        weight = b.constant((random.normal(size=shape) / 8).astype("f4"), b.fresh("w"))
        x = b.add("relu", b.add("conv2d", x, weight, pads=(1, 1, 1, 1), strides=(stride, stride)))
    x = b.add("reduce_mean", x, axes=(2, 3), keepdims=False)
    head = b.constant((random.normal(size=(32, 10)) / 4).astype("f4"), "head")
    return training_graph(b.build(b.add("matmul", x, head)), Train(optimizer=bn.SGD(0.1)))

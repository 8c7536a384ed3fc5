"""The networks of thesis-jia section 3.7 as graphs at its sizes, and their operations: what plans are made for.

Batches grow with the devices: 256 samples each for AlexNet and DLRM, 64 for the others. Weights are views of one zero:
a plan needs shapes only. Batch normalization, bias and ReLU are folded; a step of a recurrent layer is one operation,
or ``chunk`` steps are, as in the published simulator, which cuts 40 steps into 5 operations of 8.
Sizes that the thesis does not give (vocabularies) are those of its data sets: 20,000, 10,000 and 32,000 words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from burnish.graph.graph import GraphBuilder
from burnish.parallel.model.operations import OperationGraph, operations

Kernel = int | tuple[int, int]
VOCABULARIES = (
    1460, 583, 1_700_000, 1_600_000, 305, 24, 12517, 633, 3, 93145, 5683, 1_650_000, 3194, 27, 14992, 1_500_000, 10,
    5652, 2173, 4, 1_400_000, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Rows of DLRM's 26 tables: between the thesis' 3 and 1.7 million, 10.4 million rows (2.7 GB) in all."""


class Network:
    """A graph under construction; ``steps`` are the nodes of every step of a layer, by its name, in order: ``chunk`` of
    them form one operation.
    """

    def __init__(self, chunk: int = 1) -> None:
        self.b = GraphBuilder()
        self.chunk = chunk
        self.steps: dict[str, list[list[str]]] = {}
        self._cells: dict[str, tuple[str, ...]] = {}

    def weight(self, *shape: int) -> str:
        """A parameter that takes no memory."""
        return self.b.constant(np.broadcast_to(np.float32(0), shape), self.b.fresh("w"))

    def shape(self, x: str) -> tuple[int, ...]:
        """Extents of a tensor."""
        return self.b.types[x].shape

    def conv(self, x: str, channels: int, kernel: Kernel, stride: int = 1, pad: Kernel = 0, norm: bool = True) -> str:
        """A convolution with batch normalization (or a bias) and ReLU."""
        (kh, kw), (ph, pw) = (k if isinstance(k, tuple) else (k, k) for k in (kernel, pad))
        w = self.weight(channels, self.shape(x)[1], kh, kw)
        more = () if norm else (self.weight(channels),)
        y = self.b.add("conv2d", x, w, *more, strides=(stride, stride), pads=(ph, pw, ph, pw))
        return self.b.add("relu", self.norm(y) if norm else y)

    def norm(self, y: str) -> str:
        """Batch normalization."""
        return self.b.add("batch_norm", y, *(self.weight(self.shape(y)[1]) for _ in range(4)))

    def pool(self, x: str, kind: str, kernel: int, stride: int, pad: int = 0) -> str:
        """Maxima or averages of windows."""
        return self.b.add(f"{kind}_pool2d", x, kernel=(kernel, kernel), strides=(stride, stride), pads=(pad,) * 4)

    def flat(self, x: str) -> str:
        """An image as a vector."""
        n, *rest = self.shape(x)
        return self.b.add("reshape", x, shape=(n, int(np.prod(rest))))

    def dense(self, x: str, width: int, relu: bool = True, tied: tuple[str, str] | None = None) -> str:
        """A fully connected layer with a bias."""
        w, bias = tied or (self.weight(self.shape(x)[1], width), self.weight(width))
        product = self.b.add("matmul", x, w)
        y = self.b.add("add", product, bias)
        if tied:
            self.step(w, product, y)
        return self.b.add("relu", y) if relu else y

    def embedding(self, table: str, name: str, n: int) -> str:
        """Rows of a table at an input of indices."""
        rows = self.b.add("gather", table, self.b.input(name, (n,), "int64"))
        self.step(table, rows)
        return rows

    def step(self, layer: str, *nodes: str) -> None:
        """Notes the nodes of one step of a layer."""
        self.steps.setdefault(layer, []).append([*nodes])

    def cell(self, layer: str, x: str, state: tuple[str, str], units: int) -> tuple[str, str]:
        """A step of an LSTM layer, whose weights all its steps share."""
        if layer not in self._cells:
            width = self.shape(x)[1]
            self._cells[layer] = (self.weight(width, 4 * units), self.weight(4 * units), self.weight(4, units, units))
        w, bias, recurrent = self._cells[layer]
        product = self.b.add("matmul", x, w)
        gates = self.b.add("add", product, bias)
        h, c = self.b.add_many("lstm_cell", gates, *state, recurrent)
        self.step(layer, product, gates, h)
        return h, c

    def layer(self, name: str, xs: Sequence[str], units: int, state: tuple[str, str] | None = None) -> list[str]:
        """All steps of an LSTM layer; the state after the last is at :attr:`last`."""
        n = self.shape(xs[0])[0]
        state = state or tuple(self.b.input(f"{name}.{word}", (n, units)) for word in ("h", "c"))  # type: ignore[assignment]
        outputs = []
        for x in xs:
            state = self.cell(name, x, state, units)  # type: ignore[arg-type]
            outputs.append(state[0])
        self.last = state
        return outputs

    def model(self, *outputs: str) -> OperationGraph:
        """The operations."""
        groups = [
            [name for step in steps[first : first + self.chunk] for name in step]
            for steps in self.steps.values()
            for first in range(0, len(steps), self.chunk)
        ]
        return operations(self.b.build(*outputs), groups=groups)


# --- convolutional networks -------------------------------------------------------------------------------------------


def alexnet(devices: int, batch: int = 256) -> OperationGraph:
    """AlexNet (Krizhevsky 2014, one tower)."""
    n = Network()
    x = n.b.input("image", (batch * devices, 3, 224, 224))
    x = n.pool(n.conv(x, 64, 11, 4, 2, norm=False), "max", 3, 2)
    x = n.pool(n.conv(x, 192, 5, 1, 2, norm=False), "max", 3, 2)
    x = n.conv(n.conv(n.conv(x, 384, 3, 1, 1, False), 256, 3, 1, 1, False), 256, 3, 1, 1, False)
    x = n.flat(n.pool(x, "max", 3, 2))
    return n.model(n.dense(n.dense(n.dense(x, 4096), 4096), 1000, relu=False))


def lenet(devices: int, batch: int = 64) -> OperationGraph:
    """LeNet-5 with maxima and ReLU."""
    n = Network()
    x = n.b.input("image", (batch * devices, 1, 28, 28))
    x = n.pool(n.conv(x, 6, 5, 1, 2, norm=False), "max", 2, 2)
    x = n.flat(n.pool(n.conv(x, 16, 5, norm=False), "max", 2, 2))
    return n.model(n.dense(n.dense(n.dense(x, 120), 84), 10, relu=False))


def resnet101(devices: int, batch: int = 64) -> OperationGraph:
    """ResNet-101 (He et al. 2016, table 1), the stride in the 3×3 convolution."""
    n = Network()
    x = n.b.input("image", (batch * devices, 3, 224, 224))
    x = n.pool(n.conv(x, 64, 7, 2, 3), "max", 3, 2, 1)
    for stage, count in enumerate((3, 4, 23, 3)):
        width = 64 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            y = n.conv(n.conv(x, width, 1), width, 3, stride, 1)
            y = n.norm(n.b.add("conv2d", y, n.weight(4 * width, width, 1, 1)))
            if number == 0:
                w = n.weight(4 * width, n.shape(x)[1], 1, 1)
                x = n.norm(n.b.add("conv2d", x, w, strides=(stride, stride)))
            x = n.b.add("relu", n.b.add("add", y, x))
    x = n.b.add("reduce_mean", x, axes=(2, 3), keepdims=False)
    return n.model(n.dense(x, 1000, relu=False))


def inception_v3(devices: int, batch: int = 64) -> OperationGraph:
    """Inception-v3 (Szegedy et al. 2016) without the auxiliary classifier."""
    n = Network()
    x = n.b.input("image", (batch * devices, 3, 299, 299))
    x = n.conv(n.conv(n.conv(x, 32, 3, 2), 32, 3), 64, 3, 1, 1)
    x = n.conv(n.conv(n.pool(x, "max", 3, 2), 80, 1), 192, 3)
    x = n.pool(x, "max", 3, 2)
    for width in (32, 64, 64):
        x = _joined(
            n, x, [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]], [_averaged(n, x, width)]
        )  # fmt: skip
    x = _joined(n, x, [[(384, 3, 2)], [(64, 1), (96, 3), (96, 3, 2)]], [n.pool(x, "max", 3, 2)])
    for width in (128, 160, 160, 192):
        long = [(width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))]
        x = _joined(
            n, x, [[(192, 1)], [(width, 1), (width, (1, 7)), (192, (7, 1))], long], [_averaged(n, x, 192)]
        )  # fmt: skip
    narrow = [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)]
    x = _joined(n, x, [[(192, 1), (320, 3, 2)], narrow], [n.pool(x, "max", 3, 2)])
    for _ in range(2):
        a, b = n.conv(x, 384, 1), n.conv(n.conv(x, 448, 1), 384, 3, 1, 1)
        halves = [
            n.conv(y, 384, kernel, 1, pad) for y in (a, b) for kernel, pad in (((1, 3), (0, 1)), ((3, 1), (1, 0)))
        ]
        x = _joined(n, x, [[(320, 1)]], [*halves, _averaged(n, x, 192)])
    x = n.b.add("reduce_mean", x, axes=(2, 3), keepdims=False)
    return n.model(n.dense(x, 1000, relu=False))


def _averaged(n: Network, x: str, width: int) -> str:
    return n.conv(n.pool(x, "avg", 3, 1, 1), width, 1)


def _joined(n: Network, x: str, chains: Sequence[Sequence[tuple]], more: Sequence[str]) -> str:
    """Chains of convolutions (channels, kernel[, stride]) and other branches, concatenated; stride 1 keeps the size."""
    branches = []
    for chain in chains:
        y = x
        for width, kernel, *stride in chain:
            height, breadth = kernel if isinstance(kernel, tuple) else (kernel, kernel)
            y = n.conv(y, width, kernel, *(stride or (1, (height // 2, breadth // 2))))
        branches.append(y)
    return n.b.add("concat", *branches, *more, axis=1)


# --- recurrent networks -----------------------------------------------------------------------------------------------


def rnntc(
    devices: int, batch: int = 64, steps: int = 40, layers: int = 4, units: int = 1024, chunk: int = 1
) -> OperationGraph:
    """Text classification: four LSTM layers, a classifier of the last step."""
    n = Network(chunk)
    table = n.weight(20_000, units)
    xs = [n.embedding(table, f"word{t}", batch * devices) for t in range(steps)]
    for layer in range(layers):
        xs = n.layer(f"lstm{layer}", xs, units)
    return n.model(n.dense(xs[-1], 2, relu=False))


def rnnlm(
    devices: int, batch: int = 64, steps: int = 40, units: int = 2048, words: int = 10_000, chunk: int = 1
) -> OperationGraph:
    """Language model: two LSTM layers and a softmax at every step (Zaremba et al. 2014)."""
    n = Network(chunk)
    table = n.weight(words, units)
    xs = [n.embedding(table, f"word{t}", batch * devices) for t in range(steps)]
    for layer in range(2):
        xs = n.layer(f"lstm{layer}", xs, units)
    tied = (n.weight(units, words), n.weight(words))
    return n.model(*(n.dense(x, words, False, tied) for x in xs))


def nmt(
    devices: int, batch: int = 64, steps: int = 40, units: int = 1024, words: int = 32_000, chunk: int = 1
) -> OperationGraph:
    """Translation: an encoder and a decoder of two LSTM layers, attention and a softmax at every step (GNMT)."""
    n = Network(chunk)
    samples = batch * devices
    tables = [n.weight(words, units) for _ in range(2)]
    xs = [n.embedding(tables[0], f"source{t}", samples) for t in range(steps)]
    states = []
    for layer in range(2):
        xs = n.layer(f"encoder{layer}", xs, units)
        states.append(n.last)
    rows = [n.b.add("reshape", x, shape=(samples, 1, units)) for x in xs]
    memory = n.b.add("concat", *rows, axis=1)
    xs = [n.embedding(tables[1], f"target{t}", samples) for t in range(steps)]
    for layer in range(2):
        xs = n.layer(f"decoder{layer}", xs, units, states[layer])
    joined, tied = n.weight(2 * units, units), (n.weight(units, words), n.weight(words))
    return n.model(*(n.dense(_attention(n, x, memory, joined), words, False, tied) for x in xs))


def _attention(n: Network, query: str, memory: str, weight: str) -> str:
    """Dot-product attention and its layer (Luong et al. 2015), one operation."""
    samples, units = n.shape(query)
    first = len(n.b.nodes)
    column = n.b.add("reshape", query, shape=(samples, units, 1))
    shares = n.b.add("softmax", n.b.add("matmul", memory, column), axis=1)
    context = n.b.add("reshape", n.b.add("matmul", shares, memory, transpose_a=True), shape=(samples, units))
    y = n.b.add("tanh", n.b.add("matmul", n.b.add("concat", context, query, axis=1), weight))
    n.step(weight, *(node.outputs[0] for node in n.b.nodes[first:]))
    return y


# --- recommendation and drug response ---------------------------------------------------------------------------------


def dlrm(devices: int, batch: int = 256) -> OperationGraph:
    """DLRM (Naumov et al. 2019) with the thesis' layers: bottom 512-512-64, top 1024-1024-1024-1, 26 tables of 64."""
    n = Network()
    samples = batch * devices
    x = n.b.input("dense", (samples, 13))
    for width in (512, 512, 64):
        x = n.dense(x, width)
    tables = [n.embedding(n.weight(v, 64), f"category{i}", samples) for i, v in enumerate(VOCABULARIES)]
    x = n.b.add("concat", x, *tables, axis=1)
    for width in (1024, 1024, 1024):
        x = n.dense(x, width)
    return n.model(n.dense(x, 1, relu=False))


def candle_uno(devices: int, batch: int = 64) -> OperationGraph:
    """Candle Uno: three towers of 3 × 1000, on top 1000-1000-1000-1."""
    n = Network()
    towers = []
    for i, width in enumerate((942, 5270, 2048)):
        x = n.b.input(f"features{i}", (batch * devices, width))
        for _ in range(3):
            x = n.dense(x, 1000)
        towers.append(x)
    x = n.b.add("concat", *towers, axis=1)
    for _ in range(3):
        x = n.dense(x, 1000)
    return n.model(n.dense(x, 1, relu=False))


NETWORKS: dict[str, Callable[..., OperationGraph]] = {
    "alexnet": alexnet, "resnet101": resnet101, "inception_v3": inception_v3, "rnntc": rnntc, "rnnlm": rnnlm,
    "nmt": nmt, "dlrm": dlrm, "candle_uno": candle_uno,
}  # fmt: skip
"""By name; each takes the number of devices. Also :func:`lenet`, for exact searches."""

"""Parts of the twelve benchmark networks and of a GPT block, small: right on coroutines, whole modules at a time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.errors import MissingDependencyError
from burnish.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.simulators.gpu.emulator import GridEmulator, emulated
from tests.marks import slow


class Net:
    """A graph under construction, with seeded weights."""

    def __init__(self) -> None:
        self.g, self.rng = GraphBuilder(), np.random.default_rng(0)

    def weight(self, *shape: int, scale: float = 0.2) -> str:
        """A constant."""
        return self.g.constant((self.rng.standard_normal(shape) * scale).astype("float32"))

    def conv(self, x: str, ins: int, outs: int, k: int, stride: int = 1, groups: int = 1) -> str:
        """A convolution and its bias."""
        pads = (k // 2,) * 4
        y = self.g.add(
            "conv2d", x, self.weight(outs, ins // groups, k, k), pads=pads, strides=(stride,) * 2, groups=groups
        )
        return self.g.add("add", y, self.weight(outs, 1, 1))

    def dense(self, x: str, ins: int, outs: int) -> str:
        """A product with a matrix, and a bias."""
        return self.g.add("add", self.g.add("matmul", x, self.weight(ins, outs)), self.weight(outs))


def residual(n: Net) -> str:
    """ResNet: a strided stem, pooling, a block with a projection, mean over pixels, softmax."""
    add = n.g.add
    y = add("relu", n.conv(n.g.input("x", (1, 3, 12, 12)), 3, 8, 7, 2))
    y = add("max_pool2d", y, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    z = n.conv(add("relu", n.conv(y, 8, 16, 3)), 16, 16, 3)
    y = add("relu", add("add", z, n.conv(y, 8, 16, 1)))
    y = add("reshape", add("reduce_mean", y, axes=(2, 3)), shape=(1, 16))
    return add("softmax", n.dense(y, 16, 40), axis=1)


def inverted(n: Net) -> str:
    """MobileNet-v2: expansion, depthwise, projection, with clips and a sum."""
    x = n.g.input("x", (1, 8, 6, 6))
    y = n.g.add("clip", n.conv(x, 8, 16, 1), min=0.0, max=6.0)
    y = n.g.add("clip", n.conv(y, 16, 16, 3, groups=16), min=0.0, max=6.0)
    return n.g.add("add", n.conv(y, 16, 8, 1), x)


def fire(n: Net) -> str:
    """SqueezeNet and Inception: branches that are joined, neighbouring channels, average pooling."""
    add, x = n.g.add, n.g.input("x", (1, 8, 6, 6))
    y = add("concat", add("relu", n.conv(x, 8, 8, 1)), add("relu", n.conv(x, 8, 8, 3)), axis=1)
    return add("avg_pool2d", add("lrn", y, size=5), kernel=(3, 3), strides=(2, 2))


def attention(n: Net, causal: bool = False, rows: int = 8, width: int = 16, heads: int = 2) -> str:
    """A layer of BERT, or of GPT: normalization, heads, softmax, a gelu, sums."""
    add, x = n.g.add, n.g.input("x", (1, rows, width))
    h = add("layer_norm", x, n.weight(width), n.weight(width))

    def head(perm: tuple[int, ...]) -> str:
        split = add("reshape", n.dense(h, width, width), shape=(1, rows, heads, width // heads))
        return add("transpose", split, perm=perm)

    q, k, v = head((0, 2, 1, 3)), head((0, 2, 3, 1)), head((0, 2, 1, 3))
    scores = add("mul", add("matmul", q, k), n.g.constant(np.array(0.25, "float32")))
    if causal:
        scores = add("add", scores, n.g.constant(np.triu(np.full((rows, rows), -1e9, "float32"), 1)))
    mixed = add("transpose", add("matmul", add("softmax", scores, axis=-1), v), perm=(0, 2, 1, 3))
    y = add("add", n.dense(add("reshape", mixed, shape=(1, rows, width)), width, width), x)
    wide = n.dense(add("layer_norm", y, n.weight(width), n.weight(width)), width, 2 * width)
    root = n.g.constant(np.array(2**-0.5, "float32"))
    one = n.g.constant(np.array(1.0, "float32"))
    gelu = add("mul", wide, add("add", add("erf", add("mul", wide, root)), one))
    return add("add", n.dense(gelu, 2 * width, width), y)


def gpt(n: Net) -> str:
    """Attention that sees what comes before."""
    return attention(n, causal=True)


def recurrent(n: Net) -> str:
    """Two steps of an LSTM, from slices of what all gates were given at once."""
    add, hidden = n.g.add, 8
    gates = add("reshape", n.dense(n.g.input("x", (2, 12)), 12, 4 * hidden), shape=(2, 1, 4 * hidden))
    weight = n.weight(hidden, 4 * hidden)
    weight = add("transpose", add("reshape", weight, shape=(hidden, 4, hidden)), perm=(1, 0, 2))
    h, c = n.weight(1, hidden), n.weight(1, hidden)
    for step in range(2):
        own = add("slice", gates, starts=(step, 0, 0), extents=(1, 1, 4 * hidden))
        h, c = n.g.add_many("lstm_cell", add("reshape", own, shape=(1, 4 * hidden)), h, c, weight)
    return add("tanh", add("add", h, c))


def upsampling(n: Net) -> str:
    """DCGAN: transposed convolutions."""
    x = n.g.input("x", (1, 16, 1, 1))
    y = n.g.add("relu", n.g.add("conv2d_transpose", x, n.weight(16, 8, 4, 4)))
    y = n.g.add("conv2d_transpose", y, n.weight(8, 3, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1))
    return n.g.add("tanh", y)


NETWORKS: dict[str, Callable[[Net], str]] = {
    f.__name__: f for f in (residual, inverted, fire, attention, gpt, recurrent, upsampling)
}


def graph_of(name: str) -> Graph:
    """The graph of a network."""
    n = Net()
    return n.g.build(NETWORKS[name](n))


def compare(name: str, folder: Path | None = None) -> float:
    """The greatest difference of a network's results on coroutines and on this CPU, relative to the greatest result."""
    graph = graph_of(name)
    (spec,) = (graph.types[i] for i in graph.inputs)
    x = np.random.default_rng(1).standard_normal(spec.shape).astype("float32")
    expected = bn.compile(graph, exact=True, cache_dir=folder)(x)
    found = bn.compile(graph, target=emulated(target("cuda:sm_80")), cache_dir=folder)(x)
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))


SLOW = ("residual", "attention", "inverted", "fire", "gpt")


@pytest.mark.parametrize("name", slow(NETWORKS, *SLOW))
def test_networks_are_right_on_coroutines(name: str, tmp_path: Path) -> None:
    assert compare(name, tmp_path) < 1e-4


def test_a_module_without_a_gpu_is_saved_and_says_what_is_missing(tmp_path: Path) -> None:
    n = Net()
    graph = n.g.build(n.g.add("relu", n.g.input("x", (4, 4))))
    bn.compile(graph, target="cuda:sm_90a", cache_dir=tmp_path).save(tmp_path / "relu.bn")
    loaded = bn.load(tmp_path / "relu.bn")
    assert loaded.executable.target == "nvptx64-nvidia-cuda/sm_90a/"
    if importlib.util.find_spec("cuda") is None:
        with pytest.raises(MissingDependencyError, match=r"cuda is not installed.*burnish\[cuda\]"):
            loaded(np.zeros((4, 4), "float32"))
    x = np.linspace(-1, 1, 16, dtype="float32").reshape(4, 4)
    if importlib.util.find_spec("greenlet") is not None:
        on_coroutines = bn.load(tmp_path / "relu.bn", device=GridEmulator())
        np.testing.assert_array_equal(on_coroutines(x), np.maximum(x, 0))

"""ResNet-18 in int8 with powers of two as scales: its layers, its graph, and the same in NumPy as a reference.

Weights are drawn from a normal distribution and rounded to int8; the shift behind each sum is the least that keeps all
but one in a thousand of a sample's results in int8. What is computed: ``clip((sums + bias >> shift) + residual)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from burnish.graph import Graph, GraphBuilder


@dataclass(frozen=True)
class Layer:
    """A convolution of ``size`` x ``size`` images; ``added``: another image is added to its result."""

    name: str
    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int
    relu: bool = True
    added: bool = False

    @property
    def pads(self) -> int:
        """Zeros on each side."""
        return self.kernel // 2

    @property
    def result(self) -> int:
        """Rows and columns of the result."""
        return (self.size + 2 * self.pads - self.kernel) // self.stride + 1

    @property
    def products(self) -> int:
        """Multiplications."""
        return self.outputs * self.inputs * self.kernel**2 * self.result**2


FIRST = Layer("first", 3, 64, 224, 7, 2)


def blocks(image: int = 224) -> list[list[Layer]]:
    """The convolutions behind the first one, two or three a residual block: the third is that of the shortcut."""
    found, size, width = [], image // 4, 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for number in range(2):
            stride = 2 if stage and not number else 1
            name, own = f"{stage + 1}.{number}", size // stride
            made = [
                Layer(f"{name}.a", width, outputs, size, 3, stride),
                Layer(f"{name}.b", outputs, outputs, own, 3, 1, added=True),
            ]
            if stride > 1:
                made.append(Layer(f"{name}.shortcut", width, outputs, size, 1, stride, relu=False))
            found.append(made)
            size, width = own, outputs
    return found


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of one convolution: int8 [O, C, K, K], int32 [O], and the shift."""

    weight: np.ndarray
    bias: np.ndarray
    shift: int


def drawn(layer: Layer, random: np.random.Generator) -> Weights:
    """Weights whose shift is not known yet."""
    shape = (layer.outputs, layer.inputs, layer.kernel, layer.kernel)
    weight = np.clip(np.rint(random.standard_normal(shape, np.float32) * 36), -127, 127).astype(np.int8)
    return Weights(weight, random.integers(-2000, 2000, layer.outputs, dtype=np.int32), 0)


def sums(layer: Layer, x: np.ndarray, weights: Weights) -> np.ndarray:
    """The convolution of int8 [1, C, H, W] plus the bias in int32, by matrix products in float64, which are exact."""
    p, k, s = layer.pads, layer.kernel, layer.stride
    padded = np.pad(x, [(0, 0), (0, 0), (p, p), (p, p)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))[:, :, ::s, ::s]
    columns = windows[0].transpose(0, 3, 4, 1, 2).reshape(layer.inputs * k * k, -1).astype(np.float64)
    total = weights.weight.reshape(layer.outputs, -1).astype(np.float64) @ columns
    result = total.astype(np.int64).astype(np.int32).reshape(1, layer.outputs, layer.result, layer.result)
    return result + weights.bias.reshape(1, -1, 1, 1)


def least_shift(total: np.ndarray) -> int:
    """The least shift after which all but one in a thousand of the sums are in int8."""
    return max(0, int(np.ceil(np.log2(max(np.quantile(np.abs(total), 0.999), 1) / 127))))


def requantized(layer: Layer, total: np.ndarray, shift: int, beside: np.ndarray | None) -> np.ndarray:
    """Requantization of a layer's int32 sums to int8: shift, residual, limits."""
    value = total >> shift
    if beside is not None:
        value = value + beside
    return np.clip(value, 0 if layer.relu else -128, 127).astype(np.int8)


@dataclass
class Network:
    """ResNet-18 with its weights, and the int8 result of every convolution of a sample, by name."""

    image: int
    weights: dict[str, Weights] = field(default_factory=dict)
    results: dict[str, np.ndarray] = field(default_factory=dict)
    sample: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int8))


def pooled(x: np.ndarray) -> np.ndarray:
    """The greatest of windows of 3 x 3 in steps of 2, padded."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-128)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    return windows.max((4, 5))


@cache
def network(image: int = 224, seed: int = 0) -> Network:
    """The network with shifts from a sample, and what all its convolutions give for that."""
    random = np.random.default_rng(seed)
    first = Layer("first", 3, 64, image, 7, 2)
    made = Network(image, sample=random.integers(-128, 128, (1, 3, image, image), dtype=np.int8))

    def apply(layer: Layer, x: np.ndarray, beside: np.ndarray | None = None) -> np.ndarray:
        weights = drawn(layer, random)
        total = sums(layer, x, weights)
        made.weights[layer.name] = Weights(weights.weight, weights.bias, least_shift(total))
        made.results[layer.name] = requantized(layer, total, made.weights[layer.name].shift, beside)
        return made.results[layer.name]

    x = pooled(apply(first, made.sample))
    for first_layer, second, *others in blocks(image):
        inner = apply(first_layer, x)
        shortcut = apply(others[0], x) if others else x
        x = apply(second, inner, shortcut)
    return made


def add_sums(g: GraphBuilder, layer: Layer, x: str, weights: Weights) -> str:
    """The sums of a layer, shifted; their name."""
    k, s, name = layer.kernel, layer.stride, layer.name
    y = g.add("conv2d", x, g.constant(weights.weight, f"{name}.weight"), strides=(s, s), pads=(k // 2,) * 4)
    y = g.add("add", y, g.constant(weights.bias.reshape(-1, 1, 1), f"{name}.bias"))
    return g.add("shift_right", y, g.constant(np.int32(weights.shift), f"{name}.shift"))


def add_result(g: GraphBuilder, layer: Layer, total: str, beside: str | None = None) -> str:
    """Adds the requantization of a layer's int32 sums; the name of its result."""
    y = total if beside is None else g.add("add", total, g.add("cast", beside, to="int32"))
    return g.add("cast", g.add("clip", y, min=0 if layer.relu else -128, max=127), to="int8")


def graph_of(made: Network, taps: bool = False) -> Graph:
    """The network from an int8 image to 1000 float32 numbers; ``taps``: and to the result of every convolution, in the
    order of the nodes.
    """
    g = GraphBuilder()
    found = []

    def apply(layer: Layer, x: str) -> str:
        found.append(add_result(g, layer, add_sums(g, layer, x, made.weights[layer.name])))
        return found[-1]

    x = apply(Layer("first", 3, 64, made.image, 7, 2), g.input("image", (1, 3, made.image, made.image), "int8"))
    x = g.add("max_pool2d", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for first, second, *others in blocks(made.image):
        total = add_sums(g, second, apply(first, x), made.weights[second.name])
        shortcut = apply(others[0], x) if others else x
        x = add_result(g, second, total, shortcut)
        found.append(x)
    mean = g.add("reduce_mean", g.add("cast", x, to="float32"), axes=(2, 3))
    random = np.random.default_rng(1)
    weight = g.constant(random.standard_normal((512, 1000), np.float32) / 512, "classifier")
    y = g.add("matmul", g.add("reshape", mean, shape=(1, 512)), weight)
    return g.build(y, *(found if taps else ()))


def graph_of_layer(layer: Layer, weights: Weights) -> Graph:
    """One layer between graph inputs and a graph output; what is added is the layer's own input where shapes agree."""
    g = GraphBuilder()
    x = g.input("x", (1, layer.inputs, layer.size, layer.size), "int8")
    return g.build(add_result(g, layer, add_sums(g, layer, x, weights), x if layer.added else None))

"""Operators to learn from, as ONNX models: layers of `benchmarks.layers`, of networks, and of random sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import layers

SQUARE = layers.Product("P1024", 1024, 1024, 1024)
# Layers of the benchmark models that are not among the tables': size, channels before and after, kernel, stride.
NETWORKS = {
    "squeezenet": (
        (224, 3, 64, 3, 2), (55, 64, 16, 1, 1), (55, 16, 64, 3, 1), (27, 32, 128, 3, 1), (27, 256, 32, 1, 1),
        (13, 48, 192, 1, 1), (13, 64, 256, 3, 1), (13, 512, 1000, 1, 1),
    ),
    "inception": (
        (55, 64, 192, 3, 1), (27, 96, 128, 3, 1), (27, 192, 64, 1, 1), (27, 32, 96, 5, 1), (13, 480, 192, 1, 1),
        (13, 160, 320, 3, 1), (13, 32, 128, 5, 1), (6, 832, 384, 1, 1),
    ),
    "resnet50": (
        (56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (56, 256, 128, 1, 1), (28, 512, 128, 1, 1), (28, 256, 256, 3, 2),
        (14, 256, 1024, 1, 1), (14, 512, 512, 3, 2), (7, 2048, 512, 1, 1),
    ),
    "mobilenet": (
        (224, 3, 32, 3, 2), (112, 16, 96, 1, 1), (56, 144, 24, 1, 1), (28, 32, 192, 1, 1), (14, 576, 96, 1, 1),
        (7, 320, 1280, 1, 1),
    ),
    "vgg": ((224, 3, 64, 3, 1), (112, 64, 128, 3, 1), (28, 256, 512, 3, 1), (14, 512, 512, 3, 1)),
    "alexnet": ((26, 96, 256, 5, 1), (12, 256, 384, 3, 1)),
    "zfnet": ((224, 3, 96, 7, 2), (54, 96, 256, 5, 2), (12, 512, 512, 3, 1)),
}  # fmt: skip
# Depthwise: size, channels, stride.
MOBILENET = ((112, 96, 2), (56, 144, 1), (56, 144, 2), (28, 192, 1), (28, 192, 2), (14, 384, 1), (14, 576, 1),
             (14, 576, 2), (7, 960, 1))  # fmt: skip
# Rows, depth and columns of products in language models.
TRANSFORMERS = ((35, 650, 2600), (35, 650, 10000), (64, 512, 512), (64, 512, 2048), (197, 768, 768), (197, 768, 3072),
                (256, 1024, 1024), (384, 768, 768), (384, 3072, 768), (512, 512, 512), (512, 512, 2048))  # fmt: skip
Make = Callable[[], bytes]
"""Gives a serialized ONNX model of one operator, from "x" to "y"."""


def operators(seed: int = 0) -> dict[str, Make]:
    """Operators by name: those of the tables, of random sizes, and of networks. Equal seeds give equal ones."""
    random = np.random.default_rng(seed)
    known: list[layers.Layer] = [*layers.LAYERS.values(), SQUARE, *_convolutions(random), *_products(random)]
    known += _of_networks()
    made: dict[str, Make] = {layer.name: partial(layers.model, layer) for layer in known}
    return {**made, **_windows(random), **_rows(random), **_chains(random)}


def _pick(random: np.random.Generator, choices: Sequence[int]) -> int:
    return int(choices[int(random.integers(len(choices)))])


def _convolutions(random: np.random.Generator) -> list[layers.Convolution]:
    """Convolutions of sizes as in image networks, not only powers of two; the fewer channels, the larger the image."""
    found = []
    for number in range(14):
        size = _pick(random, (7, 10, 13, 14, 19, 20, 27, 28, 38, 40, 55, 56, 75, 80, 112))
        most = max(16, min(640, 8192 // size))
        before, after = (max(16, 8 * int(random.integers(1, most // 8 + 1))) for _ in range(2))
        kernel, stride = _pick(random, (1, 3, 3, 3, 5)), _pick(random, (1, 1, 2))
        found.append(layers.Convolution(f"conv {number}", size, before, after, kernel, stride))
    for number in range(6):
        size, channels = _pick(random, (7, 14, 20, 28, 40, 56, 80)), 8 * int(random.integers(4, 80))
        kernel, stride = _pick(random, (3, 3, 5)), _pick(random, (1, 2))
        found.append(layers.Convolution(f"depthwise {number}", size, channels, channels, kernel, stride, channels))
    return found


def _products(random: np.random.Generator) -> list[layers.Product]:
    """From a single row, as a classifier has, to squares."""
    found = []
    for number in range(10):
        rows = _pick(random, (1, 1, 8, 35, 64, 100, 128, 197, 256, 512))
        depth, columns = (8 * int(2 ** random.uniform(3, 8.3)) for _ in range(2))
        found.append(layers.Product(f"product {number}", rows, depth, columns))
    return found


def _of_networks() -> list[layers.Layer]:
    every = [(f"{network} {number}", sizes) for network, own in NETWORKS.items() for number, sizes in enumerate(own)]
    convolutions = [layers.Convolution(name, *sizes) for name, sizes in every]
    convolutions += [
        layers.Convolution(f"mobilenet depthwise {number}", size, channels, channels, 3, stride, channels)
        for number, (size, channels, stride) in enumerate(MOBILENET)
    ]
    products = [layers.Product(f"transformer {number}", *sizes) for number, sizes in enumerate(TRANSFORMERS)]
    return [*convolutions, *products]


def _windows(random: np.random.Generator) -> dict[str, Make]:
    """Pools of 2 x 2 and 3 x 3 windows."""
    made: dict[str, Make] = {}
    for number in range(4):
        shape = (1, 16 * int(random.integers(2, 17)), *[_pick(random, (14, 28, 55, 56, 112))] * 2)
        kernel, stride = _pick(random, (2, 3)), _pick(random, (1, 2))
        kind = ("MaxPool", "AveragePool")[number % 2]
        node = helper.make_node(kind, ["x"], ["y"], kernel_shape=[kernel] * 2, strides=[stride] * 2)
        side = (shape[2] - kernel) // stride + 1
        made[f"pool {number}"] = partial(_model, f"pool {number}", [node], shape, (*shape[:2], side, side))
    return made


def _rows(random: np.random.Generator) -> dict[str, Make]:
    """Softmax and layer normalization over the last axis."""
    made: dict[str, Make] = {}
    for number in range(6):
        shape = (_pick(random, (12, 64, 128, 384)), 8 * int(random.integers(8, 160)))
        if number % 2:
            node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
            made[f"softmax {number}"] = partial(_model, f"softmax {number}", [node], shape, shape)
            continue
        weights = {"scale": np.ones(shape[1:], np.float32), "shift": np.zeros(shape[1:], np.float32)}
        node = helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["y"], axis=-1)
        made[f"layer norm {number}"] = partial(_model, f"layer norm {number}", [node], shape, shape, weights)
    return made


def _chains(random: np.random.Generator) -> dict[str, Make]:
    """Three element-wise operators in a row."""
    made: dict[str, Make] = {}
    for number in range(4):
        shape = (1, 8 * int(random.integers(4, 65)), *[_pick(random, (14, 28, 56, 112))] * 2)
        steps = [("Sigmoid", "Relu", "Tanh", "Exp", "Abs")[int(random.integers(5))] for _ in range(3)]
        names = ["x", "h0", "h1", "y"]
        nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(steps)]
        made[f"chain {number}"] = partial(_model, f"chain {number}", nodes, shape, shape)
    return made


def _model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int],
    result: Sequence[int],
    weights: dict[str, np.ndarray] | None = None,
) -> bytes:
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    target = helper.make_tensor_value_info("y", TensorProto.FLOAT, result)
    graph = helper.make_graph(nodes, name, [source], [target], layers.initializers(weights or {}))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = proto.SerializeToString()
    return serialized

"""Operators to learn from, as ONNX models: the layers of `benchmarks.layers`, and others of random sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import layers

SQUARE = layers.Product("P1024", 1024, 1024, 1024)
Make = Callable[[], bytes]
"""Gives a serialized ONNX model of one operator, from "x" to "y"."""


def operators(seed: int = 0) -> dict[str, Make]:
    """Operators by name; those of the tables first, then as many again of random sizes. Equal seeds give equal ones."""
    random = np.random.default_rng(seed)
    known: list[layers.Layer] = [*layers.LAYERS.values(), SQUARE, *_convolutions(random), *_products(random)]
    made: dict[str, Make] = {layer.name: partial(layers.model, layer) for layer in known}
    return {**made, **_windows(random), **_rows(random), **_chains(random)}


def _pick(random: np.random.Generator, choices: Sequence[int]) -> int:
    return int(choices[int(random.integers(len(choices)))])


def _convolutions(random: np.random.Generator) -> list[layers.Convolution]:
    """Of sizes as in image networks, not only powers of two; the fewer channels, the larger the image."""
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

"""Gradients of whole networks, compiled, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.measure.accuracy import scaled_error

F = torch.nn.functional

Arrays = Mapping[str, np.ndarray]
Torch = Callable[..., "torch.Tensor"]


def arrays(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=shape) / np.sqrt(max(shape[-1:] or (1,)))).astype("f4") for name, shape in shapes.items()
    }


def builder_of(values: Arrays) -> GraphBuilder:
    b = GraphBuilder()
    for name, a in values.items():
        b.input(name, a.shape, str(a.dtype))
    return b


def compare(b: GraphBuilder, loss: str, values: Arrays, peer: Torch, tolerance: float = 2e-5) -> Graph:
    """Loss and gradients by all inputs that are floats, by compiled kernels and by PyTorch."""
    wrt = [name for name, a in values.items() if a.dtype == np.float32]
    graph = gradients(b.build(loss), loss, wrt)
    found = bn.compile(graph, threads=2, rewrite=False)(**values)
    given = {name: torch.tensor(a, requires_grad=name in wrt) for name, a in values.items()}
    expected = peer(**given)
    expected.backward()
    wanted = [expected.detach().numpy(), *(given[name].grad.numpy() for name in wrt)]
    for name, a, w in zip(graph.outputs, found, wanted, strict=True):
        assert scaled_error([a], [w]) < tolerance, name
    return graph


def test_a_multilayer_perceptron() -> None:
    values = arrays(0, x=(32, 20), w1=(20, 48), b1=(48,), w2=(48, 10), b2=(10,))
    b = builder_of(values)
    h = b.add("gelu", b.add("add", b.add("matmul", "x", "w1"), "b1"))
    y = b.add("log_softmax", b.add("add", b.add("matmul", h, "w2"), "b2"))
    loss = b.add(
        "reduce_mean", b.add("gather_elements", y, b.constant(np.arange(32)[:, None] % 10), axis=1), keepdims=False
    )

    def peer(x, w1, b1, w2, b2):
        y = torch.log_softmax(F.gelu(x @ w1 + b1) @ w2 + b2, -1)
        return y[torch.arange(32), torch.arange(32) % 10].mean()

    compare(b, loss, values, peer)


def test_a_residual_block_with_batch_normalization() -> None:
    values = arrays(
        1, x=(4, 8, 11, 10), stem=(16, 8, 3, 3), w1=(32, 16, 3, 3), g1=(32,), b1=(32,), w2=(32, 32, 3, 3), g2=(32,),
        b2=(32,), down=(32, 16, 1, 1), head=(32, 5),
    )  # fmt: skip
    b = builder_of(values)
    one, two = {"pads": (1, 1, 1, 1)}, {"pads": (1, 1, 1, 1), "strides": (2, 2)}
    x = b.add("max_pool2d", b.add("conv2d", "x", "stem", **one), kernel=(3, 3), **one)
    h = b.add_many("batch_norm_training", b.add("conv2d", x, "w1", **two), "g1", "b1")[0]
    h = b.add("conv2d", b.add("relu", h), "w2", **one)
    h = b.add_many("batch_norm_training", h, "g2", "b2")[0]
    h = b.add("relu", b.add("add", h, b.add("conv2d", x, "down", strides=(2, 2))))
    y = b.add("matmul", b.add("reduce_mean", h, axes=(2, 3), keepdims=False), "head")
    loss = b.add("reduce_sumsq", y, keepdims=False)

    def peer(x, stem, w1, g1, b1, w2, g2, b2, down, head):
        x = F.max_pool2d(F.conv2d(x, stem, padding=1), 3, 1, 1)
        h = F.relu(F.batch_norm(F.conv2d(x, w1, stride=2, padding=1), None, None, g1, b1, training=True))
        h = F.batch_norm(F.conv2d(h, w2, padding=1), None, None, g2, b2, training=True)
        h = F.relu(h + F.conv2d(x, down, stride=2))
        return ((h.mean((2, 3)) @ head) ** 2).sum()

    compare(b, loss, values, peer, 1e-4)


def test_a_transformer_layer_with_an_embedding() -> None:
    width, heads, tokens = 32, 4, 12
    values = arrays(
        2, table=(50, width), g1=(width,), b1=(width,), qkv=(width, 3 * width), out=(width, width), g2=(width,),
        b2=(width,), up=(width, 64), down=(64, width),
    )  # fmt: skip
    ids = np.random.default_rng(3).integers(0, 50, (2, tokens))
    b = builder_of(values)
    x = b.add("gather", "table", b.constant(ids))
    mixed = b.add("matmul", b.add("layer_norm", x, "g1", "b1"), "qkv")
    split = b.add("reshape", mixed, shape=(2, tokens, 3, heads, width // heads))
    split = b.add("transpose", split, perm=(2, 0, 3, 1, 4))
    parts = []
    for i in range(3):
        part = b.add("slice", split, starts=(i, 0, 0, 0, 0), extents=(1, 2, heads, tokens, width // heads))
        parts.append(b.add("reshape", part, shape=(2, heads, tokens, width // heads)))
    scores = b.add("matmul", parts[0], parts[1], transpose_b=True)
    weights = b.add("softmax", b.add("mul", scores, b.constant(np.float32(8**-0.5))))
    seen = b.add("transpose", b.add("matmul", weights, parts[2]), perm=(0, 2, 1, 3))
    x = b.add("add", x, b.add("matmul", b.add("reshape", seen, shape=(2, tokens, width)), "out"))
    h = b.add("gelu", b.add("matmul", b.add("layer_norm", x, "g2", "b2"), "up"))
    x = b.add("add", x, b.add("matmul", h, "down"))
    loss = b.add("reduce_mean", b.add("mul", x, b.add("tanh", x)), keepdims=False)

    def peer(table, g1, b1, qkv, out, g2, b2, up, down):
        x = table[torch.tensor(ids)]
        mixed = (F.layer_norm(x, (width,), g1, b1) @ qkv).reshape(2, tokens, 3, heads, width // heads)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        seen = torch.softmax(q @ k.mT * 8**-0.5, -1) @ v
        x = x + seen.transpose(1, 2).reshape(2, tokens, width) @ out
        x = x + F.gelu(F.layer_norm(x, (width,), g2, b2) @ up) @ down
        return (x * torch.tanh(x)).mean()

    compare(b, loss, values, peer)


def test_a_recurrent_layer_of_four_steps() -> None:
    batch, inputs, hidden, steps = 3, 10, 16, 4
    values = arrays(4, x=(steps, batch, inputs), w=(4 * hidden, inputs), r=(4, hidden, hidden), bias=(4 * hidden,))
    b = builder_of(values)
    gates = b.add("add", b.add("matmul", "x", "w", transpose_b=True), "bias")
    h = c = b.constant(np.zeros((batch, hidden), "f4"))
    for step in range(steps):
        own = b.add("slice", gates, starts=(step, 0, 0), extents=(1, batch, 4 * hidden))
        h, c = b.add_many("lstm_cell", b.add("reshape", own, shape=(batch, 4 * hidden)), h, c, "r")
    loss = b.add("reduce_sumsq", b.add("add", h, c), keepdims=False)

    def peer(x, w, r, bias):
        order = [0, 2, 3, 1]  # torch: input, forget, cell, output; ours: input, output, forget, cell
        w, bias = (t.reshape(4, hidden, *t.shape[1:])[order].flatten(0, 1) for t in (w, bias))
        state = (torch.zeros(1, batch, hidden),) * 2
        flat = [w, r[order].flatten(0, 1), bias, torch.zeros(4 * hidden)]
        _, h, c = torch.lstm(x, state, flat, True, 1, 0.0, False, False, False)
        return ((h + c) ** 2).sum()

    compare(b, loss, values, peer)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_many_channels(stride: int, groups: int) -> None:
    values = arrays(5, x=(2, 32, 14, 14), w=(64, 32 // groups, 3, 3), bias=(64,))
    b = builder_of(values)
    y = b.add("conv2d", "x", "w", "bias", strides=(stride, stride), pads=(1, 1, 1, 1), groups=groups)
    loss = b.add("reduce_sum", b.add("sin", y), keepdims=False)
    compare(b, loss, values, lambda x, w, bias: F.conv2d(x, w, bias, stride, 1, 1, groups).sin().sum(), 1e-4)


def test_open_dimensions_give_the_gradient_of_each_size() -> None:
    def graph(n: int) -> Graph:
        b = GraphBuilder()
        x, w = b.input("x", (n, 6)), b.input("w", (6,))
        y = b.add("cumsum", b.add("log_softmax", b.add("mul", x, w), axis=1), axis=1)
        return gradients(b.build(b.add("reduce_mean", y, keepdims=False, name="y")), "y", ["x", "w"])

    opened = bn.compile(graph(dim("rows", 1, 8)), threads=1)
    for n in (1, 5, 8):
        values = arrays(n, x=(n, 6), w=(6,))
        fixed = bn.compile(graph(n), threads=1)
        assert scaled_error(opened(**values), fixed(**values)) < 1e-6

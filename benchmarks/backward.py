"""Backward kernels against PyTorch's: each gradient compiled alone, with its images in channel blocks.

That is how the neighbours of a convolution in a network have them, where the inputs and outputs of a model are
row-major: conversions are no part of the time, the packing of weights, which are known at a call only, is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import burnish as bn
from benchmarks import layers
from burnish.base.cache import ObjectCache
from burnish.base.optional import require
from burnish.driver.assembly import assemble
from burnish.driver.measured import compile_in_blocks
from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph, GraphBuilder, TensorType
from burnish.machines.target import target
from burnish.measure.accuracy import scaled_error
from burnish.pipeline.plan import DEFAULTS
from burnish.runtime.module import Module

BATCH = 16
Call = Callable[[], Any]


@dataclass(frozen=True)
class Gradient:
    """An operator on inputs, which of them it is differentiated by, and the same in PyTorch.

    ``images``: whether PyTorch may have its inputs channels last, and Burnish in channel blocks.
    """

    op: str
    inputs: tuple[np.ndarray, ...]
    attrs: Mapping[str, Any]
    by: int
    peer: Callable[..., Any]
    images: bool = False


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def _convolution(layer: layers.Convolution, by: int) -> Gradient:
    _, channels, height, width = layer.input_shape
    x, w = _random(BATCH, channels, height, width), _random(*layer.weight_shape) / 16
    pad = layer.kernel // 2
    attrs = {"strides": (layer.stride,) * 2, "pads": (pad,) * 4, "groups": layer.groups}
    torch = require("torch", extra="torch")
    peer = partial(torch.nn.functional.conv2d, stride=layer.stride, padding=pad, groups=layer.groups)
    return Gradient("conv2d", (x, w), attrs, by, peer, True)


def _product(shape: tuple[int, int, int], by: int) -> Gradient:
    rows, depth, columns = shape
    torch = require("torch", extra="torch")
    return Gradient("matmul", (_random(rows, depth), _random(depth, columns)), {}, by, torch.matmul)


def _pool(op: str, kernel: int, stride: int, pad: int) -> Gradient:
    functional = require("torch", extra="torch").nn.functional
    peer = functional.max_pool2d if op.startswith("max") else functional.avg_pool2d
    attrs = {"kernel": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4}
    own = {} if op.startswith("max") else {"count_include_pad": True}
    call = partial(peer, kernel_size=kernel, stride=stride, padding=pad)
    return Gradient(op, (_random(BATCH, 64, 112, 112),), {**attrs, **own}, 0, call, True)


def _others() -> dict[str, Callable[[], Gradient]]:
    torch = require("torch", extra="torch")
    functional = torch.nn.functional
    rows, hidden = (1024, 384), _random(384)

    def layer_norm(by: int) -> Gradient:
        call = lambda x, s, b: functional.layer_norm(x, (rows[1],), s, b)  # noqa: E731
        return Gradient("layer_norm", (_random(*rows), hidden, hidden), {"axis": -1}, by, call)

    def batch_norm(by: int) -> Gradient:
        call = lambda x, s, b: functional.batch_norm(x, None, None, s, b, True)  # noqa: E731
        arrays = (_random(BATCH, 64, 56, 56), _random(64), _random(64))
        return Gradient("batch_norm_training", arrays, {}, by, call, True)

    def embedding() -> Gradient:
        ids = np.random.default_rng(0).integers(0, 10_000, 1024)
        call = lambda table, index: functional.embedding(index, table)  # noqa: E731
        return Gradient("gather", (_random(10_000, 384), ids), {"axis": 0}, 0, call)

    return {
        "layer_norm.dx": partial(layer_norm, 0), "layer_norm.dscale": partial(layer_norm, 1),
        "batch_norm.dx": partial(batch_norm, 0), "batch_norm.dscale": partial(batch_norm, 1),
        "softmax": lambda: Gradient("softmax", (_random(1024, 1024),), {}, 0, partial(torch.softmax, dim=-1)),
        "gelu": lambda: Gradient("gelu", (_random(1024, 1536),), {}, 0, functional.gelu),
        "embedding": embedding,
    }  # fmt: skip


PRODUCTS = {
    "gpt_up": (1024, 384, 1536), "gpt_down": (1024, 1536, 384), "gpt_head": (1024, 384, 10_000),
    "mlp": (128, 1024, 1024), "lstm": (20, 650, 2600), "lstm_head": (700, 650, 10_000),
}  # fmt: skip
CONVOLUTIONS = [layer for layer in layers.CONVOLUTIONS if layer.name not in ("C1", "C3")]


def _kernels() -> dict[str, Callable[[], Gradient]]:
    found: dict[str, Callable[[], Gradient]] = {}
    for layer in (*CONVOLUTIONS, *layers.DEPTHWISE):
        found |= {f"{layer.name}.{what}": partial(_convolution, layer, by) for by, what in enumerate(("dx", "dw"))}
    for name, shape in PRODUCTS.items():
        found |= {f"{name}.{what}": partial(_product, shape, by) for by, what in enumerate(("dx", "dw"))}
    found |= {"max_pool": partial(_pool, "max_pool2d", 3, 2, 1), "avg_pool": partial(_pool, "avg_pool2d", 2, 2, 0)}
    return {**found, **_others()}


KERNELS: Mapping[str, Callable[[], Gradient]] = _kernels()


def backward_calls(name: str, threads: int) -> tuple[dict[str, Call], float, str]:
    """The contenders of one gradient, the error of ours, and the templates of its kernels."""
    torch = require("torch", extra="torch")
    made = KERNELS[name]()
    tensors = [torch.from_numpy(a) for a in made.inputs]
    calls: dict[str, Call] = {}
    for form in ("eager", "channels_last")[: 1 + made.images]:
        own = [t.to(memory_format=torch.channels_last) if form != "eager" and t.dim() == 4 else t for t in tensors]
        own = [t.detach().requires_grad_(number == made.by) for number, t in enumerate(own)]
        value = made.peer(*own)
        seed = torch.from_numpy(seed_of(made))
        seed = seed.to(memory_format=torch.channels_last) if form != "eager" and seed.dim() == 4 else seed
        calls[form] = partial(torch.autograd.grad, value, own[made.by], seed, retain_graph=True)
    wanted = calls["eager"]()[0].numpy()
    ours = Alone(
        gradient_graph(made),
        (*made.inputs, seed_of(made), *results_of(made, threads)),
        made.images,
        threads,
        exact=False,
    )
    calls["burnish"] = ours.run
    if made.op == "conv2d":
        calls["forward"] = Alone(forward_graph(made), made.inputs, True, threads, exact=True).run
    return calls, scaled_error([ours.result()], [wanted]), " ".join(dict.fromkeys(ours.templates))


def forward_graph(made: Gradient) -> Graph:
    """The operator itself."""
    b = GraphBuilder()
    names = [b.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(made.inputs)]
    return b.build(b.add_many(made.op, *names, **made.attrs)[0])


def gradient_graph(made: Gradient) -> Graph:
    """The backward graph alone: inputs are the operator's inputs and results, and the adjoint."""
    forward = forward_graph(made)
    graph = gradients(forward, forward.outputs[0], [f"x{made.by}"])
    first, *rest = graph.nodes
    return replace(graph, inputs=(*graph.inputs, *first.outputs), nodes=tuple(rest), outputs=graph.outputs[1:])


def results_of(made: Gradient, threads: int) -> list[np.ndarray]:
    """All results of the operator."""
    graph = forward_graph(made)
    found = bn.compile(replace(graph, outputs=graph.nodes[0].outputs), threads=threads)(*made.inputs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def seed_of(made: Gradient) -> np.ndarray:
    """The adjoint of the operator's result."""
    forward = forward_graph(made)
    return np.random.default_rng(99).standard_normal(forward.types[forward.outputs[0]].shape, np.float32)


class Alone:
    """A graph compiled with its images in channel blocks, and its inputs in memory as they are then."""

    def __init__(self, graph: Graph, arrays: Sequence[np.ndarray], images: bool, threads: int, exact: bool) -> None:
        own = target("cpu")
        named = [n for n in (*graph.inputs, *graph.outputs) if images and is_image(graph.types[n], own.lanes)]
        made = compile_in_blocks(graph, named, own, DEFAULTS, ObjectCache(None), exact)
        self.layouts = made.layouts
        self.templates = [stage.kernel.template for stage in made.stages]
        self.module = Module(assemble(made), threads)
        given = zip(graph.inputs, arrays, strict=True)
        self.arrays = [self.layouts[n].pack(a) if n in self.layouts else a for n, a in given]
        self.output = graph.outputs[0]
        self.shape = graph.types[self.output].shape

    def run(self) -> np.ndarray:
        """A call, whose result lies as the kernels leave it."""
        return self.module(*self.arrays)

    def result(self) -> np.ndarray:
        """The result of a call, row-major."""
        found = self.run()
        return self.layouts[self.output].unpack(found, self.shape) if self.output in self.layouts else found


def is_image(t: TensorType, lanes: int) -> bool:
    """Whether a tensor is a batch of images with channels enough for blocks."""
    return len(t.shape) == 4 and t.shape[0] == BATCH and t.shape[1] >= lanes and t.dtype == "float32"

"""Workloads of `benchmarks.gpu`: products, convolutions, single operators and whole models, with PyTorch's versions.

Names of rows: ``product:DTYPE:M:N:K``, ``convolution:C1:BATCH`` (a layer of `benchmarks.layers`, ReLU and bias in it),
``unfused:C1:BATCH`` (the same with every operator a kernel), ``operator:NAME:AxBxC``,
``attention:DTYPE:BATCH:HEADS:QUERIES:KEYS[:causal]`` (64 wide), ``model:NAME`` (of `benchmarks.models`) and
``decode:LAYERS:WIDTH:PAST`` (one token of the decoder of `examples/generate.py`).
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import layers, models
from burnish.graph import GraphBuilder

PRODUCTS = [
    *(f"product:bfloat16:{n}:{n}:{n}" for n in (1024, 2048, 4096, 8192)),
    *(f"product:float32:{n}:{n}:{n}" for n in (512, 1024, 4096)),
    "product:float16:1000:1000:1000",
    "product:float32:1:4096:4096",
    "product:bfloat16:1:4096:11008",
    *(f"product:bfloat16:{sizes}" for sizes in ("16:4096:4096", "64:11008:4096", "64:4096:11008")),
    *(f"product:float16:128:{sizes}" for sizes in ("768:768", "3072:768", "768:3072")),
]
CONVOLUTIONS = [f"convolution:{layer.name}:{batch}" for batch in (1, 64) for layer in layers.CONVOLUTIONS]
ATTENTIONS = [
    f"attention:{dtype}:{sizes}"
    for dtype in ("float32", "float16")
    for sizes in (
        "1:12:128:128",
        "8:12:512:512",
        "1:16:4096:4096",
        "1:16:4096:4096:causal",
        "1:12:1:1024",
        "16:12:1:4096",
    )
]
OPERATORS = [
    "operator:softmax:1536x128", "operator:softmax:2048x16384", "operator:softmax:64x50257",
    "operator:mean:64x2048x7x7",
    "operator:softmax:4096x1024", "operator:layer_norm:8192x768", "operator:relu:4096x4096",
    "operator:max_pool2d:64x64x112x112", "operator:depthwise:32x256x28x28",
]  # fmt: skip
MODELS = [
    *(f"model:{n}" for n in ("resnet18", "resnet50", "mobilenet_v2", "bert_base", "lstm_lm", "dqn", "dcgan")),
    "decode:12:768:512",
]
UNFUSED = [f"unfused:{name}:1" for name in ("C2", "C6", "C9")]
SECTIONS = {
    "products": PRODUCTS, "convolutions": CONVOLUTIONS, "operators": OPERATORS,
    "attention": ATTENTIONS, "models": MODELS, "unfused": UNFUSED,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One row. ``source``: what `burnish.compile` takes, with ``options``; ``inputs``: tensors on the CPU; ``peer``:
    the same on the GPU by PyTorch, without arguments; ``right``: its outcome, in float64 where that is possible.

    ``flops`` of one call; ``tolerance`` of the error, relative to the norm.
    """

    source: Any
    inputs: Sequence[Any]
    peer: Callable[[], Any]
    right: Callable[[], Any]
    tolerance: float
    flops: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    example: Sequence[Any] = ()


def work(name: str, torch: Any) -> Work:
    """The row of a name. Raises KeyError for one that is unknown."""
    torch.manual_seed(0)
    kind, _, rest = name.partition(":")
    return _KINDS[kind](torch, *rest.split(":"))


def _product(torch: Any, dtype: str, *sizes: str) -> Work:
    m, n, k = map(int, sizes)
    builder = GraphBuilder()
    a, b = builder.input("a", (m, k), dtype), builder.input("b", (k, n), dtype)
    graph = builder.build(builder.add("matmul", a, b))
    factors = [torch.randn(*shape).to(getattr(torch, dtype)) for shape in ((m, k), (k, n))]
    x, y = (f.cuda() for f in factors)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    return Work(graph, factors, lambda: x @ y, lambda: x.double() @ y.double(), tolerance, 2.0 * m * n * k)


def _layer(torch: Any, name: str, batch: str) -> Work:
    (layer,) = [found for found in layers.CONVOLUTIONS if found.name == name]
    x = torch.randn(int(batch), *layer.input_shape[1:])
    weight, bias = torch.randn(*layer.weight_shape) * 0.1, torch.randn(layer.channels_out)
    builder, pad = GraphBuilder(), layer.kernel // 2
    options: dict[str, Any] = {"pads": (pad,) * 4, "strides": (layer.stride,) * 2, "groups": layer.groups}
    operands = builder.input("x", tuple(x.shape)), builder.constant(weight.numpy())
    y = builder.add("conv2d", *operands, **options)
    y = builder.add("add", y, builder.constant(bias.numpy().reshape(-1, 1, 1)))
    graph = builder.build(builder.add("relu", y))
    on_gpu = [t.cuda() for t in (x, weight, bias)]

    def convolved(*tensors: Any) -> Any:
        options = {"stride": layer.stride, "padding": pad, "groups": layer.groups}
        return torch.relu_(torch.nn.functional.conv2d(*tensors, **options))

    return Work(
        graph, [x], lambda: convolved(*on_gpu), lambda: convolved(*(t.double() for t in on_gpu)), 1e-4,
        layer.flops * int(batch),
    )  # fmt: skip


def _unfused(torch: Any, name: str, batch: str) -> Work:
    made = _layer(torch, name, batch)
    return Work(made.source, made.inputs, made.peer, made.right, made.tolerance, made.flops, {"fuse": False})


def _operator(torch: Any, name: str, shape: str) -> Work:
    extents = tuple(map(int, shape.split("x")))
    x, builder, functions = torch.randn(*extents), GraphBuilder(), torch.nn.functional
    given = builder.input("x", extents)
    if name == "softmax":
        y = builder.add("softmax", given, axis=1)
    elif name == "layer_norm":
        y = builder.add("layer_norm", given, *(builder.constant(np.full(extents[-1], v, "f4")) for v in (1, 0)))
    elif name == "max_pool2d":
        y = builder.add("max_pool2d", given, kernel=(3, 3), strides=(2, 2), pads=(1,) * 4)
    elif name == "mean":
        y = builder.add("reduce_mean", given, axes=(2, 3))
    elif name == "depthwise":
        weight = torch.randn(extents[1], 1, 3, 3)
        y = builder.add("conv2d", given, builder.constant(weight.numpy()), pads=(1,) * 4, groups=extents[1])
        on_gpu = weight.cuda()
    else:
        y = builder.add(name, given)
    calls = {
        "softmax": lambda t: functions.softmax(t, 1),
        "layer_norm": lambda t: functions.layer_norm(t, extents[-1:]),
        "max_pool2d": lambda t: functions.max_pool2d(t, 3, 2, 1),
        "depthwise": lambda t: functions.conv2d(t, on_gpu.to(t.dtype), padding=1, groups=extents[1]),
        "mean": lambda t: t.mean((2, 3), keepdim=True),
        "relu": torch.relu,
    }
    there = x.cuda()
    return Work(builder.build(y), [x], lambda: calls[name](there), lambda: calls[name](there.double()), 1e-5)


def _attention(torch: Any, dtype: str, *sizes: str) -> Work:
    causal = sizes[-1] == "causal"
    batch, heads, queries, keys = map(int, sizes[:4])
    shapes = ((batch, heads, queries, 64), *((batch, heads, keys, 64),) * 2)
    factors = [torch.randn(*shape).to(getattr(torch, dtype)) for shape in shapes]
    builder = GraphBuilder()
    q, k, v = (builder.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))
    scale = builder.constant(np.array(0.125, dtype))
    scores = builder.add("mul", builder.add("matmul", q, k, transpose_b=True), scale)
    seen = np.tri(queries, keys, dtype=bool)
    if causal:
        scores = builder.add("where", builder.constant(seen), scores, builder.constant(np.array(-np.inf, dtype)))
    graph = builder.build(builder.add("matmul", builder.add("softmax", scores, axis=-1), v))
    there, attend = [f.cuda() for f in factors], torch.nn.functional.scaled_dot_product_attention

    def right() -> Any:
        a, b, c = (t.double() for t in there)
        scores = a @ b.transpose(-1, -2) / 8
        if causal:
            scores = scores.masked_fill(~torch.from_numpy(seen).cuda(), -np.inf)
        return scores.softmax(-1) @ c

    tolerance = 1e-5 if dtype == "float32" else 1e-2
    flops = 4.0 * batch * heads * 64 * (np.count_nonzero(seen) if causal else queries * keys)
    return Work(graph, factors, lambda: attend(*there, is_causal=causal), right, tolerance, flops)


def _model(torch: Any, name: str) -> Work:
    network, arrays = models.network(name)
    (array,) = arrays.values()
    path = models.build(name)
    module: Any = network.eval().cuda()  # type: ignore[attr-defined]
    there = torch.from_numpy(array).cuda()

    def right() -> Any:
        found = module(there)
        return found[0] if isinstance(found, tuple) else found

    return Work(path, [torch.from_numpy(array)], lambda: module(there), right, 1e-3)


def _decode(torch: Any, deep: str, width: str, past: str) -> Work:
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "generate.py"))
    network = example["Decoder"](int(width), int(deep)).eval()
    cache = torch.randn(2 * int(deep), network.layers[0].shared, int(past), example["HEAD"])
    given = (torch.tensor([[1]]), torch.tensor([int(past)]), cache)
    there = [t.cuda() for t in given]
    on_gpu = example["Decoder"](int(width), int(deep)).eval()
    on_gpu.load_state_dict(network.state_dict())
    on_gpu.cuda()
    return Work(network, given, lambda: on_gpu(*there), lambda: on_gpu(*there)[0], 1e-3, example=given)


_KINDS: Mapping[str, Callable[..., Work]] = {
    "product": _product, "convolution": _layer, "unfused": _unfused, "operator": _operator,
    "attention": _attention, "model": _model,
    "decode": _decode,
}  # fmt: skip

"""Translators of the operators into which onnxruntime fuses others (domain com.microsoft), quantized ones aside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.frontend.onnx.quantized import scaled_product
from burnish.frontend.onnx.reduction import statistics

# --- activations ------------------------------------------------------------------------------------------------------


def _gelu(approximate: str, c: OnnxContext, n: OnnxNode) -> str:
    x = c.add("add", *n.inputs[:2]) if n.input(1) else n.inputs[0]
    return c.add("gelu", x, approximate=approximate)


def _quick_gelu(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    return c.add("mul", x, c.add("sigmoid", c.add("mul", x, c.scalar(n.attr("alpha", 1.702), x))))


_ACTIVATIONS = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid"}


def activated(c: OnnxContext, x: str, name: str, parameters: Sequence[float]) -> str:
    """``x`` through the activation of a fused operator."""
    if name in ("", "Identity"):
        return x
    if name in _ACTIVATIONS:
        return c.add(_ACTIVATIONS[name], x)
    if name == "LeakyRelu":
        return c.add("leaky_relu", x, alpha=parameters[0] if parameters else 0.01)
    if name == "Clip" and len(parameters) == 2:
        return c.add("clip", x, min=parameters[0], max=parameters[1])
    if name == "HardSigmoid":
        alpha, beta = parameters if len(parameters) == 2 else (0.2, 0.5)
        return c.add("hard_sigmoid", x, alpha=alpha, beta=beta)
    return c.refuse("attribute 'activation'", name, ", ".join((*_ACTIVATIONS, "LeakyRelu", "Clip", "HardSigmoid")))


def _as_standard(name: str, c: OnnxContext, n: OnnxNode, count: int) -> str:
    """The operator of the default domain that a fused one begins with, on its first inputs."""
    fused = ("activation", "activation_params", "activation_alpha", "activation_beta", "activation_gamma")
    attrs = {key: value for key, value in n.attrs.items() if key not in fused}
    c.node = replace(n, op=name, inputs=n.inputs[:count], attrs=attrs, opset=13)
    result = c.translators[name](c, c.node)
    c.node = n
    assert isinstance(result, str)
    return result


def _fused_conv(c: OnnxContext, n: OnnxNode) -> str:
    y = _as_standard("Conv", c, n, 3)
    y = c.add("add", y, n.input(3)) if n.input(3) else y
    return activated(c, y, n.attr("activation", ""), n.attr("activation_params", ()))


def _fused_gemm(c: OnnxContext, n: OnnxNode) -> str:
    keys = ("activation_alpha", "activation_beta", "activation_gamma")
    return activated(
        c, _as_standard("Gemm", c, n, 3), n.attr("activation", ""), [n.attrs[k] for k in keys if k in n.attrs]
    )


def _fused_matmul(c: OnnxContext, n: OnnxNode) -> str:
    if n.attr("transBatchA", 0) or n.attr("transBatchB", 0):
        c.refuse("attributes 'transBatchA' and 'transBatchB'", "1", "0")
    flags = {"transpose_a": bool(n.attr("transA", 0)), "transpose_b": bool(n.attr("transB", 0))}
    y, alpha = c.add("matmul", *n.inputs, **flags), n.attr("alpha", 1.0)
    return y if alpha == 1.0 else c.add("mul", y, c.scalar(alpha, y))


# --- normalizations ---------------------------------------------------------------------------------------------------


def _sum(c: OnnxContext, names: Sequence[str]) -> str:
    """The sum of the tensors that are there."""
    present = [name for name in names if name]
    total = present[0]
    for name in present[1:]:
        total = c.add("add", total, name)
    return total


def _skip_norm(simplified: bool, c: OnnxContext, n: OnnxNode) -> list[str]:
    """Normalization of the sum of two inputs and a bias; the sum is the fourth output."""
    beta, bias = ("", n.input(3)) if simplified else (n.input(3), n.input(4))
    total = _sum(c, [*n.inputs[:2], bias])
    epsilon = n.attr("epsilon", 1e-5 if simplified else 1e-12)
    parameters = [n.inputs[2]] if simplified else _scale_and_bias(c, n.inputs[2], beta)
    y = c.add("rms_norm" if simplified else "layer_norm", total, *parameters, axis=-1, epsilon=epsilon)
    wanted = any(n.outputs[1:3])
    if simplified and wanted:
        c.refuse("outputs 1 and 2", "in use", "not used")
    mean, inverse = statistics(c, total, (c.rank(total) - 1,), epsilon) if wanted else ("", "")
    return [y, mean, inverse, total]


def _scale_and_bias(c: OnnxContext, scale: str, bias: str) -> list[str]:
    return [scale, bias or c.constant(np.zeros(c.shape(scale)), c.dtype(scale))]


def _simplified_norm(c: OnnxContext, n: OnnxNode) -> list[str]:
    x = n.inputs[0]
    axis, epsilon = c.axis(x, n.attr("axis", -1)), n.attr("epsilon", 1e-5)
    y = c.add("rms_norm", x, n.inputs[1], axis=axis, epsilon=epsilon)
    if len(n.outputs) == 1:
        return [y]
    axes = tuple(range(axis, c.rank(x)))
    square = c.add("reduce_mean", c.add("mul", x, x), axes=axes, keepdims=True)
    return [y, c.add("rsqrt", c.add("add", square, c.scalar(epsilon, x)))]


def _embed_norm(c: OnnxContext, n: OnnxNode) -> list[str]:
    """The normalized sum of embeddings of words, positions and segments; how long each sequence is."""
    ids, segments, words, positions, segment_table, gamma, beta = (n.input(k) for k in range(7))
    batch, length = c.shape(ids)
    if n.input(8):
        place = c.add("gather", positions, n.input(8), axis=0)
    else:
        place = c.slice(positions, 0, 0, length)
    for index, table in ((ids, words), (n.input(8), positions), (segments, segment_table)):
        if index and table:
            c.require_positions(index, table, (0,))
    parts = [c.add("gather", words, ids, axis=0), place]
    if segments:
        parts.append(c.add("gather", segment_table, segments, axis=0))
    total = _sum(c, parts)
    y = c.add("layer_norm", total, gamma, beta, axis=-1, epsilon=n.attr("epsilon", 1e-12))
    if n.input(7):
        index = c.add("reduce_sum", c.cast(n.input(7), "int32"), axes=(1,), keepdims=False)
    else:
        index = c.constant(np.zeros(batch), "int32")
    return [y, index, total]


# --- attention --------------------------------------------------------------------------------------------------------


def heads(c: OnnxContext, x: str, count: int) -> str:
    """[B, S, N * D] as [B, N, S, D]."""
    batch, length, width = c.shape(x)
    if width % count:
        c.invalid("attribute 'num_heads'", count, f"a divisor of {width}")
    return c.transpose(c.reshape(x, (batch, length, count, width // count)), (0, 2, 1, 3))


def joined(c: OnnxContext, x: str) -> str:
    """[B, N, S, D] as [B, S, N * D]."""
    batch, count, length, depth = c.shape(x)
    return c.reshape(c.transpose(x, (0, 2, 1, 3)), (batch, length, count * depth))


def attention(
    c: OnnxContext, query: str, key: str, value: str, scale: float, biases: Sequence[str], causal: bool
) -> str:
    """``softmax(Q K' scale + biases) V`` of [B, N, S, D]; ``causal``: no element sees those behind it."""
    scores = c.add("matmul", query, key, transpose_b=True)
    scores = c.add("mul", scores, c.scalar(scale, scores))
    for bias in biases:
        scores = c.add("add", scores, bias)
    if causal:
        rows, columns = c.shape(scores)[2:]
        seen = np.tril(np.ones((rows, columns), bool), columns - rows)
        low = c.constant(np.where(seen, 0, _lowest(c, scores)), c.dtype(scores))
        scores = c.add("add", scores, low)
    return c.add("matmul", c.add("softmax", scores, axis=-1), value)


def _lowest(c: OnnxContext, like: str) -> float:
    return -65504.0 if c.dtype(like) == "float16" else -3.4028234663852886e38


def _mask_bias(c: OnnxContext, mask: str, like: str, rows: int, columns: int, low: float) -> str:
    """0 where a mask of 0 and 1 says that a key is seen, else ``low``: [B, 1 or N, S or 1, L].

    A mask [B] holds the lengths of the sequences.
    """
    shape = c.shape(mask)
    if len(shape) == 1:
        places = c.constant(np.arange(columns), c.dtype(mask))
        seen = c.add("less", c.reshape(places, (1, 1, 1, columns)), c.reshape(mask, (shape[0], 1, 1, 1)))
    else:
        if shape[-1] != columns or len(shape) > 4 or (len(shape) > 2 and shape[-2] not in (1, rows)):
            allowed = f"[B], [B, {columns}], [B, {rows}, {columns}] or of 4 dimensions"
            c.refuse("input mask", f"shape {list(shape)}", allowed)
        wide = {2: (shape[0], 1, 1, columns), 3: (shape[0], 1, *shape[1:])}.get(len(shape), shape)
        seen = c.cast(c.reshape(mask, wide), "bool")
    return c.add("where", seen, c.scalar(0.0, like), c.scalar(low, like))


def _attention(c: OnnxContext, n: OnnxNode) -> list[str]:
    """Self-attention: one product for queries, keys and values."""
    x, weight, bias, mask, past, extra = (n.input(k) for k in range(6))
    product = c.add("matmul", x, weight)
    return _self_attention(c, n, c.add("add", product, bias) if bias else product, mask, past, extra)


def _quantized_attention(c: OnnxContext, n: OnnxNode) -> list[str]:
    """Self-attention whose input and weight are quantized."""
    x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (n.input(k) for k in range(9))
    product = scaled_product(c, x, weight, (x_scale, w_scale), (x_zero, w_zero), bias)
    return _self_attention(c, n, product, mask, past, "")


def _self_attention(c: OnnxContext, n: OnnxNode, product: str, mask: str, past: str, extra: str) -> list[str]:
    """Attention of queries, keys and values [B, S, 3 hidden], side by side."""
    count, whole = n.attrs["num_heads"], c.shape(product)[2]
    if n.attr("do_rotary", 0):
        c.refuse("attribute 'do_rotary'", 1, "0")
    sizes = n.attr("qkv_hidden_sizes") or [whole // 3] * 3
    if sum(sizes) != whole or len(sizes) != 3:
        c.invalid("attribute 'qkv_hidden_sizes'", sizes, f"three that add up to {whole}")
    ends = np.cumsum(sizes).tolist()
    query, key, value = (
        heads(c, c.slice(product, 2, end - size, end), count) for end, size in zip(ends, sizes, strict=True)
    )
    if past:
        before = [c.reshape(c.slice(past, 0, k, k + 1), c.shape(past)[1:]) for k in (0, 1)]
        key, value = (c.add("concat", old, new, axis=2) for old, new in zip(before, (key, value), strict=True))
    rows, columns = c.shape(query)[2], c.shape(key)[2]
    biases = [extra] if extra else []
    if mask:
        biases.append(_mask_bias(c, mask, query, rows, columns, n.attr("mask_filter_value", -10000.0)))
    scale = n.attr("scale", 0.0) or 1 / math.sqrt(c.shape(query)[3])
    y = joined(c, attention(c, query, key, value, scale, biases, bool(n.attr("unidirectional", 0))))
    if len(n.outputs) == 1:
        return [y]
    if c.shape(key) != c.shape(value):
        c.refuse("output 1 (present)", "in use, with values of another size than keys", "equal sizes")
    present = [c.reshape(t, (1, *c.shape(t))) for t in (key, value)]
    return [y, c.add("concat", *present, axis=0)]


def _multi_head(c: OnnxContext, n: OnnxNode) -> list[str]:
    """Attention of queries to keys and values that are given: [B, S, N * D]."""
    query, key, value, bias, mask, extra, past_key, past_value = (n.input(k) for k in range(8))
    count = n.attrs["num_heads"]
    if not key or not value or c.rank(query) != 3 or c.rank(key) not in (3, 4):
        c.refuse("inputs 'query', 'key' and 'value'", "packed together", "three tensors [B, S, hidden]")
    depth = c.shape(query)[2]
    if bias:
        last = c.shape(bias)[0] - 2 * depth
        ends = ((0, depth), (depth, 2 * depth), (2 * depth, 2 * depth + last))
        parts = [c.slice(bias, 0, *end) for end in ends]
        query = c.add("add", query, parts[0])
        if c.rank(key) == 3:
            key, value = c.add("add", key, parts[1]), c.add("add", value, parts[2])
    query = heads(c, query, count)
    key, value = (heads(c, t, count) if c.rank(t) == 3 else t for t in (key, value))
    if past_key:
        key, value = c.add("concat", past_key, key, axis=2), c.add("concat", past_value, value, axis=2)
    biases = [extra] if extra else []
    if mask:
        low = n.attr("mask_filter_value", -10000.0)
        biases.append(_mask_bias(c, mask, query, c.shape(query)[2], c.shape(key)[2], low))
    scale = n.attr("scale", 0.0) or 1 / math.sqrt(c.shape(query)[3])
    y = attention(c, query, key, value, scale, biases, bool(n.attr("unidirectional", 0)))
    return [joined(c, y), key, value]


def _rotary(c: OnnxContext, n: OnnxNode) -> str:
    """Pairs of elements turned by the angle of their position (Su et al. 2021), the first ``rotary_embedding_dim``."""
    x, positions, cosines, sines = n.inputs
    given = c.shape(x)
    if len(given) == 3:
        count = n.attr("num_heads", 0) or given[2] // (2 * c.shape(cosines)[1])
        if n.attr("rotary_embedding_dim", 0) and not n.attr("num_heads", 0):
            c.invalid("attribute 'num_heads'", "0", "that of heads, with rotary_embedding_dim")
        x = heads(c, x, count)
    batch, _, length, depth = c.shape(x)
    width = n.attr("rotary_embedding_dim", 0) or depth
    if c.shape(positions) == (1,):  # where the first element is
        steps = c.constant(np.arange(length), c.dtype(positions))
        place = c.add("expand", c.reshape(c.add("add", steps, positions), (1, length)), shape=(batch, length))
    else:
        place = positions
    c.require_positions(place, cosines, (0,))
    tables = [c.reshape(c.add("gather", t, place, axis=0), (batch, 1, length, width // 2)) for t in (cosines, sines)]
    turned = _turned(c, c.slice(x, 3, 0, width), tables[0], tables[1], bool(n.attr("interleaved", 0)))
    y = turned if width == depth else c.add("concat", turned, c.slice(x, 3, width, depth), axis=3)
    return joined(c, y) if len(given) == 3 else y


def _turned(c: OnnxContext, x: str, cosine: str, sine: str, interleaved: bool) -> str:
    shape, half = c.shape(x), c.shape(x)[3] // 2
    if interleaved:
        pairs = c.reshape(x, (*shape[:3], half, 2))
        first, second = (c.reshape(c.slice(pairs, 4, k, k + 1), (*shape[:3], half)) for k in (0, 1))
    else:
        first, second = c.slice(x, 3, 0, half), c.slice(x, 3, half, 2 * half)
    low = c.add("sub", c.add("mul", first, cosine), c.add("mul", second, sine))
    high = c.add("add", c.add("mul", first, sine), c.add("mul", second, cosine))
    if not interleaved:
        return c.add("concat", low, high, axis=3)
    both = [c.reshape(t, (*shape[:3], half, 1)) for t in (low, high)]
    return c.reshape(c.add("concat", *both, axis=4), shape)


_CONTRIB: Mapping[str, Translator] = {
    "Gelu": partial(_gelu, "none"),
    "BiasGelu": partial(_gelu, "none"),
    "FastGelu": partial(_gelu, "tanh"),
    "QuickGelu": _quick_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "SkipLayerNormalization": partial(_skip_norm, False),
    "SkipSimplifiedLayerNormalization": partial(_skip_norm, True),
    "EmbedLayerNormalization": _embed_norm,
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
}
TRANSLATORS: Mapping[str, Translator] = {
    "SimplifiedLayerNormalization": _simplified_norm,  # that onnxruntime's tools write without a domain
    **{f"com.microsoft.{name}": translator for name, translator in _CONTRIB.items()},
}

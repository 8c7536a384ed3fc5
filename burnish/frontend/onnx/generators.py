"""Translators of ONNX operators that make random numbers, windows and spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator, np_dtype
from burnish.frontend.onnx.dtypes import dtype_name

# --- random numbers ---------------------------------------------------------------------------------------------------


def seed(c: OnnxContext, n: OnnxNode) -> dict[str, float | int]:
    """The node's seed; of one without, what tells it from others."""
    return {"seed": float(n.attrs["seed"])} if "seed" in n.attrs else {"stream": len(c.builder.types)}


def _random(op: str, names: Sequence[str], defaults: Sequence[float], c: OnnxContext, n: OnnxNode) -> str:
    """Numbers in a shape that is given, or in that of the input, of its dtype if none is named."""
    like = n.input(0)
    shape = c.shape(like) if like else tuple(n.attrs["shape"])
    dtype = dtype_name(n.attrs["dtype"], str(n)) if "dtype" in n.attrs else c.dtype(like) if like else "float32"
    attrs = {key: float(n.attr(key, value)) for key, value in zip(names, defaults, strict=True)}
    c.require_room(shape, dtype)
    return c.add(op, shape=shape, dtype=dtype, **attrs, **seed(c, n))


def _bernoulli(c: OnnxContext, n: OnnxNode) -> str:
    """1 with the probability that the input holds, else 0."""
    x = n.inputs[0]
    dtype = dtype_name(n.attrs["dtype"], str(n)) if "dtype" in n.attrs else c.dtype(x)
    work = c.dtype(x)
    chance = c.add("random_uniform", shape=c.shape(x), dtype=work, **seed(c, n))
    return c.cast(c.add("less", chance, x), dtype)


def _multinomial(c: OnnxContext, n: OnnxNode) -> str:
    dtype = dtype_name(n.attr("dtype", 6), str(n))
    return c.add("multinomial", n.inputs[0], count=n.attr("sample_size", 1), dtype=dtype, **seed(c, n))


# --- windows and spectra ----------------------------------------------------------------------------------------------


def _window(coefficients: Sequence[float], c: OnnxContext, n: OnnxNode) -> str:
    """A sum of cosines over a period of ``size``, or of ``size - 1``."""
    (size,) = c.ints(n.inputs[0], "size")
    dtype = dtype_name(n.attr("output_datatype", 1), str(n))
    if size < 0:
        c.invalid("input 'size'", size, "0 or more")
    c.require_room((size,), dtype)
    period = size if n.attr("periodic", 1) else size - 1
    angle = 2 * np.pi * np.arange(size) / max(period, 1)
    value = sum(a * np.cos(k * angle) for k, a in enumerate(coefficients))
    return c.constant(np.asarray(value).astype(np_dtype(dtype)))


def _mel_weights(c: OnnxContext, n: OnnxNode) -> str:
    """Triangular filters of frequencies that are equally far apart on the mel scale."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    bins, length, rate, low, high = (c.number(name, what).item() for name, what in zip(n.inputs, names, strict=True))
    if bins < 1 or length < 1 or rate < 1:
        c.invalid("num_mel_bins, dft_length and sample_rate", f"{bins}, {length}, {rate}", "1 or more")
    dtype = dtype_name(n.attr("output_datatype", 1), str(n))
    spectrum = length // 2 + 1
    c.require_room((spectrum, bins), dtype)
    ends = [2595 * np.log10(1 + edge / 700) for edge in (low, high)]
    mels = ends[0] + np.arange(bins + 2) * (ends[1] - ends[0]) / (bins + 2)
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
    if edges.min() < 0 or edges.max() > spectrum:
        c.invalid("edges", f"{low} and {high} Hz", f"0 to {rate / 2} Hz")
    weights, places = np.zeros((spectrum, bins)), np.arange(spectrum)
    for i, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        if left == centre:
            weights[centre, i] = 1
        else:
            rising = (places >= left) & (places <= centre)
            weights[rising, i] = (places[rising] - left) / (centre - left)
        falling = (places >= centre) & (places < right)
        weights[falling, i] = (right - places[falling]) / max(right - centre, 1)
    return c.constant(weights.astype(np_dtype(dtype)))


def _dft(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    axis = int(c.number(n.input(2), "axis")) if n.input(2) else n.attr("axis", 1 if n.opset < 20 else -2)
    axis = c.axis(x, axis)
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    extent = c.shape(x)[axis]
    length = 2 * (extent - 1) if inverse and onesided else extent
    if n.input(1):
        length = int(c.number(n.input(1), "dft_length"))
    return c.add("dft", x, axis=axis, length=length, inverse=inverse, onesided=onesided)


def _stft(c: OnnxContext, n: OnnxNode) -> str:
    """The transform of every frame: [B, L, 1 or 2] to [B, frames, frequencies, 2]."""
    x, window = n.inputs[0], n.input(2)
    step = int(c.number(n.inputs[1], "frame_step"))
    x = x if c.rank(x) == 3 else c.reshape(x, (*c.shape(x), 1))
    length, parts = c.shape(x)[1:]
    size = c.shape(window)[0] if window else length
    if n.input(3):
        size = int(c.number(n.input(3), "frame_length"))
    if step < 1 or not 0 < size <= length or (window and c.shape(window) != (size,)):
        allowed = f"frames within {length}, and a window as long"
        c.invalid("frame_step, frame_length and window", f"{step}, {size}", allowed)
    frames = 1 + (length - size) // step
    index = c.constant((np.arange(frames)[:, None] * step + np.arange(size)).astype(np.int64))
    framed = c.add("gather", x, index, axis=1)
    if window:
        framed = c.add("mul", framed, c.cast(c.reshape(window, (size, 1)), c.dtype(x)))
    onesided = bool(n.attr("onesided", 1)) and parts == 1
    return c.add("dft", framed, axis=2, length=size, onesided=onesided)


def _cumprod(c: OnnxContext, n: OnnxNode) -> str:
    (axis,) = c.ints(n.inputs[1], "axis")
    exclusive, reverse = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
    return c.add("cumprod", n.inputs[0], axis=axis, exclusive=exclusive, reverse=reverse)


def _determinant(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("determinant", n.inputs[0])


def _count_ngrams(c: OnnxContext, n: OnnxNode) -> str:
    if "pool_strings" in n.attrs:
        c.refuse("attribute 'pool_strings'", "given", "pool_int64s: tensors of texts are not supported")
    pool, starts = tuple(n.attr("pool_int64s", ())), tuple(n.attrs["ngram_counts"])
    lengths = (n.attrs["min_gram_length"], n.attrs["max_gram_length"])
    return c.add(
        "count_ngrams", n.inputs[0], pool=pool, starts=starts, indexes=tuple(n.attrs["ngram_indexes"]),
        weights=tuple(n.attr("weights", ())), lengths=lengths, skips=n.attrs["max_skip_count"], mode=n.attrs["mode"],
    )  # fmt: skip


_UNIFORM = partial(_random, "random_uniform", ("low", "high"), (0, 1))
_NORMAL = partial(_random, "random_normal", ("mean", "scale"), (0, 1))
TRANSLATORS: Mapping[str, Translator] = {
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), _UNIFORM),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), _NORMAL),
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "HannWindow": partial(_window, (0.5, -0.5)),
    "HammingWindow": partial(_window, (25 / 46, -21 / 46)),
    "BlackmanWindow": partial(_window, (0.42, -0.5, 0.08)),
    "MelWeightMatrix": _mel_weights,
    "DFT": _dft,
    "STFT": _stft,
    "CumProd": _cumprod,
    "Det": _determinant,
    "TfIdfVectorizer": _count_ngrams,
}

"""Translators of ATen reductions, normalizations, softmax and running sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.symbols import is_open

# --- reductions -------------------------------------------------------------------------------------------------------


def _reduced(c: TorchContext, op: str, x: Ref, axes: tuple[int, ...], shape: Sequence[int] | None = None) -> Ref:
    """``op`` over ``axes`` in the shape that torch says; of a scalar, and of no axes, too."""
    y = c.add(op, x, axes=axes, keepdims=True)
    return c.reshape(y, c.out_shape if shape is None else shape)


def _reduce(op: str, c: TorchContext, x: Ref, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Ref:
    return _reduced(c, op, c.real(x), c.axes(x, dim))


def _mean(c: TorchContext, x: Ref, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Ref:
    return _reduce("reduce_mean", c, x, dim)


def _any(op: str, c: TorchContext, x: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    truth = c.cast(x, "bool")
    return c.cast(_reduced(c, op, truth, c.axes(x, dim)), c.out_dtype)


def _extreme(which: str, c: TorchContext, x: Ref, dim: int | None = None, keepdim: bool = False) -> Any:
    """The greatest or least element of all; along ``dim`` its position, too."""
    if dim is None:
        return _reduced(c, f"reduce_{which}", x, c.axes(x, None))
    place = _position(f"arg{which}", c, x, dim)
    if c.training and c.is_real(x) and c.rank(x):  # of equal elements the one at that position has the gradient
        return [at_position(c, x, dim, place), place]
    return [_reduced(c, f"reduce_{which}", x, c.axes(x, dim)), place]


def at_position(c: TorchContext, x: Ref, dim: int, place: Ref) -> Ref:
    """The element at one position along ``dim`` in each row."""
    axis = c.axis(x, dim)
    kept = tuple(1 if d == axis else n for d, n in enumerate(c.shape(x)))
    return c.reshape(c.add("gather_elements", x, c.reshape(place, kept), axis=axis), c.shape(place))


def _position(op: str, c: TorchContext, x: Ref, dim: int | None = None, keepdim: bool = False) -> Ref:
    """Argmax or argmin: the position of the first extreme along ``dim``, or in the flat tensor."""
    x = c.cast(x, "int8") if c.dtype(x) == "bool" else x
    if dim is None or not c.rank(x):
        x, dim = c.flat(x), 0
    return c.reshape(c.add(op, x, axis=c.axis(x, dim), keepdims=True), c.out_shape)


def _prod(c: TorchContext, x: Ref, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Ref:
    return _reduce("reduce_prod", c, x, dim)


def _variance(
    c: TorchContext, x: Ref, dim: Any = None, unbiased: bool = True, correction: Any = None, keepdim: bool = False
) -> Ref:
    return _moments(c, x, dim, unbiased, correction)[0]


def _deviation(
    c: TorchContext, x: Ref, dim: Any = None, unbiased: bool = True, correction: Any = None, keepdim: bool = False
) -> Ref:
    """The norm of deviations, over the root of what the variance is divided by: its gradient is 0 where it is 0."""
    away, axes, divisor, _ = _deviations(c, x, dim, unbiased, correction)
    norm = c.add("reduce_l2", away, axes=axes, keepdims=True)
    return c.reshape(c.add("div", norm, c.add("sqrt", divisor)), c.out_shape)


def _variance_and_mean(
    c: TorchContext, x: Ref, dim: Any = None, unbiased: bool = True, correction: Any = None, keepdim: bool = False
) -> list[Ref]:
    return list(_moments(c, x, dim, unbiased, correction))


def _moments(c: TorchContext, x: Ref, dim: Any, unbiased: bool, correction: Any) -> tuple[Ref, Ref]:
    """Variance and mean, from the squares of deviations: two passes, which lose nothing."""
    away, axes, divisor, mean = _deviations(c, x, dim, unbiased, correction)
    total = c.add("reduce_sum", c.add("mul", away, away), axes=axes, keepdims=True)
    return c.reshape(c.add("div", total, divisor), c.out_shape), c.reshape(mean, c.out_shape)


def _deviations(
    c: TorchContext, x: Ref, dim: Any, unbiased: bool, correction: Any
) -> tuple[Ref, tuple[int, ...], Ref, Ref]:
    """Deviations from the mean, along which axes, what the sum of their squares is divided by, and the mean."""
    axes = c.axes(x, dim)
    less = correction if correction is not None else 1 if "correction" in c.raw or unbiased else 0
    count = math.prod(c.shape(x)[a] for a in axes)
    mean = c.add("reduce_mean", x, axes=axes, keepdims=True)
    divisor = c.operand(count - less if is_open(count) else max(count - less, 0), c.dtype(x))
    return c.add("sub", x, mean), axes, divisor, mean


def _log_sum_exp(c: TorchContext, x: Ref, dim: Any, keepdim: bool = False) -> Ref:
    return _reduce("reduce_logsumexp", c, x, dim)


def vector_norm(
    c: TorchContext, x: Ref, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Ref:
    """The norm of order ``ord`` over some axes."""
    y, axes = c.real(x), c.axes(x, dim)
    if ord in (1, 2):
        return _reduced(c, f"reduce_l{ord:.0f}", y, axes)
    size = c.add("abs", y)
    if abs(ord) == math.inf:
        return _reduced(c, "reduce_max" if ord > 0 else "reduce_min", size, axes)
    if ord == 0:
        return _reduced(c, "reduce_sum", c.cast(c.add("not_equal", y, c.scalar(0, y)), c.dtype(y)), axes)
    total = _reduced(c, "reduce_sum", c.add("pow", size, c.scalar(ord, y)), axes)
    some = c.add("greater", total, c.scalar(0, y))  # a norm of 0 has the slope 0
    root = c.add("pow", c.add("where", some, total, c.scalar(1, y)), c.scalar(1 / ord, y))
    return c.add("where", some, root, c.add("mul", total, c.scalar(0, y)) if ord < 0 else total)


def _norm(
    c: TorchContext, x: Ref, p: float | None = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Ref:
    return vector_norm(c, x, 2 if p is None else p, dim)


def _cumsum(c: TorchContext, x: Ref, dim: int, dtype: Any = None) -> Ref:
    if not c.rank(x):
        return c.real(x)
    return c.add("cumsum", c.real(x), axis=c.axis(x, dim))


def _running(op: str, c: TorchContext, x: Ref, dim: int) -> Ref:
    return c.add(op, x, axis=c.axis(x, dim)) if c.rank(x) else c.add("identity", x)


def _running_extreme(op: str, c: TorchContext, x: Ref, dim: int) -> list[Ref]:
    """Values, and of each the last position so far that holds it, or NaN."""
    if not c.rank(x):
        return [c.add("identity", x), c.constant(0, "int64")]
    axis = c.axis(x, dim)
    wide = c.cast(x, "int8") if c.dtype(x) == "bool" else x
    y = c.add(op, wide, axis=axis)
    found = c.add("equal", wide, y)
    if c.is_real(x):
        found = c.add("logical_or", found, c.add("isnan", x))
    extent = c.shape(x)[axis]
    line = c.reshape(c.iota(extent), [extent if d == axis else 1 for d in range(c.rank(x))])
    places = c.expand(line, c.shape(x))
    places = c.add("where", found, places, c.scalar(0, places))
    return [c.cast(y, c.dtype(x)), c.add("cummax", places, axis=axis)]


def _softmax(op: str, c: TorchContext, x: Ref, dim: int, half_to_float: bool = False, dtype: Any = None) -> Ref:
    y = c.real(x)
    if not c.rank(y):
        return c.reshape(c.add(op, c.flat(y), axis=0), ())
    return c.add(op, y, axis=c.axis(y, dim))


def _safe_softmax(c: TorchContext, x: Ref, dim: int, dtype: Any = None) -> Ref:
    """Softmax that is 0 where all elements are -inf."""
    y = _softmax("softmax", c, x, dim)
    top = c.add("reduce_max", c.real(x), axes=(c.axis(x, dim),), keepdims=True)
    return c.add("where", c.add("greater", top, c.scalar(-math.inf, y)), y, c.scalar(0, y))


# --- normalizations ---------------------------------------------------------------------------------------------------


def _parameter(c: TorchContext, given: Ref | None, shape: Sequence[int], neutral: float, like: str) -> Ref:
    """A scale or a bias; the neutral one where there is none."""
    if given is None:
        return c.constant(np.full(tuple(shape), neutral), c.dtype(like))
    return c.cast(given, c.dtype(like))


def _layer_norm(
    c: TorchContext, input: Ref, normalized_shape: Sequence[int], weight: Ref | None, bias: Ref | None, eps: float,
    cudnn_enable: bool = True,
) -> Ref:  # fmt: skip
    first = c.rank(input) - len(normalized_shape)
    shape = c.shape(input)[first:]
    scale, shift = (_parameter(c, p, shape, neutral, input) for p, neutral in ((weight, 1), (bias, 0)))
    return c.add("layer_norm", input, scale, shift, axis=first, epsilon=eps)


def _native_layer_norm(
    c: TorchContext, input: Ref, normalized_shape: Sequence[int], weight: Ref | None, bias: Ref | None, eps: float
) -> list[Ref | None]:
    return [_layer_norm(c, input, normalized_shape, weight, bias, eps), None, None]


def _rms_norm(
    c: TorchContext, input: Ref, normalized_shape: Sequence[int], weight: Ref | None = None, eps: float | None = None
) -> Ref:
    import torch

    first = c.rank(input) - len(normalized_shape)
    scale = _parameter(c, weight, c.shape(input)[first:], 1, input)
    epsilon = torch.finfo(c.out.dtype).eps if eps is None else eps
    return c.add("rms_norm", input, scale, axis=first, epsilon=epsilon)


def _fused_rms_norm(
    c: TorchContext, input: Ref, normalized_shape: Sequence[int], weight: Ref | None, eps: float | None
) -> list[Ref | None]:
    return [_rms_norm(c, input, normalized_shape, weight, eps), None]


def batch_norm(
    c: TorchContext,
    input: Ref,
    weight: Ref | None,
    bias: Ref | None,
    running_mean: Ref | None,
    running_var: Ref | None,
    momentum: float | None,
    eps: float,
    training: bool = False,
    cudnn_enabled: bool = True,
    cudnn_enable: bool = True,
) -> Ref:
    """Batch normalization in its form of inference; without a ``momentum`` a step of training has it so too."""
    if training or running_mean is None or running_var is None:
        c.refuse("training", True, "False, with running statistics")
    shape = c.shape(input)[1:2]
    scale, shift = (_parameter(c, p, shape, neutral, input) for p, neutral in ((weight, 1), (bias, 0)))
    moves = ({"frozen": True} if momentum is None else {"momentum": momentum}) if c.training else {}
    return c.add("batch_norm", input, scale, shift, running_mean, running_var, epsilon=eps, **moves)


def _native_batch_norm(
    c: TorchContext,
    input: Ref,
    weight: Ref | None,
    bias: Ref | None,
    running_mean: Ref | None,
    running_var: Ref | None,
    momentum: float,
    eps: float,
    training: bool = False,
) -> list[Ref | None]:
    return [batch_norm(c, input, weight, bias, running_mean, running_var, momentum, eps, training), None, None]


def _batch_norm_of_batch(
    c: TorchContext, input: Ref, weight: Ref | None, bias: Ref | None, training: bool, momentum: float, eps: float,
    running_mean: Ref | None = None, running_var: Ref | None = None,
) -> list[Ref | None]:  # fmt: skip
    """Batch normalization by the statistics of the batch itself, without running ones: those of instances, too."""
    if running_mean is not None or running_var is not None:
        return [batch_norm(c, input, weight, bias, running_mean, running_var, momentum, eps, training), None, None]
    rank, channels = c.rank(input), c.shape(input)[1]
    scale, shift = (_parameter(c, p, (channels,), neutral, input) for p, neutral in ((weight, 1), (bias, 0)))
    if c.shape(input)[0] == 1:
        return [c.add("instance_norm", input, scale, shift, epsilon=eps), None, None]
    axes = tuple(d for d in range(rank) if d != 1)
    mean = c.add("reduce_mean", input, axes=axes, keepdims=True)
    away = c.add("sub", input, mean)
    variance = c.add("reduce_mean", c.add("mul", away, away), axes=axes, keepdims=True)
    factor = c.add("rsqrt", c.add("add", variance, c.scalar(eps, input)))
    column = (channels, *(1,) * (rank - 2))
    y = c.add("mul", c.add("mul", away, factor), c.reshape(scale, column))
    return [c.add("add", y, c.reshape(shift, column)), None, None]


def _group_norm(
    c: TorchContext, input: Ref, num_groups: int, weight: Ref | None, bias: Ref | None, eps: float,
    cudnn_enabled: bool = True,
) -> Ref:  # fmt: skip
    shape = c.shape(input)[1:2]
    scale, shift = (_parameter(c, p, shape, neutral, input) for p, neutral in ((weight, 1), (bias, 0)))
    return c.add("group_norm", input, scale, shift, groups=num_groups, epsilon=eps)


def _native_group_norm(
    c: TorchContext, input: Ref, weight: Ref | None, bias: Ref | None, N: int, C: int, HxW: int, group: int,  # noqa: N803
    eps: float,
) -> list[Ref | None]:  # fmt: skip
    return [_group_norm(c, input, group, weight, bias, eps), None, None]


def _instance_norm(
    c: TorchContext,
    input: Ref,
    weight: Ref | None,
    bias: Ref | None,
    running_mean: Ref | None,
    running_var: Ref | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Ref:
    if not use_input_stats:
        return batch_norm(c, input, weight, bias, running_mean, running_var, momentum, eps)
    shape = c.shape(input)[1:2]
    scale, shift = (_parameter(c, p, shape, neutral, input) for p, neutral in ((weight, 1), (bias, 0)))
    return c.add("instance_norm", input, scale, shift, epsilon=eps)


# --- order ------------------------------------------------------------------------------------------------------------


def _sort(c: TorchContext, x: Ref, dim: int = -1, descending: bool = False, stable: bool | None = None) -> list[Ref]:
    return list(c.add_many("sort", x, axis=c.axis(x, dim), descending=descending))


def _argsort(c: TorchContext, x: Ref, dim: int = -1, descending: bool = False, stable: bool = True) -> Ref:
    return c.add_many("sort", x, axis=c.axis(x, dim), descending=descending)[1]


def _top_k(c: TorchContext, x: Ref, k: int, dim: int, largest: bool, sorted: bool) -> list[Ref]:
    return list(c.add_many("top_k", x, k=k, axis=c.axis(x, dim), largest=largest, sorted=sorted))


TRANSLATORS: Mapping[str, Translator] = {
    "aten.sum": partial(_reduce, "reduce_sum"), "aten.mean": _mean, "aten.amax": partial(_reduce, "reduce_max"),
    "aten.amin": partial(_reduce, "reduce_min"), "aten.any": partial(_any, "reduce_max"),
    "aten.all": partial(_any, "reduce_min"), "aten.max": partial(_extreme, "max"),
    "aten.min": partial(_extreme, "min"), "aten.argmax": partial(_position, "argmax"),
    "aten.argmin": partial(_position, "argmin"), "aten.prod": _prod, "aten.var": _variance, "aten.std": _deviation,
    "aten.var_mean": _variance_and_mean, "aten.logsumexp": _log_sum_exp, "aten.linalg_vector_norm": vector_norm,
    "aten.norm": _norm, "aten.cumsum": _cumsum,
    "aten.cummax": partial(_running_extreme, "cummax"), "aten.cummin": partial(_running_extreme, "cummin"),
    "aten.logcumsumexp": partial(_running, "logcumsumexp"),
    "aten.softmax": partial(_softmax, "softmax"),
    "aten._softmax": partial(_softmax, "softmax"),
    "aten._safe_softmax": _safe_softmax, "aten._native_batch_norm_legit": _batch_norm_of_batch,
    "aten.log_softmax": partial(_softmax, "log_softmax"), "aten._log_softmax": partial(_softmax, "log_softmax"),
    "aten.layer_norm": _layer_norm, "aten.native_layer_norm": _native_layer_norm, "aten.rms_norm": _rms_norm,
    "aten._fused_rms_norm": _fused_rms_norm, "aten.batch_norm": batch_norm,
    "aten._native_batch_norm_legit_no_training": _native_batch_norm, "aten.native_batch_norm": _native_batch_norm,
    "aten.group_norm": _group_norm, "aten.native_group_norm": _native_group_norm, "aten.instance_norm": _instance_norm,
    "aten.sort": _sort, "aten.argsort": _argsort, "aten.topk": _top_k,
}  # fmt: skip

"""Softmax and the normalizations: reductions whose results come back to every element of the row."""

from __future__ import annotations

from collections.abc import Callable

from burnish.loops.expr import FLOATS, Expr, Var, all_of, cast, math, select, wrap
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.operator import (
    Application,
    Ints,
    declare,
    differentiated,
    normal_axis,
    operator,
    require,
    require_input,
    wide,
)
from burnish.ops.reduce import as_number, reduce_stage, row_index


def _softmax_gradient(a: Application) -> list[str | None]:
    """``y * (dy - sum(dy * y))``."""
    y, seed, axes = a.outputs[0], a.seeds[0], (a.attrs["axis"],)
    assert seed is not None
    weighted = a.add("reduce_sum", a.add("mul", seed, y), axes=axes)
    return [a.add("mul", y, a.add("sub", seed, weighted))]


def _log_softmax_gradient(a: Application) -> list[str | None]:
    """``dy - exp(y) * sum(dy)``."""
    y, seed, axes = a.outputs[0], a.seeds[0], (a.attrs["axis"],)
    assert seed is not None
    return [a.add("sub", seed, a.add("mul", a.add("exp", y), a.add("reduce_sum", seed, axes=axes)))]


@differentiated(_softmax_gradient)
@declare(layout_affinity=-1.0)
@operator
def softmax(name: str, x: Tensor, *, axis: int = -1) -> Tensor:
    """``exp(x - max) * (1 / sum(exp(x - max)))`` along ``axis``. Stages ``name.max .exp .sum .inverse``."""
    require_input(x, "x", dtype=FLOATS)
    axes = (normal_axis(axis, len(x.shape)),)
    top = reduce_stage(f"{name}.max", "max", x.shape, axes, lambda *i: wide(x[i]))
    power = compute(x.shape, lambda *i: math("exp", wide(x[i]) - top[row_index(i, axes)]), f"{name}.exp")
    total = reduce_stage(f"{name}.sum", "sum", x.shape, axes, lambda *i: power[i])
    inverse = compute(total.shape, lambda *i: 1.0 / total[i], f"{name}.inverse")
    return compute(x.shape, lambda *i: cast(x.dtype, power[i] * inverse[row_index(i, axes)]), name)


@differentiated(_log_softmax_gradient)
@operator
def log_softmax(name: str, x: Tensor, *, axis: int = -1) -> Tensor:
    """``x - max - log(sum(exp(x - max)))`` along ``axis``. Stages ``name.max``, ``name.sum``, ``name.log``."""
    require_input(x, "x", dtype=FLOATS)
    axes = (normal_axis(axis, len(x.shape)),)
    top = reduce_stage(f"{name}.max", "max", x.shape, axes, lambda *i: wide(x[i]))

    def exponential(*i: Expr) -> Expr:
        return math("exp", wide(x[i]) - top[row_index(i, axes)])

    total = reduce_stage(f"{name}.sum", "sum", x.shape, axes, exponential)
    log = compute(total.shape, lambda *i: math("log", total[i]), f"{name}.log")

    def element(*i: Expr) -> Expr:
        row = row_index(i, axes)
        return cast(x.dtype, wide(x[i]) - top[row] - log[row])

    return compute(x.shape, element, name)


def affine(value: Expr, scale: Expr | None, bias: Expr | None, dtype: str) -> Expr:
    """``value * scale + bias`` as a ``dtype``; what is None is left out."""
    value = value if scale is None else value * wide(scale)
    return cast(dtype, value if bias is None else value + wide(bias))


def _row_statistics(name: str, x: Tensor, axes: Ints, epsilon: float) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal standard deviation over ``axes``, kept with extent 1; the variance about the mean."""
    count = 1
    for a in axes:
        count *= x.shape[a]
    total = reduce_stage(f"{name}.sum", "sum", x.shape, axes, lambda *i: wide(x[i]))
    mean = compute(total.shape, lambda *i: total[i] / as_number(count, total.dtype), f"{name}.mean")

    def deviation(*i: Expr) -> Expr:
        centred = wide(x[i]) - mean[row_index(i, axes)]
        return centred * centred

    square = reduce_stage(f"{name}.square", "sum", x.shape, axes, deviation)
    rstd = compute(
        total.shape, lambda *i: math("rsqrt", square[i] / as_number(count, square.dtype) + epsilon), f"{name}.rstd"
    )
    return mean, rstd


@declare(layout_affinity=-2.0)
@operator
def layer_norm(
    name: str,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    trailing: int = 0,
) -> Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the dimensions from ``axis`` on (Ba et al. 2016),
    but for the last ``trailing`` ones: over the channels of [N, C, H, W] with ``axis`` 1 and 2 ``trailing`` dimensions.

    ``scale`` and ``bias`` have the shape of those dimensions. Stages ``name.sum``, ``.mean``, ``.square``, ``.rstd``.
    """
    axes = _normalized_axes(x, axis, trailing)
    own = _require_parameters(x, axes, scale, bias)
    mean, rstd = _row_statistics(name, x, axes, epsilon)

    def element(*i: Expr) -> Expr:
        row = row_index(i, axes)
        value = (wide(x[i]) - mean[row]) * rstd[row]
        return affine(value, scale[i[own]] if scale else None, bias[i[own]] if bias else None, x.dtype)

    return compute(x.shape, element, name)


@operator
def rms_norm(
    name: str, x: Tensor, scale: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5, trailing: int = 0
) -> Tensor:
    """``x / sqrt(mean(x²) + epsilon) * scale`` over the dimensions from ``axis`` on (Zhang and Sennrich 2019), but for
    the last ``trailing`` ones.
    """
    axes = _normalized_axes(x, axis, trailing)
    own = _require_parameters(x, axes, scale, None)
    count = 1
    for a in axes:
        count *= x.shape[a]
    square = reduce_stage(f"{name}.square", "sum", x.shape, axes, lambda *i: wide(x[i]) * wide(x[i]))
    rstd = compute(
        square.shape, lambda *i: math("rsqrt", square[i] / as_number(count, square.dtype) + epsilon), f"{name}.rstd"
    )

    def element(*i: Expr) -> Expr:
        value = wide(x[i]) * rstd[row_index(i, axes)]
        return affine(value, scale[i[own]] if scale else None, None, x.dtype)

    return compute(x.shape, element, name)


def _normalized_axes(x: Tensor, axis: int, trailing: int) -> tuple[int, ...]:
    """The dimensions that a normalization is over: from ``axis`` on but for the last ``trailing`` ones."""
    require_input(x, "x", dtype=FLOATS)
    rank = len(x.shape)
    first = normal_axis(axis, rank)
    require(0 <= trailing < rank - first, "attribute 'trailing'", trailing, f"0 to {rank - first - 1}")
    return tuple(range(first, rank - trailing))


def _require_parameters(x: Tensor, axes: Ints, scale: Tensor | None, bias: Tensor | None) -> slice:
    """The part of an element's index at which its scale and bias lie. Refuses those of another shape or dtype."""
    own = slice(axes[0], axes[-1] + 1)
    for argument, t in (("scale", scale), ("bias", bias)):
        if t is not None:
            require_input(t, argument, shape=x.shape[own], dtype=(x.dtype,))
    return own


@operator
def group_norm(name: str, x: Tensor, scale: Tensor, bias: Tensor, *, groups: int, epsilon: float = 1e-5) -> Tensor:
    """Normalization of ``x`` [N, C, ...] over each group of channels and all positions; ``scale``, ``bias`` [C].

    Stages ``name.sum``, ``.mean``, ``.square``, ``.rstd``, all [N, groups]. Source: Wu and He 2018.
    """
    require_channels(x, scale=scale, bias=bias)
    channels = x.shape[1]
    require(groups > 0 and channels % groups == 0, "attribute 'groups'", groups, f"a divisor of {channels} channels")
    return _group_norm(name, x, scale, bias, channels // groups, epsilon)


@operator
def instance_norm(name: str, x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Normalization of each channel of ``x`` [N, C, ...] over its positions; ``scale``, ``bias`` [C]."""
    require_channels(x, scale=scale, bias=bias)
    return _group_norm(name, x, scale, bias, 1, epsilon)


def require_channels(x: Tensor, **parameters: Tensor) -> None:
    """Refuses an input without channels, and parameters that are not one number of its dtype for each of them."""
    require_input(x, "x", dtype=FLOATS)
    require(len(x.shape) >= 2, "input 'x'", f"shape {list(x.shape)}", "at least 2 dimensions, [N, C, ...]")
    for argument, t in parameters.items():
        require_input(t, argument, shape=(x.shape[1],), dtype=(x.dtype,))


def _group_norm(name: str, x: Tensor, scale: Tensor, bias: Tensor, per_group: int, epsilon: float) -> Tensor:
    shape = (x.shape[0], x.shape[1] // per_group)
    count = per_group
    for extent in x.shape[2:]:
        count *= extent

    def over_group(stage: str, fn: Callable[[Expr, Var, Var], Expr]) -> Tensor:
        def element(n: Var, g: Var) -> Expr:
            c = [reduce_axis(per_group, "c")] if per_group > 1 else []
            ks = [reduce_axis(extent, f"k{d}") for d, extent in enumerate(x.shape[2:])]
            channel = g * per_group + c[0].var if c else g
            value = fn(wide(x[(n, channel, *(k.var for k in ks))]), n, g)
            return sum_over(value, (*c, *ks)) if c or ks else value

        return compute(shape, element, stage)

    def deviation(value: Expr, n: Var, g: Var) -> Expr:
        centred = value - mean[n, g]
        return centred * centred

    total = over_group(f"{name}.sum", lambda value, n, g: value)
    mean = compute(shape, lambda n, g: total[n, g] / as_number(count, total.dtype), f"{name}.mean")
    square = over_group(f"{name}.square", deviation)
    number = as_number(count, square.dtype)
    rstd = compute(shape, lambda n, g: math("rsqrt", square[n, g] / number + epsilon), f"{name}.rstd")

    def element(*i: Expr) -> Expr:
        n, c = i[:2]
        value = (wide(x[i]) - mean[n, c // per_group]) * rstd[n, c // per_group]
        return affine(value, scale[c], bias[c], x.dtype)

    return compute(x.shape, element, name)


@declare(layout_affinity=1.0)
@operator
def batch_norm(
    name: str,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    frozen: bool = False,
) -> Tensor:
    """Inference form on ``x`` [N, C, ...] with statistics [C]: one multiplication and addition per element.

    ``momentum``: how far a step of training moves the statistics towards those of its batch; a ``frozen`` one computes
    with them as they are there too, and leaves them.

    ``name.scale`` and ``name.shift`` depend on the parameters only. Source: Ioffe and Szegedy 2015, algorithm 2.
    """
    require_channels(x, scale=scale, bias=bias, mean=mean, variance=variance)
    channels = (x.shape[1],)
    factor = compute(channels, lambda c: wide(scale[c]) * math("rsqrt", wide(variance[c]) + epsilon), f"{name}.scale")
    shift = compute(channels, lambda c: wide(bias[c]) - wide(mean[c]) * factor[c], f"{name}.shift")
    return compute(x.shape, lambda *i: cast(x.dtype, wide(x[i]) * factor[i[1]] + shift[i[1]]), name)


@declare(layout_affinity=1.0)
@operator
def lrn(name: str, x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    """``x / (bias + alpha / size * sum of squares over size neighbouring channels) ** beta`` (Krizhevsky et al. 2012).

    The window starts ``(size - 1) // 2`` channels before. Stage ``name.sum``.
    """
    require_input(x, "x", dtype=FLOATS)
    require(len(x.shape) >= 2, "input 'x'", f"shape {list(x.shape)}", "at least 2 dimensions, [N, C, ...]")
    require(size > 0, "attribute 'size'", size, "a positive integer")
    channels = x.shape[1]
    before, after = min((size - 1) // 2, channels), min(size // 2, channels)  # further ones do not exist

    def window(*i: Expr) -> Expr:
        k = reduce_axis(before + 1 + after, "k")
        channel = i[1] + k.var - before
        value = wide(x[(i[0], channel, *i[2:])])
        inside = all_of(channel >= 0, channel < channels)
        return sum_over(select(inside, value * value, 0), k)

    total = compute(x.shape, window, f"{name}.sum")

    def element(*i: Expr) -> Expr:
        return cast(x.dtype, wide(x[i]) * _inverse_power(total[i] * (alpha / size) + bias, beta))

    return compute(x.shape, element, name)


def _inverse_power(base: Expr, exponent: float) -> Expr:
    """``base ** -exponent`` for a positive base; by square roots where the exponent is a multiple of 1/4 below 1."""
    root = math("rsqrt", base)
    if exponent == 0.5:
        return root
    if exponent == 0.75:
        return root * math("sqrt", root)
    return math("pow", base, wrap(-exponent, base.dtype))


OPERATORS = (
    softmax, log_softmax, layer_norm, rms_norm, group_norm, instance_norm, batch_norm, lrn,
)  # fmt: skip

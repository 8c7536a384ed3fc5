"""Translators of ATen operators that are compositions of others: two-operand functions, order statistics, distances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.reduction import at_position, vector_norm

REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}

# --- two operands -----------------------------------------------------------------------------------------------------


def _pair(c: TorchContext, x: Any, other: Any) -> tuple[Ref, Ref]:
    return c.operand(x, c.out_dtype), c.operand(other, c.out_dtype)


def _negative(c: TorchContext, x: Ref) -> Ref:
    """Whether the sign is minus, also that of 0."""
    zero = c.scalar(0, x)
    below = c.add("less", c.add("div", c.scalar(1, x), x), zero)
    return c.add("logical_or", c.add("less", x, zero), below)


def _atan2(c: TorchContext, x: Any, other: Any) -> Ref:
    """The angle of the point (other, x), from an arc tangent of at most 1; the slope at the origin is 0."""
    y, x = _pair(c, x, other)
    infinite = c.add("logical_and", c.add("isinf", y), c.add("isinf", x))
    y, x = (c.add("where", infinite, c.add("sign", t), t) for t in (y, x))
    steep = c.add("greater", c.add("abs", y), c.add("abs", x))
    over, under = c.add("where", steep, x, y), c.add("where", steep, y, x)
    origin = c.add("equal", under, c.scalar(0, under))
    ratio = c.add("div", over, c.add("where", origin, c.scalar(1, under), under))
    angle = c.add("where", origin, c.add("stop_gradient", over), c.add("atan", ratio))  # over is 0 or NaN

    def signed(value: float) -> Ref:
        return c.add("where", _negative(c, y), c.scalar(-value, angle), c.scalar(value, angle))

    upright = c.add("sub", signed(math.pi / 2), angle)
    aside = c.add("where", _negative(c, x), signed(math.pi), c.add("where", origin, signed(0.0), c.scalar(0, angle)))
    return c.add("where", steep, upright, c.add("add", angle, aside))


def _hypot(c: TorchContext, x: Any, other: Any) -> Ref:
    """The root of the sum of squares, which cannot overflow: both are divided by the greater first.

    It is infinite where one of both is, be the other NaN (C99, F.10.4.3).
    """
    a, b = _pair(c, x, other)
    top = c.add("maximum", c.add("abs", a), c.add("abs", b))
    plain = c.add("logical_or", c.add("isinf", top), c.add("equal", top, c.scalar(0, top)))
    scale = c.add("stop_gradient", c.add("where", plain, c.scalar(1, top), top))
    squares = [c.add("mul", part, part) for part in (c.add("div", t, scale) for t in (a, b))]
    y = c.add("mul", scale, c.add("sqrt", c.add("add", *squares)))
    infinite = c.add("logical_and", c.add("isnan", y), c.add("logical_or", c.add("isinf", a), c.add("isinf", b)))
    return c.add("where", infinite, c.scalar(math.inf, y), y)


def _logaddexp(base: float, c: TorchContext, x: Any, other: Any) -> Ref:
    return c.add("logaddexp", *_pair(c, x, other), base=base)


def _copysign(c: TorchContext, x: Any, other: Any) -> Ref:
    a, b = _pair(c, x, other)
    size = c.add("abs", a)
    return c.add("where", _negative(c, b), c.add("neg", size), size)


def _fextreme(op: str, c: TorchContext, x: Any, other: Any) -> Ref:
    """The greater or lesser, of a number and NaN the number; of equal ones the first has the gradient."""
    a, b = _pair(c, x, other)
    return c.add("where", c.add("logical_or", c.add(op, a, b), c.add("isnan", b)), a, b)


# --- order statistics and running products ----------------------------------------------------------------------------


def _kth(c: TorchContext, x: Ref, k: int, dim: int = -1, keepdim: bool = False) -> list[Ref]:
    """The k-th smallest along ``dim``, and its position."""
    if not c.rank(x):
        return [c.add("identity", x), c.constant(0, "int64")]
    axis = c.axis(x, dim)
    order = c.add_many("sort", x, axis=axis, descending=False)[1]
    place = c.reshape(c.slice(order, axis, k - 1, 1), c.out_shape)
    return [at_position(c, x, dim, place), place]


def _median(c: TorchContext, x: Ref, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of two in the middle, NaN where there is one. Of all: elements that equal it share the gradient."""
    if dim is None:
        flat = c.flat(x)
        place = _middle(c, flat, 0)
        value = c.add("stop_gradient", c.reshape(c.add("gather_elements", flat, place, axis=0), ()))
        return _shared(c, flat, value) if c.is_real(x) else value
    if not c.rank(x):
        return [c.add("identity", x), c.constant(0, "int64")]
    place = c.reshape(_middle(c, x, c.axis(x, dim)), c.out_shape)
    return [at_position(c, x, dim, place), place]


def _middle(c: TorchContext, x: Ref, axis: int) -> Ref:
    """The position of the median along ``axis``, kept."""
    order = c.add_many("sort", x, axis=axis, descending=False)[1]
    place = c.slice(order, axis, (c.shape(x)[axis] - 1) // 2, 1)
    if not c.is_real(x):
        return place
    nan = c.add("reduce_max", c.add("isnan", x), axes=(axis,), keepdims=True)
    return c.add("where", nan, c.add("argmax", x, axis=axis, keepdims=True), place)


def _shared(c: TorchContext, x: Ref, value: Ref) -> Ref:
    """``value``, of which all elements of ``x`` that equal it have the same part of the gradient."""
    same = c.add("logical_or", c.add("equal", x, value), c.add("logical_and", c.add("isnan", x), c.add("isnan", value)))
    count = c.add("reduce_sum", c.cast(same, c.dtype(x)), keepdims=False)
    none = c.add("where", c.add("less", c.add("abs", x), c.scalar(math.inf, x)), c.add("stop_gradient", x),
                 c.scalar(0, x))  # fmt: skip
    moved = c.add("where", same, c.add("sub", x, none), c.scalar(0, x))
    total = c.add("div", c.add("reduce_sum", moved, keepdims=False), count)
    return c.add("add", value, total)


def _cumprod(c: TorchContext, x: Ref, dim: int, dtype: Any = None) -> Ref:
    return c.add("cumprod", c.real(x), axis=c.axis(x, dim)) if c.rank(x) else c.add("identity", c.real(x))


# --- windows, distances, writes ---------------------------------------------------------------------------------------


def _unfold(c: TorchContext, x: Ref, dimension: int, size: int, step: int) -> Ref:
    """Windows along a dimension, their elements in a last one."""
    axis = c.axis(x, dimension)
    count = (c.shape(x)[axis] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    y = c.add("gather", x, c.constant(places, "int64"), axis=axis)
    return c.transpose(y, [d for d in range(c.rank(y)) if d != axis + 1] + [axis + 1])


def _cdist(c: TorchContext, x1: Ref, x2: Ref, p: float, compute_mode: int | None = None) -> Ref:
    """Distances of all rows of one tensor from all of the other."""
    *lead, rows, features = c.shape(x1)
    *others, columns, _ = c.shape(x2)
    left, right = c.reshape(x1, (*lead, rows, 1, features)), c.reshape(x2, (*others, 1, columns, features))
    return vector_norm(c, c.add("sub", left, right), p, -1)


def _scatter_reduce(
    c: TorchContext, x: Ref, dim: int, index: Ref, src: Ref, reduce: str, include_self: bool = True
) -> Ref:
    """Elements of ``src`` reduced into those of ``x`` along ``dim``."""
    axis, shape, op = c.axis(x, dim), c.shape(index), REDUCTIONS[reduce]
    values = c.add("slice", src, starts=(0,) * len(shape), extents=shape) if c.shape(src) != shape else src
    ones = c.expand(c.scalar(1, x), shape)
    count = c.add("scatter_elements", c.expand(c.scalar(0, x), c.shape(x)), index, ones, axis=axis, reduction="add")
    if not include_self:
        kind = np.inf if c.is_real(x) else None
        least = {"add": 0, "mul": 1, "max": -np.inf, "min": np.inf}[op]
        if kind is None and op in ("max", "min"):
            c.refuse("include_self", False, "True where integers are compared")
        x = c.add("where", c.add("greater", count, c.scalar(0, count)), c.scalar(least, x), x)
    y = c.add("scatter_elements", x, index, values, axis=axis, reduction=op)
    if reduce != "mean":
        return y
    count = c.add("add", count, c.scalar(1, count)) if include_self else c.add("maximum", count, c.scalar(1, count))
    return c.add("div", y, count)


TRANSLATORS: Mapping[str, Translator] = {
    "aten.atan2": _atan2, "aten.hypot": _hypot, "aten.copysign": _copysign,
    "aten.logaddexp": partial(_logaddexp, math.e), "aten.logaddexp2": partial(_logaddexp, 2.0),
    "aten.fmax": partial(_fextreme, "greater_equal"), "aten.fmin": partial(_fextreme, "less_equal"),
    "aten.kthvalue": _kth, "aten.median": _median, "aten.cumprod": _cumprod, "aten.unfold": _unfold,
    "aten._cdist_forward": _cdist, "aten.scatter_reduce": _scatter_reduce,
}  # fmt: skip

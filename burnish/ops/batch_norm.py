"""Batch normalization by the batch's own statistics, and the sums over planes that it and its gradient are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from burnish.loops.expr import Expr, Var, cast, equal, math, select
from burnish.loops.sizes import dims_of
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.normalize import affine, require_channels
from burnish.ops.operator import (
    DERIVED,
    Application,
    Shape,
    accumulator_dtype,
    composed,
    differentiated,
    internal,
    operator,
    require,
    require_input,
    wide,
)
from burnish.ops.reduce import as_number, reduce_stage


def _over_plane(x: Tensor, name: str, value: Callable[..., Expr]) -> Tensor:
    """The stage [N, C] that sums ``value``, of the index of an element of ``x`` [N, C, ...], over all but N and C."""

    def element(n: Var, c: Var) -> Expr:
        ks = tuple(reduce_axis(extent, f"k{d}") for d, extent in enumerate(x.shape[2:]))
        term = value(n, c, *(k.var for k in ks))
        return sum_over(term, ks) if ks else term

    return compute(x.shape[:2], element, name)


def _pair(name: str, first: Tensor, second: Tensor) -> Tensor:
    """Both tensors [N, C] as one, [2, N, C]."""
    return compute((2, *first.shape), lambda k, n, c: select(equal(k, 0), first[n, c], second[n, c]), name)


@operator
def plane_moments(name: str, x: Tensor) -> Tensor:
    """The mean of each plane of ``x`` [N, C, ...], and the sum of the squares of deviations from it: [2, N, C]."""
    require(len(x.shape) >= 2, "input 'x'", f"shape {list(x.shape)}", "at least 2 dimensions, [N, C, ...]")
    require_input(x, "x", dtype=("float32", "float64"))
    count = as_number(prod(x.shape[2:]), x.dtype)
    total = _over_plane(x, f"{name}.sum", lambda *i: x[i])
    mean = compute(total.shape, lambda n, c: total[n, c] / count, f"{name}.mean")
    square = _over_plane(x, f"{name}.square", lambda *i: (x[i] - mean[i[:2]]) * (x[i] - mean[i[:2]]))
    return _pair(name, mean, square)


@operator
def plane_products(name: str, y: Tensor, x: Tensor, mean: Tensor) -> Tensor:
    """The sum of each plane of ``y`` [N, C, ...], and that of its products with ``x - mean[c]``: [2, N, C]."""
    require(len(x.shape) >= 2, "input 'x'", f"shape {list(x.shape)}", "at least 2 dimensions, [N, C, ...]")
    require_input(y, "y", dtype=("float32", "float64"))
    for argument, t, shape in (("x", x, y.shape), ("mean", mean, y.shape[1:2])):
        require_input(t, argument, shape=shape, dtype=(y.dtype,))
    total = _over_plane(y, f"{name}.sum", lambda *i: y[i])
    products = _over_plane(y, f"{name}.products", lambda *i: y[i] * (x[i] - mean[i[1]]))
    return _pair(name, total, products)


def _halves(a: Application, pair: str, shape: Shape) -> tuple[str, str]:
    """The two parts of a tensor [2, ...], each of ``shape``."""
    rest = (0,) * len(shape)
    first, second = (a.add("slice", pair, starts=(k, *rest), extents=(1, *shape)) for k in (0, 1))
    return a.add("reshape", first, shape=shape), a.add("reshape", second, shape=shape)


def _normalization_parts(a: Application) -> Sequence[str] | None:
    """Moments of planes, which are read once, those of the batch by theirs (Chan et al. 1979), and an affine map."""
    x, scale, bias = a.inputs
    (shape, dtype), planes = a.types[0], a.types[0][0][:2]
    inside = tuple(range(2, len(shape)))
    if len(shape) < 3 or dtype not in ("float32", "float64") or 0 in shape:
        return None
    mean, square = _halves(a, a.add("plane_moments", x), planes)
    whole = a.add("reduce_mean", mean, axes=(0,), keepdims=False)
    apart = a.add("sub", mean, whole)
    between = a.add("mul", a.add("mul", apart, apart), a.emit.count(x, dtype, inside))
    total = a.add("reduce_sum", a.add("add", square, between), axes=(0,), keepdims=False)
    variance = a.add("div", total, a.emit.count(x, dtype, (0, *inside)))
    factor = a.add("mul", scale, _reciprocal_deviation(a, variance, dtype))
    shift = a.add("sub", bias, a.add("mul", whole, factor))
    y = a.add("add", a.add("mul", x, _by_channel(a, factor)), _by_channel(a, shift))
    return [y, whole, variance]


def _reciprocal_deviation(a: Application, variance: str, dtype: str) -> str:
    stable = a.add("add", variance, a.emit.constant(a.attrs["epsilon"], dtype=dtype))
    return a.add("reciprocal", a.add("sqrt", stable))


def _by_channel(a: Application, vector: str) -> str:
    """A vector [C] as it broadcasts with the first input, [N, C, ...]."""
    shape = a.types[0][0]
    return a.add("reshape", vector, shape=(shape[1], *(1,) * (len(shape) - 2)))


def _normalization_gradient(a: Application) -> list[str | None]:
    """Batch normalization's gradient by two sums a channel, of the adjoint and of its product with the deviations
    (Ioffe and Szegedy 2015).
    """
    x, scale, _ = a.inputs
    (shape, dtype), seed = a.types[0], a.seeds[0]
    if seed is None or a.seeds[1:] != (None, None) or dtype not in ("float32", "float64"):
        return [DERIVED] * 3
    mean, variance = a.outputs[1:]
    found = a.add("reduce_sum", a.add("plane_products", seed, x, mean), axes=(1,), keepdims=False)
    total, products = _halves(a, found, (shape[1],))
    rstd = _reciprocal_deviation(a, variance, dtype)
    normal = a.add("mul", products, rstd)
    if not a.wanted[0]:
        return [None, normal, total]
    factor = a.add("mul", scale, rstd)
    axes = tuple(d for d in range(len(shape)) if d != 1)
    if dims_of(shape):
        share = a.add("div", a.add("neg", factor), a.emit.count(x, dtype, axes))
    else:
        share = a.add("mul", factor, a.emit.constant(-1.0 / prod(shape[d] for d in axes), dtype=dtype))
    slope = a.add("mul", share, a.add("mul", normal, rstd))
    centred = a.add("sub", x, _by_channel(a, mean))
    moved = a.add("add", a.add("mul", centred, _by_channel(a, slope)), _by_channel(a, a.add("mul", share, total)))
    return [a.add("add", a.add("mul", seed, _by_channel(a, factor)), moved), normal, total]


@differentiated(_normalization_gradient)
@composed(_normalization_parts)
@operator
def batch_norm_training(
    name: str, x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Training form on ``x`` [N, C, ...]: normalized by the batch's own statistics, which are the other two results.

    Mean and variance [C] are over all but the channels, the variance biased. Stages ``name.sum``, ``.square``,
    ``.rstd``. Source: Ioffe and Szegedy 2015, algorithm 1.
    """
    require_channels(x, scale=scale, bias=bias)
    axes = tuple(d for d in range(len(x.shape)) if d != 1)
    count = as_number(prod(x.shape[d] for d in axes), accumulator_dtype(x.dtype))
    total = reduce_stage(f"{name}.sum", "sum", x.shape, axes, lambda *i: wide(x[i]), keepdims=False)
    mean = compute(total.shape, lambda c: total[c] / count, f"{name}.mean")

    def deviation(*i: Expr) -> Expr:
        centred = wide(x[i]) - mean[i[1]]
        return centred * centred

    square = reduce_stage(f"{name}.square", "sum", x.shape, axes, deviation, keepdims=False)
    rstd = compute(total.shape, lambda c: math("rsqrt", square[c] / count + epsilon), f"{name}.rstd")

    def element(*i: Expr) -> Expr:
        return affine((wide(x[i]) - mean[i[1]]) * rstd[i[1]], scale[i[1]], bias[i[1]], x.dtype)

    result = compute(x.shape, element, f"{name}.0")
    batch_mean = compute(total.shape, lambda c: cast(x.dtype, mean[c]), f"{name}.1")
    return result, batch_mean, compute(total.shape, lambda c: cast(x.dtype, square[c] / count), f"{name}.2")


OPERATORS = (batch_norm_training, *internal(plane_moments, plane_products))

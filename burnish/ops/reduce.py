"""Reductions over axes, and positions of extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burnish.loops.expr import FLOATS, Expr, Reduce, cast, equal, math, select, wrap
from burnish.loops.reduction import identity
from burnish.loops.sizes import is_size
from burnish.loops.tensor import HALVES, Tensor, argreduce, compute, reduce_axis
from burnish.ops.elementwise import absolute, truncated_quotient
from burnish.ops.operator import (
    NUMBERS,
    Application,
    Composed,
    Ints,
    Operator,
    Shape,
    accumulator_dtype,
    declare,
    differentiated,
    internal,
    named_operator,
    normal_axes,
    normal_axis,
    operator,
    require,
    require_input,
    wide,
)

Element = Callable[[Expr], Expr]


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """The shape after reducing ``axes``, kept with extent 1 or dropped."""
    return tuple(1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes)


def reduce_stage(
    name: str,
    kind: str,
    shape: Shape,
    axes: Sequence[int],
    body: Callable[..., Expr],
    keepdims: bool = True,
) -> Tensor:
    """The stage that reduces ``body(*index)``, index over ``shape``, along ``axes`` (reduction variables k0, k1…)."""

    def element(*i: Expr) -> Expr:
        ks = {axis: reduce_axis(shape[axis], f"k{n}") for n, axis in enumerate(axes)}
        spatial = iter(i)
        index = []
        for d in range(len(shape)):
            own = next(spatial) if keepdims or d not in ks else None
            index.append(ks[d].var if d in ks else own)
        value = body(*index)
        return Reduce(kind, value, tuple(ks.values())) if ks else value

    return compute(reduced_shape(shape, axes, keepdims), element, name)


# --- sum, mean and their kin ------------------------------------------------------------------------------------------


def _reduction(
    name: str, kind: str, dtypes: tuple[str, ...], before: Element, after: Callable[[Expr, int], Expr] | None
) -> Operator:
    """The operator ``after(kind over axes of before(x), number of elements reduced)``."""

    def define(stage: str, x: Tensor, *, axes: Ints | None = None, keepdims: bool = True) -> Tensor:
        require_input(x, "x", dtype=dtypes)
        normal = normal_axes(axes, len(x.shape))
        count = 1
        for a in normal:
            count *= x.shape[a]
        exact = kind in ("max", "min")
        narrow = not exact and accumulator_dtype(x.dtype) != x.dtype

        def element(*i: Expr) -> Expr:
            return before(x[i] if exact else wide(x[i]))

        if after is None and not narrow:
            return reduce_stage(stage, kind, x.shape, normal, element, keepdims)
        total = reduce_stage(f"{stage}.{kind}", kind, x.shape, normal, element, keepdims)
        finish = after or (lambda e, _: e)
        return compute(total.shape, lambda *i: cast(x.dtype, finish(total[i], count)), stage)

    return named_operator(name, define, f"{name.removeprefix('reduce_')} over ``axes`` (all for None).")


def _same(x: Expr) -> Expr:
    return x


def _square(x: Expr) -> Expr:
    return x * x


def as_number(count: int, dtype: str) -> Expr:
    """A number of elements, which an open dimension may decide, as ``dtype``."""
    return cast(dtype, wrap(count)) if is_size(count) else wrap(count, dtype)


def _mean(total: Expr, count: int) -> Expr:
    """The sum divided by the count; of integers truncated, as onnxruntime does."""
    number = as_number(count, total.dtype)
    return total / number if total.dtype in FLOATS else truncated_quotient(total, number)


def _root(total: Expr, _: int) -> Expr:
    """The square root, whose slope at 0 is 0: that of a norm, of all directions the middle."""
    return select(equal(total, 0.0), 0.0, math("sqrt", total))


def _mean_of_attained(a: Application) -> list[str | None]:
    """An extreme as the mean of all elements that attain it: its gradient is shared, as that of PyTorch's ``amax``."""
    (shape, dtype), keepdims = a.types[0], a.attrs["keepdims"]
    axes = normal_axes(a.attrs["axes"], len(shape))
    kept = tuple(1 if d in axes else n for d, n in enumerate(shape))
    extreme = a.outputs[0] if keepdims else a.add("reshape", a.outputs[0], shape=kept)
    attained = a.add("cast", a.add("equal", a.inputs[0], extreme), to=dtype)
    share = a.add("div", attained, a.add("reduce_sum", attained, axes=axes, keepdims=True))
    return [a.add("reduce_sum", a.add("mul", a.inputs[0], share), axes=axes, keepdims=keepdims)]


REDUCTIONS = (
    _reduction("reduce_sum", "sum", NUMBERS, _same, None),
    _reduction("reduce_prod", "prod", NUMBERS, _same, None),
    differentiated(Composed(_mean_of_attained))(_reduction("reduce_max", "max", (*NUMBERS, "bool"), _same, None)),
    differentiated(Composed(_mean_of_attained))(_reduction("reduce_min", "min", (*NUMBERS, "bool"), _same, None)),
    declare(layout_affinity=1.0)(_reduction("reduce_mean", "sum", NUMBERS, _same, _mean)),
    _reduction("reduce_l1", "sum", NUMBERS, absolute, None),
    _reduction("reduce_l2", "sum", FLOATS, _square, _root),
    _reduction("reduce_sumsq", "sum", NUMBERS, _square, None),
)


def _sum_of_shares(a: Application) -> list[str | None] | None:
    """A sum of x times their shares ``exp(x - y)``, which count as constant; of halves, whose y is rounded, None."""
    (shape, dtype), keepdims = a.types[0], a.attrs["keepdims"]
    if dtype in HALVES:
        return None
    axes = normal_axes(a.attrs["axes"], len(shape))
    y = a.outputs[0] if keepdims else a.add("reshape", a.outputs[0], shape=reduced_shape(shape, axes, True))
    share = a.add("stop_gradient", a.add("exp", a.add("sub", a.inputs[0], y)))
    return [a.add("reduce_sum", a.add("mul", a.inputs[0], share), axes=axes, keepdims=keepdims)]


@differentiated(Composed(_sum_of_shares))
@operator
def reduce_logsumexp(name: str, x: Tensor, *, axes: Ints | None = None, keepdims: bool = True) -> Tensor:
    """``log(sum(exp(x)))`` over ``axes`` (all for None), safe from overflow. Stages ``name.max``, ``name.sum``."""
    require_input(x, "x", dtype=FLOATS)
    normal = normal_axes(axes, len(x.shape))
    top = reduce_stage(f"{name}.max", "max", x.shape, normal, lambda *i: wide(x[i]))

    def shift(i: tuple[Expr | int, ...]) -> Expr:
        """The maximum where it is finite: an infinite one would give inf - inf."""
        largest = top[i]
        return select(math("abs", largest) < identity("min", top.dtype), largest, 0.0)

    def exponential(*i: Expr) -> Expr:
        return math("exp", wide(x[i]) - shift(row_index(i, normal)))

    total = reduce_stage(f"{name}.sum", "sum", x.shape, normal, exponential)

    def element(*i: Expr) -> Expr:
        spatial = iter(i)
        full = tuple(0 if d in normal and not keepdims else next(spatial) for d in range(len(x.shape)))
        return cast(x.dtype, math("log", total[full]) + shift(full))

    return compute(reduced_shape(x.shape, normal, keepdims), element, name)


def row_index(index: Sequence[Expr], axes: Sequence[int]) -> tuple[Expr | int, ...]:
    """``index`` with 0 at ``axes``: where a keepdims statistic of the row of ``index`` lies."""
    return tuple(0 if d in axes else i for d, i in enumerate(index))


# --- positions --------------------------------------------------------------------------------------------------------


def _arg(name: str, kind: str) -> Operator:
    def define(stage: str, x: Tensor, *, axis: int = 0, keepdims: bool = True, last: bool = False) -> Tensor:
        require_input(x, "x", dtype=NUMBERS)
        dim = normal_axis(axis, len(x.shape))
        require(x.shape[dim] > 0, "input 'x'", f"shape {list(x.shape)}", f"at least one element along axis {dim}")
        if keepdims:
            return argreduce(x, dim, kind, stage, last)
        index = argreduce(x, dim, kind, f"{stage}.index", last)
        shape = reduced_shape(x.shape, (dim,), False)
        return compute(shape, lambda *i: index[(*i[:dim], 0, *i[dim:])], stage)

    return named_operator(name, define, f"First (or ``last``) position of the {kind} along ``axis``, or of NaN; int64.")


ARG_REDUCTIONS = (_arg("argmax", "max"), _arg("argmin", "min"))


@operator
def true_interval(name: str, x: Tensor) -> Tensor:
    """The first place along the last axis where ``x`` holds, and the one behind the last, as int32 [..., 2]; where it
    holds nowhere, all of the axis.
    """
    require_input(x, "x", dtype=("bool",))
    *lead, extent = x.shape
    require(bool(x.shape) and extent > 0, "input 'x'", f"shape {list(x.shape)}", "at least one element")

    def reach(*i: Expr) -> Expr:
        """Distance of the first place from the other end, of the last one from the beginning; 0 where there is none."""
        k = reduce_axis(extent, "k")
        own = select(equal(i[-1], 0), extent - k.var, k.var + 1)
        return Reduce("max", select(x[(*i[:-1], k.var)], cast("int32", own), wrap(0, "int32")), (k,))

    found = compute((*lead, 2), reach, f"{name}.reach")

    def end(*i: Expr) -> Expr:
        return select(equal(i[-1], 0), (extent - found[i]) % extent, (found[i] + (extent - 1)) % extent + 1)

    return compute((*lead, 2), end, name)


OPERATORS = (*REDUCTIONS, reduce_logsumexp, *ARG_REDUCTIONS, *internal(true_interval))

"""Running reductions along an axis (prefix scans): sums, extremes, logarithms of sums of exponentials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from burnish.loops.expr import FLOATS, Expr, Reduce, cast, math, maximum, minimum, select
from burnish.loops.reduction import identity
from burnish.loops.tensor import HALVES, Tensor, compute, reduce_axis
from burnish.ops.operator import (
    NUMBERS,
    Application,
    Composed,
    Operator,
    Shape,
    differentiated,
    named_operator,
    normal_axis,
    operator,
    require_input,
    wide,
)
from burnish.ops.terms import GraphTerm

BLOCK = 8  # elements that are combined one by one
Element = Callable[..., Expr]
Join = Callable[[Expr, Expr], Expr]


@operator
def cumsum(name: str, x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sum along ``axis``; ``exclusive`` leaves the element itself out, ``reverse`` runs from the end."""
    require_input(x, "x", dtype=NUMBERS)
    dim = normal_axis(axis, len(x.shape))
    n = x.shape[dim]

    halves = x.dtype in HALVES

    def element(*i: Expr) -> Expr:
        own = x[(*i[:dim], n - 1 - i[dim], *i[dim + 1 :])] if reverse else x[i]
        return wide(own) if halves else own

    direct = not (exclusive or reverse or halves)
    total = _running(name if direct else f"{name}.total", x.shape, dim, element, *_SUM)
    if direct:
        return total

    def moved(*i: Expr) -> Expr:
        place = n - 1 - i[dim] if reverse else i[dim]
        before = total[(*i[:dim], place - 1 if exclusive else place, *i[dim + 1 :])]
        return cast(x.dtype, select(place > 0, before, 0) if exclusive else before)

    return compute(x.shape, moved, name)


def _logs(a: Expr, b: Expr) -> Expr:
    """``log(exp(a) + exp(b))``, without overflow."""
    top = maximum(a, b)
    finite = select(math("abs", top) < float("inf"), top, 0.0)
    return math("log", math("exp", a - finite) + math("exp", b - finite)) + finite


Scan = Callable[[str, Shape, int, Element], Tensor]


def _up_to(kind: str, name: str, shape: Shape, dim: int, element: Element) -> Tensor:
    """The reductions of the elements up to each along ``dim``, every one on its own."""

    def result(*i: Expr) -> Expr:
        k = reduce_axis(shape[dim], "k")
        value = element(*i[:dim], k.var, *i[dim + 1 :])
        return Reduce(kind, select(k.var <= i[dim], value, identity(kind, value.dtype)), (k,))

    return compute(shape, result, name)


def _log_up_to(name: str, shape: Shape, dim: int, element: Element) -> Tensor:
    """The logarithms of sums of exponentials up to each along ``dim``, relative to the greatest so far."""
    top = _up_to("max", f"{name}.max", shape, dim, element)

    def shift(i: Sequence[Expr]) -> Expr:
        largest = top[tuple(i)]
        return select(math("abs", largest) < float("inf"), largest, 0.0)

    def total(*i: Expr) -> Expr:
        k = reduce_axis(shape[dim], "k")
        value = math("exp", element(*i[:dim], k.var, *i[dim + 1 :]) - shift(i))
        return Reduce("sum", select(k.var <= i[dim], value, 0.0), (k,))

    sums = compute(shape, total, f"{name}.sum")
    return compute(shape, lambda *i: math("log", sums[i]) + shift(i), name)


def _scan(kind: str) -> Scan:
    return lambda name, shape, dim, element: _up_to(kind, name, shape, dim, element)


_SUM: tuple[Scan, str, Join] = (_scan("sum"), "sum", lambda a, b: a + b)
_MAX: tuple[Scan, str, Join] = (_scan("max"), "max", maximum)
_MIN: tuple[Scan, str, Join] = (_scan("min"), "min", minimum)
_LOG: tuple[Scan, str, Join] = (_log_up_to, "max", _logs)  # whose neutral element is that of a maximum


def _running(name: str, shape: Shape, dim: int, element: Element, scan: Scan, kind: str, join: Join) -> Tensor:
    """The combinations of the elements up to each, along ``dim``: within blocks, and of the blocks before.

    So an element takes ``BLOCK`` steps, however many there are. Stages ``name.within``, ``name.blocks``, ``name``.
    ``kind``: the reduction with the same neutral element.
    """
    n = shape[dim]
    blocks = 1 if n <= 2 * BLOCK else -(-n // BLOCK)
    if blocks == 1:
        return scan(name, shape, dim, element)

    def inside(*i: Expr) -> Expr:
        place = i[dim] * BLOCK + i[dim + 1]
        value = element(*i[:dim], place, *i[dim + 2 :])
        return value if blocks * BLOCK == n else select(place < n, value, identity(kind, value.dtype))

    divided = (*shape[:dim], blocks, BLOCK, *shape[dim + 1 :])
    within = scan(f"{name}.within", divided, dim + 1, inside)
    whole = (*shape[:dim], blocks, *shape[dim + 1 :])

    def last(*i: Expr) -> Expr:
        return within[(*i[: dim + 1], BLOCK - 1, *i[dim + 1 :])]

    carried = _running(f"{name}.blocks", whole, dim, last, scan, kind, join)

    def joined(*i: Expr) -> Expr:
        block, own = i[dim] // BLOCK, within[(*i[:dim], i[dim] // BLOCK, i[dim] % BLOCK, *i[dim + 1 :])]
        return select(block > 0, join(own, carried[(*i[:dim], block - 1, *i[dim + 1 :])]), own)

    return compute(shape, joined, name)


# --- extremes ---------------------------------------------------------------------------------------------------------


def running_place(a: Application, number: int = 0) -> GraphTerm:
    """Position of a running extreme (cummax, cummin): the last so far that attains it, or holds a NaN (int64)."""
    (shape, dtype), axis = a.types[number], normal_axis(a.attrs["axis"], len(a.types[number][0]))
    x, y = GraphTerm.of(a, number), GraphTerm(a, a.outputs[0], dtype)
    attained = x.apply("equal", y, dtype="bool")
    if dtype.startswith(("float", "bfloat")):
        attained = attained | x.apply("isnan", dtype="bool")
    column = [n if d == axis else 1 for d, n in enumerate(shape)]
    places = GraphTerm.places(a, shape[axis]).reshape(*column).expand(*shape)
    return attained.choose(places, 0).apply("cummax", axis=axis)


def _read(a: Application) -> list[str | None]:
    """The values, read at the positions that they come from."""
    return [GraphTerm.of(a, 0).apply("gather_elements", running_place(a), axis=a.attrs["axis"]).name]


def _extreme(name: str, words: str, way: tuple[Scan, str, Join]) -> Operator:
    def define(stage: str, x: Tensor, *, axis: int) -> Tensor:
        require_input(x, "x", dtype=NUMBERS)
        return _running(stage, x.shape, normal_axis(axis, len(x.shape)), lambda *i: x[i], *way)

    text = f"Running {words} along ``axis``; NaN from the first one on. Of equal ones the last has the gradient."
    return differentiated(Composed(_read))(named_operator(name, define, text))


EXTREMES = (_extreme("cummax", "maximum", _MAX), _extreme("cummin", "minimum", _MIN))

# --- logarithms of sums -----------------------------------------------------------------------------------------------


def _logs_gradient(a: Application) -> list[str | None]:
    """``sum over later i of dy_i exp(x - y_i)``, of positive and of negative ``dy`` by logarithms: y may be large."""
    assert a.seeds[0] is not None
    x, y, seed = GraphTerm.of(a, 0), GraphTerm(a, a.outputs[0], a.types[0][1]), GraphTerm(a, a.seeds[0], a.types[0][1])
    nothing = y.apply("equal", -np.inf, dtype="bool")  # it passes no gradient on

    def part(amount: GraphTerm) -> GraphTerm:
        size = (amount > 0.0).choose(amount, 1.0).apply("log") - nothing.choose(y * 0.0, y)
        size = ((amount > 0.0) & nothing.apply("logical_not")).choose(size, -np.inf)
        later = size.apply("logcumsumexp", axis=a.attrs["axis"], reverse=not a.attrs["reverse"])
        return (x + later).apply("exp")

    return [(part(seed) - part(seed.apply("neg"))).name]


@differentiated(_logs_gradient)
@operator
def logcumsumexp(name: str, x: Tensor, *, axis: int, reverse: bool = False) -> Tensor:
    """``log`` of the running sum of ``exp(x)`` along ``axis``, safe from overflow; ``reverse`` runs from the end."""
    require_input(x, "x", dtype=FLOATS)
    dim = normal_axis(axis, len(x.shape))
    n = x.shape[dim]

    def element(*i: Expr) -> Expr:
        return wide(x[(*i[:dim], n - 1 - i[dim], *i[dim + 1 :])] if reverse else x[i])

    if not reverse and x.dtype not in HALVES:
        return _running(name, x.shape, dim, element, *_LOG)
    total = _running(f"{name}.total", x.shape, dim, element, *_LOG)
    return compute(
        x.shape,
        lambda *i: cast(x.dtype, total[(*i[:dim], n - 1 - i[dim], *i[dim + 1 :])] if reverse else total[i]),
        name,
    )


OPERATORS = (cumsum, *EXTREMES, logcumsumexp)

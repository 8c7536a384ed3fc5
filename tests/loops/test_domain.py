"""What inputs may be follows from where definitions use them."""

from __future__ import annotations

from math import inf

import pytest

from burnish.loops import tensor
from burnish.loops.domain import domains
from burnish.loops.expr import Cast, Expr, cast, equal, math, maximum, minimum, select
from burnish.loops.tensor import Tensor, compute, placeholder, reduce_axis

DATA = placeholder((10, 6), "float32", "data")
AT = placeholder((4,), "int64", "at")
X = placeholder((4,), "float32", "x")
N = placeholder((4,), "int32", "n")
M = placeholder((4,), "int32", "m")


def made(shape: tuple[int, ...], fn: object) -> Tensor:
    return compute(shape, fn, "y")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (lambda v: v, (0, 9)),
        (lambda v: v + 3, (-3, 6)),
        (lambda v: 12 - v, (3, 12)),
        (lambda v: v * 2, (0, 4)),
        (lambda v: v // 4, (0, 39)),
        (lambda v: v % 16, (0, 9)),
        (lambda v: v % 4, None),  # whatever it is
        (lambda v: maximum(v, 0 - v), (0, 9)),
        (lambda v: select(v < 0, v + 10, v), (0, 9)),  # negative ones count from the end
        (lambda v: maximum(minimum(v, 9), 0), (0, 9)),
    ],
)
def test_a_position_is_within_what_it_selects_in(position, expected) -> None:
    y = made((4, 6), lambda i, j: DATA[position(AT[i]), j])
    assert domains([y]) == ({} if expected is None else {"at": expected})


def test_a_window_of_positions_leaves_room_for_the_window() -> None:
    assert domains([made((4, 3), lambda i, k: DATA[AT[i] + k, 0])]) == {"at": (0, 7)}


def test_the_narrowest_of_several_uses_counts() -> None:
    assert domains([made((4,), lambda i: DATA[AT[i], AT[i]])]) == {"at": (0, 5)}


def test_a_position_that_an_earlier_stage_computes() -> None:
    inner = compute((4,), lambda i: cast("int64", N[i]) + cast("int64", M[i]), "inner")
    assert domains([made((4, 6), lambda i, j: DATA[inner[i], j])]) == {"n": (0, 4), "m": (0, 4)}


def test_terms_of_a_sum_take_their_share() -> None:
    k = reduce_axis(3)
    wide = placeholder((4, 3), "int64", "wide")
    total = compute((4,), lambda i: tensor.sum(wide[i, k.var], k), "total")
    assert domains([made((4, 6), lambda i, j: DATA[total[i], j])]) == {"wide": (0, 3)}


def test_what_is_compared_with_a_position_is_one() -> None:
    assert domains([made((4, 7), lambda i, j: select(equal(AT[i], j), X[i], 0.0))]) == {"at": (0, 6)}
    assert domains([made((4,), lambda i: select(N[i] > 0, X[i], 0.0))]) == {}


@pytest.mark.parametrize("op", ["//", "%"])
def test_divisors_of_integers_are_not_zero(op) -> None:
    y = made((4,), lambda i: N[i] // M[i] if op == "//" else N[i] % M[i])
    assert domains([y]) == {"m": (1, inf)}
    whole = made((4,), lambda i: N[i] // (M[i] // 3) if op == "//" else N[i] % (M[i] % 5))
    assert domains([whole]) == {"m": (3, inf) if op == "//" else (1, 4)}
    guarded = made((4,), lambda i: N[i] // select(equal(M[i], 0), 1, M[i]))  # type: ignore[arg-type]
    assert domains([guarded]) == {"m": (1, inf)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda v: math("log", v), {"x": (0.5, inf)}),
        (lambda v: math("sqrt", v + 1.0), {"x": (-0.5, inf)}),
        (lambda v: math("log", (1.0 + v) / (1.0 - v)), {"x": (-0.5, 0.5)}),
        (lambda v: math("rsqrt", v * v + 1e-5), {"x": (pytest.approx(0.7071, abs=1e-4), inf)}),
        (lambda v: math("pow", v, math("abs", v)), {"x": (0.5, inf)}),
        (lambda v: math("pow", v, cast("float32", v * 0.0 + 3.0)), {"x": (0.5, inf)}),
        (lambda v: math("exp", v), {}),
        (lambda v: math("log", math("exp", v) + 1.0), {}),
        (lambda v: v / (v + 1.0), {}),
    ],
)
def test_roots_logarithms_and_powers_want_positive_numbers(value, expected) -> None:
    assert domains([made((4,), lambda i: value(X[i]))]) == expected


def test_whole_powers_take_any_number() -> None:
    from burnish.loops.expr import Const

    assert domains([made((4,), lambda i: math("pow", X[i], Const(2.0, "float32")))]) == {}


def test_sums_of_floats_say_nothing_of_their_terms() -> None:
    """A variance is not negative, whatever is squared."""
    k = reduce_axis(4)
    variance = compute((1,), lambda i: tensor.sum(X[k.var] * X[k.var], k), "variance")
    assert domains([made((1,), lambda i: math("sqrt", variance[i]))]) == {}


def test_constants_are_known() -> None:
    y = made((4, 6), lambda i, j: DATA[AT[i] + cast("int64", N[i]), j])
    assert domains([y], known={"n": (2, 3)}) == {"at": (-2, 6)}


def test_what_is_wanted_of_outputs_is_wanted_of_inputs() -> None:
    y = made((4,), lambda i: Cast("int64", X[i]))
    assert domains([y], {"y": (0, 5)}) == {"x": (0, 5)}


def test_deep_expressions_are_left_alone() -> None:
    """As a choice between thousands of joined tensors is."""

    def deep(i: Expr) -> Expr:
        e: Expr = X[i]
        for _ in range(5000):
            e = e + 1.0
        return math("log", e)

    assert domains([made((4,), deep)]) == {}

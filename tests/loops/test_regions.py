"""Regions are boxes relative to the outer loops: they cover exactly what the inner loops reach."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.loops.expr import Binary, Buffer, Expr, Load, Var, all_of, select, wrap
from burnish.loops.program import For, If, Stmt, seq, store
from burnish.loops.regions import Span, accesses, region, span, within
from burnish.loops.simplify import simplify
from burnish.loops.traverse import substitute

X, Y = Buffer("x", (64,)), Buffer("y", (64,))
I, J, K = Var("i"), Var("j"), Var("k")  # noqa: E741


def nest(body: Stmt, **extents: int) -> Stmt:
    for name, extent in reversed(extents.items()):
        body = For(name, extent, "serial", body)
    return body


def box(body: Stmt, outer: Sequence[str], **extents: int) -> list[str]:
    found = region([a for a in accesses(nest(body, **extents), {}) if a.buffer == X], outer)
    return [f"{s.low} +{s.extent}" if s else "unknown" for s in found]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (I * 4 + J, "(i * 4) +4"),
        (I * 2 + J - 1, "((i * 2) - 1) +4"),
        (I - J, "(i - 3) +4"),
        (J * 2 + K, "0 +9"),
        (I, "i +1"),
        ((I * 7 + J) // 2, "((i * 7) // 2) +3"),
        ((I * 8 + J) // 2, "(i * 4) +2"),
        ((I * 4 + J) % 4, "0 +4"),
    ],
)
def test_region_of_one_access(index: Expr, expected: str) -> None:
    assert box(store(Y, (I,), Load(X, (index,))), ["i"], i=4, j=4, k=3) == [expected]


def test_region_is_the_hull_of_all_accesses() -> None:
    body = seq(store(Y, (I,), Load(X, (I + J,))), store(Y, (I,), Load(X, (I + 6,)) + Load(X, (I + 1,))))
    assert box(body, ["i"], i=4, j=4) == ["i +7"]
    apart = store(Y, (I,), Load(X, (I,)) + Load(X, (I * 2,)))
    assert box(apart, ["i"], i=4) == ["unknown"]


def test_guards_of_inner_loops_narrow_the_region() -> None:
    assert box(If(all_of(J < 3, J >= 1), store(Y, (I,), Load(X, (I + J,)))), ["i"], i=4, j=8) == ["(i + 1) +2"]
    assert box(store(Y, (I,), select(J < 3, Load(X, (I + J,)), 0.0)), ["i"], i=4, j=8) == ["i +3"]
    assert box(If(I + J < 3, store(Y, (I,), Load(X, (I + J,)))), ["i"], i=4, j=8) == ["i +8"]


def test_accesses_come_with_their_conditions() -> None:
    body = If(I < 3, store(Y, (I,), select(I >= 1, Load(X, (I - 1,)), Load(X, (I,)))))
    found = [(a.kind, str(a.indices[0]), [str(g) for g in a.given]) for a in accesses(body, {"i": 4})]
    assert found == [
        ("load", "(i - 1)", ["(i < 3)", "(i >= 1)"]),
        ("load", "i", ["(i < 3)", "not (i >= 1)"]),
        ("store", "i", ["(i < 3)"]),
    ]


terms = st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-4, 4))


@given(terms, st.integers(1, 5), st.booleans())
def test_span_covers_every_value(coefficients: tuple[int, int, int], divisor: int, remainder: bool) -> None:
    a, b, c = coefficients
    linear = I * a + J * b + K * 2 + c
    index = linear % divisor if remainder else linear // divisor
    ranges = {"i": 3, "j": 4, "k": 2}
    found = span(simplify(index, ranges), ["i"], ranges)
    assert isinstance(found, Span)
    for i in range(3):
        low = evaluate(found.low, i, 0, 0)
        values = [evaluate(wrap(index), i, j, k) for j in range(4) for k in range(2)]
        assert low <= min(values) and max(values) < low + found.extent


def evaluate(e: Expr, i: int, j: int, k: int) -> int:
    value = simplify(substitute(e, {"i": wrap(i), "j": wrap(j), "k": wrap(k)}))
    return int(value.value)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("index", "size", "given_"),
    [
        ((I + 3) // 4 - 1, 2, (I >= 1, I < 9)),
        (Binary("+", (I // 2) * 2, J), 10, (I < 8, J < 4)),
        ((I * 4 + J) // 2, 3, (I * 4 + J < 6,)),
        (I * 2 + J // 8, 3, (I * 4 + J // 4 < 5,)),
        (J // 4, 2, ((J // 2) * 2 + I % 2 < 5,)),
    ],
)
def test_within_uses_conditions_on_quotients(index: Expr, size: int, given_: tuple[Expr, ...]) -> None:
    ranges = {"i": 20, "j": 16}
    assert within(index, size, ranges, given_)
    assert not within(index, size - 1, ranges, given_)
    assert not within(index, size, ranges, ())


def test_within_knows_the_digits_of_a_bounded_remainder() -> None:
    tens, ranges = I // 2 % 5, {"i": 40}
    given_ = (I % 10 < 5, I % 10 >= 2)
    assert within(tens, 3, ranges, given_)
    assert not within(tens, 2, ranges, given_)
    assert within(tens - 1, 2, ranges, given_)
    assert not within(tens - 2, 2, ranges, given_)
    assert within(tens // 2, 2, ranges, given_)
    assert not within(tens // 2, 2, ranges, ())


def test_within_compares_quotients_by_different_numbers() -> None:
    index, ranges = (I * 8 + J) // 12 - (I * 2) // 3, {"i": 5, "j": 8}
    assert within(index, 2, ranges, ())
    assert not within(index, 1, ranges, ())

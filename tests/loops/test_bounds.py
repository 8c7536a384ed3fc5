"""Bounds hold at every point, and what is proved is true."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.loops.bounds import UNKNOWN, bounds, prove
from burnish.loops.expr import (
    Binary,
    Buffer,
    Const,
    Expr,
    Load,
    Not,
    Var,
    all_of,
    any_of,
    cast,
    equal,
    maximum,
    minimum,
    select,
)
from burnish.loops.interpret import run_program
from burnish.loops.program import For, LoopProgram, Stmt, Store

NAMES = ("i", "j")
I, J = Var("i"), Var("j")  # noqa: E741
ranges = st.fixed_dictionaries({n: st.integers(1, 7) for n in NAMES})
atoms = st.one_of(st.sampled_from([I, J]), st.integers(-9, 20).map(Const))


def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(Binary, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner),
        st.builds(Binary, st.sampled_from(["//", "%"]), inner, st.integers(1, 9).map(Const)),
        st.builds(lambda a, b, c: select(a < b, b, c), inner, inner, inner),
    )


expressions = st.recursive(atoms, extend, max_leaves=8)
conditions = st.builds(Binary, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), expressions, expressions)


def values(e: Expr, extents: dict[str, int]) -> np.ndarray:
    out = Buffer("out", tuple(extents[n] for n in NAMES), e.dtype)
    body: Stmt = Store(out, (I, J), e)
    for name in reversed(NAMES):
        body = For(name, extents[name], "serial", body)
    return run_program(LoopProgram("p", (out,), body), {})["out"]


@settings(max_examples=300, deadline=None)
@given(expressions, ranges)
def test_bounds_hold_everywhere(e: Expr, extents: dict[str, int]) -> None:
    low, high = bounds(e, extents)
    found = values(e, extents)
    assert low <= found.min() and found.max() <= high, f"{e} in {low}..{high}"


@settings(max_examples=300, deadline=None)
@given(conditions, st.lists(conditions, max_size=2), ranges)
def test_what_is_proved_is_true(cond: Expr, given_: list[Expr], extents: dict[str, int]) -> None:
    if prove(cond, extents, given_):
        assumed = np.ones(tuple(extents[n] for n in NAMES), bool)
        for g in given_:
            assumed &= values(g, extents)
        assert values(cond, extents)[assumed].all(), f"{cond} given {[str(g) for g in given_]}"


RANGES = {"i": 4, "j": 8}


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (Const(5), (5, 5)),
        (I, (0, 3)),
        (Var("free"), UNKNOWN),
        (I * 8 + J, (0, 31)),
        (I - I, (0, 0)),
        (J - I, (-3, 7)),
        (I * -2 + 1, (-5, 1)),
        (I * J, (0, 21)),
        ((J - 3) // 2, (-2, 2)),
        ((J + 1) % 4, (0, 3)),
        (J % 20, (0, 7)),
        (minimum(J, 5), (0, 5)),
        (maximum(J, 5), (5, 7)),
        (select(I < 2, I, J + 10), (0, 17)),
        (Var("free") % 6, (0, 5)),
        (cast("int64", I < 2), (0, 1)),
        (cast("int64", Load(Buffer("x", (8,), "uint8"), (J,))), (0, 255)),
        (cast("int64", minimum(maximum(cast("float64", J) * 0.7, 1.5), 4.5)), (1, 4)),
        (cast("int64", Load(Buffer("x", (8,), "int8"), (J,))), (-math.inf, math.inf)),
    ],
    ids=str,
)
def test_golden_bounds(e: Expr, expected: tuple[float, float]) -> None:
    assert bounds(e, RANGES) == expected


FREE = Var("free")


@pytest.mark.parametrize(
    ("cond", "given_"),
    [
        (I < 4, ()),
        (all_of(I >= 0, I * 8 + J < 32), ()),
        (any_of(I > 9, J <= 7), ()),
        (Binary("!=", I, Const(4)), ()),
        (Not(I > 3), ()),
        (FREE < 11, (FREE < 10,)),
        (FREE + I < 14, (FREE <= 10,)),
        (FREE >= 3, (equal(FREE, Const(3)),)),
        (I * 2 < 5, (I < 3,)),
        (Const(True, "bool"), ()),
    ],
    ids=str,
)
def test_provable(cond: Expr, given_: tuple[Expr, ...]) -> None:
    assert prove(cond, RANGES, given_)


@pytest.mark.parametrize(
    "cond", [I < 3, FREE < 10, all_of(I < 4, I < 2), Not(equal(I, Const(0))), Const(False, "bool")], ids=str
)
def test_not_provable(cond: Expr) -> None:
    assert not prove(cond, RANGES)


def test_loaded_numbers_that_wrap_around_have_no_bounds() -> None:
    wide, widest = (Load(Buffer(n, (4,), n), (I,)) for n in ("uint32", "uint64"))
    u = cast("int64", wide)
    assert bounds(u * 3 + 1, {"i": 4}) == (1, 3 * (2**32 - 1) + 1)
    assert bounds(u * 2**31 - 2**40, {"i": 4}) == (-(2**40), (2**32 - 1) * 2**31 - 2**40)
    for e in (u * 2**31 + 2**31, u * 2**40, u * u, maximum(Load(Buffer("x", (4,), "int64"), (I,)), 0) + 5):
        assert bounds(e, {"i": 4}) == UNKNOWN, e
    assert bounds(cast("int64", widest), {"i": 4}) == UNKNOWN
    assert bounds(minimum(maximum(u * 2**40, 0), 6), {"i": 4}) == (0, 6)


D = Load(Buffer("d", (4,), "int64"), (I,))
SMALL = cast("int64", Load(Buffer("u", (4,), "uint8"), (I,)))


@pytest.mark.parametrize(
    ("cond", "given_", "proved"),
    [
        (D < D + 1, (), False),
        (D < 7, (D + 1 < 7,), False),
        (D < 4, (D * 2 < 8,), False),
        (D // 2 <= 3, (), False),
        (D + 1 <= 7, ((D + 1) // 2 <= 3,), False),
        (D < 7, (D < 5,), True),
        (Not(D < 5), (D > 6,), True),
        (SMALL < SMALL + 1, (), True),
        (SMALL < 7, (SMALL + 1 < 7,), True),
        (SMALL * 2**60 < SMALL * 2**60 + 1, (), False),
    ],
    ids=str,
)
def test_the_order_of_loaded_numbers_that_may_wrap_proves_nothing(
    cond: Expr, given_: tuple[Expr, ...], proved: bool
) -> None:
    assert prove(cond, RANGES, given_) == proved

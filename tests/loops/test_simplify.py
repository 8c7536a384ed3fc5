"""Simplification: golden forms, and equal values at every point of random ranges for random expressions."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from burnish.loops.expr import (
    Binary,
    Buffer,
    Const,
    Expr,
    Literal,
    Load,
    Not,
    Select,
    Var,
    all_of,
    any_of,
    binary,
    cast,
    equal,
    maximum,
    minimum,
    select,
)
from burnish.loops.interpret import run_program
from burnish.loops.linear import from_linear, to_linear
from burnish.loops.program import Alloc, For, If, LoopProgram, Seq, Stmt, Store, seq, store
from burnish.loops.simplify import linear, simplify, simplify_stmt
from burnish.loops.traverse import substitute

NAMES = ("i", "j", "k")
I, J, K = (Var(n) for n in NAMES)  # noqa: E741
D = Load(Buffer("d", (4,), "int64"), (I,))
RANGES = {"i": 4, "j": 8, "k": 3}

atoms = st.one_of(st.sampled_from([I, J, K]), st.integers(-9, 20).map(Const))


def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Index expressions one level deeper."""
    divisor = st.integers(1, 12).map(Const)
    factor = st.integers(-6, 16).map(Const)
    comparison = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    cond = st.builds(Binary, comparison, inner, inner)
    conds = st.one_of(cond, st.builds(all_of, cond, cond), st.builds(any_of, cond, cond), st.builds(Not, cond))
    return st.one_of(
        st.builds(lambda op, a, b: Binary(op, a, b), st.sampled_from(["+", "-", "min", "max"]), inner, inner),
        st.builds(lambda a, c: a * c, inner, factor),
        st.builds(lambda op, a, c: Binary(op, a, c), st.sampled_from(["//", "%"]), inner, divisor),
        st.builds(select, conds, inner, inner),
    )


expressions = st.recursive(atoms, extend, max_leaves=12)
ranges = st.fixed_dictionaries({n: st.integers(1, 5) for n in NAMES})


def values(e: Expr, extents: dict[str, int]) -> np.ndarray:
    """``e`` at every point, by the interpreter."""
    out = Buffer("out", tuple(extents[n] for n in NAMES), e.dtype)
    body: Stmt = Store(out, (I, J, K), e)
    for name in reversed(NAMES):
        body = For(name, extents[name], "serial", body)
    return run_program(LoopProgram("p", (out,), body), {})["out"]


@settings(max_examples=300, deadline=None)
@given(expressions, ranges)
def test_simplify_keeps_the_value(e: Expr, extents: dict[str, int]) -> None:
    small = simplify(e, extents)
    np.testing.assert_array_equal(values(small, extents), values(e, extents), f"{e}  ->  {small}")
    again = simplify(small, extents)
    np.testing.assert_array_equal(values(again, extents), values(e, extents), f"{small}  ->  {again}")


@settings(max_examples=100, deadline=None)
@given(expressions, expressions, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), ranges)
def test_simplify_keeps_conditions(a: Expr, b: Expr, op: str, extents: dict[str, int]) -> None:
    cond = Binary(op, a, b)
    np.testing.assert_array_equal(values(simplify(cond, extents), extents), values(cond, extents), str(cond))


@settings(max_examples=100, deadline=None)
@given(expressions)
def test_without_ranges_nothing_is_assumed(e: Expr) -> None:
    """What holds for unknown variables holds at negative values too: shift each by a constant."""
    small = simplify(e)
    extents = dict.fromkeys(NAMES, 3)
    for shift in (-7, 11):
        moved = {n: Var(n) + shift for n in NAMES}
        np.testing.assert_array_equal(values(substitute(small, moved), extents), values(substitute(e, moved), extents))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([I, J, K, I // 2]), st.integers(-9, 9)), max_size=5), st.integers(-20, 20))
def test_linear_forms_round_trip(items: list[tuple[Expr, int]], const: int) -> None:
    e: Expr = Const(const)
    for atom, c in items:
        e = e + atom * c
    terms, rest = to_linear(e)
    assert all(terms.values()), "no zero coefficients"
    assert to_linear(from_linear(terms, rest)) == (terms, rest)


GOLDEN = [
    (I * 4 + J - I * 4, "j"),
    ((I + 1) * 3 - 3, "(i * 3)"),
    ((I * 8 + J) // 8, "i"),
    ((I * 8 + J) % 8, "j"),
    ((I * 16 + J * 2 + 1) // 2, "((i * 8) + j)"),
    ((I * 12 + 8) % 4, "0"),
    ((J // 2) * 2 + J % 2, "j"),
    ((J // 4 % 2) * 4 + J % 4, "j"),
    ((I * 8 + J) // 2 % 4, "(j // 2)"),
    (J // 2 // 2, "(j // 4)"),
    (J % 8 % 4, "(j % 4)"),
    ((I * 64 + J * 4 + K) // 16, "((i * 4) + (j // 4))"),
    (J // 8, "0"),
    (J % 100, "j"),
    (minimum(J, 7), "j"),
    (maximum(J, 7), "7"),
    (minimum(I, J), "min(i, j)"),
    (I < 4, "True"),
    (equal(J, 8), "False"),
    (I * 8 + J < 16, "(i < 2)"),
    (I * 8 + J >= 8, "(i >= 1)"),
    (J // 3 < 2, "(j < 6)"),
    ((J + 1) // 3 >= 2, "(j >= 5)"),
    (I + 2 < J + 1, "((i - j) < -1)"),
    (all_of(I < 4, J < 3), "(j < 3)"),
    (all_of(J < 5, J < 3), "(j < 3)"),
    (any_of(I < 0, J < 3), "(j < 3)"),
    (select(I < 4, J, K), "j"),
    (select(J < 3, I * 1, I + 0), "i"),
    (Not(I < 4), "False"),
]


@pytest.mark.parametrize(("e", "text"), GOLDEN, ids=[text for _, text in GOLDEN])
def test_golden(e: Expr, text: str) -> None:
    assert str(simplify(e, RANGES)) == text


def test_a_loop_of_one_iteration_is_zero() -> None:
    assert simplify(I * 3 + J, {"i": 1}) == J


X = Load(Buffer("x", (8,)), (I,))


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (X * 1.0, "x[i]"), (X + 0.0, "(x[i] + 0.0)"), (0.0 + X, "(0.0 + x[i])"), (X - 0.0, "x[i]"), (X / 1.0, "x[i]"),
        (X - -0.0, "(x[i] - -0.0)"), (X * 0.0, "(x[i] * 0.0)"), (X * 2.0, "(x[i] * 2.0)"), (0.0 - X, "(0.0 - x[i])"),
        (Const(2.0, "float32") * Const(3.0, "float32") + X, "(6.0 + x[i])"),
        (cast("float32", Const(3)), "3.0"),
    ],
)  # fmt: skip
def test_exact_identities_of_floats(e: Expr, text: str) -> None:
    assert str(simplify(e)) == text


def test_loads_keep_simplified_indices() -> None:
    x = Buffer("x", (4, 8))
    assert str(simplify(Load(x, ((I * 8 + J) // 8, (I * 8 + J) % 8)), RANGES)) == "x[i, j]"


def test_linear_names_its_atoms() -> None:
    assert linear((I * 8 + J) // 8 * 5 + J * 2 - 1, RANGES) == ({I: 5, J: 2}, -1)


# --- statements -------------------------------------------------------------------------------------------------------

Y = Buffer("y", (4, 8))


def test_statements_golden() -> None:
    dead = If(I > 9, store(Y, (I, 0), 1.0))
    one = For("k", 1, "serial", Store(Y, (I, J + K), Load(Y, (I, (I * 8 + J) % 8))))
    nest = For("i", 4, "serial", For("j", 8, "serial", If(all_of(J < 8, I < 3), seq(one, dead))))
    empty = For("i", 0, "serial", store(Y, (I, 0), 1.0))
    hollow = For("i", 4, "serial", If(I < 2, dead))
    assert str(simplify_stmt(seq(nest, empty, hollow))) == "\n".join([
        "for i in 4:",
        "  for j in 8:",
        "    if (i < 3):",
        "      y[i, j] = y[i, j]",
    ])  # fmt: skip


def test_a_vectorized_loop_of_one_lane_stays() -> None:
    loop = For("i", 1, "vectorize", store(Y, (I, 0), 1.0))
    assert simplify_stmt(loop) == For("i", 1, "vectorize", store(Y, (0, 0), 1.0))


def test_allocations_are_simplified_inside() -> None:
    t = Buffer("t", (8,), scope="local")
    s = Alloc(t, For("i", 1, "serial", Store(t, (I,), X)))
    assert str(simplify_stmt(s)) == "alloc t: float32[8] @local\nt[0] = x[0]"
    assert simplify_stmt(Alloc(t, For("i", 0, "serial", Store(t, (I,), X)))) in (Seq(()), Alloc(t, Seq(())))


@settings(max_examples=60, deadline=None)
@given(expressions, expressions, ranges)
def test_simplified_statements_do_the_same(row: Expr, cond: Expr, extents: dict[str, int]) -> None:
    shape = tuple(extents[n] for n in NAMES)
    out = Buffer("out", shape, "int64")
    body: Stmt = seq(store(out, (I, J, K), -1), If(cond < 3, Store(out, (I, J, K), row)))
    for name in reversed(NAMES):
        body = For(name, extents[name], "serial", body)
    after = simplify_stmt(body)
    assume(after != Seq(()))
    before = run_program(LoopProgram("p", (out,), body), {})["out"]
    np.testing.assert_array_equal(run_program(LoopProgram("p", (out,), after), {})["out"], before)


def test_every_digit_of_a_mixed_radix_rejoins() -> None:
    """``x // a % b * a + x % a`` and so on, in any order of the terms, is ``x`` again."""
    x = Var("x")
    parts = [x % 4, x // 4 % 3 * 4, x // 12 * 12]
    for order in itertools.permutations(parts):
        assert simplify(order[0] + order[1] + order[2]) == x
    assert isinstance(simplify(x % 4 + x // 12 * 12), Binary)
    assert isinstance(simplify(select(I < 2, I, J)), Select)


NOTHING_TIMES = Literal(0.0, "float32")


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (X * NOTHING_TIMES, "0.0"), (NOTHING_TIMES * X + X, "x[i]"), (X + NOTHING_TIMES, "x[i]"),
        (Literal(1.0, "float32") * X, "x[i]"), (Literal(2.0, "float32") * NOTHING_TIMES * X, "0.0"),
        (Const(2.0, "float32") * NOTHING_TIMES * X, "(0.0 * x[i])"),
    ],
)  # fmt: skip
def test_a_product_with_the_zero_of_a_matrix_is_no_term(e: Expr, text: str) -> None:
    assert str(simplify(e)) == text


EDGES = {
    "int64": (-(2**63), -(2**62), -7, -1, 0, 1, 2, 3, 2**62, 2**63 - 1), "uint8": (0, 1, 3, 128, 254, 255),
    "int8": (-128, -64, -3, -1, 0, 1, 2, 64, 127), "uint64": (0, 1, 3, 2**63, 2**64 - 2, 2**64 - 1),
}  # fmt: skip
FLOATS_THAT_HURT = (0.0, -0.0, 1.0, -1.5, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), 1e-45)


def data_expressions(dtype: str) -> st.SearchStrategy[Expr]:
    """Arithmetic on two numbers ``a[i]`` and ``b[i]`` and constants."""
    numbers = EDGES.get(dtype, FLOATS_THAT_HURT)
    leaves = st.one_of(
        st.sampled_from([Load(Buffer(name, (1,), dtype), (I,)) for name in "ab"]),
        st.sampled_from(numbers).map(lambda n: Const(n, dtype)),
    )
    operators = ["+", "-", "*", "min", "max"] + (["/"] if dtype == "float32" else ["//", "%"])
    comparisons = ["<", "<=", "==", "!=", ">", ">="]

    def deeper(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        test = st.builds(Binary, st.sampled_from(comparisons), inner, inner)
        tests = st.one_of(test, st.builds(all_of, test, test), st.builds(any_of, test, test), st.builds(Not, test))
        return st.one_of(
            st.builds(binary, st.sampled_from(operators), inner, inner), st.builds(select, tests, inner, inner)
        )

    return st.recursive(leaves, deeper, max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([*EDGES, "int64", "float32"]))
def test_data_keeps_its_value_to_the_bit(data: st.DataObject, dtype: str) -> None:
    """Integers wrap, zeros have signs, and infinities and NaN do what they do."""
    e = data.draw(data_expressions(dtype))
    numbers = EDGES.get(dtype, FLOATS_THAT_HURT)
    inputs = {name: np.array([data.draw(st.sampled_from(numbers))], dtype) for name in "ab"}
    params = tuple(Buffer(name, (1,), dtype) for name in (*"ab", "y"))

    def run(value: Expr) -> np.ndarray:
        body = For("i", 1, "serial", store(params[2], (I,), value))
        return run_program(LoopProgram("p", params, body), inputs)["y"]

    found, wanted = run(simplify(e)), run(e)
    np.testing.assert_array_equal(found, wanted)
    assert np.signbit(found) == np.signbit(wanted) or np.isnan(wanted)


@pytest.mark.parametrize(
    ("e", "text"),
    [
        ((D * 2) // 2, "((d[i] * 2) // 2)"),
        (D + 1 > D, "((d[i] + 1) > d[i])"),
        (minimum(D + 1, D), "min((d[i] + 1), d[i])"),
        ((D + I * 2) + (I - I), "(d[i] + (i * 2))"),
        (all_of(D > 5, D + 1 > D), "((d[i] > 5) and ((d[i] + 1) > d[i]))"),
        (all_of(D + 1 < 7, D < 7), "(((d[i] + 1) < 7) and (d[i] < 7))"),
        (all_of(D < 5, D < 7), "(d[i] < 5)"),
    ],
)
def test_numbers_that_are_loaded_may_overflow(e: Expr, text: str) -> None:
    assert str(simplify(e, {"i": 4})) == text

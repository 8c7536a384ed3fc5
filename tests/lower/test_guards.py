"""Conditions leave the loops that they do not depend on."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from burnish.loops.expr import Buffer, Load, Var, all_of, equal, select
from burnish.loops.program import For, If, Intrinsic, LoopProgram, Stmt, Store, seq, store
from burnish.lower.guards import hoist_guards
from burnish.lower.pipeline import simplify_program
from burnish.schedule.schedule import Schedule

Same = Callable[[LoopProgram, LoopProgram], None]
I, J, K = (Var(n) for n in "ijk")  # noqa: E741
X, Y = Buffer("x", (8, 8)), Buffer("y", (8,))


def loops(body: Stmt, *kinds: str) -> LoopProgram:
    """``for i: for j: for k: body`` over 8 each, with these kinds."""
    for name, kind in reversed(list(zip("ijk", kinds, strict=False))):
        body = For(name, 8, kind, body)
    return LoopProgram("p", (X, Y), seq(For("z", 8, "serial", store(Y, (Var("z"),), 0.0)), body))


def text(program: LoopProgram) -> list[str]:
    return str(program).splitlines()[3:]


def test_a_padded_product_is_skipped_row_by_row(conv: Callable[..., Schedule], same: Same) -> None:
    before = simplify_program(conv(6, 8).program)
    after = hoist_guards(before)
    assert str(after).splitlines()[-3:] == [
        "            if (((y.h + y.r) >= 1) and ((y.h + y.r) < 7)):",
        "              for y.s in 3:",
        "                y[y.o, y.h, y.v] += ((x[y.c, ((y.h + y.r) - 1), ((y.v + y.s) - 1)] if (((y.v + y.s) >= 1) and "
        "((y.v + y.s) < 9)) else 0.0) * w[y.o, y.c, y.r, y.s])",
    ]
    same(before, after)


def test_conditions_stop_where_their_innermost_variable_is(same: Same) -> None:
    value = select(all_of(I < 6, J >= 2, I + K < 9), Load(X, (I, J)), 0.0) * Load(X, (J, K))
    before = loops(Store(Y, (I,), value, "sum"), "serial", "serial", "serial")
    after = hoist_guards(before)
    assert text(after) == [
        "  for i in 8:",
        "    if (i < 6):",
        "      for j in 8:",
        "        if (j >= 2):",
        "          for k in 8:",
        "            y[i] += ((x[i, j] if ((i + k) < 9) else 0.0) * x[j, k])",
    ]
    same(before, after)


def test_hints_do_not_hold_conditions_back(same: Same) -> None:
    """A hint stays before a condition on its own loop; one on a loop further out is around the hint too."""
    value = select(all_of(I < 6, J >= 2), Load(X, (I, J)), 0.0) * Load(X, (J, K))
    hint = Intrinsic("prefetch", (Load(X, (J, I)),), (("locality", 2),))
    nest = For("k", 8, "serial", Store(Y, (I,), value, "sum"))
    before = loops(seq(hint, nest), "serial", "serial")
    after = hoist_guards(before)
    assert text(after) == [
        "  for i in 8:",
        "    if (i < 6):",
        "      for j in 8:",
        "        prefetch(x[j, i], locality=2)",
        "        if (j >= 2):",
        "          for k in 8:",
        "            y[i] += (x[i, j] * x[j, k])",
    ]
    same(before, after)


def test_statements_under_conditions(same: Same) -> None:
    before = loops(If(all_of(I < 5, equal(J, K)), Store(Y, (I,), Load(X, (J, K)))), "parallel", "serial", "serial")
    after = hoist_guards(before)
    assert text(after) == [
        "  for parallel i in 8:",
        "    if (i < 5):",
        "      for j in 8:",
        "        for k in 8:",
        "          if (j == k):",
        "            y[i] = x[j, k]",
    ]
    same(before, after)


@pytest.mark.parametrize(
    "store_",
    [
        Store(Y, (I,), select(I < 5, Load(X, (I, J)), 0.0)),
        Store(Y, (I,), select(I < 5, Load(X, (I, J)), 1.0), "sum"),
        Store(Y, (I,), select(I < 5, Load(X, (I, J)), 0.0), "max"),
        Store(Y, (I,), select(I < 5, Load(X, (I, J)), 0.0) + 1.0, "sum"),
    ],
    ids=["a plain store", "not zero", "a maximum", "not a product"],
)
def test_what_is_not_a_sum_of_zeros_stays(store_: Store, same: Same) -> None:
    before = loops(store_, "serial", "serial")
    assert hoist_guards(before) == before


def test_nothing_moves_into_unrolled_loops() -> None:
    value = select(J < 5, Load(X, (I, J)), 0.0) * Load(X, (J, I))
    before = loops(Store(Y, (I,), value, "sum"), "serial", "unroll", "vectorize")
    assert hoist_guards(before) == before


def test_a_loop_of_several_statements_keeps_its_conditions(same: Same) -> None:
    first = Store(Y, (I,), Load(X, (I, J)), "sum")
    second = If(I < 4, Store(Y, (I,), Load(X, (J, I)), "sum"))
    before = loops(For("k", 2, "serial", seq(first, second)), "serial", "serial")
    after = hoist_guards(before)
    assert after == before
    same(before, after)


def test_a_nest_beside_others_leaves_conditions_on_no_loop_of_its_own(same: Same) -> None:
    nest = For("j", 8, "serial", For("k", 8, "unroll", If(all_of(I < 4, J < 7), store(Y, (K,), Load(X, (I, K))))))
    before = loops(seq(store(Y, (I,), 1.0), nest), "serial")
    after = hoist_guards(before)
    assert text(after) == [
        "  for i in 8:",
        "    y[i] = 1.0",
        "    if (i < 4):",
        "      for j in 8:",
        "        if (j < 7):",
        "          for unroll k in 8:",
        "            y[k] = x[i, k]",
    ]
    same(before, after)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 5), st.integers(2, 5), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2))
def test_any_window(
    conv: Callable[..., Schedule], same: Same, height: int, width: int, kernel: int, pad: int, step: int
) -> None:
    assume(min(height, width) + 2 * pad >= kernel)
    before = simplify_program(conv(height, width, kernel, pad, step, channels=2).program)
    same(before, hoist_guards(before))

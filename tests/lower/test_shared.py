"""Conditions that a loop's statements share are asked once an iteration."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.loops.expr import Buffer, Load, Var, all_of
from burnish.loops.program import Alloc, For, If, Intrinsic, LoopProgram, Stmt, Store, seq, store
from burnish.lower.pipeline import lower, simplify_program
from burnish.lower.shared import share_guards
from burnish.schedule.schedule import Schedule

Same = Callable[[LoopProgram, LoopProgram], None]
I, J, K = (Var(n) for n in "ijk")  # noqa: E741
X, Y, T = Buffer("x", (8, 8)), Buffer("y", (8,)), Buffer("t", (8,), scope="register")


def program(*body: Stmt, kind: str = "serial") -> LoopProgram:
    """``y = 0``, then ``for i in 8: body``."""
    return LoopProgram(
        "p", (X, Y), seq(For("z", 8, "serial", store(Y, (Var("z"),), 0.0)), For("i", 8, kind, seq(*body)))
    )


def text(found: LoopProgram) -> list[str]:
    return [line[4:] for line in str(found).splitlines()[4:]]


def unrolled(var: str, inner: Stmt) -> Stmt:
    return For(var, 8, "unroll", inner)


def test_a_tile_that_overlaps_the_end_costs_one_branch(same: Same) -> None:
    first = unrolled("j", If(I < 5, store(T, (J,), Load(X, (I, J)))))
    second = unrolled("k", If(all_of(K < 6, I < 5), Store(Y, (I,), Load(T, (K,)), "sum")))
    before = program(Alloc(T, seq(first, second)), kind="parallel")
    after = share_guards(before)
    assert text(after) == [
        "if (i < 5):",
        "  alloc t: float32[8] @register",
        "  for unroll j in 8:",
        "    t[j] = x[i, j]",
        "  for unroll k in 8:",
        "    if (k < 6):",
        "      y[i] += t[k]",
    ]
    same(before, after)


def test_every_statement_must_have_it(same: Same) -> None:
    first = unrolled("j", If(I < 5, Store(Y, (I,), Load(X, (I, J)), "sum")))
    before = program(first, Store(Y, (I,), Load(X, (I, I)), "sum"))
    assert share_guards(before) == before


def test_conditions_stop_at_the_loop_of_their_innermost_variable(same: Same) -> None:
    nests = [unrolled(var, If(all_of(I < 7, I + J < 9), Store(Y, (I,), Load(X, (I, Var(var))), "sum"))) for var in "kl"]
    before = program(For("j", 8, "serial", seq(*nests)))
    after = share_guards(before)
    assert text(after)[:3] == ["if (i < 7):", "  for j in 8:", "    if ((i + j) < 9):"]
    assert str(after).count("if") == 2
    same(before, after)


def test_what_depends_on_an_unrolled_loop_stays_in_it() -> None:
    before = program(unrolled("j", If(I + J < 9, Store(Y, (I,), Load(X, (I, J)), "sum"))))
    assert share_guards(before) == before


def test_what_reads_memory_stays() -> None:
    """The statements might write it."""
    before = program(unrolled("j", If(Load(Y, (I,)) < 1.0, Store(Y, (I,), Load(X, (I, J)), "sum"))))
    assert share_guards(before) == before


def test_hints_have_no_say(same: Same) -> None:
    hint = Intrinsic("prefetch", (Load(X, (I, I)),), (("locality", 2),))
    before = program(hint, unrolled("j", If(I < 5, Store(Y, (I,), Load(X, (I, J)), "sum"))))
    after = share_guards(before)
    assert text(after)[:2] == ["if (i < 5):", "  prefetch(x[i, i], locality=2)"]
    same(before, after)
    assert share_guards(program(hint)) == program(hint)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(3, 9), st.integers(3, 9), st.integers(1, 4), st.integers(1, 4))
def test_any_tile(
    conv: Callable[..., Schedule], tiled: Callable[..., Schedule], same: Same, height: int, width: int, tile: int,
    rows: int,
) -> None:  # fmt: skip
    """Tiles of columns, in bands of rows that need not divide the height."""
    s = tiled(conv(height, width, channels=2), tile)
    s.split("y.h", rows)
    before = simplify_program(s.program)
    same(before, share_guards(before))
    same(before, lower(before))

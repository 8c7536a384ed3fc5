"""The loop program: its text, and the ways to walk and rewrite it."""

from burnish.loops.expr import Buffer, Const, Expr, Load, Var, select
from burnish.loops.program import (
    Alloc,
    For,
    If,
    Intrinsic,
    LoopProgram,
    Seq,
    Store,
    allocations,
    map_access,
    map_exprs,
    rebuild_stmt,
    seq,
    store,
    substitute_stmt,
    walk_stmt,
)

X, Y, N = Buffer("x", (4, 8)), Buffer("y", (4,)), Buffer("n", (4,), "int64")
T = Buffer("t", (8,), "float16", "register")
I, J = Var("i"), Var("j")  # noqa: E741
BODY = For("i", 4, "parallel", Alloc(T, seq(
    For("j", 8, "vectorize", store(T, (J,), 0)),
    If(Load(N, (I,)) > 2, For("k", 8, "unroll", Store(Y, (I,), Load(X, (I, Var("k"))), "max"))),
    Intrinsic("dot", (Load(Y, (I,)), Load(X, (I, Const(0)))), (("x_stride", 8), ("mode", "fast"))),
    Intrinsic("prefetch", (Load(Buffer("z", (4,)), (I,)),)),
)))  # fmt: skip
PROGRAM = LoopProgram("p", (X, N, Y), BODY)


def test_golden_text() -> None:
    assert (
        str(PROGRAM)
        == """\
program p(x: float32[4, 8], n: int64[4], y: float32[4]):
  for parallel i in 4:
    alloc t: float16[8] @register
    for vectorize j in 8:
      t[j] = 0.0
    if (n[i] > 2):
      for unroll k in 8:
        y[i] max= x[i, k]
    dot(y[i], x[i, 0], x_stride=8, mode=fast)
    prefetch(z[i])
"""
    )


def test_every_reduction_has_its_symbol() -> None:
    symbols = {None: "=", "sum": "+=", "prod": "*=", "max": "max=", "min": "min="}
    assert {r: str(store(Y, (0,), 1, r)) for r in symbols} == {r: f"y[0] {s} 1.0" for r, s in symbols.items()}


def test_sequences_are_flat() -> None:
    a, b, c = (store(Y, (i,), 0) for i in range(3))
    assert seq(a) is a
    assert seq(seq(a, b), Seq(()), c) == Seq((a, b, c))
    assert seq() == Seq(())


def test_statements_are_walked_in_order() -> None:
    kinds = [type(s).__name__ for s in walk_stmt(BODY)]
    assert kinds == ["For", "Alloc", "Seq", "For", "Store", "If", "For", "Store", "Intrinsic", "Intrinsic"]


def test_rebuilding_with_nothing_changed_is_equal() -> None:
    assert rebuild_stmt(BODY, lambda s: s) == BODY
    assert map_exprs(BODY, lambda e: e) == BODY
    assert map_access(BODY, "x", lambda b, i: (b, i)) is BODY


def test_rebuilding_drops_empty_sequences() -> None:
    assert rebuild_stmt(Seq((Seq(()), store(Y, (0,), 1))), lambda s: s) == store(Y, (0,), 1)


def test_map_exprs_sees_indices_values_conditions_and_operands() -> None:
    seen: list[str] = []

    def note(e: Expr) -> Expr:
        seen.append(str(e))
        return e

    map_exprs(BODY, note)
    assert seen == ["j", "0.0", "(n[i] > 2)", "i", "x[i, k]", "i", "i", "0", "i"]


def test_map_access_reaches_loads_inside_loads_but_no_allocation() -> None:
    gather = Store(Y, (Load(N, (I,)),), select(Load(N, (I,)) > 0, Load(X, (Load(N, (I,)), J)), 0.0))
    body = Alloc(N, gather)
    moved = N.with_(name="m", shape=(2, 4))
    after = map_access(body, "n", lambda b, i: (moved, (Const(1), *i)))
    assert str(after) == "alloc n: int64[4]\ny[m[1, i]] = (x[m[1, i], j] if (m[1, i] > 0) else 0.0)"


def test_substitution_of_loop_variables() -> None:
    s = If(I < 3, Store(X, (I, J), Load(Y, (I,))))
    assert str(substitute_stmt(s, {"i": J + 1})) == "if ((j + 1) < 3):\n  x[(j + 1), j] = y[(j + 1)]"


def test_what_is_read_and_written() -> None:
    """A hint touches nothing; an intrinsic writes its first operand and may read all."""
    assert BODY.writes == {"t", "y"}
    assert BODY.reads == {"n", "x", "y"}
    assert store(Y, (0,), 1, "sum").reads == set(), "its own accumulator is not counted"


def test_buffers_know_their_size() -> None:
    assert (X.size, X.nbytes, T.nbytes, N.nbytes) == (32, 128, 16, 32)
    assert Buffer("s", ()).size == 1


def test_statements_know_what_is_in_them() -> None:
    assert (BODY.loops, BODY.variables) == ({"i", "j", "k"}, {"i", "j", "k"})
    assert (BODY.reads, BODY.writes, BODY.allocates) == ({"n", "x", "y"}, {"t", "y"}, {"t"})
    (alloc,) = BODY.parts
    fill, guarded, dot, hint = alloc.parts[0].parts
    assert (fill.variables, guarded.variables, dot.reads, hint.reads) == ({"j"}, {"i", "k"}, {"x", "y"}, set())


def test_allocations_are_found_in_program_order() -> None:
    inner = Alloc(N, store(Y, (0,), 0))
    assert allocations(seq(BODY, For("l", 2, "serial", inner))) == [BODY.body, inner]
    assert allocations(store(Y, (0,), 0)) == []


def test_substitution_keeps_what_has_none_of_the_variables() -> None:
    after = substitute_stmt(BODY, {"k": J})
    assert isinstance(after, For) and isinstance(after.body, Alloc)
    before, now = BODY.body.parts[0].parts, after.body.parts[0].parts
    assert [a is b for a, b in zip(before, now, strict=True)] == [True, False, True, True]

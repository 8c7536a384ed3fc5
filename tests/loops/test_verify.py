"""The verifier accepts what create_program makes and names every kind of violation."""

import pytest

from burnish.errors import ScheduleError
from burnish.loops import tensor as t
from burnish.loops.expr import Binary, Buffer, Const, Expr, Load, Select, Var, all_of, cast, select
from burnish.loops.program import Alloc, For, If, Intrinsic, LoopProgram, Stmt, Store, seq, store
from burnish.loops.verify import verify

X, Y, N = Buffer("x", (8,)), Buffer("y", (8,)), Buffer("n", (8,), "int64")
I = Var("i")  # noqa: E741


def program(body: Stmt) -> LoopProgram:
    return LoopProgram("p", (X, N, Y), body)


def loop(body: Stmt, extent: int = 8, kind: str = "serial", name: str = "i") -> Stmt:
    return For(name, extent, kind, body)


def copy(index: Expr = I) -> Store:
    return Store(Y, (index,), Load(X, (I,)))


def test_accepts_guarded_and_gathered_accesses() -> None:
    gather = Load(X, (Load(N, (I,)),))
    shifted = select(all_of(I >= 1, I < 9), Load(X, (I - 1,)), 0.0)
    guarded = loop(If(I < 8, copy()), extent=10)
    blocked = loop(loop(If(Var("o") * 3 + I < 8, copy(Var("o") * 3 + I)), 3), 3, name="o")
    z, lane = Buffer("z", (3, 16)), Var("l")
    blocks = If(I * 32 + lane < 40, store(z, ((I * 32 + lane) // 16, lane % 16), 1.0))
    quotients = LoopProgram("q", (z,), loop(loop(blocks, 32, name="l"), 2))
    for body in (loop(store(Y, (I,), gather)), loop(store(Y, (I,), shifted)), guarded):
        verify(program(body))
    verify(program(loop(Store(Y, (I,), Load(X, (I,)), "sum"), kind="vectorize")))
    verify(quotients)
    verify(program(blocked))


BROKEN: list[tuple[Stmt, str]] = [
    (loop(copy(Var("j"))), "stage 'y', loops i: variable 'j' is not a loop around its use"),
    (loop(loop(copy())), "loop 'i' shadows the loop of the same name around it"),
    (loop(store(Buffer("t", (8,)), (I,), 0.0)), "buffer 't' is neither a parameter nor allocated around its use"),
    (seq(Alloc(Buffer("t", (8,)), loop(copy())), loop(store(Y, (I,), Load(Buffer("t", (8,)), (I,))))), "buffer 't' is"),
    (Alloc(X, loop(copy())), "buffer 'x' is declared twice"),
    (loop(store(Buffer("y", (9,)), (I,), 0.0)), "buffer 'y: float32[9]' is declared as 'y: float32[8]'"),
    (loop(store(Y, (I, I), 0.0)), "buffer 'y: float32[8]' is accessed with 2 indices"),
    (loop(copy(I + 1)), "loops i: index 0 of buffer 'y', '(i + 1)', may leave its 8 elements"),
    (loop(copy(I - 1)), "'(i - 1)', may leave its 8 elements"),
    (loop(If(I < 9, copy()), extent=10), "index 0 of buffer 'x', 'i', may leave its 8 elements"),
    (loop(Store(Y, (I,), Load(N, (I,)))), "value 'n[i]' has dtype int64, needed is float32"),
    (loop(Store(Y, (Load(X, (I,)),), Const(0.0, "float32"))), "index 'x[i]' has dtype float32, needed is int64"),
    (loop(Store(Y, (I,), Binary("+", Load(X, (I,)), Const(1)))), "have dtypes float32 and int64"),
    (loop(Store(Y, (I,), Select(I, Load(X, (I,)), Load(X, (I,))))), "has a condition of int64"),
    (loop(If(I, copy())), "condition 'i' has dtype int64, needed is bool"),
    (loop(copy(), kind="sideways"), "loop 'i' has unknown kind 'sideways'; allowed: serial, unroll"),
    (loop(copy(), extent=-1), "loop 'i' has negative extent -1"),
    (loop(Store(Y, (I,), Load(X, (I,)), "average")), "unknown reduction 'average'; allowed: sum"),
    (loop(Intrinsic("dot", (Load(Y, (I,)), Load(Buffer("t", (8,)), (I,))))), "stage 'dot', loops i: buffer 't'"),
    (
        loop(Store(Y, (I,), cast("float32", t.sum(Load(X, (I,)), t.reduce_axis(8)) < 1.0))),
        "may only occur in definitions",
    ),
]


@pytest.mark.parametrize(("body", "message"), BROKEN, ids=[m[:40] for _, m in BROKEN])
def test_violation_is_named(body: Stmt, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        verify(program(body))
    assert str(error.value).startswith("program 'p'")
    assert message in str(error.value)

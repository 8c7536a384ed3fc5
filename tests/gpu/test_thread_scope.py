"""Scope `thread`: parts that threads hold, what they may not read of each other, and warps that combine them."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.codegen.grid import compile_grid
from burnish.errors import ScheduleError
from burnish.loops.expr import PRIVATE, Buffer, Const, Expr, Load, Var
from burnish.loops.interpret import run_program
from burnish.loops.program import Alloc, For, Intrinsic, LoopProgram, Stmt, Store, seq
from burnish.machines.intrinsics import reference
from burnish.machines.nvptx.warp import KINDS, REDUCE
from burnish.simulators.gpu.emulator import GridEmulator
from tests.gpu.cases import SM80

X, Y = Buffer("x", (2, 32)), Buffer("y", (2, 32))
W, T = Var("w"), Var("t")


def threads(s: Stmt) -> Stmt:
    """Two warps."""
    return For("w", 2, "threadIdx.y", For("t", 32, "threadIdx.x", s))


def reading(index: tuple[Expr, ...]) -> LoopProgram:
    """A copy by way of what threads hold."""
    held = Buffer("held", (2, 32), "float32", PRIVATE)
    copy = threads(Store(held, (W, T), Load(X, (W, T))))
    return LoopProgram("kernel", (X, Y), Alloc(held, seq(copy, threads(Store(Y, (W, T), Load(held, index))))))


def run(program: LoopProgram, *arrays: np.ndarray) -> None:
    """Executes a program on coroutines."""
    code = compile_grid(program, SM80, assembled=False)
    assert ".shared" not in code.ptx and "bar.sync" not in code.ptx
    GridEmulator().run(code.packed(), [a.reshape(-1).view(np.uint8) for a in arrays])


def test_threads_hold_their_own_part_without_shared_memory() -> None:
    x = np.random.default_rng(0).standard_normal((2, 32)).astype("float32")
    y = np.zeros_like(x)
    run(reading((W, T)), x, y)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("index", [(W, Const(31) - T), (Const(1) - W, T), (W, Const(0))])
def test_what_another_thread_holds_is_refused(index: tuple[Expr, ...]) -> None:
    with pytest.raises(ScheduleError, match="each thread holds its own part, found index"):
        compile_grid(reading(index), SM80)


def test_threads_that_would_write_one_element_differently_are_refused() -> None:
    held = Buffer("held", (2,), "float32", PRIVATE)
    body = seq(threads(Store(held, (W,), Load(X, (W, T)))), threads(Store(Y, (W, T), Load(held, (W,)))))
    with pytest.raises(
        ScheduleError, match="'held' of scope 'thread' is written in loop 't', which is bound to threads"
    ):
        compile_grid(LoopProgram("kernel", (X, Y), Alloc(held, body)), SM80)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("kind", KINDS)
def test_warps_reduce_as_declared(kind: str, dtype: str) -> None:
    x, y = X.with_(dtype=dtype), Y.with_(dtype=dtype)
    part, number = Buffer("part", (2, 32), dtype, PRIVATE), Buffer("number", (2,), dtype, PRIVATE)
    together = Intrinsic(REDUCE[kind, dtype].name, (Load(number, (W,)), Load(part, (W, Const(0)))))
    body = seq(
        threads(Store(part, (W, T), Load(x, (W, T)))),
        For("w", 2, "threadIdx.y", seq(Store(number, (W,), Const(1, dtype)), together)),
        threads(Store(y, (W, T), Load(number, (W,)))),
    )
    program = LoopProgram("kernel", (x, y), Alloc(part, Alloc(number, body)))
    given = np.random.default_rng(0).uniform(1, 3, (2, 32)).astype(dtype)
    found = np.zeros_like(given)
    run(program, given, found)
    known = {t.name: reference(t) for t in REDUCE.values()}
    wanted = run_program(program, {"x": given}, known)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)

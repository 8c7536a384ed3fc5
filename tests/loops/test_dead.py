"""Stores to buffers of the kernel's own that nothing reads."""

import numpy as np

from burnish.loops.dead import drop_dead_stores
from burnish.loops.expr import Buffer, Load, Var
from burnish.loops.interpret import run_program
from burnish.loops.program import Alloc, For, LoopProgram, Store, seq, store
from burnish.loops.verify import verify

X, Y, S, T = (Buffer(name, (4,)) for name in "xyst")
I, J = Var("i"), Var("j")  # noqa: E741


def test_what_only_dead_buffers_need_is_dropped_too() -> None:
    first = For("i", 4, "serial", store(S, (I,), Load(X, (I,))))
    second = For("j", 4, "serial", seq(store(T, (J,), 0.0), Store(T, (J,), Load(S, (J,)), "sum")))
    last = For("k", 4, "serial", store(Y, (Var("k"),), Load(X, (Var("k"),))))
    program = LoopProgram("p", (X, Y), Alloc(S, Alloc(T, seq(first, second, last))))
    after = drop_dead_stores(program)
    assert after.body == last
    verify(after)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run_program(after, {"x": x})["y"], run_program(program, {"x": x})["y"])


def test_what_is_read_stays() -> None:
    first = For("i", 4, "serial", store(S, (I,), Load(X, (I,))))
    last = For("k", 4, "serial", store(Y, (Var("k"),), Load(S, (Var("k"),))))
    program = LoopProgram("p", (X, Y), Alloc(S, seq(first, last)))
    assert drop_dead_stores(program) == program

"""Register buffers end with the dimension that is vectorized."""

from collections.abc import Callable

import numpy as np
import pytest

from burnish.loops.expr import Buffer, Load, Var
from burnish.loops.interpret import run_program
from burnish.loops.program import Alloc, For, If, LoopProgram, Stmt, Store, seq
from burnish.loops.verify import verify
from burnish.lower.pipeline import simplify_program
from burnish.lower.registers import lanes_apart, vectors_innermost
from burnish.schedule.schedule import Schedule

Same = Callable[[LoopProgram, LoopProgram], None]
I, J, K = (Var(n) for n in "ijk")  # noqa: E741
X, Y = Buffer("x", (4, 8)), Buffer("y", (4, 8))


def through(buffer: Buffer, vector: str, scope: str = "register") -> LoopProgram:
    """y = x by way of ``buffer`` [8, 4], one of whose loops is vectorized in both nests."""

    def nest(body: Stmt, i: str, j: str) -> Stmt:
        return For(
            i,
            4,
            "vectorize" if vector == "i" else "unroll",
            For(j, 8, "vectorize" if vector == "j" else "unroll", body),
        )

    buffer = buffer.with_(scope=scope)
    a, b = Var("a"), Var("b")
    first = nest(Store(buffer, (J, I), Load(X, (I, J))), "i", "j")
    second = nest(If(b < 8, Store(Y, (a, b), Load(buffer, (b, a)))), "a", "b")
    return LoopProgram("p", (X, Y), Alloc(buffer, seq(first, second)))


T = Buffer("t", (8, 4))


@pytest.mark.parametrize("scope", ["local", "register"])
def test_each_lane_has_its_own_of_a_buffer_within(scope: str, native: Callable[..., dict]) -> None:
    """One that all lanes share would hold what the last of them stored."""
    t = Buffer("t", (2,), "float32", scope)
    inside = For("k", 2, "unroll", Store(t, (K,), Load(X, (I, J)) * 2.0))
    body = Alloc(t, seq(inside, Store(Y, (I, J), Load(t, (Var("l"),)) + Load(X, (I, J)))))
    before = LoopProgram("p", (X, Y), For("i", 4, "serial", For("l", 2, "unroll", For("j", 8, "vectorize", body))))
    after = lanes_apart(before)
    assert "alloc t: float32[2, 8]" in str(after) and "t[l, j]" in str(after)
    verify(after)
    x = np.arange(32, dtype="float32").reshape(4, 8)
    np.testing.assert_array_equal(run_program(after, {"x": x})["y"], 3 * x)
    np.testing.assert_array_equal(native(before, {"x": x})["y"], 3 * x)


def test_the_vectorized_dimension_moves_to_the_end(same: Same) -> None:
    before = through(T, "j")
    after = vectors_innermost(before)
    lines = [line.strip() for line in str(after).splitlines()]
    assert "alloc t: float32[4, 8] @register" in lines
    assert "t[i, j] = x[i, j]" in lines
    assert "y[a, b] = t[a, b]" in lines
    same(before, after)


def test_one_that_ends_with_it_stays() -> None:
    before = through(T, "i")
    assert vectors_innermost(before) == before


def test_memory_keeps_its_layout() -> None:
    before = through(T, "j", scope="local")
    assert vectors_innermost(before) == before


def test_two_vectorized_dimensions_leave_the_buffer_alone() -> None:
    a = Var("a")
    reg = Buffer("t", (8, 8), scope="register")
    square = Buffer("y", (8, 8))
    rows = For("i", 8, "unroll", For("j", 8, "vectorize", Store(reg, (I, J), Load(square, (I, J)))))
    columns = For("k", 8, "unroll", For("a", 8, "vectorize", Store(square, (a, K), Load(reg, (a, K)))))
    before = LoopProgram("p", (square,), Alloc(reg, seq(rows, columns)))
    assert vectors_innermost(before) == before


def test_of_a_register_tile(conv: Callable[..., Schedule], tiled: Callable[..., Schedule], same: Same) -> None:
    before = simplify_program(tiled(conv(4, 6), 3).program)
    after = vectors_innermost(before)
    assert "alloc y.register: float32[4, 1, 3] @register" in str(before)
    assert "alloc y.register: float32[1, 3, 4] @register" in str(after)
    same(before, after)

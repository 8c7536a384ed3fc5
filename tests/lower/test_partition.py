"""Tile loops are cut where their boundary conditions hold."""

from collections.abc import Callable

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from burnish.loops.expr import Buffer, Const, Load, Var, select
from burnish.loops.program import For, If, LoopProgram, Store
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.lower.guards import hoist_guards
from burnish.lower.partition import partition_loops
from burnish.lower.pipeline import simplify_program
from burnish.schedule.schedule import Schedule

Same = Callable[[LoopProgram, LoopProgram], None]
I, J = Var("i"), Var("j")  # noqa: E741


def tail(extent: int, tile: int, kind: str = "vectorize") -> LoopProgram:
    x = placeholder((extent,), name="x")
    s = Schedule(create_program("p", [x], [compute((extent,), lambda i: x[i] + 1.0, "y")]))
    getattr(s, kind)(s.split("y.i", tile)[1])
    return simplify_program(s.program)


def test_a_tail_becomes_a_part_of_its_own(same: Same) -> None:
    before = tail(10, 4)
    after = partition_loops(before)
    assert str(after).splitlines()[1:] == [
        "  for y.i.o~1 in 2:",
        "    for vectorize y.i.i in 4:",
        "      y[((y.i.o~1 * 4) + y.i.i)] = (x[((y.i.o~1 * 4) + y.i.i)] + 1.0)",
        "  for vectorize y.i.i in 4:",
        "    if (y.i.i < 2):",
        "      y[(y.i.i + 8)] = (x[(y.i.i + 8)] + 1.0)",
    ]
    same(before, after)


def test_both_borders_of_a_padded_tile(
    conv: Callable[..., Schedule], tiled: Callable[..., Schedule], same: Same
) -> None:
    """The first tile keeps the condition on the left border, the last that on the right, the middle none."""
    before = hoist_guards(simplify_program(tiled(conv(6, 8), 2).program))
    after = partition_loops(before)
    updates = [line.strip() for line in str(after).splitlines() if "+=" in line]
    conditions = [u.partition(" if ")[2].partition(" else ")[0] for u in updates]
    assert conditions == ["((y.register.v + y.register.s) >= 1)", "", "((y.register.v + y.register.s) < 3)"]
    same(before, after)


def test_conditions_outside_unrolled_and_vectorized_loops_do_not_count() -> None:
    before = tail(10, 4, "serial")
    assert partition_loops(before) == before


def test_parallel_loops_stay_whole() -> None:
    x, y = Buffer("x", (10,)), Buffer("y", (10,))
    at = I * 4 + J
    body = For("j", 4, "vectorize", If(at < 10, Store(y, (at,), Load(x, (at,)))))
    before = LoopProgram("p", (x, y), For("i", 3, "parallel", body))
    assert partition_loops(before) == before


def test_the_last_of_many_parallel_tiles_is_moved_back(same: Same) -> None:
    x, y = Buffer("x", (2, 199)), Buffer("y", (199,))
    at = I * 4 + J
    body = For("j", 4, "vectorize", If(at < 199, Store(y, (at,), Load(x, (Const(1), at)))))
    before = LoopProgram("p", (x, y), For("i", 50, "parallel", body))
    after = partition_loops(before)
    assert "parallel" in str(after)
    assert "if" not in str(after)
    same(before, after)


def test_a_condition_that_holds_nowhere_leaves_one_part(same: Same) -> None:
    x, y = Buffer("x", (12,)), Buffer("y", (12,))
    at = I * 4 + J
    value = select(J < 2, Load(x, (at,)), 0.0)
    before = LoopProgram("p", (x, y), For("i", 3, "serial", For("j", 4, "vectorize", Store(y, (at,), value))))
    assert partition_loops(before) == before


def test_the_last_of_two_blocks_is_cut_by_its_own_conditions(same: Same) -> None:
    """In the part where ``i`` is 1, the condition on ``i`` and ``j`` is one on ``j``, by a division of it at that."""
    x, y = Buffer("x", (8, 4)), Buffer("y", (8, 4))
    row, k = I * 5 + J, Var("k")
    store = Store(y, (row, k), Load(x, (row, k)))
    guarded = If((row + 4) // 2 < 6, For("k", 4, "vectorize", store))
    vectorized = For("k", 4, "vectorize", If((row + 4) // 2 < 6, store))
    for body in (guarded, vectorized):
        before = LoopProgram("p", (x, y), For("i", 2, "serial", For("j", 5, "serial", body)))
        after = partition_loops(before)
        assert ("if" in str(after)) == (body is guarded)  # outside of the vectorized loop a branch is cheap
        same(before, after)


def test_borders_that_reach_into_each_other(same: Same) -> None:
    """A window wider than the row: in the middle tile both conditions remain."""
    x, y = Buffer("x", (4,)), Buffer("y", (12,))
    at = I * 4 + J
    inside = (at >= 5, at < 7)
    value = select(inside[0], select(inside[1], Load(x, (at - 5,)), 0.0), 0.0)
    before = LoopProgram("p", (x, y), For("i", 3, "serial", For("j", 4, "unroll", Store(y, (at,), value))))
    after = partition_loops(before)
    assert str(after).count("if") == 2 * 1 and str(after) != str(before)
    same(before, after)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_padded_tile(
    conv: Callable[..., Schedule], tiled: Callable[..., Schedule], same: Same, data: st.DataObject
) -> None:
    height, width = data.draw(st.integers(2, 4)), data.draw(st.integers(2, 9))
    kernel, pad, step = (data.draw(st.integers(low, high)) for low, high in ((1, 3), (0, 3), (1, 2)))
    assume(min(height, width) + 2 * pad >= kernel)
    s = conv(height, width, kernel, pad, step, channels=2)
    before = simplify_program(tiled(s, data.draw(st.integers(1, 5))).program)
    after = partition_loops(before)
    same(before, after)
    same(before, simplify_program(after))

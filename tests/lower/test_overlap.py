"""The last tile of a loop is moved back to where it is whole."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.loops.expr import Buffer, Expr, Load, Var, select
from burnish.loops.program import For, If, LoopProgram, Stmt, Store, seq
from burnish.lower.guards import hoist_guards
from burnish.lower.overlap import overlapped
from burnish.lower.partition import partition_loops
from burnish.lower.pipeline import simplify_program
from burnish.schedule.schedule import Schedule

Same = Callable[[LoopProgram, LoopProgram], None]
I, J = Var("i"), Var("j")  # noqa: E741
X = Buffer("x", (99,))


def rows(extent: int, tile: int, store: Callable[[Expr], Stmt], kind: str = "vectorize") -> For:
    """Tiles of ``extent`` places with a condition on the end."""
    at = I * tile + J
    return For("i", -(-extent // tile), "serial", For("j", tile, kind, If(at < extent, store(at))))


def program(loop: Stmt, y: Buffer) -> LoopProgram:
    return LoopProgram("p", (X, y), loop)


def column(y: Buffer, reduce: str | None = None) -> Callable[[Expr], Stmt]:
    return lambda at: Store(y, (at,), Load(X, (at * 2,)), reduce)


def test_the_last_tile_moves_back(same: Same) -> None:
    y = Buffer("y", (43,))
    before = program(rows(43, 16, column(y)), y)
    after = partition_loops(before)
    assert str(after).splitlines()[1:] == [
        "  for i in 3:",
        "    for vectorize j in 16:",
        "      y[(min((i * 16), 27) + j)] = x[((min((i * 16), 27) * 2) + (j * 2))]",
    ]
    same(before, after)


def test_a_sum_is_stored_once(same: Same) -> None:
    """Unrolled places that the tile before has stored are skipped."""
    y = Buffer("y", (47,))
    before = program(rows(47, 8, column(y, "sum"), "unroll"), y)
    after = partition_loops(before)
    assert str(after).splitlines()[1:] == [
        "  for i in 6:",
        "    for unroll j in 8:",
        "      if (((j + min((i * 8), 39)) - (i * 8)) >= 0):",
        "        y[(min((i * 8), 39) + j)] += x[((min((i * 8), 39) * 2) + (j * 2))]",
    ]
    same(before, after)


def test_memory_that_an_argument_may_share_is_stored_once(same: Same) -> None:
    x, y = Buffer("x", (47,)), Buffer("y", (47,))
    loop = rows(47, 8, lambda at: Store(y, (at,), Load(x, (at,))), "unroll")
    before = LoopProgram("p", (x, y), loop)
    after = partition_loops(before)
    assert "if" in str(after) and str(after).count("y[") == 1
    same(before, after)
    assert overlapped(loop, (Buffer("x", (48,)), y), {}) == (overlapped(loop, (x, y), {}) or ())[:1] * 2


@pytest.mark.parametrize("reduce", ["sum", None])
def test_a_mask_in_every_tile_is_worse_than_a_tile_more(reduce: str | None, same: Same) -> None:
    """What must not be stored twice would need one in lanes."""
    y = Buffer("y", (43,))
    x = Buffer("x", (43,)) if reduce is None else X
    loop = rows(43, 16, lambda at: Store(y, (at,), Load(x, (at,)), reduce))
    before = LoopProgram("p", (x, y), loop)
    assert overlapped(loop, (x, y), {}) is None
    after = partition_loops(before)
    assert str(after).count("y[") == 2
    same(before, after)


def test_much_is_not_computed_twice() -> None:
    """Four of 20 places in unrolled code; lanes of a vector that are not needed take no time of their own."""
    y = Buffer("y", (20,))
    assert overlapped(rows(20, 8, column(y), "unroll"), (X, y), {}) is None
    assert overlapped(rows(20, 8, column(y)), (X, y), {}) is not None


@pytest.mark.parametrize(
    "store",
    [
        lambda y, at: seq(Store(y, (at,), Load(X, (at,))), Store(y, (I,), Load(X, (I,)))),
        lambda y, at: Store(y, (at,), Load(X, (at + I // 2,))),
    ],
    ids=["another place", "no multiple"],
)
def test_what_does_not_move_with_the_tile_stays(store: Callable[[Buffer, Expr], Stmt]) -> None:
    y = Buffer("y", (43,))
    assert overlapped(rows(43, 16, lambda at: store(y, at)), (X, y), {}) is None


def test_a_store_beside_the_end_stays_where_it_is() -> None:
    y = Buffer("y", (43,))
    loop = rows(43, 16, column(y))
    loop = For("i", 3, "serial", seq(loop.body, Store(y, (I * 16,), Load(X, (I * 16,)))))
    assert overlapped(loop, (X, y), {}) is None


def test_a_value_that_is_read_again_is_not_made_again() -> None:
    """``y`` is doubled in place: twice in what two tiles have in common, were it not asked whether it was."""
    y = Buffer("y", (47,))
    loop = rows(47, 8, lambda at: Store(y, (at,), Load(y, (at,)) * 2.0), "unroll")
    bare, ready = overlapped(loop, (X, y), {}) or (None, None)
    assert bare != ready and "if" in str(ready)


def test_few_padded_numbers_leave_a_tile_whole(
    conv: Callable[..., Schedule], tiled: Callable[..., Schedule], same: Same
) -> None:
    """Two of fourteen columns may be padding; of eight are too many, and so they are of every other tile's fourteen."""
    for width, tile, parts in ((56, 14, 1), (24, 8, 5), (28, 14, 4)):
        before = hoist_guards(simplify_program(tiled(conv(3, width), tile).program))
        after = partition_loops(before)
        assert str(after).count("+=") == parts
        same(before, after)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_tile_of_any_loop(same: Same, data: st.DataObject) -> None:
    extent, tile = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 8))
    kind, reduce = data.draw(st.sampled_from(["unroll", "vectorize"])), data.draw(st.sampled_from([None, "sum", "max"]))
    pad, width = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([extent, 99]))
    x, y = Buffer("x", (width,)), Buffer("y", (extent,))

    def store(at: Expr) -> Stmt:
        shifted = at - pad
        return Store(y, (at,), select(shifted >= 0, Load(x, (shifted,)), 0.0), reduce)

    before = LoopProgram("p", (x, y), rows(extent, tile, store, kind))
    same(before, partition_loops(before))

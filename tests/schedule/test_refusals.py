"""Primitives refuse by name what is unknown, ill-formed or would change the result."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from burnish.errors import ScheduleError
from burnish.loops import tensor as t
from burnish.loops.expr import Const, Expr, Literal, cast, equal, select
from burnish.loops.program import LoopProgram
from burnish.schedule.schedule import Schedule, replay


def program() -> LoopProgram:
    """c = a @ b; d = c + bias read twice; e = rows of d."""
    a, b = t.placeholder((8, 6), name="a"), t.placeholder((6, 8), name="b")
    k = t.reduce_axis(6, "k")
    c = t.compute((8, 8), lambda i, j: t.sum(a[i, k.var] * b[k.var, j], k), "c")
    d = t.compute((8, 8), lambda i, j: c[i, j] + 1.0, "d")
    e = t.compute((8, 8), lambda i, j: d[i, j] + d[7 - i, j], "e")
    return t.create_program("p", [a, b], [e])


def schedule(*calls: tuple[str, list[object]]) -> Schedule:
    return Schedule(replay(program(), calls))


CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: schedule().split("nothing", 2), "split: no loop 'nothing' in program 'p'"),
    (lambda: schedule().split("e.ii", 2), "loops there: e.i"),
    (lambda: schedule().split("e.i", 0), "split: loop 'e.i': factor 0"),
    (lambda: schedule().split("e.i"), "split: loop 'e.i' needs either a factor or a number of parts"),
    (lambda: schedule().split("e.i", 2, ("e.j", "x")), "split: loop name 'e.j' is already in use"),
    (lambda: schedule().stride("d.i", 9), "stride: loop 'd.i' has 8 iterations for 9 parts; allowed: 1 to 8"),
    (lambda: schedule(("unroll", ["d.i"])).stride("d.i", 2), "stride: loop 'd.i' is unroll; allowed: serial, parallel"),
    (lambda: schedule().stride("c.k", 2), "stride: loop 'c.k' carries a dependence"),
    (lambda: schedule().fuse("c.i", "c.k"), "fuse: loop 'c.k' is not nested directly in 'c.i'"),
    (lambda: schedule(("parallel", ["e.i"])).fuse("e.i", "e.j"), "fuse: loop 'e.i' is parallel but 'e.j' is serial"),
    (lambda: schedule().reorder("d.i", "e.j"), "reorder: loops d.i, e.j are not perfectly nested"),
    (lambda: schedule().reorder("e.i", "e.i"), "reorder: a loop is listed twice"),
    (lambda: schedule().expand("c"), "expand: stage 'c' sums products with b[c.k, c.j], which is no literal"),
    (lambda: schedule().expand("d"), "expand: stage 'd' has 0 reducing stores"),
    (lambda: schedule(("split", ["c.i", 3])).expand("c"), "expand: stage 'c' has conditions, parts, or other stages"),
    (lambda: schedule().scatter("c.i"), "scatter: loop 'c.i': no condition on what 'c' combines demands its value"),
    (lambda: schedule().scatter("d.i"), "scatter: loop 'd.i' is not around one reduction alone"),
    (lambda: schedule().parallel("c.k"), "parallel: loop 'c.k' carries a dependence: buffer 'c' is combined into by"),
    (lambda: schedule().bind("c.k", "threadIdx.x"), "bind: loop 'c.k' carries a dependence"),
    (lambda: schedule().bind("c.i", "thread"), "bind: loop 'c.i': unknown thread 'thread'"),
    (lambda: schedule().compute_at("e", "d.i"), "compute_at: 'e' is a parameter of program 'p'"),
    (lambda: schedule().compute_at("x", "d.i"), "compute_at: no stage 'x' in program 'p'; stages: c, d, e"),
    (lambda: schedule().compute_at("c", "e.i"), "compute_at: loop 'e.i' contains no consumer of stage 'c'"),
    (lambda: schedule().compute_at("c", "c.i"), "compute_at: loop 'c.i' belongs to stage 'c' itself"),
    (
        lambda: schedule(("split", ["c.i", 4])).compute_at("c", "d.i"),
        "compute_at: dimension 0 of stage 'c' is stored at",
    ),
    (lambda: schedule().compute_inline("c"), "compute_inline: stage 'c' is not one plain store"),
    (lambda: schedule().compute_inline("e"), "compute_inline: 'e' is a parameter"),
    (lambda: schedule(("split", ["d.i", 4])).compute_inline("d"), "not at plain loop variables; inline before"),
    (lambda: schedule().reverse_compute_at("d", "c.k"), "'c' is not final at the end of loop 'c.k'"),
    (lambda: schedule().reverse_compute_at("e", "d.i"), "reads dimension 0 of 'd' at"),
    (lambda: schedule().reverse_compute_at("e", "c.i"), "must produce one input of 'e'"),
    (lambda: schedule().cache_write("e", "nowhere"), "cache_write: buffer 'e': unknown scope 'nowhere'"),
    (lambda: schedule().cache_write("e", "local", "d"), "cache_write: buffer name 'd' is already in use"),
    (lambda: schedule().cache_read("a", "local", "e"), "cache_read: stage 'e' reads 'a' in 0 nests"),
    (lambda: schedule().set_scope("a", "local"), "set_scope: 'a' is a parameter"),
    (lambda: schedule().transform_layout("a", "ABC"), "buffer 'a' has 2 dimensions, layout ABC has 3"),
    (lambda: schedule().hoist_alloc("c", "e.i"), "hoist_alloc: buffer 'c' is not allocated inside loop 'e.i'"),
    (
        lambda: schedule(("compute_at", ["c", "d.i"]), ("parallel", ["d.i"])).hoist_alloc("c", "d.i"),
        "iterations of loop 'd.i', which run concurrently, would share 'c'",
    ),
    (lambda: schedule().pad("c.k", 4), "pad: loop 'c.k' cannot grow from 6 to 8"),
    (lambda: schedule().pad("e.i", 3), "pad: loop 'e.i' cannot grow from 8 to 9"),
    (lambda: schedule().partition("e.i", 8), "partition: loop 'e.i' has 8 iterations; cannot cut it at 8"),
    (lambda: schedule().peel("e.i", 4, 4), "peel: loop 'e.i' has 8 iterations"),
    (lambda: schedule(("compute_at", ["c", "d.i"])).distribute("d.i"), "'c' is allocated inside loop 'd.i'"),
    (
        lambda: schedule(("compute_at", ["c", "d.i"]), ("hoist_alloc", ["c", "d.i"])).distribute("d.i"),
        "distribute: loop 'd.i': its statements exchange elements of buffer 'c' between iterations",
    ),
    (
        lambda: schedule(("compute_at", ["c", "d.i"]), ("hoist_alloc", ["c", "d.i"])).parallel("d.i"),
        "parallel: loop 'd.i' carries a dependence: buffer 'c' is written by several iterations of 'd.i'",
    ),
    (lambda: schedule().rfactor("c", "c.i"), "rfactor: loop 'c.i' is not a reduction loop of stage 'c'"),
    (lambda: schedule().precompute("c", "c.j", "c.i"), "precompute: loop 'c.i' of stage 'c' is not in loop 'c.j'"),
    (lambda: schedule().rfactor("d", "d.i"), "rfactor: stage 'd' has 0 reducing stores"),
    (lambda: schedule().tensorize("c.i", "gemm"), "tensorize: loop 'c.i': unknown intrinsic 'gemm'"),
    (lambda: schedule().tensorize("c.i", "dot_u8s8_i32"), "loop 'c.i' has 8 iterations, declared are 16"),
    (lambda: replay(program(), [("halve", ["e.i"])]), "replay: unknown primitive 'halve'"),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[m[:50] for _, m in CASES])
def test_refusal_names_what_and_why(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        call()
    assert message in str(error.value)


def test_a_sum_counted_together_with_its_rows_is_not_written_out() -> None:
    x, k = t.placeholder((2,), "float32", "x"), t.reduce_axis(2, "k")
    two, three, four = (Const(c, "float32") for c in (2.0, 3.0, 4.0))
    factor = lambda i: select(equal(k.var, 0), two, select(equal(i, 0), three, four))  # noqa: E731
    y = t.compute((2,), lambda i: t.sum(x[k.var] * factor(i), k), "y")
    s = Schedule(t.create_program("whole", [x], [y]))
    s.fuse("y.i", "y.k")
    with pytest.raises(ScheduleError, match=r"expand: stage 'y' is summed along loop 'y\.i\.y\.k'"):
        s.expand("y")


@pytest.mark.parametrize(("zero", "refused"), [(Const(0.0, "float32"), True), (Literal(0.0, "float32"), False)])
def test_a_zero_of_data_is_a_term(zero: Expr, refused: bool) -> None:
    """It makes NaN of an infinite number; that of a matrix, which a definition is made of, makes nothing of it."""
    x, k = t.placeholder((2,), "float32", "x"), t.reduce_axis(2, "k")
    y = t.compute((1,), lambda i: t.sum(x[k.var] * select(equal(k.var, 0), zero, Const(3.0, "float32")), k), "y")
    with pytest.raises(ScheduleError, match="which is no literal") if refused else nullcontext():
        Schedule(t.create_program("whole", [x], [y])).expand("y")


def test_sums_of_whole_numbers_are_not_written_out() -> None:
    """Their parts are scaled by fractions."""
    x, k = t.placeholder((2,), "int32", "x"), t.reduce_axis(2, "k")
    factors = select(equal(k.var, 0), Const(2, "int32"), Const(3, "int32"))
    y = t.compute((1,), lambda i: t.sum(x[k.var] * factors, k), "y")
    with pytest.raises(ScheduleError, match="expand: stage 'y' is no sum of at most 64 products of floating numbers"):
        Schedule(t.create_program("whole", [x], [y])).expand("y")


def test_refused_call_leaves_the_schedule_as_it_was() -> None:
    s = schedule()
    before = s.program
    with pytest.raises(ScheduleError):
        s.parallel("c.k")
    assert s.program is before
    assert s.trace == []


def test_tensorize_refuses_other_strides() -> None:
    x, w = t.placeholder((4,), "uint8", "x"), t.placeholder((4, 16), "int8", "w")
    k = t.reduce_axis(4, "k")
    y = t.compute((16,), lambda i: t.sum(cast("int32", x[k.var]) * cast("int32", w[k.var, i]), k), "y")
    with pytest.raises(ScheduleError, match=r"does not step through memory like operand 'w'"):
        Schedule(t.create_program("p", [x, w], [y])).tensorize("y.i", "dot_u8s8_i32")

"""Any sequence of primitives that is not refused leaves a valid program which computes the same."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.errors import ScheduleError
from burnish.loops import tensor as t
from burnish.loops.expr import INDEX, INTS, Const, all_of, math, maximum, minimum, select, wrap
from burnish.loops.interpret import run_program
from burnish.loops.layout import Layout, layout
from burnish.loops.program import Intrinsic, LoopProgram, walk_stmt
from burnish.loops.simplify import simplify
from burnish.loops.traverse import substitute
from burnish.loops.verify import verify
from burnish.ops.interpolation import entry, matrices
from burnish.schedule.nest import all_loops, stage_names
from burnish.schedule.schedule import Schedule, replay
from tests.marks import slow_except


def matmul() -> LoopProgram:
    a, b = t.placeholder((5, 6), name="a"), t.placeholder((6, 4), name="b")
    k = t.reduce_axis(6, "k")
    c = t.compute((5, 4), lambda i, j: t.sum(a[i, k.var] * b[k.var, j], k), "c")
    return t.create_program("matmul", [a, b], [t.compute((5, 4), lambda i, j: maximum(c[i, j], 0.5), "d")])


def padded_conv() -> LoopProgram:
    x, w = t.placeholder((1, 2, 4, 5), name="x"), t.placeholder((3, 2, 3, 3), name="w")
    inside = lambda h, v: all_of(h >= 1, h < 5, v >= 1, v < 6)  # noqa: E731
    p = t.compute((1, 2, 6, 7), lambda n, c, h, v: select(inside(h, v), x[n, c, h - 1, v - 1], 0.0), "p")
    c, r, s = t.reduce_axis(2, "c"), t.reduce_axis(3, "r"), t.reduce_axis(3, "s")
    y = t.compute(
        (1, 3, 4, 5),
        lambda n, o, h, v: t.sum(p[n, c.var, h + r.var, v + s.var] * w[o, c.var, r.var, s.var], (c, r, s)),
        "y",
    )
    out = t.compute((1, 3, 4, 5), lambda n, o, h, v: maximum(y[n, o, h, v], 0.0), "out")
    return t.create_program("padded_conv", [x, w], [out])


def softmax() -> LoopProgram:
    x = t.placeholder((3, 5), name="x")
    k, m = t.reduce_axis(5, "k"), t.reduce_axis(5, "m")
    top = t.compute((3,), lambda i: t.max(x[i, k.var], k), "top")
    e = t.compute((3, 5), lambda i, j: math("exp", x[i, j] - top[i]), "e")
    total = t.compute((3,), lambda i: t.sum(e[i, m.var], m), "total")
    return t.create_program("softmax", [x], [t.compute((3, 5), lambda i, j: e[i, j] / total[i], "y")])


def pooling() -> LoopProgram:
    x = t.placeholder((2, 7, 7), name="x")
    r, s = t.reduce_axis(3, "r"), t.reduce_axis(3, "s")
    p = t.compute((2, 7, 7), lambda c, h, v: x[c, h, v] + 1.0, "p")
    y = t.compute((2, 3, 3), lambda c, h, v: t.max(p[c, h * 2 + r.var, v * 2 + s.var], (r, s)), "y")
    return t.create_program("pooling", [x], [y])


def transform() -> LoopProgram:
    """A vector times a literal matrix, and that times another: Winograd's transforms of one axis, and two more rows."""
    x = t.placeholder((3, 6), name="x")
    outer, _, data = matrices(4, 3)
    k, m = t.reduce_axis(6, "k"), t.reduce_axis(6, "m")
    p = t.compute((3, 6), lambda i, j: t.sum(entry(data, j, k.var, "float32") * x[i, k.var], k), "p")
    rows = np.vstack([outer, [[0, 2, 2, 0, -1, 3]], np.zeros((1, 6))])
    y = t.compute((3, 6), lambda i, j: t.sum(p[i, m.var] * entry(rows, j, m.var, "float32"), m), "y")
    return t.create_program("transform", [x], [y])


def divided() -> LoopProgram:
    """Integer division and remainder by what was loaded, zeros included, some of it padded."""
    x, d = t.placeholder((5, 7), "int32", "x"), t.placeholder((7,), "int32", "d")
    q = t.compute((5, 7), lambda i, j: x[i, j] // d[j], "q")
    p = t.compute((5, 9), lambda i, j: select(all_of(j >= 1, j < 8), q[i, j - 1], wrap(3, "int32")), "p")
    k = t.reduce_axis(3, "k")
    s = t.compute((5, 7), lambda i, j: t.sum(p[i, j + k.var] % x[i, j], k), "s")
    return t.create_program("divided", [x, d], [t.compute((5, 7), lambda i, j: s[i, j] // q[i, j], "y")])


def gathered() -> LoopProgram:
    """Rows at stored indices, of a join of two tensors, in a frame of padding."""
    x, at = t.placeholder((4, 5), name="x"), t.placeholder((6,), INDEX, "at")
    place = t.compute((6,), lambda i: minimum(maximum(select(at[i] < 0, at[i] + 4, at[i]), 0), 3), "place")
    both = t.compute((4, 10), lambda i, j: select(j < 5, x[i, j], x[i, j - 5] * 2.0), "both")
    g = t.compute((6, 10), lambda i, j: both[place[i], j], "g")
    framed = lambda i, j: select(all_of(i >= 1, i < 7, j >= 2), g[i - 1, j - 2], 0.5)  # noqa: E731
    p = t.compute((7, 12), framed, "p")
    k = t.reduce_axis(7, "k")
    return t.create_program("gathered", [x, at], [t.compute((12,), lambda j: t.sum(p[k.var, j], k), "y")])


def chosen() -> LoopProgram:
    """Branches taken by conditions that load, and that others allow to load."""
    x, m = t.placeholder((5, 7), name="x"), t.placeholder((7,), "int32", "m")
    left = t.compute((5, 7), lambda i, j: select(j >= 1, x[i, j - 1], -1.0), "left")
    c = t.compute((5, 7), lambda i, j: select(m[j] > 0, left[i, j], select(i < 4, x[i + 1 - i // 4, j], 0.25)), "c")
    k = t.reduce_axis(7, "k")
    kept = lambda i, j: select(all_of(j >= 2, j < 9), select(m[j - 2] < 1, c[i, j - 2], 0.0), 0.0)  # noqa: E731
    p = t.compute((5, 9), kept, "p")
    return t.create_program("chosen", [x, m], [t.compute((5, 3), lambda i, j: t.sum(p[i, k.var + j], k), "y")])


BUILDERS: list[Callable[[], LoopProgram]] = [
    matmul, padded_conv, softmax, pooling, transform, divided, gathered, chosen,
]  # fmt: skip
BLOCKED = {2: ["AB4b", "BA", "AB2a4b"], 3: ["ABC2a", "BCA", "ABC4c"], 4: ["ABCD2b", "ACDB", "ABCD2b4a", "ABCD4d"]}


def draw_call(draw: Callable[[st.SearchStrategy], object], program: LoopProgram) -> tuple[str, list[object]]:
    """A random call whose names exist; it may well be refused."""
    names = [loop.var for loop in all_loops(program.body)]
    loop = st.sampled_from(names)
    stage = st.sampled_from(stage_names(program))
    buffer = st.sampled_from([*(p.name for p in program.params), *sorted(program.body.allocates)])
    number = st.integers(1, 5)
    calls = st.one_of(
        st.tuples(st.sampled_from(["split", "stride"]), st.tuples(loop, number)),
        st.tuples(st.just("fuse"), neighbours(program)),
        st.tuples(st.just("reorder"), st.permutations(names).map(lambda order: order[:2])),
        st.tuples(st.just("reorder"), neighbours(program).map(swap)),
        st.tuples(st.sampled_from(["unroll", "vectorize", "parallel", "vthread", "distribute"]), st.tuples(loop)),
        st.tuples(st.sampled_from(["compute_at", "reverse_compute_at", "rfactor"]), st.tuples(stage, loop)),
        st.tuples(st.sampled_from(["compute_at", "reverse_compute_at"]), st.tuples(stage, loop)),
        st.tuples(st.sampled_from(["compute_inline", "expand"]), st.tuples(stage)),
        st.tuples(st.just("cache_write"), st.tuples(buffer, st.just("local"))),
        st.tuples(st.just("cache_read"), st.tuples(buffer, st.just("local"), stage)),
        st.tuples(st.sampled_from(["pad", "fill", "partition"]), st.tuples(loop, number)),
        st.tuples(st.sampled_from(["reverse", "scatter"]), st.tuples(loop)),
        st.tuples(st.just("prefetch"), st.tuples(buffer, loop, loop, number)),
        st.tuples(st.just("peel"), st.tuples(loop, st.integers(0, 2), st.integers(0, 2))),
        st.tuples(st.just("hoist_alloc"), st.tuples(buffer, loop)),
        st.tuples(st.just("precompute"), st.tuples(stage, loop, loop)),
    )
    name, args = draw(calls)  # type: ignore[misc]
    return name, list(args)


def neighbours(program: LoopProgram) -> st.SearchStrategy[tuple[str, str]]:
    """Two loops, one directly inside the other."""
    loops = all_loops(program.body)
    pairs = [(a.var, b.var) for a, b in pairwise(loops) if a.body is b]
    return st.sampled_from(pairs) if pairs else st.just((loops[0].var, loops[-1].var))


def swap(pair: tuple[str, str]) -> tuple[str, str]:
    return pair[1], pair[0]


def inputs(program: LoopProgram) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    scaled = {p.name: rng.standard_normal(p.shape) * (3 if p.dtype in INTS else 1) for p in program.params}
    return {p.name: scaled[p.name].astype(p.dtype) for p in program.params}


def scheduled(program: LoopProgram, draw: Callable[[st.SearchStrategy], object]) -> tuple[Schedule, dict[str, Layout]]:
    """A random sequence of primitives, and the layouts that it gave to parameters."""
    schedule = Schedule(program)
    layouts: dict[str, Layout] = {}
    for buffer in program.params:
        tags = BLOCKED.get(len(buffer.shape), [])
        tag = draw(st.sampled_from(["", *tags]))
        if tag:
            layouts[buffer.name] = layout(tag)  # type: ignore[arg-type]
            schedule.transform_layout(buffer.name, tag)
    for _ in range(draw(st.integers(1, 7))):  # type: ignore[call-overload]
        name, args = draw_call(draw, schedule.program)
        try:
            getattr(schedule, name)(*args)
        except ScheduleError:
            continue
        verify(schedule.program)
    return schedule, layouts


def agree(
    run: Callable[..., dict[str, np.ndarray]], program: LoopProgram, s: Schedule, layouts: dict[str, Layout]
) -> None:
    """``run`` of the schedule gives what the interpreter gives of the program that it began with."""
    arrays = inputs(program)
    expected = run_program(program, arrays)
    packed = {n: layouts[n].pack(a) if n in layouts else a for n, a in arrays.items()}
    found = run(s.program, packed)
    for name, array in expected.items():
        actual = layouts[name].unpack(found[name], array.shape) if name in layouts else found[name]
        np.testing.assert_allclose(actual, array, rtol=1e-5, atol=1e-6, err_msg=str(s))


@pytest.mark.parametrize("build", slow_except(BUILDERS, matmul, gathered))
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_schedules_keep_the_meaning(build: Callable[[], LoopProgram], data: st.DataObject) -> None:
    program = build()
    schedule, layouts = scheduled(program, data.draw)
    agree(run_program, program, schedule, layouts)
    assert replay(program, schedule.trace) == schedule.program


@pytest.mark.parametrize("build", slow_except(BUILDERS, softmax, divided))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_schedules_keep_the_meaning_as_code(
    native: Callable[..., dict[str, np.ndarray]], build: Callable[[], LoopProgram], data: st.DataObject
) -> None:
    """Between forbidden pages; what code generation refuses by name is no failure."""
    program = build()
    schedule, layouts = scheduled(program, data.draw)
    edge = data.draw(st.sampled_from(["start", "end"]))
    with suppress(ScheduleError):
        agree(partial(native, edge=edge), program, schedule, layouts)


def test_what_is_read_at_a_loaded_position_is_computed_whole() -> None:
    """The position is known under a condition only, outside of which it must not be loaded to tell what is needed."""
    program = gathered()
    schedule = Schedule(program)
    schedule.compute_inline("g")
    schedule.compute_at("both", "p.i")
    verify(schedule.program)
    agree(run_program, program, schedule, {})


def test_rows_of_literals_are_written_out() -> None:
    program = transform()
    schedule = Schedule(program)
    schedule.expand("p")
    schedule.expand("y")
    verify(schedule.program)
    assert "+=" not in str(schedule)
    assert replay(program, schedule.trace) == schedule.program
    arrays = inputs(program)
    found, expected = (run_program(p, arrays)["y"] for p in (schedule.program, program))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert (found[:, 5] == 0).all()


@pytest.mark.parametrize(
    ("move", "left"),
    [
        (lambda s: s.compute_inline("p"), 0),
        (lambda s: s.compute_at("p", "y.v"), 0),
        (lambda s: s.compute_at("p", "y.c"), 2),
    ],
    ids=["inlined", "inside", "around"],
)
def test_hints_end_with_the_buffer_that_they_are_about(move: Callable[[Schedule], None], left: int) -> None:
    program = pooling()
    schedule = Schedule(program)
    schedule.prefetch("p", "y.h", "y.h", 1)
    assert str(schedule.program).count("prefetch(p") == 2
    move(schedule)
    verify(schedule.program)
    assert str(schedule.program).count("prefetch(p") == left
    arrays = inputs(program)
    np.testing.assert_allclose(run_program(schedule.program, arrays)["y"], run_program(program, arrays)["y"], rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pad("p.init.i", 2),
        lambda s: s.set_scope("p", "local"),
        lambda s: s.transform_layout("p", "BA"),
    ],
    ids=["enlarged", "elsewhere", "transposed"],
)
def test_hints_go_with_the_buffer_that_they_are_about(change: Callable[[Schedule], None]) -> None:
    program = transform()
    schedule = Schedule(program)
    schedule.prefetch("p", "y.i", "y.i", 1)
    change(schedule)
    verify(schedule.program)
    assert "prefetch(p" in str(schedule.program)
    arrays = inputs(program)
    found, expected = (run_program(p, arrays)["y"] for p in (schedule.program, program))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_hints_of_loops_counted_as_one_go_on_where_the_inner_one_ends() -> None:
    x = t.placeholder((3, 4, 16), name="x")
    program = t.create_program("double", [x], [t.compute((3, 4, 16), lambda i, j, k: x[i, j, k] * 2.0, "y")])
    schedule = Schedule(program)
    i, j, _ = schedule.loops("y")
    schedule.prefetch("x", j, (i, j))
    verify(schedule.program)
    assert replay(program, schedule.trace) == schedule.program
    (hint,) = (s.operands[0] for s in walk_stmt(schedule.program.body) if isinstance(s, Intrinsic))
    for now in range(12):
        at = {i: Const(now // 4, INDEX), j: Const(now % 4, INDEX)}
        assert [simplify(substitute(e, at)) for e in hint.indices[:2]] == [
            Const(min(now + 1, 11) // 4, INDEX), Const(min(now + 1, 11) % 4, INDEX)
        ]  # fmt: skip


def test_hints_at_a_box_count_the_lines_of_every_row_and_end_with_the_buffer() -> None:
    x = t.placeholder((10, 40), name="x")
    program = t.create_program("double", [x], [t.compute((10, 40), lambda i, j: x[i, j] * 2.0, "y")])
    schedule = Schedule(program)
    i, j = schedule.loops("y")
    (rows, i), (columns, j) = schedule.split(i, 4), schedule.split(j, 32)
    schedule.reorder(columns, rows, i, j)
    schedule.prefetch("x", rows, rows)
    verify(schedule.program)
    hints = [s.operands[0] for s in walk_stmt(schedule.program.body) if isinstance(s, Intrinsic)]
    for row, column in ((0, 0), (1, 1), (2, 1)):
        at = {rows: Const(row, INDEX), columns: Const(column, INDEX)}
        found = [tuple(int(str(simplify(substitute(e, at)))) for e in hint.indices) for hint in hints]
        later = 4 * min(row + 1, 2)
        wanted = [(min(later + k, 9), min(32 * column + line, 39)) for k in range(4) for line in (0, 16)]
        assert found == wanted
    expected = run_program(program, arrays := inputs(program))["y"]
    np.testing.assert_array_equal(run_program(schedule.program, arrays)["y"], expected)


def test_a_loop_that_reads_nothing_of_a_buffer_hints_at_what_the_loop_around_it_reads() -> None:
    """The rows of ``x`` that the next iteration of ``i`` sums, shared out among the iterations of ``j``."""
    x = t.placeholder((4, 64), name="x")
    k = t.reduce_axis(64, "k")
    total = t.compute((4,), lambda i: t.sum(x[i, k.var], k), "total")
    program = t.create_program("rows", [x], [t.compute((4, 8), lambda i, j: total[i] * 2.0, "y")])
    schedule = Schedule(program)
    i, j = schedule.loops("y")
    schedule.compute_at("total", i)
    schedule.prefetch("x", j, i, 1, j)
    verify(schedule.program)
    assert replay(program, schedule.trace) == schedule.program
    (hint,) = (s.operands[0] for s in walk_stmt(schedule.program.body) if isinstance(s, Intrinsic))
    lines = {
        tuple(str(simplify(substitute(e, {i: Const(1, INDEX), j: Const(at, INDEX)}))) for e in hint.indices)
        for at in range(8)
    }
    assert lines == {("2", str(16 * line)) for line in range(4)}
    expected = run_program(program, arrays := inputs(program))["y"]
    np.testing.assert_allclose(run_program(schedule.program, arrays)["y"], expected, rtol=1e-6)

"""Schedule primitives on loops whose extents are sizes: what they make, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burnish.errors import ScheduleError
from burnish.loops.expr import Const
from burnish.loops.interpret import run_program
from burnish.loops.program import For, Intrinsic, LoopProgram, walk_stmt
from burnish.loops.simplify import simplify
from burnish.loops.sizes import dim
from burnish.loops.specialize import dims_of_program, program_at
from burnish.loops.tensor import Tensor, compute, create_program, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.loops.traverse import substitute
from burnish.loops.verify import verify
from burnish.schedule.schedule import Schedule

N, M = dim("n", 1, 12, hint=7), dim("m", 1, 9, hint=4)


def doubled(n: Any, m: Any) -> Schedule:
    x = placeholder((n, m), name="x")
    return Schedule(create_program("p", [x], [compute((n, m), lambda i, j: x[i, j] * 2.0)]))


def product(n: Any, m: Any) -> tuple[list[Tensor], Tensor]:
    a, b = placeholder((n, 5), name="a"), placeholder((5, m), name="b")
    k = reduce_axis(5, "k")
    return [a, b], compute((n, m), lambda i, j: sum_over(a[i, k.var] * b[k.var, j], k), "c")


def same(program: LoopProgram, names: dict[str, tuple[str, ...]], expected: Any) -> None:
    """Whether the program gives what ``expected`` makes of its inputs, at some sizes; ``names``: their dimensions."""
    verify(program)
    for n, m in [(1, 1), (3, 9), (7, 4), (8, 8), (12, 5)]:
        sizes = {"n": n, "m": m}
        shapes = {name: tuple(sizes.get(d) or int(d) for d in dims) for name, dims in names.items()}
        feeds = {name: np.random.default_rng(0).standard_normal(s).astype(np.float32) for name, s in shapes.items()}
        (found,) = run_program(program_at(program, sizes), feeds).values()
        np.testing.assert_allclose(found, expected(**feeds), rtol=1e-5, atol=1e-5)


def test_two_symbolic_loops_fuse_and_run_in_parallel() -> None:
    s = doubled(N, M)
    s.parallel(s.fuse("y.i", "y.j", "ij"))
    assert "for parallel ij in m*n:" in str(s.program) and "x[(ij // m), (ij % m)]" in str(s.program)
    same(s.program, {"x": ("n", "m")}, lambda x: x * 2)


def test_tiles_of_two_symbolic_loops_fuse_and_run_in_parallel() -> None:
    s = doubled(N, M)
    io, jo, *_ = s.tile("y.i", "y.j", 4, 8)
    s.parallel(s.fuse(io, jo, "t"))
    assert "for parallel t in ((m + 7) // 8)*((n + 3) // 4):" in str(s.program)
    same(s.program, {"x": ("n", "m")}, lambda x: x * 2)


def test_parallel_iterations_that_share_an_element_are_refused() -> None:
    x = placeholder((N, M), name="x")
    k = reduce_axis(N, "k")
    s = Schedule(create_program("p", [x], [compute((M,), lambda j: sum_over(x[k.var, j], k))]))
    fused = s.fuse("y.j", "y.k")
    with pytest.raises(ScheduleError, match=r"parallel: loop 'y\.j\.y\.k' carries a dependence"):
        s.parallel(fused)
    s.vectorize(s.split("y.init.j", 4)[1])
    same(s.program, {"x": ("n", "m")}, lambda x: x.sum(0))


def test_a_stage_shrinks_to_the_tile_that_reads_it() -> None:
    inputs, c = product(N, M)
    out = compute((N, M), lambda i, j: c[i, j] + 1.0, "y")
    s = Schedule(create_program("p", inputs, [out]))
    over, _ = s.split("y.i", 4)
    s.compute_at("c", over)
    assert "alloc c: float32[4, m]" in str(s.program)
    same(s.program, {"a": ("n", "5"), "b": ("5", "m")}, lambda a, b: a @ b + 1)


def test_pad_makes_whole_tiles_of_an_intermediate() -> None:
    x = placeholder((N,), name="x")
    t = compute((N,), lambda i: x[i] * 2.0, "t")
    s = Schedule(create_program("p", [x], [compute((N,), lambda i: t[i] + 1.0)]))
    s.fill("t.i", 4)
    assert "alloc t: float32[((n + 3) // 4)*4]" in str(s.program) and "for t.i in ((n + 3) // 4)*4:" in str(s.program)
    same(s.program, {"x": ("n",)}, lambda x: x * 2 + 1)


def test_pad_leaves_out_blocks_that_lie_beyond_a_symbolic_border() -> None:
    x = placeholder((N * 3 + 24,), name="x")
    t = compute((N * 3,), lambda i: x[i] * 2.0, "t")
    s = Schedule(create_program("p", [x], [compute((N * 3,), lambda i: t[i] + 1.0)]))
    block, _ = s.split("y.i", 12)
    s.compute_at("t", block)
    s.pad("t.i", 4)
    over, _ = s.split("t.i", 4)
    text = str(s.program)
    assert "(t.i.i" not in text.split("if ")[1].split(":")[0] and text.count("if ") == 2, text
    assert f"for {over} in 3:" in text and "alloc t: float32[12]" in text
    verify(s.program)
    for n in (1, 3, 4, 5, 12):
        x_ = np.arange(n * 3 + 24, dtype=np.float32)
        found = run_program(program_at(s.program, {"n": n}), {"x": x_})
        np.testing.assert_array_equal(found["y"], x_[: n * 3] * 2 + 1)


@pytest.mark.parametrize("primitive", ["unroll", "vectorize"])
def test_what_is_written_out_needs_a_number_of_iterations(primitive: str) -> None:
    with pytest.raises(ScheduleError, match=f"{primitive}: loop 'y.j' has m iterations; allowed: a number of them"):
        getattr(doubled(N, M), primitive)("y.j")


def test_hints_are_left_out_where_it_is_not_known_how_much_is_read() -> None:
    s = doubled(N, M)
    before = s.program
    s.prefetch("x", "y.i", "y.i")
    assert s.program == before
    rows = doubled(N, 32)
    rows.prefetch("x", "y.i", "y.i")
    assert "prefetch(x[min((y.i + 1), (n - 1)), 16], locality=2)" in str(rows.program)
    verify(rows.program)


def test_a_program_knows_its_dimensions_in_order() -> None:
    assert [d.name for d in dims_of_program(doubled(N, M).program)] == ["m", "n"]
    assert dims_of_program(doubled(3, 4).program) == ()
    assert str(program_at(doubled(N, M).program, {"n": 3, "m": 4})) == str(doubled(3, 4).program)


def test_few_tiles_of_rows_ask_for_all_of_the_next_panel_too() -> None:
    """Prefetched lines that a symbolic loop shares: whatever its size in a call, together they are the whole panel."""
    rows = dim("rows", 1, 200, hint=96)
    a, b = placeholder((rows, 30), name="a"), placeholder((3, 30, 32), name="b")
    k = reduce_axis(30, "k")
    c = compute((3, rows, 32), lambda p, i, j: sum_over(a[i, k.var] * b[p, k.var, j], k), "c")
    s = Schedule(create_program("p", [a, b], [c]))
    tile, _ = s.split("c.i", 8)
    s.prefetch("b", tile, "c.p", 1, tile)
    verify(s.program)
    for size in (1, 7, 8, 9, 31, 96, 200):
        program = program_at(s.program, {"rows": size})
        lines = set()
        for loop in walk_stmt(program.body):
            if isinstance(loop, For) and loop.var == f"{tile}.b.line":
                (hint,) = [h for h in walk_stmt(loop.body) if isinstance(h, Intrinsic)]
                (load,) = hint.operands
                for at in range(-(-size // 8)):
                    for line in range(loop.extent):
                        known = {"c.p": Const(0), tile: Const(at), loop.var: Const(line)}
                        lines.add(tuple(int(str(simplify(substitute(i, known)))) for i in load.indices))
        assert lines == {(1, row, column) for row in range(30) for column in (0, 16)}, size

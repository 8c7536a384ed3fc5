"""Remainder versions: whole tiles without conditions, and every row left over computed once, at every size."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.loops.interpret import run_program
from burnish.loops.program import LoopProgram
from burnish.loops.sizes import dim
from burnish.loops.specialize import program_at
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.loops.verify import verify
from burnish.lower.partition import partition_loops
from burnish.lower.pipeline import lower
from burnish.schedule.schedule import Schedule

HIGH = 50


def tiled(rows: int, fused: bool) -> LoopProgram:
    """y = x + 1 by tiles of so many unrolled rows; ``fused``: with the columns, in a parallel loop."""
    n = dim("n", 1, HIGH)
    x = placeholder((n, 6), name="x")
    y = compute((n, 6), lambda i, j: x[i, j] + 1.0)
    s = Schedule(create_program("p", [x], [y]))
    over, row = s.split("y.i", rows)
    s.reorder("y.j", over, row)
    s.unroll(row)
    if fused:
        s.parallel(s.fuse("y.j", over))
    return s.program


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rows", [3, 8, 14, 24])
def test_every_row_is_computed_once(rows: int, fused: bool) -> None:
    lowered = lower(tiled(rows, fused))
    verify(lowered)
    for n in {*range(1, 10), rows - 1, rows, rows + 1, 2 * rows + 7, HIGH}:
        x = np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32)
        (found,) = run_program(program_at(lowered, {"n": n}), {"x": x}).values()
        assert np.array_equal(found, x + 1)


def test_a_serial_loop_is_whole_tiles_and_a_tile_of_each_number_of_rows() -> None:
    assert str(partition_loops(tiled(3, False))) == (
        "program p(x: float32[n, 6], y: float32[n, 6]):\n"
        "  for y.j in 6:\n"
        "    for y.i.o~1 in (n // 3):\n"
        "      for unroll y.i.i in 3:\n"
        "        y[((y.i.o~1 * 3) + y.i.i), y.j] = (x[((y.i.o~1 * 3) + y.i.i), y.j] + 1.0)\n"
        "    if ((n - (n // 3)*3) == 1):\n"
        "      for unroll y.i.i in 3:\n"
        "        if (y.i.i < 1):\n"
        "          y[(((n // 3) * 3) + y.i.i), y.j] = (x[(((n // 3) * 3) + y.i.i), y.j] + 1.0)\n"
        "    if ((n - (n // 3)*3) == 2):\n"
        "      for unroll y.i.i in 3:\n"
        "        if (y.i.i < 2):\n"
        "          y[(((n // 3) * 3) + y.i.i), y.j] = (x[(((n // 3) * 3) + y.i.i), y.j] + 1.0)\n"
    )


def test_a_fused_loop_asks_once_whether_its_tile_is_whole() -> None:
    text = str(lower(tiled(14, True)))
    tile = "(y.j.y.i.o % ((n + 13) // 14))"
    assert text.count(f"if (({tile} - (n // 14)) < 0)") == text.count(f"if (({tile} - (n // 14)) >= 0)") == 1
    assert [f"== {rows})" in text for rows in range(1, 8)] == [True] * 7 and ">= 8)" in text


def test_a_loop_without_an_unrolled_tile_is_cut_only() -> None:
    n = dim("n", 1, HIGH)
    x = placeholder((n,), name="x")
    s = Schedule(create_program("p", [x], [compute((n,), lambda i: x[i] + 1.0)]))
    s.vectorize(s.split("y.i", 8)[1])
    text = str(lower(s.program))
    assert "for y.i.o~1 in (n // 8):" in text and "for y.i.o~2 in (((n + 7) // 8) - (n // 8)):" in text

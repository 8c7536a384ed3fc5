"""Loaded extents: what decides comparisons, how loops over them print, are verified, scheduled and interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.errors import ScheduleError, VerificationError
from burnish.loops.domain import domains, row_offsets
from burnish.loops.expr import INDEX, Load, Var, cast
from burnish.loops.interpret import run_program
from burnish.loops.loaded import LoadedExtent
from burnish.loops.program import For, LoopProgram, substitute_stmt
from burnish.loops.sizes import dim, greatest, hinted, least
from burnish.loops.specialize import program_at
from burnish.loops.tensor import Tensor, compute, create_program, placeholder, rows_axis
from burnish.loops.tensor import sum as sum_over
from burnish.loops.verify import verify
from burnish.schedule.schedule import Schedule, replay

VERTICES, COUNT, EDGES, WIDTH = 6, 5, 11, 4
OFFSETS = np.array([0, 0, 4, 5, 5, 10, 11])
SOURCES = np.random.default_rng(0).integers(0, COUNT, EDGES).astype(np.int32)


def neighbours(vertices: int = VERTICES, edges: int = EDGES) -> tuple[list[Tensor], Tensor]:
    x, o = placeholder((COUNT, WIDTH), "float32", "x"), placeholder((vertices + 1,), "int64", "o")
    s = placeholder((edges,), "int32", "s")

    def element(v: Var, f: Var) -> object:
        e = rows_axis(o, v, edges)
        return sum_over(x[cast(INDEX, s[e.var]), f], e)

    return [x, o, s], compute((vertices, WIDTH), element, "y")  # type: ignore[arg-type]


def program(vertices: int = VERTICES, edges: int = EDGES) -> LoopProgram:
    inputs, y = neighbours(vertices, edges)
    return create_program("p", inputs, [y])


def feeds() -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((COUNT, WIDTH)).astype(np.float32)
    return {"x": x, "o": OFFSETS, "s": SOURCES}


def expected() -> np.ndarray:
    x = feeds()["x"]
    return np.stack([x[SOURCES[OFFSETS[v] : OFFSETS[v + 1]]].sum(0) for v in range(VERTICES)])


def loop(p: LoopProgram, name: str) -> For:
    stack = [p.body]
    while stack:
        s = stack.pop()
        if isinstance(s, For) and s.var == name:
            return s
        stack.extend(s.parts)
    raise AssertionError(name)


def test_bounds_decide_comparisons() -> None:
    o = placeholder((7,), "int64", "o")
    extent: int = LoadedExtent(o[0], o[1], 11, 2)  # type: ignore[assignment]
    assert (least(extent), greatest(extent), hinted(extent)) == (0, 11, 2)
    assert extent < 12 and extent >= 0 and extent <= 11 and not extent > 11 and not extent < 0
    with pytest.raises(TypeError, match="known only when it is read"):
        bool(extent > 1)


def test_loops_print_where_they_run() -> None:
    p = program()
    verify(p)
    assert "for y.e in o[y.v]..o[(y.v + 1)] (of 11):" in str(p)
    e = loop(p, "y.e")
    assert {"o", "x", "s"} <= e.reads and "y.v" in e.variables
    moved = substitute_stmt(e, {"y.v": Var("z") * 2})
    assert "o[(z * 2)]..o[((z * 2) + 1)]" in str(moved)


def test_ends_are_verified() -> None:
    p = program()
    stretched = LoopProgram("p", p.params, For("y.v", VERTICES + 1, "serial", loop(p, "y.v").body))
    with pytest.raises(ScheduleError, match=r"index 0 of buffer 'o', '.y.v \+ 1.', may leave its 7 elements"):
        verify(stretched)


def test_primitives_refuse_what_they_cannot() -> None:
    s = Schedule(program())
    for refused in (lambda: s.split("y.e", 4), lambda: s.unroll("y.e"), lambda: s.vectorize("y.e"),
                    lambda: s.reverse("y.e"), lambda: s.fuse("y.f", "y.e")):  # fmt: skip
        with pytest.raises(ScheduleError, match="allowed: a loop from 0 on"):
            refused()
    with pytest.raises(ScheduleError, match=r"depends on loop 'y\.v' inside it"):
        s.reorder("y.e", "y.v")
    with pytest.raises(ScheduleError, match="found buffer 'x"):
        s.balance("y.v", 2, "x")


@pytest.mark.parametrize("parts", [1, 2, 3, 16])
def test_balanced_parts_cover_all_iterations(parts: int) -> None:
    s = Schedule(program())
    v, f, e = s.loops("y")
    s.reorder(v, e, f)
    assert s.balance(v, parts, "o") == "y.v.part"
    verify(s.program)
    again = replay(program(), s.trace)
    assert str(again) == str(s.program)
    np.testing.assert_allclose(run_program(s.program, feeds())["y"], expected(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 5])
def test_balanced_parts_cover_an_open_number_of_iterations(parts: int) -> None:
    s = Schedule(program(dim("v", 0, 40, hint=6), dim("m", 0, 1 << 40, hint=11)))
    v, f, e = s.loops("y")
    s.reorder(v, e, f)
    s.balance(v, parts, "o")
    verify(s.program)
    found = run_program(program_at(s.program, {"v": VERTICES, "m": EDGES}), feeds())["y"]
    np.testing.assert_allclose(found, expected(), rtol=1e-6, atol=1e-6)


def test_prefetched_rows_stay_inside() -> None:
    s = Schedule(program())
    v, f, e = s.loops("y")
    s.reorder(v, e, f)
    s.prefetch("x", e, e, 3)
    assert f"prefetch(x[int64(s[min((y.e + 3), {EDGES - 1})]), 0]" in str(s.program)
    verify(s.program)
    np.testing.assert_allclose(run_program(s.program, feeds())["y"], expected(), rtol=1e-6, atol=1e-6)


def test_the_interpreter_finds_ends_outside() -> None:
    with pytest.raises(VerificationError, match="runs from 5 to 12, outside 0 to 11"):
        run_program(program(), {**feeds(), "o": np.array([0, 0, 4, 5, 12, 12, 12])})


def test_offsets_are_known_as_such() -> None:
    _, y = neighbours()
    assert row_offsets([y]) == {"o": EDGES}
    assert domains([y])["s"] == (0, COUNT - 1)
    assert isinstance(y[0, 0], Load)

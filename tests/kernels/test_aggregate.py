"""Aggregation kernels between forbidden pages: by vertices, by blocks, balanced over threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from burnish.errors import ScheduleError
from burnish.kernels.cpu.aggregate import AGGREGATE, AGGREGATE_BLOCKS
from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.task import KernelTask
from burnish.kernels.template import Template
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import Buffer, Expr, Var
from burnish.loops.interpret import run_program
from burnish.loops.numeric import numpy_dtype
from burnish.loops.program import For, LoopProgram, Stmt, rebuild_stmt, seq, store
from burnish.loops.tensor import placeholder
from burnish.loops.verify import verify
from burnish.machines.target import host
from burnish.ops import OPERATORS
from burnish.schedule.schedule import Schedule
from tests.marks import slow

Native = Callable[..., dict[str, np.ndarray]]


def graph(rows: int, count: int, degrees: Sequence[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and sources, in no order and with duplicates, of vertices with these numbers of edges in turn."""
    each = np.resize(np.asarray(degrees), rows)
    offsets = np.concatenate([[0], np.cumsum(each)])
    return offsets, np.random.default_rng(seed).integers(0, max(count, 1), offsets[-1]).astype(np.int32)


def applied(op: str, arrays: Mapping[str, np.ndarray], **attrs: Any) -> KernelTask:
    inputs = [placeholder(a.shape, _dtype(a), name) for name, a in arrays.items()]
    outputs = OPERATORS[op].define("y", inputs, attrs)
    return KernelTask("kernel", tuple(inputs), outputs, op, {}, frozenset())


def _dtype(a: np.ndarray) -> str:
    return "bfloat16" if a.dtype == numpy_dtype("bfloat16") else str(a.dtype)


def run(
    native: Native, template: Template[Any], task: KernelTask, arrays: Mapping[str, np.ndarray], **choice: Any
) -> np.ndarray:
    match = template.match(task, host())
    assert match is not None
    made = match.apply({**match.space.default, **choice})
    verify(made.program)
    found = native(made.program, dict(arrays), threads=2)["y"]
    (expected,) = evaluate(task.outputs, arrays)
    scale = max(float(np.abs(expected.astype(np.float64)).max(initial=0)), 1e-30)
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=1e-5 * scale, err_msg=str(made.program)
    )
    return found


def features(count: int, width: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


@pytest.mark.parametrize("width", slow([1, 3, 16, 40, 64, 602], 16, 64))
@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_vertex_by_vertex(native: Native, width: int, reduction: str) -> None:
    offsets, sources = graph(70, 50, [0, 3, 1, 0, 40, 2])
    arrays = {"x": features(50, width), "o": offsets, "s": sources}
    run(native, AGGREGATE, applied("aggregate", arrays, reduction=reduction), arrays)


@pytest.mark.parametrize("degrees", [[0], [0, 0, 500, 0], [1]], ids=["empty", "heavy", "ones"])
@pytest.mark.parametrize("parts", [1, 16])
def test_parts_of_uneven_graphs(native: Native, degrees: Sequence[int], parts: int) -> None:
    offsets, sources = graph(61, 90, degrees)
    arrays = {"x": features(90, 32), "o": offsets, "s": sources}
    run(native, AGGREGATE, applied("aggregate", arrays), arrays, parts=parts)


@pytest.mark.parametrize("width", [1, 5, 16, 40])
@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_the_generic_schedule_takes_loaded_extents(native: Native, width: int, reduction: str) -> None:
    """Which is there for what the others refuse: of loops that memory bounds it asks nothing."""
    offsets, sources = graph(700, 50, [0, 3, 1, 0, 40, 2])
    arrays = {"x": features(50, width), "o": offsets, "s": sources}
    run(native, GENERIC, applied("aggregate", arrays, reduction=reduction), arrays)


def test_what_asks_for_a_loaded_extent_is_no_schedule() -> None:
    offsets, sources = graph(70, 50, [0, 3])
    task = applied("aggregate", {"x": features(50, 16), "o": offsets, "s": sources})
    s = Schedule(task.program())
    *_, edge = s.loops("y")
    for ask in (lambda n: n > 1, lambda n: 2 * n, lambda n: n % 4, range, lambda n: n + 1):
        with pytest.raises(ScheduleError, match="known only when it is read"):
            ask(s.extent(edge))


def counted(program: LoopProgram, edge: str) -> LoopProgram:
    """The program that counts the edges of each part, and of each piece that is summed before, in one more output."""
    count = Buffer("count", (2, 16), "int64", "global")

    def visit(s: Stmt, part: Expr | None, ahead: int) -> Stmt:
        if isinstance(s, For) and s.kind == "parallel":
            part, ahead = Var(s.var), int(s.var.endswith(".piece"))
        if isinstance(s, For) and s.var in (edge, f"{edge}.piece"):
            assert part is not None
            return For(s.var, s.extent, s.kind, seq(store(count, (ahead, part), 1, "sum"), s.body))
        return rebuild_stmt(s, lambda inner: visit(inner, part, ahead))

    zero = For("i", 2, "serial", For("j", 16, "serial", store(count, (Var("i"), Var("j")), 0)))
    return LoopProgram(program.name, (*program.params, count), seq(zero, visit(program.body, None, 0)))


@pytest.mark.parametrize("degrees", [[0, 4000, 0], [3, 1, 900, 2, 2000], [40]], ids=["one", "two", "alike"])
def test_heavy_vertices_are_divided(native: Native, degrees: Sequence[int]) -> None:
    """No part of the work reads more than its share of the edges, nor a piece that is summed before."""
    offsets, sources = graph(len(degrees) if len(degrees) > 1 else 70, 90, degrees)
    for op, more in (
        ("aggregate", {"reduction": "mean"}),
        ("aggregate", {"reduction": "max"}),
        ("aggregate_weighted", {}),
    ):
        arrays = {"x": features(90, 20), "o": offsets, "s": sources}
        if op == "aggregate_weighted":
            arrays = {"x": arrays["x"], "w": features(len(sources), 1)[:, 0], "o": offsets, "s": sources}
        run(native, AGGREGATE, applied(op, arrays, **more), arrays, parts=8)
    task = applied("aggregate", arrays := {"x": features(90, 20), "o": offsets, "s": sources})
    match = AGGREGATE.match(task, replace(host(), cores=2))
    assert match is not None
    program = match.apply({**match.space.default, "parts": 8}).program
    (edge,) = {name.removesuffix(".piece") for name in program.body.loops if name.endswith(".e.piece")}
    found = run_program(counted(program, edge), arrays)["count"]
    assert found.sum() == offsets[-1]
    assert found.max() <= -(-offsets[-1] // 16)


def test_attention_of_heavy_vertices(native: Native) -> None:
    offsets, sources = graph(5, 90, [3, 0, 3000, 1, 900])
    factors = {n: np.abs(features(c, 2, i)) for i, (n, c) in enumerate({"a": 90, "b": 90, "c": 5, "d": 5}.items())}
    arrays = {"x": features(90, 16).reshape(90, 2, 8), **factors, "o": offsets, "s": sources}
    run(native, AGGREGATE, applied("attention_sum", arrays, slope=0.2), arrays, parts=16)


def test_what_cannot_be_divided_is_refused() -> None:
    offsets, sources = graph(40, 90, [30])
    arrays = {"x": features(90, 20), "o": offsets, "s": sources}
    s = Schedule(applied("aggregate", arrays, reduction="mean").program())
    with pytest.raises(
        ScheduleError, match=r"divide: loop 'y\.mean\.e' is in no rows of a balanced loop; loops: y\.mean\.v"
    ):
        s.divide("y.mean.e")
    s.compute_at("y.mean", "y.v")
    s.balance("y.v", 4, "o")
    with pytest.raises(ScheduleError, match=r"divide: no loop 'y\.x'"):
        s.divide("y.x")


@pytest.mark.parametrize("width", [20, 70])
def test_nests_of_balanced_rows_are_known_to_tuners(width: int) -> None:
    offsets, sources = graph(400, 90, [30])
    arrays = {"x": features(90, width), "o": offsets, "s": sources}
    match = AGGREGATE.match(applied("aggregate", arrays), replace(host(), cores=2))
    assert match is not None
    nests = match.nests({knob: np.array([value]) for knob, value in match.space.default.items()}, 1)
    rows = [k for k, axis in enumerate(nests.axes) if axis == 0]
    assert nests.extent[rows].prod(axis=0).tolist() == [400]


@pytest.mark.parametrize("ahead", [0, 4, 16])
def test_what_is_asked_for_ahead_lies_in_the_graph(native: Native, ahead: int) -> None:
    offsets, sources = graph(33, 20, [5])
    arrays = {"x": features(20, 24), "o": offsets.astype(np.int32), "s": sources.astype(np.int64)}
    run(native, AGGREGATE, applied("aggregate", arrays), arrays, ahead=ahead)


def test_weights_and_halves(native: Native) -> None:
    offsets, sources = graph(40, 30, [7, 0, 2])
    weights = features(len(sources), 1)[:, 0]
    arrays = {"x": features(30, 20), "w": weights, "o": offsets, "s": sources}
    run(native, AGGREGATE, applied("aggregate_weighted", arrays), arrays)
    arrays = {"x": features(30, 48).astype(numpy_dtype("bfloat16")), "o": offsets, "s": sources}
    run(native, AGGREGATE, applied("aggregate", arrays), arrays)


@pytest.mark.parametrize("heads, size", [(8, 8), (1, 41), (4, 96), (2, 3)])
def test_attention(native: Native, heads: int, size: int) -> None:
    offsets, sources = graph(40, 30, [7, 0, 2])
    factors = {
        n: np.abs(features(c, heads, i)) for i, (n, c) in enumerate({"a": 30, "b": 30, "c": 40, "d": 40}.items())
    }
    arrays = {"x": features(30, heads * size).reshape(30, heads, size), **factors, "o": offsets, "s": sources}
    for both in (False, True):
        run(native, AGGREGATE, applied("attention_sum", arrays, slope=0.2, both=both), arrays)
    del arrays["x"]
    run(native, AGGREGATE, applied("attention_total", arrays), arrays)


def blocks(offsets: np.ndarray, sources: np.ndarray, count: int, rows: int) -> dict[str, np.ndarray]:
    pointers = OPERATORS["csr_block_pointers"].extern(offsets, sources, count, rows)
    places = OPERATORS["csr_block_places"].extern(offsets, sources, pointers, count, rows)
    return {"o": offsets, "p": pointers, "q": places}


@pytest.mark.parametrize("width", [1, 16, 40, 64, 100])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("rows", slow([7, 64], 64))
def test_block_by_block(native: Native, width: int, reduction: str, rows: int) -> None:
    offsets, sources = graph(70, 50, [0, 3, 1, 0, 90, 2])
    x = features(50, width)
    arrays = {"x": x, **blocks(offsets, sources, 50, rows)}
    task = applied("aggregate_blocks", arrays, rows=rows, reduction=reduction)
    for vectors in (1, 2, 4):
        found = run(native, AGGREGATE_BLOCKS, task, arrays, vectors=vectors)
    plain = {"x": x, "o": offsets, "s": sources}
    (expected,) = evaluate(applied("aggregate", plain, reduction=reduction).outputs, plain)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_block_by_block_in_halves(native: Native) -> None:
    """bfloat16 rows are summed in float32, and rounded once."""
    offsets, sources = graph(70, 50, [0, 3, 1, 0, 90, 2])
    x = features(50, 80).astype(numpy_dtype("bfloat16"))
    for reduction in ("sum", "mean"):
        arrays = {"x": x, **blocks(offsets, sources, 50, 16)}
        match = AGGREGATE_BLOCKS.match(applied("aggregate_blocks", arrays, rows=16, reduction=reduction), host())
        assert match is not None
        made = match.apply(match.space.default)
        found = native(made.program, dict(arrays), threads=2)["y"].astype(np.float32)
        plain = {"x": x.astype(np.float32), "o": offsets, "s": sources}
        (expected,) = evaluate(applied("aggregate", plain, reduction=reduction).outputs, plain)
        np.testing.assert_allclose(found, expected, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("width", [3, 64, 100])
def test_block_by_block_with_weights(native: Native, width: int) -> None:
    offsets, sources = graph(70, 50, [0, 3, 1, 0, 90, 2])
    x, weights = features(50, width), features(len(sources), 1, 5)[:, 0]
    arrays = {"x": x, **blocks(offsets, sources, 50, 16)}
    arrays["w"] = OPERATORS["csr_block_weights"].extern(offsets, sources, arrays["p"], weights, 50, 16)
    found = run(native, AGGREGATE_BLOCKS, applied("aggregate_blocks", arrays, rows=16), arrays)
    plain = {"x": x, "w": weights, "o": offsets, "s": sources}
    (expected,) = evaluate(applied("aggregate_weighted", plain).outputs, plain)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heads, size", [(8, 8), (8, 16), (1, 41), (3, 5)])
@pytest.mark.parametrize("slope", slow([0.2, 1.0], 1.0))
@pytest.mark.parametrize("both", [False, True])
def test_attention_block_by_block(native: Native, heads: int, size: int, slope: float, both: bool) -> None:
    offsets, sources = graph(40, 30, [7, 0, 90])
    factors = {
        n: np.abs(features(c, heads, i)) for i, (n, c) in enumerate({"a": 30, "b": 30, "c": 40, "d": 40}.items())
    }
    x = features(30, heads * size).reshape(30, heads, size)
    arrays = {"x": x, **factors, **blocks(offsets, sources, 30, 7)}
    task = applied("attention_sum_blocks", arrays, rows=7, slope=slope, both=both)
    for vectors in (1, 2):
        found = run(native, AGGREGATE_BLOCKS, task, arrays, vectors=vectors)
    plain = {"x": x, **factors, "o": offsets, "s": sources}
    (expected,) = evaluate(applied("attention_sum", plain, slope=slope, both=both).outputs, plain)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_parallel_parts_do_not_race() -> None:
    offsets, sources = graph(20, 9, [3, 0, 80])
    arrays = {"x": features(9, 40), **blocks(offsets, sources, 9, 4)}
    task = applied("aggregate_blocks", arrays, rows=4)
    match = AGGREGATE_BLOCKS.on(task, host())
    program = match.apply({**match.space.default, "parts": 2}).program
    assert "parallel" in str(program)
    (expected,) = evaluate(task.outputs, arrays)
    np.testing.assert_allclose(run_program(program, arrays)["y"], expected, rtol=1e-5, atol=1e-5)

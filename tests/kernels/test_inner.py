"""Products with rows of a variable matrix, vectors along the depth, against the definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import GraphBuilder
from burnish.kernels.cpu.inner import INNER
from burnish.kernels.task import KernelTask
from burnish.loops.evaluate import evaluate
from burnish.loops.program import Intrinsic, walk_stmt
from burnish.loops.tensor import Tensor, placeholder
from burnish.machines.target import Target, host
from burnish.ops import OPERATORS
from burnish.pipeline.plan import make_task, plan_kernels


def graph_of(x: tuple[int, ...], columns: int, epilogue: str = "gelu") -> Any:
    """``x`` times the transposed rows of a variable weight, plus a bias, and what follows."""
    b = GraphBuilder()
    y = b.add("matmul", b.input("x", x), b.input("w", (columns, x[-1])), transpose_b=True)
    return b.build(b.add(epilogue, b.add("add", y, b.input("bias", (columns,)))))


def task_of(x: tuple[int, ...], columns: int) -> KernelTask:
    made = plan_kernels(graph_of(x, columns), host(), False)
    return make_task(made, made.groups[-1], {})[0]


SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((20, 260), 130),
    ((7, 150), 35),
    ((1, 200), 24),
    ((13, 137), 66),
    ((2, 5, 160), 30),
    ((3, 129), 9),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("x", "columns"), SHAPES)
def test_products_agree_with_numpy(x: tuple[int, ...], columns: int, threads: int) -> None:
    module = bn.compile(graph_of(x, columns, "relu"), threads=threads)
    assert [k["template"] for k in module.executable.info["kernels"]] == ["inner_products"]
    rng = np.random.default_rng(0)
    a, w, bias = (rng.standard_normal(s).astype("f4") for s in (x, (columns, x[-1]), (columns,)))
    wanted = np.maximum(a.astype("f8") @ w.T.astype("f8") + bias, 0)
    np.testing.assert_allclose(module(a, w, bias), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("choice", [{"rows": 1}, {"rows": 3, "columns": 2}, {"columns": 1}, {"rows": 8, "columns": 3}])
def test_all_choices_compute_the_same(choice: dict[str, int], native: Any) -> None:
    task = task_of((11, 150), 36)
    match = INNER.match(task, host())
    assert match is not None
    program = match.apply({**match.space.default, **choice}).program
    rng = np.random.default_rng(1)
    given = {t.name: rng.standard_normal(t.shape).astype("f4") for t in task.inputs}
    (found,) = native(program, given, threads=3, edge="end").values()
    (right,) = native(match.apply(match.space.default).program, given, threads=1, edge="start").values()
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_what_is_matched() -> None:
    assert INNER.match(task_of((20, 260), 130), host()) is not None
    assert INNER.match(task_of((200, 260), 130), host()) is None  # the packed weight is read often enough
    assert INNER.match(task_of((20, 260), 131), host()) is None  # no tile divides the columns
    task = task_of((20, 260), 130)
    assert INNER.match(replace(task, constants=task.packed, packed=frozenset()), host()) is None
    (y,) = OPERATORS["matmul"].define("y", [placeholder((20, 260), name="x"), placeholder((260, 130), name="w")], {})
    assert INNER.match(plain(y), host()) is None


def plain(y: Tensor) -> KernelTask:
    """A task of one product, whose second factor is packed at each call."""
    return KernelTask("k", tuple(sorted(y.inputs, key=lambda t: t.name)), (y,), "", {}, frozenset(), frozenset({"w"}))


def hints(task: KernelTask, machine: Target) -> int:
    """Prefetch hints in the default schedule."""
    match = INNER.match(task, machine)
    assert match is not None
    program = match.apply(match.space.default).program
    return sum(isinstance(s, Intrinsic) and s.name == "prefetch" for s in walk_stmt(program.body))


def test_a_weight_beyond_the_second_cache_is_fetched_ahead(native: Any) -> None:
    task = task_of((3, 256), 48)
    assert hints(task, replace(host(), l2_bytes=1 << 20)) == 0
    small = replace(host(), l2_bytes=4 * 256 * 40)
    assert hints(task, small) > 0
    match = INNER.match(task, small)
    assert match is not None
    rng = np.random.default_rng(2)
    feeds = {t.name: rng.standard_normal(t.shape).astype("f4") for t in task.inputs}
    program = match.apply(match.space.default).program
    expected = evaluate(task.outputs, feeds)[0]
    for edge in ("start", "end"):
        found = native(program, feeds, edge=edge)[task.outputs[0].name]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_rows_whole_pages_apart_fit_a_set_of_the_first_cache() -> None:
    choice = INNER.on(task_of((8, 1024), 48), host()).space.default
    assert int(choice["rows"]) + int(choice["columns"]) < 8

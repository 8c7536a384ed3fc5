"""Kernels that are made for more threads than rows, channel groups or results of a small layer: defaults, run by 16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from burnish.kernels.cpu.conv import DIRECT_CONV
from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.split import SPLIT_MATMUL
from burnish.kernels.cpu.winograd import WINOGRAD_CONV
from burnish.kernels.task import Choice, KernelTask
from burnish.kernels.template import Template
from burnish.loops.layout import layout
from burnish.loops.program import For, walk_stmt
from burnish.loops.tensor import Tensor, placeholder, stages
from burnish.machines.target import Target, host, target
from burnish.ops import OPERATORS

CORES = 16
LANES = host().lanes
BLOCKED = f"ABCD{LANES}b"
Check = Callable[..., Choice]


def define(op: str, *shapes: tuple[int, ...], **attrs: Any) -> Tensor:
    (y,) = OPERATORS[op].define("y", [placeholder(s, name=f"x{i}") for i, s in enumerate(shapes)], attrs)
    return y


def task_of(op: str, y: Tensor, layouts: dict[str, str] | None = None, *constants: str) -> KernelTask:
    inputs = tuple(t for t in stages([y]) if t.body is None)
    tags = {name: layout(tag) for name, tag in (layouts or {}).items()}
    return KernelTask("kernel", inputs, (y,), op, tags, frozenset(constants))


def parts(template: Template[Any], task: KernelTask, machine: Target) -> list[int]:
    """The iterations of the parallel loops of a default schedule."""
    found = template.on(task, machine)
    program = found.apply(found.space.default).program
    return [int(s.extent) for s in walk_stmt(program.body) if isinstance(s, For) and s.kind == "parallel"]


REDUCTIONS = [
    ("reduce_sum", (1 << 19,), {"axes": (0,)}), ("reduce_max", (3, 1 << 17), {"axes": (1,)}),
    ("reduce_mean", (2, 5, 160, 177), {"axes": (0, 1, 2, 3), "keepdims": False}),
    ("reduce_min", (1 << 15, LANES), {"axes": (0,)}), ("reduce_mean", (1, 1, 320, 900), {"axes": (2, 3)}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "attrs"), REDUCTIONS)
def test_reductions_to_few_results(op: str, shape: tuple[int, ...], attrs: dict[str, Any], check: Check) -> None:
    y = define(op, shape, **attrs)
    assert int(check(GENERIC, op, [y], threads=CORES, cores=CORES)["chunks"]) > 1
    task = task_of(op, y)
    (found,) = parts(GENERIC, task, replace(host(), cores=CORES))
    assert found > CORES // 2
    chunks = {GENERIC.on(task, replace(host(), cores=cores)).space.default["chunks"] for cores in (1, 2, CORES)}
    assert len(chunks) == 1, "the result depends on the number of threads"


def test_reductions_with_results_for_every_core_are_not_cut() -> None:
    y = define("reduce_max", (1 << 10, 1 << 10), axes=(1,))
    task = task_of("reduce_max", y)
    assert "chunks" not in GENERIC.on(task, replace(host(), cores=CORES)).space.knobs


@pytest.mark.parametrize(
    ("template", "op", "shapes", "attrs"),
    [
        (WINOGRAD_CONV, "winograd_conv2d", [(1, 4 * LANES, 14, 14), (6, 6, 8 * LANES, 4 * LANES)], {"m": 4}),
        (WINOGRAD_CONV, "winograd_conv2d", [(1, 2 * LANES, 28, 28), (6, 6, 2 * LANES, 2 * LANES)], {"m": 4}),
        (DIRECT_CONV, "conv2d", [(1, 4 * LANES, 1, 49), (4 * LANES, 4 * LANES, 1, 1)], {"pads": (0, 0, 0, 0)}),
        (DIRECT_CONV, "conv2d", [(1, 4 * LANES, 1, 169), (3 * LANES, 4 * LANES, 1, 1)], {"pads": (0, 0, 0, 0)}),
    ],
)
def test_small_layers(
    template: Template[Any], op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], check: Check
) -> None:
    """Split over channel groups and blocks of pixels: few threads have none."""
    y = define(op, *shapes, **{"strides": (1, 1), "pads": (1, 1, 1, 1), **attrs})
    layouts = {"x0": BLOCKED, "y": BLOCKED}
    check(template, op, [y], ["x1"], layouts, threads=CORES, cores=CORES)
    task = task_of(op, y, layouts, "x1")
    assert min(parts(template, task, replace(host(), cores=CORES))) >= CORES * 3 // 4


def test_blocks_of_split_products_share_out_evenly() -> None:
    """Of 24 groups of columns in one block of rows the busiest of 16 cores would have twice what the others have."""
    left, weight = placeholder((128, 768), name="x0"), placeholder((2, 768, 768), "bfloat16", "x1")
    (y,) = OPERATORS["split_matmul"].define("y", [left, weight], {"columns": 768})
    own = target("x86-64-v4")
    tiles = replace(own, features=own.features | {"amx-bf16", "amx-tile"})
    blocks = [
        SPLIT_MATMUL.on(task_of("split_matmul", y, None, "x1"), replace(tiles, cores=cores)).space.default["block"]
        for cores in (1, 2, CORES)
    ]
    assert blocks == [128, 128, 64]

"""Convolutions of row-major images in vectors of columns against the definition, between forbidden pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from burnish.kernels.cpu.common import narrowed
from burnish.kernels.cpu.conv import DIRECT_CONV
from burnish.kernels.cpu.row_conv import ROW_CONV
from burnish.kernels.task import KernelTask
from burnish.loops.expr import maximum
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor, compute, placeholder
from burnish.machines.register_tile import Rows, direct_cycles, row_tile
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.pipeline.kernel import schedule

Check = Callable[..., object]
FORMS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 32, 9, 21), (3, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 16, 5, 37), (1, 16, 3, 3), {"pads": (0, 2, 2, 0)}),
    ((1, 48, 11, 40), (2, 24, 5, 1), {"groups": 2, "strides": (2, 2), "pads": (2, 0, 2, 0)}),
    ((1, 32, 7, 33), (4, 32, 3, 5), {"dilations": (1, 2), "pads": (1, 3, 1, 3)}),
    ((1, 64, 1, 157), (3, 64, 1, 1), {}),
    ((2, 24, 5, 36), (8, 3, 3, 1), {"groups": 8, "pads": (1, 0, 1, 0)}),
    ((1, 6, 6, 19), (10, 3, 3, 3), {"groups": 2, "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((3, 4, 7, 7), (40, 2, 1, 1), {"groups": 2}),
]


def parts(shape: tuple[int, ...], taps: tuple[int, ...], attrs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """An image, its weight, and their convolution with a bias and a relu behind it."""
    x, w = placeholder(shape, name="x"), placeholder(taps, name="w")
    bias = placeholder((taps[0], 1, 1), name="b")
    (y,) = OPERATORS["conv2d"].define("y", [x, w], attrs)
    return x, w, compute(y.shape, lambda n, c, i, j: maximum(y[n, c, i, j] + bias[c, 0, 0], 0.0), "out")


@pytest.mark.parametrize(("shape", "taps", "attrs"), FORMS)
def test_it_agrees_with_the_definition(
    check: Check, shape: tuple[int, ...], taps: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    _, _, out = parts(shape, taps, attrs)
    check(ROW_CONV, "conv2d", [out], ["w", "b"], edge="end")
    check(ROW_CONV, "conv2d", [out], ["w", "b"], edge="start", cores=5)


@pytest.mark.parametrize("inner", ["columns", "channels"])
@pytest.mark.parametrize("tile", [(1, 7, 1, 8), (2, 1, 2, 16), (3, 1, 3, 8), (2, 7, 6, 4)])
def test_every_tile(check: Check, tile: tuple[int, ...], inner: str) -> None:
    """Tiles that divide neither channels nor columns; rows of several vectors."""
    _, _, out = parts((1, 16, 7, 37), (4, 16, 3, 3), {"pads": (1, 1, 1, 1)})
    knobs = dict(zip(("channels", "rows", "vectors", "length"), tile, strict=True))
    check(ROW_CONV, "conv2d", [out], ["w", "b"], choice={**knobs, "inner": inner})


@pytest.mark.parametrize(
    ("taps", "groups", "template"),
    [((3, 64, 3, 3), 1, "row_conv2d"), ((64, 64, 3, 3), 1, "direct_conv2d"), ((12, 16, 3, 3), 4, "row_conv2d"),
     ((64, 1, 3, 3), 64, "depthwise_rows")],
)  # fmt: skip
@pytest.mark.parametrize("machine", ["x86-64-v4", "x86-64-v3", "aarch64-cortex-a53"])
def test_it_is_taken_where_vectors_of_channels_are_partly_empty(
    machine: str, taps: tuple[int, ...], groups: int, template: str
) -> None:
    x, w, out = parts((1, 64, 32, 32), taps, {"pads": (1, 1, 1, 1), "groups": groups})
    bias = next(t for t in out.inputs if t.name == "b")
    task = KernelTask("kernel", (x, w, bias), (out,), "conv2d", {}, frozenset({"w", "b"}))
    assert schedule(task, target(machine))[1] == template


@pytest.mark.parametrize("machine", ["x86-64-v4", "x86-64-v3", "aarch64-cortex-a53"])
@pytest.mark.parametrize("rows", [Rows(8, 57, 57), Rows(67, 36, 36), Rows(65, 1, 10201, far=True), Rows(12, 5, 5, 2)])
def test_tiles_fit_the_register_file(machine: str, rows: Rows) -> None:
    there = target(machine)
    tile, cycles = row_tile(there, rows)
    pixels = tile.rows * tile.vectors
    assert tile.channels * pixels + pixels + 1 <= there.vector_registers
    # No fewer cycles than two multiply-adds of vectors a cycle take, and no more than a vector for every column.
    least = rows.channels * rows.height * rows.width / there.lanes / 2
    assert least <= cycles <= 70 * least + rows.far * 140 * rows.width
    assert direct_cycles(there, rows.width, rows.height, -(-rows.channels // there.lanes)) >= least


def test_ragged_channels_take_the_vectors_that_are_multiplied_at_once() -> None:
    """Cores that multiply half a register at once lose nothing by half vectors, of which fewer lanes are left over."""
    wide = target("x86-64-v4")
    halves = replace(wide, cpu="znver4")
    for outputs, length in ((64, 16), (67, 8), (72, 8), (80, 16)):
        x, w, out = parts((1, 256, 32, 32), (outputs, 256, 3, 3), {"pads": (1, 1, 1, 1)})
        task = KernelTask("kernel", (x, w, out.inputs[1]), (out,), "conv2d", {}, frozenset({"w", "b"}))
        assert narrowed(task, halves, outputs).lanes == length
        assert narrowed(task, wide, outputs).lanes == 16
        group = DIRECT_CONV.on(task, halves).space.default["vectors"] * length
        assert -(-outputs // group) * group < outputs + length
    blocked = replace(task, layouts={"out": layout("ABCD16b")})
    assert narrowed(blocked, halves, 67).lanes == 16


@pytest.mark.parametrize("outputs", [8, 67])
def test_half_vectors_agree_with_the_definition(check: Check, outputs: int) -> None:
    _, _, out = parts((1, 40, 9, 11), (outputs, 40, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 1)})
    check(DIRECT_CONV, "conv2d", [out], ["w", "b"], edge="start")

"""Products split over their depth: right with what is behind them, two launches, refused where there are no parts."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from burnish.codegen.grid import compile_grid
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import ScheduleError
from burnish.kernels.gpu.forms import product
from burnish.kernels.gpu.product import PRODUCT
from burnish.kernels.gpu.split_product import SPLIT_PRODUCT, SplitProduct
from burnish.kernels.gpu.tensor_product import TENSOR_PRODUCT
from burnish.kernels.task import KernelTask
from burnish.kernels.template import TemplateMatch
from burnish.kernels.templates import matches
from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import Tensor, placeholder
from burnish.lower.threads import launches
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.simulators.gpu.emulator import GridEmulator
from tests.gpu.cases import SM80, Case, execute


def convolution(channels: int, size: int, outputs: int) -> KernelTask:
    """A convolution with a bias and a relu."""

    def applied(op: str, name: str, *inputs: Tensor, **attrs: object) -> Tensor:
        return OPERATORS[op].define(name, list(inputs), attrs)[0]

    x, w = placeholder((1, channels, size, size), name="x"), placeholder((outputs, channels, 3, 3), name="w")
    bias = placeholder((outputs, 1, 1), name="bias")
    y = applied("add", "sum", applied("conv2d", "conv", x, w, pads=(1, 1, 1, 1)), bias)
    return KernelTask("kernel", (x, w, bias), (applied("relu", "y", y),), "", {}, frozenset())


def split(task: KernelTask, parts: int) -> TemplateMatch:
    """The template on a task, for which its model need not take it."""
    form = product(task)
    assert form is not None
    return TemplateMatch(SPLIT_PRODUCT, task, SM80, SplitProduct(task, SM80, form, parts, PRODUCT, 0.0))


def test_parts_add_up() -> None:
    task = convolution(8, 3, 8)
    match = split(task, 2)
    choice = {**match.space.default, "tile_m": 16, "tile_n": 16, "depth": 8}
    code = compile_grid(match.apply(choice).program, SM80, assembled=False)
    assert len(code.launches) == 2 and code.launches[0].grid[2] == 2
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype("float32") for t in task.inputs}
    (expected,) = evaluate(task.outputs, arrays)
    found = np.zeros_like(expected)
    GridEmulator().run(code.packed(), [a.reshape(-1).view(np.uint8) for a in (*arrays.values(), found)])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_depth_without_such_parts_is_refused() -> None:
    match = split(convolution(60, 3, 8), 2)
    assert match.space.knobs["splits"] == (2, 3, 4)
    with pytest.raises(ScheduleError, match=r"its depth is not split by 8; allowed: \[2, 3, 4\]"):
        match.apply({**match.space.default, "splits": 8})


def test_a_deep_layer_of_one_image_spills_nothing() -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    machine = target("cuda:sm_90a")
    match = SPLIT_PRODUCT.on(convolution(512, 7, 512), machine)
    code = compile_grid(match.apply(match.space.default).program, machine)
    assert code.launches[0].blocks >= machine.cores * 3 // 4
    assert all(launch.resources and launch.resources.spilled == 0 for launch in code.launches)


@pytest.mark.parametrize("sizes", [(1, 40, 512), (40, 3, 512)], ids=str)
def test_parts_of_few_rows_or_columns_add_up_on_tensor_cores(sizes: tuple[int, int, int]) -> None:
    rows, columns, depth = sizes
    choice = {"splits": 4, "tile_m": 16, "tile_n": 16, "stages": 2}
    own = SPLIT_PRODUCT.on(halves(*sizes), SM80)
    assert own.form.first is TENSOR_PRODUCT
    case = Case("matmul", [(rows, depth), (depth, columns)], {}, ("bfloat16",) * 2, "split_product", choice, SM80)
    (found,), (wanted,), _ = execute(compile_grid(case.program()[0], SM80, assembled=False), case)
    np.testing.assert_allclose(found.astype("f4"), wanted, atol=1e-2 * np.abs(wanted).max())


# Rows, columns and depth of products in bfloat16: the share of a wave that blocks fill on an H100, megabytes of
# sums of parts, written and read again, the predicted time of the best template without parts, by that of the best.
WAVES = {
    (64, 4096, 11008): (0.97, 8.4, 1.69), (64, 11008, 4096): (0.65, 0.0, 1.0), (512, 512, 512): (0.97, 0.0, 1.0),
    (1024, 1024, 1024): (0.97, 0.0, 1.0), (2048, 2048, 2048): (0.97, 0.0, 1.0), (1, 4096, 11008): (0.97, 0.3, 1.18),
    (8, 4096, 11008): (0.97, 2.1, 1.82), (16, 4096, 4096): (0.97, 2.1, 1.49), (64, 4096, 4096): (0.97, 8.4, 1.34),
}  # fmt: skip


def halves(rows: int, columns: int, depth: int) -> KernelTask:
    """A product with a weight."""
    x, w = placeholder((rows, depth), "bfloat16", "x"), placeholder((depth, columns), "bfloat16", "w")
    return KernelTask("kernel", (x, w), OPERATORS["matmul"].define("y", [x, w]), "", {}, frozenset({"w"}))


@pytest.mark.parametrize("sizes", WAVES, ids=str)
def test_parts_fill_a_wave_where_tiles_do_not(sizes: tuple[int, int, int]) -> None:
    machine, task = target("cuda:sm_90a"), halves(*sizes)
    found = [match for match in matches(task, machine) if match.seconds is not None]
    whole = next(match for match in found if match.name != "split_product")
    best = found[0]
    grid = launches(best.apply(best.space.default).program, machine.machine).launches[0].grid
    moved = 8e-6 * int(best.space.default.get("splits", 0)) * sizes[0] * sizes[1]
    waves, megabytes, gain = WAVES[sizes]
    assert (round(prod(grid) / machine.cores, 2), round(moved, 1)) == (waves, megabytes)
    assert (whole.seconds or 0) / (best.seconds or 1) == pytest.approx(gain, rel=0.02)

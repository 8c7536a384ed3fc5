"""Persistent blocks: each goes over several tiles, and fetches for the next one while one ends; right on coroutines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from burnish.codegen.grid import compile_grid, lowered
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import VerificationError
from burnish.kernels.gpu.forms import product
from burnish.kernels.gpu.product_time import BEGIN, ProductSize, seconds
from burnish.kernels.gpu.warpgroup_product import warpgroup_blocks
from burnish.kernels.task import KernelTask
from burnish.kernels.template import TemplateMatch
from burnish.kernels.templates import tunable_matches
from burnish.loops.evaluate import evaluate
from burnish.loops.numeric import numpy_dtype
from burnish.loops.program import WAIT_COPIES, WAIT_PRODUCTS, LoopProgram, Stmt
from burnish.loops.tensor import placeholder
from burnish.lower.barriers import count_barriers, without_barrier
from burnish.lower.threads import launches
from burnish.machines.nvptx.occupancy import resident_blocks
from burnish.machines.target import Target, target
from burnish.ops import OPERATORS
from burnish.runtime.gpu.records import LaunchCounts
from burnish.simulators.gpu.emulator import GridEmulator
from tests.gpu.cases import Case
from tests.gpu.test_asynchrony import without
from tests.gpu.test_barriers import coded
from tests.marks import slow, slow_except

Shape = tuple[int, ...]
SM80, SM90, TF32 = (replace(target(f"cuda:{name}"), cores=1) for name in ("sm_80", "sm_90a", "sm_90a,tf32"))
WARPGROUP, TENSOR = "warpgroup_product", "tensor_product"


def task_of(
    shapes: Sequence[Shape], dtype: str, attrs: Mapping[str, Any] | None = None, epilogue: bool = False
) -> KernelTask:
    """A product; ``epilogue``: with a vector added to its rows, and what is negative replaced by zero."""
    a, b = (placeholder(shape, dtype, f"x{i}") for i, shape in enumerate(shapes))
    (y,) = OPERATORS["matmul"].define("y", [a, b], dict(attrs or {}))
    if not epilogue:
        return KernelTask("kernel", (a, b), (y,), "", {}, frozenset())
    bias = placeholder(y.shape[-1:], y.dtype, "x2")
    (z,) = OPERATORS["add"].define("z", [y, bias], {})
    (w,) = OPERATORS["relu"].define("w", [z], {})
    return KernelTask("kernel", (a, b, bias), (w,), "", {}, frozenset())


def match_of(task: KernelTask, machine: Target, template: str) -> TemplateMatch:
    """The template on the task."""
    (match,) = [m for m in tunable_matches(task, machine) if m.name == template]
    return match


def program_of(task: KernelTask, machine: Target, template: str, knobs: Mapping[str, Any]) -> LoopProgram:
    """The program of persistent blocks."""
    match = match_of(task, machine, template)
    return match.apply({**match.space.default, "persistent": 1, **knobs}).program


def run(task: KernelTask, code: bytes) -> tuple[np.ndarray, np.ndarray, LaunchCounts]:
    """The result on random inputs, what it should be, and counts."""
    rng, arrays = np.random.default_rng(0), {}
    for t in task.inputs:
        drawn = rng.integers(-5, 6, t.shape) if t.dtype in ("int8", "int32") else rng.standard_normal(t.shape)
        arrays[t.name] = drawn.astype(numpy_dtype(t.dtype))
    (wanted,) = evaluate(task.outputs, arrays)
    found, device = np.zeros_like(wanted), GridEmulator()
    device.run(code, [a.reshape(-1).view(np.uint8) for a in (*arrays.values(), found)])
    return found, wanted, device.counts


# Shapes, element type, target, template, knobs, blocks, attributes, and whether bias and activation follow.
Row = tuple[Sequence[Shape], str, Target, str, dict[str, Any], int, dict[str, Any], bool]
ONE, TWO = {"tile": "64x64", "stages": 8}, {"tile": "64x64", "stages": 6}
CASES: dict[str, Row] = {
    "fetched ahead across several tiles": ([(64, 128), (128, 192)], "bfloat16", SM90, WARPGROUP, ONE, 1, {}, False),
    "fewer tiles in the last turn": ([(70, 96), (96, 136)], "float16", SM90, WARPGROUP, TWO, 2, {}, True),
    "long tiles": ([(64, 520), (520, 128)], "float16", SM90, WARPGROUP, ONE, 1, {}, False),
    "boxes": (
        [(64, 128), (128, 320)], "bfloat16", SM90, WARPGROUP, {**TWO, "fetch": "boxes"}, 2, {}, True
    ),
    "boxes, long tiles, edges": (
        [(70, 200), (200, 136)], "float16", SM90, WARPGROUP, {**TWO, "fetch": "boxes"}, 2, {}, False
    ),
    "batch": ([(3, 64, 80), (3, 80, 72)], "bfloat16", SM90, WARPGROUP, TWO, 2, {}, False),
    "two groups": (
        [(130, 200), (200, 136)], "bfloat16", SM90, WARPGROUP, {"tile": "128x128", "stages": 6}, 1, {}, True
    ),
    "bytes": ([(70, 160), (136, 160)], "int8", SM90, WARPGROUP, TWO, 2, {"transpose_b": True}, False),
    "tf32": ([(70, 72), (136, 72)], "float32", TF32, WARPGROUP, TWO, 2, {"transpose_b": True}, True),
    "one warp": ([(80, 96), (96, 40)], "float16", SM80, TENSOR, {"tile_m": 16, "tile_n": 16, "stages": 8}, 2, {}, True),
    "two warps": (
        [(90, 200), (200, 72)], "bfloat16", SM80, TENSOR, {"tile_m": 32, "tile_n": 64, "stages": 6}, 2, {}, False
    ),
    "bytes, one warp": (
        [(80, 96), (40, 96)], "int8", SM80, TENSOR, {"tile_m": 16, "tile_n": 16, "stages": 8}, 4,
        {"transpose_b": True}, False,
    ),
}  # fmt: skip
FAST = ("fetched ahead across several tiles", "boxes", "one warp")


@pytest.mark.parametrize("name", slow(CASES, *(name for name in CASES if name not in FAST)))
def test_blocks_that_go_over_several_tiles_are_right(name: str) -> None:
    shapes, dtype, machine, template, knobs, blocks, attrs, epilogue = CASES[name]
    task = task_of(shapes, dtype, attrs, epilogue)
    program = program_of(task, machine, template, knobs)
    assert str(program).count(".turn in ") == 1
    found, wanted, counts = run(task, compile_grid(program, machine, assembled=False).packed())
    tolerance = 0.0 if dtype == "int8" else 1e-2 if dtype == "bfloat16" else 2e-3
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted.astype("f8")).max())
    assert counts.blocks == blocks


@pytest.mark.slow
def test_convolutions_go_over_several_tiles() -> None:
    case = Case("conv2d", [(2, 16, 9, 9), (24, 16, 3, 3)], {"pads": (1, 1, 1, 1)}, ("float16", "float16"))
    task, knobs = case.task(), {"tile_m": 16, "tile_n": 16, "stages": 8}
    program = program_of(task, SM80, TENSOR, knobs)
    found, wanted, counts = run(task, compile_grid(program, SM80, assembled=False).packed())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())
    assert counts.blocks == 4


# --- what would be wrong is found -------------------------------------------------------------------------------------

LONG = task_of([(64, 192), (192, 192)], "float16")  # three tiles of one block, of three steps each


def changed(change: Callable[[Stmt], Stmt]) -> np.ndarray:
    """The result of several tiles of a block, whose code is changed."""
    program = program_of(LONG, SM90, WARPGROUP, ONE)
    grids = lowered(program, SM90)
    (launch,) = grids.launches
    code = coded(program, replace(grids, launches=(replace(launch, body=change(launch.body)),)), SM90)
    return run(LONG, code.packed())[0]


FOUND = "touches what a (copy|product) of thread|touch one place without a barrier"


def test_barriers_through_all_tiles_are_needed() -> None:
    (launch,) = lowered(program_of(LONG, SM90, WARPGROUP, ONE), SM90).launches
    assert count_barriers(launch.body) == 2  # as of one tile: copies have arrived, products have ended
    few = program_of(task_of([(64, 192), (192, 320)], "float16"), SM90, WARPGROUP, TWO)  # one block has a tile more
    (guarded,) = lowered(few, SM90).launches
    assert "if " in str(few) and count_barriers(guarded.body) == 2
    for gone in range(2):
        with pytest.raises(VerificationError, match=FOUND):
            changed(lambda body, gone=gone: without_barrier(body, gone))


@pytest.mark.slow
def test_waits_through_all_tiles_are_needed() -> None:
    with pytest.raises(VerificationError, match=FOUND):
        changed(lambda body: without(body, WAIT_COPIES))
    with pytest.raises(VerificationError, match=FOUND):
        changed(lambda body: without(body, WAIT_PRODUCTS, lambda s: not s.operands))
    assert np.isnan(changed(lambda body: without(body, WAIT_PRODUCTS, lambda s: bool(s.operands)))).all()


# --- choice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [78, 114, 132])
def test_there_are_as_many_blocks_as_run_at_a_time(cores: int) -> None:
    machine = replace(target("cuda:sm_90a"), cores=cores)
    task = task_of([(4096, 64), (64, 4096)], "bfloat16")

    def blocks(knobs: dict[str, Any]) -> int:
        (launch,) = launches(program_of(task, machine, WARPGROUP, knobs), machine.machine).launches
        return prod(launch.grid)

    assert blocks({"tile": "128x256", "stages": 4}) == cores
    assert blocks({"tile": "128x64", "stages": 4}) == 2 * cores  # by shared memory
    assert blocks({"tile": "128x256", "stages": 4, "persistent": 0}) == 512


def test_blocks_that_go_on_are_a_choice_where_there_are_more_tiles_than_run_at_a_time() -> None:
    for template in (WARPGROUP, TENSOR):
        large = match_of(task_of([(4096, 64), (64, 4096)], "float16"), target("cuda:sm_90a"), template).space
        small = match_of(task_of([(128, 64), (64, 128)], "float16"), target("cuda:sm_90a"), template).space
        assert large.knobs["persistent"] == (0, 1) and large.default["persistent"] == 0
        assert "persistent" not in {*small.knobs, *small.default}


def test_what_is_predicted_to_be_hidden() -> None:
    """Of each tile but the last its stores in part, and the beginning of the next; nothing where blocks have one."""
    machine = target("cuda:sm_90a")

    def gain(rows: int, columns: int, depth: int) -> float:
        task = task_of([(rows, depth), (depth, columns)], "bfloat16")
        form = product(task)
        assert form is not None
        work = ProductSize.of(form, task, machine)
        tiles = next(b for b in warpgroup_blocks(form, machine) if {*b.choice} == {("tile", "128x256"), ("stages", 4)})
        assert tiles.resident(machine) == 1
        return seconds(work, tiles, machine) - seconds(work, replace(tiles, persistent=True), machine)

    assert gain(128 * 12, 256 * 11, 4096) == 0.0
    two, four = gain(128 * 24, 256 * 11, 4096), gain(128 * 48, 256 * 11, 4096)
    assert BEGIN < two < four and four == pytest.approx(3 * two, rel=0.01)
    assert gain(128 * 48, 256 * 11, 8192) == pytest.approx(four, rel=0.02)  # the depth changes none of it


ASSEMBLED: list[tuple[str, str, dict[str, Any]]] = [
    ("sm_90a", WARPGROUP, {"tile": "128x256", "stages": 4}),
    ("sm_90a", WARPGROUP, {"tile": "128x256", "stages": 4, "fetch": "boxes"}),
    ("sm_90a", WARPGROUP, {"tile": "128x192", "stages": 4}),
    ("sm_90a", WARPGROUP, {"tile": "128x128", "stages": 3}),
    ("sm_80", TENSOR, {"tile_m": 128, "tile_n": 128, "stages": 3}),
    ("sm_80", TENSOR, {"tile_m": 64, "tile_n": 64, "stages": 4}),
    ("sm_90a", TENSOR, {"tile_m": 128, "tile_n": 256, "stages": 3}),
]


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("setting", slow_except(ASSEMBLED, ASSEMBLED[1]), ids=str)
def test_persistent_blocks_spill_nothing_and_as_many_run_at_a_time(setting: tuple[str, str, dict[str, Any]]) -> None:
    name, template, knobs = setting
    machine = target(f"cuda:{name}")
    task = task_of([(4096, 4096), (4096, 4096)], "bfloat16")
    found = []
    for persistent in (0, 1):
        program = program_of(task, machine, template, {**knobs, "persistent": persistent})
        (launch,) = compile_grid(program, machine).launches
        made = launch.resources
        assert made is not None and made.spilled == made.stack == 0
        found.append(resident_blocks(machine.cpu, prod(launch.block), made.registers, launch.dynamic + made.shared))
    assert found[0] == found[1] == prod(launch.grid) // machine.cores

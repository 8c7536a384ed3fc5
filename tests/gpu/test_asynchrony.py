"""Copies and products that go on while threads do other things: right on coroutines; what is read early is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from burnish.codegen.grid import compile_grid, lowered
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import ScheduleError, VerificationError
from burnish.kernels.templates import tunable_matches
from burnish.loops.program import (
    NOTHING,
    START_PRODUCTS,
    WAIT_COPIES,
    WAIT_PRODUCTS,
    Intrinsic,
    LoopProgram,
    Stmt,
    rebuild_stmt,
)
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.lower.barriers import count_barriers, without_barrier
from burnish.machines.target import Target, target
from burnish.runtime.gpu.records import LaunchCounts
from burnish.schedule.schedule import Schedule
from burnish.simulators.gpu.emulator import GridEmulator
from tests.gpu.cases import SM80, Case, check
from tests.gpu.test_barriers import coded
from tests.marks import slow

SM90 = target("cuda:sm_90a")
HALVES = ("float16", "float16")
LONG = Case("matmul", [(64, 320), (320, 64)], {}, HALVES, choice={"tile": "64x64", "stages": 3})


def program_of(case: Case, machine: Target, template: str) -> LoopProgram:
    """A case scheduled for a machine."""
    match = next(m for m in tunable_matches(case.task(), machine) if m.name == template)
    return match.apply({**match.space.default, **(case.choice or {})}).program


def checked(
    case: Case, machine: Target, template: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> LaunchCounts:
    """Runs a case, compares, and gives its counts."""
    monkeypatch.setattr("tests.gpu.cases.SM80", machine)
    return check(replace(case, template=template, machine=machine), tolerance)


GROUPS = {
    "columns": ([(64, 200), (200, 64)], "64x64", 4),
    "several blocks": ([(130, 64), (64, 136)], "64x64", 3),
    "two groups": ([(128, 64), (64, 128)], "128x128", 3),
    "rows that cannot be copied at once": ([(64, 70), (70, 66)], "64x64", 3),
}


@pytest.mark.parametrize("name", slow(GROUPS, "several blocks", "columns"))
def test_products_of_groups_of_warps_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, tile, stages = GROUPS[name]
    case = Case("matmul", shapes, {}, ("bfloat16", "bfloat16"), choice={"tile": tile, "stages": stages})
    counts = checked(case, SM90, "warpgroup_product", 1e-2, monkeypatch)
    assert counts.shared_passes == counts.shared_ideal


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_float32_products_are_fetched_ahead(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by one stage, which fetches nothing ahead."""
    choice = {"tile_m": 32, "tile_n": 64, "depth": 8, "stages": stages}
    case = Case("matmul", [(32, 40), (40, 64)], {}, choice=choice)
    counts = checked(case, SM80, "shared_product", 1e-5, monkeypatch)
    assert counts.sectors_per_ideal == 1.0


def test_operands_of_warps_are_read_without_bank_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("matmul", [(64, 128), (128, 128)], {}, HALVES, choice={"tile_m": 64, "tile_n": 128})
    counts = checked(case, SM80, "tensor_product", 2e-3, monkeypatch)
    assert counts.shared_passes == counts.shared_ideal and counts.sectors_per_ideal == 1.0


def without(s: Stmt, name: str, keep: Callable[[Intrinsic], bool] = lambda _: False) -> Stmt:
    """A statement without the hints of a name, except those to keep."""
    if isinstance(s, Intrinsic) and s.name == name and not keep(s):
        return NOTHING
    return rebuild_stmt(s, lambda inner: without(inner, name, keep))


def run_changed(machine: Target, template: str, change: Callable[[Stmt], Stmt]) -> np.ndarray:
    """The result of a long product whose code is changed."""
    program = program_of(LONG if template == "warpgroup_product" else replace(LONG, choice=None), machine, template)
    grids = lowered(program, machine)
    (launch,) = grids.launches
    code = coded(program, replace(grids, launches=(replace(launch, body=change(launch.body)),)), machine)
    arrays = [*LONG.arrays().values(), np.zeros((64, 64), np.float16)]
    GridEmulator().run(code.packed(), [a.reshape(-1).view(np.uint8) for a in arrays])
    return arrays[-1]


@pytest.mark.parametrize("template", ["tensor_product", "warpgroup_product"])
def test_reading_before_copies_have_arrived_is_found(template: str) -> None:
    with pytest.raises(VerificationError, match=r"touches what a copy of thread|touch one place without a barrier"):
        run_changed(SM90, template, lambda body: without(body, WAIT_COPIES))


def test_waiting_for_fewer_copies_than_are_read_is_found() -> None:

    def later(s: Stmt) -> Stmt:
        if isinstance(s, Intrinsic) and s.name == WAIT_COPIES:
            return Intrinsic(s.name, s.operands, (("but", dict(s.attrs)["but"] + 1),))
        return rebuild_stmt(s, later)

    with pytest.raises(VerificationError, match=r"touches what a copy of thread|touch one place without a barrier"):
        run_changed(SM90, "warpgroup_product", later)


def test_overwriting_operands_of_products_under_way_is_found() -> None:
    with pytest.raises(VerificationError, match=r"touches what a product of thread|touch one place without a barrier"):
        run_changed(SM90, "warpgroup_product", lambda body: without(body, WAIT_PRODUCTS, lambda s: not s.operands))


def test_sums_that_are_read_before_products_have_ended_are_no_numbers() -> None:
    found = run_changed(
        SM90, "warpgroup_product", lambda body: without(body, WAIT_PRODUCTS, lambda s: bool(s.operands))
    )
    assert np.isnan(found).all()


def test_products_that_were_not_started_are_found() -> None:
    with pytest.raises(VerificationError, match="is executed before 'start_products'"):
        run_changed(SM90, "warpgroup_product", lambda body: without(body, START_PRODUCTS))


def test_barriers_between_groups_of_warps_are_needed() -> None:
    (launch,) = lowered(program_of(LONG, SM90, "warpgroup_product"), SM90).launches
    number = count_barriers(launch.body)
    assert number == 2  # of an iteration: copies have arrived, products have ended
    for gone in range(number):
        with pytest.raises(
            VerificationError, match=r"touches what a product of thread|touch one place without a barrier"
        ):
            run_changed(SM90, "warpgroup_product", lambda body, gone=gone: without_barrier(body, gone))


def test_ptxas_takes_groups_of_warps_and_spills_nothing() -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    for tile in ("128x192", "128x256", "256x128"):
        case = Case(
            "matmul", [(512, 512), (512, 512)], {}, ("bfloat16", "bfloat16"), choice={"tile": tile, "stages": 4}
        )
        code = compile_grid(program_of(case, SM90, "warpgroup_product"), SM90)
        (launch,) = code.launches
        assert launch.resources is not None and launch.resources.spilled == launch.resources.stack == 0
        rows = sum(map(int, tile.split("x")))
        assert launch.dynamic == 4 * 128 * rows and ".extern .shared .align 1024" in code.ptx
        n = tile.split("x")[1]
        for instruction in (
            f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16",
            "wgmma.wait_group",
            "cp.async.cg",
        ):
            assert instruction in code.ptx


def test_default_kernels_of_products_spill_nothing() -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    case = Case("matmul", [(4096, 4096), (4096, 4096)], {})
    for machine in (SM80, SM90):
        (launch,) = compile_grid(program_of(case, machine, "shared_product"), machine).launches
        assert launch.resources is not None and launch.resources.registers <= 128 and launch.resources.spilled == 0


def test_copies_that_nothing_waits_for_are_refused() -> None:
    x = placeholder((64,), name="x")
    s = Schedule(create_program("kernel", [x], [compute((64,), lambda i: x[63 - i] * 2.0, "y")]))
    s.cache_read("x", "shared", "y", "p")
    _, inner = s.split(s.loops("p")[0], 4)
    s.copy_async(inner)
    with pytest.raises(ScheduleError, match="is an asynchronous copy that nothing waits for; allowed: in a pipeline"):
        lowered(s.program, SM80)

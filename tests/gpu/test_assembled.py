"""ptxas's report in tuning: candidates that spill are refused, others come with registers and occupancy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burnish.codegen.grid import compile_grid
from burnish.codegen.gridcode import Resources
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import ScheduleError
from burnish.machines.nvptx.occupancy import occupancy, resident_blocks
from burnish.machines.target import target
from burnish.tune.evaluate.building import build
from burnish.tune.features.assembled import ASSEMBLED, assembled
from tests.gpu.cases import SM80, Case

PRODUCT = Case("matmul", [(64, 64), (64, 64)], {}, template="shared_product")


def test_occupancy_by_registers_memory_and_threads() -> None:
    assert occupancy("sm_90a", 256, 32, 0) == 1.0
    assert occupancy("sm_90a", 256, 128, 0) == 0.25 and resident_blocks("sm_90a", 256, 128, 0) == 2
    assert resident_blocks("sm_80", 128, 32, 48 << 10) == 3 and resident_blocks("sm_90a", 128, 32, 48 << 10) == 4
    assert occupancy("sm_80", 32, 16, 0) == 0.5  # at most 32 blocks


def test_a_kernel_that_spills_is_no_candidate() -> None:
    code = compile_grid(PRODUCT.program()[0], SM80, assembled=False)
    assert assembled(code) == {}
    (launch,) = code.launches
    spilled = replace(code, launches=(replace(launch, resources=Resources(255, 64, 48, 0)),))
    with pytest.raises(ScheduleError, match="48 bytes of its 255 registers are spilled"):
        assembled(spilled)


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
def test_candidates_for_a_grid_are_built_without_a_device() -> None:
    task, machine = PRODUCT.task(), target("cuda:sm_90a")
    small, large = (
        build(task, machine, "shared_product", {"tile_m": n, "tile_n": n, "depth": 16, "fetch": "shared"})
        for n in (16, 128)
    )
    assert small.kernel is not None and small.image is None
    assert {*small.assembled} == {*ASSEMBLED}
    assert large.assembled["registers"] > small.assembled["registers"]
    assert large.assembled["occupancy"] < small.assembled["occupancy"] == 1.0

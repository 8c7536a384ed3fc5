"""ptxas's report in tuning: candidates that spill are refused, others come with registers and occupancy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burnish.codegen import ptxas
from burnish.codegen.grid import compile_grid
from burnish.codegen.gridcode import Resources
from burnish.codegen.ptxas import assemble_without_spills, find_ptxas, with_registers
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


@pytest.mark.parametrize("helps", [True, False])
@pytest.mark.parametrize("registers", [32, 200])
def test_a_kernel_of_few_registers_that_spills_may_have_more(
    registers: int, helps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ".visible .entry a(\n\t.param .u64 p\n)\n.maxntid 256, 1, 1\n{\n}\n.visible .entry ab(\n)\n{\n}\n"
    more = with_registers(plain, {"a": 64})
    assert more == plain.replace(")\n.maxntid", ")\n.maxnreg 64\n.maxntid") and more.count("maxnreg") == 1
    given = []

    def assemble(ptx: str, cpu: str) -> tuple[bytes, dict[str, Resources]]:
        given.append(ptx)
        spilled = 16 if ptx == plain or not helps else 0
        return ptx.encode(), {"a": Resources(registers, 8, spilled, 0), "ab": Resources(16, 0, 0, 0)}

    monkeypatch.setattr(ptxas, "assemble", assemble)
    taken, code, _ = assemble_without_spills(plain, "sm_80")
    assert given == ([plain, more] if registers == 32 else [plain])
    assert code == taken.encode() and taken == (more if registers == 32 and helps else plain)


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
def test_ptxas_takes_a_limit_of_registers() -> None:
    code = compile_grid(PRODUCT.program()[0], SM80)
    (launch,) = code.launches
    assert launch.resources is not None
    _, found = ptxas.assemble(with_registers(code.ptx, {launch.name: 48}), "sm_80")
    assert found[launch.name].registers <= 48

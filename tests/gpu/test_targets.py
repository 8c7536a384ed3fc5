"""Targets by compute capability: what each has, and kernels that ptxas takes for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.codegen.gridcode import GridCode
from burnish.codegen.ptxas import find_ptxas
from burnish.errors import TargetError
from burnish.graph import GraphBuilder
from burnish.graph.graph import Graph
from burnish.machines.nvptx.occupancy import MULTIPROCESSORS, occupancy, resident_blocks
from burnish.machines.target import target
from burnish.runtime.device import unpacked
from burnish.runtime.gpu.driver import known_names

NAMES = known_names()


def product(dtype: str, rows: int = 256) -> Graph:
    """``relu(x w)``, wide enough for the tensor cores and for copies ahead."""
    b = GraphBuilder()
    w = b.constant(np.zeros((256, 256), np.float32), "w")
    x = b.input("x", (rows, 256), dtype)
    return b.build(b.add("relu", b.add("matmul", x, b.add("cast", w, to=dtype))))


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_assembled_with_what_a_target_has(name: str, dtype: str, tmp_path: Path) -> None:
    compiled = bn.compile(product(dtype), target=name, cache_dir=tmp_path)
    assert isinstance(compiled, bn.Module)
    codes = [GridCode.unpacked(code) for code in unpacked(compiled.executable.code).values()]
    text, cpu = "".join(code.ptx for code in codes), name.partition(":")[2]
    assert all(code.cubin and code.target == cpu for code in codes)
    assert ("cp.async" in text) == (cpu != "sm_75")
    assert "wgmma" not in text or cpu == "sm_90a"
    assert ("mma" in text) == (cpu != "sm_75" and dtype == "float16")


def test_every_target_has_its_multiprocessor() -> None:
    assert {target(name).cpu for name in NAMES} == {*MULTIPROCESSORS}
    for name in NAMES:
        one, cpu = target(name), target(name).cpu
        most = MULTIPROCESSORS[cpu]
        assert one.shared_bytes == most.shared - most.reserved and resident_blocks(cpu, 1024, 0, one.shared_bytes) == 1
        assert 0 < occupancy(cpu, 256, 64, 0) <= 1
    assert [resident_blocks(cpu, 64, 32, 0) for cpu in ("sm_75", "sm_80", "sm_86", "sm_120")] == [16, 32, 16, 24]


@pytest.mark.parametrize("name", ["cuda:sm_70", "cuda:sm_95", "cuda:hopper"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(TargetError, match=r"cuda:sm_75.*cuda:sm_80.*cuda:sm_90a.*cuda:sm_120a"):
        target(name)

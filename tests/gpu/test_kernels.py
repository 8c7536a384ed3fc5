"""Kernels for GPUs by template: right on coroutines, loads coalesced, assembled by ptxas without spills."""

from __future__ import annotations

import re

import pytest

from burnish.codegen.grid import compile_grid
from burnish.codegen.gridcode import GridCode
from burnish.codegen.ptxas import find_ptxas, resources
from burnish.errors import ArtifactError, TargetError
from burnish.machines.target import target
from tests.gpu.cases import SM80, TF32, Case, check
from tests.marks import slow

WINDOW = {"pads": (1, 1, 1, 1), "strides": (1, 1)}
CASES = {
    "map": (Case("relu", [(3, 50)], {}), "elements"),
    "matmul": (Case("matmul", [(20, 24), (24, 17)], {}), "shared_product"),
    "batched": (Case("matmul", [(2, 16, 16), (2, 16, 16)], {}), "shared_product"),
    "tiles": (Case("matmul", [(32, 16), (16, 64)], {}, choice={"tile_m": 32, "tile_n": 64}), "shared_product"),
    "vector": (Case("matmul", [(1, 150), (150, 19)], {}), "vector_product"),
    "few": (Case("matmul", [(3, 64), (64, 40)], {}, choice={"threads": 128, "width": 16}), "vector_product"),
    "by_vector": (Case("matmul", [(37, 96), (96, 1)], {}), "vector_product"),
    "by_few": (Case("matmul", [(2, 20, 70), (2, 70, 2)], {}), "vector_product"),
    "half_vector": (Case("matmul", [(1, 128), (128, 33)], {}, ("float16", "float16")), "vector_product"),
    "transposed_convolution": (
        Case("conv2d_transpose", [(1, 16, 4, 4), (16, 8, 4, 4)], {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        "elements",
    ),
    "deep_transposed_convolution": (
        Case("conv2d_transpose", [(1, 64, 4, 4), (64, 8, 4, 4)], {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        "launches",
    ),
    "convolution": (Case("conv2d", [(1, 8, 5, 5), (8, 8, 3, 3)], WINDOW), "shared_product"),
    "depthwise": (Case("conv2d", [(1, 8, 5, 5), (8, 1, 3, 3)], {**WINDOW, "groups": 8}), "elements"),
    "vectors": (Case("add", [(3, 64), (64,)], {}, choice={"vector": 4, "steps": 2, "threads": 64}), "elements"),
    "column": (Case("conv2d", [(1, 2, 8, 6), (2, 1, 3, 3)], {**WINDOW, "groups": 2}, choice={"own": 4}), "elements"),
    "pools": (Case("max_pool2d", [(1, 2, 9, 9)], {"kernel": (3, 3), "strides": (2, 2)}, choice={"own": 2}), "elements"),
    "joined": (Case("concat", [(2, 3, 8), (2, 5, 8)], {"axis": 1}, choice={"vector": 4}), "elements"),
    "winograd": (Case("winograd_conv2d", [(1, 8, 4, 4), (4, 4, 8, 8)], {"m": 2}), "launches"),
    "transformed": (Case("winograd_conv2d", [(1, 8, 7, 5), (4, 4, 8, 8)], {"m": 2}), "transformed_product"),
    "pool": (Case("max_pool2d", [(1, 4, 6, 6)], {"kernel": (3, 3), "strides": (2, 2)}), "elements"),
    "softmax": (Case("softmax", [(2, 90)], {}), "rows"),
    "layer_norm": (Case("layer_norm", [(2, 70), (70,), (70,)], {}), "rows"),
    "warps": (Case("softmax", [(1, 600)], {}, choice={"warps": 4}), "rows"),
    "rows": (Case("layer_norm", [(5, 64), (64,), (64,)], {}, choice={"warps": 1, "rows": 4}), "rows"),
    "read again": (Case("log_softmax", [(1, 2600)], {}, choice={"warps": 2}), "rows"),
    "mean": (Case("reduce_mean", [(2, 3, 7, 7)], {"axes": (2, 3)}), "rows"),
    "halves": (Case("matmul", [(40, 50), (50, 36)], {}, ("float16", "float16")), "tensor_product"),
    "bfloats": (Case("matmul", [(32, 32), (32, 32)], {}, ("bfloat16", "bfloat16")), "tensor_product"),
    "bytes": (Case("matmul", [(33, 40), (40, 35)], {}, ("int8", "int8")), "tensor_product"),
    "tf32": (Case("matmul", [(32, 16), (16, 32)], {}, template="tensor_product", machine=TF32), "tensor_product"),
}
ROUNDED = {"halves": 2e-3, "half_vector": 2e-3, "bfloats": 1e-2, "tf32": 4e-3}


@pytest.mark.parametrize("name", slow(CASES, "deep_transposed_convolution"))
def test_kernels_are_right(name: str) -> None:
    case, template = CASES[name]
    assert case.program()[1] == template
    check(case, ROUNDED.get(name, 1e-5))


def test_cooperative_fetching_loads_less() -> None:
    shared, alone = (
        check(Case("matmul", [(32, 16), (16, 32)], {}, choice={"tile_m": 32, "tile_n": 32, "fetch": fetch}))
        for fetch in ("shared", "global")
    )
    assert alone.global_load_bytes == 16 * shared.global_load_bytes  # 256 threads of two rows and columns each
    assert shared.sectors_per_ideal == 1.0


def test_rows_and_windows_are_read_once() -> None:
    counts = check(Case("softmax", [(4, 128)], {}))
    assert counts.global_loads == 4 * 128 / 4 and counts.sectors_per_ideal == 1.0  # vectors of four
    alone, together = (
        check(Case("max_pool2d", [(1, 1, 16, 32)], {"kernel": (3, 3), "strides": (1, 1)}, choice={"own": n}))
        for n in (1, 7)
    )
    assert alone.global_loads == 14 * 30 * 9 and together.global_loads == 2 * 30 * 9 * 3


def test_neighbouring_threads_read_neighbours() -> None:
    counts = check(Case("relu", [(8, 128)], {}))
    assert counts.global_loads == 1024 and counts.load_requests == 32 and counts.load_sectors == 128


@pytest.mark.parametrize("name", ["matmul", "vector", "by_vector", "winograd", "softmax", "halves", "bytes"])
@pytest.mark.parametrize("machine", ["cuda:sm_80", "cuda:sm_90a"])
def test_ptxas_takes_kernels_and_spills_nothing(name: str, machine: str) -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    program, _ = CASES[name][0].program()
    code = compile_grid(program, target(machine))
    assert code.cubin[:4] == b"\x7fELF"
    for launch in code.launches:
        assert launch.resources is not None and 0 < launch.resources.registers <= 255
        assert launch.resources.spilled == launch.resources.stack == 0


def test_ptx_has_barriers_tensor_cores_and_shared_memory() -> None:
    ptx = compile_grid(CASES["halves"][0].program()[0], SM80, assembled=False).ptx
    for instruction in ("bar.sync", "ldmatrix.sync.aligned.m8n8.x4", "mma.sync.aligned.m16n8k16", "cp.async"):
        assert instruction in ptx
    assert re.search(r"st\.global", ptx) and ".target sm_80" in ptx and ".maxntid 32, 1" in ptx


def test_code_is_packed_and_unpacked() -> None:
    code = compile_grid(CASES["map"][0].program()[0], SM80, assembled=False)
    assert GridCode.unpacked(code.packed()) == code
    with pytest.raises(ArtifactError, match="code of a kernel for a grid is damaged"):
        GridCode.unpacked(code.packed()[:-1])


def test_what_ptxas_reports_is_read() -> None:
    text = (
        "ptxas info    : Compiling entry function 'k_0' for 'sm_80'\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 2560 bytes smem, 400 bytes cmem[0]\n"
    )
    (found,) = resources(text).values()
    assert (found.registers, found.stack, found.spilled, found.shared) == (40, 8, 16, 2560)


def test_targets_are_known_by_name() -> None:
    assert target("cuda:sm_80").kind == "gpu" and target("cuda:sm_90a").cpu == "sm_90a"
    with pytest.raises(TargetError, match=r"'cuda:sm_12' is unknown; known: cpu, .*cuda:sm_80, .*cuda:sm_90a"):
        target("cuda:sm_12")

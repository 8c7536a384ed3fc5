"""NVIDIA GPUs as a machine: targets by compute capability, what their code is made of, what a multiprocessor does.

Nothing here asks for a GPU: code is made, and where ptxas is installed assembled, on any machine.
"""

from __future__ import annotations

from collections.abc import Collection

from burnish.machines.dialect import Dialect, LaunchGrid
from burnish.machines.machine import STRICT, Core, CpuModel, Machine, Rates, Warps
from burnish.machines.nvptx.copies import COPY_HINTS, COPY_PRELUDE, copy_loop
from burnish.machines.nvptx.exponential import EXP2_DIFFERENCE, EXP_DIFFERENCE, EXP_PRELUDE
from burnish.machines.nvptx.mma import DOT, DOT_COLUMNS, FRAGMENT, MMA_INTRINSICS, MMA_PRELUDE
from burnish.machines.nvptx.threads import (
    BOUND_LOOPS,
    HINTS,
    LOCAL,
    RESERVED,
    SHARED,
    SWIZZLED_SHARED,
    THREAD_PRELUDE,
)
from burnish.machines.nvptx.warp import REDUCE, SHUFFLE_PRELUDE, THREAD, WARP, WARP_INTRINSICS
from burnish.machines.nvptx.wgmma import FEATURE, PRODUCT_HINTS, WGMMA_INTRINSICS, WGMMA_PRELUDE
from burnish.machines.scopes import GLOBAL, REGISTER

THREADS_OF_BLOCK = 1024
VECTOR_BYTES = 16  # that a thread moves at once
PTX_VERSION = "ptx80"  # of CUDA 12.0: the oldest that knows sm_90a, read by the drivers of all later ones


def _vectors(features: Collection[str]) -> tuple[int, int]:
    """A thread computes one float32 at a time: activations stay row-major, in no blocks of a vector."""
    del features
    return 4, 255


def _multiprocessor(flops: float, tensor: float, l2: float, memory: float, count: int) -> Rates:
    """Declared rates of one of ``count`` multiprocessors: float32, bfloat16 products, bytes from L2 and from memory."""
    return Rates(flops / count, l2 / count, memory / count, tensor / count)


def _model(name: str, cpu: str, l1: int, l2: int, count: int, rates: Rates) -> CpuModel:
    features = " ".join([PTX_VERSION, *([FEATURE] if cpu == FEATURE else [])])
    return CpuModel(name, cpu, features, l1, l2, 0, count, rates)


# A100 SXM 80 GB and H100 SXM, from their data sheets; not measured.
_A100 = _multiprocessor(19.5e12, 312e12, 5e12, 2.0e12, 108)
_H100 = _multiprocessor(67e12, 989e12, 5.5e12, 3.35e12, 132)
# RTX A6000 and L40S, from their data sheets; not measured. Products with sums in float32.
_A6000 = _multiprocessor(38.7e12, 155e12, 2.5e12, 0.77e12, 84)
_L40S = _multiprocessor(91.6e12, 362e12, 4e12, 0.86e12, 142)

NVPTX = Machine(
    name="nvptx",
    kind="gpu",
    architectures=("nvptx64",),
    system_of_triple="nvidia-cuda",
    vectors=_vectors,
    core=Core(None, 1.4e9, 4e10, 1.8e10),
    models=(
        _model("cuda:sm_80", "sm_80", 192 << 10, 40 << 20, 108, _A100),
        _model("cuda:sm_86", "sm_86", 128 << 10, 6 << 20, 84, _A6000),
        _model("cuda:sm_89", "sm_89", 128 << 10, 48 << 20, 142, _L40S),
        _model("cuda:sm_90a", "sm_90a", 256 << 10, 50 << 20, 132, _H100),
    ),
    dialect=Dialect(
        {"serial": None, "unroll": None, "vectorize": None, "async": copy_loop, **BOUND_LOOPS},
        {**HINTS, **COPY_HINTS, **PRODUCT_HINTS},
        attributes="nounwind",
        kernel="ptx_kernel",
        rounds_bfloat16=PTX_VERSION,
        grid=LaunchGrid(
            "\n".join([THREAD_PRELUDE, COPY_PRELUDE, SHUFFLE_PRELUDE, MMA_PRELUDE, WGMMA_PRELUDE, EXP_PRELUDE]),
            THREADS_OF_BLOCK,
            VECTOR_BYTES,
            frozenset(t.name for t in (*DOT.values(), *DOT_COLUMNS.values())),
        ),
    ),
    scopes=(GLOBAL, LOCAL, REGISTER, SHARED, SWIZZLED_SHARED, THREAD, FRAGMENT),
    intrinsics=(*WARP_INTRINSICS, EXP_DIFFERENCE, EXP2_DIFFERENCE, *MMA_INTRINSICS, *WGMMA_INTRINSICS),
    channels_last=("float16", "bfloat16", "int8", "uint8", "int32"),
    precisions={STRICT: (), "tf32": ("float32",)},
    warps=Warps(WARP, REDUCE, RESERVED),
    import_path="burnish.machines.nvptx.machine:NVPTX",
)

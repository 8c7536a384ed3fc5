"""NVIDIA GPUs as a machine: targets by compute capability, what their code is made of, what a multiprocessor does.

Nothing here asks for a GPU: code is made, and where ptxas is installed assembled, on any machine.
"""

from __future__ import annotations

from collections.abc import Collection

from burnish.machines.dialect import Dialect, LaunchGrid
from burnish.machines.machine import STRICT, Core, CpuModel, Machine, Rates, Warps
from burnish.machines.nvptx.copies import COPY_HINTS, COPY_PRELUDE, MOVE_PRELUDE, copy_loop
from burnish.machines.nvptx.exponential import EXP2_DIFFERENCE, EXP_DIFFERENCE, EXP_PRELUDE
from burnish.machines.nvptx.mma import DOT, DOT_COLUMNS, FRAGMENT, MMA_INTRINSICS, MMA_PRELUDE
from burnish.machines.nvptx.tensor_copies import TENSOR_HINTS, TENSOR_PRELUDE
from burnish.machines.nvptx.threads import (
    BOUND_LOOPS,
    HINTS,
    LOCAL,
    RESERVED,
    SHARED,
    SINCE_80,
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


def _model(cpu: str, l1: int, l2: int, count: int, rates: Rates, ptx: str = PTX_VERSION) -> CpuModel:
    """Target of a compute capability; ``l1``: of which a block can have all but ``RESERVED``."""
    since_80 = [SINCE_80] if int(cpu.removeprefix("sm_").rstrip("a")) >= 80 else []
    features = dict.fromkeys([PTX_VERSION, ptx, *since_80, *([FEATURE] if cpu == FEATURE else [])])
    return CpuModel(f"cuda:{cpu}", cpu, " ".join(features), l1, l2, 0, count, rates)


# From data sheets, not measured; products with sums in float32.
_T4 = _multiprocessor(8.1e12, 8.1e12, 1.3e12, 0.32e12, 40)  # without products of halves by ``mma``
_A100 = _multiprocessor(19.5e12, 312e12, 5e12, 2.0e12, 108)  # SXM, 80 GB
_A6000 = _multiprocessor(38.7e12, 155e12, 2.5e12, 0.77e12, 84)
_ORIN = _multiprocessor(5.3e12, 42.5e12, 0.6e12, 0.2e12, 16)  # AGX
_L40S = _multiprocessor(91.6e12, 362e12, 4e12, 0.86e12, 142)
_H100 = _multiprocessor(67e12, 989e12, 5.5e12, 3.35e12, 132)  # SXM
_B200 = _multiprocessor(75e12, 2250e12, 10e12, 8e12, 148)
_B300 = _multiprocessor(75e12, 2500e12, 10e12, 8e12, 148)
_RTX5090 = _multiprocessor(104.8e12, 209.5e12, 6e12, 1.79e12, 170)

NVPTX = Machine(
    name="nvptx",
    kind="gpu",
    architectures=("nvptx64",),
    system_of_triple="nvidia-cuda",
    vectors=_vectors,
    core=Core(None, 1.4e9, 4e10, 1.8e10),
    models=(
        _model("sm_75", 93 << 10, 4 << 20, 40, _T4),
        _model("sm_80", 192 << 10, 40 << 20, 108, _A100),
        _model("sm_86", 128 << 10, 6 << 20, 84, _A6000),
        _model("sm_87", 192 << 10, 4 << 20, 16, _ORIN),
        _model("sm_89", 128 << 10, 48 << 20, 142, _L40S),
        _model("sm_90", 256 << 10, 50 << 20, 132, _H100),
        _model("sm_90a", 256 << 10, 50 << 20, 132, _H100),
        _model("sm_100", 256 << 10, 126 << 20, 148, _B200, "ptx86"),
        _model("sm_100a", 256 << 10, 126 << 20, 148, _B200, "ptx86"),
        _model("sm_103", 256 << 10, 126 << 20, 148, _B300, "ptx88"),
        _model("sm_120", 128 << 10, 96 << 20, 170, _RTX5090, "ptx87"),
        _model("sm_120a", 128 << 10, 96 << 20, 170, _RTX5090, "ptx87"),
    ),
    dialect=Dialect(
        {"serial": None, "unroll": None, "vectorize": None, "async": copy_loop, **BOUND_LOOPS},
        {**HINTS, **COPY_HINTS, **TENSOR_HINTS, **PRODUCT_HINTS},
        attributes="nounwind",
        kernel="ptx_kernel",
        rounds_bfloat16=PTX_VERSION,
        grid=LaunchGrid(
            "\n".join(
                [
                    THREAD_PRELUDE,
                    COPY_PRELUDE,
                    TENSOR_PRELUDE,
                    SHUFFLE_PRELUDE,
                    MMA_PRELUDE,
                    WGMMA_PRELUDE,
                    EXP_PRELUDE,
                ]
            ),
            THREADS_OF_BLOCK,
            VECTOR_BYTES,
            frozenset(t.name for t in (*DOT.values(), *DOT_COLUMNS.values())),
            {SINCE_80: MOVE_PRELUDE},
        ),
    ),
    scopes=(GLOBAL, LOCAL, REGISTER, SHARED, SWIZZLED_SHARED, THREAD, FRAGMENT),
    intrinsics=(*WARP_INTRINSICS, EXP_DIFFERENCE, EXP2_DIFFERENCE, *MMA_INTRINSICS, *WGMMA_INTRINSICS),
    channels_last=("float16", "bfloat16", "int8", "uint8", "int32"),
    precisions={STRICT: (), "tf32": ("float32",)},
    warps=Warps(WARP, REDUCE, RESERVED),
    import_path="burnish.machines.nvptx.machine:NVPTX",
)

"""AArch64 as a machine: its cores and targets as data, and what its package holds."""

from collections.abc import Collection

from burnish.machines.aarch64.dot import BYTE_DOT, COUNTS, DOTS, LANES, LOW_DOTS
from burnish.machines.aarch64.flags import FLAGS
from burnish.machines.cpu import CPU_HINTS, CPU_INTRINSICS, CPU_LOOPS
from burnish.machines.dialect import Dialect
from burnish.machines.machine import Core, CpuModel, Machine, System
from burnish.machines.scopes import CPU_SCOPES


def _vectors(features: Collection[str]) -> tuple[int, int]:
    return 16, 32


AARCH64 = Machine(
    name="aarch64",
    architectures=("aarch64", "arm64"),
    vectors=_vectors,
    core=Core(multiply_bytes=None, clock=3.3e9, cache_bandwidth=19e9, memory_bandwidth=15e9),  # as x86: not measured
    models=(
        CpuModel("aarch64-cortex-a53", "cortex-a53", "neon", 32 << 10, 512 << 10, 0, 4),
        CpuModel("aarch64-neoverse-n1", "neoverse-n1", "neon dotprod fullfp16", 64 << 10, 1 << 20, 32 << 20, 4),
        CpuModel("aarch64-neoverse-v1", "neoverse-v1", "neon dotprod fullfp16 i8mm", 64 << 10, 1 << 20, 32 << 20, 4),
    ),
    flags=FLAGS,
    dialect=Dialect(
        CPU_LOOPS,
        CPU_HINTS,
        element_bytes=16,
        dots_bytes="i8mm",
        byte_dots=((LANES, BYTE_DOT),),
        counts_bits="neon",
        low_byte_dots=LOW_DOTS,
    ),
    scopes=CPU_SCOPES,
    intrinsics=(*CPU_INTRINSICS, *DOTS, COUNTS),
    system=System(
        {"futex": 98, "sched_yield": 124, "getcpu": 168, "sched_getaffinity": 123, "sched_setaffinity": 122},
        "llvm.aarch64.hint(i32 1)",
        emulation="aarch64linux",
    ),
    import_path="burnish.machines.aarch64.machine:AARCH64",
)

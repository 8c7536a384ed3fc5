"""RISC-V as a machine: its targets as data. Without the vector extension, vectors are those that LLVM splits."""

from collections.abc import Collection

from burnish.machines.cpu import CPU_HINTS, CPU_INTRINSICS, CPU_LOOPS
from burnish.machines.dialect import Dialect
from burnish.machines.machine import Core, CpuModel, Machine, System
from burnish.machines.riscv.flags import FLAGS
from burnish.machines.scopes import CPU_SCOPES

_BASE = "m a f d c"  # of every Linux on RISC-V (RV64GC)


def _vectors(features: Collection[str]) -> tuple[int, int]:
    return 16, 32


RISCV = Machine(
    name="riscv",
    architectures=("riscv64",),
    vectors=_vectors,
    core=Core(multiply_bytes=None, clock=3.3e9, cache_bandwidth=19e9, memory_bandwidth=15e9),  # as x86: not measured
    models=(
        CpuModel("riscv64", "generic-rv64", _BASE, 32 << 10, 512 << 10, 0, 4),
        CpuModel("riscv64-v", "generic-rv64", f"{_BASE} v", 32 << 10, 512 << 10, 0, 4),
    ),
    flags=FLAGS,
    dialect=Dialect(CPU_LOOPS, CPU_HINTS),
    scopes=CPU_SCOPES,
    intrinsics=CPU_INTRINSICS,
    system=System(
        {"futex": 98, "sched_yield": 124, "getcpu": 168, "sched_getaffinity": 123, "sched_setaffinity": 122},
        "llvm.riscv.pause()",
        features="+m,+a,+f,+d,+c,+zihintpause",
        emulation="elf64lriscv",
        elf_flags=0x5,  # RVC, and the double-float ABI
    ),
    import_path="burnish.machines.riscv.machine:RISCV",
)

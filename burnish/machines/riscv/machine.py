"""RISC-V as a machine: its targets as data. Vectors are those that LLVM splits into scalars: no vector extension."""

from collections.abc import Collection

from burnish.machines.cpu import CPU_HINTS, CPU_INTRINSICS, CPU_LOOPS
from burnish.machines.dialect import Dialect
from burnish.machines.machine import Core, Machine, Model
from burnish.machines.scopes import CPU_SCOPES


def _vectors(features: Collection[str]) -> tuple[int, int]:
    return 16, 32


RISCV = Machine(
    name="riscv",
    architectures=("riscv64",),
    vectors=_vectors,
    core=Core(multiply_bytes=None, clock=3.3e9, cache_bandwidth=19e9, memory_bandwidth=15e9),  # as x86: not measured
    models=(Model("riscv64", "generic-rv64", "m a f d c", 32 << 10, 512 << 10, 0, 4),),
    dialect=Dialect(CPU_LOOPS, CPU_HINTS),
    scopes=CPU_SCOPES,
    intrinsics=CPU_INTRINSICS,
    import_path="burnish.machines.riscv.machine:RISCV",
)

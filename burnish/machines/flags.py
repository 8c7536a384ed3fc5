"""CPU features without LLVM: instruction sets by the kernel's names, and states that a process must ask for."""

from collections.abc import Callable, Mapping

from burnish.machines.aarch64.flags import FLAGS as AARCH64
from burnish.machines.amx.permission import allow_matrix_tiles
from burnish.machines.riscv.flags import FLAGS as RISCV
from burnish.machines.x86.flags import FLAGS as X86

FLAGS: Mapping[str, Mapping[str, str]] = {"x86_64": X86, "aarch64": AARCH64, "riscv64": RISCV}
"""Architecture -> LLVM's name of an instruction set -> the Linux kernel's name in /proc/cpuinfo."""

PERMISSIONS: Mapping[str, Callable[[], bool]] = {"amx-tile": allow_matrix_tiles}
"""Feature -> whether the kernel lets this process use it."""

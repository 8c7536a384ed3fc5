"""x86-64 as a machine: vectors by feature, its dialect, and what its packages hold."""

from __future__ import annotations

from collections.abc import Collection

from burnish.machines.amx.tiles import AMX
from burnish.machines.cpu import CPU_HINTS, CPU_INTRINSICS, CPU_LOOPS
from burnish.machines.dialect import Dialect
from burnish.machines.machine import Machine, System
from burnish.machines.scopes import CPU_SCOPES
from burnish.machines.x86.cores import CORE, CORES, MODELS
from burnish.machines.x86.cpuid import cpu_check
from burnish.machines.x86.dot import BYTE_DOT, COUNTS, DOT_BF16_F32, DOT_U8S8_I32, LANES, LOW_DOTS
from burnish.machines.x86.flags import FLAGS


def _vectors(features: Collection[str]) -> tuple[int, int]:
    return (64, 32) if "avx512f" in features else (32 if "avx2" in features else 16, 16)


def _flush(features: Collection[str]) -> tuple[str, str]:
    flush = "llvm.x86.clflushopt" if "clflushopt" in features else "llvm.x86.sse2.clflush"
    return flush, "llvm.x86.sse2.mfence"


X86 = Machine(
    name="x86",
    architectures=("x86_64", "i686", "amd64"),
    vectors=_vectors,
    core=CORE,
    cores=CORES,
    models=MODELS,
    flags=FLAGS,
    dialect=Dialect(
        CPU_LOOPS,
        CPU_HINTS,
        saturates=False,
        rounds_bfloat16="avx512bf16",
        dots_bytes="avx512vnni",
        byte_dots=((LANES, BYTE_DOT),),
        counts_bits="avx512bitalg",
        low_byte_dots=LOW_DOTS,
        masks="avx512bw",
    ),
    scopes=CPU_SCOPES,
    intrinsics=(*CPU_INTRINSICS, DOT_U8S8_I32, DOT_BF16_F32, COUNTS),
    units=(AMX,),
    system=System(
        {"futex": 202, "sched_yield": 24, "getcpu": 309, "sched_getaffinity": 204, "sched_setaffinity": 203},
        "llvm.x86.sse2.pause()",
        emulation="elf_x86_64",
        check=cpu_check,
    ),
    flush=_flush,
    blocked=("float32", "uint8", "int8"),
    import_path="burnish.machines.x86.machine:X86",
)

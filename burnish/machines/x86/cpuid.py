"""CPUID bits of x86-64 instruction sets, and the check of a program's CPU that follows from LLVM's features.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID; AMD64 Architecture Programmer's
Manual, volume 3, appendix E.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from burnish.machines.machine import CpuCheck

EAX, EBX, ECX, EDX = range(4)


def _bits(leaf: int, sub: int, register: int, **bits: int) -> dict[str, tuple[int, int, int, int]]:
    return {name.replace("_", "-"): (leaf, sub, register, bit) for name, bit in bits.items()}


CPUID: Mapping[str, tuple[int, int, int, int]] = {
    **_bits(1, 0, EDX, sse=25, sse2=26),
    **_bits(1, 0, ECX, sse3=0, pclmul=1, ssse3=9, fma=12, movbe=22, popcnt=23, aes=25, avx=28, f16c=29),
    "sse4.1": (1, 0, ECX, 19), "sse4.2": (1, 0, ECX, 20), "crc32": (1, 0, ECX, 20),
    **_bits(7, 0, EBX, bmi=3, avx2=5, bmi2=8, avx512f=16, avx512dq=17, adx=19, avx512ifma=21, avx512cd=28, sha=29,
            avx512bw=30, avx512vl=31),
    **_bits(7, 0, ECX, avx512vbmi=1, avx512vbmi2=6, gfni=8, vaes=9, vpclmulqdq=10, avx512vnni=11, avx512bitalg=12,
            avx512vpopcntdq=14),
    **_bits(7, 0, EDX, avx512vp2intersect=8, amx_bf16=22, avx512fp16=23, amx_tile=24, amx_int8=25),
    **_bits(7, 1, EAX, avxvnni=4, avx512bf16=5, amx_fp16=21, avxifma=23),
    **_bits(7, 1, EDX, avxvnniint8=4),
    **_bits(0x80000001, 0, ECX, lzcnt=5),
}  # fmt: skip
"""LLVM's feature -> leaf, sub-leaf, register of the answer, and bit in it."""

AVX_STATE, AVX512_STATE, TILE_STATE = 0x6, 0xE6, 0x60000
"""Bits of XCR0: which registers the system saves, so that programs may use them."""

CPUID_CODE = bytes.fromhex("89f8 89f1 4989d0 53 0fa2 418900 41895804 41894808 4189500c 5b c3")
"""``void (uint32_t leaf, uint32_t sub, uint32_t found[4])``: mov eax, edi; mov ecx, esi; mov r8, rdx; push rbx; cpuid;
four stores at r8; pop rbx; ret."""

XGETBV_CODE = bytes.fromhex("31c9 0f01d0 c3")
"""``uint32_t (void)``, the lower half of XCR0: xor ecx, ecx; xgetbv; ret."""


def cpu_check(features: Collection[str]) -> CpuCheck:
    """Whether the CPU has these features, and the system saves their registers, and lets the process use tiles."""
    needed: dict[tuple[int, int, int], int] = {}
    for feature in features:
        leaf, sub, register, bit = CPUID[feature]
        needed[leaf, sub, register] = needed.get((leaf, sub, register), 0) | 1 << bit
    saved = AVX_STATE * ("avx" in features) | AVX512_STATE * ("avx512f" in features)
    saved |= TILE_STATE * ("amx-tile" in features)
    lines = ["%found = alloca [4 x i32]", "%all0 = and i1 true, true"]
    for number, ((leaf, sub, register), mask) in enumerate(sorted(needed.items())):
        lines += [
            f"call void @{{p}}_cpuid(i32 {_signed(leaf & 0x80000000)}, i32 0, ptr %found)",
            f"%most{number} = load i32, ptr %found",
            f"%has{number} = icmp uge i32 %most{number}, {_signed(leaf)}",
            f"call void @{{p}}_cpuid(i32 {_signed(leaf)}, i32 {sub}, ptr %found)",
            f"%at{number} = getelementptr i32, ptr %found, i32 {register}",
            f"%r{number} = load i32, ptr %at{number}",
            f"%b{number} = and i32 %r{number}, {_signed(mask)}",
            f"%e{number} = icmp eq i32 %b{number}, {_signed(mask)}",
            f"%f{number} = and i1 %has{number}, %e{number}",
            f"%all{number + 1} = and i1 %all{number}, %f{number}",
        ]
    last = f"%all{len(needed)}"
    state = f"""  br i1 {last}, label %system, label %no
system: ; OSXSAVE, then XGETBV
  call void @{{p}}_cpuid(i32 1, i32 0, ptr %found)
  %ecx.at = getelementptr i32, ptr %found, i32 2
  %ecx = load i32, ptr %ecx.at
  %osxsave = and i32 %ecx, {1 << 27}
  %asks = icmp ne i32 %osxsave, 0
  br i1 %asks, label %saves, label %no
saves:
  %xcr0 = call i32 @{{p}}_xgetbv()
  %kept = and i32 %xcr0, {saved}
  %enough = icmp eq i32 %kept, {saved}
  br i1 %enough, label %tiles, label %no
tiles:
  {_PERMISSION if "amx-tile" in features else "ret i1 true"}
no:
  ret i1 false
"""
    body = "".join(f"  {line}\n" for line in lines)
    end = state if saved else f"  ret i1 {last}\n"
    return CpuCheck(
        f"{_CPUID}define internal i1 @{{p}}_able() nounwind {{\nentry:\n{body}{end}}}\n",
        {"cpuid": CPUID_CODE, "xgetbv": XGETBV_CODE},
    )


_CPUID = "declare void @{p}_cpuid(i32, i32, ptr)\ndeclare i32 @{p}_xgetbv()\n"

# arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
_PERMISSION = """%refused = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)
  %allowed = icmp eq i64 %refused, 0
  ret i1 %allowed"""


def _signed(value: int) -> int:
    """As a number of 32 bits with a sign."""
    return value - (1 << 32) if value >= 1 << 31 else value

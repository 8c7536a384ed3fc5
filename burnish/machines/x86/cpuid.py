"""CPUID bits of x86-64 instruction sets: where a program asks the CPU for each of LLVM's features.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID; AMD64 Architecture Programmer's
Manual, volume 3, appendix E.
"""

from __future__ import annotations

from collections.abc import Mapping

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

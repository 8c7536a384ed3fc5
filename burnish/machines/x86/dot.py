"""Dot products on the lanes of a vector: AVX-512 VNNI's vpdpbusd on bytes, AVX-512 BF16's vdpbf16ps."""

from __future__ import annotations

from functools import partial

from burnish.machines.cpu import bit_counts, emit_lane_dot
from burnish.machines.emitter import IntrinsicCode
from burnish.machines.intrinsics import lane_dot

LANES = 16
BYTE_DOT = "llvm.x86.avx512.vpdpbusd.512"
LOW_DOTS = (  # sums of two products in int16, which saturate where bytes are not below 128
    ("avx2", 8, ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd")),
    ("avx512bw", 16, ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512")),
)


_BYTES: IntrinsicCode = partial(
    emit_lane_dot, lanes=LANES, name=BYTE_DOT, accumulator="i32", dtype="int32", operand="<64 x i8>"
)
_HALVES: IntrinsicCode = partial(
    emit_lane_dot,
    lanes=LANES,
    name="llvm.x86.avx512bf16.dpbf16ps.512",
    accumulator="float",
    dtype="float32",
    operand="<32 x bfloat>",
)
COUNTS = bit_counts("bit_counts_i32", LANES, "avx512bitalg")
DOT_U8S8_I32 = lane_dot("dot_u8s8_i32", LANES, 4, "uint8", "int8", "int32", _BYTES, "avx512vnni")
DOT_BF16_F32 = lane_dot("dot_bf16_f32", LANES, 2, "bfloat16", "bfloat16", "float32", _HALVES, "avx512bf16")

"""Dot products on the lanes of a vector: AVX-512 VNNI's vpdpbusd on bytes, AVX-512 BF16's vdpbf16ps."""

from __future__ import annotations

from functools import partial

from burnish.loops.program import Intrinsic
from burnish.machines.emitter import Emitter, IntrinsicCode, pointer_to
from burnish.machines.intrinsics import lane_dot

LANES = 16
BYTE_DOT = "llvm.x86.avx512.vpdpbusd.512"


def _emit_dot(f: Emitter, s: Intrinsic, name: str, accumulator: str, dtype: str, operand: str) -> None:
    """An instruction on the accumulator's vector and on 16 groups of four bytes of each operand.

    The group that all lanes share is loaded as one number, and broadcast.
    """
    out, x, w = s.operands
    sums, words = f"<{LANES} x {accumulator}>", f"<{LANES} x i32>"
    place = pointer_to(f, out)
    old = f.result(f"load {sums}, ptr {place}, align 4", dtype, LANES)
    one = f.result(f"load i32, ptr {pointer_to(f, x)}, align 1", "int32")
    first = f.result(f"insertelement {words} poison, i32 {one.text}, i64 0", "int32", LANES)
    shared = f.result(f"shufflevector {words} {first.text}, {words} poison, {words} zeroinitializer", "int32", LANES)
    own = f.result(f"load {words}, ptr {pointer_to(f, w)}, align 1", "int32", LANES)
    left, right = (f.result(f"bitcast {words} {v.text} to {operand}", "int32", LANES) for v in (shared, own))
    f.declare(name, sums, [sums, operand, operand])
    text = f"call {sums} @{name}({sums} {old.text}, {operand} {left.text}, {operand} {right.text})"
    new = f.result(text, dtype, LANES)
    f.emit(f"store {sums} {new.text}, ptr {place}, align 4")
    f.forget()


_BYTES: IntrinsicCode = partial(_emit_dot, name=BYTE_DOT, accumulator="i32", dtype="int32", operand="<64 x i8>")
_HALVES: IntrinsicCode = partial(
    _emit_dot, name="llvm.x86.avx512bf16.dpbf16ps.512", accumulator="float", dtype="float32", operand="<32 x bfloat>"
)
DOT_U8S8_I32 = lane_dot("dot_u8s8_i32", LANES, 4, "uint8", "int8", "int32", _BYTES, "avx512vnni")
DOT_BF16_F32 = lane_dot("dot_bf16_f32", LANES, 2, "bfloat16", "bfloat16", "float32", _HALVES, "avx512bf16")

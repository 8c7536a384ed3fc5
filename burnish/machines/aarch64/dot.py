"""Dot products on the lanes of a NEON vector: sdot and udot on bytes of one sign, usdot of unsigned and signed ones."""

from __future__ import annotations

from functools import partial

from burnish.machines.cpu import bit_counts, emit_lane_dot
from burnish.machines.intrinsics import TensorIntrinsic, lane_dot

LANES = 4
BYTE_DOT = "llvm.aarch64.neon.usdot.v4i32.v16i8"
LOW_DOTS = (("dotprod", LANES, ("llvm.aarch64.neon.sdot.v4i32.v16i8",)),)  # bytes below 128 are signed ones, too


def _dot(name: str, a: str, b: str, instruction: str, needs: str) -> TensorIntrinsic:
    code = partial(
        emit_lane_dot, lanes=LANES, name=f"llvm.aarch64.neon.{instruction}.v4i32.v16i8", accumulator="i32",
        dtype="int32", operand="<16 x i8>",
    )  # fmt: skip
    return lane_dot(name, LANES, 4, a, b, "int32", code, needs)


DOT_S8S8_I32 = _dot("dot_s8s8_i32", "int8", "int8", "sdot", "dotprod")
DOT_U8U8_I32 = _dot("dot_u8u8_i32", "uint8", "uint8", "udot", "dotprod")
DOT_U8S8_I32 = _dot("dot_u8s8_i32x4", "uint8", "int8", "usdot", "i8mm")
COUNTS = bit_counts("bit_counts_i32x4", LANES)
DOTS = (DOT_S8S8_I32, DOT_U8U8_I32, DOT_U8S8_I32)

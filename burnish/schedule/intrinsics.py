"""Tensor intrinsics: operations of a machine on small tiles, each declared by the loop program that it computes.

Source: thesis-chen section 4.3.3 (tensorization separates an intrinsic's behaviour from the primitive that applies it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.loops.expr import Buffer, Expr, Load, Var, cast
from burnish.loops.interpret import IntrinsicFunction, run_program
from burnish.loops.program import For, Program, Stmt, Store


@dataclass(frozen=True, slots=True)
class TensorIntrinsic:
    """``program`` computes what the intrinsic computes: one perfect nest, its first parameter the output.

    Parameters are dense row-major tiles. An operand in a program must have the same strides; its address is that of the
    tile's first element.
    """

    name: str
    program: Program

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Tiles in the order of the operands, the output first."""
        return self.program.params


def dot(name: str, lanes: int, width: int, a: str, b: str, accumulator: str) -> TensorIntrinsic:
    """``out[i] += sum(x[k] * w[i, k])``: ``width`` products for each of ``lanes`` outputs, which share ``x``."""
    out = Buffer("out", (lanes,), accumulator)
    x, w = Buffer("x", (width,), a), Buffer("w", (lanes, width), b)
    i, k = Var("i"), Var("k")
    left: Expr = cast(accumulator, Load(x, (k,)))
    body: Stmt = Store(out, (i,), left * cast(accumulator, Load(w, (i, k))), "sum")
    nest = For("i", lanes, "serial", For("k", width, "serial", body))
    return TensorIntrinsic(name, Program(name, (out, x, w), nest))


DOT_U8S8_I32 = dot("dot_u8s8_i32", 16, 4, "uint8", "int8", "int32")  # AVX-512 VNNI vpdpbusd
DOT_BF16_F32 = dot("dot_bf16_f32", 16, 2, "bfloat16", "bfloat16", "float32")  # AVX-512 BF16 vdpbf16ps
INTRINSICS: Mapping[str, TensorIntrinsic] = {t.name: t for t in (DOT_U8S8_I32, DOT_BF16_F32)}


def reference(intrinsic: TensorIntrinsic) -> IntrinsicFunction:
    """What the interpreter runs for ``intrinsic``: its declaration, on the tiles at the operands' addresses."""

    def run(operands: Sequence[tuple[np.ndarray, tuple[int, ...]]], attrs: Mapping[str, int | str]) -> None:
        del attrs
        tiles = []
        for (array, index), tile in zip(operands, intrinsic.operands, strict=True):
            start = int(np.ravel_multi_index(index, array.shape))
            tiles.append(array.reshape(-1)[start : start + tile.size].reshape(tile.shape))
        arrays = {tile.name: view for tile, view in zip(intrinsic.operands, tiles, strict=True)}
        tiles[0][...] = run_program(intrinsic.program, arrays)[intrinsic.operands[0].name]

    return run

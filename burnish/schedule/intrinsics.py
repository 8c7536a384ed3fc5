"""Tensor intrinsics: operations of a machine on small tiles, each declared by the loop program that it computes.

Source: thesis-chen section 4.3.3 (tensorization separates an intrinsic's behaviour from the primitive that applies it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.loops.expr import Buffer, Const, Expr, Load, Var, cast
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
    free: frozenset[str] = frozenset()  # operands whose rows may lie further apart, by attribute ``<operand>_stride``

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


def _nest(loops: Sequence[tuple[str, int]], body: Stmt) -> Stmt:
    for name, extent in reversed(loops):
        body = For(name, extent, "serial", body)
    return body


def _amx_tiles() -> tuple[TensorIntrinsic, ...]:
    """AMX on bfloat16: a 16 x 16 float32 accumulator tile, 16 rows of 32 on the left, pairs of rows on the right."""
    c, d = Buffer("c", (16, 16)), Buffer("d", (16, 16))
    a, b = Buffer("a", (16, 32), "bfloat16"), Buffer("b", (16, 16, 2), "bfloat16")
    i, j, k, pair = (Var(n) for n in ("i", "j", "k", "pair"))
    plane = [("i", 16), ("j", 16)]
    product = cast("float32", Load(a, (i, k * 2 + pair))) * cast("float32", Load(b, (k, j, pair)))
    zero = _nest(plane, Store(c, (i, j), Const(0.0, "float32")))
    dot_ = _nest([*plane, ("k", 16), ("pair", 2)], Store(c, (i, j), product, "sum"))
    store = _nest(plane, Store(d, (i, j), Load(c, (i, j))))
    return (
        TensorIntrinsic("amx_zero", Program("amx_zero", (c,), zero)),
        TensorIntrinsic("amx_dot_bf16", Program("amx_dot_bf16", (c, a, b), dot_), frozenset({"a"})),
        TensorIntrinsic("amx_store", Program("amx_store", (d, c), store), frozenset({"d"})),
    )


def _transpose(size: int) -> TensorIntrinsic:
    """A square block moved with rows and columns exchanged; both may lie in wider matrices."""
    d, x = Buffer("d", (size, size)), Buffer("s", (size, size))
    i, j = Var("i"), Var("j")
    nest = _nest([("i", size), ("j", size)], Store(d, (i, j), Load(x, (j, i))))
    name = f"transpose{size}_f32"
    return TensorIntrinsic(name, Program(name, (d, x), nest), frozenset({"d", "s"}))


TRANSPOSE16_F32 = _transpose(16)
INTRINSICS: Mapping[str, TensorIntrinsic] = {
    t.name: t for t in (DOT_U8S8_I32, DOT_BF16_F32, TRANSPOSE16_F32, *_amx_tiles())
}


def reference(intrinsic: TensorIntrinsic) -> IntrinsicFunction:
    """What the interpreter runs for ``intrinsic``: its declaration, on the tiles at the operands' addresses."""

    def run(operands: Sequence[tuple[np.ndarray, tuple[int, ...]]], attrs: Mapping[str, int | str]) -> None:
        tiles = []
        for (array, index), tile in zip(operands, intrinsic.operands, strict=True):
            start = int(np.ravel_multi_index(index, array.shape))
            flat = array.reshape(-1)[start:]
            steps = np.cumprod([1, *tile.shape[:0:-1]])[::-1].tolist()
            steps[0] = int(attrs.get(f"{tile.name}_stride", steps[0]))
            tiles.append(np.lib.stride_tricks.as_strided(flat, tile.shape, [step * flat.itemsize for step in steps]))
        arrays = {tile.name: view for tile, view in zip(intrinsic.operands, tiles, strict=True)}
        tiles[0][...] = run_program(intrinsic.program, arrays)[intrinsic.operands[0].name]

    return run

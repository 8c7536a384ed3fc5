"""Common to all CPUs: cache hints, a transposed block, and the loop kinds that their code lowers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from burnish.loops.expr import BIT_COUNTS, Buffer, Load, Var, math
from burnish.loops.program import Intrinsic, Store
from burnish.machines.emitter import CodeEmitter, IntrinsicCode, LoopCode, pointer_to
from burnish.machines.intrinsics import TensorIntrinsic, declare

CPU_LOOPS: Mapping[str, LoopCode | None] = dict.fromkeys(("serial", "unroll", "vectorize", "parallel"))
"""Written by the emitter itself: a parallel loop is a function for the thread pool."""


def _prefetch(f: CodeEmitter, s: Intrinsic) -> None:
    """Hints the cache line of the operand into L2 (attr ``locality`` 0..3, default 2).

    A hint loads nothing: of a position that is itself loaded, perhaps further on than there are any, there is none.
    """
    access = s.operands[0]
    if any(index.buffers for index in access.indices):
        return
    pointer = pointer_to(f, access)
    f.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    f.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 {dict(s.attrs).get('locality', 2)}, i32 1)")


CPU_HINTS: Mapping[str, IntrinsicCode] = {"prefetch": _prefetch}


def _transpose16(f: CodeEmitter, s: Intrinsic) -> None:
    """A 16 x 16 block of float32: load rows, exchange ever smaller off-diagonal blocks, store rows."""
    size, attrs = 16, dict(s.attrs)
    to, source = s.operands
    rows = []
    for r in range(size):
        pointer = pointer_to(f, source, r * int(attrs.get("s_stride", size)))
        rows.append(f.result(f"load <{size} x float>, ptr {pointer}, align 4", "float32", size))
    half = size // 2
    while half:
        for i in (i for i in range(size) if not i & half):
            a, b = rows[i], rows[i + half]
            first = [j if not j & half else size + j - half for j in range(size)]
            second = [j + half if not j & half else size + j for j in range(size)]
            rows[i], rows[i + half] = _shuffle(f, a, b, first), _shuffle(f, a, b, second)
        half //= 2
    for r, row in enumerate(rows):
        pointer = pointer_to(f, to, r * int(attrs.get("d_stride", size)))
        f.emit(f"store {row.type} {row.text}, ptr {pointer}, align 4")
    f.forget()


def emit_lane_dot(
    f: CodeEmitter, s: Intrinsic, lanes: int, name: str, accumulator: str, dtype: str, operand: str
) -> None:
    """An instruction on the accumulator's vector and on as many groups of four bytes of each operand.

    The group that all lanes share is loaded as one number, and broadcast.
    """
    out, x, w = s.operands
    sums, words = f"<{lanes} x {accumulator}>", f"<{lanes} x i32>"
    place = pointer_to(f, out)
    old = f.result(f"load {sums}, ptr {place}, align 4", dtype, lanes)
    one = f.result(f"load i32, ptr {pointer_to(f, x)}, align 1", "int32")
    first = f.result(f"insertelement {words} poison, i32 {one.text}, i64 0", "int32", lanes)
    shared = f.result(f"shufflevector {words} {first.text}, {words} poison, {words} zeroinitializer", "int32", lanes)
    own = f.result(f"load {words}, ptr {pointer_to(f, w)}, align 1", "int32", lanes)
    left, right = (f.result(f"bitcast {words} {v.text} to {operand}", "int32", lanes) for v in (shared, own))
    f.declare(name, sums, [sums, operand, operand])
    text = f"call {sums} @{name}({sums} {old.text}, {operand} {left.text}, {operand} {right.text})"
    new = f.result(text, dtype, lanes)
    f.emit(f"store {sums} {new.text}, ptr {place}, align 4")
    f.forget()


BIT_DEPTH = 8  # words whose counts are added in 16 bits before they join the sums of before


def _emit_bit_counts(f: CodeEmitter, s: Intrinsic, lanes: int) -> None:
    """Counts of words, one of each shared by all lanes, in halves of 16 bits side by side, then added to the sums."""
    out, x, w = s.operands
    words, halves = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    f.declare(f"llvm.ctpop.v{2 * lanes}i16", halves, [halves])
    place = pointer_to(f, out)
    total = f.result(f"load {halves}, ptr {place}, align 4", "int16", 2 * lanes)
    for k in range(BIT_DEPTH):
        one = f.result(f"load i32, ptr {pointer_to(f, x, k)}, align 4", "int32")
        first = f.result(f"insertelement {words} poison, i32 {one.text}, i64 0", "int32", lanes)
        shared = f.result(
            f"shufflevector {words} {first.text}, {words} poison, {words} zeroinitializer", "int32", lanes
        )
        own = f.result(f"load {words}, ptr {pointer_to(f, w, k * lanes)}, align 4", "int32", lanes)
        both = f.result(f"and {words} {shared.text}, {own.text}", "int32", lanes)
        bits = f.result(f"bitcast {words} {both.text} to {halves}", "int16", 2 * lanes)
        counts = f.result(f"call {halves} @llvm.ctpop.v{2 * lanes}i16({halves} {bits.text})", "int16", 2 * lanes)
        total = f.result(f"add {halves} {total.text}, {counts.text}", "int16", 2 * lanes)
    f.emit(f"store {halves} {total.text}, ptr {place}, align 4")
    f.forget()


def bit_counts(name: str, lanes: int, needs: str = "") -> TensorIntrinsic:
    """Bit-serial product of a row of words and a matrix: ``out[i] += sum(bit_counts(x[k], w[k, i]))``."""
    out = Buffer("out", (lanes,), "int32")
    x, w = Buffer("x", (BIT_DEPTH,), "int32"), Buffer("w", (BIT_DEPTH, lanes), "int32")
    i, k = Var("i"), Var("k")
    body = Store(out, (i,), math(BIT_COUNTS, Load(x, (k,)), Load(w, (k, i))), "sum")
    code = partial(_emit_bit_counts, lanes=lanes)
    return declare(name, (out, x, w), [("i", lanes), ("k", BIT_DEPTH)], body, code=code, needs=needs)


def _shuffle(f: CodeEmitter, a: Any, b: Any, lanes: list[int]) -> Any:
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    text = f"shufflevector {a.type} {a.text}, {b.type} {b.text}, <{len(lanes)} x i32> <{mask}>"
    return f.result(text, a.dtype, len(lanes))


def _transpose(size: int, code: IntrinsicCode) -> TensorIntrinsic:
    """A square block moved with rows and columns exchanged; both may lie in wider matrices."""
    d, x = Buffer("d", (size, size)), Buffer("s", (size, size))
    i, j = Var("i"), Var("j")
    body = Store(d, (i, j), Load(x, (j, i)))
    return declare(f"transpose{size}_f32", (d, x), [("i", size), ("j", size)], body, free="d s", code=code)


TRANSPOSE16_F32 = _transpose(16, _transpose16)
CPU_INTRINSICS = (TRANSPOSE16_F32,)

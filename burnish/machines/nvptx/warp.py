"""Warp reductions: 32 threads combine what each holds by shuffles, without shared memory and without a barrier.

Buffers of the scope ``thread`` are held by threads in parts: of a dimension that every access indexes by a thread's
index alone, each thread has its own element (``lower/thread_scope.py``), in registers where the other places are known.

Source: PTX ISA, "shfl.sync"; thesis-chen section 4.3.2 (scopes).
"""

from __future__ import annotations

from burnish.loops.expr import INTS, ITEM_BYTES, PRIVATE, Buffer, Const, Load, Var
from burnish.loops.program import Intrinsic, Store
from burnish.machines.emitter import CodeEmitter, IntrinsicCode, pointer_to
from burnish.machines.intrinsics import TensorIntrinsic, declare
from burnish.machines.scopes import MemoryScope

WARP = 32
QUAD = 4  # neighbouring threads that hold a row of a tensor core's tile
THREAD_BYTES = 256 << 10  # of all threads of a block: the registers of a multiprocessor
KINDS = ("sum", "prod", "max", "min")
_WORDS = {"sum": ("fadd", "add"), "prod": ("fmul", "mul")}
_LLVM = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64"}


def _place(f: CodeEmitter, buffer: Buffer) -> str:
    """This thread's part, in registers once LLVM has seen that all places are known."""
    return f.hoist(0, f"alloca [{max(buffer.nbytes, 1)} x i8], align 16")


THREAD = MemoryScope(PRIVATE, capacity=THREAD_BYTES, place=_place, aligned=16, parts=True)


def _combined(f: CodeEmitter, kind: str, dtype: str, a: str, b: str) -> str:
    """Two numbers as one; of extremes NaN stays."""
    element = _LLVM[dtype]
    if kind in _WORDS:
        return str(f.result(f"{_WORDS[kind][dtype in INTS]} {element} {a}, {b}", dtype).text)
    bits = ITEM_BYTES[dtype] * 8
    name = f"llvm.s{kind}.i{bits}" if dtype in INTS else f"llvm.{kind}imum.f{bits}"
    f.declare(name, element, [element, element])
    return str(f.result(f"call {element} @{name}({element} {a}, {element} {b})", dtype).text)


def _moved(f: CodeEmitter, dtype: str, value: str, step: int) -> str:
    """Warp shuffle: the value of the thread whose number in the warp differs by the bits of ``step``."""
    f.declare("gpu.shuffle", "i32", ["i32", "i32"])
    element, bits = _LLVM[dtype], ITEM_BYTES[dtype] * 8
    whole = value if dtype in INTS else f.result(f"bitcast {element} {value} to i{bits}", "int64").text
    if bits == 32:
        found = f.result(f"call i32 @gpu.shuffle(i32 {whole}, i32 {step})", "int32").text
    else:
        halves = [f.result(f"trunc i64 {whole} to i32", "int32").text]
        high = f.result(f"lshr i64 {whole}, 32", "int64").text
        halves.append(f.result(f"trunc i64 {high} to i32", "int32").text)
        other = [f.result(f"call i32 @gpu.shuffle(i32 {h}, i32 {step})", "int32").text for h in halves]
        low, high = (f.result(f"zext i32 {o} to i64", "int64").text for o in other)
        raised = f.result(f"shl i64 {high}, 32", "int64").text
        found = f.result(f"or i64 {low}, {raised}", "int64").text
    return str(found) if dtype in INTS else str(f.result(f"bitcast i{bits} {found} to {element}", dtype).text)


def _reduced(kind: str, dtype: str, threads: int) -> IntrinsicCode:
    def code(f: CodeEmitter, s: Intrinsic) -> None:
        d, c = s.operands
        element = _LLVM[dtype]
        value = f.result(f"load {element}, ptr {pointer_to(f, c)}", dtype).text
        step = threads // 2
        while step:
            value = _combined(f, kind, dtype, value, _moved(f, dtype, value, step))
            step //= 2
        place = pointer_to(f, d)
        old = f.result(f"load {element}, ptr {place}", dtype).text
        f.emit(f"store {element} {_combined(f, kind, dtype, old, value)}, ptr {place}")
        f.forget()

    return code


def _declared(kind: str, dtype: str, threads: int = WARP) -> TensorIntrinsic:
    d, c = Buffer("d", (1,), dtype), Buffer("c", (threads,), dtype)
    body = Store(d, (Const(0),), Load(c, (Var("l"),)), kind)
    name = f"{'warp' if threads == WARP else 'quad'}_{kind}_{dtype}"
    code = _reduced(kind, dtype, threads)
    return declare(name, (d, c), [("l", threads)], body, code=code, collective=threads, spread="c")


REDUCE = {(kind, dtype): _declared(kind, dtype) for kind in KINDS for dtype in _LLVM}
QUAD_REDUCE = {(kind, "float32"): _declared(kind, "float32", QUAD) for kind in ("sum", "max")}
WARP_INTRINSICS = (*REDUCE.values(), *QUAD_REDUCE.values())
"""``d`` combined with the 32 elements of ``c`` (or 4), of which each thread of the warp (or of four neighbours) holds
one; all hold ``d`` then.
"""

SHUFFLE_PRELUDE = """declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
define internal i32 @gpu.shuffle(i32 %value, i32 %step) alwaysinline convergent {
  %other = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %value, i32 %step, i32 31)
  ret i32 %other
}"""
"""LLVM IR of shuffles on a GPU."""

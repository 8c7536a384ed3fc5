"""Tensor cores: ``mma.sync`` on tiles of 16 x 8 by a warp, its operands from shared memory by ``ldmatrix``.

Accumulators are of the scope ``fragment``: each of the 32 threads holds 4 of a tile's 128 elements. Both operands are
stored by rows along the depth, 32 bytes of it at a time: 16 halves, 8 float32 (of which 19 bits count) or 32 bytes.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 / k8 / k32"; thesis-chen section 4.3.3 (tensorization).
"""

from __future__ import annotations

from typing import Any

from burnish.errors import ScheduleError
from burnish.loops.expr import ITEM_BYTES, Buffer, Const, Expr, Load, Var, cast
from burnish.loops.program import Intrinsic, Store
from burnish.machines.emitter import Emitter, IntrinsicCode, pointer_to
from burnish.machines.intrinsics import TensorIntrinsic, declare
from burnish.machines.nvptx.threads import SHARED_SPACE
from burnish.machines.scopes import Scope

WARP = 32
ROWS, COLUMNS = 16, 8
TILE = ROWS * COLUMNS
OWN = TILE // WARP  # elements of a tile that one thread holds
DEPTH_BYTES = 32
_LLVM = {"float32": "float", "int32": "i32"}


def _place(f: Emitter, buffer: Buffer) -> str:
    """This thread's part of whole tiles, in registers once LLVM has seen that all places are known."""
    if buffer.size % TILE:
        raise ScheduleError(f"buffer '{buffer}': scope 'fragment' holds whole tiles of {ROWS} x {COLUMNS}")
    return f.hoist(0, f"alloca [{buffer.nbytes // WARP} x i8], align 16")


FRAGMENT = Scope("fragment", place=_place)


def _own(f: Emitter, access: Load) -> list[str]:
    """Addresses of the four elements of a tile that this thread holds."""
    address = f.resolver.address(access)
    if address.terms or address.const % TILE:
        raise ScheduleError(f"tile accumulator {access}: only tiles at fixed places are held in registers")
    memory = f.memory[access.buffer.name]
    return [f.pointer(memory, (), address.const // WARP + i) for i in range(OWN)]


def _zero(f: Emitter, s: Intrinsic) -> None:
    (c,) = s.operands
    for pointer in _own(f, c):
        f.emit(f"store {_LLVM[c.dtype]} zeroinitializer, ptr {pointer}")


def _row_bytes(s: Intrinsic, operand: str, access: Load, columns: int) -> int:
    return int(dict(s.attrs).get(f"{operand}_stride", columns)) * ITEM_BYTES[access.dtype]


def _operand(f: Emitter, s: Intrinsic, name: str, access: Load, registers: int) -> list[str]:
    """The words of an operand that this thread holds, loaded by the warp once a basic block."""
    stride = _row_bytes(s, name, access, DEPTH_BYTES // ITEM_BYTES[access.dtype])
    held: Any = f.held.setdefault((registers,), {0: {}})[0]
    key = (access.buffer.name, f.resolver.address(access), stride)
    if key not in held:
        kind = "{" + ", ".join(["i32"] * registers) + "}"
        f.declare(f"gpu.fragment.{name}", kind, ["ptr", "i64"])
        whole = f.result(f"call {kind} @gpu.fragment.{name}(ptr {pointer_to(f, access)}, i64 {stride})", "int32").text
        held[key] = [f.result(f"extractvalue {kind} {whole}, {i}", "int32").text for i in range(registers)]
    return list(held[key])


def _dot(name: str) -> IntrinsicCode:
    def code(f: Emitter, s: Intrinsic) -> None:
        c, a, b = s.operands
        element = _LLVM[c.dtype]
        words = [*_operand(f, s, "a", a, 4), *_operand(f, s, "b", b, 2)]
        places = _own(f, c)
        old = [f.result(f"load {element}, ptr {p}", c.dtype).text for p in places]
        kind = "{" + ", ".join([element] * OWN) + "}"
        f.declare(name, kind, ["i32"] * len(words) + [element] * OWN)
        operands = ", ".join([*(f"i32 {w}" for w in words), *(f"{element} {v}" for v in old)])
        new = f.result(f"call {kind} @{name}({operands})", c.dtype).text
        for i, pointer in enumerate(places):
            f.emit(f"store {element} {f.result(f'extractvalue {kind} {new}, {i}', c.dtype).text}, ptr {pointer}")

    return code


def _store(f: Emitter, s: Intrinsic) -> None:
    """Thread 4 g + t holds elements 2 t and 2 t + 1 of the rows g and g + 8."""
    d, c = s.operands
    stride, element = _row_bytes(s, "d", d, COLUMNS), _LLVM[c.dtype]
    f.declare("gpu.thread.x", "i32", [])
    lane = f.hoist(0, "call i32 @gpu.thread.x()")
    row, pair = f.hoist(0, f"lshr i32 {lane}, 2"), f.hoist(0, f"and i32 {lane}, 3")
    down = f.hoist(0, f"mul i32 {row}, {stride}")
    right = f.hoist(0, f"mul i32 {pair}, 8")
    whole = f.hoist(0, f"add i32 {down}, {right}")
    offset = f.hoist(0, f"zext i32 {whole} to i64")
    begin = pointer_to(f, d)
    values = [f.result(f"load {element}, ptr {p}", c.dtype).text for p in _own(f, c)]
    for half in range(2):
        first = f.result(f"insertelement <2 x {element}> poison, {element} {values[2 * half]}, i64 0", c.dtype, 2).text
        both = f.result(
            f"insertelement <2 x {element}> {first}, {element} {values[2 * half + 1]}, i64 1", c.dtype, 2
        ).text
        at = f.result(f"getelementptr i8, ptr {begin}, i64 {offset}", "int64").text
        at = f.result(f"getelementptr i8, ptr {at}, i64 {half * 8 * stride}", "int64").text
        f.emit(f"store <2 x {element}> {both}, ptr {at}, align 8")
    f.forget()


_PLANE = (("i", ROWS), ("j", COLUMNS))
_I, _J, _K = Var("i"), Var("j"), Var("k")
CORES = {  # element type of the operands -> function, element type of the sums
    "float16": ("gpu.mma.f16", "float32"),
    "bfloat16": ("gpu.mma.bf16", "float32"),
    "float32": ("gpu.mma.tf32", "float32"),
    "int8": ("gpu.mma.s8", "int32"),
}


def depth_of(dtype: str) -> int:
    """How many products of a type one instruction adds to each element."""
    return DEPTH_BYTES // ITEM_BYTES[dtype]


def _declared(dtype: str) -> TensorIntrinsic:
    function, accumulator = CORES[dtype]
    depth = depth_of(dtype)
    c, a, b = (
        Buffer("c", (ROWS, COLUMNS), accumulator),
        Buffer("a", (ROWS, depth), dtype),
        Buffer("b", (COLUMNS, depth), dtype),
    )

    def wide(e: Expr) -> Expr:
        return e if e.dtype == accumulator else cast(accumulator, e)

    body = Store(c, (_I, _J), wide(Load(a, (_I, _K))) * wide(Load(b, (_J, _K))), "sum")
    loops = (*_PLANE, ("k", depth))
    return declare(f"mma_{dtype}", (c, a, b), loops, body, free="a b", code=_dot(function), collective=WARP)


def _zeroed(dtype: str) -> TensorIntrinsic:
    c = Buffer("c", (ROWS, COLUMNS), dtype)
    zero = Const(0.0 if dtype == "float32" else 0, dtype)
    return declare(f"mma_zero_{dtype}", (c,), _PLANE, Store(c, (_I, _J), zero), code=_zero, collective=WARP)


def _stored(dtype: str) -> TensorIntrinsic:
    d, c = (Buffer(name, (ROWS, COLUMNS), dtype) for name in "dc")
    body = Store(d, (_I, _J), Load(c, (_I, _J)))
    return declare(f"mma_store_{dtype}", (d, c), _PLANE, body, free="d", code=_store, collective=WARP)


DOT = {dtype: _declared(dtype) for dtype in CORES}
ZERO = {dtype: _zeroed(dtype) for dtype in ("float32", "int32")}
STORE = {dtype: _stored(dtype) for dtype in ("float32", "int32")}
MMA_INTRINSICS = (*DOT.values(), *ZERO.values(), *STORE.values())


def _fragment(name: str, registers: int, row: str, half: str) -> str:
    """``ldmatrix``: eight threads each say where a row of 16 bytes begins; thread 4 g + t gets word t of row g."""
    kind = "{" + ", ".join(["i32"] * registers) + "}"
    load = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{registers}.b16.p{SHARED_SPACE}"
    return f"""declare {kind} @{load}(ptr addrspace({SHARED_SPACE}))
define internal {kind} @gpu.fragment.{name}(ptr %begin, i64 %stride) alwaysinline convergent {{
  %lane = call i32 @gpu.thread.x()
  %narrow = and i32 %lane, {row}
  %row = zext i32 %narrow to i64
  %shifted = lshr i32 %lane, {half}
  %half = and i32 %shifted, 1
  %wide = zext i32 %half to i64
  %down = mul i64 %row, %stride
  %right = mul i64 %wide, 16
  %offset = add i64 %down, %right
  %generic = getelementptr i8, ptr %begin, i64 %offset
  %shared = addrspacecast ptr %generic to ptr addrspace({SHARED_SPACE})
  %words = call {kind} @{load}(ptr addrspace({SHARED_SPACE}) %shared)
  ret {kind} %words
}}"""


def _multiply(name: str, instruction: str, operand: str, element: str) -> str:
    kind = "{" + ", ".join([element] * OWN) + "}"
    words = ", ".join(f"i32 %w{i}" for i in range(6))
    old = ", ".join(f"{element} %c{i}" for i in range(OWN))
    casts = [f"  %o{i} = bitcast i32 %w{i} to {operand}" for i in range(6)] if operand != "i32" else []
    used = ", ".join(f"{operand} %{'o' if casts else 'w'}{i}" for i in range(6))
    types = ", ".join([operand] * 6 + [element] * OWN)
    return "\n".join(
        [
            f"declare {kind} @{instruction}({types})",
            f"define internal {kind} @{name}({words}, {old}) alwaysinline convergent {{",
            *casts,
            f"  %new = call {kind} @{instruction}({used}, {old})",
            f"  ret {kind} %new\n}}",
        ]
    )


MMA_PRELUDE = "\n".join(
    [
        _fragment("a", 4, "15", "4"),
        _fragment("b", 2, "7", "3"),
        _multiply("gpu.mma.f16", "llvm.nvvm.mma.m16n8k16.row.col.f32.f32", "<2 x half>", "float"),
        _multiply("gpu.mma.bf16", "llvm.nvvm.mma.m16n8k16.row.col.bf16", "i32", "float"),
        _multiply("gpu.mma.tf32", "llvm.nvvm.mma.m16n8k8.row.col.tf32", "i32", "float"),
        _multiply("gpu.mma.s8", "llvm.nvvm.mma.m16n8k32.row.col.s8", "i32", "i32"),
    ]
)
"""What the functions of tensor cores are on a GPU, as LLVM IR."""

"""Tensor cores: ``mma.sync`` by a warp on tiles of 16 x 16, its operands from swizzled shared memory by ``ldmatrix``.

An intrinsic is declared as one thread sees it. Of a tile thread 4 g + t of the warp holds eight sums [j, h, e], of row
g + 8 h and column 8 j + 2 t + e, so that sums are ordinary elements of the thread's own, of scope ``fragment``. The
left operand is stored by rows of 128 bytes along the depth, of which an instruction takes 32: 16 halves, 8 float32 (of
which 19 bits count) or 32 bytes. The right one is, too, or, of halves, by rows of 64 columns.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 / k8 / k32", "ldmatrix"; thesis-chen section 4.3.3 (tensorization).
"""

from __future__ import annotations

from typing import Any

from burnish.errors import ScheduleError
from burnish.loops.expr import ITEM_BYTES, Buffer, Expr, Load, Var, cast
from burnish.loops.program import Intrinsic, Store
from burnish.machines.emitter import CodeEmitter, IntrinsicCode
from burnish.machines.intrinsics import TensorIntrinsic, declare
from burnish.machines.nvptx.threads import SHARED_SPACE, SINCE_80
from burnish.machines.scopes import MemoryScope

WARP = 32
SIDE = 16  # rows and columns of a tile
OWN = (2, 2, 2)  # j, h, e: the sums of a tile that one thread holds
HALF = 4  # of them are one instruction's
DEPTH_BYTES = 32
ROW_BYTES = 128  # of rows in shared memory
_X, _Y = Var("threadIdx.x"), Var("threadIdx.y")
G, T = _X // 4, _X % 4
LANES: tuple[tuple[Expr, dict[Expr, Expr]], ...] = (  # the thread's number in its warp, g and t, by the block's form:
    (_X, {G: G, T: T}),  # a warp along x,
    (_Y * 4 + _X, {G: _Y, T: _X}),  # or 4 threads along x and 8 along y
)
_LLVM = {"float32": "float", "int32": "i32"}


def _place(f: CodeEmitter, buffer: Buffer) -> str:
    """The thread's own part, in registers once LLVM has seen that all places are known."""
    return f.hoist(0, f"alloca [{buffer.nbytes} x i8], align 16")


FRAGMENT = MemoryScope("fragment", place=_place, aligned=16, parts=True)


def own(f: CodeEmitter, access: Load, count: int) -> list[str]:
    """Addresses of ``count`` sums of this thread, the first at ``access``."""
    address = f.resolver.address(access)
    if address.terms:
        raise ScheduleError(f"sums {access}: only tiles at fixed places are held in registers")
    memory = f.memory[access.buffer.name]
    return [f.pointer(memory, (), address.const + i) for i in range(count)]


def row_elements(dtype: str) -> int:
    """Number of elements of a row in shared memory."""
    return ROW_BYTES // ITEM_BYTES[dtype]


def whole_tile(access: Load, terms: tuple[tuple[Expr, int], ...], *parts: tuple[Expr, int]) -> tuple[Any, ...]:
    """The terms of an operand's address without those that tell the threads of a tile apart, which must be ``parts``.

    Raises ScheduleError for others.
    """
    found = dict(terms)
    threads = {name for part, _ in parts for name in part.variables}
    wrong = [part for part, step in parts if found.pop(part, None) != step]
    if wrong or any(atom.variables & threads for atom in found):
        raise ScheduleError(f"operand {access}: its place is not that of a thread in a tile: {list(map(str, terms))}")
    return tuple(found.items())


def _matrices(f: CodeEmitter, access: Load, view: tuple[Expr, int], pattern: str, trans: bool) -> list[str]:
    """The words of an operand that this thread holds, loaded by the warp once a basic block."""
    row, piece = row_elements(access.dtype), 16 // ITEM_BYTES[access.dtype]
    address = f.resolver.address(access)
    part, step = view
    lane, values = next((form for form in LANES if form[1][part] in dict(address.terms)), LANES[0])
    lanes = {
        "down": ((lane % 16, row), (lane // 16, piece)),  # matrices: rows, rows + 8, then the next piece of both
        "across": ((lane % 8, row), (lane // 16, 8 * row), (lane // 8 % 2, piece)),
    }[pattern]
    terms = whole_tile(access, address.terms, (values[part], step))
    held: Any = f.held.setdefault((WARP,), {0: {}})[0]
    key = (access.buffer.name, terms, address.const, pattern, trans)
    if key not in held:
        name, kind = f"gpu.matrices{'.trans' if trans else ''}", "{i32, i32, i32, i32}"
        f.declare(name, kind, ["ptr"])
        begin = f.pointer(f.memory[access.buffer.name], (*terms, *lanes), address.const)
        words = f.result(f"call {kind} @{name}(ptr {begin})", "int32").text
        held[key] = [f.result(f"extractvalue {kind} {words}, {i}", "int32").text for i in range(4)]
    return list(held[key])


def _numbers_below(f: CodeEmitter, access: Load) -> list[list[list[str]]]:
    """Words of a right operand of float32, by rows of columns, of both instructions [p] and columns [j]: of rows
    8 p + 2 t and the one below it, in the order in which ``_numbers_held`` has the left operand's.
    """
    row, (_, values) = row_elements(access.dtype), LANES[1]
    address = f.resolver.address(access)
    terms = (*whole_tile(access, address.terms, (values[T], 2)), (values[T], 2 * row), (values[G], 1))
    held: Any = f.held.setdefault((WARP,), {0: {}})[0]
    key = (access.buffer.name, terms, address.const, "below", False)

    def word(p: int, j: int, q: int) -> str:
        place = f.pointer(f.memory[access.buffer.name], terms, address.const + (8 * p + q) * row + 8 * j)
        return f.result(f"load i32, ptr {place}", "int32").text

    if key not in held:
        held[key] = [[[word(p, j, q) for q in range(2)] for j in range(2)] for p in range(2)]
    return [[[*words] for words in part] for part in held[key]]


def _numbers_held(f: CodeEmitter, access: Load) -> list[list[str]]:
    """Words of a left operand of float32 in this thread's registers, as each of two instructions [p] takes them: of
    rows g and g + 8 what is at q = 0, then at q = 1.
    """
    words = [f.result(f"load i32, ptr {place}", "int32").text for place in own(f, access, 2 * HALF)]
    return [[words[HALF * p + 2 * h + q] for q in range(2) for h in range(2)] for p in range(2)]


def words_held(f: CodeEmitter, access: Load) -> list[str]:
    """The words of a left operand that is in this thread's registers, as the sums of a product are."""
    return [f.result(f"load i32, ptr {place}", "int32").text for place in own(f, access, 2 * HALF)[::2]]


def _dot(name: str, columns: bool, held: bool = False) -> IntrinsicCode:
    def code(f: CodeEmitter, s: Intrinsic) -> None:
        c, a, b = s.operands
        element, row = _LLVM[c.dtype], row_elements(a.dtype)
        if held and a.dtype == "float32":
            left, right = _numbers_held(f, a), _numbers_below(f, b)
        else:
            left = [words_held(f, a) if held else _matrices(f, a, (G, row), "down", False)]
            both = _matrices(f, b, (T, 2), "down", True) if columns else _matrices(f, b, (T, 2 * row), "across", False)
            right = [[both[:2], both[2:]]]
        kind = "{" + ", ".join([element] * HALF) + "}"
        f.declare(name, kind, ["i32"] * 6 + [element] * HALF)
        places = own(f, c, 2 * HALF)
        for j in range(2):
            mine = places[HALF * j : HALF * (j + 1)]
            sums = [f.result(f"load {element}, ptr {p}", c.dtype).text for p in mine]
            for words, others in zip(left, right, strict=True):
                operands = ", ".join([*(f"i32 {w}" for w in (*words, *others[j])), *(f"{element} {v}" for v in sums)])
                new = f.result(f"call {kind} @{name}({operands})", c.dtype).text
                sums = [f.result(f"extractvalue {kind} {new}, {i}", c.dtype).text for i in range(HALF)]
            for value, pointer in zip(sums, mine, strict=True):
                f.emit(f"store {element} {value}, ptr {pointer}")

    return code


CORES = {  # element type of the operands -> function, element type of the sums
    "float16": ("gpu.mma.f16", "float32"),
    "bfloat16": ("gpu.mma.bf16", "float32"),
    "float32": ("gpu.mma.tf32", "float32"),
    "int8": ("gpu.mma.s8", "int32"),
}
HALVES = ("float16", "bfloat16")


def depth_of(dtype: str) -> int:
    """Number of products of a type that one instruction adds to each element."""
    return DEPTH_BYTES // ITEM_BYTES[dtype]


def product_of(c: Load, a: Load, b: Load) -> Store:
    """``c += a * b`` in the type of the sums."""

    def wide(e: Expr) -> Expr:
        return e if e.dtype == c.dtype else cast(c.dtype, e)

    return Store(c.buffer, c.indices, wide(a) * wide(b), "sum")


def _declared(dtype: str, columns: bool) -> TensorIntrinsic:
    function, accumulator = CORES[dtype]
    depth = depth_of(dtype)
    j, h, e, k = map(Var, "jhek")
    c, a = Buffer("c", OWN, accumulator), Buffer("a", (2, depth), dtype)
    b = Buffer("b", (depth, 2, 2) if columns else (2, 2, depth), dtype)
    right = Load(b, (k, j, e) if columns else (j, e, k))
    body = product_of(Load(c, (j, h, e)), Load(a, (h, k)), right)
    loops = (("j", 2), ("h", 2), ("e", 2), ("k", depth))
    name = f"mma_{dtype}{'_columns' if columns else ''}"
    code = _dot(function, columns)
    return declare(name, (c, a, b), loops, body, free="a b", needs=SINCE_80, code=code, collective=WARP)


def _declared_held(dtype: str) -> TensorIntrinsic:
    """The left operand is what four threads hold of a row: of column 8 p + 2 t + q thread t, at [p, h, q]. Of float32
    two instructions of eight products each take it, both sides in the same order of columns and rows.
    """
    function, accumulator = CORES[dtype]
    j, h, e, p, t, q = map(Var, "jheptq")
    c, a, b = Buffer("c", OWN, accumulator), Buffer("a", (4, *OWN), dtype), Buffer("b", (2, 4, 2, 2, 2), dtype)
    body = product_of(Load(c, (j, h, e)), Load(a, (t, p, h, q)), Load(b, (p, t, q, j, e)))
    loops = [(name, 4 if name == "t" else 2) for name in "jheptq"]
    code = _dot(function, True, held=True)
    return declare(
        f"mma_{dtype}_held", (c, a, b), loops, body, free="b", needs=SINCE_80, code=code, collective=WARP, spread="a"
    )


DOT = {dtype: _declared(dtype, False) for dtype in CORES}
DOT_COLUMNS = {dtype: _declared(dtype, True) for dtype in HALVES}
DOT_HELD = {dtype: _declared_held(dtype) for dtype in (*HALVES, "float32")}
MMA_INTRINSICS = (*DOT.values(), *DOT_COLUMNS.values(), *DOT_HELD.values())


def _load(trans: str) -> str:
    """``ldmatrix``: eight threads each say where a row of 16 bytes begins; thread 4 g + t gets word t of row g."""
    kind = "{i32, i32, i32, i32}"
    load = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{trans}.b16.p{SHARED_SPACE}"
    return f"""declare {kind} @{load}(ptr addrspace({SHARED_SPACE}))
define internal {kind} @gpu.matrices{trans}(ptr %begin) alwaysinline convergent {{
  %shared = addrspacecast ptr %begin to ptr addrspace({SHARED_SPACE})
  %words = call {kind} @{load}(ptr addrspace({SHARED_SPACE}) %shared)
  ret {kind} %words
}}"""


def _multiply(name: str, instruction: str, operand: str, element: str) -> str:
    kind = "{" + ", ".join([element] * HALF) + "}"
    words = ", ".join(f"i32 %w{i}" for i in range(6))
    old = ", ".join(f"{element} %c{i}" for i in range(HALF))
    casts = [f"  %o{i} = bitcast i32 %w{i} to {operand}" for i in range(6)] if operand != "i32" else []
    used = ", ".join(f"{operand} %{'o' if casts else 'w'}{i}" for i in range(6))
    types = ", ".join([operand] * 6 + [element] * HALF)
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
        _load(""),
        _load(".trans"),
        _multiply("gpu.mma.f16", "llvm.nvvm.mma.m16n8k16.row.col.f32.f32", "<2 x half>", "float"),
        _multiply("gpu.mma.bf16", "llvm.nvvm.mma.m16n8k16.row.col.bf16", "i32", "float"),
        _multiply("gpu.mma.tf32", "llvm.nvvm.mma.m16n8k8.row.col.tf32", "i32", "float"),
        _multiply("gpu.mma.s8", "llvm.nvvm.mma.m16n8k32.row.col.s8", "i32", "i32"),
    ]
)
"""LLVM IR of tensor cores on a GPU."""

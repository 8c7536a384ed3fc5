"""Matrix tiles (Intel AMX): accumulators in tile registers 0-3, operands loaded on demand into 4-5 and 6-7."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import ITEM_BYTES, Buffer, Const, Load, Var, cast
from burnish.loops.program import Intrinsic, Store
from burnish.machines.amx.permission import allow_matrix_tiles
from burnish.machines.emitter import CodeEmitter, pointer_to
from burnish.machines.intrinsics import declare
from burnish.machines.unit import MatrixUnit

ACCUMULATORS = 4
ROWS, COLUMNS, DEPTH = 16, 16, 32  # of a float32 accumulator tile; bfloat16 elements of a row of the left operand
TILE_ELEMENTS = ROWS * COLUMNS
ROW_BYTES = 64
OPERATIONS = 3.0e12  # declared bfloat16 operations of a core and second: Sapphire Rapids under AVX-512 frequencies
_LEFT, _RIGHT = (4, 5), (6, 7)
# Palette 1; bytes per row and rows of the eight tiles.
CONFIG_BYTES = bytes([1, *[0] * 15, *[ROW_BYTES, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])


def config_global() -> str:
    """The tile configuration as a constant of the module."""
    text = "".join(f"\\{byte:02X}" for byte in CONFIG_BYTES)
    return f'@tiles = private unnamed_addr constant [64 x i8] c"{text}", align 64'


def _accumulator(f: CodeEmitter, access: Load) -> int:
    address = f.resolver.address(access)
    number = address.const // TILE_ELEMENTS
    if address.terms or number >= ACCUMULATORS:
        raise ScheduleError(
            f"tile accumulator {access}: only {ACCUMULATORS} tiles at fixed places fit the tile registers"
        )
    return int(number)


def _stride(s: Intrinsic, operand: str, access: Load) -> int:
    """Bytes between the rows of an operand."""
    return int(dict(s.attrs).get(f"{operand}_stride", ROW_BYTES // ITEM_BYTES[access.dtype])) * ITEM_BYTES[access.dtype]


def _loaded(f: CodeEmitter, access: Load, stride: int, registers: tuple[int, int]) -> int:
    """The register of an operand: the one that holds it already in this basic block, else the one used longest ago."""
    operand = (access.buffer.name, f.resolver.address(access), stride)
    held = f.held.setdefault(registers, dict.fromkeys(registers))
    register = next((r for r, known in held.items() if known == operand), None)
    if register is None:
        register = next(iter(held))
        f.declare("llvm.x86.tileloadd64", "void", ["i8 immarg", "ptr", "i64"])
        f.emit(f"call void @llvm.x86.tileloadd64(i8 {register}, ptr {pointer_to(f, access)}, i64 {stride})")
    del held[register]
    held[register] = operand
    return register


def _emit_zero(f: CodeEmitter, s: Intrinsic) -> None:
    f.declare("llvm.x86.tilezero", "void", ["i8 immarg"])
    f.emit(f"call void @llvm.x86.tilezero(i8 {_accumulator(f, s.operands[0])})")


def _emit_dot(f: CodeEmitter, s: Intrinsic) -> None:
    c, a, b = s.operands
    left = _loaded(f, a, _stride(s, "a", a), _LEFT)
    right = _loaded(f, b, ROW_BYTES, _RIGHT)
    f.declare("llvm.x86.tdpbf16ps", "void", ["i8 immarg"] * 3)
    f.emit(f"call void @llvm.x86.tdpbf16ps(i8 {_accumulator(f, c)}, i8 {left}, i8 {right})")


def _emit_store(f: CodeEmitter, s: Intrinsic) -> None:
    d, c = s.operands
    f.declare("llvm.x86.tilestored64", "void", ["i8 immarg", "ptr", "i64"])
    stride = _stride(s, "d", d)
    f.emit(f"call void @llvm.x86.tilestored64(i8 {_accumulator(f, c)}, ptr {pointer_to(f, d)}, i64 {stride})")


_C, _D = Buffer("c", (ROWS, COLUMNS)), Buffer("d", (ROWS, COLUMNS))
_A, _B = Buffer("a", (ROWS, DEPTH), "bfloat16"), Buffer("b", (DEPTH // 2, COLUMNS, 2), "bfloat16")  # pairs of rows
_I, _J, _K, _PAIR = Var("i"), Var("j"), Var("k"), Var("pair")
_PLANE = (("i", ROWS), ("j", COLUMNS))
_NEEDS = "amx-bf16"
_PRODUCT = cast("float32", Load(_A, (_I, _K * 2 + _PAIR))) * cast("float32", Load(_B, (_K, _J, _PAIR)))

ZERO = declare(
    "amx_zero", (_C,), _PLANE, Store(_C, (_I, _J), Const(0.0, "float32")), code=_emit_zero, needs=_NEEDS
)  # fmt: skip
DOT = declare(
    "amx_dot_bf16", (_C, _A, _B), (*_PLANE, ("k", DEPTH // 2), ("pair", 2)), Store(_C, (_I, _J), _PRODUCT, "sum"),
    free="a", code=_emit_dot, needs=_NEEDS,
)  # fmt: skip
STORE = declare(
    "amx_store", (_D, _C), _PLANE, Store(_D, (_I, _J), Load(_C, (_I, _J))), free="d", code=_emit_store, needs=_NEEDS
)

_PAIRS = [(a, b) for a in _LEFT for b in _RIGHT]
_DOTS = "\n".join(f"  call void @llvm.x86.tdpbf16ps(i8 {c}, i8 {a}, i8 {b})" for c, (a, b) in enumerate(_PAIRS))
_CLEAR = "\n".join(f"  call void @llvm.x86.tilezero(i8 {tile})" for tile in range(8))
_PROBE = f"""
{config_global()}
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
define void @amx_probe(i64 %n) {{
entry:
  call void @llvm.x86.ldtilecfg(ptr @tiles)
{_CLEAR}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{_DOTS}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %exit
exit:
  call void @llvm.x86.tilerelease()
  ret void
}}
"""

AMX = MatrixUnit(
    name="amx",
    feature="amx-bf16",
    state="amx-tile",
    prefix="amx-",
    permit=allow_matrix_tiles,
    dtype="bfloat16",
    rows=ROWS,
    columns=COLUMNS,
    depth=DEPTH,
    operations=OPERATIONS,
    zero=ZERO,
    dot=DOT,
    store=STORE,
    constants=config_global(),
    probe=_PROBE,
    probe_operations=2.0 * ACCUMULATORS * ROWS * COLUMNS * DEPTH,
    declarations=(("llvm.x86.ldtilecfg", "void", ("ptr",)), ("llvm.x86.tilerelease", "void", ())),
    enter=("call void @llvm.x86.ldtilecfg(ptr @tiles)",),
    leave=("call void @llvm.x86.tilerelease()",),
)

"""Matrix tiles (Intel AMX): accumulators in tile registers 0-3, operands loaded on demand into 4-5 and 6-7."""

from __future__ import annotations

from burnish.codegen.values import Values
from burnish.errors import ScheduleError
from burnish.loops.expr import ITEM_BYTES, Load
from burnish.loops.program import Alloc, Intrinsic, walk_stmt

ACCUMULATORS = 4
TILE_ELEMENTS = 16 * 16
ROW_BYTES = 64
_LEFT, _RIGHT = (4, 5), (6, 7)
# Palette 1; bytes per row and rows of the eight tiles.
CONFIG_BYTES = bytes([1, *[0] * 15, *[ROW_BYTES, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])


def config_global() -> str:
    """The tile configuration as a constant of the module."""
    text = "".join(f"\\{byte:02X}" for byte in CONFIG_BYTES)
    return f'@tiles = private unnamed_addr constant [64 x i8] c"{text}", align 64'


def holds_tiles(alloc: Alloc) -> bool:
    """Whether a register buffer is used by tile operations."""
    return any(
        isinstance(s, Intrinsic)
        and s.name.startswith("amx_")
        and alloc.buffer.name in {o.buffer.name for o in s.operands}
        for s in walk_stmt(alloc.body)
    )


def _accumulator(f: Values, access: Load) -> int:
    address = f.resolver.address(access)
    number = address.const // TILE_ELEMENTS
    if address.terms or number >= ACCUMULATORS:
        raise ScheduleError(
            f"tile accumulator {access}: only {ACCUMULATORS} tiles at fixed places fit the tile registers"
        )
    return number


def _pointer(f: Values, access: Load) -> str:
    address = f.resolver.address(access)
    return f.pointer(f.memory[access.buffer.name], address.terms, address.const)


def _stride(f: Values, s: Intrinsic, operand: str, access: Load) -> int:
    """Bytes between the rows of an operand."""
    return int(dict(s.attrs).get(f"{operand}_stride", ROW_BYTES // ITEM_BYTES[access.dtype])) * ITEM_BYTES[access.dtype]


def _loaded(f: Values, access: Load, stride: int, registers: tuple[int, int]) -> int:
    """The register of an operand: the one that holds it already in this basic block, else the one used longest ago."""
    operand = (access.buffer.name, f.resolver.address(access), stride)
    held = f.tiles.setdefault(registers, dict.fromkeys(registers))
    register = next((r for r, known in held.items() if known == operand), None)
    if register is None:
        register = next(iter(held))
        f.declare("llvm.x86.tileloadd64", "void", ["i8 immarg", "ptr", "i64"])
        f.emit(f"call void @llvm.x86.tileloadd64(i8 {register}, ptr {_pointer(f, access)}, i64 {stride})")
    del held[register]
    held[register] = operand
    return register


def zero(f: Values, s: Intrinsic) -> None:
    """``c = 0``."""
    f.declare("llvm.x86.tilezero", "void", ["i8 immarg"])
    f.emit(f"call void @llvm.x86.tilezero(i8 {_accumulator(f, s.operands[0])})")


def dot(f: Values, s: Intrinsic) -> None:
    """``c += a b`` on bfloat16 operands."""
    c, a, b = s.operands
    left = _loaded(f, a, _stride(f, s, "a", a), _LEFT)
    right = _loaded(f, b, ROW_BYTES, _RIGHT)
    f.declare("llvm.x86.tdpbf16ps", "void", ["i8 immarg"] * 3)
    f.emit(f"call void @llvm.x86.tdpbf16ps(i8 {_accumulator(f, c)}, i8 {left}, i8 {right})")


def store(f: Values, s: Intrinsic) -> None:
    """``d = c``."""
    d, c = s.operands
    f.declare("llvm.x86.tilestored64", "void", ["i8 immarg", "ptr", "i64"])
    stride = _stride(f, s, "d", d)
    f.emit(f"call void @llvm.x86.tilestored64(i8 {_accumulator(f, c)}, ptr {_pointer(f, d)}, i64 {stride})")

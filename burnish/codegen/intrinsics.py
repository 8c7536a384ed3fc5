"""Code of tensorized statements and hints, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from burnish.codegen import tiles
from burnish.codegen.builder import Value
from burnish.codegen.values import Values
from burnish.loops.expr import Load
from burnish.loops.program import Intrinsic


def _prefetch(f: Values, s: Intrinsic) -> None:
    """Hints the cache line of the operand into L2 (attr ``locality`` 0..3, default 2).

    A hint loads nothing: of a position that is itself loaded, perhaps further on than there are any, there is none.
    """
    access = s.operands[0]
    if any(index.buffers for index in access.indices):
        return
    address = f.resolver.address(access)
    pointer = f.pointer(f.memory[access.buffer.name], address.terms, address.const)
    f.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    f.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 {dict(s.attrs).get('locality', 2)}, i32 1)")


def _transpose16(f: Values, s: Intrinsic) -> None:
    """A 16 x 16 block of float32: load rows, exchange ever smaller off-diagonal blocks, store rows."""
    size, attrs = 16, dict(s.attrs)
    to, source = s.operands
    rows = []
    for r in range(size):
        pointer = _row(f, source, r * int(attrs.get("s_stride", size)))
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
        f.emit(f"store {row.type} {row.text}, ptr {_row(f, to, r * int(attrs.get('d_stride', size)))}, align 4")
    f.forget()


def _row(f: Values, access: Load, offset: int) -> str:
    address = f.resolver.address(access)
    return f.pointer(f.memory[access.buffer.name], address.terms, address.const + offset)


def _shuffle(f: Values, a: Value, b: Value, lanes: list[int]) -> Value:
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    text = f"shufflevector {a.type} {a.text}, {b.type} {b.text}, <{len(lanes)} x i32> <{mask}>"
    return f.result(text, a.dtype, len(lanes))


INTRINSICS: Mapping[str, Callable[[Values, Intrinsic], None]] = {
    "prefetch": _prefetch,
    "transpose16_f32": _transpose16,
    "amx_zero": tiles.zero,
    "amx_dot_bf16": tiles.dot,
    "amx_store": tiles.store,
}

"""Code of tensorized statements and hints, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from burnish.codegen import tiles
from burnish.codegen.values import Values
from burnish.loops.program import Intrinsic


def _prefetch(f: Values, s: Intrinsic) -> None:
    """Hints the cache line of the operand into L2 (attr ``locality`` 0..3, default 2)."""
    access = s.operands[0]
    address = f.resolver.address(access)
    pointer = f.pointer(f.memory[access.buffer.name], address.terms, address.const)
    f.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    f.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 {dict(s.attrs).get('locality', 2)}, i32 1)")


INTRINSICS: Mapping[str, Callable[[Values, Intrinsic], None]] = {
    "prefetch": _prefetch,
    "amx_zero": tiles.zero,
    "amx_dot_bf16": tiles.dot,
    "amx_store": tiles.store,
}

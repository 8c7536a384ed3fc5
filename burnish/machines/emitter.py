"""Interface of the function emitter: what the code of an intrinsic, a loop kind or a scope may use to write LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from burnish.loops.expr import Buffer, Expr, Load
from burnish.loops.program import For, Intrinsic, Stmt


class CodeEmitter(Protocol):
    """One function under construction. ``resolver.address(access)`` gives ``terms`` and ``const``, in elements.

    ``variables``: loop variable -> the i64 that holds it. ``held``: what registers of the code's own choice hold in the
    current basic block; forgotten at its end. ``rt``: the runtime structure; the thread pool is behind it.
    ``tensor_views``: what copies of boxes want maps of.
    """

    resolver: Any
    memory: dict[str, Any]
    variables: dict[str, str]
    held: dict[tuple[int, ...], dict[int, object]]
    rt: str
    target: Any
    tensor_views: list[Any]

    def declare(self, name: str, result: str, params: Sequence[str]) -> None:
        """Declares an LLVM function or intrinsic of this type, once a module."""

    def define(self, name: str, text: str) -> None:
        """Adds a definition to the module, such as of a global array, once a name."""

    def emit(self, text: str) -> None:
        """Appends an instruction without a result."""

    def result(self, text: str, dtype: str, lanes: int = 1) -> Any:
        """Appends an instruction; its value has ``text`` (the name), ``type``, ``dtype`` and ``lanes``."""

    def hoist(self, depth: int, text: str) -> str:
        """Appends an instruction at the top of loop ``depth`` (0: the function); returns its name."""

    def pointer(self, memory: Any, terms: Any, const: int) -> str:
        """The address of an element of a buffer's memory."""

    def value(self, e: Expr) -> Any:
        """The value of an expression."""

    def statement(self, s: Stmt) -> None:
        """Emits a statement, such as the body of a loop."""

    def forget(self) -> None:
        """Drops what was loaded in this basic block: memory has been written."""


IntrinsicCode = Callable[[CodeEmitter, Intrinsic], None]
LoopCode = Callable[[CodeEmitter, For], None]
Placement = Callable[[CodeEmitter, Buffer], str]


def pointer_to(f: CodeEmitter, access: Load, offset: int = 0) -> str:
    """The address of an operand, ``offset`` elements further on."""
    address = f.resolver.address(access)
    return f.pointer(f.memory[access.buffer.name], address.terms, address.const + offset)

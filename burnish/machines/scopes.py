"""Memory scopes: where a buffer of a loop program may live, how much fits there, and who lowers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.machines.emitter import Placement


@dataclass(frozen=True)
class MemoryScope:
    """One kind of memory of a machine.

    ``capacity``: bytes of the buffers that live in it at a time (None: no limit). ``registers``: its buffers become SSA
    values or the tiles of a unit where every access is at a fixed place. ``address_space``: LLVM's number of it.
    ``place``: code that gives a buffer's address, as a generic pointer; None: the emitter's own, on the stack or in the
    thread's scratch area. ``aligned``: the multiple of bytes at which ``place`` puts buffers (0: nothing is known), by
    which vectors in them may be moved at once. ``swizzled``: elements are where ``swizzle`` puts them. ``parts``:
    threads of a block hold parts of its buffers (``lower/thread_scope.py``).
    """

    name: str
    capacity: int | None = None
    registers: bool = False
    address_space: int = 0
    place: Placement | None = None
    aligned: int = 0
    swizzled: bool = False
    parts: bool = False


SWIZZLED_BYTES = 1024  # a swizzle stays within so many bytes: eight rows of 128
PIECE_BYTES = 16  # that stay together


def swizzle(offset: Any) -> Any:
    """Where byte ``offset`` of a swizzled buffer is, or each of an array of them.

    In row r of 128 bytes piece p of 16 is at p xor (r mod 8), so that eight pieces below each other are in different
    banks. Source: PTX ISA, "Swizzling modes" (128 bytes).
    """
    return offset ^ (offset >> 3 & 0x70)


GLOBAL = MemoryScope("global")  # parameters, and what all threads see
LOCAL = MemoryScope("local")  # of one thread: the stack, or its part of the scratch area
REGISTER = MemoryScope("register", registers=True)
CPU_SCOPES = (GLOBAL, LOCAL, REGISTER)

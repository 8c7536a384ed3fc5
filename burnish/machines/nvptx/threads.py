"""Threads of a GPU: loops bound to block and thread indices, shared memory, and the barrier of a block.

A kernel's code calls functions of this list only (``THREAD_FUNCTIONS``, and those of ``mma.py``); the prelude of a
build defines them: as instructions for a GPU, as calls of the runner where threads are coroutines of a CPU.
"""

from __future__ import annotations

import re

from burnish.loops.expr import SWIZZLED, Buffer
from burnish.loops.program import BARRIER, BINDINGS, BLOCKS, For, Intrinsic
from burnish.machines.emitter import CodeEmitter, IntrinsicCode, LoopCode
from burnish.machines.scopes import PIECE_BYTES, MemoryScope

SHARED_BYTES = 227 << 10  # of one block, on the targets that have most
RESERVED = 29 << 10  # bytes of a multiprocessor's L1 that no block can have
SINCE_80 = "sm_80"  # the feature of compute capability 8.0 and all later ones: asynchronous copies, products of halves
LOCAL_BYTES = 16 << 10  # of one thread's buffers, which lie in slow memory where they are not registers
GLOBAL_SPACE, SHARED_SPACE = 1, 3  # LLVM's numbers of the address spaces
SHARED_ALIGNMENT = 1024  # of swizzled buffers; others begin at multiples of 16


def register_function(binding: str) -> str:
    """The function that gives a thread its index: ``gpu.block.x`` of ``blockIdx.x``."""
    return f"gpu.{'block' if binding in BLOCKS else 'thread'}.{binding[-1]}"


def _bound(binding: str) -> LoopCode:
    """A loop whose variable is an index of the thread: every thread runs one iteration."""

    def code(f: CodeEmitter, loop: For) -> None:
        name = register_function(binding)
        f.declare(name, "i32", [])
        own = f.hoist(0, f"call i32 @{name}()")
        f.variables[loop.var] = f.hoist(0, f"zext i32 {own} to i64")
        f.statement(loop.body)
        del f.variables[loop.var]

    return code


BOUND_LOOPS: dict[str, LoopCode | None] = {binding: _bound(binding) for binding in BINDINGS}


def _barrier(f: CodeEmitter, s: Intrinsic) -> None:
    """All threads of the block wait for each other; what they have written to shared memory is visible then."""
    f.declare("gpu.barrier", "void", [])
    f.emit("call void @gpu.barrier()")
    f.forget()


HINTS: dict[str, IntrinsicCode] = {BARRIER: _barrier}


def shared_name(buffer: Buffer) -> str:
    """The name of a shared buffer among the globals of a module."""
    return "shared." + re.sub(r"[^A-Za-z0-9_.]", "_", buffer.name)


def _shared(f: CodeEmitter, buffer: Buffer) -> str:
    """An array of the block's memory, one for each buffer of the module."""
    name = f"@{shared_name(buffer)}"
    array = f"[{max(buffer.nbytes, 1)} x i8]"
    align = SHARED_ALIGNMENT if buffer.scope == SWIZZLED else 16
    f.define(name, f"{name} = internal addrspace({SHARED_SPACE}) global {array} poison, align {align}")
    return name


SHARED = MemoryScope("shared", capacity=SHARED_BYTES, address_space=SHARED_SPACE, place=_shared, aligned=16)
SWIZZLED_SHARED = MemoryScope(
    SWIZZLED, capacity=SHARED_BYTES, address_space=SHARED_SPACE, place=_shared, aligned=PIECE_BYTES, swizzled=True
)
LOCAL = MemoryScope("local", capacity=LOCAL_BYTES)

_SPECIAL = {"block": "ctaid", "thread": "tid"}
THREAD_PRELUDE = "\n".join(
    [
        *(
            f"declare i32 @llvm.nvvm.read.ptx.sreg.{register}.{axis}()\n"
            f"define internal i32 @gpu.{what}.{axis}() alwaysinline {{\n"
            f"  %i = call i32 @llvm.nvvm.read.ptx.sreg.{register}.{axis}()\n  ret i32 %i\n}}"
            for what, register in _SPECIAL.items()
            for axis in "xyz"
        ),
        "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)",
        "define internal void @gpu.barrier() alwaysinline convergent {",
        "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",
        "  ret void\n}",
    ]
)
"""LLVM IR of threads on a GPU."""

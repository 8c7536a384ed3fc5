"""The native code all compiled models share, as LLVM IR: the thread pool, and the loop that calls a model's kernels."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from burnish.errors import TargetError
from burnish.machines.known import MACHINES
from burnish.runtime.image import Image
from burnish.runtime.link import link
from burnish.runtime.pool_ir import pool_ir

# The structures are laid out like those of abi.py.
_TYPES = """
; What kernels see: parallel, pool, scratch, bytes of scratch per thread, threads, time stamps or null.
%Runtime = type { ptr, ptr, ptr, i64, i64, ptr }
; Calls and their number, patches and their number, clock_gettime.
%Plan = type { ptr, i64, ptr, i64, ptr }
; A kernel and its array of argument pointers.
%Call = type { ptr, ptr }
; *where = io[index] + offset, before the first call.
%Patch = type { ptr, i64, i64 }
"""

_RUN = """
; Enters the addresses of inputs and outputs (io) into the argument arrays, then calls the kernels in order. If
; rt->profile is not null, it receives one struct timespec before every call and one after the last.
define void @burnish_run(ptr %plan, ptr %io, ptr %rt) nounwind {
entry:
  %calls.at = getelementptr %Plan, ptr %plan, i64 0, i32 0
  %calls = load ptr, ptr %calls.at
  %count.at = getelementptr %Plan, ptr %plan, i64 0, i32 1
  %count = load i64, ptr %count.at
  %patches.at = getelementptr %Plan, ptr %plan, i64 0, i32 2
  %patches = load ptr, ptr %patches.at
  %n.at = getelementptr %Plan, ptr %plan, i64 0, i32 3
  %n = load i64, ptr %n.at
  %clock.at = getelementptr %Plan, ptr %plan, i64 0, i32 4
  %clock = load ptr, ptr %clock.at
  %profile.at = getelementptr %Runtime, ptr %rt, i64 0, i32 5
  %profile = load ptr, ptr %profile.at
  %profiling = icmp ne ptr %profile, null
  br label %patch
patch:
  %p = phi i64 [ 0, %entry ], [ %p.next, %enter ]
  %patching = icmp slt i64 %p, %n
  br i1 %patching, label %enter, label %call
enter:
  %where.at = getelementptr %Patch, ptr %patches, i64 %p, i32 0
  %where = load ptr, ptr %where.at
  %index.at = getelementptr %Patch, ptr %patches, i64 %p, i32 1
  %index = load i64, ptr %index.at
  %offset.at = getelementptr %Patch, ptr %patches, i64 %p, i32 2
  %offset = load i64, ptr %offset.at
  %base.at = getelementptr ptr, ptr %io, i64 %index
  %base = load ptr, ptr %base.at
  %address = getelementptr i8, ptr %base, i64 %offset
  store ptr %address, ptr %where
  %p.next = add i64 %p, 1
  br label %patch
call:
  %c = phi i64 [ 0, %patch ], [ %c.next, %kernel ]
  br i1 %profiling, label %stamp, label %test
stamp: ; CLOCK_MONOTONIC
  %time = getelementptr { i64, i64 }, ptr %profile, i64 %c
  %failed = call i32 %clock(i32 1, ptr %time)
  br label %test
test:
  %calling = icmp slt i64 %c, %count
  br i1 %calling, label %kernel, label %exit
kernel:
  %function.at = getelementptr %Call, ptr %calls, i64 %c, i32 0
  %function = load ptr, ptr %function.at
  %args.at = getelementptr %Call, ptr %calls, i64 %c, i32 1
  %args = load ptr, ptr %args.at
  call void %function(ptr %args, ptr %rt)
  %c.next = add i64 %c, 1
  br label %call
exit:
  ret void
}
"""

_COPY = """
; Copies bytes: its arguments are the target, the source and, in place of an address, their number.
define void @burnish_copy(ptr %args, ptr %rt) nounwind {
entry:
  %target = load ptr, ptr %args
  %source.at = getelementptr ptr, ptr %args, i64 1
  %source = load ptr, ptr %source.at
  %count.at = getelementptr i64, ptr %args, i64 2
  %count = load i64, ptr %count.at
  %words = and i64 %count, -8
  br label %word
word:
  %w = phi i64 [ 0, %entry ], [ %w.next, %move ]
  %left = icmp slt i64 %w, %words
  br i1 %left, label %move, label %byte
move:
  %word.from = getelementptr i8, ptr %source, i64 %w
  %word.to = getelementptr i8, ptr %target, i64 %w
  %eight = load i64, ptr %word.from, align 1
  store i64 %eight, ptr %word.to, align 1
  %w.next = add i64 %w, 8
  br label %word
byte:
  %b = phi i64 [ %words, %word ], [ %b.next, %last ]
  %more = icmp slt i64 %b, %count
  br i1 %more, label %last, label %exit
last:
  %byte.from = getelementptr i8, ptr %source, i64 %b
  %byte.to = getelementptr i8, ptr %target, i64 %b
  %one = load i8, ptr %byte.from
  store i8 %one, ptr %byte.to
  %b.next = add i64 %b, 1
  br label %byte
exit:
  ret void
}
"""


@cache
def driver_image(triple: str) -> Image:
    """The linked driver for the machine of ``triple``, any CPU of it. Raises TargetError for other machines."""
    systems = {machine.architectures[0]: machine.system for machine in MACHINES}
    system = systems.get(triple.partition("-")[0])
    if system is None:
        known = ", ".join(name for name, own in systems.items() if own)
        raise TargetError(f"runtime: no driver for {triple!r}, allowed: {known}")
    pause = system.pause.partition("(")[0]
    parameters = "(i32)" if "i32" in system.pause else "()"
    text = f'target triple = "{triple}"\ndeclare void @{pause}{parameters}\n{_TYPES}{_RUN}{_COPY}'
    text += pool_ir(system.calls, system.pause)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    compiler = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic", codemodel="small")
    return link({"burnish driver": compiler.emit_object(module)})

"""The native code all compiled models share, as LLVM IR: the thread pool, and the loop that calls a model's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from burnish.errors import TargetError
from burnish.runtime.image import Image
from burnish.runtime.link import link
from burnish.runtime.pool_ir import pool_ir


@dataclass(frozen=True)
class _Machine:
    """Linux system call numbers by name, and the instruction that tells a core it is spinning."""

    calls: Mapping[str, int]
    pause: str


_MACHINES = {
    "x86_64": _Machine(
        {"futex": 202, "sched_yield": 24, "getcpu": 309, "sched_getaffinity": 204, "sched_setaffinity": 203},
        "llvm.x86.sse2.pause()",
    ),
    "aarch64": _Machine(
        {"futex": 98, "sched_yield": 124, "getcpu": 168, "sched_getaffinity": 123, "sched_setaffinity": 122},
        "llvm.aarch64.hint(i32 1)",
    ),
}

# The structures are laid out like those of module.py.
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


@cache
def driver_image(triple: str) -> Image:
    """The linked driver for the machine of ``triple``, any CPU of it. Raises TargetError for other machines."""
    machine = _MACHINES.get(triple.partition("-")[0])
    if machine is None:
        raise TargetError(f"runtime: no driver for {triple!r}, allowed: {', '.join(_MACHINES)}")
    pause = machine.pause.partition("(")[0]
    parameters = "(i32)" if "i32" in machine.pause else "()"
    text = f'target triple = "{triple}"\ndeclare void @{pause}{parameters}\n{_TYPES}{_RUN}'
    text += pool_ir(machine.calls, machine.pause)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    compiler = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic", codemodel="small")
    return link({"burnish driver": compiler.emit_object(module)})

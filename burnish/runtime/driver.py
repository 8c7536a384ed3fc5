"""The native code all compiled models share, as LLVM IR: the thread pool, and the loop that calls a model's kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from burnish.errors import TargetError
from burnish.runtime.image import Image
from burnish.runtime.link import link


@dataclass(frozen=True)
class _Machine:
    """Linux system call numbers, and the instruction that tells a core it is spinning."""

    futex: int
    sched_yield: int
    pause: str


_MACHINES = {
    "x86_64": _Machine(202, 24, "llvm.x86.sse2.pause()"),
    "aarch64": _Machine(98, 124, "llvm.aarch64.hint(i32 1)"),
}

# The structures are laid out like those of pool.py and module.py. Members written by different threads lie 128 bytes
# apart, since cores fetch pairs of cache lines.
_TYPES = """
; One region: generation (also the futex word), body, context, extent. Then sleepers; busy; threads, spin, syscall.
%Pool = type { i32, ptr, ptr, i64, [96 x i8], i32, [124 x i8], i32, [124 x i8], i64, i64, ptr, [104 x i8] }
; The generation this worker has finished; its thread number; its pool.
%Worker = type { i32, i64, ptr, [104 x i8] }
; What kernels see: parallel, pool, scratch, bytes of scratch per thread, threads, time stamps or null.
%Runtime = type { ptr, ptr, ptr, i64, i64, ptr }
; Calls and their number, patches and their number, clock_gettime.
%Plan = type { ptr, i64, ptr, i64, ptr }
; A kernel and its array of argument pointers.
%Call = type { ptr, ptr }
; *where = io[index] + offset, before the first call.
%Patch = type { ptr, i64, i64 }
"""

_PARALLEL = """
; Runs the part of the region that belongs to `thread`.
define internal void @share(ptr %pool, i64 %thread) nounwind {
  %body.at = getelementptr %Pool, ptr %pool, i64 0, i32 1
  %body = load ptr, ptr %body.at
  %ctx.at = getelementptr %Pool, ptr %pool, i64 0, i32 2
  %ctx = load ptr, ptr %ctx.at
  %extent.at = getelementptr %Pool, ptr %pool, i64 0, i32 3
  %extent = load i64, ptr %extent.at
  %threads.at = getelementptr %Pool, ptr %pool, i64 0, i32 9
  %threads = load i64, ptr %threads.at
  %before = mul i64 %extent, %thread
  %begin = udiv i64 %before, %threads
  %after = add i64 %before, %extent
  %end = udiv i64 %after, %threads
  %any = icmp ult i64 %begin, %end
  br i1 %any, label %run, label %done
run:
  call void %body(ptr %ctx, i64 %begin, i64 %end, i64 %thread)
  br label %done
done:
  ret void
}

; Runs body over [0, extent) on all threads and returns when all are done. A region inside a region, and one that comes
; while another thread uses the pool, runs on the calling thread alone: neither can wait for the other.
define void @burnish_parallel(ptr %pool, ptr %body, ptr %ctx, i64 %extent) nounwind {
entry:
  %threads.at = getelementptr %Pool, ptr %pool, i64 0, i32 9
  %threads = load i64, ptr %threads.at
  %several = icmp sgt i64 %threads, 1
  %divisible = icmp sgt i64 %extent, 1
  %worth = and i1 %several, %divisible
  %busy = getelementptr %Pool, ptr %pool, i64 0, i32 7
  br i1 %worth, label %claim, label %alone
claim:
  %exchanged = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %won = extractvalue { i32, i1 } %exchanged, 1
  br i1 %won, label %publish, label %alone
alone:
  %any = icmp sgt i64 %extent, 0
  br i1 %any, label %run, label %exit
run:
  call void %body(ptr %ctx, i64 0, i64 %extent, i64 0)
  br label %exit
exit:
  ret void
publish:
  %body.at = getelementptr %Pool, ptr %pool, i64 0, i32 1
  store ptr %body, ptr %body.at
  %ctx.at = getelementptr %Pool, ptr %pool, i64 0, i32 2
  store ptr %ctx, ptr %ctx.at
  %extent.at = getelementptr %Pool, ptr %pool, i64 0, i32 3
  store i64 %extent, ptr %extent.at
  %old = load atomic i32, ptr %pool monotonic, align 4
  %generation = add i32 %old, 1
  ; Sequentially consistent with the worker's increment of sleepers and its look at the generation: either this thread
  ; sees the sleeper, or the sleeper sees the new generation. Weaker orders would lose wake-ups.
  store atomic i32 %generation, ptr %pool seq_cst, align 4
  %sleepers.at = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  %syscall.at = getelementptr %Pool, ptr %pool, i64 0, i32 11
  %syscall = load ptr, ptr %syscall.at
  %spin.at = getelementptr %Pool, ptr %pool, i64 0, i32 10
  %spin = load i64, ptr %spin.at
  %patience = lshr i64 %spin, 4
  br i1 %asleep, label %wake, label %work
wake: ; FUTEX_WAKE_PRIVATE, all of them
  %woken = call i64 (i64, ...) %syscall(i64 {futex}, ptr %pool, i64 129, i64 2147483647, ptr null, ptr null, i64 0)
  br label %work
work:
  call void @share(ptr %pool, i64 0)
  br label %worker
worker:
  %t = phi i64 [ 1, %work ], [ %t.next, %finished ]
  %t.last = sub i64 %t, 1
  %workers = getelementptr %Pool, ptr %pool, i64 1
  %done.at = getelementptr %Worker, ptr %workers, i64 %t.last
  br label %check
check:
  %i = phi i64 [ 0, %worker ], [ %i.next, %pause ], [ %i, %yield ]
  %done = load atomic i32, ptr %done.at acquire, align 4
  %ready = icmp eq i32 %done, %generation
  br i1 %ready, label %finished, label %wait
wait:
  %long = icmp sge i64 %i, %patience
  br i1 %long, label %yield, label %pause
pause:
  call void @{pause}
  %i.next = add i64 %i, 1
  br label %check
yield: ; the worker may be waiting for this core: other programs run as well, or there are more threads than cores
  %yielded = call i64 (i64, ...) %syscall(i64 {sched_yield})
  br label %check
finished:
  %t.next = add i64 %t, 1
  %more = icmp slt i64 %t.next, %threads
  br i1 %more, label %worker, label %release
release:
  store atomic i32 0, ptr %busy release, align 4
  ret void
}
"""

_WORKER = """
; The main function of a worker thread: never returns. It spins for the next region, then sleeps until one comes.
define ptr @burnish_worker(ptr %me) nounwind {
entry:
  %thread.at = getelementptr %Worker, ptr %me, i64 0, i32 1
  %thread = load i64, ptr %thread.at
  %pool.at = getelementptr %Worker, ptr %me, i64 0, i32 2
  %pool = load ptr, ptr %pool.at
  %sleepers = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %spin.at = getelementptr %Pool, ptr %pool, i64 0, i32 10
  %spin = load i64, ptr %spin.at
  %syscall.at = getelementptr %Pool, ptr %pool, i64 0, i32 11
  %syscall = load ptr, ptr %syscall.at
  %first = load i32, ptr %me
  br label %check
check:
  %last = phi i32 [ %first, %entry ], [ %last, %pause ], [ %last, %awake ], [ %seen, %work ]
  %i = phi i64 [ 0, %entry ], [ %i.next, %pause ], [ 0, %awake ], [ 0, %work ]
  %seen = load atomic i32, ptr %pool acquire, align 4
  %new = icmp ne i32 %seen, %last
  br i1 %new, label %work, label %wait
work:
  call void @share(ptr %pool, i64 %thread)
  store atomic i32 %seen, ptr %me release, align 4
  br label %check
wait:
  %long = icmp sge i64 %i, %spin
  br i1 %long, label %sleep, label %pause
pause:
  call void @{pause}
  %i.next = add i64 %i, 1
  br label %check
sleep:
  %sleeping = atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  %now = load atomic i32, ptr %pool seq_cst, align 4
  %still = icmp eq i32 %now, %last
  br i1 %still, label %futex, label %awake
futex: ; FUTEX_WAIT_PRIVATE: returns at once if the generation has changed
  %value = zext i32 %last to i64
  %waited = call i64 (i64, ...) %syscall(i64 {futex}, ptr %pool, i64 128, i64 %value, ptr null, ptr null, i64 0)
  br label %awake
awake:
  %left = atomicrmw sub ptr %sleepers, i32 1 seq_cst, align 4
  br label %check
}
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
    text = f'target triple = "{triple}"\n{_TYPES}\ndeclare void @{pause}{parameters}\n{_PARALLEL}{_WORKER}{_RUN}'
    for field in ("futex", "sched_yield", "pause"):
        text = text.replace(f"{{{field}}}", str(getattr(machine, field)))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    compiler = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic", codemodel="small")
    return link({"burnish driver": compiler.emit_object(module)})

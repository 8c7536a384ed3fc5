"""The thread pool's native side, as LLVM IR: cuts parallel regions into chunks, and lets idle threads take them."""

from __future__ import annotations

from collections.abc import Mapping

# Of each thread's part of a region. More of them balance better; each costs a call of the body and an atomic addition.
_CHUNKS = 4
# A worker that spins offers its core to other threads after so many pauses (about 50 us), and again and again: the
# caller itself may be waiting for that core.
_OFFER = 1024
# A caller spins for chunks of others a quarter (2 bits less) of the time for which workers spin for a region; then it
# offers its core so often, which comes first where there are more threads than cores and none spins; then it sleeps.
_PATIENCE_SHIFT = 2
_CALLER_OFFERS = 100

# The structures are laid out like those of pool.py. Members written by different threads lie 128 bytes apart, since
# cores fetch pairs of cache lines.
_TYPES = """
; Generation (futex word); sleepers; busy; done (futex word), waiting; threads, spin, syscall, the caller's core, the
; set of cores that workers are pinned to, null where they are not.
; The %Parts follow.
%Pool = type {
  i32, [124 x i8], i32, [124 x i8], i32, [124 x i8], i32, i32, [120 x i8], i64, i64, ptr, i32, ptr, [88 x i8]
}
; A thread's part of the current region: the chunks not taken yet (the last one + 1 in the upper half, the first in the
; lower half); body, context, extent / chunks, extent % chunks, chunks. Then the thread's number and its pool.
%Part = type { i64, ptr, ptr, i64, i32, i32, i64, ptr, [72 x i8] }
"""

# A region is cut into chunks of consecutive iterations, and every thread gets an equal part of consecutive chunks:
# the same iterations in every region of one extent, so that data stay in the cache of one core. A thread takes the
# chunks of its part from the front, then those that other threads have not begun from the back. Hence a region does
# not wait for a thread that the system lets wait.
#
# No thread needs to know whether the region it saw has ended. A part has chunks to take only from its publication to
# the end of its region, and the region ends when all chunks are done: a thread that was given a chunk may read the
# description beside it until it reports the chunk, and one that comes late finds nothing, or joins the next region.
_TAKE = """
; Runs chunks until none is left to begin, as thread `me`. Returns their number.
define internal i32 @take(ptr %pool, i64 %me) nounwind {
entry:
  %threads.at = getelementptr %Pool, ptr %pool, i64 0, i32 9
  %threads = load i64, ptr %threads.at
  %parts = getelementptr %Pool, ptr %pool, i64 1
  br label %part
part:
  %distance = phi i64 [ 0, %entry ], [ %farther, %next ]
  %total = phi i32 [ 0, %entry ], [ %n, %next ]
  %sum = add i64 %me, %distance
  %wraps = icmp sge i64 %sum, %threads
  %wrapped = sub i64 %sum, %threads
  %owner = select i1 %wraps, i64 %wrapped, i64 %sum
  %mine = icmp eq i64 %distance, 0
  %step = select i1 %mine, i64 1, i64 -4294967296
  %at = getelementptr %Part, ptr %parts, i64 %owner
  %body.at = getelementptr %Part, ptr %parts, i64 %owner, i32 1
  %ctx.at = getelementptr %Part, ptr %parts, i64 %owner, i32 2
  %quotient.at = getelementptr %Part, ptr %parts, i64 %owner, i32 3
  %remainder.at = getelementptr %Part, ptr %parts, i64 %owner, i32 4
  %chunks.at = getelementptr %Part, ptr %parts, i64 %owner, i32 5
  br label %look
look:
  %n = phi i32 [ %total, %part ], [ %n.next, %run ]
  %seen = load atomic i64, ptr %at monotonic, align 8
  %promising = call i1 @open(i64 %seen)
  br i1 %promising, label %claim, label %next
claim: ; whatever threads add here, first < last + 1 holds only for chunks that nobody else was given
  %old = atomicrmw add ptr %at, i64 %step acquire, align 8
  %won = call i1 @open(i64 %old)
  br i1 %won, label %run, label %next
run:
  %first = trunc i64 %old to i32
  %upper = lshr i64 %old, 32
  %end = trunc i64 %upper to i32
  %last = sub i32 %end, 1
  %chunk = select i1 %mine, i32 %first, i32 %last
  %chunk.after = add i32 %chunk, 1
  %body = load ptr, ptr %body.at
  %ctx = load ptr, ptr %ctx.at
  %quotient = load i64, ptr %quotient.at
  %remainder = load i32, ptr %remainder.at
  %chunks = load i32, ptr %chunks.at
  %begin = call i64 @start(i32 %chunk, i64 %quotient, i32 %remainder, i32 %chunks)
  %stop = call i64 @start(i32 %chunk.after, i64 %quotient, i32 %remainder, i32 %chunks)
  call void %body(ptr %ctx, i64 %begin, i64 %stop, i64 %me)
  %n.next = add i32 %n, 1
  br label %look
next:
  %farther = add i64 %distance, 1
  %more = icmp slt i64 %farther, %threads
  br i1 %more, label %part, label %exit
exit:
  ret i32 %n
}

; Whether a part has a chunk to take.
define internal i1 @open(i64 %chunks) alwaysinline nounwind {
  %first = trunc i64 %chunks to i32
  %upper = lshr i64 %chunks, 32
  %end = trunc i64 %upper to i32
  %open = icmp slt i32 %first, %end
  ret i1 %open
}

; The first iteration of a chunk: extent * chunk / chunks, without overflow.
define internal i64 @start(i32 %chunk, i64 %quotient, i32 %remainder, i32 %chunks) alwaysinline nounwind {
  %wide = zext i32 %chunk to i64
  %whole = mul i64 %wide, %quotient
  %rest = mul i32 %chunk, %remainder
  %extra = udiv i32 %rest, %chunks
  %extra.wide = zext i32 %extra to i64
  %start = add i64 %whole, %extra.wide
  ret i64 %start
}
"""

_PARALLEL = """
; Gives every thread its part of the region.
define internal i32 @publish(ptr %pool, i64 %threads, ptr %body, ptr %ctx, i64 %extent) nounwind {
entry:
  %most = mul i64 %threads, {chunks}
  %fine = icmp ult i64 %most, %extent
  %n = select i1 %fine, i64 %most, i64 %extent
  %chunks = trunc i64 %n to i32
  %count = trunc i64 %threads to i32
  %quotient = udiv i64 %extent, %n
  %remainder = urem i64 %extent, %n
  %remainder.narrow = trunc i64 %remainder to i32
  %parts = getelementptr %Pool, ptr %pool, i64 1
  br label %part
part:
  %t = phi i32 [ 0, %entry ], [ %t.next, %part ]
  %first = phi i32 [ 0, %entry ], [ %end, %part ]
  %t.next = add i32 %t, 1
  %before = mul i32 %chunks, %t.next
  %end = udiv i32 %before, %count
  %body.at = getelementptr %Part, ptr %parts, i32 %t, i32 1
  store ptr %body, ptr %body.at
  %ctx.at = getelementptr %Part, ptr %parts, i32 %t, i32 2
  store ptr %ctx, ptr %ctx.at
  %quotient.at = getelementptr %Part, ptr %parts, i32 %t, i32 3
  store i64 %quotient, ptr %quotient.at
  %remainder.at = getelementptr %Part, ptr %parts, i32 %t, i32 4
  store i32 %remainder.narrow, ptr %remainder.at
  %chunks.at = getelementptr %Part, ptr %parts, i32 %t, i32 5
  store i32 %chunks, ptr %chunks.at
  %first.wide = zext i32 %first to i64
  %end.wide = zext i32 %end to i64
  %upper = shl i64 %end.wide, 32
  %range = or i64 %upper, %first.wide
  %at = getelementptr %Part, ptr %parts, i32 %t
  store atomic i64 %range, ptr %at release, align 8
  %more = icmp slt i32 %t.next, %count
  br i1 %more, label %part, label %exit
exit:
  ret i32 %chunks
}

; Returns when the other threads have reported that many chunks.
define internal void @await(ptr %pool, i32 %others) nounwind {
entry:
  %done.at = getelementptr %Pool, ptr %pool, i64 0, i32 6
  %waiting.at = getelementptr %Pool, ptr %pool, i64 0, i32 7
  %spin.at = getelementptr %Pool, ptr %pool, i64 0, i32 10
  %spin = load i64, ptr %spin.at
  %patience = lshr i64 %spin, {patience_shift}
  %limit = add i64 %patience, {caller_offers}
  %syscall.at = getelementptr %Pool, ptr %pool, i64 0, i32 11
  %syscall = load ptr, ptr %syscall.at
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %pause ], [ %i.next, %yield ], [ %i.next, %awake ]
  %i.next = add i64 %i, 1
  %done = load atomic i32, ptr %done.at acquire, align 4
  %ready = icmp eq i32 %done, %others
  br i1 %ready, label %exit, label %wait
wait:
  %short = icmp slt i64 %i, %patience
  br i1 %short, label %pause, label %long
pause:
  call void @{pause}
  br label %check
long:
  %longer = icmp sge i64 %i, %limit
  br i1 %longer, label %sleep, label %yield
yield: ; the worker may be waiting for this core: other programs run as well, or there are more threads than cores
  %yielded = call i64 (i64, ...) %syscall(i64 {sched_yield})
  br label %check
sleep: ; on an idle core the system may run the worker whose core another program has
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  %now = load atomic i32, ptr %done.at seq_cst, align 4
  %missing = icmp ne i32 %now, %others
  br i1 %missing, label %futex, label %awake
futex: ; FUTEX_WAIT_PRIVATE: returns at once if more is done
  %value = zext i32 %now to i64
  %waited = call i64 (i64, ...) %syscall(i64 {futex}, ptr %done.at, i64 128, i64 %value, ptr null, ptr null, i64 0)
  br label %awake
awake:
  store atomic i32 0, ptr %waiting.at monotonic, align 4
  br label %check
exit:
  ret void
}

; Runs body over [0, extent) on all threads and returns when all is done. A region inside a region, and one that comes
; while another thread uses the pool, runs on the calling thread alone: neither can wait for the other.
define void @burnish_parallel(ptr %pool, ptr %body, ptr %ctx, i64 %extent) nounwind {
entry:
  %threads.at = getelementptr %Pool, ptr %pool, i64 0, i32 9
  %threads = load i64, ptr %threads.at
  %several = icmp sgt i64 %threads, 1
  %divisible = icmp sgt i64 %extent, 1
  %worth = and i1 %several, %divisible
  %busy = getelementptr %Pool, ptr %pool, i64 0, i32 4
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
  %done.at = getelementptr %Pool, ptr %pool, i64 0, i32 6
  store atomic i32 0, ptr %done.at monotonic, align 4
  %chunks = call i32 @publish(ptr %pool, i64 %threads, ptr %body, ptr %ctx, i64 %extent)
  %sleepers.at = getelementptr %Pool, ptr %pool, i64 0, i32 2
  %called = load atomic i32, ptr %sleepers.at monotonic, align 4
  %calling = icmp ne i32 %called, 0
  br i1 %calling, label %forget, label %announce
forget: ; the next region does not call again those who are still on their way
  %counted = atomicrmw sub ptr %sleepers.at, i32 %called seq_cst, align 4
  br label %announce
announce:
  %old = load atomic i32, ptr %pool monotonic, align 4
  %generation = add i32 %old, 1
  ; Sequentially consistent with the worker's increment of sleepers and its look at the generation: either this thread
  ; sees the sleeper, or the sleeper sees the new generation. Weaker orders would lose wake-ups. One that sleeps on the
  ; new generation already stays counted, for the next region.
  store atomic i32 %generation, ptr %pool seq_cst, align 4
  %late = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %sleepers = or i32 %called, %late
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %wake, label %work
wake: ; FUTEX_WAKE_PRIVATE, all of them
  %syscall.at = getelementptr %Pool, ptr %pool, i64 0, i32 11
  %syscall = load ptr, ptr %syscall.at
  %core.at = getelementptr %Pool, ptr %pool, i64 0, i32 12
  %failed = call i64 (i64, ...) %syscall(i64 {getcpu}, ptr %core.at, ptr null, ptr null)
  call void @aside(ptr %pool, ptr %syscall)
  %woken = call i64 (i64, ...) %syscall(i64 {futex}, ptr %pool, i64 129, i64 2147483647, ptr null, ptr null, i64 0)
  br label %work
work:
  %mine = call i32 @take(ptr %pool, i64 0)
  %others = sub i32 %chunks, %mine
  call void @await(ptr %pool, i32 %others)
  store atomic i32 0, ptr %busy release, align 4
  ret void
}
"""

# The system may wake a worker on the core of the thread that calls it, and then take many milliseconds to notice that
# another is idle: all that time a region takes twice as long as it should. Where workers are pinned, the caller moves.
_AWAY = """
; If the calling thread, a worker that is not pinned, runs on the core of the caller, it moves to another one.
define internal void @away(ptr %pool, ptr %syscall) nounwind {
entry:
  %core.at = alloca i32
  %own = alloca <16 x i64>
  %pinned.at = getelementptr %Pool, ptr %pool, i64 0, i32 13
  %pinned = load ptr, ptr %pinned.at
  %free = icmp eq ptr %pinned, null
  br i1 %free, label %look, label %exit
look:
  %failed = call i64 (i64, ...) %syscall(i64 {getcpu}, ptr %core.at, ptr null, ptr null)
  %core = load i32, ptr %core.at
  %caller.at = getelementptr %Pool, ptr %pool, i64 0, i32 12
  %caller = load i32, ptr %caller.at
  %same = icmp eq i32 %core, %caller
  %below = icmp ult i32 %core, 1024
  %shared = and i1 %same, %below
  br i1 %shared, label %move, label %exit
move:
  store <16 x i64> zeroinitializer, ptr %own
  %word.at = call ptr @word(ptr %own, i32 %core)
  %bit = call i64 @bit(i32 %core)
  store i64 %bit, ptr %word.at
  call void @leave(ptr %own, ptr %syscall)
  br label %exit
exit:
  ret void
}

; If the calling thread, which enters a region, runs on the core of a pinned worker, it moves to another one.
define internal void @aside(ptr %pool, ptr %syscall) nounwind {
entry:
  %pinned.at = getelementptr %Pool, ptr %pool, i64 0, i32 13
  %pinned = load ptr, ptr %pinned.at
  %free = icmp eq ptr %pinned, null
  br i1 %free, label %exit, label %look
look:
  %core.at = getelementptr %Pool, ptr %pool, i64 0, i32 12
  %core = load i32, ptr %core.at
  %below = icmp ult i32 %core, 1024
  br i1 %below, label %test, label %exit
test:
  %word.at = call ptr @word(ptr %pinned, i32 %core)
  %word = load i64, ptr %word.at
  %bit = call i64 @bit(i32 %core)
  %both = and i64 %word, %bit
  %taken = icmp ne i64 %both, 0
  br i1 %taken, label %move, label %exit
move:
  call void @leave(ptr %pinned, ptr %syscall)
  br label %exit
exit:
  ret void
}

; The word of a set of cores that has a core, and its bit there.
define internal ptr @word(ptr %set, i32 %core) alwaysinline nounwind {
  %number = lshr i32 %core, 6
  %at = getelementptr i64, ptr %set, i32 %number
  ret ptr %at
}

define internal i64 @bit(i32 %core) alwaysinline nounwind {
  %place = and i32 %core, 63
  %wide = zext i32 %place to i64
  %bit = shl i64 1, %wide
  ret i64 %bit
}

; The system moves the calling thread to a core that is not in a set, if it may use one; then it may run anywhere again.
define internal void @leave(ptr %set, ptr %syscall) noinline nounwind {
entry:
  %allowed = alloca <16 x i64> ; 1024 cores: where the system knows more, nothing is done
  %others = alloca <16 x i64>
  store <16 x i64> zeroinitializer, ptr %allowed
  %bytes = call i64 (i64, ...) %syscall(i64 {sched_getaffinity}, i64 0, i64 128, ptr %allowed)
  %known = icmp sgt i64 %bytes, 0
  br i1 %known, label %move, label %exit
move:
  %old = load <16 x i64>, ptr %allowed
  %cores = load <16 x i64>, ptr %set, align 8
  %both = and <16 x i64> %old, %cores
  %kept = xor <16 x i64> %old, %both
  store <16 x i64> %kept, ptr %others ; refused where no core is left
  %moved = call i64 (i64, ...) %syscall(i64 {sched_setaffinity}, i64 0, i64 %bytes, ptr %others)
  %freed = call i64 (i64, ...) %syscall(i64 {sched_setaffinity}, i64 0, i64 %bytes, ptr %allowed)
  br label %exit
exit:
  ret void
}
"""

_WORKER = """
; The main function of a worker thread: never returns. It spins for the next region, then sleeps until one comes.
define ptr @burnish_worker(ptr %me) nounwind {
entry:
  %thread.at = getelementptr %Part, ptr %me, i64 0, i32 6
  %thread = load i64, ptr %thread.at
  %pool.at = getelementptr %Part, ptr %me, i64 0, i32 7
  %pool = load ptr, ptr %pool.at
  %sleepers = getelementptr %Pool, ptr %pool, i64 0, i32 2
  %done = getelementptr %Pool, ptr %pool, i64 0, i32 6
  %waiting.at = getelementptr %Pool, ptr %pool, i64 0, i32 7
  %spin.at = getelementptr %Pool, ptr %pool, i64 0, i32 10
  %spin = load i64, ptr %spin.at
  %syscall.at = getelementptr %Pool, ptr %pool, i64 0, i32 11
  %syscall = load ptr, ptr %syscall.at
  br label %restart
restart:
  br label %check
check:
  %i = phi i64 [ 0, %restart ], [ %i.next, %pause ], [ %i.next, %yield ]
  %part = load atomic i64, ptr %me monotonic, align 8
  %new = call i1 @open(i64 %part)
  br i1 %new, label %work, label %wait
work:
  %n = call i32 @take(ptr %pool, i64 %thread)
  %some = icmp ne i32 %n, 0
  br i1 %some, label %report, label %restart
report: ; sequentially consistent, as are the caller's word that it sleeps and its look at what is done
  %before = atomicrmw add ptr %done, i32 %n seq_cst, align 4
  %waiting = load atomic i32, ptr %waiting.at seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  br i1 %asleep, label %wake, label %restart
wake: ; FUTEX_WAKE_PRIVATE
  %woken = call i64 (i64, ...) %syscall(i64 {futex}, ptr %done, i64 129, i64 1, ptr null, ptr null, i64 0)
  br label %restart
wait:
  %long = icmp sge i64 %i, %spin
  br i1 %long, label %sleep, label %pause
pause:
  call void @{pause}
  %i.next = add i64 %i, 1
  %pauses = urem i64 %i.next, {offer}
  %offering = icmp eq i64 %pauses, 0
  br i1 %offering, label %yield, label %check
yield:
  %yielded = call i64 (i64, ...) %syscall(i64 {sched_yield})
  br label %check
sleep: ; the part is published before the generation: if the next look finds no chunk, this generation has none left
  %last = load atomic i32, ptr %pool acquire, align 4
  %sleeping = atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  %again = load atomic i64, ptr %me monotonic, align 8
  %missed = call i1 @open(i64 %again)
  br i1 %missed, label %restart, label %compare
compare:
  %now = load atomic i32, ptr %pool seq_cst, align 4
  %still = icmp eq i32 %now, %last
  br i1 %still, label %futex, label %restart
futex: ; FUTEX_WAIT_PRIVATE: returns at once if the generation has changed
  %value = zext i32 %last to i64
  %waited = call i64 (i64, ...) %syscall(i64 {futex}, ptr %pool, i64 128, i64 %value, ptr null, ptr null, i64 0)
  call void @away(ptr %pool, ptr %syscall)
  br label %restart
}
"""


def pool_ir(calls: Mapping[str, int], pause: str) -> str:
    """``@burnish_parallel`` and ``@burnish_worker``, by the numbers of system ``calls`` and the spin-wait intrinsic."""
    text = _TYPES + _TAKE + _PARALLEL + _AWAY + _WORKER
    values = {
        "chunks": _CHUNKS, "offer": _OFFER, "patience_shift": _PATIENCE_SHIFT, "caller_offers": _CALLER_OFFERS,
        "pause": pause, **calls,
    }  # fmt: skip
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text

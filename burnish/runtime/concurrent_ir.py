"""Concurrent kernel calls, as LLVM IR: regions of kernels that do not depend on each other, as one parallel region."""

from __future__ import annotations

WEIGHTS = 1024  # the weights of the shares of a region, together; a power of two
_SHIFT = WEIGHTS.bit_length() - 1

# A share is cut into parts by its weight, since iterations of two kernels do not take equally long. Parts of all shares
# together are as many as the pool cuts a region into, so that each is a chunk of its own.
_CONCURRENT = """
; A share of a region: iterations of a kernel's own region, or 0: all of a kernel that runs on one thread; its weight;
; bytes before its scratch.
%Share = type { i64, i64, i64 }

; Parts of a share; room: the most of all shares, but for those that have one as they must.
define internal i64 @share_parts(i64 %extent, i64 %weight, i64 %room) alwaysinline nounwind {
  %weighed = mul i64 %room, %weight
  %asked = ashr i64 %weighed, {shift}
  %fewer = icmp slt i64 %asked, %extent
  %n = select i1 %fewer, i64 %asked, i64 %extent
  %none = icmp slt i64 %n, 1
  %parts = select i1 %none, i64 1, i64 %n
  ret i64 %parts
}

; The body of the region. Every thread has equally many chunks, and what its own ones are is dealt out: the first parts
; are the longest, and all threads begin with them. A thread that does all goes through the parts in order. Its context:
; runtime, calls, shares, their number, the number of parts, chunks of a thread.
define internal void @concurrent_parts(ptr %ctx, i64 %begin, i64 %end, i64 %thread) nounwind {
entry:
  %own = alloca %Runtime
  fields %ctx: ptr rt, ptr calls, ptr shares, i64 count, i64 total, i64 each
  %values = load %Runtime, ptr %rt
  store %Runtime %values, ptr %own
  %scratch = extractvalue %Runtime %values, 2
  %stride = extractvalue %Runtime %values, 3
  %threads = extractvalue %Runtime %values, 4
  %own.scratch.at = getelementptr %Runtime, ptr %own, i64 0, i32 2
  %room = mul i64 %threads, {chunks}
  %chunks = mul i64 %each, %threads
  %range = sub i64 %end, %begin
  %alone = icmp eq i64 %range, %chunks
  br label %chunk
chunk:
  %c = phi i64 [ %begin, %entry ], [ %c.next, %done ]
  %more = icmp slt i64 %c, %end
  br i1 %more, label %deal, label %exit
deal:
  %c.next = add i64 %c, 1
  %owner = udiv i64 %c, %each
  %turn = urem i64 %c, %each
  %before = mul i64 %turn, %threads
  %dealt = add i64 %before, %owner
  %part = select i1 %alone, i64 %c, i64 %dealt
  %exists = icmp slt i64 %part, %total
  br i1 %exists, label %share, label %done
share: ; the part is of one of them
  %s = phi i64 [ 0, %deal ], [ %s.next, %share ]
  %first = phi i64 [ 0, %deal ], [ %after, %share ]
  %share.at = getelementptr %Share, ptr %shares, i64 %s
  fields %Share %share.at: i64 extent, i64 weight, i64 displaced
  %n = call i64 @share_parts(i64 %extent, i64 %weight, i64 %room)
  %after = add i64 %first, %n
  %s.next = add i64 %s, 1
  %farther = icmp sge i64 %part, %after
  br i1 %farther, label %share, label %run
run:
  %call.at = getelementptr %Call, ptr %calls, i64 %s
  fields %Call %call.at: ptr function, ptr args
  %area = getelementptr i8, ptr %scratch, i64 %displaced
  %whole = icmp eq i64 %extent, 0
  br i1 %whole, label %kernel, label %region
kernel: ; which finds the scratch of its thread where it looks for that of the first
  %shift = mul i64 %stride, %thread
  %area.own = getelementptr i8, ptr %area, i64 %shift
  store ptr %area.own, ptr %own.scratch.at
  call void %function(ptr %args, ptr %own)
  br label %done
region:
  store ptr %area, ptr %own.scratch.at
  %place = sub i64 %part, %first
  %place.wide = mul i64 %place, %extent
  %iteration = udiv i64 %place.wide, %n
  %place.after = add i64 %place, 1
  %after.wide = mul i64 %place.after, %extent
  %stop = udiv i64 %after.wide, %n
  call void %function(ptr %args, ptr %own, i64 %iteration, i64 %stop, i64 %thread)
  br label %done
done:
  br label %chunk
exit:
  ret void
}

; Calls kernels side by side, or one after another on too few threads. Its arguments are the number of regions,
; the fewest threads, the number of kernels, their calls, and those of all regions one behind the other; then of each
; region the number of its shares, and these.
define void @burnish_concurrent(ptr %args, ptr %rt) nounwind {
entry:
  %ctx = alloca [6 x i64]
  fields %args: i64 regions, i64 least, i64 kernels, ptr own.calls, ptr first.calls
  %first.shares = getelementptr i64, ptr %args, i64 5
  fields %rt: ptr parallel, ptr pool
  %threads.at = getelementptr %Runtime, ptr %rt, i64 0, i32 4
  %threads = load i64, ptr %threads.at
  %others = sub i64 %threads, 1
  %few = icmp slt i64 %threads, %least
  br i1 %few, label %apart, label %region
apart:
  %k = phi i64 [ 0, %entry ], [ %k.next, %kernel ]
  %calling = icmp slt i64 %k, %kernels
  br i1 %calling, label %kernel, label %exit
kernel:
  %call = getelementptr %Call, ptr %own.calls, i64 %k
  fields %Call %call: ptr function, ptr own.args
  call void %function(ptr %own.args, ptr %rt)
  %k.next = add i64 %k, 1
  br label %apart
region:
  %r = phi i64 [ 0, %entry ], [ %r.next, %enter ]
  %calls = phi ptr [ %first.calls, %entry ], [ %calls.next, %enter ]
  %at = phi ptr [ %first.shares, %entry ], [ %at.next, %enter ]
  %more = icmp slt i64 %r, %regions
  br i1 %more, label %begin, label %exit
begin:
  %count = load i64, ptr %at
  %shares = getelementptr i64, ptr %at, i64 1
  %room = mul i64 %threads, {chunks}
  br label %share
share:
  %s = phi i64 [ 0, %begin ], [ %s.next, %count.parts ]
  %total = phi i64 [ 0, %begin ], [ %total.next, %count.parts ]
  %left = icmp slt i64 %s, %count
  br i1 %left, label %count.parts, label %enter
count.parts:
  %share.at = getelementptr %Share, ptr %shares, i64 %s
  fields %Share %share.at: i64 extent, i64 weight
  %n = call i64 @share_parts(i64 %extent, i64 %weight, i64 %room)
  %total.next = add i64 %total, %n
  %s.next = add i64 %s, 1
  br label %share
enter:
  store ptr %rt, ptr %ctx
  %ctx.calls = getelementptr i64, ptr %ctx, i64 1
  store ptr %calls, ptr %ctx.calls
  %ctx.shares = getelementptr i64, ptr %ctx, i64 2
  store ptr %shares, ptr %ctx.shares
  %ctx.count = getelementptr i64, ptr %ctx, i64 3
  store i64 %count, ptr %ctx.count
  %ctx.total = getelementptr i64, ptr %ctx, i64 4
  store i64 %total, ptr %ctx.total
  %padded = add i64 %total, %others
  %each = udiv i64 %padded, %threads
  %ctx.each = getelementptr i64, ptr %ctx, i64 5
  store i64 %each, ptr %ctx.each
  %chunks = mul i64 %each, %threads
  call void %parallel(ptr %pool, ptr @concurrent_parts, ptr %ctx, i64 %chunks)
  %calls.next = getelementptr %Call, ptr %calls, i64 %count
  %at.next = getelementptr %Share, ptr %shares, i64 %count
  %r.next = add i64 %r, 1
  br label %region
exit:
  ret void
}
"""


def concurrent_ir(chunks: int) -> str:
    """``@burnish_concurrent``; ``chunks``: what the pool cuts a region into for each thread."""
    return _CONCURRENT.replace("{chunks}", str(chunks)).replace("{shift}", str(_SHIFT))

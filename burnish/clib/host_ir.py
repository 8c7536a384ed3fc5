"""Contexts of a C library as LLVM IR: created with memory of their own, run, destroyed.

A context is one mapping of memory: what a call needs (``%Plan``, ``%Runtime`` of runtime/entry.py, the addresses of
inputs and outputs), a copy of the call tables, states, own memory of outputs, the arena, and the threads' scratch.
Numbers in braces are filled in for each model; ``{p}`` is the library's name, with which all of its symbols begin.
"""

from __future__ import annotations

OK, INVALID, NO_MEMORY, NO_CPU, MISSING, BEYOND, OTHER_THREADS, NO_CODE = range(8)

# mmap: PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
CONTEXTS = """
define i32 @{p}_create(i32 %asked, ptr %result) nounwind {
entry:
  %bases = alloca [{bases} x i64]
  %no.result = icmp eq ptr %result, null
  %negative = icmp slt i32 %asked, 0
  %bad = or i1 %no.result, %negative
  br i1 %bad, label %invalid, label %check
invalid:
  ret i32 1
check:
  store ptr null, ptr %result
  %able = call i1 @{p}_able()
  br i1 %able, label %begin, label %unable
unable:
  ret i32 3
begin:
  %alone = icmp eq i32 %asked, 1
  %wide = zext i32 %asked to i64
  call void @lib.enter()
  %code = call ptr @lib.code()
  %lost = icmp eq ptr %code, null
  br i1 %lost, label %no.code, label %pool
no.code:
  call void @lib.leave()
  ret i32 7
pool:
  br i1 %alone, label %one, label %several
one:
  %serial.threads = getelementptr %Pool, ptr @serial, i64 0, i32 9
  store i64 1, ptr %serial.threads
  br label %ready
several:
  %started = call i64 @lib.start(i64 %wide)
  br label %ready
ready:
  %n = phi i64 [ 1, %one ], [ %started, %several ]
  %pool.own = phi ptr [ @serial, %one ], [ @threads, %several ]
  call void @lib.leave()
  %free = icmp eq i64 %wide, 0
  %fits = icmp eq i64 %wide, %n
  %fine = or i1 %free, %fits
  br i1 %fine, label %map, label %other
other:
  ret i32 6
map:
  %scratch.bytes = mul i64 %n, {stride}
  %bytes = add i64 %scratch.bytes, {fixed}
  %m = call ptr @mmap(ptr null, i64 %bytes, i32 3, i32 16418, i32 -1, i64 0)
  %number = ptrtoint ptr %m to i64
  %failed = icmp eq i64 %number, -1
  br i1 %failed, label %no.memory, label %fill
no.memory:
  ret i32 2
fill:
  %bytes.at = getelementptr i8, ptr %m, i64 {bytes_at}
  store i64 %bytes, ptr %bytes.at
  %words = getelementptr i8, ptr %m, i64 {words_at}
  call void @llvm.memcpy.p0.p0.i64(ptr %words, ptr @{p}_words, i64 {words_bytes}, i1 false)
  %state = getelementptr i8, ptr %m, i64 {state_at}
  call void @llvm.memcpy.p0.p0.i64(ptr %state, ptr @{p}_states, i64 {state_bytes}, i1 false)
  %words.base = ptrtoint ptr %words to i64
  %state.base = ptrtoint ptr %state to i64
  %code.base = ptrtoint ptr %code to i64
  store i64 ptrtoint (ptr @{p}_params to i64), ptr %bases
{store_bases}
  br label %relocate
relocate:
  %r = phi i64 [ 0, %fill ], [ %r.next, %relocated ]
  %more = icmp slt i64 %r, {relocations}
  br i1 %more, label %relocated, label %structures
relocated:
  %entry.at = getelementptr { i32, i32 }, ptr @{p}_relocations, i64 %r
  %word = load i32, ptr %entry.at
  %base.at = getelementptr { i32, i32 }, ptr @{p}_relocations, i64 %r, i32 1
  %which = load i32, ptr %base.at
  %base.place = getelementptr i64, ptr %bases, i32 %which
  %base = load i64, ptr %base.place
  %place = getelementptr i64, ptr %words, i32 %word
  %value = load i64, ptr %place
  %address = add i64 %value, %base
  store i64 %address, ptr %place
  %r.next = add i64 %r, 1
  br label %relocate
structures:
  %calls = getelementptr i8, ptr %words, i64 {first_call_at}
  store ptr %calls, ptr %m
  %plan1 = getelementptr %Plan, ptr %m, i64 0, i32 1
  store i64 {calls}, ptr %plan1
  %patches = getelementptr i8, ptr %words, i64 {patches_at}
  %plan2 = getelementptr %Plan, ptr %m, i64 0, i32 2
  store ptr %patches, ptr %plan2
  %plan3 = getelementptr %Plan, ptr %m, i64 0, i32 3
  store i64 {patches}, ptr %plan3
  %rt = getelementptr i8, ptr %m, i64 {runtime_at}
  store ptr @burnish_parallel, ptr %rt
  %rt1 = getelementptr %Runtime, ptr %rt, i64 0, i32 1
  store ptr %pool.own, ptr %rt1
  %scratch = getelementptr i8, ptr %m, i64 {fixed}
  %rt2 = getelementptr %Runtime, ptr %rt, i64 0, i32 2
  store ptr %scratch, ptr %rt2
  %rt3 = getelementptr %Runtime, ptr %rt, i64 0, i32 3
  store i64 {stride}, ptr %rt3
  %rt4 = getelementptr %Runtime, ptr %rt, i64 0, i32 4
  store i64 %n, ptr %rt4
  %rt6 = getelementptr %Runtime, ptr %rt, i64 0, i32 6
  %drawn = call i32 @getentropy(ptr %rt6, i64 8)
  %arena = getelementptr i8, ptr %m, i64 {arena_at}
  %io = getelementptr i8, ptr %m, i64 {io_at}
  store ptr %arena, ptr %io
{store_hints}
  call void @lib.resize(ptr %m)
  store ptr %m, ptr %result
  ret i32 0
}

define void @{p}_destroy(ptr %m) nounwind {
entry:
  %none = icmp eq ptr %m, null
  br i1 %none, label %exit, label %begin
begin:
  %some = icmp sgt i64 {outputs}, 0
  br i1 %some, label %free, label %unmap
free:
  %o = phi i64 [ 0, %begin ], [ %o.next, %free ]
  %own.at = getelementptr i8, ptr %m, i64 {own_at}
  %place = getelementptr { ptr, i64 }, ptr %own.at, i64 %o
  %own = load ptr, ptr %place
  call void @free(ptr %own)
  %o.next = add i64 %o, 1
  %more = icmp slt i64 %o.next, {outputs}
  br i1 %more, label %free, label %unmap
unmap:
  %bytes.at = getelementptr i8, ptr %m, i64 {bytes_at}
  %bytes = load i64, ptr %bytes.at
  %freed = call i32 @munmap(ptr %m, i64 %bytes)
  br label %exit
exit:
  ret void
}

define i32 @{p}_run(ptr %m) nounwind {
entry:
  %none = icmp eq ptr %m, null
  br i1 %none, label %invalid, label %begin
invalid:
  ret i32 1
begin:
  %io = getelementptr i8, ptr %m, i64 {io_at}
  br label %input
input:
  %i = phi i64 [ 0, %begin ], [ %i.next, %given ]
  %more = icmp slt i64 %i, {inputs}
  br i1 %more, label %given, label %ready
given:
  %i.next = add i64 %i, 1
  %at = getelementptr ptr, ptr %io, i64 %i.next
  %data = load ptr, ptr %at
  %absent = icmp eq ptr %data, null
  br i1 %absent, label %missing, label %input
missing:
  ret i32 4
ready:
  %within = call i1 @lib.within(ptr %m)
  br i1 %within, label %widest, label %beyond
beyond:
  ret i32 5
widest:
{store_most}
  br label %output
output: ; what was not set lies in memory of the context
  %o = phi i64 [ 0, %widest ], [ %o.next, %placed ]
  %more.outputs = icmp slt i64 %o, {outputs}
  br i1 %more.outputs, label %placing, label %call
placing:
  %o.next = add i64 %o, 1
  %number = add i64 %o, {first_output}
  %o.at = getelementptr ptr, ptr %io, i64 %number
  %given.output = load ptr, ptr %o.at
  %is.set = icmp ne ptr %given.output, null
  br i1 %is.set, label %placed, label %room
room:
  %o.index = trunc i64 %o to i32
  %wanted = call i64 @lib.evaluate(ptr %m, ptr @output.bytes, i32 %o.index)
  %own.at = getelementptr i8, ptr %m, i64 {own_at}
  %own = getelementptr { ptr, i64 }, ptr %own.at, i64 %o
  %room.at = getelementptr { ptr, i64 }, ptr %own, i64 0, i32 1
  %present = load i64, ptr %room.at
  %fits = icmp sgt i64 %present, %wanted
  br i1 %fits, label %use, label %grow
grow: ; one byte more than asked for: never zero
  %old = load ptr, ptr %own
  call void @free(ptr %old)
  store ptr null, ptr %own
  store i64 0, ptr %room.at
  %most = add i64 %wanted, 1
  %failed = call i32 @posix_memalign(ptr %own, i64 64, i64 %most)
  %refused = icmp ne i32 %failed, 0
  br i1 %refused, label %no.memory, label %grown
no.memory:
  store ptr null, ptr %own
  ret i32 2
grown:
  store i64 %most, ptr %room.at
  br label %use
use:
  %memory = load ptr, ptr %own
  store ptr %memory, ptr %o.at
  br label %placed
placed:
  br label %output
call:
  %rt = getelementptr i8, ptr %m, i64 {runtime_at}
  call void @burnish_run(ptr %m, ptr %io, ptr %rt)
{store_counts}
  ret i32 0
}

"""

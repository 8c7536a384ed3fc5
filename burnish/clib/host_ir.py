"""The functions of a C library as LLVM IR: contexts with memory of their own, sizes, inputs, outputs, and calls.

A context is one mapping of memory: what a call needs (``%Plan``, ``%Runtime`` of runtime/entry.py, the addresses of
inputs and outputs), a copy of the call tables, states, own memory of outputs, the arena, and the threads' scratch.
Numbers in braces are filled in for each model; ``{p}`` is the library's name, with which all of its symbols begin.
"""

from __future__ import annotations

OK, INVALID, NO_MEMORY, NO_CPU, MISSING, BEYOND, THREADS, NO_CODE = range(8)

# pthread_sigmask: SIG_SETMASK; mmap: PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
HOST = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_yield()
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @mprotect(ptr, i64, i32)
declare i64 @syscall(i64, ...)
declare i32 @getentropy(ptr, i64)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.ctpop.i64(i64)

@{p}_words = external hidden constant i8
@{p}_relocations = external hidden constant i8
@{p}_params = external hidden constant i8
@{p}_states = external hidden constant i8
@{p}_code = external hidden constant i8
@{p}_absolute = external hidden constant i8

@lock = internal global i32 0
@loaded = internal global ptr null
@threads = internal global { %Pool, [{most_threads} x %Part] } zeroinitializer, align 128
@serial = internal global %Pool zeroinitializer, align 128

define internal void @lib.enter() nounwind {
entry:
  br label %try
try:
  %found = cmpxchg ptr @lock, i32 0, i32 1 acquire monotonic
  %won = extractvalue { i32, i1 } %found, 1
  br i1 %won, label %exit, label %wait
wait:
  %yielded = call i32 @sched_yield()
  br label %try
exit:
  ret void
}

define internal void @lib.leave() nounwind {
  store atomic i32 0, ptr @lock release, align 4
  ret void
}

; The cores that this process may use.
define internal i64 @lib.cores() nounwind {
entry:
  %mask = alloca [16 x i64]
  store [16 x i64] zeroinitializer, ptr %mask
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  br label %word
word:
  %w = phi i64 [ 0, %entry ], [ %w.next, %word ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %word ]
  %at = getelementptr i64, ptr %mask, i64 %w
  %bits = load i64, ptr %at
  %count = call i64 @llvm.ctpop.i64(i64 %bits)
  %sum.next = add i64 %sum, %count
  %w.next = add i64 %w, 1
  %more = icmp slt i64 %w.next, 16
  br i1 %more, label %word, label %exit
exit:
  %none = icmp eq i64 %sum.next, 0
  %found = select i1 %none, i64 1, i64 %sum.next
  ret i64 %found
}

; Creates the threads of this library, if there are none yet; their number. 0: by what the model was compiled for and
; the cores. They live as long as the process, and no signal handler runs on them.
define internal i64 @lib.start(i64 %asked) nounwind {
entry:
  %handle = alloca i64
  %all = alloca [16 x i64]
  %old = alloca [16 x i64]
  %count.at = getelementptr %Pool, ptr @threads, i64 0, i32 9
  %present = load i64, ptr %count.at
  %started = icmp ne i64 %present, 0
  br i1 %started, label %known, label %new
known:
  ret i64 %present
new:
  %cores = call i64 @lib.cores()
  %fewer = icmp slt i64 {asked}, %cores
  %usual.asked = select i1 %fewer, i64 {asked}, i64 %cores
  %any = icmp eq i64 {asked}, 0
  %usual = select i1 %any, i64 %cores, i64 %usual.asked
  %default = icmp eq i64 %asked, 0
  %wanted = select i1 %default, i64 %usual, i64 %asked
  %many = icmp sgt i64 %wanted, {most_threads}
  %n = select i1 %many, i64 {most_threads}, i64 %wanted
  %spins = icmp sle i64 %n, %cores
  %spin = select i1 %spins, i64 {spin}, i64 0
  %spin.at = getelementptr %Pool, ptr @threads, i64 0, i32 10
  store i64 %spin, ptr %spin.at
  %syscall.at = getelementptr %Pool, ptr @threads, i64 0, i32 11
  store ptr @syscall, ptr %syscall.at
  store i64 %n, ptr %count.at
  %filled = call i32 @sigfillset(ptr %all)
  %masked = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %old)
  %parts = getelementptr %Pool, ptr @threads, i64 1
  br label %thread
thread:
  %t = phi i64 [ 1, %new ], [ %t.next, %made ]
  %more = icmp slt i64 %t, %n
  br i1 %more, label %create, label %done
create:
  %part = getelementptr %Part, ptr %parts, i64 %t
  %thread.at = getelementptr %Part, ptr %part, i64 0, i32 6
  store i64 %t, ptr %thread.at
  %pool.at = getelementptr %Part, ptr %part, i64 0, i32 7
  store ptr @threads, ptr %pool.at
  %failed = call i32 @pthread_create(ptr %handle, ptr null, ptr @burnish_worker, ptr %part)
  %refused = icmp ne i32 %failed, 0
  br i1 %refused, label %fewer.threads, label %made
made:
  %own = load i64, ptr %handle
  %detached = call i32 @pthread_detach(i64 %own)
  %t.next = add i64 %t, 1
  br label %thread
fewer.threads:
  store i64 %t, ptr %count.at
  br label %done
done:
  %restored = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  %found = load i64, ptr %count.at
  ret i64 %found
}

; The address of the machine code: where it holds addresses of its own, of a copy into which these are entered once.
define internal ptr @lib.code() nounwind {
entry:
  %copied = icmp sgt i64 {absolutes}, 0
  br i1 %copied, label %look, label %plain
plain:
  ret ptr @{p}_code
look:
  %known = load ptr, ptr @loaded
  %present = icmp ne ptr %known, null
  br i1 %present, label %exit, label %map
map:
  %pages = call ptr @mmap(ptr null, i64 {code_bytes}, i32 3, i32 16418, i32 -1, i64 0)
  %number = ptrtoint ptr %pages to i64
  %failed = icmp eq i64 %number, -1
  br i1 %failed, label %none, label %copy
none:
  ret ptr null
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %pages, ptr @{p}_code, i64 {code_bytes}, i1 false)
  br label %word
word:
  %a = phi i64 [ 0, %copy ], [ %a.next, %word ]
  %pair = getelementptr { i64, i64 }, ptr @{p}_absolute, i64 %a
  %offset = load i64, ptr %pair
  %target.at = getelementptr { i64, i64 }, ptr @{p}_absolute, i64 %a, i32 1
  %target = load i64, ptr %target.at
  %where = getelementptr i8, ptr %pages, i64 %offset
  %address = add i64 %number, %target
  store i64 %address, ptr %where
  %a.next = add i64 %a, 1
  %more = icmp slt i64 %a.next, {absolutes}
  br i1 %more, label %word, label %protect
protect: ; PROT_READ | PROT_EXEC
  %protected = call i32 @mprotect(ptr %pages, i64 {code_bytes}, i32 5)
  %refused = icmp ne i32 %protected, 0
  br i1 %refused, label %none, label %keep
keep:
  store ptr %pages, ptr @loaded
  ret ptr %pages
exit:
  ret ptr %known
}

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
  %calls = getelementptr i8, ptr %words, i64 {calls_at}
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

; The place of a pointer in io: 0 where there is no such input or output.
define internal ptr @lib.place(ptr %m, i32 %index, i64 %first, i64 %count) nounwind {
entry:
  %none = icmp eq ptr %m, null
  br i1 %none, label %no, label %look
look:
  %wide = zext i32 %index to i64
  %known = icmp ult i64 %wide, %count
  br i1 %known, label %yes, label %no
yes:
  %number = add i64 %first, %wide
  %io = getelementptr i8, ptr %m, i64 {io_at}
  %at = getelementptr ptr, ptr %io, i64 %number
  ret ptr %at
no:
  ret ptr null
}

; Enters the address of an input or output, if it has as many bytes and lies at a multiple of an element's.
define internal i32 @lib.bind(
  ptr %m, i32 %index, ptr %data, i64 %bytes, i64 %first, i64 %count, ptr %sizes, ptr %units
) nounwind {
entry:
  %at = call ptr @lib.place(ptr %m, i32 %index, i64 %first, i64 %count)
  %none = icmp eq ptr %at, null
  br i1 %none, label %invalid, label %look
look:
  %null = icmp eq ptr %data, null
  br i1 %null, label %invalid, label %size
size:
  %wanted = call i64 @lib.evaluate(ptr %m, ptr %sizes, i32 %index)
  %same = icmp eq i64 %wanted, %bytes
  %unit.at = getelementptr i64, ptr %units, i32 %index
  %unit = load i64, ptr %unit.at
  %mask = sub i64 %unit, 1
  %number = ptrtoint ptr %data to i64
  %odd = and i64 %number, %mask
  %aligned = icmp eq i64 %odd, 0
  %fine = and i1 %same, %aligned
  br i1 %fine, label %store, label %invalid
store:
  store ptr %data, ptr %at
  ret i32 0
invalid:
  ret i32 1
}

define i32 @{p}_set_input(ptr %m, i32 %index, ptr %data, i64 %bytes) nounwind {
  %code = call i32 @lib.bind(
    ptr %m, i32 %index, ptr %data, i64 %bytes, i64 1, i64 {inputs}, ptr @input.bytes, ptr @input.units
  )
  ret i32 %code
}

define i32 @{p}_set_output(ptr %m, i32 %index, ptr %data, i64 %bytes) nounwind {
  %code = call i32 @lib.bind(
    ptr %m, i32 %index, ptr %data, i64 %bytes, i64 {first_output}, i64 {outputs}, ptr @output.bytes, ptr @output.units
  )
  ret i32 %code
}

define ptr @{p}_output(ptr %m, i32 %index) nounwind {
entry:
  %at = call ptr @lib.place(ptr %m, i32 %index, i64 {first_output}, i64 {outputs})
  %none = icmp eq ptr %at, null
  br i1 %none, label %no, label %yes
yes:
  %data = load ptr, ptr %at
  ret ptr %data
no:
  ret ptr null
}

define i32 @{p}_get_output(ptr %m, i32 %index, ptr %data, i64 %bytes) nounwind {
entry:
  %own = call ptr @{p}_output(ptr %m, i32 %index)
  %none = icmp eq ptr %own, null
  %null = icmp eq ptr %data, null
  %bad = or i1 %none, %null
  br i1 %bad, label %invalid, label %size
size:
  %wanted = call i64 @lib.evaluate(ptr %m, ptr @output.bytes, i32 %index)
  %same = icmp eq i64 %wanted, %bytes
  br i1 %same, label %copy, label %invalid
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %data, ptr %own, i64 %bytes, i1 false)
  ret i32 0
invalid:
  ret i32 1
}

define i64 @{p}_input_bytes(ptr %m, i32 %index) nounwind {
  %n = call i64 @lib.known(ptr %m, i32 %index, i64 {inputs}, ptr @input.bytes)
  ret i64 %n
}

define i64 @{p}_output_bytes(ptr %m, i32 %index) nounwind {
  %n = call i64 @lib.known(ptr %m, i32 %index, i64 {outputs}, ptr @output.bytes)
  ret i64 %n
}

define internal i64 @lib.known(ptr %m, i32 %index, i64 %count, ptr %sizes) nounwind {
entry:
  %at = call ptr @lib.place(ptr %m, i32 %index, i64 0, i64 %count)
  %none = icmp eq ptr %at, null
  br i1 %none, label %no, label %yes
yes:
  %n = call i64 @lib.evaluate(ptr %m, ptr %sizes, i32 %index)
  ret i64 %n
no:
  ret i64 -1
}

; The number of a table of sizes, for the dimensions of a context.
define internal i64 @lib.evaluate(ptr %m, ptr %sizes, i32 %index) nounwind {
  %at = getelementptr ptr, ptr %sizes, i32 %index
  %function = load ptr, ptr %at
  %values = getelementptr i8, ptr %m, i64 {values_at}
  %n = call i64 %function(ptr %values)
  ret i64 %n
}

define i32 @{p}_set_size(ptr %m, i32 %index, i64 %value) nounwind {
entry:
  %at = call ptr @lib.place(ptr %m, i32 %index, i64 {first_value}, i64 {dims})
  %none = icmp eq ptr %at, null
  br i1 %none, label %invalid, label %look
look:
  %low.at = getelementptr { i64, i64 }, ptr @bounds, i32 %index
  %low = load i64, ptr %low.at
  %high.at = getelementptr { i64, i64 }, ptr @bounds, i32 %index, i32 1
  %high = load i64, ptr %high.at
  %small = icmp slt i64 %value, %low
  %large = icmp sgt i64 %value, %high
  %bad = or i1 %small, %large
  br i1 %bad, label %invalid, label %enter
enter:
  store i64 %value, ptr %at
  call void @lib.resize(ptr %m)
  %io = getelementptr i8, ptr %m, i64 {io_at}
  br label %input
input: ; what was given had another size
  %i = phi i64 [ 0, %enter ], [ %i.next, %forget ]
  %more = icmp slt i64 %i, {given}
  br i1 %more, label %forget, label %done
forget:
  %i.next = add i64 %i, 1
  %input.at = getelementptr ptr, ptr %io, i64 %i.next
  store ptr null, ptr %input.at
  br label %input
done:
  ret i32 0
invalid:
  ret i32 1
}

define i32 @{p}_output_shape(ptr %m, i32 %index, ptr %shape) nounwind {
entry:
  %at = call ptr @lib.place(ptr %m, i32 %index, i64 {first_output}, i64 {outputs})
  %none = icmp eq ptr %at, null
  %null = icmp eq ptr %shape, null
  %bad = or i1 %none, %null
  br i1 %bad, label %invalid, label %begin
invalid:
  ret i32 1
begin:
  %range = getelementptr [2 x i32], ptr @output.axes, i32 %index
  %first = load i32, ptr %range
  %rank.at = getelementptr [2 x i32], ptr @output.axes, i32 %index, i32 1
  %rank = load i32, ptr %rank.at
  br label %axis
axis:
  %d = phi i32 [ 0, %begin ], [ %d.next, %extent ]
  %more = icmp slt i32 %d, %rank
  br i1 %more, label %extent, label %exit
extent:
  %number = add i32 %first, %d
  %n = call i64 @lib.evaluate(ptr %m, ptr @output.extents, i32 %number)
  %place = getelementptr i64, ptr %shape, i32 %d
  store i64 %n, ptr %place
  %d.next = add i32 %d, 1
  br label %axis
exit:
  ret i32 0
}

define ptr @{p}_state(ptr %m, i32 %index, ptr %bytes) nounwind {
entry:
  %at = call ptr @lib.place(ptr %m, i32 %index, i64 0, i64 {states})
  %none = icmp eq ptr %at, null
  br i1 %none, label %no, label %yes
no:
  ret ptr null
yes:
  %offset.at = getelementptr [2 x i64], ptr @state.places, i32 %index
  %offset = load i64, ptr %offset.at
  %wanted = icmp ne ptr %bytes, null
  br i1 %wanted, label %size, label %found
size:
  %size.at = getelementptr [2 x i64], ptr @state.places, i32 %index, i32 1
  %size.value = load i64, ptr %size.at
  store i64 %size.value, ptr %bytes
  br label %found
found:
  %state = getelementptr i8, ptr %m, i64 {state_at}
  %place = getelementptr i8, ptr %state, i64 %offset
  ret ptr %place
}

define i32 @{p}_reset(ptr %m) nounwind {
entry:
  %none = icmp eq ptr %m, null
  br i1 %none, label %invalid, label %copy
invalid:
  ret i32 1
copy:
  %state = getelementptr i8, ptr %m, i64 {state_at}
  %initial = getelementptr i8, ptr @{p}_states, i64 {state_bytes}
  call void @llvm.memcpy.p0.p0.i64(ptr %state, ptr %initial, i64 {state_bytes}, i1 false)
  ret i32 0
}

define ptr @{p}_error(i32 %code) nounwind {
entry:
  %known = icmp ult i32 %code, {messages}
  %index = select i1 %known, i32 %code, i32 {messages}
  %at = getelementptr ptr, ptr @messages, i32 %index
  %text = load ptr, ptr %at
  ret ptr %text
}
"""

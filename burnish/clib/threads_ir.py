"""Threads and machine code of a C library as LLVM IR: what its contexts share in a process, made once."""

from __future__ import annotations

# pthread_sigmask: SIG_SETMASK; mmap: PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
THREADS = """
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

"""

"""The native code all compiled models share, as LLVM IR: the thread pool, and the loop that calls a model's kernels."""

from __future__ import annotations

import re
from functools import cache

import llvmlite.binding as llvm

from burnish.errors import TargetError
from burnish.machines.known import MACHINES
from burnish.machines.machine import System
from burnish.runtime.concurrent_ir import concurrent_ir
from burnish.runtime.image import Image
from burnish.runtime.link import link
from burnish.runtime.pool_ir import CHUNKS, pool_ir

# The structures are laid out like those of abi.py. ``fields %Type %base: type name, …`` loads fields (``_loads``).
_TYPES = """
; What kernels see: parallel, pool, scratch, bytes of scratch per thread, threads, time stamps or null, entropy.
%Runtime = type { ptr, ptr, ptr, i64, i64, ptr, i64 }
; Calls and their number, patches and their number, clock_gettime.
%Plan = type { ptr, i64, ptr, i64, ptr }
; A kernel and its array of argument pointers.
%Call = type { ptr, ptr }
; *where = io[index] + offset, before the first call.
%Patch = type { ptr, i64, i64 }
; What a quick call checks and enters: a segment, io, the runtime, the type of arrays, how many of them are read and
; written, %Argument of each, the values of dimensions and their number, and whether results may share memory.
%Quick = type { ptr, ptr, ptr, ptr, i64, i64, ptr, ptr, i64, i64 }
; A dtype object, extents, rank, bytes, and the flags that an array needs.
%Argument = type { ptr, ptr, i64, i64, i64 }
; An array object of NumPy, up to its flags: head, elements, rank, extents, strides, base, dtype, flags.
%Array = type { i64, ptr, ptr, i32, ptr, ptr, ptr, ptr, i32 }
; A tuple of Python: head and length, then items.
%Tuple = type { i64, ptr, i64, [0 x ptr] }
; An address that changes from round to round: see @burnish_repeat.
%Pointer = type { ptr, ptr, ptr, ptr, i64, i64, i64 }
"""

_RUN = """
; Enters the addresses of inputs and outputs (io) into the argument arrays, then calls the kernels in order. If
; rt->profile is not null, it receives one struct timespec before every call and one after the last.
define void @burnish_run(ptr %plan, ptr %io, ptr %rt) nounwind {
entry:
  fields %Plan %plan: ptr calls, i64 count, ptr patches, i64 n, ptr clock
  %profile.at = getelementptr %Runtime, ptr %rt, i64 0, i32 5
  %profile = load ptr, ptr %profile.at
  %profiling = icmp ne ptr %profile, null
  br label %patch
patch:
  %p = phi i64 [ 0, %entry ], [ %p.next, %enter ]
  %patching = icmp slt i64 %p, %n
  br i1 %patching, label %enter, label %call
enter:
  %place = getelementptr %Patch, ptr %patches, i64 %p
  fields %Patch %place: ptr where, i64 index, i64 offset
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
  %this = getelementptr %Call, ptr %calls, i64 %c
  fields %Call %this: ptr function, ptr args
  call void %function(ptr %args, ptr %rt)
  %c.next = add i64 %c, 1
  br label %call
exit:
  ret void
}
"""

_QUICK = """
; Calls a segment on arrays, given as two tuples, which are read and written. 0 if that is done; 1, and nothing ran, if
; an array is not as %Quick says, or a result shares memory with another array where it may not.
define i64 @burnish_quick(ptr %given, ptr %results, ptr %quick) nounwind {
entry:
  fields %Quick %quick: ptr plan, ptr io, ptr rt, ptr kind, i64 reads, i64 n, ptr specs, ptr data, i64 sizes, i64 apart
  %arrays = add i64 %reads, %n
  br label %array
array:
  %a = phi i64 [ 0, %entry ], [ %a.next, %enter ]
  %more = icmp slt i64 %a, %arrays
  br i1 %more, label %look, label %size
look:
  %is.read = icmp slt i64 %a, %reads
  %tuple = select i1 %is.read, ptr %given, ptr %results
  %number.written = sub i64 %a, %reads
  %number = select i1 %is.read, i64 %a, i64 %number.written
  %item.at = getelementptr %Tuple, ptr %tuple, i64 0, i32 3, i64 %number
  %item = load ptr, ptr %item.at
  %own.type.at = getelementptr %Array, ptr %item, i64 0, i32 1
  %own.type = load ptr, ptr %own.type.at
  %same.type = icmp eq ptr %own.type, %kind
  br i1 %same.type, label %described, label %other
described:
  %spec = getelementptr %Argument, ptr %specs, i64 %a
  fields %Argument %spec: ptr dtype, ptr extents, i64 rank, i64 bytes, i64 flags
  %own.rank.at = getelementptr %Array, ptr %item, i64 0, i32 3
  %own.rank.short = load i32, ptr %own.rank.at
  %own.rank = sext i32 %own.rank.short to i64
  %same.rank = icmp eq i64 %own.rank, %rank
  %own.dtype.at = getelementptr %Array, ptr %item, i64 0, i32 7
  %own.dtype = load ptr, ptr %own.dtype.at
  %same.dtype = icmp eq ptr %own.dtype, %dtype
  %own.flags.at = getelementptr %Array, ptr %item, i64 0, i32 8
  %own.flags.short = load i32, ptr %own.flags.at
  %own.flags = zext i32 %own.flags.short to i64
  %flags.set = and i64 %own.flags, %flags
  %same.flags = icmp eq i64 %flags.set, %flags
  %same.both = and i1 %same.rank, %same.dtype
  %same = and i1 %same.both, %same.flags
  br i1 %same, label %shaped, label %other
shaped:
  %own.extents.at = getelementptr %Array, ptr %item, i64 0, i32 4
  %own.extents = load ptr, ptr %own.extents.at
  br label %axis
axis:
  %d = phi i64 [ 0, %shaped ], [ %d.next, %extent ]
  %more.axes = icmp slt i64 %d, %rank
  br i1 %more.axes, label %extent, label %enter
extent:
  %extent.at = getelementptr i64, ptr %extents, i64 %d
  %wanted = load i64, ptr %extent.at
  %own.extent.at = getelementptr i64, ptr %own.extents, i64 %d
  %found = load i64, ptr %own.extent.at
  %d.next = add i64 %d, 1
  %same.extent = icmp eq i64 %found, %wanted
  br i1 %same.extent, label %axis, label %other
enter:
  %elements.at = getelementptr %Array, ptr %item, i64 0, i32 2
  %elements = load ptr, ptr %elements.at
  %a.next = add i64 %a, 1
  %place = getelementptr ptr, ptr %io, i64 %a.next
  store ptr %elements, ptr %place
  br label %array
size:
  %s = phi i64 [ 0, %array ], [ %s.next, %value ]
  %more.sizes = icmp slt i64 %s, %sizes
  br i1 %more.sizes, label %value, label %compare
value:
  %value.at = getelementptr i64, ptr %data, i64 %s
  %own.value = load i64, ptr %value.at
  %s.next = add i64 %s, 1
  %behind = add i64 %s.next, %arrays
  %size.at = getelementptr i64, ptr %io, i64 %behind
  store i64 %own.value, ptr %size.at
  br label %size
compare: ; of each result with all arrays before it
  %comparing = icmp ne i64 %apart, 0
  br i1 %comparing, label %result, label %run
result:
  %r = phi i64 [ %reads, %compare ], [ %r.next, %compared ]
  %more.results = icmp slt i64 %r, %arrays
  br i1 %more.results, label %ranged, label %run
ranged:
  %r.next = add i64 %r, 1
  %r.at = getelementptr i64, ptr %io, i64 %r.next
  %r.begin = load i64, ptr %r.at
  %r.bytes.at = getelementptr %Argument, ptr %specs, i64 %r, i32 3
  %r.bytes = load i64, ptr %r.bytes.at
  %r.end = add i64 %r.begin, %r.bytes
  br label %pair
pair:
  %o = phi i64 [ 0, %ranged ], [ %o.next, %paired ]
  %more.others = icmp slt i64 %o, %r
  br i1 %more.others, label %paired, label %compared
paired:
  %o.next = add i64 %o, 1
  %o.at = getelementptr i64, ptr %io, i64 %o.next
  %o.begin = load i64, ptr %o.at
  %o.bytes.at = getelementptr %Argument, ptr %specs, i64 %o, i32 3
  %o.bytes = load i64, ptr %o.bytes.at
  %o.end = add i64 %o.begin, %o.bytes
  %begins = icmp ult i64 %r.begin, %o.end
  %ends = icmp ult i64 %o.begin, %r.end
  %shared = and i1 %begins, %ends
  br i1 %shared, label %other, label %pair
compared:
  br label %result
run:
  call void @burnish_run(ptr %plan, ptr %io, ptr %rt)
  ret i64 0
other:
  ret i64 1
}
"""

_COPY = """
; Body of a region that copies bytes: the target, the source, the number of bytes, and how many an iteration copies.
define void @burnish_copy_range(ptr %args, i64 %begin, i64 %end, i64 %thread) nounwind {
entry:
  %own = alloca [3 x i64]
  fields %args: ptr target, ptr source, i64 count, i64 grain
  %first = mul i64 %begin, %grain
  %last = mul i64 %end, %grain
  %inside = icmp slt i64 %last, %count
  %stop = select i1 %inside, i64 %last, i64 %count
  %nbytes = sub i64 %stop, %first
  %to = getelementptr i8, ptr %target, i64 %first
  store ptr %to, ptr %own
  %from = getelementptr i8, ptr %source, i64 %first
  %own.source = getelementptr i64, ptr %own, i64 1
  store ptr %from, ptr %own.source
  %own.count = getelementptr i64, ptr %own, i64 2
  store i64 %nbytes, ptr %own.count
  call void @burnish_copy(ptr %own, ptr null)
  ret void
}

; Copies bytes: its arguments are the target, the source and, in place of an address, their number.
define void @burnish_copy(ptr %args, ptr %rt) nounwind {
entry:
  fields %args: ptr target, ptr source, i64 count
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

_COUNT = """
; Makes an int64 the value of a dimension. Its arguments are where that is and, in place of addresses, its bound, how
; many places the value goes to, and where their addresses are.
define void @burnish_count(ptr %args, ptr %rt) nounwind {
entry:
  %source = load ptr, ptr %args
  %given = load i64, ptr %source
  fields %args + 1: i64 bound, i64 count, ptr places
  %beyond = icmp sgt i64 %given, %bound
  %most = select i1 %beyond, i64 %bound, i64 %given
  %below = icmp slt i64 %most, 0
  %value = select i1 %below, i64 0, i64 %most
  br label %place
place:
  %p = phi i64 [ 0, %entry ], [ %p.next, %enter ]
  %more = icmp slt i64 %p, %count
  br i1 %more, label %enter, label %exit
enter:
  %where.at = getelementptr ptr, ptr %places, i64 %p
  %where = load ptr, ptr %where.at
  store i64 %value, ptr %where
  %p.next = add i64 %p, 1
  br label %place
exit:
  ret void
}
"""

_FLOW = """
; As @burnish_copy, but behind the target by as many times its bytes as the number says whose address is third; the
; fourth argument is the number of bytes.
define void @burnish_place(ptr %args, ptr %rt) nounwind {
entry:
  %own = alloca [3 x i64]
  fields %args: ptr target, ptr source
  %round.at = getelementptr ptr, ptr %args, i64 2
  %where = load ptr, ptr %round.at
  %round = load i64, ptr %where
  %count.at = getelementptr i64, ptr %args, i64 3
  %count = load i64, ptr %count.at
  %behind = mul i64 %round, %count
  %place = getelementptr i8, ptr %target, i64 %behind
  store ptr %place, ptr %own
  %own.source = getelementptr i64, ptr %own, i64 1
  store ptr %source, ptr %own.source
  %own.count = getelementptr i64, ptr %own, i64 2
  store i64 %count, ptr %own.count
  call void @burnish_copy(ptr %own, ptr %rt)
  ret void
}

; Makes calls in order: their array and their number.
define internal void @burnish_calls(ptr %calls, i64 %count, ptr %rt) nounwind {
entry:
  br label %call
call:
  %c = phi i64 [ 0, %entry ], [ %c.next, %kernel ]
  %calling = icmp slt i64 %c, %count
  br i1 %calling, label %kernel, label %exit
kernel:
  %this = getelementptr %Call, ptr %calls, i64 %c
  fields %Call %this: ptr function, ptr own
  call void %function(ptr %own, ptr %rt)
  %c.next = add i64 %c, 1
  br label %call
exit:
  ret void
}

; One of two lists of calls: its arguments are the address of a byte, the calls and their number where that is not 0,
; and those where it is.
define void @burnish_branch(ptr %args, ptr %rt) nounwind {
entry:
  %condition = load ptr, ptr %args
  %value = load i8, ptr %condition
  %taken = icmp ne i8 %value, 0
  %at = select i1 %taken, i64 1, i64 3
  %calls.at = getelementptr i64, ptr %args, i64 %at
  fields %calls.at: ptr calls, i64 count
  call void @burnish_calls(ptr %calls, i64 %count, ptr %rt)
  ret void
}

; Calls again and again: its arguments are the addresses of the most rounds, of a byte that is not 0 as long as it goes
; on, and of the number of the round; then the calls before the first round and their number, and those of each round.
define void @burnish_while(ptr %args, ptr %rt) nounwind {
entry:
  fields %args: ptr limit.at, ptr condition, ptr round, ptr before, i64 before.count, ptr body, i64 body.count
  %limit = load i64, ptr %limit.at
  call void @burnish_calls(ptr %before, i64 %before.count, ptr %rt)
  br label %test
test:
  %t = phi i64 [ 0, %entry ], [ %t.next, %run ]
  %more = icmp slt i64 %t, %limit
  %value = load i8, ptr %condition
  %true = icmp ne i8 %value, 0
  %going = and i1 %more, %true
  br i1 %going, label %run, label %exit
run:
  store i64 %t, ptr %round
  call void @burnish_calls(ptr %body, i64 %body.count, ptr %rt)
  %t.next = add i64 %t, 1
  br label %test
exit:
  ret void
}
"""

_REPEAT = """
; Makes calls in rounds. Its arguments are the number of rounds, that of the first calls that only round 0 makes, all
; calls, where those of even rounds end, those of odd ones begin and end, and the number of pointers; then of each
; pointer: where its address goes, those that it comes from (before the first round, at an even number of rounds from
; the last, at an odd one), bytes a round, and two flags: one round behind, backwards.
define void @burnish_repeat(ptr %args, ptr %rt) nounwind {
entry:
  fields %args: i64 rounds, i64 once, ptr calls, i64 even.end, i64 odd.begin, i64 odd.end, i64 moves
  %moving = getelementptr i64, ptr %args, i64 7
  br label %round
round:
  %t = phi i64 [ 0, %entry ], [ %t.next, %begin ]
  %more = icmp slt i64 %t, %rounds
  br i1 %more, label %pointer, label %exit
pointer:
  %m = phi i64 [ 0, %round ], [ %m.next, %move ]
  %pointing = icmp slt i64 %m, %moves
  br i1 %pointing, label %move, label %begin
move:
  %p = getelementptr %Pointer, ptr %moving, i64 %m
  fields %Pointer %p: ptr where, ptr first, ptr even, ptr odd, i64 stride, i64 behind, i64 backwards
  %at = sub i64 %t, %behind
  %after = add i64 %at, 1
  %left = sub i64 %rounds, %after
  %parity = and i64 %left, 1
  %is.odd = icmp ne i64 %parity, 0
  %base = select i1 %is.odd, ptr %odd, ptr %even
  %reverse = icmp ne i64 %backwards, 0
  %place = select i1 %reverse, i64 %left, i64 %at
  %offset = mul i64 %place, %stride
  %there = getelementptr i8, ptr %base, i64 %offset
  %is.first = icmp slt i64 %at, 0
  %address = select i1 %is.first, ptr %first, ptr %there
  store ptr %address, ptr %where
  %m.next = add i64 %m, 1
  br label %pointer
begin:
  %initial = icmp eq i64 %t, 0
  %even.begin = select i1 %initial, i64 0, i64 %once
  %turn = and i64 %t, 1
  %is.even = icmp eq i64 %turn, 0
  %c.first = select i1 %is.even, i64 %even.begin, i64 %odd.begin
  %c.end = select i1 %is.even, i64 %even.end, i64 %odd.end
  %c.calls = getelementptr %Call, ptr %calls, i64 %c.first
  %c.count = sub i64 %c.end, %c.first
  call void @burnish_calls(ptr %c.calls, i64 %c.count, ptr %rt)
  %t.next = add i64 %t, 1
  br label %round
exit:
  ret void
}
"""


_FIELDS = re.compile(r"  fields (%\w+ )?%([\w.]+)(?: \+ (\d+))?: (.+)\n")


def _loads(found: re.Match[str]) -> str:
    """Loads of successive fields: of a structure, or of an array of pointers and numbers of eight bytes."""
    struct, base, first, fields = found.groups()
    text = ""
    for index, (kind, name) in enumerate((field.split() for field in fields.split(", ")), int(first or 0)):
        place = f"{struct}, ptr %{base}, i64 0, i32 {index}" if struct else f"i64, ptr %{base}, i64 {index}"
        at = f"{name}.at" if index else base
        text += f"  %{at} = getelementptr {place}\n" if index else ""
        text += f"  %{name} = load {kind}, ptr %{at}\n"
    return text


def system_of(triple: str) -> System:
    """Linux on the machine of ``triple``. Raises TargetError for machines without a driver."""
    systems = {machine.architectures[0]: machine.system for machine in MACHINES}
    system = systems.get(triple.partition("-")[0])
    if system is None:
        known = ", ".join(name for name, own in systems.items() if own)
        raise TargetError(f"runtime: no driver for {triple!r}, allowed: {known}")
    return system


def driver_ir(triple: str) -> tuple[str, str]:
    """The driver as LLVM IR for the machine of ``triple``, any CPU of it, and the features that it is compiled with.
    Raises TargetError for other machines.
    """
    system = system_of(triple)
    pause = system.pause.partition("(")[0]
    parameters = "(i32)" if "i32" in system.pause else "()"
    text = f'target triple = "{triple}"\ndeclare void @{pause}{parameters}\n'
    text += with_fields(_TYPES + _RUN + _QUICK + _COPY + _COUNT + _FLOW + _REPEAT + concurrent_ir(CHUNKS))
    return text + pool_ir(system.calls, system.pause), system.features


def with_fields(text: str) -> str:
    """LLVM IR in which each line ``fields`` has become loads."""
    return _FIELDS.sub(_loads, text)


def driver_object(triple: str, text: str, features: str) -> bytes:
    """The object file of LLVM IR for the machine of ``triple``, any CPU of it."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    chosen = llvm.Target.from_triple(triple)
    compiler = chosen.create_target_machine(features=features, opt=2, reloc="pic", codemodel="small")
    return bytes(compiler.emit_object(module))


@cache
def driver_image(triple: str) -> Image:
    """The linked driver for the machine of ``triple``, any CPU of it. Raises TargetError for other machines."""
    return link({"burnish driver": driver_object(triple, *driver_ir(triple))})

"""Timing loop in native code: no Python runs between two calls of a kernel, nor between kernel and clock."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np

from burnish.codegen.objects import compile_ir
from burnish.errors import TargetError
from burnish.machines.target import Target
from burnish.runtime.buffers import address_of
from burnish.runtime.image import Image, LoadedImage
from burnish.runtime.link import link

_LINE = 64  # bytes of a cache line
_libc = ctypes.CDLL(None)

# CLOCK_MONOTONIC is 1. Cold runs are timed one by one: between them, the lines of `ranges` leave all caches. That takes
# 0.5 ms for 9 MB, and the times are within 5 % of those of runs that each read another of 18 copies.
_HOT = """
define i64 @now(ptr %clock) nounwind {
  %time = alloca { i64, i64 }
  %failed = call i32 %clock(i32 1, ptr %time)
  %s.at = getelementptr { i64, i64 }, ptr %time, i64 0, i32 0
  %n.at = getelementptr { i64, i64 }, ptr %time, i64 0, i32 1
  %s = load i64, ptr %s.at
  %n = load i64, ptr %n.at
  %ns = mul i64 %s, 1000000000
  %sum = add i64 %ns, %n
  ret i64 %sum
}

; Nanoseconds that `runs` calls take together.
define i64 @burnish_time_hot(ptr %kernel, ptr %args, ptr %rt, i64 %runs, ptr %clock) nounwind {
entry:
  %begin = call i64 @now(ptr %clock)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %kernel(ptr %args, ptr %rt)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %runs
  br i1 %more, label %loop, label %exit
exit:
  %end = call i64 @now(ptr %clock)
  %took = sub i64 %end, %begin
  ret i64 %took
}
"""

_COLD = """
%Range = type {{ ptr, i64 }}
declare void @{flush}(ptr)
declare void @{fence}()

define void @flush(ptr %ranges, i64 %count) nounwind {{
entry:
  br label %range
range:
  %r = phi i64 [ 0, %entry ], [ %r.next, %done ]
  %any = icmp slt i64 %r, %count
  br i1 %any, label %begin, label %exit
begin:
  %base.at = getelementptr %Range, ptr %ranges, i64 %r, i32 0
  %base = load ptr, ptr %base.at
  %size.at = getelementptr %Range, ptr %ranges, i64 %r, i32 1
  %size = load i64, ptr %size.at
  br label %line
line:
  %offset = phi i64 [ 0, %begin ], [ %offset.next, %one ]
  %inside = icmp slt i64 %offset, %size
  br i1 %inside, label %one, label %done
one:
  %address = getelementptr i8, ptr %base, i64 %offset
  call void @{flush}(ptr %address)
  %offset.next = add i64 %offset, {line}
  br label %line
done:
  %r.next = add i64 %r, 1
  br label %range
exit:
  call void @{fence}()
  ret void
}}

define i64 @burnish_time_cold(
  ptr %kernel, ptr %args, ptr %rt, i64 %runs, ptr %clock, ptr %ranges, i64 %count
) nounwind {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %total = phi i64 [ 0, %entry ], [ %sum, %loop ]
  call void @flush(ptr %ranges, i64 %count)
  %begin = call i64 @now(ptr %clock)
  call void %kernel(ptr %args, ptr %rt)
  %end = call i64 @now(ptr %clock)
  %took = sub i64 %end, %begin
  %sum = add i64 %total, %took
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %runs
  br i1 %more, label %loop, label %exit
exit:
  ret i64 %sum
}}
"""


@cache
def image(target: Target) -> Image:
    """The linked timing loops for a machine; the cold one where an instruction can flush its caches."""
    text = _HOT
    if target.machine.flush:
        flush, fence = target.machine.flush(target.features)
        text += _COLD.format(flush=flush, fence=fence, line=_LINE)
    return link({"burnish stopwatch": compile_ir(text, target)})


def can_flush(target: Target) -> bool:
    """Whether constants can be made to leave the caches of a machine."""
    return target.machine.flush is not None


class Timer:
    """Times calls ``kernel(args, runtime)`` by address."""

    def __init__(self, target: Target) -> None:
        self._code = LoadedImage(image(target))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        hot = ctypes.CFUNCTYPE(integer, pointer, pointer, pointer, integer, pointer)
        cold = ctypes.CFUNCTYPE(integer, pointer, pointer, pointer, integer, pointer, pointer, integer)
        self._hot = hot(self._code.address("burnish_time_hot"))
        self._cold = cold(self._code.address("burnish_time_cold")) if can_flush(target) else None
        self._clock = ctypes.cast(_libc.clock_gettime, pointer).value

    def seconds(
        self, kernel: int, args: int, runtime: int, runs: int, flushed: Sequence[tuple[int, int]] | None = None
    ) -> float:
        """Seconds that ``runs`` calls take together.

        ``flushed``: (address, bytes) of memory that leaves all caches before every call, which is then timed alone.
        """
        if flushed is None:
            return self._hot(kernel, args, runtime, runs, self._clock) * 1e-9
        if self._cold is None:
            raise TargetError("tuning: cold runs can be timed on x86-64 only")
        ranges = np.array(flushed, np.uint64).reshape(-1, 2)
        return self._cold(kernel, args, runtime, runs, self._clock, address_of(ranges), len(ranges)) * 1e-9

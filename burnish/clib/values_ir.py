"""Inputs, outputs, sizes and states of a C library's contexts as LLVM IR: set, asked for and copied by number."""

from __future__ import annotations

VALUES = """
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

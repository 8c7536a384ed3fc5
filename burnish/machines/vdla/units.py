"""The units of the accelerator as numba functions: what an instruction does to memories, and whether it may.

Besides its data every entry of a memory keeps who wrote it last and who has read it since, by number of instruction of
a unit, and every unit what it knows of the others: tokens carry that. So a read of what was never written, and any two
accesses of different units that no token orders, are found whatever the times happen to be.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from burnish.jit import njit

OK, DEADLOCK, UNWRITTEN, OUT_OF_RANGE, OUT_OF_DRAM, READ_RACE, WRITE_RACE = range(7)
UOP, WGT, INP, ACC, ACC8 = range(5)  # codes of memories
# Columns of a decoded instruction: kind, unit, the four flags, then the fields of its format in order.
KIND, UNIT, POP_PREV, POP_NEXT, PUSH_PREV, PUSH_NEXT, FIRST = range(7)


class State(NamedTuple):
    """Memories, DRAM and the bookkeeping of who touched what. Shapes by entry: uop [3], wgt [B, B], inp, acc [B].

    ``writer`` [memory, entry, 2]: unit (-1: none) and number of its instruction; ``reader`` [memory, entry, unit];
    ``known`` [unit, unit]: the last instruction of another unit that is known to have ended. ``entries`` by memory.
    ``fault``: the memory and the entry of the access that was refused.
    """

    uop: np.ndarray
    wgt: np.ndarray
    inp: np.ndarray
    acc: np.ndarray
    dram: np.ndarray
    writer: np.ndarray
    reader: np.ndarray
    known: np.ndarray
    entries: np.ndarray
    uop_bits: np.ndarray
    fault: np.ndarray


@njit(cache=True)
def reads(s: State, memory: int, entry: int, unit: int, number: int) -> int:
    """Notes that an instruction reads an entry; a fault if it may not."""
    if entry < 0 or entry >= s.entries[memory]:
        s.fault[0], s.fault[1] = memory, entry
        return OUT_OF_RANGE
    by = s.writer[memory, entry, 0]
    if by < 0:
        s.fault[0], s.fault[1] = memory, entry
        return UNWRITTEN
    if by != unit and s.known[unit, by] < s.writer[memory, entry, 1]:
        s.fault[0], s.fault[1] = memory, entry
        return READ_RACE
    s.reader[memory, entry, unit] = number
    return OK


@njit(cache=True)
def writes(s: State, memory: int, entry: int, unit: int, number: int) -> int:
    """Notes that an instruction writes an entry; a fault if it may not."""
    if entry < 0 or entry >= s.entries[memory]:
        s.fault[0], s.fault[1] = memory, entry
        return OUT_OF_RANGE
    by = s.writer[memory, entry, 0]
    late = by >= 0 and by != unit and s.known[unit, by] < s.writer[memory, entry, 1]
    for other in range(3):
        late |= other != unit and s.known[unit, other] < s.reader[memory, entry, other]
    if late:
        s.fault[0], s.fault[1] = memory, entry
        return WRITE_RACE
    s.writer[memory, entry, 0] = unit
    s.writer[memory, entry, 1] = number
    return OK


@njit(cache=True)
def fill(s: State, memory: int, entry: int, at: int) -> None:
    """Copies an entry from DRAM at byte ``at``; zeros where that is negative."""
    block = s.inp.shape[1]
    if memory == INP:
        for i in range(block):
            s.inp[entry, i] = np.int8(s.dram[at + i]) if at >= 0 else np.int8(0)
    elif memory == WGT:
        for i in range(block):
            for k in range(block):
                s.wgt[entry, i, k] = np.int8(s.dram[at + i * block + k]) if at >= 0 else np.int8(0)
    elif memory == ACC8:
        for i in range(block):
            s.acc[entry, i] = np.int32(np.int8(s.dram[at + i])) if at >= 0 else np.int32(0)
    else:
        for i in range(block if memory == ACC else 1):
            word = np.uint32(0)
            if at >= 0:
                for byte in range(4):
                    word |= np.uint32(s.dram[at + 4 * i + byte]) << np.uint32(8 * byte)
            if memory == ACC:
                s.acc[entry, i] = np.int32(word)
            else:
                first, second = s.uop_bits[0], s.uop_bits[0] + s.uop_bits[1]
                value = np.int64(word)
                s.uop[entry, 0] = value & ((1 << first) - 1)
                s.uop[entry, 1] = (value >> first) & ((1 << s.uop_bits[1]) - 1)
                s.uop[entry, 2] = value >> second


@njit(cache=True)
def load(s: State, row: np.ndarray, number: int, entry_bytes: np.ndarray) -> int:
    """A block of rows from DRAM, with zeros around it."""
    memory, sram, dram, rows, columns, stride, top, bottom, left, right = row[FIRST : FIRST + 10]
    where, size = (ACC if memory == ACC8 else memory), entry_bytes[memory]
    entry = sram
    for y in range(-top, rows + bottom):
        for x in range(-left, columns + right):
            fault = writes(s, where, entry, row[UNIT], number)
            if fault:
                return fault
            at = dram + (y * stride + x) * size
            inside = 0 <= y < rows and 0 <= x < columns
            if inside and (at < 0 or at + size > s.dram.shape[0]):
                s.fault[0], s.fault[1] = memory, at
                return OUT_OF_DRAM
            fill(s, memory, entry, at if inside else -1)
            entry += 1
    return OK


@njit(cache=True)
def store(s: State, row: np.ndarray, number: int, entry_bytes: np.ndarray) -> int:
    """A block of rows of accumulators to DRAM, or of the low byte of each number."""
    memory, sram, dram, rows, columns, stride = row[FIRST : FIRST + 6]
    size, block = entry_bytes[memory], s.inp.shape[1]
    for y in range(rows):
        for x in range(columns):
            entry = sram + y * columns + x
            fault = reads(s, ACC, entry, row[UNIT], number)
            if fault:
                return fault
            at = dram + (y * stride + x) * size
            if at < 0 or at + size > s.dram.shape[0]:
                s.fault[0], s.fault[1] = memory, at
                return OUT_OF_DRAM
            for i in range(block):
                word = np.uint32(s.acc[entry, i])
                for byte in range(size // block):
                    s.dram[at + i * (size // block) + byte] = np.uint8((word >> np.uint32(8 * byte)) & np.uint32(255))
    return OK


@njit(cache=True)
def multiply16(acc: np.ndarray, w: np.ndarray, x: np.ndarray) -> None:
    """``acc[i] += sum over k of w[i, k] * x[k]`` of 16 x 16, whose loops are of known lengths."""
    for i in range(16):
        total = np.int32(0)
        for k in range(16):
            total += np.int32(w[i, k]) * np.int32(x[k])
        acc[i] += total


@njit(cache=True)
def multiply(acc: np.ndarray, w: np.ndarray, x: np.ndarray) -> None:
    """As :func:`multiply16`, of any size."""
    for i in range(w.shape[0]):
        total = np.int32(0)
        for k in range(w.shape[1]):
            total += np.int32(w[i, k]) * np.int32(x[k])
        acc[i] += total


@njit(cache=True)
def gemm(s: State, row: np.ndarray, number: int) -> int:
    """Products of weights and inputs added to accumulators, or these set to 0, for each micro-operation and position.

    Micro-operations are taken one after the other, each for all positions: sums of integers have no order.
    """
    reset, begin, end, outer, inner, dst_o, dst_i, src_o, src_i, wgt_o, wgt_i = row[FIRST : FIRST + 11]
    unit, block = row[UNIT], s.inp.shape[1]
    for u in range(begin, end):
        fault = reads(s, UOP, u, unit, number)
        if fault:
            return fault
        for y in range(outer):
            for x in range(inner):
                dst = s.uop[u, 0] + y * dst_o + x * dst_i
                if reset:
                    fault = writes(s, ACC, dst, unit, number)
                    if fault:
                        return fault
                    s.acc[dst] = 0
                    continue
                src, wgt = s.uop[u, 1] + y * src_o + x * src_i, s.uop[u, 2] + y * wgt_o + x * wgt_i
                fault = reads(s, INP, src, unit, number)
                if not fault:
                    fault = reads(s, WGT, wgt, unit, number)
                if not fault:
                    fault = reads(s, ACC, dst, unit, number)
                if not fault:
                    fault = writes(s, ACC, dst, unit, number)
                if fault:
                    return fault
                if block == 16:
                    multiply16(s.acc[dst], s.wgt[wgt], s.inp[src])
                else:
                    multiply(s.acc[dst], s.wgt[wgt], s.inp[src])
    return OK


OPERATIONS = ("min", "max", "+", "shr", "*", "-", "bitand", "bitor", "bitxor")
"""What an ALU can be made of, as operators and functions of ``loops.expr``; :func:`combine` counts them."""


@njit(cache=True)
def combine(op: int, a: int, b: int) -> int:
    """Operation number ``op`` of OPERATIONS on 32-bit numbers; results wrap."""
    if op == 0:
        return min(a, b)
    if op == 1:
        return max(a, b)
    if op == 2:
        return a + b
    if op == 3:
        return 0 if b < 0 and a >= 0 else -1 if b < 0 else a >> min(b, 31)
    if op == 4:
        return a * b
    if op == 5:
        return a - b
    return a & b if op == 6 else a | b if op == 7 else a ^ b


@njit(cache=True)
def alu(s: State, row: np.ndarray, number: int) -> int:
    """``dst = dst op src``, or a number in place of ``src``, on vectors of accumulators."""
    op, immediate, value, begin, end, outer, inner, dst_o, dst_i, src_o, src_i = row[FIRST : FIRST + 11]
    unit = row[UNIT]
    for u in range(begin, end):
        fault = reads(s, UOP, u, unit, number)
        if fault:
            return fault
        for y in range(outer):
            for x in range(inner):
                dst = s.uop[u, 0] + y * dst_o + x * dst_i
                src = s.uop[u, 1] + y * src_o + x * src_i
                fault = reads(s, ACC, dst, unit, number)
                if not fault and not immediate:
                    fault = reads(s, ACC, src, unit, number)
                if not fault:
                    fault = writes(s, ACC, dst, unit, number)
                if fault:
                    return fault
                for i in range(s.acc.shape[1]):
                    other = value if immediate else np.int64(s.acc[src, i])
                    s.acc[dst, i] = np.int32(combine(op, np.int64(s.acc[dst, i]), other))
    return OK

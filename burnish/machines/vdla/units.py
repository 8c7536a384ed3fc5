"""The units of the accelerator as numba functions: what an instruction does to memories, and whether it may.

Besides its data every entry of a memory keeps who wrote it last and who has read it since, by number of instruction of
a unit, and every unit what it knows of the others: tokens carry that. So a read of what was never written, and any two
accesses of different units that no token orders, are found whatever the times happen to be.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from burnish.base.jit import njit
from burnish.machines.vdla.vectors import LANES, multiply16

OK, DEADLOCK, UNWRITTEN, OUT_OF_RANGE, OUT_OF_DRAM, READ_RACE, WRITE_RACE = range(7)
UOP, WGT, INP, ACC, ACC8 = range(5)  # codes of memories
# Columns of a decoded instruction: kind, unit, the four flags, then the fields of its format in order.
KIND, UNIT, POP_PREV, POP_NEXT, PUSH_PREV, PUSH_NEXT, FIRST = range(7)


class UnitState(NamedTuple):
    """Memories, DRAM and the bookkeeping of who touched what. By entry: uop [3], inp, acc [B], wgt
    [B, B], transposed.

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
def _fault(s: UnitState, memory: int, entry: int, kind: int) -> int:
    s.fault[0], s.fault[1] = memory, entry
    return kind


@njit(cache=True)
def reads(s: UnitState, memory: int, entry: int, unit: int, number: int) -> int:
    """Notes that an instruction reads an entry; a fault if it may not."""
    if entry < 0 or entry >= s.entries[memory]:
        return _fault(s, memory, entry, OUT_OF_RANGE)
    by = s.writer[memory, entry, 0]
    if by < 0:
        return _fault(s, memory, entry, UNWRITTEN)
    if by != unit and s.known[unit, by] < s.writer[memory, entry, 1]:
        return _fault(s, memory, entry, READ_RACE)
    s.reader[memory, entry, unit] = number
    return OK


@njit(cache=True)
def writes(s: UnitState, memory: int, entry: int, unit: int, number: int) -> int:
    """Notes that an instruction writes an entry; a fault if it may not."""
    if entry < 0 or entry >= s.entries[memory]:
        return _fault(s, memory, entry, OUT_OF_RANGE)
    by = s.writer[memory, entry, 0]
    late = by >= 0 and by != unit and s.known[unit, by] < s.writer[memory, entry, 1]
    for other in range(3):
        late |= other != unit and s.known[unit, other] < s.reader[memory, entry, other]
    if late:
        return _fault(s, memory, entry, WRITE_RACE)
    s.writer[memory, entry, 0] = unit
    s.writer[memory, entry, 1] = number
    return OK


@njit(cache=True)
def fill(s: UnitState, memory: int, entry: int, at: int) -> None:
    """Copies an entry from DRAM at byte ``at``; zeros where that is negative."""
    block = s.inp.shape[1]
    if memory == INP:
        for i in range(block):
            s.inp[entry, i] = np.int8(s.dram[at + i]) if at >= 0 else np.int8(0)
    elif memory == WGT:
        for i in range(block):
            for k in range(block):
                s.wgt[entry, k, i] = np.int8(s.dram[at + i * block + k]) if at >= 0 else np.int8(0)
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
def load(s: UnitState, row: np.ndarray, number: int, entry_bytes: np.ndarray) -> int:
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
def store(s: UnitState, row: np.ndarray, number: int, entry_bytes: np.ndarray) -> int:
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
def multiply(acc: np.ndarray, wgt: np.ndarray, inp: np.ndarray, d: int, w: int, x: int) -> None:
    """``acc[d, i] += sum over k of wgt[w, k, i] * inp[x, k]``."""
    for i in range(inp.shape[1]):
        total = np.int64(acc[d, i])
        for k in range(inp.shape[1]):
            total += np.int64(wgt[w, k, i]) * np.int64(inp[x, k])
        acc[d, i] = np.int32(total)


@njit(cache=True)
def gemm(s: UnitState, row: np.ndarray, number: int) -> int:
    """Products of weights and inputs added to accumulators, or these set to 0, for each micro-operation and position.

    Micro-operations are taken one after the other, each for all positions: sums of integers have no order.
    """
    reset, begin, end, outer, inner = row[FIRST], row[FIRST + 1], row[FIRST + 2], row[FIRST + 3], row[FIRST + 4]
    steps = row[FIRST + 5 : FIRST + 11]
    acc, wgt, inp, uop = s.acc, s.wgt, s.inp, s.uop
    for u in range(begin, end):
        fault = reads(s, UOP, u, row[UNIT], number)
        if not fault:
            fault = positions(s, ACC, uop[u, 0], outer, inner, steps[0], steps[1], row[UNIT], number, not reset, True)
        if not fault and not reset:
            fault = positions(s, INP, uop[u, 1], outer, inner, steps[2], steps[3], row[UNIT], number, True, False)
        if not fault and not reset:
            fault = positions(s, WGT, uop[u, 2], outer, inner, steps[4], steps[5], row[UNIT], number, True, False)
        if fault:
            return fault
        for y in range(outer):
            for x in range(inner):
                dst = uop[u, 0] + y * steps[0] + x * steps[1]
                if reset:
                    acc[dst] = 0
                    continue
                src, w = uop[u, 1] + y * steps[2] + x * steps[3], uop[u, 2] + y * steps[4] + x * steps[5]
                if inp.shape[1] == LANES:
                    multiply16(acc, wgt, inp, dst, w, src)
                else:
                    multiply(acc, wgt, inp, dst, w, src)
    return OK


@njit(cache=True)
def positions(
    s: UnitState,
    memory: int,
    first: int,
    outer: int,
    inner: int,
    step_outer: int,
    step_inner: int,
    unit: int,
    number: int,
    read: bool,
    write: bool,
) -> int:
    """Notes that an instruction reads, writes, or both, all entries of two loops; a fault if it may not."""
    if step_outer == 0:
        outer = min(outer, 1)
    if step_inner == 0:
        inner = min(inner, 1)
    writer, reader, known, entries = s.writer[memory], s.reader[memory], s.known[unit], s.entries[memory]
    for y in range(outer):
        for x in range(inner):
            entry = first + y * step_outer + x * step_inner
            fault = OK
            if entry < 0 or entry >= entries:
                fault = OUT_OF_RANGE
            else:
                by, when = writer[entry, 0], writer[entry, 1]
                late = by >= 0 and by != unit and known[by] < when
                if read:
                    fault = UNWRITTEN if by < 0 else READ_RACE if late else OK
                    reader[entry, unit] = number
                if write:
                    for other in range(3):
                        late |= other != unit and known[other] < reader[entry, other]
                    if late and not fault:
                        fault = WRITE_RACE
                    writer[entry, 0], writer[entry, 1] = unit, number
            if fault:
                return _fault(s, memory, entry, fault)
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
def alu(s: UnitState, row: np.ndarray, number: int) -> int:
    """``dst = dst op src``, or a number in place of ``src``, on vectors of accumulators."""
    op, immediate, value, begin, end = row[FIRST], row[FIRST + 1], row[FIRST + 2], row[FIRST + 3], row[FIRST + 4]
    outer, inner, steps = row[FIRST + 5], row[FIRST + 6], row[FIRST + 7 : FIRST + 11]
    acc, uop = s.acc, s.uop
    for u in range(begin, end):
        fault = reads(s, UOP, u, row[UNIT], number)
        if not fault and not immediate:
            fault = positions(s, ACC, uop[u, 1], outer, inner, steps[2], steps[3], row[UNIT], number, True, False)
        if not fault:
            fault = positions(s, ACC, uop[u, 0], outer, inner, steps[0], steps[1], row[UNIT], number, True, True)
        if fault:
            return fault
        for y in range(outer):
            for x in range(inner):
                dst = uop[u, 0] + y * steps[0] + x * steps[1]
                src = uop[u, 1] + y * steps[2] + x * steps[3]
                for i in range(acc.shape[1]):
                    other = value if immediate else np.int64(acc[src, i])
                    acc[dst, i] = np.int32(combine(op, np.int64(acc[dst, i]), other))
    return OK

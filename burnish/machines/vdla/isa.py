"""Instruction set as data: every format is a list of fields with their bits, from which encoding and decoding follow.

An instruction is 16 bytes, the lowest bits first. All begin with an opcode and four flags: tokens that are taken before
from the unit in front (``pop_prev``) or behind (``pop_next``), and given after (``push_prev``, ``push_next``); units
stand in the order load, compute, store. A micro-operation is a word of three addresses: of an accumulator, of an input
(of the ALU: another accumulator) and of a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from burnish.errors import ScheduleError, TargetError
from burnish.machines.vdla.config import Config

BYTES = 16  # of an instruction
UNITS = ("load", "compute", "store")
FLAGS = ("pop_prev", "pop_next", "push_prev", "push_next")
LOAD, STORE, GEMM, ALU, SYNC = range(5)
KINDS = ("load", "store", "gemm", "alu", "sync")


@dataclass(frozen=True)
class BitField:
    """``bits`` of an instruction; ``signed``: in two's complement."""

    name: str
    bits: int
    signed: bool = False

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.signed else (0, (1 << self.bits) - 1)


@dataclass(frozen=True)
class Instruction:
    """One instruction: its kind, one of KINDS, and the values of its format's fields; those not named are 0."""

    kind: str
    values: Mapping[str, int]

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.values.items() if value]
        return " ".join([self.kind, *words])


@cache
def formats(config: Config) -> Mapping[str, tuple[BitField, ...]]:
    """The fields of each kind of instruction, lowest bits first. Raises TargetError where they need over 128 bits."""
    memories = config.memories
    acc, inp, wgt, uop = (_bits(memories[name].entries) for name in ("acc", "inp", "wgt", "uop"))
    head = (BitField("opcode", 3), *(BitField(name, 1) for name in FLAGS))
    moved = (
        BitField("memory", 3),
        BitField("sram", max(acc, inp, wgt, uop)),
        BitField("dram", 32),
        BitField("rows", 12),
        BitField("columns", 14),
        BitField("stride", 20),
        *(BitField(name, 4) for name in ("top", "bottom", "left", "right")),
    )
    loops = (BitField("uop_begin", uop), BitField("uop_end", uop + 1), BitField("outer", 12), BitField("inner", 12))
    steps = tuple(
        BitField(f"{operand}_{loop}", bits)
        for operand, bits in (("dst", acc), ("src", max(acc, inp)), ("wgt", wgt))
        for loop in ("outer", "inner")
    )
    found = {
        "load": (*head, *moved),
        "store": (*head, *moved),
        "gemm": (*head, BitField("reset", 1), *loops, *steps),
        "alu": (*head, BitField("op", 4), BitField("immediate", 1), BitField("value", 20, True), *loops, *steps[:4]),
        "sync": (*head, BitField("unit", 2)),
    }
    for kind, fields in found.items():
        total = sum(f.bits for f in fields)
        if total > 8 * BYTES:
            raise TargetError(f"accelerator '{config.name}': '{kind}' needs {total} bits, allowed: {8 * BYTES}")
    return found


def _bits(entries: int) -> int:
    """Bits of an address in a memory of ``entries`` entries; at least 1."""
    return max((entries - 1).bit_length(), 1)


def encode(config: Config, instruction: Instruction) -> bytes:
    """The 16 bytes of an instruction. Raises ScheduleError for unknown fields, and values that do not fit."""
    fields = formats(config)[instruction.kind]
    unknown = instruction.values.keys() - {f.name for f in fields}
    if unknown:
        raise ScheduleError(f"'{instruction.kind}' has no field {', '.join(sorted(unknown))}")
    word, at = 0, 0
    values = {**instruction.values, "opcode": KINDS.index(instruction.kind)}
    for f in fields:
        value, (low, high) = values.get(f.name, 0), f.range
        if not low <= value <= high:
            raise ScheduleError(f"'{instruction.kind}': field '{f.name}' is {value}, allowed: {low} to {high}")
        word |= (value & ((1 << f.bits) - 1)) << at
        at += f.bits
    return word.to_bytes(BYTES, "little")


def decode(config: Config, data: bytes) -> Instruction:
    """The instruction of 16 bytes, with all its fields but the opcode. Raises TargetError for an unknown opcode."""
    word = int.from_bytes(data, "little")
    opcode = word & 7
    if opcode >= len(KINDS) or len(data) != BYTES:
        raise TargetError(f"found {data.hex()}, allowed: {BYTES} bytes with an opcode of 0 to {len(KINDS) - 1}")
    values = {}
    for f in formats(config)[KINDS[opcode]]:
        value = word & ((1 << f.bits) - 1)
        values[f.name] = value - (1 << f.bits) if f.signed and value >> (f.bits - 1) else value
        word >>= f.bits
    del values["opcode"]
    return Instruction(KINDS[opcode], values)


def micro_operation(config: Config, dst: int, src: int, wgt: int) -> int:
    """The word of a micro-operation. Raises ScheduleError for an address that does not fit."""
    word, at = 0, 0
    for name, value, bits in zip(("dst", "src", "wgt"), (dst, src, wgt), uop_bits(config), strict=True):
        if not 0 <= value < 1 << bits:
            raise ScheduleError(f"micro-operation: '{name}' is {value}, allowed: 0 to {(1 << bits) - 1}")
        word |= value << at
        at += bits
    return word


@cache
def uop_bits(config: Config) -> tuple[int, int, int]:
    """Bits of the three addresses of a micro-operation. Raises TargetError where they need over 32."""
    memories = config.memories
    acc, inp, wgt = (_bits(memories[name].entries) for name in ("acc", "inp", "wgt"))
    found = acc, max(acc, inp), wgt
    if sum(found) > 32:
        raise TargetError(f"accelerator '{config.name}': a micro-operation needs {sum(found)} bits, allowed: 32")
    return found


def unit_of(instruction: Instruction) -> str:
    """The unit that executes an instruction: micro-code and accumulators are loaded by the compute unit."""
    if instruction.kind == "load":
        return "load" if instruction.values["memory"] in (1, 2) else "compute"
    if instruction.kind == "sync":
        return UNITS[instruction.values["unit"]]
    return "store" if instruction.kind == "store" else "compute"

"""Relocation rules of the machines: how each type patches the place P with the value S + A.

Sources: System V ABI AMD64 supplement, table 4.9; ELF for the Arm 64-bit architecture (IHI 0056), section 5.7; RISC-V
ELF psABI, section "Relocations".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PAGE = 4096
_Apply = Callable[[bytearray, int, int], None]  # (image, P, S + A): both are offsets in the image


@dataclass(frozen=True)
class RelocationRule:
    """``apply`` raises OverflowError if the distance does not fit. ``got``: S is the symbol's slot in the table.
    ``paired``: S is the place of another relocation, whose own value less that place is what this one splits.
    """

    name: str
    apply: _Apply
    got: bool = False
    paired: bool = False


def _relative(bits: int) -> _Apply:
    """S + A - P as a signed word of 32 or 64 bits."""
    code = {32: "<i", 64: "<q"}[bits]

    def apply(image: bytearray, place: int, value: int) -> None:
        _check(value - place, bits)
        struct.pack_into(code, image, place, value - place)

    return apply


def _page(image: bytearray, place: int, value: int) -> None:
    """ADRP: the distance between pages, split into the low 2 bits (30:29) and the high 19 (23:5)."""
    pages = (value // PAGE) - (place // PAGE)
    _check(pages, 21)
    _insert(image, place, ((pages & 3) << 29) | ((pages >> 2 & 0x7FFFF) << 5), 0x60FFFFE0)


def _address(image: bytearray, place: int, value: int) -> None:
    """ADR: the distance in bytes, split as in ADRP."""
    distance = value - place
    _check(distance, 21)
    _insert(image, place, ((distance & 3) << 29) | ((distance >> 2 & 0x7FFFF) << 5), 0x60FFFFE0)


def _low12(scale: int) -> _Apply:
    """ADD, LDR, STR: the offset inside the page in units of the access, bits 21:10."""

    def apply(image: bytearray, place: int, value: int) -> None:
        if value % scale:
            raise OverflowError(f"offset {value} is no multiple of {scale}")
        _insert(image, place, (value % PAGE // scale) << 10, 0xFFF << 10)

    return apply


def _branch(image: bytearray, place: int, value: int) -> None:
    """B, BL: the distance in instructions, bits 25:0."""
    _check(value - place, 28)
    _insert(image, place, (value - place) >> 2 & 0x3FFFFFF, 0x3FFFFFF)


def _upper(image: bytearray, place: int, value: int) -> None:
    """AUIPC: the high 20 bits of the distance, rounded so that the low 12 are a signed number, bits 31:12."""
    _check(value - place + 0x800, 32)
    _insert(image, place, (value - place + 0x800 >> 12 & 0xFFFFF) << 12, 0xFFFFF000)


def _lower_load(image: bytearray, place: int, value: int) -> None:
    """ADDI, loads: the low 12 bits of ``value``, bits 31:20."""
    _insert(image, place, (value & 0xFFF) << 20, 0xFFF00000)


def _lower_store(image: bytearray, place: int, value: int) -> None:
    """Stores: the low 12 bits of ``value``, split into 31:25 and 11:7."""
    _insert(image, place, (value >> 5 & 0x7F) << 25 | (value & 0x1F) << 7, 0xFE000F80)


def _call(image: bytearray, place: int, value: int) -> None:
    """AUIPC and JALR, one after the other."""
    _upper(image, place, value)
    _lower_load(image, place + 4, value - place)


def _jump(image: bytearray, place: int, value: int) -> None:
    """JAL: the distance, its bits 20, 10:1, 11 and 19:12 in this order."""
    d = value - place
    _check(d, 21)
    _insert(
        image,
        place,
        (d >> 20 & 1) << 31 | (d >> 1 & 0x3FF) << 21 | (d >> 11 & 1) << 20 | (d >> 12 & 0xFF) << 12,
        0xFFFFF000,
    )


def _nothing(image: bytearray, place: int, value: int) -> None:
    """A hint for linkers that shorten code."""


def _check(distance: int, bits: int) -> None:
    if not -(1 << (bits - 1)) <= distance < 1 << (bits - 1):
        raise OverflowError(f"distance {distance} exceeds {bits} bits")


def _insert(image: bytearray, place: int, value: int, mask: int) -> None:
    (instruction,) = struct.unpack_from("<I", image, place)
    struct.pack_into("<I", image, place, instruction & ~mask | value)


# R_X86_64_64, R_AARCH64_ABS64, R_RISCV_64: patched at load
ABSOLUTE: Mapping[str, int] = {"x86_64": 1, "aarch64": 257, "riscv64": 2}

RULES: Mapping[str, Mapping[int, RelocationRule]] = {
    "x86_64": {
        2: RelocationRule("R_X86_64_PC32", _relative(32)),
        4: RelocationRule("R_X86_64_PLT32", _relative(32)),
        9: RelocationRule("R_X86_64_GOTPCREL", _relative(32), got=True),
        24: RelocationRule("R_X86_64_PC64", _relative(64)),
        41: RelocationRule("R_X86_64_GOTPCRELX", _relative(32), got=True),
        42: RelocationRule("R_X86_64_REX_GOTPCRELX", _relative(32), got=True),
    },
    "aarch64": {
        260: RelocationRule("R_AARCH64_PREL64", _relative(64)),
        261: RelocationRule("R_AARCH64_PREL32", _relative(32)),
        274: RelocationRule("R_AARCH64_ADR_PREL_LO21", _address),
        275: RelocationRule("R_AARCH64_ADR_PREL_PG_HI21", _page),
        277: RelocationRule("R_AARCH64_ADD_ABS_LO12_NC", _low12(1)),
        278: RelocationRule("R_AARCH64_LDST8_ABS_LO12_NC", _low12(1)),
        282: RelocationRule("R_AARCH64_JUMP26", _branch),
        283: RelocationRule("R_AARCH64_CALL26", _branch),
        284: RelocationRule("R_AARCH64_LDST16_ABS_LO12_NC", _low12(2)),
        285: RelocationRule("R_AARCH64_LDST32_ABS_LO12_NC", _low12(4)),
        286: RelocationRule("R_AARCH64_LDST64_ABS_LO12_NC", _low12(8)),
        299: RelocationRule("R_AARCH64_LDST128_ABS_LO12_NC", _low12(16)),
        311: RelocationRule("R_AARCH64_ADR_GOT_PAGE", _page, got=True),
        312: RelocationRule("R_AARCH64_LD64_GOT_LO12_NC", _low12(8), got=True),
    },
    "riscv64": {
        17: RelocationRule("R_RISCV_JAL", _jump),
        18: RelocationRule("R_RISCV_CALL", _call),
        19: RelocationRule("R_RISCV_CALL_PLT", _call),
        20: RelocationRule("R_RISCV_GOT_HI20", _upper, got=True),
        23: RelocationRule("R_RISCV_PCREL_HI20", _upper),
        24: RelocationRule("R_RISCV_PCREL_LO12_I", _lower_load, paired=True),
        25: RelocationRule("R_RISCV_PCREL_LO12_S", _lower_store, paired=True),
        51: RelocationRule("R_RISCV_RELAX", _nothing),
        57: RelocationRule("R_RISCV_32_PCREL", _relative(32)),
    },
}

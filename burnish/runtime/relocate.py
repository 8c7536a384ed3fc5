"""Relocation rules of the two machines: how each type patches the place P with the value S + A.

Sources: System V ABI AMD64 supplement, table 4.9; ELF for the Arm 64-bit architecture (IHI 0056), section 5.7.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PAGE = 4096
_Apply = Callable[[bytearray, int, int], None]  # (image, P, S + A): both are offsets in the image


@dataclass(frozen=True)
class Rule:
    """``apply`` raises OverflowError if the distance does not fit. ``got``: S is the symbol's slot in the table."""

    name: str
    apply: _Apply
    got: bool = False


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


def _check(distance: int, bits: int) -> None:
    if not -(1 << (bits - 1)) <= distance < 1 << (bits - 1):
        raise OverflowError(f"distance {distance} exceeds {bits} bits")


def _insert(image: bytearray, place: int, value: int, mask: int) -> None:
    (instruction,) = struct.unpack_from("<I", image, place)
    struct.pack_into("<I", image, place, instruction & ~mask | value)


ABSOLUTE: Mapping[str, int] = {"x86_64": 1, "aarch64": 257}  # R_X86_64_64, R_AARCH64_ABS64: patched at load

RULES: Mapping[str, Mapping[int, Rule]] = {
    "x86_64": {
        2: Rule("R_X86_64_PC32", _relative(32)),
        4: Rule("R_X86_64_PLT32", _relative(32)),
        9: Rule("R_X86_64_GOTPCREL", _relative(32), got=True),
        24: Rule("R_X86_64_PC64", _relative(64)),
        41: Rule("R_X86_64_GOTPCRELX", _relative(32), got=True),
        42: Rule("R_X86_64_REX_GOTPCRELX", _relative(32), got=True),
    },
    "aarch64": {
        260: Rule("R_AARCH64_PREL64", _relative(64)),
        261: Rule("R_AARCH64_PREL32", _relative(32)),
        274: Rule("R_AARCH64_ADR_PREL_LO21", _address),
        275: Rule("R_AARCH64_ADR_PREL_PG_HI21", _page),
        277: Rule("R_AARCH64_ADD_ABS_LO12_NC", _low12(1)),
        278: Rule("R_AARCH64_LDST8_ABS_LO12_NC", _low12(1)),
        282: Rule("R_AARCH64_JUMP26", _branch),
        283: Rule("R_AARCH64_CALL26", _branch),
        284: Rule("R_AARCH64_LDST16_ABS_LO12_NC", _low12(2)),
        285: Rule("R_AARCH64_LDST32_ABS_LO12_NC", _low12(4)),
        286: Rule("R_AARCH64_LDST64_ABS_LO12_NC", _low12(8)),
        299: Rule("R_AARCH64_LDST128_ABS_LO12_NC", _low12(16)),
        311: Rule("R_AARCH64_ADR_GOT_PAGE", _page, got=True),
        312: Rule("R_AARCH64_LD64_GOT_LO12_NC", _low12(8), got=True),
    },
}

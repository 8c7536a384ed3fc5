"""Reads relocatable ELF64 objects, the output of LLVM: sections, symbols and relocations, nothing interpreted.

Source: System V ABI, chapters 4 and 5 (object files), and the ELF-64 object file format.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from burnish.errors import BurnishError

MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}  # e_machine
SHT_PROGBITS, SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL = 1, 2, 4, 8, 9
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 1, 2, 4, 0x400
SHN_UNDEF, SHN_ABS, SHN_COMMON = 0, 0xFFF1, 0xFFF2
STB_LOCAL, STB_WEAK = 0, 2
_RELOCATABLE = 1  # e_type


class LinkError(BurnishError):
    """An object that is no relocatable ELF64, or that cannot be linked: the message names the object and the symbol."""


@dataclass(frozen=True)
class ElfSection:
    """``data`` is empty for sections without bytes in the file; ``size`` counts those as well."""

    name: str
    type: int
    flags: int
    data: bytes
    size: int
    align: int


@dataclass(frozen=True)
class ElfSymbol:
    """``section`` is an index into the object's sections or a special SHN value; ``value`` is an offset in it."""

    name: str
    section: int
    value: int
    binding: int


@dataclass(frozen=True)
class Relocation:
    """Patch byte ``offset`` of section number ``section`` with a function of the symbol's address plus ``addend``."""

    section: int
    offset: int
    type: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class ObjectFile:
    """Relocatable ELF64 object: ``name`` is for messages, ``machine`` one of the values of MACHINES.

    Relocations and symbols name sections and symbols by their positions here.
    """

    name: str
    machine: str
    sections: tuple[ElfSection, ...]
    symbols: tuple[ElfSymbol, ...]
    relocations: tuple[Relocation, ...]


def is_elf(data: bytes) -> bool:
    """Whether bytes are an ELF file."""
    return data[:4] == b"\x7fELF"


def parse(name: str, data: bytes) -> ObjectFile:
    """The parts of the object ``data``; ``name`` is for messages. Raises LinkError."""
    if len(data) < 64 or data[:7] != b"\x7fELF\x02\x01\x01":
        raise LinkError(f"link: object '{name}' starts with {bytes(data[:7])!r}, allowed: little-endian ELF64")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != _RELOCATABLE or machine not in MACHINES:
        raise LinkError(
            f"link: object '{name}' has ELF type {kind} for machine {machine}, allowed: type 1 (relocatable) for "
            + ", ".join(f"{number} ({text})" for number, text in MACHINES.items())
        )
    try:
        return _parse(name, data, MACHINES[machine])
    except (struct.error, IndexError, ValueError) as error:
        raise LinkError(f"link: object '{name}' of {len(data)} bytes is truncated or damaged: {error}") from error


def _parse(name: str, data: bytes, machine: str) -> ObjectFile:
    (table,) = struct.unpack_from("<Q", data, 40)
    count, names_index = struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]

    def content(index: int) -> bytes:
        offset, size = headers[index][4:6]
        if offset + size > len(data):
            raise ValueError(f"section {index} ends at byte {offset + size}")
        return data[offset : offset + size]

    names = content(names_index)
    sections: list[ElfSection] = []
    symbols: list[ElfSymbol] = []
    relocations: list[Relocation] = []
    for index, (name_at, kind, flags, _, _, size, link, info, align, _) in enumerate(headers):
        bits = content(index) if kind not in (0, SHT_NOBITS) else b""
        sections.append(ElfSection(_string(names, name_at), kind, flags, bits, size, max(align, 1)))
        if kind == SHT_SYMTAB:
            strings = content(link)
            for at, symbol_info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", bits):
                symbols.append(ElfSymbol(_string(strings, at), section, value, symbol_info >> 4))
        elif kind == SHT_RELA:
            for offset, what, addend in struct.iter_unpack("<QQq", bits):
                relocations.append(Relocation(info, offset, what & 0xFFFFFFFF, what >> 32, addend))
        elif kind == SHT_REL:
            raise ValueError("relocations without addends")
    return ObjectFile(name, machine, tuple(sections), tuple(symbols), tuple(relocations))


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()

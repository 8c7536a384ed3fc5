"""Writes relocatable ELF64 objects that hold data, and archives of objects, without a toolchain.

Sources: System V ABI, chapter 4 (object files); the archive format of System V and GNU, as `ar(5)` describes it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.runtime.buffers import round_up
from burnish.runtime.elf import MACHINES, SHF_ALLOC, SHF_EXECINSTR, SHT_PROGBITS, SHT_SYMTAB

_SHT_STRTAB = 3
_GLOBAL_OBJECT, _HIDDEN = 0x11, 2  # st_info: STB_GLOBAL and STT_OBJECT; st_other: STV_HIDDEN
_HEADER, _ENTRY = 64, 64  # bytes of the file's header and of a section's


@dataclass(frozen=True)
class DataSection:
    """Bytes under one hidden symbol: constants, or machine code that is complete."""

    symbol: str
    data: bytes | memoryview
    align: int = 64
    is_code: bool = False


def elf_object(machine: str, sections: Sequence[DataSection], flags: int = 0) -> bytes:
    """The bytes of an object for a ``machine`` of ``runtime.elf.MACHINES``, with ``flags`` in its head; no section
    refers to another.
    """
    number = next(number for number, name in MACHINES.items() if name == machine)
    strings, symbols = bytearray(b"\0"), bytearray(24)
    headers = [bytes(_ENTRY)]
    names = bytearray(b"\0")
    parts: list[bytes | memoryview] = []
    at = _HEADER

    def put(data: bytes | memoryview, align: int) -> int:
        nonlocal at
        parts.extend((bytes(round_up(at, align) - at), data))
        begin = round_up(at, align)
        at = begin + len(data)
        return begin

    def section(name: str, kind: int, what: int, data: bytes | memoryview, align: int, rest: tuple[int, ...]) -> None:
        begin = put(data, align)
        link, info, size = rest
        headers.append(struct.pack("<IIQQQQIIQQ", len(names), kind, what, 0, begin, len(data), link, info, align, size))
        names.extend(name.encode() + b"\0")

    for index, own in enumerate(sections, 1):
        what = SHF_ALLOC | (SHF_EXECINSTR if own.is_code else 0)
        name = f"{'.text' if own.is_code else '.rodata'}.{own.symbol}"
        section(name, SHT_PROGBITS, what, own.data, own.align, (0, 0, 0))
        symbols += struct.pack("<IBBHQQ", len(strings), _GLOBAL_OBJECT, _HIDDEN, index, 0, len(own.data))
        strings += own.symbol.encode() + b"\0"
    count = len(sections)
    section(".note.GNU-stack", SHT_PROGBITS, 0, b"", 1, (0, 0, 0))  # no code here needs an executable stack
    section(".symtab", SHT_SYMTAB, 0, bytes(symbols), 8, (count + 3, 1, 24))
    section(".strtab", _SHT_STRTAB, 0, bytes(strings), 1, (0, 0, 0))
    names_at = len(headers)
    section(".shstrtab", _SHT_STRTAB, 0, bytes(names) + b".shstrtab\0", 1, (0, 0, 0))
    table = put(b"".join(headers), 8)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 1, number, 1, 0, 0, table, flags, _HEADER, 0, 0, _ENTRY, len(headers), names_at
    )
    return b"".join([header, *parts])


def archive(members: Sequence[tuple[str, bytes, Sequence[str]]]) -> bytes:
    """A static library of objects, each with its name (up to 15 letters) and the symbols that linkers find in it."""
    index_names = b"".join(symbol.encode() + b"\0" for _, _, symbols in members for symbol in symbols)
    count = sum(len(symbols) for _, _, symbols in members)
    first = len(_MAGIC) + _even(_MEMBER + 4 * (count + 1) + len(index_names))
    places, at = [], first
    for _, data, symbols in members:
        places += [at] * len(symbols)
        at += _even(_MEMBER + len(data))
    index = struct.pack(f">I{count}I", count, *places) + index_names
    return b"".join([_MAGIC, _member("/", index), *(_member(f"{name}/", data) for name, data, _ in members)])


_MAGIC, _MEMBER = b"!<arch>\n", 60


def _even(size: int) -> int:
    return size + size % 2


def _member(name: str, data: bytes) -> bytes:
    """A member without a time, an owner or a date, so that equal objects make equal archives."""
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)

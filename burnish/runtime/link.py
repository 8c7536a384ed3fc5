"""Links relocatable objects into one flat image, so that loading a compiled model needs neither LLVM nor a linker."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from burnish.runtime.buffers import ALIGNMENT, round_up
from burnish.runtime.elf import (
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_TLS,
    SHF_WRITE,
    SHN_ABS,
    SHN_COMMON,
    SHN_UNDEF,
    SHT_PROGBITS,
    STB_LOCAL,
    STB_WEAK,
    ElfSection,
    ElfSymbol,
    LinkError,
    ObjectFile,
    parse,
)
from burnish.runtime.image import Image
from burnish.runtime.relocate import ABSOLUTE, RULES

_CONSTANT_AFTER_LOAD = ".data.rel.ro"  # writable only for the loader, which patches addresses into it


def link(objects: Mapping[str, bytes]) -> Image:
    """One image of all objects (name -> ELF64 bytes), in their order: first the code, then the constants.

    Every global symbol becomes a symbol of the image. Raises LinkError, naming object and symbol, for damaged objects,
    objects of different machines, undefined or repeated symbols, mutable globals, and unknown relocations.
    """
    if not objects:
        raise LinkError("link: no objects")
    files = [parse(name, data) for name, data in objects.items()]
    linker = _Linker(files)
    for number, file in enumerate(files):
        linker.relocate(number, file)
    return linker.finish()


class _Linker:
    """The image under construction: ``places`` maps (object number, section number) to the section's offset."""

    def __init__(self, files: list[ObjectFile]) -> None:
        self.machine = files[0].machine
        self.files = files
        self.places: dict[tuple[int, int], int] = {}
        self.image = bytearray()
        self.got: dict[int, int] = {}
        self.absolute: list[tuple[int, int]] = []
        self._lay_out()
        self.globals = self._define_globals()

    def _lay_out(self) -> None:
        for executable in (True, False):
            for number, file in enumerate(self.files):
                if file.machine != self.machine:
                    raise LinkError(f"link: object '{file.name}' is for {file.machine}, the others for {self.machine}")
                for index, section in enumerate(file.sections):
                    if _is_loaded(file, section) and bool(section.flags & SHF_EXECINSTR) == executable:
                        self._align(max(section.align, ALIGNMENT if executable else 1))
                        self.places[number, index] = len(self.image)
                        self.image += section.data
        self._align(8)

    def _align(self, multiple: int) -> None:
        self.image += bytes(round_up(len(self.image), multiple) - len(self.image))

    def _define_globals(self) -> dict[str, int]:
        offsets: dict[str, int] = {}
        owners: dict[str, tuple[str, ElfSymbol]] = {}
        for number, file in enumerate(self.files):
            for symbol in file.symbols:
                if symbol.binding == STB_LOCAL or symbol.section == SHN_UNDEF:
                    continue
                if symbol.section == SHN_COMMON:
                    raise LinkError(f"link: '{symbol.name}' of object '{file.name}' is a mutable global, not supported")
                if symbol.name in owners:
                    owner, first = owners[symbol.name]
                    if symbol.binding == STB_WEAK:
                        continue
                    if first.binding != STB_WEAK:
                        raise LinkError(f"link: objects '{owner}' and '{file.name}' both define '{symbol.name}'")
                offsets[symbol.name] = self._position(number, file, symbol)
                owners[symbol.name] = (file.name, symbol)
        return offsets

    def _position(self, number: int, file: ObjectFile, symbol: ElfSymbol) -> int:
        """Offset in the image of a symbol that the object defines."""
        if symbol.section == SHN_ABS or (number, symbol.section) not in self.places:
            raise LinkError(
                f"link: symbol '{symbol.name}' of object '{file.name}' lies in section {symbol.section}, not loaded"
            )
        return self.places[number, symbol.section] + symbol.value

    def _target(self, number: int, file: ObjectFile, symbol: ElfSymbol) -> int:
        """Offset in the image of a symbol that the object refers to."""
        if symbol.section != SHN_UNDEF and symbol.binding == STB_LOCAL:
            return self._position(number, file, symbol)
        if symbol.name not in self.globals:
            raise LinkError(f"link: object '{file.name}' refers to '{symbol.name}', which no object defines")
        return self.globals[symbol.name]

    def _got_slot(self, target: int) -> int:
        """Offset of the word that will hold the address of ``target``."""
        if target not in self.got:
            self.got[target] = len(self.image)
            self.absolute.append((len(self.image), target))
            self.image += bytes(8)
        return self.got[target]

    def relocate(self, number: int, file: ObjectFile) -> None:
        """Applies all relocations of one object."""
        rules = RULES[self.machine]
        distances: dict[int, int] = {}  # of what was patched, from its own place
        paired = [t for t, rule in rules.items() if rule.paired]
        for relocation in sorted(file.relocations, key=lambda r: r.type in paired):
            if (number, relocation.section) not in self.places:
                continue  # of unwind tables and the like
            symbol = file.symbols[relocation.symbol]
            place = self.places[number, relocation.section] + relocation.offset
            target = self._target(number, file, symbol)
            if relocation.type == ABSOLUTE[self.machine]:
                self.absolute.append((place, target + relocation.addend))
                continue
            rule = rules.get(relocation.type)
            if rule is None:
                known = ", ".join(f"{t} ({r.name})" for t, r in rules.items())
                raise LinkError(
                    f"link: object '{file.name}' relocates '{symbol.name}' with type {relocation.type}, allowed for "
                    f"{self.machine}: {known}; compile with reloc='pic' and codemodel='small'"
                )
            base = self._got_slot(target) if rule.got else target
            try:
                value = distances[target] if rule.paired else base + relocation.addend
                distances.setdefault(place, value - place)
                rule.apply(self.image, place, value)
            except KeyError:
                raise LinkError(f"link: {rule.name} in object '{file.name}' is not paired at '{symbol.name}'") from None
            except (OverflowError, struct.error) as error:
                raise LinkError(f"link: {rule.name} to '{symbol.name}' in object '{file.name}': {error}") from None

    def finish(self) -> Image:
        return Image(self.machine, bytes(self.image), self.globals, tuple(self.absolute))


def _is_loaded(file: ObjectFile, section: ElfSection) -> bool:
    """Whether the section takes part in the image. Raises LinkError for mutable ones: threads would share them."""
    if not section.flags & SHF_ALLOC or not section.size or section.name == ".eh_frame":
        return False
    if section.flags & SHF_TLS or (section.flags & SHF_WRITE and not section.name.startswith(_CONSTANT_AFTER_LOAD)):
        raise LinkError(f"link: object '{file.name}' has mutable globals in section '{section.name}', not supported")
    return section.type == SHT_PROGBITS

"""Linked machine code: position-independent bytes with named entry points, and how they become callable."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from burnish.runtime.pages import anonymous_pages, protect


@dataclass(frozen=True)
class Image:
    """Code and constants of several objects at fixed distances from each other; loads at any page.

    ``symbols`` maps names to byte offsets. ``absolute`` lists (offset, target): at load, the 64-bit word at ``offset``
    becomes the address of byte ``target``. ``machine`` is ``x86_64``, ``aarch64`` or ``riscv64``.
    """

    machine: str
    data: bytes
    symbols: Mapping[str, int]
    absolute: tuple[tuple[int, int], ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that makes up the loaded code."""
        text = f"{self.machine} {sorted(self.symbols.items())} {self.absolute} "
        return hashlib.sha256(text.encode() + self.data).hexdigest()


class LoadedImage:
    """An image in executable memory, which is unmapped with this object: keep it while its code may run."""

    def __init__(self, image: Image) -> None:
        """Raises OSError if the system refuses executable memory."""
        size = max(len(image.data), 1)
        self._pages = anonymous_pages(size)
        self._symbols = image.symbols
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._pages[: len(image.data)] = image.data
        for offset, target in image.absolute:
            struct.pack_into("<Q", self._pages, offset, self.base + target)
        # Never writable and executable at once. Turning pages executable also makes the Linux kernel synchronize the
        # instruction caches of machines where those do not see writes.
        protect(self.base, size, mmap.PROT_READ | mmap.PROT_EXEC)

    def __contains__(self, symbol: object) -> bool:
        """Whether the image has a symbol."""
        return symbol in self._symbols

    def address(self, symbol: str) -> int:
        """The address of a symbol of the image. Raises KeyError."""
        return self.base + self._symbols[symbol]

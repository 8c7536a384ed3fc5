"""CPU emulator: runs code for AArch64 in this process, and counts the instructions of its blocks."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.errors import TargetError
from burnish.optional import require
from burnish.runtime.abi import SCRATCH_STRIDE
from burnish.runtime.buffers import address_of, round_up
from burnish.runtime.image import Image

_PAGE = 1 << 12
_CODE, _STACK, _WORK, _SCRATCH, _DATA = (n << 32 for n in (1, 2, 3, 4, 5))
_STACK_BYTES, _SCRATCH_BYTES = 1 << 22, 1 << 26
_DONE = _WORK + 0x800  # where a kernel returns to; nothing is executed there
_ALIGNMENT = 64

# `parallel(pool, body, ctx, extent)` on one thread: body(ctx, 0, extent, 0) in its place.
_SERIAL = struct.pack(
    "<6I",
    0xAA0103E9,  # mov x9, x1
    0xAA0203E0,  # mov x0, x2
    0xAA0303E2,  # mov x2, x3
    0xD2800001,  # mov x1, 0
    0xD2800003,  # mov x3, 0
    0xD61F0120,  # br x9
)


@dataclass(frozen=True)
class Block:
    """A block of code without branches inside: how often it ran, its instructions, and how many multiply and add."""

    runs: int
    instructions: int
    multiply_adds: int


@dataclass(eq=False)
class Emulator:
    """A device that runs an executable for AArch64 CPUs on one thread, by unicorn.

    Its instructions are those that unicorn's newest core has. Each buffer ends at a page that may not be touched, up to
    its alignment of 64 bytes. ``count``: whether ``blocks`` tells of the blocks that calls have run, by address.
    Raises MissingDependencyError.
    """

    count: bool = False
    _unicorn: Any = None
    _constants: Any = None
    _image: Image | None = None
    _runs: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._unicorn = require("unicorn", extra="emulator")
        self._constants = require("unicorn.arm64_const", extra="emulator")

    def kernels(self, image: Image) -> Mapping[str, bytes]:
        """What :meth:`run` takes for each kernel of an executable's code. Raises TargetError for another machine's."""
        if image.machine != "aarch64":
            raise TargetError(f"emulator: found code for {image.machine}; allowed: aarch64")
        self._image = image
        return {name: name.encode() for name in image.symbols}

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        """Calls a kernel on its arguments. Raises TargetError, naming it, where it leaves its memory."""
        assert self._image is not None
        name, u, c = code.decode(), self._unicorn, self._constants
        cpu = self._processor(self._image)
        places, pages = _laid_out([(address_of(m), m.nbytes) for m in memory])
        for begin, nbytes in pages:
            cpu.mem_map(begin, nbytes, u.UC_PROT_READ | u.UC_PROT_WRITE)
        for place, array in zip(places, memory, strict=True):
            cpu.mem_write(place, array.tobytes())
        cpu.mem_write(_WORK, struct.pack(f"<{len(places)}Q", *places))
        runtime = _WORK + 0x400
        cpu.mem_write(runtime, struct.pack("<6Q", _WORK + 0xC00, 0, _SCRATCH, SCRATCH_STRIDE, 1, 0))
        for register, value in (("X0", _WORK), ("X1", runtime), ("LR", _DONE), ("SP", _STACK + _STACK_BYTES - _PAGE)):
            cpu.reg_write(getattr(c, f"UC_ARM64_REG_{register}"), value)
        try:
            cpu.emu_start(_CODE + self._image.symbols[name], _DONE)
        except u.UcError as error:
            at = cpu.reg_read(c.UC_ARM64_REG_PC) - _CODE
            raise TargetError(f"emulator: kernel '{name}', byte {at} of the code: {error}") from error
        for place, array in zip(places, memory, strict=True):
            if array.flags.writeable:
                array[:] = np.frombuffer(cpu.mem_read(place, array.nbytes), np.uint8)

    @property
    def blocks(self) -> dict[int, Block]:
        """Blocks that have run, by their byte in the code: the proxy of speed where there is no such machine."""
        assert self._image is not None
        found = {}
        for (at, nbytes), runs in self._runs.items():
            words = np.frombuffer(self._image.data[at : at + nbytes], np.uint32)
            vector = (words & 0xBFA0FC00) == 0x0E20CC00
            element = (words & 0xBF80F400) == 0x0F801000
            scalar = (words & 0xFF208000) == 0x1F000000
            found[at] = Block(runs, len(words), int((vector | element | scalar).sum()))
        return found

    def _processor(self, image: Image) -> Any:
        """A processor with the code, a stack, scratch and the runtime's structures in its memory."""
        u, c = self._unicorn, self._constants
        cpu = u.Uc(u.UC_ARCH_ARM64, u.UC_MODE_ARM)
        cpu.ctl_set_cpu_model(c.UC_CPU_ARM64_MAX)
        cpu.reg_write(c.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # floating point and vectors do not trap
        data = bytearray(image.data)
        for offset, target in image.absolute:
            struct.pack_into("<Q", data, offset, _CODE + target)
        cpu.mem_map(_CODE, round_up(max(len(data), 1), _PAGE), u.UC_PROT_READ | u.UC_PROT_EXEC)
        cpu.mem_write(_CODE, bytes(data))
        cpu.mem_map(_STACK, _STACK_BYTES, u.UC_PROT_READ | u.UC_PROT_WRITE)
        cpu.mem_map(_SCRATCH, _SCRATCH_BYTES, u.UC_PROT_READ | u.UC_PROT_WRITE)
        cpu.mem_map(_WORK, _PAGE, u.UC_PROT_ALL)
        cpu.mem_write(_WORK + 0xC00, _SERIAL)
        if self.count:
            cpu.hook_add(u.UC_HOOK_BLOCK, self._ran)
        return cpu

    def _ran(self, cpu: Any, address: int, size: int, data: object) -> None:
        del cpu, data
        if _CODE <= address < _STACK:
            self._runs[address - _CODE, size] += 1


def _laid_out(spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """Where buffers lie in the emulated memory, and its pages (begin, bytes): buffers that overlap still do, and others
    have pages of their own, at whose end they end.
    """
    places, pages, free = [0] * len(spans), list[tuple[int, int]](), _DATA
    order = sorted(range(len(spans)), key=lambda i: spans[i])
    while order:
        together = [order.pop(0)]
        first, end = spans[together[0]][0], sum(spans[together[0]])
        while order and spans[order[0]][0] < end:
            together.append(order.pop(0))
            end = max(end, sum(spans[together[-1]]))
        nbytes = round_up(max(end - first, 1), _ALIGNMENT)
        whole = round_up(nbytes, _PAGE)
        for i in together:
            places[i] = free + whole - nbytes + spans[i][0] - first
        pages.append((free, whole))
        free += whole + _PAGE
    return places, pages

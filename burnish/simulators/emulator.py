"""CPU emulator: runs code for AArch64, RISC-V and x86-64 CPUs in this process, and counts instructions."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.errors import TargetError
from burnish.machines.target import Target
from burnish.runtime.abi import SCRATCH_STRIDE
from burnish.runtime.buffers import address_of, round_up
from burnish.runtime.image import Image
from burnish.simulators.emulated import AARCH64, SETS, InstructionSet

_PAGE = 1 << 12
_CODE, _STACK, _WORK, _SCRATCH, _DATA = (n << 32 for n in (1, 2, 3, 4, 5))
_STACK_BYTES, _SCRATCH_BYTES = 1 << 22, 1 << 26
_DONE = _WORK + 0x800  # where a kernel returns to; nothing is executed there
_ALIGNMENT = 64


@dataclass(frozen=True)
class BasicBlock:
    """A block of code without branches inside: how often it ran, its instructions, and how many multiply and add."""

    runs: int
    instructions: int
    multiply_adds: int


@dataclass(eq=False)
class CpuEmulator:
    """CPU emulator device: runs an executable for the CPUs of ``emulated.SETS`` on one thread, by unicorn.

    Its instructions are those that unicorn's newest core has: of x86-64 the level v2, of RISC-V those without vectors.
    Each buffer ends at a page that may not be touched, up to its alignment of 64 bytes. ``count``: whether ``blocks``
    tells of the blocks that calls have run, by address. Raises MissingDependencyError.
    """

    count: bool = False
    _unicorn: Any = None
    _set: InstructionSet = AARCH64
    _image: Image | None = None
    _runs: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._unicorn = require("unicorn", extra="emulator")

    def kernels(self, image: Image) -> Mapping[str, bytes]:
        """Kernels of an executable's code by name, as :meth:`run` takes them. Raises TargetError for a machine that it
        does not know, or whose instructions it cannot count.
        """
        known = [name for name, own in SETS.items() if own.decode or not self.count]
        if image.machine not in known:
            raise TargetError(f"emulator: found code for {image.machine}; allowed: {', '.join(known)}")
        self._image, self._set = image, SETS[image.machine]
        return {name: name.encode() for name in image.symbols}

    def run(self, code: bytes, memory: Sequence[np.ndarray | int]) -> None:
        """Calls a kernel on its arguments, buffers and values of dimensions.

        Raises TargetError, naming it, where it leaves its memory.
        """
        assert self._image is not None
        name, u, own = code.decode(), self._unicorn, self._set
        cpu = self._processor(self._image)
        arrays = [m for m in memory if isinstance(m, np.ndarray)]
        places, pages = _laid_out([(address_of(m), m.nbytes) for m in arrays])
        for begin, nbytes in pages:
            cpu.mem_map(begin, nbytes, u.UC_PROT_READ | u.UC_PROT_WRITE)
        for place, array in zip(places, arrays, strict=True):
            cpu.mem_write(place, array.tobytes())
        begins = iter(places)
        words = [m if isinstance(m, int) else next(begins) for m in memory]
        cpu.mem_write(_WORK, struct.pack(f"<{len(words)}Q", *words))
        runtime = _WORK + 0x400
        cpu.mem_write(runtime, struct.pack("<6Q", _WORK + 0xC00, 0, _SCRATCH, SCRATCH_STRIDE, 1, 0))
        top = _STACK + _STACK_BYTES - _PAGE
        if own.link:
            cpu.reg_write(own.register(own.link), _DONE)
        else:
            top -= 8
            cpu.mem_write(top, struct.pack("<Q", _DONE))
        for register, value in zip((*own.arguments, own.stack), (_WORK, runtime, top), strict=True):
            cpu.reg_write(own.register(register), value)
        try:
            cpu.emu_start(_CODE + self._image.symbols[name], _DONE)
        except u.UcError as error:
            at = cpu.reg_read(own.register(own.counter)) - _CODE
            raise TargetError(f"emulator: kernel '{name}', byte {at} of the code: {error}") from error
        for place, array in zip(places, arrays, strict=True):
            if array.flags.writeable:
                array[:] = np.frombuffer(cpu.mem_read(place, array.nbytes), np.uint8)

    @property
    def blocks(self) -> dict[int, BasicBlock]:
        """Blocks that have run, by their byte in the code: the proxy of speed where there is no such machine."""
        assert self._image is not None and self._set.decode is not None
        found = {}
        for (at, nbytes), runs in self._runs.items():
            found[at] = BasicBlock(runs, *self._set.decode(self._image.data[at : at + nbytes]))
        return found

    def _processor(self, image: Image) -> Any:
        """A processor with the code, a stack, scratch and the runtime's structures in its memory."""
        u, cpu = self._unicorn, self._set.processor(self._unicorn)
        data = bytearray(image.data)
        for offset, target in image.absolute:
            struct.pack_into("<Q", data, offset, _CODE + target)
        cpu.mem_map(_CODE, round_up(max(len(data), 1), _PAGE), u.UC_PROT_READ | u.UC_PROT_EXEC)
        cpu.mem_write(_CODE, bytes(data))
        cpu.mem_map(_STACK, _STACK_BYTES, u.UC_PROT_READ | u.UC_PROT_WRITE)
        cpu.mem_map(_SCRATCH, _SCRATCH_BYTES, u.UC_PROT_READ | u.UC_PROT_WRITE)
        cpu.mem_map(_WORK, _PAGE, u.UC_PROT_ALL)
        cpu.mem_write(_WORK + 0xC00, self._set.serial)
        if self.count:
            cpu.hook_add(u.UC_HOOK_BLOCK, self._ran)
        return cpu

    def _ran(self, cpu: Any, address: int, size: int, data: object) -> None:
        del cpu, data
        if _CODE <= address < _STACK:
            self._runs[address - _CODE, size] += 1


def emulated(target: Target) -> Target:
    """The target, a CPU, with an emulator in its place: what is compiled for it runs here, slowly, and is checked.

    Its modules run here; saved ones, as those of the target itself, run on the real CPU.
    """
    return replace(target, machine=target.machine.with_(device=CpuEmulator))


def _laid_out(spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """Memory layout of the emulated process: places of the buffers, and pages (begin, bytes). Buffers that overlap
    still do, and others have pages of their own, at whose end they end.
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

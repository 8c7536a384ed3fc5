"""RISC-V simulator: runs code for RISC-V CPUs with vectors by Spike, the simulator of the instruction set's authors.

A kernel becomes a bare-metal ELF program: a start routine, the image, arguments and buffers. What it leaves in memory
comes back as Spike's signature, the memory between two symbols. Source: RISC-V ISA manual, chapters "Machine-Level ISA"
and "V"; the HTIF of riscv-isa-sim.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from burnish.errors import MissingDependencyError, TargetError
from burnish.runtime.abi import SCRATCH_STRIDE
from burnish.runtime.buffers import round_up
from burnish.runtime.image import Image
from burnish.simulators.emulated import RISCV64

_PAGE, _ALIGNMENT = 1 << 12, 64
_START, _CODE = 0x8000_0000, 0x8010_0000  # where Spike's memory begins, and the kernel's image in it
_SECONDS = 300.0
_STACK_BYTES, _SCRATCH_BYTES = 1 << 20, 1 << 26
_TOHOST, _SERIAL, _TABLE, _RUNTIME, _ARGUMENTS = (_START + n for n in (0x400, 0x500, 0x600, 0x700, 0x800))

_ZERO, _RA, _SP, _T0, _T1, _T2, _A0, _A1 = 0, 1, 2, 5, 6, 7, 10, 11
_TRAP = 0x40  # where the code for traps begins


def _load(to: int, place: int) -> int:
    """`ld`, from an address of the start routine, whose begin is in t1."""
    return (place - _START) << 20 | _T1 << 15 | 3 << 12 | to << 7 | 0x03


def _immediate(to: int, source: int, number: int) -> int:
    """`addi`."""
    return number << 20 | source << 15 | to << 7 | 0x13


def _store(source: int, place: int) -> int:
    """`sd` to an address that far from t1."""
    return (place >> 5) << 25 | source << 20 | _T1 << 15 | 3 << 12 | (place & 31) << 7 | 0x23


# Calls the kernel, with floating point and vectors on, and ends with status 0; traps end with 1.
_ROUTINE = struct.pack(
    "<20I",
    _T1 << 7 | 0x17,  # auipc t1, 0
    _immediate(_T0, _T1, _TRAP),
    0x305 << 20 | _T0 << 15 | 1 << 12 | 0x73,  # csrw mtvec, t0
    6 << 12 | _T0 << 7 | 0x37,  # lui t0, 6
    _immediate(_T0, _T0, 0x600),
    0x300 << 20 | _T0 << 15 | 2 << 12 | 0x73,  # csrs mstatus, t0
    _load(_SP, _TABLE),
    _load(_A0, _TABLE + 8),
    _load(_A1, _TABLE + 16),
    _load(_T2, _TABLE + 24),
    _T2 << 15 | _RA << 7 | 0x67,  # jalr ra, t2
    _immediate(_T0, _ZERO, 1),
    0x14 >> 1 << 21 | 0x6F,  # j behind the first instruction for traps
    *[_immediate(_ZERO, _ZERO, 0)] * 3,
    _immediate(_T0, _ZERO, 3),
    _T1 << 7 | 0x17,  # auipc t1, 0
    _store(_T0, _TOHOST - _START - _TRAP - 4),
    0x6F,  # j here
)


@dataclass(eq=False)
class Spike:
    """RISC-V simulator device: runs an executable on one thread, each kernel in a process of its own.

    ``isa``: what the simulated processor has, in Spike's words. Raises MissingDependencyError.
    """

    isa: str = "rv64gcv"
    _image: Image | None = None

    def __post_init__(self) -> None:
        self._program = _executable()

    def kernels(self, image: Image) -> Mapping[str, bytes]:
        """Kernels of an executable's code by name, as :meth:`run` takes them. Raises TargetError for other machines."""
        if image.machine != RISCV64.name:
            raise TargetError(f"spike: found code for {image.machine}; allowed: {RISCV64.name}")
        self._image = image
        return {name: name.encode() for name in image.symbols}

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        """Calls a kernel on its arguments. Raises TargetError, naming it, where it traps or does not end."""
        assert self._image is not None
        name = code.decode()
        data = bytearray(self._image.data)
        for offset, target in self._image.absolute:
            struct.pack_into("<Q", data, offset, _CODE + target)
        begin = _CODE + round_up(len(data), _PAGE)
        places, end = [], begin
        for array in memory:
            places.append(end)
            end += round_up(max(array.nbytes, 1), _ALIGNMENT)
        scratch = round_up(end, _PAGE)
        stack = scratch + _SCRATCH_BYTES + _STACK_BYTES
        first = bytearray(_ARGUMENTS - _START)
        first[: len(_ROUTINE)] = _ROUTINE
        first[_SERIAL - _START : _SERIAL - _START + len(RISCV64.serial)] = RISCV64.serial
        struct.pack_into("<4Q", first, _TABLE - _START, stack, _ARGUMENTS, _RUNTIME, _CODE + self._image.symbols[name])
        struct.pack_into("<6Q", first, _RUNTIME - _START, _SERIAL, 0, scratch, SCRATCH_STRIDE, 1, 0)
        first += struct.pack(f"<{len(places)}Q", *places)
        buffers = bytearray(end - begin)
        for place, array in zip(places, memory, strict=True):
            buffers[place - begin : place - begin + array.nbytes] = array.tobytes()
        program = _elf([(_START, bytes(first)), (_CODE, bytes(data)), (begin, bytes(buffers))], begin, end)
        after = self._simulate(name, program, end - begin)
        for place, array in zip(places, memory, strict=True):
            if array.flags.writeable:
                array[:] = after[place - begin : place - begin + array.nbytes]

    def _simulate(self, name: str, program: bytes, nbytes: int) -> np.ndarray:
        """The signature that a program leaves."""
        with tempfile.TemporaryDirectory() as folder:
            path, signature = Path(folder) / "program.elf", Path(folder) / "signature"
            path.write_bytes(program)
            command = [
                self._program, f"--isa={self.isa}", "-m2048", f"+signature={signature}", "+signature-granularity=4",
                str(path),
            ]  # fmt: skip
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                raise TargetError(f"spike: kernel '{name}' has not ended after {_SECONDS:g} s") from None
            words = signature.read_text().split() if signature.exists() else []
        if done.returncode or 4 * len(words) < nbytes:
            said = (done.stderr or done.stdout).strip()[-200:] or "no message"
            raise TargetError(f"spike: kernel '{name}' trapped (status {done.returncode}): {said}")
        return np.array([int(word, 16) for word in words], np.uint32).view(np.uint8)


def _executable() -> str:
    """Path of Spike: on the path, or in the package of this name. It runs `dtc`, the device-tree compiler."""
    if shutil.which("dtc") is None:
        raise MissingDependencyError("spike: found no `dtc` on the path; install the device-tree compiler")
    found = shutil.which("spike")
    package = find_spec("riscv")
    if found is None and package is not None and package.origin is not None:
        program = Path(package.origin).parent / "data" / "bin" / "spike"
        program.chmod(program.stat().st_mode | 0o100)  # pip leaves it as a file that nobody may run
        found = str(program)
    if found is None:
        raise MissingDependencyError("spike: found no simulator on the path; install it, or `pip install spike`")
    return found


def _elf(segments: Sequence[tuple[int, bytes]], begin: int, end: int) -> bytes:
    """An executable of segments (address, bytes), entered at the first, with the symbols that Spike looks for."""
    symbols = {"tohost": _TOHOST, "fromhost": _TOHOST + 64, "begin_signature": begin, "end_signature": end}
    names = b"\0" + b"".join(name.encode() + b"\0" for name in symbols)
    table = bytes(24)
    for name, value in symbols.items():
        table += struct.pack("<IBBHQQ", names.index(b"\0" + name.encode() + b"\0") + 1, 0x10, 0, 0xFFF1, value, 8)
    strings = b"\0.symtab\0.strtab\0"
    at = 64 + 56 * len(segments)
    headers, body = b"", b""
    for address, data in segments:
        headers += struct.pack("<IIQQQQQQ", 1, 7, at + len(body), address, address, len(data), len(data), 8)
        body += data + bytes(-len(data) % 8)
    symbols_at = at + len(body)
    names_at = symbols_at + len(table)
    strings_at = names_at + len(names)
    sections_at = round_up(strings_at + len(strings), 8)
    sections = bytes(64)
    for title, kind, offset, size, link, info, entry in (
        (1, 2, symbols_at, len(table), 2, 1, 24),
        (9, 3, names_at, len(names), 0, 0, 0),
        (0, 3, strings_at, len(strings), 0, 0, 0),
    ):
        sections += struct.pack("<IIQQQQIIQQ", title, kind, 0, 0, offset, size, link, info, 8, entry)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 243, 1, _START, 64, sections_at, 5, 64, 56, len(segments), 64, 4, 3)
    body += table + names + strings
    return head + headers + body + bytes(sections_at - at - len(body)) + sections

"""Instruction sets of the CPU emulator as data: registers of calls, what starts a processor, how code is counted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.base.optional import require

Decode = Callable[[bytes], tuple[int, int]]  # code -> instructions, and those that multiply and add


@dataclass(frozen=True)
class InstructionSet:
    """Architecture description for the CPU emulator.

    ``constants``: unicorn's module of its names, with their ``prefix``; ``mode`` of its processor, and its ``model``
    (empty: unicorn's own choice). ``arguments``: the registers of the first two arguments; ``link``: the one with the
    address to return to (empty: it lies on the stack). ``state``: what registers hold from the beginning. ``serial``:
    code of `parallel(pool, body, ctx, extent)` on one thread, which is body(ctx, 0, extent, 0) in its place.
    """

    name: str
    constants: str
    prefix: str
    architecture: str
    mode: str
    arguments: tuple[str, str]
    stack: str
    link: str
    counter: str
    serial: bytes
    model: str = ""
    state: tuple[tuple[str, int], ...] = ()
    decode: Decode | None = None

    def register(self, name: str) -> int:
        """Unicorn's number of a register."""
        return int(getattr(require(self.constants, extra="emulator"), f"UC_{self.prefix}_REG_{name}"))

    def processor(self, unicorn: Any) -> Any:
        """A processor of this kind, whose floating-point and vector instructions do not trap."""
        cpu = unicorn.Uc(getattr(unicorn, self.architecture), getattr(unicorn, self.mode))
        if self.model:
            cpu.ctl_set_cpu_model(getattr(require(self.constants, extra="emulator"), self.model))
        for name, value in self.state:
            cpu.reg_write(self.register(name), value)
        return cpu


def _arm(code: bytes) -> tuple[int, int]:
    words = np.frombuffer(code, np.uint32)
    vector = (words & 0xBFA0FC00) == 0x0E20CC00  # fmla, fmls of float32
    half = (words & 0xBF60FC00) == 0x0E400C00  # of float16
    element = (words & 0xBF80B400) == 0x0F801000  # by an element: float32
    half_element = (words & 0xBFC0B400) == 0x0F001000  # float16
    scalar = (words & 0xFF000000) == 0x1F000000  # fmadd and its kin
    dot = (words & 0x9F20FC00) == 0x0E009400  # sdot, udot, usdot of bytes
    dot_element = ((words & 0x9F00F400) == 0x0F00E000) | ((words & 0xBFC0F400) == 0x0F00F000)
    found = vector | half | element | half_element | scalar | dot | dot_element
    return len(words), int(found.sum())


def _risc(code: bytes) -> tuple[int, int]:
    at = instructions = fused = 0
    while at < len(code):
        wide = code[at] & 3 == 3
        instructions += 1
        fused += wide and code[at] & 0x7F in (0x43, 0x47, 0x4B, 0x4F)  # fmadd and its kin
        at += 4 if wide else 2
    return instructions, fused


AARCH64 = InstructionSet(
    "aarch64", "unicorn.arm64_const", "ARM64", "UC_ARCH_ARM64", "UC_MODE_ARM", ("X0", "X1"), "SP", "LR", "PC",
    struct.pack(
        "<6I",
        0xAA0103E9,  # mov x9, x1
        0xAA0203E0,  # mov x0, x2
        0xAA0303E2,  # mov x2, x3
        0xD2800001,  # mov x1, 0
        0xD2800003,  # mov x3, 0
        0xD61F0120,  # br x9
    ),
    model="UC_CPU_ARM64_MAX",
    state=(("CPACR_EL1", 3 << 20),),
    decode=_arm,
)  # fmt: skip

RISCV64 = InstructionSet(
    "riscv64", "unicorn.riscv_const", "RISCV", "UC_ARCH_RISCV", "UC_MODE_RISCV64", ("A0", "A1"), "SP", "RA", "PC",
    struct.pack(
        "<6I",
        0x00058293,  # mv t0, a1
        0x00060513,  # mv a0, a2
        0x00068613,  # mv a2, a3
        0x00000593,  # li a1, 0
        0x00000693,  # li a3, 0
        0x00028067,  # jr t0
    ),
    state=(("MSTATUS", 3 << 13),),
    decode=_risc,
)  # fmt: skip

X86_64 = InstructionSet(
    "x86_64", "unicorn.x86_const", "X86", "UC_ARCH_X86", "UC_MODE_64", ("RDI", "RSI"), "RSP", "", "RIP",
    bytes.fromhex(
        "4889f0"  # mov rax, rsi
        "4889d7"  # mov rdi, rdx
        "4889ca"  # mov rdx, rcx
        "31f6"  # xor esi, esi
        "31c9"  # xor ecx, ecx
        "ffe0"  # jmp rax
    ),
)  # fmt: skip
"""Without AVX: what is not of the x86-64-v2 level is an invalid instruction."""

SETS: Mapping[str, InstructionSet] = {own.name: own for own in (AARCH64, RISCV64, X86_64)}

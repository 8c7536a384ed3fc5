"""Kernel code: instructions and micro-operations as bytes, behind a header that says where parameters lie in DRAM.

code ::= MAGIC, number of parameters, of instructions and of micro-operations (u32 each), then of every parameter its
         address in DRAM and its bytes (u64 each), instructions (16 bytes each), micro-operations (4 bytes each)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.errors import TargetError
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.isa import BYTES, Instruction, decode, encode

MAGIC = b"VDLA"
ALIGNMENT = 4096  # bytes, of parameters in DRAM: a multiple of every entry


@dataclass(frozen=True)
class VdlaKernel:
    """``parameters``: address in DRAM and bytes of each; micro-operations follow the last of them."""

    parameters: tuple[tuple[int, int], ...]
    instructions: tuple[Instruction, ...]
    uops: tuple[int, ...]

    @property
    def uop_address(self) -> int:
        """Where micro-operations begin in DRAM."""
        return max((_up(at + size) for at, size in self.parameters), default=0)


def _up(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def placed(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Parameters of these bytes one behind the other: (address, bytes) of each."""
    found, at = [], 0
    for size in sizes:
        found.append((at, size))
        at = _up(at + size)
    return tuple(found)


def to_bytes(config: Config, kernel: VdlaKernel) -> bytes:
    """The kernel as bytes."""
    head = struct.pack("<4s3I", MAGIC, len(kernel.parameters), len(kernel.instructions), len(kernel.uops))
    places = b"".join(struct.pack("<QQ", *each) for each in kernel.parameters)
    text = b"".join(encode(config, each) for each in kernel.instructions)
    return head + places + text + struct.pack(f"<{len(kernel.uops)}I", *kernel.uops)


def from_bytes(config: Config, data: bytes) -> VdlaKernel:
    """The kernel that :func:`to_bytes` wrote. Raises TargetError for other bytes."""
    if len(data) < 16 or data[:4] != MAGIC:
        raise TargetError(f"found code that begins with {data[:4]!r}, allowed: {MAGIC!r}")
    _, count, length, uops = struct.unpack_from("<4s3I", data)
    text = 16 + 16 * count
    end = text + BYTES * length
    if len(data) != end + 4 * uops:
        raise TargetError(f"found {len(data)} bytes of code, its header says {end + 4 * uops}")
    return VdlaKernel(
        tuple(struct.unpack_from("<QQ", data, 16 + 16 * i) for i in range(count)),
        tuple(decode(config, data[at : at + BYTES]) for at in range(text, end, BYTES)),
        struct.unpack_from(f"<{uops}I", data, end),
    )

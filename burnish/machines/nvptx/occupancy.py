"""Occupancy: which share of a multiprocessor's threads is resident, by what a block takes of registers and memory.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (7.5 to 12.0).
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.machines.nvptx.warp import WARP


@dataclass(frozen=True)
class Multiprocessor:
    """Resources of a multiprocessor: threads, blocks, registers of four bytes, bytes of shared memory.

    Registers are given to warps in pieces of ``granule``; a block takes ``reserved`` bytes more than it asks for.
    """

    threads: int = 2048
    blocks: int = 32
    registers: int = 1 << 16
    shared: int = 164 << 10
    granule: int = 256
    reserved: int = 1 << 10


_SERVER = Multiprocessor(shared=228 << 10)
_DESKTOP = Multiprocessor(threads=1536, blocks=24, shared=100 << 10)
MULTIPROCESSORS = {
    "sm_75": Multiprocessor(threads=1024, blocks=16, shared=64 << 10, reserved=0),
    "sm_80": Multiprocessor(),
    "sm_86": Multiprocessor(threads=1536, blocks=16, shared=100 << 10),
    "sm_87": Multiprocessor(threads=1536, blocks=16),
    "sm_89": _DESKTOP,
    **dict.fromkeys(("sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103"), _SERVER),
    **dict.fromkeys(("sm_120", "sm_120a"), _DESKTOP),
}


def resident_blocks(cpu: str, threads: int, registers: int, shared: int) -> int:
    """Occupancy: blocks on a multiprocessor at once, by threads, registers a thread and bytes of shared memory."""
    m = MULTIPROCESSORS[cpu]
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // m.granule) * m.granule
    by_registers = m.registers // (of_warp * warps) if registers else m.blocks
    return min(m.blocks, m.threads // (warps * WARP), by_registers, m.shared // max(1, shared + m.reserved))


def occupancy(cpu: str, threads: int, registers: int, shared: int) -> float:
    """The share of a multiprocessor's threads that are resident, from 0 to 1; see :func:`resident_blocks`."""
    resident = resident_blocks(cpu, threads, registers, shared) * -(-threads // WARP) * WARP
    return resident / MULTIPROCESSORS[cpu].threads

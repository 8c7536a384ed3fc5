"""Simulator of the accelerator: runs kernels bit-exactly, counts cycles, and refuses what a device would get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burnish.errors import VerificationError
from burnish.machines.vdla import units
from burnish.machines.vdla.code import VdlaKernel, from_bytes
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.isa import KINDS, UNITS, formats, unit_of, uop_bits
from burnish.machines.vdla.timing import BUSY, BYTES, END, PRODUCTS, VECTORS, simulate

KEPT = 256  # decoded kernels


@dataclass(frozen=True)
class Run:
    """Counters of a run of a kernel: ``cycles``, those each unit was ``busy``, ``products`` of the core, ``vectors`` of
    the ALU (resets count as such), ``bytes`` moved from and to DRAM.
    """

    cycles: int
    busy: tuple[int, int, int]
    products: int
    vectors: int
    bytes: int

    @property
    def utilization(self) -> float:
        """The share of cycles in which the core multiplies."""
        return self.products / max(self.cycles, 1)


@dataclass(frozen=True)
class _Decoded:
    kernel: VdlaKernel
    table: np.ndarray
    order: np.ndarray
    length: np.ndarray


class VdlaDevice:
    """The accelerator of a :class:`Config`, as a device runner calls it; ``runs`` holds what each kernel took."""

    def __init__(self, config: Config = Config()) -> None:  # noqa: B008 - it is immutable
        self.config = config
        self.runs: list[Run] = []
        self.spans = np.zeros((0, 2), np.int64)  # of the last run: when each instruction began and ended
        self._decoded: dict[bytes, _Decoded] = {}
        self._dram = np.zeros(0, np.uint8)

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        """Runs one kernel on the bytes of its parameters. Raises VerificationError, naming the instruction, for a
        deadlock, an access out of range, a read of what was not written, and accesses that no token orders.
        """
        found = self._decoded.get(code)
        if found is None:
            if len(self._decoded) >= KEPT:
                self._decoded.clear()
            found = self._decoded[code] = _decode(self.config, from_bytes(self.config, code))
        kernel = found.kernel
        dram = self._place(kernel, memory)
        state = _state(self.config, dram)
        c, counts = self.config, np.zeros(7, np.int64)
        clocks = np.array([c.dram_latency, c.dram_bytes, c.dram_burst, c.pipeline, c.queue_depth], np.int64)
        entry_bytes = np.array([m.entry for m in c.memories.values()], np.int64)
        self.spans = np.zeros((len(kernel.instructions), 2), np.int64)
        fault, at = simulate(
            state, found.table, found.order, found.length, clocks, entry_bytes, counts, self.spans
        )  # fmt: skip
        if fault:
            raise VerificationError(_explain(self.config, kernel, fault, at, state.fault))
        for (begin, size), array in zip(kernel.parameters, memory, strict=True):
            array[:] = dram[begin : begin + size]
        busy = tuple(int(n) for n in counts[BUSY : BUSY + len(UNITS)])
        self.runs.append(Run(int(counts[END]), busy, int(counts[PRODUCTS]), int(counts[VECTORS]), int(counts[BYTES])))  # type: ignore[arg-type]

    def _place(self, kernel: VdlaKernel, memory: Sequence[np.ndarray]) -> np.ndarray:
        sizes = [array.nbytes for array in memory]
        if sizes != [size for _, size in kernel.parameters]:
            said = [size for _, size in kernel.parameters]
            raise VerificationError(f"parameters have {sizes} bytes, the kernel was made for {said}")
        words = np.array(kernel.uops, "<u4").view(np.uint8)
        end = kernel.uop_address + len(words)
        if len(self._dram) < end:
            self._dram = np.zeros(end, np.uint8)
        dram = self._dram[:end]
        for (begin, size), array in zip(kernel.parameters, memory, strict=True):
            dram[begin : begin + size] = array
        dram[kernel.uop_address :] = words
        return dram


def _decode(config: Config, kernel: VdlaKernel) -> _Decoded:
    """Instructions as rows of numbers, and those of each unit in order."""
    fields = {kind: [f.name for f in own if f.name != "opcode"] for kind, own in formats(config).items()}
    table = np.zeros((len(kernel.instructions), 22), np.int64)
    order: list[list[int]] = [[] for _ in UNITS]
    operations = {op.code: units.OPERATIONS.index(op.op) for op in config.alu}
    for i, each in enumerate(kernel.instructions):
        unit = UNITS.index(unit_of(each))
        values = dict(each.values)
        if each.kind == "alu":
            if values["op"] not in operations:
                known = ", ".join(f"{op.code} ({op.name})" for op in config.alu)
                raise VerificationError(f"instruction {i}: ALU operation {values['op']} is unknown; known: {known}")
            values["op"] = operations[values["op"]]
        row = [KINDS.index(each.kind), unit, *(values[name] for name in fields[each.kind])]
        table[i, : len(row)] = row
        order[unit].append(i)
    longest = max(map(len, order), default=0)
    padded = np.array([[*own, *[0] * (longest - len(own))] for own in order], np.int64).reshape(len(UNITS), longest)
    return _Decoded(kernel, table, padded, np.array([len(own) for own in order], np.int64))


def _state(config: Config, dram: np.ndarray) -> units.UnitState:
    """Memories that nobody has written."""
    m, b = config.memories, config.block
    entries = np.array([each.entries for each in m.values()], np.int64)
    writer = np.zeros((len(m) - 1, int(entries.max()), 2), np.int64)
    writer[:, :, 0] = -1
    return units.UnitState(
        np.zeros((m["uop"].entries, 3), np.int64), np.zeros((m["wgt"].entries, b, b), np.int8),
        np.zeros((m["inp"].entries, b), np.int8), np.zeros((m["acc"].entries, b), np.int32), dram, writer,
        np.zeros((len(m) - 1, int(entries.max()), len(UNITS)), np.int64), np.zeros((len(UNITS), len(UNITS)), np.int64),
        entries, np.array(uop_bits(config), np.int64), np.zeros(2, np.int64),
    )  # fmt: skip


def _explain(config: Config, kernel: VdlaKernel, fault: int, at: int, where: np.ndarray) -> str:
    """A fault in words."""
    each = kernel.instructions[at]
    memory = [*config.memories][int(where[0])]
    last = config.memories[memory].entries - 1
    said = f"instruction {at} of the {unit_of(each)} unit ({each})"
    place = f"entry {int(where[1])} of memory '{memory}'"
    return {
        units.DEADLOCK: f"deadlock: {said} waits for a token, or for room for one, that never comes",
        units.UNWRITTEN: f"read before write: {said} reads {place}, which nothing has written",
        units.OUT_OF_RANGE: f"out of range: {said} accesses {place}, allowed: 0 to {last}",
        units.OUT_OF_DRAM: f"out of range: {said} accesses DRAM at byte {int(where[1])}, outside of the parameters",
        units.READ_RACE: f"race: {said} reads {place}, for whose writing by another unit it has not waited",
        units.WRITE_RACE: f"race: {said} writes {place}, for whose use by another unit it has not waited",
    }[fault]

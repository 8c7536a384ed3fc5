"""Configuration of an accelerator: the size of its core, its memories, its clock and DRAM, and its ALU's operations."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.errors import TargetError


@dataclass(frozen=True)
class AluOp:
    """One operation of the vector ALU on 32-bit numbers, by its ``name`` in the assembly and ``code`` in the encoding.

    ``op``: the operator of the expression that it computes, of ``loops.expr`` ("+", "min", "max", "*", "shr").
    """

    name: str
    code: int
    op: str


MIN, MAX, ADD, SHR = AluOp("min", 0, "min"), AluOp("max", 1, "max"), AluOp("add", 2, "+"), AluOp("shr", 3, "shr")
MUL = AluOp("mul", 4, "*")
ALU = (MIN, MAX, ADD, SHR)


@dataclass(frozen=True)
class OnChipMemory:
    """An on-chip memory: addresses of instructions count entries of ``entry`` bytes, of which there are ``entries``."""

    name: str
    code: int
    entry: int
    entries: int


@dataclass(frozen=True)
class Config:
    """All that tells one accelerator from another. Sizes in bytes, times in cycles.

    ``block`` is the number of rows and of columns of the matrix-vector core, and of lanes of the ALU: one product of a
    ``block`` x ``block`` matrix of int8 with a vector of int8, added to ``block`` int32, a cycle. DRAM moves
    ``dram_bytes`` a cycle in bursts of ``dram_burst`` bytes, shared by all units, the first of them after
    ``dram_latency`` cycles. ``pipeline``: cycles from the issue of an instruction of the core to its first result.
    ``queue_depth``: tokens that a dependence queue holds. The defaults are those of thesis-chen section 4.6.4; its DRAM
    is that of the board named there: 16 bits of DDR3-1050, of whose 2.1 GB/s three quarters are taken as reached.
    """

    name: str = "vdla"
    block: int = 16
    clock: float = 200e6
    inp_bytes: int = 32 << 10
    wgt_bytes: int = 32 << 10
    uop_bytes: int = 32 << 10
    acc_bytes: int = 128 << 10
    dram_bytes: int = 8
    dram_latency: int = 64
    dram_burst: int = 32
    pipeline: int = 8
    queue_depth: int = 512
    alu: tuple[AluOp, ...] = ALU

    def __post_init__(self) -> None:
        """Raises TargetError for sizes that cannot be."""
        for name in ("block", "inp_bytes", "wgt_bytes", "uop_bytes", "acc_bytes", "dram_bytes", "dram_burst"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1 or value & (value - 1):
                raise TargetError(f"accelerator '{self.name}': {name} is {value!r}, allowed: a power of two")
        if len({op.code for op in self.alu}) != len(self.alu) or any(not 0 <= op.code < 16 for op in self.alu):
            raise TargetError(f"accelerator '{self.name}': codes of ALU operations must differ, and be 0 to 15")

    @property
    def memories(self) -> dict[str, OnChipMemory]:
        """The memories by name; ``acc8`` is the accumulators, of which DRAM holds the low byte of each number."""
        b, accumulators = self.block, self.acc_bytes // (4 * self.block)
        return {
            "uop": OnChipMemory("uop", 0, 4, self.uop_bytes // 4),
            "wgt": OnChipMemory("wgt", 1, b * b, self.wgt_bytes // (b * b)),
            "inp": OnChipMemory("inp", 2, b, self.inp_bytes // b),
            "acc": OnChipMemory("acc", 3, 4 * b, accumulators),
            "acc8": OnChipMemory("acc8", 4, b, accumulators),
        }

    @property
    def operations(self) -> float:
        """Multiplications and additions of the core a second, at most."""
        return 2.0 * self.block * self.block * self.clock

    @property
    def bandwidth(self) -> float:
        """Bytes a second from or to DRAM, at most."""
        return self.dram_bytes * self.clock

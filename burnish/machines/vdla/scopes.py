"""Memories of the accelerator as scopes of loop programs, and which unit executes a statement on them."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.program import Intrinsic, Stmt, Store
from burnish.machines.decoupled import Decoupled
from burnish.machines.scopes import GLOBAL, MemoryScope
from burnish.machines.vdla.config import Config

INP, WGT, ACC = "inp", "wgt", "acc"
ON_CHIP = (INP, WGT, ACC)


def scopes(config: Config) -> tuple[MemoryScope, ...]:
    """DRAM, the memories of inputs and weights (int8), and the accumulators (int32)."""
    return (
        GLOBAL,
        MemoryScope(INP, config.inp_bytes),
        MemoryScope(WGT, config.wgt_bytes),
        MemoryScope(ACC, config.acc_bytes),
    )


def unit_of(s: Stmt) -> str:
    """Which unit executes a store or an intrinsic: copies to inputs and weights are of the load unit, to DRAM of the
    store unit; the compute unit does all else, also copies to accumulators. Raises ScheduleError for other memories.
    """
    if isinstance(s, Store):
        found = {INP: "load", WGT: "load", ACC: "compute", GLOBAL.name: "store"}.get(s.buffer.scope)
        if found is None:
            raise ScheduleError(
                f"buffer '{s.buffer.name}' is in scope '{s.buffer.scope}'; allowed: {', '.join(ON_CHIP)}"
            )
        return found
    if isinstance(s, Intrinsic):
        return "compute"
    raise ScheduleError(f"there is no instruction for {s}")


UNITS = Decoupled(
    unit_of,
    frozenset({("load", "compute"), ("compute", "load"), ("compute", "store"), ("store", "compute")}),
)

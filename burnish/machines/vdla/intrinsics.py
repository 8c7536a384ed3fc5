"""Tensor intrinsics of the accelerator's core: their behaviour, and the rule by which a stage becomes instructions.

Source: thesis-chen section 4.3.3: a declaration gives the behaviour, and how to compute, to reset and to update.
"""

from __future__ import annotations

from burnish.loops.expr import Buffer, Const, Var
from burnish.loops.program import Store
from burnish.machines.intrinsics import TensorIntrinsic, TensorRule, declare, lane_dot
from burnish.machines.vdla.config import Config


def core(config: Config) -> TensorRule:
    """The core's product of a matrix [block, block] and a vector [block] of int8, added to int32 accumulators."""
    b = config.block
    out = Buffer("out", (b,), "int32")
    zeros = Store(out, (Var("i"),), Const(0, "int32"))
    update = lane_dot(f"{config.name}.gemm", b, b, "int8", "int8", "int32")
    return TensorRule(reset=declare(f"{config.name}.reset", (out,), [("i", b)], zeros), update=update)


def intrinsics(config: Config) -> tuple[TensorIntrinsic, ...]:
    """All intrinsics of the machine."""
    return core(config).members

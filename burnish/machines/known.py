"""The machines that Burnish ships, as an explicit list, and what is known of them by name."""

from __future__ import annotations

from collections.abc import Mapping

from burnish.errors import TargetError
from burnish.machines.aarch64.machine import AARCH64
from burnish.machines.intrinsics import TensorIntrinsic
from burnish.machines.machine import CpuModel, Machine
from burnish.machines.nvptx.machine import NVPTX
from burnish.machines.riscv.machine import RISCV
from burnish.machines.vdla.machine import VDLA
from burnish.machines.x86.machine import X86

MACHINES: tuple[Machine, ...] = (X86, AARCH64, RISCV, NVPTX)
MODELS: Mapping[str, tuple[Machine, CpuModel]] = {model.name: (m, model) for m in MACHINES for model in m.models}
ACCELERATORS: Mapping[str, Machine] = {VDLA.name: VDLA}
"""Machines that are no CPU, by name: what drives them is the CPU of this machine."""
INTRINSICS: Mapping[str, TensorIntrinsic] = {
    t.name: t for machine in MACHINES for t in machine.named_intrinsics.values()
}
FEATURES: frozenset[str] = frozenset().union(
    *(model.features.split() for _, model in MODELS.values()),
    *(machine.flags for machine in MACHINES),
    *((unit.feature, unit.state) for machine in MACHINES for unit in machine.units),
)
"""LLVM's names of all instruction sets that any of the machines knows."""


def machine_for(triple: str) -> Machine:
    """The machine of an LLVM triple. Raises TargetError, naming those that are known."""
    architecture = triple.partition("-")[0]
    for machine in MACHINES:
        if architecture in machine.architectures:
            return machine
    known = ", ".join(a for machine in MACHINES for a in machine.architectures)
    raise TargetError(f"target {triple!r}: no machine for {architecture}; known: {known}")

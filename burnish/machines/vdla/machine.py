"""The accelerator as a machine of Burnish: memories, core and code generator, all from one configuration."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from burnish.loops.program import LoopProgram
from burnish.machines.dialect import Dialect
from burnish.machines.machine import Core, CpuModel, Machine
from burnish.machines.vdla.code import to_bytes
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.emit import emit
from burnish.machines.vdla.epilogue import compute_in_place
from burnish.machines.vdla.intrinsics import intrinsics
from burnish.machines.vdla.scopes import UNITS, scopes


def _vectors(block: int, features: Collection[str]) -> tuple[int, int]:
    """One vector of accumulators: images lie in blocks of as many channels."""
    return 4 * block, 1


def compile_program(config: Config, program: LoopProgram, target: Any) -> tuple[bytes, int]:
    """The code of a lowered program; it needs no scratch. Raises ScheduleError for what there is no instruction for."""
    return to_bytes(config, emit(program, config)), 0


def make_device(config: Config) -> Any:
    """The simulator, whose import takes longer than that of all the package: numba is loaded when it is needed."""
    from burnish.machines.vdla.device import VdlaDevice

    return VdlaDevice(config)


def machine(config: Config, **changes: Any) -> Machine:
    """The machine of a configuration; ``changes`` are other fields of ``Machine``, such as templates of one's own."""
    own: dict[str, Any] = {
        "name": config.name,
        "kind": "vdla",
        "architectures": (config.name,),
        "vectors": partial(_vectors, config.block),
        "core": Core(None, config.clock, config.bandwidth, config.bandwidth),
        "models": (CpuModel(config.name, config.name, "", config.inp_bytes, config.acc_bytes, 0, 1),),
        "dialect": Dialect({"serial": None, "vthread": None}),
        "scopes": scopes(config),
        "intrinsics": intrinsics(config),
        "compile": partial(compile_program, config),
        "passes": (compute_in_place,),
        "decoupled": UNITS,
        "device": partial(make_device, config),
        "blocked": ("float32", "int8"),
        "offloads": True,
        "config": config,
        "version": str(config),
    }
    return Machine(**{**own, **changes})


VDLA = machine(Config(), import_path="burnish.machines.vdla.machine:VDLA")

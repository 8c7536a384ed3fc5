"""LLVM IR text to relocatable object code."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from burnish.errors import TargetError
from burnish.machines.target import Target


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def target_machine(target: Target, effort: int = 3) -> llvm.TargetMachine:
    """LLVM's machine for position-independent code, at full code-generation effort or less of it."""
    _initialize()
    try:
        chosen = llvm.Target.from_triple(target.triple)
        return chosen.create_target_machine(
            cpu=target.cpu, features=target.code_features, opt=effort, reloc="pic", codemodel="small"
        )
    except RuntimeError as e:
        raise TargetError(f"target {target.name!r}: LLVM cannot emit code for {target.triple} ({e})") from e


def parse(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """A module of LLVM IR for a machine."""
    module = llvm.parse_assembly(text)
    module.triple = str(machine.triple)
    module.data_layout = str(machine.target_data)
    return module


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Promotes register slots to SSA; the emitter has done everything else.

    No instruction combining: it moves the constant parts of a tile's addresses out of the inner loop, into registers.
    """
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def compile_ir(text: str, target: Target, effort: int = 3) -> bytes:
    """The object file of a module of LLVM IR. `effort` 0: long straight-line code compiles sooner, and runs as fast."""
    machine = target_machine(target, effort)
    module = parse(text, machine)
    if effort:
        optimize(module, machine)
    return machine.emit_object(module)

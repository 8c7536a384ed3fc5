"""Code for several CPUs in one module: a model compiled for each of them, of which loading takes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from burnish.errors import ArtifactError, ParameterError
from burnish.machines.target import Target
from burnish.machines.target import target as find_target
from burnish.runtime.devices import device_maker
from burnish.runtime.module import Module
from burnish.runtime.variants import Variant, choose


def compile_variants(targets: Sequence[Any], compile_for: Callable[[Any], Any]) -> Module:
    """The module of the target that suits this machine best, or of the first where none does, which saves all of them.

    ``compile_for``: the module for one target. Raises ParameterError for targets that one file cannot hold together.
    """
    machines = _checked(targets)
    made: dict[str, Module] = {}
    for machine, target in zip(machines, targets, strict=True):
        module = compile_for(target)
        if not isinstance(module, Module):
            raise ParameterError(
                f"target: found {len(targets)} for a model that is compiled at its calls; allowed: one, or sizes and "
                "values that are known before"
            )
        module.note(variant=machine.name)
        made[machine.name] = module
    first = next(iter(made.values())).executable
    for name, module in made.items():
        if module.executable.states != first.states:
            raise ParameterError(f"target: states of '{name}' are not those of '{machines[0].name}'; allowed: the same")
    try:
        chosen = made[choose({name: module.executable.target for name, module in made.items()})]
    except ArtifactError:
        chosen = made[machines[0].name]
    chosen.hold([Variant(name, module.executable) for name, module in made.items()])
    return chosen


def _checked(targets: Sequence[Any]) -> list[Target]:
    """The targets of a list. Raises TargetError for one that is not known, ParameterError for one that is no CPU."""
    machines = [find_target(one) for one in targets]
    if not machines:
        raise ParameterError("target: found no targets; allowed: one or more")
    for number, machine in enumerate(machines):
        if machine.machine.offloads or device_maker(machine.machine) is not None:
            raise ParameterError(f"target: found '{machine.name}' among several; allowed there: CPUs")
        if any(machine.name == other.name for other in machines[:number]):
            raise ParameterError(f"target: found '{machine.name}' twice; allowed: once")
    return machines

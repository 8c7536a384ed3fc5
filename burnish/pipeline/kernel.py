"""One fused task to object code: schedule, lower, emit, through the content-hash cache."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import burnish
from burnish import dump
from burnish.cache import ObjectCache, cache_key
from burnish.codegen.legal import refuse_unlowered
from burnish.codegen.llvm import emit
from burnish.codegen.objects import compile_ir
from burnish.errors import ScheduleError
from burnish.kernels.task import Choice, Task
from burnish.kernels.template import Match
from burnish.kernels.templates import first_match, matches, tunable_matches
from burnish.loops.program import Program
from burnish.lower.pipeline import lower, simplify_program
from burnish.schedule.schedule import Schedule
from burnish.target import Target

# What decides which code a task becomes.
_CODE = ("loops", "machines", "schedule", "kernels", "lower", "codegen", "pipeline/kernel.py")

_log = logging.getLogger("burnish")


@dataclass(frozen=True)
class Kernel:
    """Machine code of one task. ``packing``: layout tag of each constant parameter that is not row-major."""

    symbol: str
    code: bytes
    scratch_bytes: int
    packing: Mapping[str, str]
    template: str
    choice: Choice


@dataclass(frozen=True)
class KernelConfig:
    """How to schedule a task: a template by name, and its choices."""

    template: str
    choice: Choice

    def __str__(self) -> str:
        return json.dumps({"template": self.template, "choice": dict(sorted(self.choice.items()))})


@cache
def code_version() -> str:
    """A hash of the compiler's own source: kernels of another version are not reused."""
    root = Path(burnish.__file__).parent
    files = [
        f for name in _CODE for f in ([root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py")))
    ]
    return cache_key(*(f.read_bytes() for f in files))


def schedule(task: Task, target: Target, choice: Choice | None = None) -> tuple[Schedule, str, Choice]:
    """The schedule of ``task`` (by default the analytic choice), its template's name, and the choice made."""
    match = first_match(task, target)
    chosen = {**match.space.default, **(choice or {})}
    return match.apply(chosen), match.name, chosen


def task_key(task: Task, target: Target) -> str:
    """Identifies what a task computes, in which layouts, on which machine."""
    definition = "\n".join(str(t) for t in (*task.inputs, *task.stages()))
    layouts = json.dumps({name: str(layout) for name, layout in sorted(task.layouts.items())})
    outputs = " ".join(t.name for t in task.outputs)
    constants = " ".join(sorted(task.constants))
    return cache_key(code_version(), target.key, task.label, definition, outputs, layouts, constants)


def build(task: Task, target: Target, store: ObjectCache | None, recipe: KernelConfig | None = None) -> Kernel:
    """The kernel of ``task`` by ``recipe``, or else with the default choice of its template."""
    key = task_key(task, target)
    found = store.get(_entry(key, recipe)) if store and not dump.active() else None
    if found is not None:
        head, _, code = found.partition(b"\n")
        return Kernel(code=code, **json.loads(head))
    own = named(task, key)
    with dump.kernel(own.name):
        dump.form("task", "\n".join(str(t) for t in (*own.inputs, *own.stages())))
        kernel = compile_recipe(own, target, recipe) if recipe else compile_task(own, target)
    if store:
        keep(store, key, kernel, recipe)
    return kernel


def keep(store: ObjectCache, key: str, kernel: Kernel, recipe: KernelConfig | None = None) -> None:
    """Stores the kernel of the task with this key, which `build` then finds."""
    fields = {k: getattr(kernel, k) for k in ("symbol", "scratch_bytes", "packing", "template", "choice")}
    store.put(_entry(key, recipe), json.dumps(fields).encode() + b"\n" + kernel.code)


def _entry(key: str, recipe: KernelConfig | None) -> str:
    return cache_key(key, str(recipe)) if recipe else key


def compile_recipe(task: Task, target: Target, recipe: KernelConfig) -> Kernel:
    """The kernel that a recipe makes. Raises ScheduleError if its template does not match the task, or cannot."""
    found = tunable_matches(task, target)
    match = next((m for m in found if m.name == recipe.template), None)
    if match is None:
        names = ", ".join(m.name for m in found)
        raise ScheduleError(f"task '{task.name}': template '{recipe.template}' does not match; those that do: {names}")
    return compile_by(match, recipe.choice)


def named(task: Task, key: str) -> Task:
    """``task`` under the name that its kernel has in object code: what it computes, and the start of its key."""
    return replace(task, name=f"{task.label or 'map'}_{key[:12]}")


def compile_task(task: Task, target: Target) -> Kernel:
    """The kernel by the first template that can schedule ``task``. One that matches and cannot is warned of.

    Raises ScheduleError if the last one, which takes everything, cannot either.
    """
    *special, last = matches(task, target)
    for match in special:
        try:
            return compile_by(match)
        except ScheduleError as error:
            _log.warning("kernel '%s' will be slow: template '%s' cannot schedule it: %s", task.name, match.name, error)
    return compile_by(last)


def compile_by(match: Match, chosen: Choice | None = None) -> Kernel:
    """The kernel of a task by one template, with ``chosen`` in place of its defaults. Raises ScheduleError."""
    choice = {**match.space.default, **(chosen or {})}
    began = time.perf_counter()
    made = match.apply(choice)
    if dump.active():
        dump.form("schedule", scheduled(match.name, choice, made), time.perf_counter() - began)
    return compile_program(made.program, match.target, packing(made.trace, match.task), match.name, choice)


def packing(trace: Iterable[Sequence[Any]], task: Task) -> dict[str, str]:
    """The layouts that a schedule gave to the constant parameters, from its trace."""
    return {args[0]: str(args[1]) for name, args in trace if name == "transform_layout" and args[0] in task.constants}


def compile_program(
    program: Program, target: Target, packed: Mapping[str, str], template: str, choice: Choice
) -> Kernel:
    """Lowers and compiles a scheduled program, by LLVM or by the machine's own code generator."""
    refuse_unlowered(program, target)
    if target.machine.compile is not None:
        own, scratch = target.machine.compile(simplify_program(program), target)
        return Kernel(program.name, own, scratch, packed, template, choice)
    lowered = lower(program)
    began = time.perf_counter()
    code = emit(lowered, target)
    emitted = time.perf_counter()
    dump.form("emit", code.text, emitted - began, ".ll")
    machine = compile_ir(code.text, target)
    dump.form("compile_ir", f"{len(machine)} bytes of object code", time.perf_counter() - emitted)
    return Kernel(program.name, machine, code.scratch_bytes, packed, template, choice)


def scheduled(template: str, choice: Choice, made: Schedule) -> str:
    """A schedule as text: its template and choices, every primitive, and the loop program that they give."""
    steps = [f"{name}({', '.join(map(repr, args))})" for name, args in made.trace]
    return "\n".join([f"template {template} {json.dumps(dict(choice))}", *steps, "", str(made.program)])

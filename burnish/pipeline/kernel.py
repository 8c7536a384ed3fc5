"""One fused task to object code: schedule, lower, emit, through the content-hash cache."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import burnish
from burnish.base import dump
from burnish.base.cache import ObjectCache, cache_key
from burnish.base.dump import through
from burnish.codegen.grid import compile_grid
from burnish.codegen.legal import refuse_unlowered
from burnish.codegen.llvm import emit
from burnish.codegen.objects import compile_ir
from burnish.errors import ScheduleError
from burnish.graph.costs import KERNEL, roofline_seconds
from burnish.kernels.task import Choice, KernelTask
from burnish.kernels.template import TemplateMatch
from burnish.kernels.templates import first_match, general_template, matches, tunable_matches
from burnish.loops.program import LoopProgram
from burnish.lower.instructions import PER_CYCLE, instructions
from burnish.lower.pipeline import lower, own_passes
from burnish.machines.target import Target
from burnish.ops.classify import flops_and_traffic
from burnish.schedule.schedule import Call, Schedule, replay

DIGITS = 12  # of a task's key, in the name of its kernel
SLOW = 20.0  # times the roofline from which on a kernel is said to be slow; good ones are estimated at 1 to 5 times
SHORT = 5e-6  # seconds of a kernel that is never said to be
GRANULES = (16, 40)  # of a symbolic extent: the rows of a matrix tile; more than a vector, and whole ones of most
# What decides which code a task becomes.
_CODE = ("loops", "machines", "schedule", "kernels", "lower", "codegen", "pipeline/kernel.py", "pipeline/native.py")

_log = logging.getLogger("burnish")


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one task. ``packing``: layout tag of each packed parameter that is not row-major.

    ``dims``: the dimensions whose values it takes behind its buffers. ``seconds``: a static estimate of a call
    (``lower.instructions``); 0 of code that is not counted. ``regions``: the parallel loops that it consists of, each
    with an entry point (``codegen.entries``): iterations, and estimated seconds on one thread; of a kernel without such
    loops, which runs on one thread, 0 and its seconds. Empty where it is of another form, or for open sizes.
    """

    symbol: str
    code: bytes
    scratch_bytes: int
    packing: Mapping[str, str]
    template: str
    choice: Choice
    dims: tuple[str, ...] = ()
    seconds: float = 0.0
    regions: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class KernelConfig:
    """Kernel schedule of a task: a template by name, and its choices."""

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


def schedule(task: KernelTask, target: Target, choice: Choice | None = None) -> tuple[Schedule, str, Choice]:
    """The schedule of ``task`` (by default the analytic choice), its template's name, and the choice made.

    Of a symbolic task that of its hint.
    """
    match = first_match(task.hinted, target)
    chosen = {**match.space.default, **(choice or {})}
    return match.apply(chosen), match.name, chosen


def task_key(task: KernelTask, target: Target) -> str:
    """Identifies what a task computes, in which layouts, on which machine."""
    definition = "\n".join(str(t) for t in (*task.inputs, *task.stages()))
    layouts = json.dumps({name: str(layout) for name, layout in sorted(task.layouts.items())})
    outputs = " ".join(t.name for t in task.outputs)
    dims = [f"{d} {d.low} {d.high} {d.hint}" for d in task.dims]
    known = " ".join(sorted(task.constants))
    packed = [" ".join(sorted(names)) for names in (task.packed, task.shared) if names]
    turn = ["odd round"] if task.odd_round else []
    return cache_key(code_version(), target.key, task.label, definition, outputs, layouts, known, *packed, *dims, *turn)


def build(
    task: KernelTask, target: Target, store: ObjectCache | None, recipe: KernelConfig | None = None
) -> CompiledKernel:
    """The kernel of ``task`` by ``recipe``, or else with the default choice of its template."""
    key = task_key(task, target)
    found = store.get(_entry(key, recipe)) if store and not dump.active() else None
    if found is not None:
        head, _, code = found.partition(b"\n")
        return _kept(head, code)
    own = named(task, key)
    with dump.kernel(own.name):
        dump.form("task", "\n".join(str(t) for t in (*own.inputs, *own.stages())))
        kernel = _by_recipe(own, target, recipe) if recipe else compile_task(own, target)
    if store:
        keep(store, key, kernel, recipe)
    return kernel


def outline(
    task: KernelTask, target: Target, store: ObjectCache | None, recipe: KernelConfig | None = None
) -> CompiledKernel:
    """The kernel that :func:`build` would make without its machine code and scratch: its name, and how it wants its
    parameters packed. For plans of memory.
    """
    key = task_key(task, target)
    found = store.get(_entry(key, recipe)) if store else None
    if found is not None:
        return _kept(found.partition(b"\n")[0], b"")
    own, given = named(task, key), recipe.choice if recipe else None
    tried = [m for m in matches(own.hinted, target) if recipe is None or m.name == recipe.template]
    for match in tried:
        try:
            _, trace, choice = scheduled_program(match, own, given)
        except ScheduleError:
            continue
        return CompiledKernel(own.name, b"", 0, packing(trace, own), match.name, choice)
    raise ScheduleError(f"task '{own.name}': no template can schedule it")


def keep(store: ObjectCache, key: str, kernel: CompiledKernel, recipe: KernelConfig | None = None) -> None:
    """Stores the kernel of the task with this key, which `build` then finds."""
    fields = {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel) if field.name != "code"}
    store.put(_entry(key, recipe), json.dumps(fields).encode() + b"\n" + kernel.code)


def _kept(head: bytes, code: bytes) -> CompiledKernel:
    """The kernel of what `keep` has stored."""
    fields = json.loads(head)
    regions = tuple((extent, seconds) for extent, seconds in fields["regions"])
    return CompiledKernel(code=code, **{**fields, "dims": tuple(fields["dims"]), "regions": regions})


def _entry(key: str, recipe: KernelConfig | None) -> str:
    return cache_key(key, str(recipe)) if recipe else key


def _by_recipe(task: KernelTask, target: Target, recipe: KernelConfig) -> CompiledKernel:
    """The kernel that a recipe makes; where dimensions are open and it does not suit all their values, the default."""
    try:
        return compile_recipe(task, target, recipe)
    except ScheduleError:
        if not task.dims:
            raise
        return compile_task(task, target)


def compile_recipe(task: KernelTask, target: Target, recipe: KernelConfig) -> CompiledKernel:
    """The kernel that a recipe makes. Raises ScheduleError if its template does not match the task, or cannot."""
    found = tunable_matches(task.hinted, target)
    match = next((m for m in found if m.name == recipe.template), None)
    if match is None:
        names = ", ".join(m.name for m in found)
        raise ScheduleError(f"task '{task.name}': template '{recipe.template}' does not match; those that do: {names}")
    return compile_by(match, recipe.choice, task)


def named(task: KernelTask, key: str) -> KernelTask:
    """``task`` under the name that its kernel has in object code: what it computes, and the start of its key."""
    return replace(task, name=f"{task.label or 'map'}_{key[:DIGITS]}")


def compile_task(task: KernelTask, target: Target) -> CompiledKernel:
    """The kernel by the first template that can schedule ``task``. One that matches and cannot is warned of.

    Raises ScheduleError if the last one, which takes everything, cannot either.
    """
    *special, last = matches(task.hinted, target)
    problems: list[str] = []
    # Where dimensions are open, iterations of fused loops may not be known to be independent: then on one thread.
    for match, parallel in [(m, p) for p in (True, False)[: 1 + bool(task.dims)] for m in special] + [(last, True)]:
        try:
            kernel = compile_by(match, task=task, parallel=parallel)
        except ScheduleError as error:
            problems.append(f"template '{match.name}' cannot schedule it: {error}")
            continue
        if problems:
            slow = "will be slow" if match is last else "runs on one thread" if not parallel else ""
            _log.log(logging.WARNING if slow else logging.INFO, "kernel '%s' %s: %s", task.name, slow, problems[0])
        return kernel
    return compile_by(last, task=task, parallel=not task.dims)


def compile_by(
    match: TemplateMatch, chosen: Choice | None = None, task: KernelTask | None = None, parallel: bool = True
) -> CompiledKernel:
    """The kernel of a task by one template, with ``chosen`` in place of its defaults. Raises ScheduleError.

    ``task``: the symbolic one, where the match is one of its hint. ``parallel``: whether loops may run on all threads.
    """
    task = task or match.task
    began = time.perf_counter()
    program, trace, choice = scheduled_program(match, task, chosen, parallel)
    if dump.active():
        dump.form("schedule", scheduled(match.name, choice, trace, program), time.perf_counter() - began)
    return compile_program(program, match.target, packing(trace, task), match.name, choice)


def scheduled_program(
    match: TemplateMatch, task: KernelTask, chosen: Choice | None = None, parallel: bool = True
) -> tuple[LoopProgram, list[Call], Choice]:
    """The scheduled program of ``task``, the trace that led to it, and the choice made. Raises ScheduleError.

    A symbolic task is scheduled at its hint (``match``), and the trace replayed with the dimensions open. What the
    template takes by default there may not suit other sizes: blocks of a hundred rows, or one vector for all of an
    axis. Then it is scheduled at a granule.
    """
    problem: ScheduleError | None = None
    for at in [match] if chosen else _examples(match, task):
        try:
            return _scheduled_at(at, task, chosen, parallel)
        except ScheduleError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _examples(match: TemplateMatch, task: KernelTask) -> Iterator[TemplateMatch]:
    """The template on the static tasks at which a task may be scheduled, best first: itself if it is static."""
    yield match
    inside = [{d.name: min(max(granule, d.low), d.high) for d in task.dims} for granule in GRANULES if task.dims]
    # At last also beyond the bounds: what is made for more than a vector does not take an axis for one.
    sizes = [*inside, {d.name: max(GRANULES[-1], d.low) for d in task.dims}] if task.dims else []
    tried = [{d.name: d.hint for d in task.dims}]
    for each in sizes:
        if each not in tried:
            tried.append(each)
            yield match.template.on(task.at(each), match.target)


def _scheduled_at(
    at: TemplateMatch, task: KernelTask, chosen: Choice | None, parallel: bool
) -> tuple[LoopProgram, list[Call], Choice]:
    """See :func:`scheduled_program`; ``at``: the template on a static task."""
    choice = {**at.space.default, **(chosen or {})}
    made = at.apply(choice)
    if at.task is task:
        return made.program, made.trace, choice
    own = at.target.machine.named_intrinsics.values(), at.target.machine.scopes
    trace = [call for call in made.trace if parallel or call[0] != "parallel"]
    return replay(task.program(), trace, *own), trace, choice


def packing(trace: Iterable[Sequence[Any]], task: KernelTask) -> dict[str, str]:
    """The layouts that a schedule gave to the parameters that are packed, from its trace."""
    return {args[0]: str(args[1]) for name, args in trace if name == "transform_layout" and args[0] in task.packing}


def compile_program(
    program: LoopProgram, target: Target, packed: Mapping[str, str], template: str, choice: Choice
) -> CompiledKernel:
    """Lowers and compiles a scheduled program, by LLVM or by the machine's own code generator."""
    refuse_unlowered(program, target)
    if target.machine.compile is not None:
        program = through(program, own_passes(target.machine))
        own, scratch = target.machine.compile(program, target)
        return CompiledKernel(program.name, own, scratch, packed, template, choice)
    if target.machine.dialect.grid is not None:
        return CompiledKernel(program.name, compile_grid(program, target).packed(), 0, packed, template, choice)
    lowered = lower(program)
    began = time.perf_counter()
    code = emit(lowered, target)
    emitted = time.perf_counter()
    dump.form("emit", code.text, emitted - began, ".ll")
    machine = compile_ir(code.text, target)
    dump.form("compile_ir", f"{len(machine)} bytes of object code", time.perf_counter() - emitted)
    counted, shared = instructions(lowered, target.lanes)
    alone = counted / (PER_CYCLE * target.core.clock)
    seconds = alone / (target.cores if shared else 1)
    parts = [instructions(replace(lowered, body=loop), target.lanes)[0] for loop in code.regions]
    regions = [(loop.extent, alone * part / (counted or 1.0)) for loop, part in zip(code.regions, parts, strict=True)]
    serial = () if shared or code.dims else ((0, alone),)
    return CompiledKernel(
        program.name, machine, code.scratch_bytes, packed, template, choice, code.dims, seconds,
        tuple(regions) if regions and not code.dims else serial,
    )  # fmt: skip


def slowness(task: KernelTask, kernel: CompiledKernel, target: Target) -> dict[str, str | float]:
    """Reason why a kernel is expected to be ``slow``, and how many ``times`` what the machine could take; empty where
    it is not. By the static estimate of its time, against its arithmetic and its traffic at the machine's rates.
    """
    if kernel.seconds < SHORT or target.kind != "cpu":
        return {}
    static = task.hinted
    bound = roofline_seconds(*flops_and_traffic(static.outputs), target, 1.0) + KERNEL
    times = kernel.seconds / bound
    general = kernel.template == general_template(target).name and static.anchor() is not None
    if not general and times < SLOW:
        return {}
    what = "the general schedule of a contraction, " * general
    return {"slow": f"{what}about {times:.0f} times what the machine could take", "times": round(times, 1)}


def scheduled(template: str, choice: Choice, trace: Iterable[Call], program: LoopProgram) -> str:
    """A schedule as text: its template and choices, every primitive, and the loop program that they give."""
    steps = [f"{name}({', '.join(map(repr, args))})" for name, args in trace]
    return "\n".join([f"template {template} {json.dumps(dict(choice))}", *steps, "", str(program)])

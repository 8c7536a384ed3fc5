"""The lowering on one page: what happens between a schedule and code generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from burnish.base.dump import through
from burnish.loops.dead import drop_dead_stores
from burnish.loops.program import BINDINGS, For, LoopProgram
from burnish.loops.simplify import simplify_stmt
from burnish.lower.guards import hoist_guards
from burnish.lower.partition import partition_loops
from burnish.lower.registers import lanes_apart, vectors_innermost
from burnish.lower.shared import share_guards
from burnish.lower.threads import Launch
from burnish.lower.virtual_threads import lower_virtual_threads
from burnish.machines.machine import Machine


def simplify_program(program: LoopProgram) -> LoopProgram:
    """Simplifies every expression and drops what is dead."""
    return LoopProgram(program.name, program.params, simplify_stmt(program.body))


PASSES: tuple[Callable[[LoopProgram], LoopProgram], ...] = (
    simplify_program,
    drop_dead_stores,
    hoist_guards,
    partition_loops,
    simplify_program,
    share_guards,
    lanes_apart,
    vectors_innermost,
)

THREAD_PASSES: tuple[Callable[[LoopProgram], LoopProgram], ...] = (
    simplify_program,
    drop_dead_stores,
    hoist_guards,
    simplify_program,
    lanes_apart,
    vectors_innermost,
)
"""What is left for a thread of a grid: a branch costs as much as another instruction, more code more than both."""


def lower_thread(program: LoopProgram, launch: Launch) -> Launch:
    """A launch of a program as code generation takes it. Its indices are loops around it meanwhile."""
    body = launch.body
    for binding, extent in reversed(launch.extents.items()):
        body = For(binding, extent, binding, body)
    whole = through(LoopProgram(program.name, program.params, body), THREAD_PASSES).body
    while isinstance(whole, For) and whole.kind in BINDINGS:
        whole = whole.body
    return replace(launch, body=whole)


def lower(program: LoopProgram) -> LoopProgram:
    """The program code generation takes."""
    return through(program, PASSES)


def own_passes(machine: Machine) -> tuple[Callable[[LoopProgram], LoopProgram], ...]:
    """The passes in front of a machine's own code generator: those that it brings, and of virtual threads."""
    if machine.decoupled is None:
        return (simplify_program, *machine.passes)
    threads = partial(lower_virtual_threads, machine=machine.decoupled)
    return (simplify_program, *machine.passes, threads, simplify_program)

"""The lowering on one page: what happens between a schedule and code generation."""

from __future__ import annotations

from collections.abc import Callable

from burnish.dump import through
from burnish.loops.dead import drop_dead_stores
from burnish.loops.program import Program
from burnish.loops.simplify import simplify_stmt
from burnish.lower.guards import hoist_guards
from burnish.lower.partition import partition_loops
from burnish.lower.registers import lanes_apart, vectors_innermost
from burnish.lower.shared import share_guards


def simplify_program(program: Program) -> Program:
    """Simplifies every expression and drops what is dead."""
    return Program(program.name, program.params, simplify_stmt(program.body))


PASSES: tuple[Callable[[Program], Program], ...] = (
    simplify_program,
    drop_dead_stores,
    hoist_guards,
    partition_loops,
    simplify_program,
    share_guards,
    lanes_apart,
    vectors_innermost,
)


def lower(program: Program) -> Program:
    """The program code generation takes."""
    return through(program, PASSES)

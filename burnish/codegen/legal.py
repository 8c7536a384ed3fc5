"""Legality check before code generation: what a target cannot lower is refused by name, never dropped.

A machine lists the loop kinds, scopes and intrinsics that it has code for; nothing else may be in a program for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from burnish.errors import ScheduleError
from burnish.loops.expr import Buffer
from burnish.loops.program import BARRIER, HINTS, TENSOR_COPIES, Alloc, For, Intrinsic, LoopProgram, Stmt
from burnish.machines.scopes import MemoryScope
from burnish.machines.target import Target


def refuse_unlowered(program: LoopProgram, target: Target) -> None:
    """Raises ScheduleError for a loop kind, a scope or an intrinsic that has no code on ``target``, and for buffers
    that are more than a scope holds.
    """
    for buffer in program.params:
        if buffer.scope not in target.machine.named_scopes:
            raise _no_scope(f"parameter '{buffer.name}'", buffer.scope, target)
    _check(program.body, target, {})


def _check(s: Stmt, target: Target, used: Mapping[str, int]) -> None:
    """``used``: bytes of the buffers that are alive around ``s``, by scope."""
    if isinstance(s, For):
        loops = target.machine.dialect.loops
        if s.kind not in loops:
            raise ScheduleError(
                f"loop '{s.var}' is '{s.kind}', which {_called(target)} does not lower; it lowers {', '.join(loops)}"
            )
    elif isinstance(s, Intrinsic):
        _check_intrinsic(s, target)
    elif isinstance(s, Alloc):
        scope = target.machine.named_scopes.get(s.buffer.scope)
        if scope is None:
            raise _no_scope(f"buffer '{s.buffer.name}'", s.buffer.scope, target)
        if scope.capacity is not None:
            used = _filled(scope, s.buffer, used, target)
    for part in s.parts:
        _check(part, target, used)


def _filled(scope: MemoryScope, buffer: Buffer, used: Mapping[str, int], target: Target) -> Mapping[str, int]:
    """Bytes in use by scope with one more buffer in it. Raises ScheduleError where that is more than it holds."""
    total = used.get(scope.name, 0) + buffer.nbytes
    if scope.capacity is not None and total > scope.capacity:
        raise ScheduleError(
            f"buffer '{buffer.name}': scope '{scope.name}' of {_called(target)} holds {scope.capacity} bytes, "
            f"{total} would be in it at once"
        )
    return {**used, scope.name: total}


def _check_intrinsic(s: Intrinsic, target: Target) -> None:
    machine = target.machine
    if s.name in (*HINTS, BARRIER, *TENSOR_COPIES) and s.name in machine.dialect.hints:
        return
    known = machine.named_intrinsics.get(s.name)
    if known is None or (known.code is None and machine.compile is None):
        names = ", ".join(name for name, t in machine.named_intrinsics.items() if t.code or machine.compile)
        raise ScheduleError(f"intrinsic '{s.name}' has no code; known: {names} on {_called(target)}")
    missing = sorted(known.needs - target.features)
    if missing:
        raise ScheduleError(f"intrinsic '{s.name}' needs {', '.join(missing)}, which {_called(target)} has not")


def _no_scope(what: str, scope: str, target: Target) -> ScheduleError:
    known = ", ".join(target.machine.named_scopes)
    return ScheduleError(f"{what} is in scope '{scope}', which {_called(target)} does not lower; it lowers {known}")


def _called(target: Target) -> str:
    return f"target '{target.name}' ({target.machine.name})"

"""Decoupled units of a machine: which of them executes a statement, and which queues of tokens connect them.

Source: thesis-chen section 4.3.4 (decoupled access-execute, Figures 4.8 and 4.9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from burnish.loops.program import Intrinsic, Stmt

PUSH, POP = "push_token", "pop_token"


@dataclass(frozen=True, eq=False)
class Decoupled:
    """``unit_of``: the name of the unit that executes a store or an intrinsic. ``queues``: pairs of units, each with a
    queue of tokens from the first to the second.
    """

    unit_of: Callable[[Stmt], str]
    queues: frozenset[tuple[str, str]]


def push(unit: str, to: str) -> Intrinsic:
    """Token push: ``unit`` gives a token to ``to`` when all instructions issued to it before are done."""
    return Intrinsic(PUSH, (), (("unit", unit), ("to", to)))


def pop(unit: str, source: str) -> Intrinsic:
    """Token pop: ``unit`` takes a token from ``source`` before any instruction issued to it after."""
    return Intrinsic(POP, (), (("unit", unit), ("from", source)))


def token_unit(s: Stmt) -> str | None:
    """The unit that gives or takes a token; None of other statements."""
    if isinstance(s, Intrinsic) and s.name in (PUSH, POP):
        return str(dict(s.attrs)["unit"])
    return None

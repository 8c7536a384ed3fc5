"""Addresses of loop programs as numbers: steps by loop variable, in entries of on-chip memories or bytes of DRAM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.errors import ScheduleError
from burnish.loops.expr import Binary, Const, Expr, Load, Not, Var
from burnish.loops.linear import to_linear
from burnish.loops.numeric import OPERATORS
from burnish.loops.simplify import simplify

Env = Mapping[str, int]


@dataclass(frozen=True)
class LinearAddress:
    """``base`` plus ``steps[v]`` times each loop variable ``v``."""

    steps: Mapping[str, int]
    base: int

    def at(self, env: Env) -> int:
        """The address where variables have these values; others are 0."""
        return self.base + sum(step * env.get(var, 0) for var, step in self.steps.items())

    def step(self, var: str) -> int:
        """By how much the address moves with a variable."""
        return self.steps.get(var, 0)

    def scaled(self, divisor: int, what: str, ignore: Sequence[str] = ()) -> LinearAddress:
        """The address in units of ``divisor``, without the variables of ``ignore``. Raises ScheduleError."""
        steps = {var: step for var, step in self.steps.items() if var not in ignore}
        if any(n % divisor for n in (self.base, *steps.values())):
            raise ScheduleError(f"{what} does not begin at whole entries of {divisor} elements")
        return LinearAddress({var: step // divisor for var, step in steps.items()}, self.base // divisor)


def address_of(load: Load, ranges: Mapping[str, int]) -> LinearAddress:
    """The address of an access in elements of its buffer. Raises ScheduleError where it is not affine."""
    flat: Expr = Const(0, "int64")
    for extent, index in zip(load.buffer.shape, load.indices, strict=True):
        flat = flat * extent + index
    terms, base = to_linear(simplify(flat, ranges))
    steps = {atom.name: c for atom, c in terms.items() if isinstance(atom, Var)}
    if len(steps) != len(terms):
        raise ScheduleError(f"the address of '{load}' is not a sum of steps of loops")
    return LinearAddress(steps, base)


def value_of(e: Expr, env: Mapping[str, object]) -> np.ndarray | np.generic:
    """The value of an index expression or condition, where variables may be arrays. Raises ScheduleError."""
    match e:
        case Const(value, _):
            return np.asarray(value)
        case Var(name):
            return np.asarray(env[name])
        case Not(a):
            return np.logical_not(value_of(a, env))
        case Binary(op, a, b) if op in OPERATORS:
            found: np.ndarray = OPERATORS[op](value_of(a, env), value_of(b, env))
            return found
    raise ScheduleError(f"'{e}' is not known before a kernel runs")

"""Preimages of index expressions: at which values of its variables an access reads a given element.

``X[f(v)]`` reads element ``x`` where ``f(v) = x``: linear Diophantine equations, solved for as many variables as can
be. The others stay free, and what could not be solved is a condition. A variable of factor ±1 is solved at once;
several that are digits of a mixed radix together, by division; two of coprime factors (a window's stride and dilation)
leave the one phase in which both are whole. Quotients and remainders become digits of their own first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd, isfinite, prod

from burnish.loops.bounds import bounds
from burnish.loops.expr import INDEX, Binary, Const, Expr, Var, equal, wrap
from burnish.loops.linear import from_linear, to_linear
from burnish.loops.simplify import simplify
from burnish.loops.traverse import substitute, transform

Digit = tuple[int, Var]  # its weight, and the variable


@dataclass(frozen=True)
class Preimage:
    """All points that an access reads an element from: ``values`` of the variables, in terms of the element's position
    and of the ``free`` ones (with their extents), where ``conditions`` hold.
    """

    values: Mapping[str, Expr]
    free: Mapping[str, int]
    conditions: tuple[Expr, ...]

    def at(self, e: Expr) -> Expr:
        """``e`` with the variables replaced."""
        return substitute(e, self.values)


def preimage(
    indices: Sequence[Expr], extents: Mapping[str, int], position: Sequence[Var], shape: Sequence[int]
) -> Preimage:
    """Where ``indices`` are ``position``, an element of ``shape``; ``extents`` are those of the variables in them."""
    system = _System(dict(extents), {v.name: n for v, n in zip(position, shape, strict=True)})
    for name in [name for name, extent in extents.items() if extent == 1]:
        system.assign(name, wrap(0), checked=False)
    plain = system.digits([simplify(substitute(i, system.values), extents) for i in indices])
    system.equations += [(i, x) for i, x in zip(plain, position, strict=True)]
    while system.step():
        pass
    return system.result()


@dataclass
class _System:
    """The equations that are left, the variables still unknown, and what is found."""

    extents: dict[str, int]  # of all variables, the digits among them
    known: dict[str, int]
    unknown: dict[str, int] = field(default_factory=dict)
    values: dict[str, Expr] = field(default_factory=dict)
    equations: list[tuple[Expr, Expr]] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)  # variables whose values may leave their range
    whole: list[Expr] = field(default_factory=list)  # remainders that have to be 0

    def __post_init__(self) -> None:
        self.unknown = dict(self.extents)

    def fresh(self, stem: str, extent: int) -> Var:
        """Another unknown."""
        name = f"{stem}{len(self.extents)}"
        self.extents[name] = self.unknown[name] = extent
        return Var(name)

    def assign(self, name: str, value: Expr, checked: bool = True) -> None:
        """Solves for a variable."""
        del self.unknown[name]
        for other, old in self.values.items():
            self.values[other] = substitute(old, {name: value})
        self.values[name] = value
        self.whole = [substitute(e, {name: value}) for e in self.whole]
        self.equations = [(substitute(left, {name: value}), right) for left, right in self.equations]
        if checked:
            self.checked.append(name)

    # --- quotients and remainders -------------------------------------------------------------------------------------

    def digits(self, indices: Sequence[Expr]) -> list[Expr]:
        """``indices`` with digits for what is divided, and an equation for each: it is the sum of its digits."""
        cuts: dict[Expr, set[int]] = {}
        for i in indices:
            for atom in to_linear(i)[0]:
                part = _division(atom)
                if part is not None:
                    divided, low, high = part
                    cuts.setdefault(divided, set()).update({low} if high is None else {low, high})
        table = {e: self._cut(e, weights) for e, weights in cuts.items()}
        table = {e: found for e, found in table.items() if found}
        for e, found in table.items():
            whole = from_linear({v: weight for weight, v in found}, 0)
            if isinstance(e, Var):
                self.assign(e.name, whole)
            else:
                self.equations.append((e - whole, wrap(0)))

        def replaced(e: Expr) -> Expr:
            part = _division(e)
            if part is None or part[0] not in table:
                return e
            _, low, high = part
            if {low, high or low} - cuts[part[0]]:  # a division elsewhere in the index, at no digit's end
                return e
            return from_linear({v: w // low for w, v in table[part[0]] if w >= low and (high is None or w < high)}, 0)

        # First the quotients, whose terms name the variables as they were, then the variables that are digits now.
        return [substitute(transform(i, replaced), self.values) for i in indices]

    def _cut(self, e: Expr, weights: set[int]) -> list[Digit]:
        """The digits of an expression cut at these weights; none if it may be negative, or they are no radix."""
        low, high = bounds(e, self.extents)
        ordered = sorted({1, *weights})
        nested = any(_division(atom) is not None for atom in to_linear(e)[0])
        radix = all(b % a == 0 for a, b in pairwise(ordered))
        if low < 0 or not isfinite(high) or nested or not radix or e.buffers:
            return []
        ordered = [w for w in ordered if w <= high] or [1]
        ends: list[int | None] = [*ordered[1:], None]
        return [
            (w, self.fresh("d", int(high) // w + 1 if end is None else end // w))
            for w, end in zip(ordered, ends, strict=True)
        ]

    # --- linear equations ---------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Solves the equation, and for the variables, that leave the fewest points; whether there was one."""
        best: tuple[int, int, int, _Solution] | None = None
        for number, (left, right) in enumerate(self.equations):
            terms, rest = self._linear(left, right)
            for solution in _solutions(terms, rest, self.unknown):
                rank = (solution.left, len(solution.names), number)
                if best is None or rank < best[:3]:
                    best = (*rank, solution)
        if best is None:
            return False
        self.equations.pop(best[2])
        self._apply(best[3])
        return True

    def _linear(self, left: Expr, right: Expr) -> tuple[dict[str, int], Expr]:
        """The equation as factors of unknowns and what they add up to; no unknowns if one hides in another term."""
        form, const = to_linear(simplify(wrap(left - right), {**self.known, **self.unknown}))
        own = {atom.name: c for atom, c in form.items() if isinstance(atom, Var) and atom.name in self.unknown}
        others = {a: -c for a, c in form.items() if not (isinstance(a, Var) and a.name in self.unknown)}
        rest = from_linear(others, -const)
        return ({}, rest) if rest.variables & self.unknown.keys() else (own, rest)

    def _apply(self, solution: _Solution) -> None:
        terms, rest = solution.terms, solution.rest
        divisor = gcd(*terms.values())
        if divisor > 1:
            self.whole.append(rest % divisor)
            terms, rest = {v: c // divisor for v, c in terms.items()}, rest // divisor
        chosen = solution.names
        rest = rest - from_linear({Var(v): c for v, c in terms.items() if v not in chosen}, 0)
        if solution.digits:
            self._by_division({v: terms[v] for v in chosen}, rest)
        elif len(chosen) == 1:
            self.assign(chosen[0], rest if terms[chosen[0]] == 1 else 0 - rest)
        else:
            self._by_phase(chosen[0], terms[chosen[0]], chosen[1], terms[chosen[1]], rest)

    def _by_division(self, terms: Mapping[str, int], rest: Expr) -> None:
        """Digits, the greatest first, of which the last has factor 1."""
        if next(iter(terms.values())) < 0:
            terms, rest = {v: -c for v, c in terms.items()}, 0 - rest
        for name, factor in terms.items():
            self.assign(name, rest // factor)
            rest = rest % factor

    def _by_phase(self, v: str, c: int, u: str, d: int, rest: Expr) -> None:
        """``c v + d u = rest``: ``u`` is the residue by ``c`` that makes ``v`` whole, and each ``c`` further."""
        if c < 0:
            c, d, rest = -c, -d, 0 - rest
        t = self.fresh("t", -(-self.extents[u] // c))
        value = rest * pow(d, -1, c) % c + t * c
        self.assign(u, value)
        self.assign(v, (rest - value * d) // c)

    # --- the result ---------------------------------------------------------------------------------------------------

    def result(self) -> Preimage:
        ranges = {**self.known, **self.unknown}
        values = {name: simplify(value, ranges) for name, value in self.values.items()}
        conditions = []
        for name in self.checked:
            conditions += [values[name] >= 0, values[name] < self.extents[name]]
        conditions += [equal(rest, 0) for rest in self.whole]
        conditions += [equal(left, right) for left, right in self.equations]
        conditions = [simplify(c, ranges) for c in conditions]
        kept = tuple(dict.fromkeys(c for c in conditions if not (isinstance(c, Const) and c.value)))
        return Preimage(values, dict(self.unknown), kept)


@dataclass(frozen=True)
class _Solution:
    """``sum of terms = rest``, to be solved for ``names``; ``left``: points that stay free among the terms'."""

    terms: dict[str, int]
    rest: Expr
    names: tuple[str, ...]
    left: int
    digits: bool = False


def _solutions(terms: dict[str, int], rest: Expr, extents: Mapping[str, int]) -> list[_Solution]:
    """The ways to solve one equation."""
    if not terms:
        return []
    divisor = gcd(*terms.values())
    unit = {v: c // divisor for v, c in terms.items()}
    total = prod(extents[v] for v in terms)
    found = [_Solution(terms, rest, (v,), total // max(extents[v], 1)) for v, c in unit.items() if abs(c) == 1]
    ordered = dict(sorted(unit.items(), key=lambda item: -abs(item[1])))
    if len(terms) > 1 and _is_radix(ordered, extents):
        found.append(_Solution(terms, rest, tuple(ordered), 1, digits=True))
    for v, c in unit.items():
        for u, d in unit.items():
            if u != v and abs(c) > 1 and gcd(c, d) == 1:
                others = total // max(extents[v] * extents[u], 1)
                found.append(_Solution(terms, rest, (v, u), others * -(-extents[u] // abs(c))))
    return found


def _is_radix(terms: Mapping[str, int], extents: Mapping[str, int]) -> bool:
    """Whether the terms, greatest factor first, are digits: of one sign, the later less together than a step before."""
    if len({c > 0 for c in terms.values()}) > 1 or abs([*terms.values()][-1]) != 1:
        return False
    below = 0
    for v, c in reversed([*terms.items()]):
        if below >= abs(c):
            return False
        below += abs(c) * (extents[v] - 1)
    return True


def _division(e: Expr) -> tuple[Expr, int, int | None] | None:
    """``(E, low, high)`` of ``E // low``, and of ``E // low % (high // low)``, by positive constants."""
    if not (isinstance(e, Binary) and e.op in ("//", "%") and e.dtype == INDEX and isinstance(e.b, Const)):
        return None
    by = int(e.b.value)
    if by <= 0 or not e.variables:
        return None
    if e.op == "//":
        return (e.a, by, None)
    inner = _division(e.a) if isinstance(e.a, Binary) and e.a.op == "//" else None
    return (inner[0], inner[1], inner[1] * by) if inner is not None else (e.a, 1, by)

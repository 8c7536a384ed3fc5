"""Matching of axioms' sides against typed terms: what variables, sizes and leading dimensions stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from burnish.loops.sizes import Dim, exact_quotient, size_of
from burnish.rewrite.language.sizes import is_extent, name_of, names_of, put_in, terms_of
from burnish.rewrite.language.terms import Apply, Condition, RewriteRule, Term, Type, Value, subterms, variables
from burnish.rewrite.language.types import canonical_rule


@dataclass(frozen=True)
class Direction:
    """An axiom read from ``pattern`` to ``result``; every variable, size and lead of the axiom is in the pattern.

    ``needs`` and ``words``: those of the pattern and of the result.
    """

    axiom: str
    pattern: Apply
    result: Term
    types: Mapping[str, Type]
    conditions: tuple[Condition, ...]
    sizes: tuple[str, ...]
    reverse: bool
    needs: frozenset[str]
    words: frozenset[str]


def directions(axioms: Mapping[str, RewriteRule]) -> dict[str, list[Direction]]:
    """Both readings of each axiom, as far as the side that is read binds all of it, by the pattern's outermost word."""
    found: dict[str, list[Direction]] = {}
    for name, original in axioms.items():
        axiom = canonical_rule(original)
        for left, right in zip(axiom.left, axiom.right, strict=True):
            for pattern, result, reverse in ((left, right, False), (right, left, True)):
                if isinstance(pattern, Apply) and variables(pattern) == axiom.types.keys():
                    needs, words = (
                        frozenset(t.word for t in subterms(side) if isinstance(t, Apply)) for side in (pattern, result)
                    )
                    one = Direction(
                        name, pattern, result, axiom.types, axiom.conditions, original.sizes, reverse, needs, words
                    )
                    found.setdefault(pattern.word, []).append(one)
    return found


@dataclass
class PatternMatch:
    """Substitution of a pattern's names so far; ``open``: equations (size of the pattern, what it must be) still to
    solve.
    """

    variables: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    leads: dict[str, Type] = field(default_factory=dict)
    open: list[tuple[int, int]] = field(default_factory=list)

    def copy(self) -> PatternMatch:
        """Copy that can be extended by itself."""
        return PatternMatch(dict(self.variables), dict(self.sizes), dict(self.leads), list(self.open))

    def attributes(self, pattern: tuple[tuple[str, Value], ...], found: tuple[tuple[str, Value], ...]) -> bool:
        """Whether attributes can be those found; both are complete and in order."""
        if len(pattern) != len(found):
            return False
        for (key, a), (other, b) in zip(pattern, found, strict=True):
            if key != other:
                return False
            if is_extent(a) and is_extent(b):
                if not self.size(a, b):
                    return False
            elif isinstance(a, tuple) and isinstance(b, tuple):
                if len(a) != len(b) or not all(self.size(p, q) for p, q in zip(a, b, strict=True)):
                    return False
            elif a != b:
                return False
        return True

    def type(self, declared: Type, found: Type) -> bool:
        """Whether a declared type can be the one found."""
        extra = len(found.dims) - len(declared.dims)
        if extra < 0 or (declared.lead is None and (extra or found.lead)):
            return False
        if declared.lead is not None:
            lead = Type(found.dims[:extra], found.lead)
            if self.leads.setdefault(declared.lead, lead) != lead:
                return False
        return all(self.size(a, b) for a, b in zip(declared.dims, found.dims[extra:], strict=True))

    def size(self, pattern: int, found: int) -> bool:
        """Whether a size can be the one found; an equation of more than one unknown is kept for later."""
        name = name_of(pattern)
        if name is not None:
            return self.sizes.setdefault(name, found) == found
        if not names_of(pattern):
            return pattern == found
        self.open.append((pattern, found))
        return True

    def solved(self) -> bool:
        """Solves the equations that are open, one unknown at a time; False if one is contradicted or none helps."""
        while self.open:
            left: list[tuple[int, int]] = []
            for pattern, found in self.open:
                rest = put_in(pattern, self.sizes) if names_of(pattern) <= self.sizes.keys() else None
                if rest is not None:
                    if rest != found:
                        return False
                elif not self._solve(pattern, found):
                    left.append((pattern, found))
            if len(left) == len(self.open):
                return False
            self.open = left
        return True

    def _solve(self, pattern: int, found: int) -> bool:
        """Solves for the one unknown of a pattern that is linear in it."""
        unknown = names_of(pattern) - self.sizes.keys()
        if len(unknown) != 1:
            return False
        (name,) = unknown
        known, factor = 0, 0
        for monomial, coefficient in terms_of(pattern):
            rest = tuple(a for a in monomial if not isinstance(a, Dim) or a.name != name)
            others = put_in(size_of({rest: coefficient}), self.sizes)
            if len(rest) == len(monomial) - 1:
                factor = factor + others
            elif len(rest) < len(monomial):
                return False
            else:
                known = known + others
        value = exact_quotient(found - known, factor)
        if value is None:
            return False
        self.sizes[name] = value
        return True

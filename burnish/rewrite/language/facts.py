"""Facts of a rule's sizes: which inequalities and divisibilities follow from what is declared of them."""

from __future__ import annotations

from collections.abc import Iterable

from burnish.loops.sizes import Atom, Monomial, Quotient, exact_quotient
from burnish.rewrite.language.sizes import names_of, number_of, terms_of
from burnish.rewrite.language.terms import Condition, RewriteRule
from burnish.rewrite.language.types import Obligation


class SizeFacts:
    """Size assumptions of a rule: declared extents are ≥ 1, conditions hold, and both sides are well-typed."""

    def __init__(self, rule: RewriteRule, obligations: Iterable[Obligation]) -> None:
        self._known: dict[Obligation, bool] = {}
        self._asked = set[Obligation]()
        self.nonnegative: list[int] = []
        self.divisions = set[tuple[int, int]]()
        extents = [d for t in rule.types.values() for d in t.dims]
        monomials = [terms[0] for d in extents if len(terms := terms_of(d)) == 1]
        self.positive = {m[0] for m, _ in monomials if len(m) == 1}
        # A product of factors that is positive says nothing of their signs, but extents and groups are never negative.
        self.positive |= {atom for m, f in monomials if f > 0 for atom in m}
        self.nonnegative += [d - 1 for d in extents]
        for relation, a, b in (*obligations, *((c.relation, c.left, c.right) for c in rule.conditions)):
            if relation == "divides":
                self.divisions.add((a, b))
            elif relation in ("<=", "<", "=="):
                self.nonnegative.append(b - a - (1 if relation == "<" else 0))
                self.nonnegative += [a - b] if relation == "==" else []
        for size in self.nonnegative:
            self.positive |= _atom_of(size + 1)
        self.unequal = {c.left - c.right for c in rule.conditions if c.relation == "!="}
        self.nonnegative = list(dict.fromkeys(self.nonnegative))
        self.never_negative = {atom for s in self.nonnegative for atom in _atom_of(s)}

    def holds(self, obligation: Obligation | Condition) -> bool:
        """Whether it follows: by at most two of the facts, added, and what is positive."""
        if isinstance(obligation, Condition):
            relation, a, b = obligation.relation, obligation.left, obligation.right
        else:
            relation, a, b = obligation
        key = relation, a, b
        if key not in self._known:
            if key in self._asked:  # it would follow from itself
                return False
            self._asked.add(key)
            answer = self._follows(relation, a, b)
            self._asked.discard(key)
            if self._asked and not answer:  # without what is being asked, it might follow
                return False
            self._known[key] = answer
        return self._known[key]

    def _follows(self, relation: str, a: int, b: int) -> bool:
        if relation == "divides":
            return (a, b) in self.divisions or exact_quotient(b, a) is not None
        if relation == "==":
            return a == b
        if relation == "!=":
            return number_of(a - b) not in (None, 0) or not self.unequal.isdisjoint((a - b, b - a))
        rest = b - a - (1 if relation == "<" else 0)
        if self._positive(rest):
            return True
        if number_of(rest) is not None:
            return False
        ones = [rest - fact for fact in self.nonnegative]
        if any(map(self._positive, ones)):
            return True
        return any(self._positive(one - fact) for one in ones for fact in self.nonnegative)

    def _positive(self, size: int) -> bool:
        """Whether no coefficient is negative after writing every positive name as 1 more than another."""
        if not names_of(size):
            return (number_of(size) or 0) >= 0
        shifted: dict[Monomial, int] = {}
        for monomial, factor in terms_of(size):
            if not all(map(self._never_negative, monomial)):
                return False
            for mask in range(1 << len(monomial)):
                kept = tuple(a for i, a in enumerate(monomial) if mask >> i & 1)
                if all(a in self.positive for i, a in enumerate(monomial) if not mask >> i & 1):
                    shifted[kept] = shifted.get(kept, 0) + factor
        return all(f >= 0 for f in shifted.values())

    def _never_negative(self, atom: Atom) -> bool:
        if isinstance(atom, Quotient):
            return self.holds(("<=", 0, atom.size)) and self.holds(("<=", 1, atom.divisor))
        return atom in self.positive or atom in self.never_negative


def _atom_of(size: int) -> set[Atom]:
    """Atom (name or quotient) that a size consists of, as a set; empty for any other size."""
    terms = terms_of(size)
    return {terms[0][0][0]} if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 else set()

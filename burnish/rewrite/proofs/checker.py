"""Proof checker: small, and independent of how a proof was found.

It instantiates axioms, checks that every instance types and that its conditions and obligations follow from what is
known of the rule's sizes, and that the instances make both sides equal by congruence. What it trusts: the axioms
(tested by :mod:`validate`), the types of words (:mod:`types`), and itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burnish.errors import RuleError
from burnish.rewrite.language.facts import SizeFacts
from burnish.rewrite.language.sizes import put_in, size_text
from burnish.rewrite.language.terms import Apply, Condition, RewriteRule, Term, TermVariable, Value
from burnish.rewrite.language.types import Typing, canonical_rule, type_rule
from burnish.rewrite.proofs.proof import Proof, ProofStep

Equation = tuple[Term, Term]


def check_proof(rule: RewriteRule, proof: Proof, axioms: Mapping[str, RewriteRule]) -> None:
    """Raises RuleError naming the rule, and the step if one is at fault, unless the proof proves the rule."""
    if proof.rule != rule.name:
        raise RuleError(f"'{rule.name}': the proof is of '{proof.rule}'")
    rule, facts = known_of(rule)
    equations: list[Equation] = []
    for number, step in enumerate(proof.steps):
        try:
            equations += check_step(rule, step, axioms, facts)
        except RuleError as error:
            raise RuleError(f"'{rule.name}', step {number} of its proof, '{step.axiom}': {error}") from None
    differing = first_open(rule, equations)
    if differing is not None:
        raise RuleError(f"'{rule.name}': its proof does not prove it: output {differing} may differ")


def known_of(rule: RewriteRule) -> tuple[RewriteRule, SizeFacts]:
    """The rule in canonical form, and what is known of its sizes. Raises RuleError if it does not type."""
    rule = canonical_rule(rule)
    return rule, SizeFacts(rule, type_rule(rule).obligations)


def first_open(rule: RewriteRule, equations: Sequence[Equation]) -> int | None:
    """The first output whose two sides these equations do not make equal; None if all are."""
    closure = Congruence()
    for left, right in equations:
        closure.merge(left, right)
    outputs = enumerate(zip(rule.left, rule.right, strict=True))
    return next((number for number, (left, right) in outputs if not closure.equal(left, right)), None)


def check_step(
    rule: RewriteRule, step: ProofStep, axioms: Mapping[str, RewriteRule], facts: SizeFacts
) -> list[Equation]:
    """The equations that an instance of an axiom states. Raises RuleError if it is none."""
    if step.axiom not in axioms:
        raise RuleError("there is no such axiom")
    axiom = axioms[step.axiom]
    for what, needed, given in (
        ("variable", axiom.types.keys(), step.variables.keys()),
        ("size", set(axiom.sizes), step.sizes.keys()),
        ("lead", {t.lead for t in axiom.types.values() if t.lead}, step.leads.keys()),
    ):
        if set(needed) != set(given):
            raise RuleError(f"{what}s {', '.join(sorted(set(needed) ^ set(given)))}: given or asked for, not both")
    typing = Typing(rule.types)
    for name, declared in axiom.types.items():
        wanted, found = step.type_of(declared), typing.type_of(step.variables[name])
        if wanted != found:
            raise RuleError(f"'{name}' stands for a tensor {found}, is declared {wanted}")
        for extent in wanted.dims:
            if not facts.holds(("<=", 1, extent)):
                raise RuleError(f"'{name}': extent {size_text(extent)} may be empty")
    for condition in axiom.conditions:
        left, right = (put_in(s, step.sizes) for s in (condition.left, condition.right))
        if not facts.holds(Condition(left, condition.relation, right)):
            raise RuleError(f"condition {condition} does not follow")
    sides = [[typing.canonical(t) for t in step.instance(terms)] for terms in (axiom.left, axiom.right)]
    for left, right in zip(*sides, strict=True):
        if typing.type_of(left) != typing.type_of(right):
            raise RuleError(f"sides of types {typing.type_of(left)} and {typing.type_of(right)}")
    for relation, a, b in typing.obligations:
        if not facts.holds((relation, a, b)):
            raise RuleError(f"nothing says that {size_text(a)} {relation} {size_text(b)}")
    return list(zip(*sides, strict=True))


class Congruence:
    """Congruence closure of ground terms: Downey, Sethi and Tarjan's, with a table of applications to classes."""

    def __init__(self) -> None:
        self.numbers: dict[Term, int] = {}
        self.parents: list[int] = []
        self.uses: list[list[tuple[Apply, int]]] = []
        self.table: dict[tuple[str, tuple[int, ...], tuple[tuple[str, Value], ...]], int] = {}

    def merge(self, left: Term, right: Term) -> None:
        """Makes two terms equal, and all that follows."""
        waiting = [(self._number(left), self._number(right))]
        while waiting:
            a, b = (self._find(n) for n in waiting.pop())
            if a == b:
                continue
            if len(self.uses[a]) > len(self.uses[b]):
                a, b = b, a
            self.parents[a] = b
            uses, self.uses[a] = self.uses[a], []
            for term, number in uses:
                other = self.table.setdefault(self._key(term), number)
                if self._find(other) != self._find(number):
                    waiting.append((other, number))
            self.uses[b] += uses

    def equal(self, left: Term, right: Term) -> bool:
        """Whether two terms are equal by what was merged."""
        return self._find(self._number(left)) == self._find(self._number(right))

    def _number(self, term: Term) -> int:
        if term in self.numbers:
            return self.numbers[term]
        if isinstance(term, TermVariable):
            number = self._new()
        else:
            arguments: Sequence[int] = [self._number(a) for a in term.args]
            key = self._key(term)
            if key in self.table:
                number = self.table[key]
            else:
                number = self.table[key] = self._new()
                for argument in {self._find(a) for a in arguments}:
                    self.uses[argument].append((term, number))
        self.numbers[term] = number
        return number

    def _new(self) -> int:
        self.parents.append(len(self.parents))
        self.uses.append([])
        return len(self.parents) - 1

    def _find(self, number: int) -> int:
        while self.parents[number] != number:
            self.parents[number] = number = self.parents[self.parents[number]]
        return number

    def _key(self, term: Apply) -> tuple[str, tuple[int, ...], tuple[tuple[str, Value], ...]]:
        return term.word, tuple(self._find(self.numbers[a]) for a in term.args), term.attrs

"""Proofs that rules follow from the axioms: equality saturation of typed terms, then the instances that it needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.errors import RuleError
from burnish.rewrite.language.facts import SizeFacts
from burnish.rewrite.language.sizes import put_in
from burnish.rewrite.language.terms import (
    Apply,
    Condition,
    RewriteRule,
    Term,
    TermVariable,
    Type,
    resize_value,
    subterms,
)
from burnish.rewrite.language.types import canonical_rule
from burnish.rewrite.proofs.checker import check_step, first_open, known_of
from burnish.rewrite.proofs.egraph import EGraph
from burnish.rewrite.proofs.ematching import Direction, PatternMatch, directions
from burnish.rewrite.proofs.proof import Proof, ProofStep


@dataclass(frozen=True)
class Effort:
    """Search limits of a proof: rounds of applying every axiom everywhere, terms, and whether axioms may add words."""

    rounds: int
    terms: int
    new_words: bool


EFFORTS = (Effort(6, 400, False), Effort(5, 1500, True), Effort(9, 3000, False))


class Prover:
    """Proves rules from axioms, which are read once."""

    def __init__(self, axioms: Mapping[str, RewriteRule]) -> None:
        self.axioms = dict(axioms)
        self.plain = {name: canonical_rule(axiom) for name, axiom in axioms.items()}
        self.directions = directions(axioms)

    def prove(self, rule: RewriteRule, efforts: Sequence[Effort] = EFFORTS) -> Proof | None:
        """A checked proof of a rule; None if none was found. Raises RuleError if the rule does not type."""
        plain, facts = known_of(rule)
        for effort in efforts:
            steps = _Search(self, plain, facts, effort).run()
            if steps is not None:
                return Proof(rule.name, tuple(self._needed(plain, facts, steps)))
        return None

    def _needed(self, rule: RewriteRule, facts: SizeFacts, steps: Sequence[ProofStep]) -> list[ProofStep]:
        """The steps, each checked, without those that the rest can do without: explanations go a long way round."""
        stated = {number: check_step(rule, step, self.axioms, facts) for number, step in enumerate(steps)}
        for number in reversed(range(len(steps))):
            rest = [e for n, equations in stated.items() if n != number for e in equations]
            if first_open(rule, rest) is None:
                del stated[number]
        return [steps[number] for number in stated]


def merged_variables(rule: RewriteRule, prover: Prover, effort: Effort = EFFORTS[0]) -> list[tuple[str, str]]:
    """Pairs of a rule's variables that come out equal when its sides are saturated: none, if axioms are consistent."""
    plain, facts = known_of(rule)
    search = _Search(prover, plain, facts, effort)
    search.saturate(effort.rounds)
    numbers = {name: search.graph.find(search.graph.add(TermVariable(name))) for name in plain.types}
    return [(a, b) for a in numbers for b in numbers if a < b and numbers[a] == numbers[b]]


def sizes_used(rule: RewriteRule, prover: Prover, efforts: Sequence[Effort] = EFFORTS) -> list[ProofStep]:
    """Axioms with the sizes and leading dimensions at which a search for a proof met them; without variables."""
    plain, facts = known_of(rule)
    search = _Search(prover, plain, facts, efforts[0])
    for effort in efforts:
        search = _Search(prover, plain, facts, effort)
        if search.run() is not None:
            search.saturate(1)  # the last round ended with the proof
            break
    return [ProofStep(axiom, {}, dict(sizes), dict(leads)) for axiom, sizes, leads in search.met]


class _Search:
    """One saturation."""

    def __init__(self, prover: Prover, rule: RewriteRule, facts: SizeFacts, effort: Effort) -> None:
        self.prover, self.effort = prover, effort
        self.graph = EGraph(rule.types, facts)
        self.goals = [(self.graph.add(a), self.graph.add(b)) for a, b in zip(rule.left, rule.right, strict=True)]
        self.done = set[tuple[object, ...]]()
        self.met: dict[tuple[str, tuple[tuple[str, int], ...], tuple[tuple[str, Type], ...]], None] = {}
        words = {t.word for side in (*rule.left, *rule.right) for t in subterms(side) if isinstance(t, Apply)}
        self.words = frozenset(words)

    def run(self) -> list[ProofStep] | None:
        """The instances that prove all outputs equal."""
        for _ in range(self.effort.rounds):
            if self._proved():
                break
            if not self._round():
                return None
        if not self._proved():
            return None
        steps = {id(s): s for a, b in self.goals for s in self.graph.explain(a, b)}
        return list(steps.values())

    def saturate(self, rounds: int) -> None:
        """Equality saturation without goals: up to ``rounds`` rounds, fewer where one changes nothing."""
        self.goals = []
        for _ in range(rounds):
            if not self._round():
                break

    def _proved(self) -> bool:
        return bool(self.goals) and all(self.graph.find(a) == self.graph.find(b) for a, b in self.goals)

    def _round(self) -> bool:
        """Applies every axiom wherever it matches, until the rule is proved. Whether anything was new."""
        changed = False
        for direction in self._directions():
            for number, match in list(self.graph.matches(direction)):
                if len(self.graph.nodes) > self.effort.terms:
                    return changed
                if self._apply(direction, number, match):
                    changed = True
                    if self._proved():
                        return True
        return changed

    def _directions(self) -> list[Direction]:
        """Rule directions that may match: those rooted at a goal's word first, then those of most words."""
        there = self.graph.by_word.keys()
        roots = {self.graph.nodes[number][0] for goal in self.goals for number in goal}
        found = [
            direction
            for word in there
            for direction in self.prover.directions.get(word, ())
            if direction.needs <= there and (self.effort.new_words or direction.words <= self.words)
        ]
        return sorted(found, key=lambda d: (d.pattern.word not in roots, -len(d.needs | d.words)))

    def _apply(self, direction: Direction, number: int, match: PatternMatch) -> bool:
        graph = self.graph
        values = tuple((k, graph.find(v)) for k, v in match.variables.items())
        key = (direction.axiom, direction.reverse, values, tuple(match.sizes.items()), tuple(match.leads.items()))
        if key in self.done:
            return False
        self.done.add(key)
        try:
            if not self._allowed(direction, match):
                return False
            one = self._instance(direction.pattern, match)
            other = self._instance(direction.result, match)
        except RuleError:
            return False
        self.met[(direction.axiom, tuple(sorted(match.sizes.items(), key=str)), tuple(match.leads.items()))] = None
        terms = {k: graph.term(v) for k, v in match.variables.items()}
        sizes = {k: match.sizes[k] for k in direction.sizes}
        return graph.union(one, other, ProofStep(direction.axiom, terms, sizes, match.leads))

    def _allowed(self, direction: Direction, match: PatternMatch) -> bool:
        """Whether the axiom's conditions follow, and its variables are not empty."""
        extents = {put_in(d, match.sizes) for t in direction.types.values() for d in t.dims}
        if not all(self.graph.facts.holds(("<=", 1, d)) for d in extents):
            return False
        for c in direction.conditions:
            left, right = put_in(c.left, match.sizes), put_in(c.right, match.sizes)
            if not self.graph.facts.holds(Condition(left, c.relation, right)):
                return False
        return True

    def _instance(self, term: Term, match: PatternMatch) -> int:
        if isinstance(term, TermVariable):
            return match.variables[term.name]
        attrs = tuple((k, resize_value(v, match.sizes)) for k, v in term.attrs)
        return self.graph.apply(term.word, attrs, tuple(self._instance(a, match) for a in term.args))

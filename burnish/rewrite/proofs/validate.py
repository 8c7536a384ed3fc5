"""Polynomial identity testing: whether a rule or axiom holds at random shapes, attributes and values in prime fields.

Two different polynomials of degree d agree at a random point of GF(p) with probability ≤ d / p (Schwartz, Zippel), so
a law that is false at a binding passes ``points`` independent points there with probability ≤ (d / p)^points. ``max``
and functions such as ``exp`` are no polynomials; :mod:`field` says what stands for them, and no bound is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from burnish import ops
from burnish.errors import RuleError
from burnish.graph.graph import Attribute
from burnish.rewrite.language.bindings import Bindings
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable
from burnish.rewrite.language.vocabulary import Binding, Shape, word_graph
from burnish.rewrite.proofs.field import PRIMES, PrimeField, evaluate_graph, operator_plan

MID = 6  # the greatest extent of the bindings that are tested with the second prime
_PRODUCTS = ("matmul", "mul", "conv2d")
_LEAVES = 1  # the degree of a variable


@dataclass(frozen=True)
class RuleValidation:
    """Result of testing a rule at random points without finding it false.

    ``obligations``: instances of the rule, each at one binding and one random point. ``degree``: of its polynomials.
    """

    name: str
    bindings: int
    obligations: int
    degree: int
    points: int

    @property
    def error_bound(self) -> float:
        """Greatest probability that a polynomial law that is false at a binding passed the test there."""
        return (self.degree / min(PRIMES)) ** self.points


def validate(
    rule: RewriteRule, bindings: int = 24, points: int = 4, seed: int = 0, mid_bindings: int = 2
) -> RuleValidation:
    """Tests a rule at ``bindings`` small bindings, ``points`` points each, and with a second prime at larger ones.

    Raises RuleError naming the rule and the sizes at which it is false, or if it types at no sizes.
    """
    random = np.random.default_rng(seed)
    for count, largest, prime in ((bindings, 4, PRIMES[0]), (mid_bindings, MID, PRIMES[1])):
        field, drawn = PrimeField(prime), Bindings(rule, random, largest)
        for _ in range(count):
            _test(rule, drawn.draw(), points, random, field)
    degree = max(map(degree_of, (*rule.left, *rule.right)))
    return RuleValidation(rule.name, bindings + mid_bindings, (bindings + mid_bindings) * points, degree, points)


def degree_of(term: Term) -> int:
    """A bound on the degree of a term's elements as polynomials in the variables' elements."""
    if isinstance(term, TermVariable):
        return _LEAVES
    degrees = [degree_of(a) for a in term.args]
    return sum(degrees) if term.word in _PRODUCTS else max(degrees, default=0)


def _test(rule: RewriteRule, binding: Binding, points: int, random: np.random.Generator, field: PrimeField) -> None:
    known: dict[Term, np.ndarray] = {}
    for name, declared in rule.types.items():
        known[TermVariable(name)] = field.random(random, (points, *binding.shape(declared)))
    for number, (left, right) in enumerate(zip(rule.left, rule.right, strict=True)):
        a, b = (evaluate_term(t, binding, known, field) for t in (left, right))
        if not bool((a == b).all()):
            sizes = ", ".join(f"{k} = {v}" for k, v in sorted({**binding.sizes, **binding.leads}.items()))
            raise RuleError(f"'{rule.name}' is false: output {number} differs at {sizes}")


def evaluate_term(term: Term, binding: Binding, known: dict[Term, np.ndarray], field: PrimeField) -> np.ndarray:
    """Values of a term, [B or 1, *shape]; ``known`` holds those of its variables and gets those of its subterms."""
    if term not in known:
        assert isinstance(term, Apply)
        inputs = [evaluate_term(a, binding, known, field) for a in term.args]
        known[term] = evaluate_word(term.word, binding.attributes(term), inputs, field)
    return known[term]


def evaluate_word(
    word: str, attrs: tuple[tuple[str, Attribute], ...], inputs: Sequence[np.ndarray], field: PrimeField
) -> np.ndarray:
    """Values of a word applied to arrays [B, *shape]. Raises ModelError for operands that do not fit."""
    return _runner(word, tuple(a.shape[1:] for a in inputs), attrs, field)(inputs)


@lru_cache(maxsize=1 << 12)
def _runner(
    word: str, shapes: tuple[Shape, ...], attrs: tuple[tuple[str, Attribute], ...], field: PrimeField
) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    """Evaluator of a word over a prime field, on arrays [B, *shape]."""
    if word in ops.OPERATORS:
        plan = operator_plan(word, shapes, attrs, field)
        return lambda inputs: plan(inputs)[0]
    graph = word_graph(word, shapes, attrs)
    if not graph.nodes:
        constant = evaluate_graph(graph, {}, field)[0]
        return lambda inputs: constant
    return lambda inputs: evaluate_graph(graph, dict(zip(graph.inputs, inputs, strict=True)), field)[0]

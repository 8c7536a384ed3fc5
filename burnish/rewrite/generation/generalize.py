"""Generalization of a pair of equal terms to a substitution for all sizes (facts tested, not assumed).

1. Common subterms become variables, and a variable that occurs more than once is split, as long as both sides stay
   equal.
2. Extents and attributes become symbolic by principal types; what types leave open, and values do not, is found by
   moves: a move adds one to a name, or to a few at once, and the moves under which the sides stay equal span the sizes
   allowed.
3. The result is tested at random sizes in another field, which rules out identities of the domain's sizes alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product, takewhile

import numpy as np

from burnish.errors import ModelError, RuleError
from burnish.rewrite.generation.domains import NOTHING, Domain
from burnish.rewrite.generation.enumerate import FIELD
from burnish.rewrite.generation.principal import Unifier, resolved, typed
from burnish.rewrite.generation.values import TermValues
from burnish.rewrite.language.bindings import Bindings, shape_of
from burnish.rewrite.language.sizes import is_extent, names_of, number_of, parse_size, quotient, value_of
from burnish.rewrite.language.terms import (
    Apply,
    Condition,
    RewriteRule,
    Term,
    TermVariable,
    Type,
    substitute,
    substitute_sizes,
    subterms,
    variables,
)
from burnish.rewrite.language.types import type_rule
from burnish.rewrite.language.vocabulary import Binding, Shape
from burnish.rewrite.proofs.field import PRIMES, PrimeField
from burnish.rewrite.proofs.validate import evaluate_term

Terms = tuple[Term, ...]
_SAMPLES = 6  # random sizes at which a substitution must hold
_OCCURRENCES = 8  # of one variable in a pair, beyond which it is not split
_ATTEMPTS = 200  # random sizes tried to find those
_VARIABLES = ("x", "y", "z", "u", "v", "w", "r", "t", "a", "b", "c", "e")


@dataclass(frozen=True)
class Pair:
    """Equal terms at concrete sizes. ``shapes`` are those of the variables."""

    left: Terms
    right: Terms
    shapes: Mapping[str, Shape]


# --- values at the domain's sizes -------------------------------------------------------------------------------------


def holds(pair: Pair, over: PrimeField = FIELD) -> bool:
    """Whether both sides are equal for random values of the variables."""
    random = np.random.default_rng(2)
    known: dict[Term, np.ndarray] = {
        TermVariable(n): over.random(random, (1, *s)) for n, s in sorted(pair.shapes.items())
    }
    for a, b in zip(pair.left, pair.right, strict=True):
        x, y = (evaluate_term(t, NOTHING, known, over) for t in (a, b))
        if x.shape != y.shape or not np.array_equal(x, y):
            return False
    return True


# --- step 1: variables ------------------------------------------------------------------------------------------------


def most_general(pair: Pair) -> Pair:
    """The pair with common subterms replaced by variables and variables split, as far as it holds."""
    found = _split(_lifted(pair))
    return found if found == pair else most_general(found)


def renamed(pair: Pair) -> Pair:
    """The pair with variables named in the order in which they occur."""
    order = dict.fromkeys(
        t.name for side in (*pair.left, *pair.right) for t in subterms(side) if isinstance(t, TermVariable)
    )
    names: dict[str, Term] = {n: TermVariable(f"v{i}") for i, n in enumerate(order)}
    left, right = (tuple(substitute(t, names) for t in side) for side in (pair.left, pair.right))
    return Pair(left, right, {str(names[n]): pair.shapes[n] for n in order})


def _lifted(pair: Pair) -> Pair:
    while True:
        left, right = (
            {t for side in s for t in subterms(side) if isinstance(t, Apply)} for s in (pair.left, pair.right)
        )
        for term in sorted(left & right, key=lambda t: (-len(str(t)), str(t))):
            name = f"t{sum(n[0] == 't' for n in pair.shapes) + 1}"
            shape = shape_of(term, NOTHING, {TermVariable(n): s for n, s in pair.shapes.items()})
            sides_ = [tuple(_replaced(t, term, TermVariable(name)) for t in s) for s in (pair.left, pair.right)]
            candidate = _used(Pair(sides_[0], sides_[1], {**pair.shapes, name: shape}))
            if sides_[0] != (TermVariable(name),) and holds(candidate):
                pair = candidate
                break
        else:
            return pair


def _replaced(term: Term, old: Term, new: Term) -> Term:
    if term == old:
        return new
    return (
        term
        if isinstance(term, TermVariable)
        else Apply(term.word, tuple(_replaced(a, old, new) for a in term.args), term.attrs)
    )


def _used(pair: Pair) -> Pair:
    names = {n for t in (*pair.left, *pair.right) for n in variables(t)}
    return replace(pair, shapes={n: s for n, s in pair.shapes.items() if n in names})


def _split(pair: Pair) -> Pair:
    """Occurrences of one variable get two names where the pair allows it; again, until it does nowhere."""
    for name in sorted(pair.shapes):
        left, right = (
            sum(t == TermVariable(name) for side in s for t in subterms(side)) for s in (pair.left, pair.right)
        )
        other = next(f"{name}{i}" for i in range(1, 99) if f"{name}{i}" not in pair.shapes)
        if left + right > _OCCURRENCES:
            continue
        for choice in product((False, True), repeat=left + right):
            if choice[0] or not any(choice):
                continue  # the first occurrence keeps its name
            marks = iter(choice)
            new = [tuple(_renamed(t, name, other, marks) for t in s) for s in (pair.left, pair.right)]
            candidate = Pair(new[0], new[1], {**pair.shapes, other: pair.shapes[name]})
            if _shared(candidate) >= _shared(pair) and holds(candidate):
                return _split(candidate)
    return pair


def _shared(pair: Pair) -> int:
    """Operators that both outputs of the right side are computed from: what is computed together is to stay so."""
    if len(pair.right) < 2:
        return 0
    one, other = ({t for a in _arguments(side) for t in subterms(a) if isinstance(t, Apply)} for side in pair.right)
    return len(one & other)


def _arguments(term: Term) -> tuple[Term, ...]:
    return term.args if isinstance(term, Apply) else ()


def _renamed(term: Term, name: str, other: str, marks: Iterator[bool]) -> Term:
    if isinstance(term, TermVariable):
        return TermVariable(other) if term.name == name and next(marks) else term
    return Apply(term.word, tuple(_renamed(a, name, other, marks) for a in term.args), term.attrs)


# --- step 2: sizes ----------------------------------------------------------------------------------------------------


def generalize(pair: Pair, name: str, domain: Domain) -> list[RewriteRule]:
    """Substitutions for all sizes that contain a pair: one, or several that differ in which variables have leading
    dimensions; none if it holds at the domain's sizes only. ``pair``: as :func:`most_general` leaves it.
    """
    symbolic = _Symbolic(pair)
    if not symbolic.settle():
        return []
    rules = [rule for rule in symbolic.rules(name, domain.leading) if valid(rule)]
    return [_readable(rule) for rule in rules if not _of_one_size(rule)]


def _of_one_size(rule: RewriteRule) -> bool:
    """Whether an extent could not be made symbolic: an identity of the domain's sizes."""
    extents = [d for t in rule.types.values() for d in t.dims]
    for term in (t for side in (*rule.left, *rule.right) for t in subterms(side) if isinstance(t, Apply)):
        for key, found in term.attrs:
            if term.word in ("eye", "full") and key in ("size", "shape"):
                extents += found if isinstance(found, tuple) else [found] if is_extent(found) else []
    return any((number_of(d) or 1) > 1 for d in extents)


class _Symbolic:
    """A pair with symbolic sizes. ``free``: names on which all sizes depend; ``start``: their values in the domain."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        u = self.unifier = Unifier()
        dims = {n: tuple(u.fresh("d", e) for e in shape) for n, shape in sorted(pair.shapes.items())}
        cache: dict = {TermVariable(n): (d, pair.shapes[n], TermVariable(n)) for n, d in dims.items()}
        both = [[typed(u, t, dims, cache) for t in s] for s in (pair.left, pair.right)]
        for a, b in zip(*both, strict=True):
            for x, y in zip(a[0], b[0], strict=True):
                u.unify(x, y)
        for name, window in u.windows.items():
            u.known.setdefault(name, quotient(u.of(window.span), u.of(window.stride)) + 1)
        self.dims = {n: tuple(u.of(d) for d in ds) for n, ds in dims.items()}
        self.left, self.right = (tuple(resolved(u, t[2]) for t in s) for s in both)
        self.conditions = tuple(dict.fromkeys(_put(c, u.of) for c in u.conditions))
        rule = self.rule("", dict.fromkeys(dims))
        self.free = sorted(rule.sizes, key=lambda n: int(n[1:]))
        self.start = {n: u.values[n] for n in self.free}
        self.values = TermValues(self.dims)

    def rule(self, name: str, leads: Mapping[str, str | None]) -> RewriteRule:
        """The rule as it stands."""
        types = {n: Type(d, leads[n]) for n, d in self.dims.items()}
        return RewriteRule(name, types, self.left, self.right, self.conditions)

    def agrees(self, values: Mapping[str, int]) -> bool:
        """Whether both sides are well-typed and equal at these sizes."""
        positive = all(value_of(d, values) > 0 for dims in self.dims.values() for d in dims)
        return positive and all(self.values.equal(*sides, values) for sides in zip(self.left, self.right, strict=True))

    def settle(self) -> bool:
        """Restricts the names to sizes at which the sides are equal."""
        if not self.agrees(self.start):
            return False
        random = np.random.default_rng(3)
        trials = [{n: v + int(random.integers(0, 3)) for n, v in self.start.items()} for _ in range(3)]
        if not all(self.agrees(t) for t in trials):
            self._restrict(self._moves())
        return True

    def _moves(self) -> list[dict[str, int]]:
        moves = [{n: 1} for n in self.free if self.agrees(self._moved({n: 1}))]
        stuck = [n for n in self.free if {n: 1} not in moves]
        for count in (2, 3):
            moved = {n for m in moves for n in m if len(m) > 1}
            for names in combinations(stuck, count):
                if count == 3 and not set(names) - moved:
                    continue
                axes = {self.unifier.axis[n] for n in names if n[0] in "kps"}
                if len(axes) > 1:
                    continue
                for signs in product((1, -1), repeat=count - 1) if count == 2 else ((1, 1),):
                    move = dict(zip(names, (1, *signs), strict=True))
                    if self.agrees(self._moved(move)):
                        moves.append(move)
        return moves

    def _moved(self, move: Mapping[str, int]) -> dict[str, int]:
        return {n: v + move.get(n, 0) for n, v in self.start.items()}

    def _restrict(self, moves: Sequence[Mapping[str, int]]) -> None:
        """Makes names functions of others: the sizes that the moves reach."""
        rows = [[Fraction(m.get(n, 0)) for n in self.free] for m in moves]
        pivots: list[int] = []
        for column in range(len(self.free)):
            at = next((i for i in range(len(pivots), len(rows)) if rows[i][column]), None)
            if at is None:
                continue
            row = len(pivots)
            rows[row], rows[at] = rows[at], rows[row]
            rows[row] = [v / rows[row][column] for v in rows[row]]
            for i, other in enumerate(rows):
                if i != row and other[column]:
                    rows[i] = [a - other[column] * b for a, b in zip(other, rows[row], strict=True)]
            pivots.append(column)
        known = {}
        for column, name in enumerate(self.free):
            if column in pivots:
                continue
            size, base = 0, self.start[name]
            for row, pivot in enumerate(pivots):
                factor = rows[row][column]
                whole = int(factor)
                if whole == factor and whole:
                    size = size + parse_size(self.free[pivot]) * whole
                    base -= whole * self.start[self.free[pivot]]
            known[name] = size + base
        self._put(known)

    def _put(self, known: Mapping[str, int]) -> None:
        u = self.unifier
        u.known.update(known)
        self.dims = {n: tuple(u.of(d) for d in ds) for n, ds in self.dims.items()}
        self.left, self.right = (tuple(resolved(u, t) for t in s) for s in (self.left, self.right))
        self.conditions = tuple(dict.fromkeys(_put(c, u.of) for c in self.conditions))
        self.conditions = tuple(c for c in self.conditions if number_of(c.right) is None)
        self.free = [n for n in self.free if n not in known]
        self.start = {n: self.start[n] for n in self.free}

    def rules(self, name: str, leading: bool) -> Iterator[RewriteRule]:
        """The rule, with leading dimensions where they may be."""
        tensors = [n for n, s in self.pair.shapes.items() if len(s) > 1]
        for count in range(self._common(tensors), 0, -1):
            types = {n: Type(d[count:], "l") if n in tensors else Type(d) for n, d in self.dims.items()}
            rule = RewriteRule(name, types, self.left, self.right, self.conditions)
            if _types(rule) and valid(rule):
                yield rule
                return
        plain = self.rule(name, dict.fromkeys(self.dims))
        if not leading or not tensors:
            yield plain
            return
        general = self.rule(name, {n: "l" if n in tensors else None for n in self.dims})
        yield general if valid(general) else plain
        for number, some in enumerate(self._batched(tensors), 1):
            rule = self.rule(f"{name} {number}", {n: "l" if n in some else None for n in self.dims})
            if valid(rule):
                yield rule

    def _common(self, tensors: Sequence[str]) -> int:
        """Number of leading dimensions that all tensors share, of extents that stand nowhere else."""
        alike = list(takewhile(lambda row: len(set(row)) == 1, zip(*(self.dims[n] for n in tensors), strict=False)))
        rest = [d for n in self.dims for d in self.dims[n][len(alike) if n in tensors else 0 :]]
        used = set(names_of(*rest)) | set(RewriteRule("", {}, self.left, self.right).sizes)
        return next((i for i, row in enumerate(alike) if used & names_of(row[0])), len(alike))

    def _batched(self, tensors: Sequence[str]) -> list[frozenset[str]]:
        """Choices of the variables that have leading dimensions: all but those on the right of some product, as a
        batch of matrices times one matrix.
        """
        found = set()
        for term in (t for side in (*self.left, *self.right) for t in subterms(side)):
            if isinstance(term, Apply) and term.word == "matmul":
                some = frozenset(tensors) - (variables(term.args[1]) - variables(term.args[0]))
                if some and some != frozenset(tensors):
                    found.add(some)
        return sorted(found, key=lambda names: (-len(names), sorted(names)))


def _types(rule: RewriteRule) -> bool:
    """Whether both sides have types with any leading dimensions, none among them."""
    try:
        type_rule(rule)
    except RuleError:
        return False
    return True


def _put(condition: Condition, of: Callable[[int], int]) -> Condition:
    """The condition with sizes replaced, in its shortest form: 0 ≤ a - b, or 0 ≤ a - b - 1."""
    strict = condition.relation == "<"
    return Condition(0, "<=", of(condition.right) - of(condition.left) - int(strict))


# --- step 3: tests ----------------------------------------------------------------------------------------------------


def equal_at(rule: RewriteRule, binding: Binding, over: PrimeField) -> bool | None:
    """Whether both sides are equal at these sizes; None if one is not well-typed."""
    random = np.random.default_rng(5)
    try:
        shapes = {n: binding.shape(t) for n, t in rule.types.items()}
        if any(min(s, default=1) < 1 for s in shapes.values()):
            return None
        known: dict[Term, np.ndarray] = {TermVariable(n): over.random(random, (1, *s)) for n, s in shapes.items()}
        left, right = ([evaluate_term(t, binding, known, over) for t in side] for side in (rule.left, rule.right))
    except (ModelError, ZeroDivisionError):
        return None
    return all(a.shape == b.shape and bool((a == b).all()) for a, b in zip(left, right, strict=True))


def valid(rule: RewriteRule, samples: int = _SAMPLES) -> bool:
    """Whether both sides have equal types at all random sizes, and equal values at ``samples`` of them, in a field
    other than rules are found in. What types at some sizes must do so with any leading dimensions.
    """
    random = np.random.default_rng(6)
    drawn = Bindings(rule, random)
    found = 0
    for _ in range(_ATTEMPTS):
        binding = drawn.candidate()
        answer = None if binding is None else equal_at(rule, binding, PrimeField(PRIMES[1]))
        if binding is not None and answer is None and any(binding.leads.values()):
            alone = Binding(binding.sizes, dict.fromkeys(binding.leads, ()))
            answer = None if equal_at(rule, alone, FIELD) is None else False
        if answer is False:
            return False
        found += answer is True
        if found == samples:
            return True
    return found >= samples // 4


# --- names ------------------------------------------------------------------------------------------------------------


def _readable(rule: RewriteRule) -> RewriteRule:
    """Variables and sizes named in the order in which they occur: equal rules have equal texts."""
    order = list(
        dict.fromkeys(
            t.name for side in (*rule.left, *rule.right) for t in subterms(side) if isinstance(t, TermVariable)
        )
    )
    new: dict[str, Term] = {n: TermVariable(_VARIABLES[i]) for i, n in enumerate(order)}
    types = {str(new[n]): rule.types[n] for n in order}
    left, right = (tuple(substitute(t, new) for t in side) for side in (rule.left, rule.right))
    rule = replace(rule, types=types, left=left, right=right)
    counts: dict[str, int] = {}
    names: dict[str, int] = {}
    words = dict.fromkeys(re.findall(r"[a-z]+[0-9]+", str(rule)))
    for name in (w for w in words if w in rule.sizes):
        counts[name[0]] = counts.get(name[0], 0) + 1
        names[name] = parse_size(f"{name[0]}{counts[name[0]]}")
    return substitute_sizes(rule, names)

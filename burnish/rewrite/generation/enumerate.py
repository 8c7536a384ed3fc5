"""Enumeration of a domain's terms by size, and their partition into classes of equal value (thesis-jia algorithm 1).

A term's size is its number of distinct operators. The arguments of a term are representatives: the first term found of
each class. So a term is an operator's number and two classes, and no term contains another way to write a part of it.
Classes are numbered in order of size, hence the parts of a representative come before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as default
from itertools import combinations

import numpy as np

from burnish.rewrite.generation import forms
from burnish.rewrite.generation.domains import Domain, Instance, Shape, constant
from burnish.rewrite.language.terms import Apply, Term, TermVariable
from burnish.rewrite.proofs.field import PrimeField, evaluate_graph

NONE = -1  # no second argument; no member; no class
FIELD = PrimeField()  # that terms are told apart in
_LEAF = -1  # the operator of a leaf
_CELLS = 1 << 19  # pairs of arguments looked at together


@dataclass(frozen=True)
class TermLevel:
    """The terms of one size. All arrays are [terms]; ``b`` is NONE for operators of one tensor."""

    operator: np.ndarray  # int16, an index of Terms.instances
    a: np.ndarray  # int32, class of the first argument
    b: np.ndarray  # int32
    value: np.ndarray  # int32, class of the term itself
    first: np.ndarray  # bool: the term is its class's representative

    def take(self, rows: np.ndarray) -> TermLevel:
        """Some of them."""
        return TermLevel(self.operator[rows], self.a[rows], self.b[rows], self.value[rows], self.first[rows])


@dataclass
class Terms:
    """Terms of a domain up to a size. Class c: ``shape[c]`` (an index of ``shapes``), ``size[c]``, its representative's
    ``operator[c]`` with arguments ``a[c]``, ``b[c]`` (leaves: operator -1), and ``members[c]``: the classes of the
    operators in it, in order, NONE behind the last.
    """

    domain: Domain
    field: PrimeField
    instances: list[Instance]
    leaves: list[Term]
    shapes: list[Shape]
    levels: list[TermLevel] = default(default_factory=list)
    shape: np.ndarray = default(default_factory=lambda: np.zeros(0, np.int16))
    size: np.ndarray = default(default_factory=lambda: np.zeros(0, np.int8))
    operator: np.ndarray = default(default_factory=lambda: np.zeros(0, np.int16))
    a: np.ndarray = default(default_factory=lambda: np.zeros(0, np.int32))
    b: np.ndarray = default(default_factory=lambda: np.zeros(0, np.int32))
    members: np.ndarray = default(default_factory=lambda: np.zeros((0, 0), np.int32))
    # values [classes, elements] and numbers of the classes of each shape and size, below the greatest size
    values: dict[tuple[int, int], np.ndarray] = default(default_factory=dict)
    classes: dict[tuple[int, int], np.ndarray] = default(default_factory=dict)

    def value_of(self, classes: np.ndarray) -> np.ndarray:
        """Values [B, elements] of classes of one shape that are smaller than the greatest, int64."""
        place = int(self.shape[classes[0]])
        out = np.empty((len(classes), int(np.prod(self.shapes[place], dtype=int))), np.int64)
        sizes = self.size[classes]
        for n in np.unique(sizes):
            rows = np.flatnonzero(sizes == n)
            out[rows] = self.values[place, n][np.searchsorted(self.classes[place, n], classes[rows])]
        return out

    def term(self, of: int) -> Term:
        """The representative of a class."""
        if self.operator[of] == _LEAF:
            return self.leaves[of]
        return self.applied(self.operator[of], self.a[of], self.b[of])

    def applied(self, operator: int, a: int, b: int) -> Term:
        """An operator of representatives."""
        return self.instances[operator].term(*(self.term(c) for c in (a, b) if c != NONE))


def enumerate_terms(domain: Domain, size: int, over: PrimeField = FIELD) -> Terms:
    """All terms of a domain of at most ``size`` operators, the same in every run."""
    return _Enumeration(domain, size, over).terms


class _Enumeration:
    def __init__(self, domain: Domain, size: int, over: PrimeField) -> None:
        instances = domain.instances()
        leaves = domain.leaves()
        shapes = sorted({s for _, s in leaves} | {s for i in instances for s in (*i.shapes, i.shape)})
        self.terms = Terms(domain, over, instances, [t for t, _ in leaves], shapes)
        self.forms = [forms.form(instance, over) for instance in instances]
        self.places = {shape: i for i, shape in enumerate(shapes)}
        self.last = size
        # zeros of two shapes are two classes
        self.salts = np.random.default_rng(7).integers(0, 1 << 62, len(shapes))
        self.known = np.zeros(0, np.int64)  # fingerprints of the classes, in order
        self.known_class = np.zeros(0, np.int32)
        self._leaves([shape for _, shape in leaves])
        for n in range(1, size + 1):
            self._level(n)

    # --- leaves and classes -------------------------------------------------------------------------------------------

    def _leaves(self, shapes: list[Shape]) -> None:
        random = np.random.default_rng(1)
        values = [self._leaf(t, s, random) for t, s in zip(self.terms.leaves, shapes, strict=True)]
        prints = [
            forms.key(forms.product_modulo(v[None], forms.projection(s, self.terms.field).T, self.terms.field))
            for v, s in zip(values, shapes, strict=True)
        ]
        none = np.full(len(values), NONE, np.int32)
        places = np.array([self.places[s] for s in shapes], np.int16)
        self._add_classes(np.concatenate(prints) ^ self.salts[places], places, 0, none.astype(np.int16), none, none)
        for place in np.unique(places):
            self.terms.values[place, 0] = np.array(
                [v for v, q in zip(values, places, strict=True) if q == place], np.uint32
            )

    def _leaf(self, term: Term, shape: Shape, random: np.random.Generator) -> np.ndarray:
        if isinstance(term, TermVariable):
            over = self.terms.field
            one, two = (over.random(random, (int(np.prod(shape, dtype=int)),)) for _ in range(2))
            return np.where(over.rank(one) < over.rank(two), one, two)  # windows without a positive element occur
        assert isinstance(term, Apply)
        (value,) = evaluate_graph(constant(term).graph, {}, self.terms.field)
        return value.reshape(-1)

    def _add_classes(
        self, prints: np.ndarray, places: np.ndarray, n: int, operator: np.ndarray, a: np.ndarray, b: np.ndarray
    ) -> np.ndarray:
        """Numbers for new classes, given in order of preference."""
        t = self.terms
        numbers = np.arange(len(t.shape), len(t.shape) + len(prints), dtype=np.int32)
        t.shape = np.concatenate([t.shape, places.astype(np.int16)])
        t.size = np.concatenate([t.size, np.full(len(prints), n, np.int8)])
        t.operator = np.concatenate([t.operator, operator])
        t.a, t.b = np.concatenate([t.a, a]), np.concatenate([t.b, b])
        if n == self.last:
            return numbers
        self._add_members(numbers, n)
        known = np.concatenate([self.known, prints])
        order = np.argsort(known, kind="stable")
        self.known, self.known_class = known[order], np.concatenate([self.known_class, numbers])[order]
        for place in np.unique(places):
            self.terms.classes[place, n] = numbers[places == place]
        return numbers

    def _add_members(self, numbers: np.ndarray, n: int) -> None:
        t = self.terms
        if n == 0:
            t.members = np.full((len(numbers), max(self.last - 1, 0)), NONE, np.int32)
            return
        t.members = np.concatenate([t.members, members_of(t, t.a[numbers], t.b[numbers], numbers)])

    # --- one size -----------------------------------------------------------------------------------------------------

    def _level(self, n: int) -> None:
        t = self.terms
        operators, lefts, rights, prints = [], [], [], []
        for number, instance in enumerate(t.instances):
            for a, b, found in self._applications(number, instance, n):
                operators.append(np.full(len(a), number, np.int16))
                lefts.append(a)
                rights.append(b)
                prints.append(found ^ self.salts[self.places[instance.shape]])
        operator, a, b, key = (_joined(pieces) for pieces in (operators, lefts, rights, prints))
        order = np.argsort(key)  # not stable: equal keys are told apart by their least places, below
        ordered = key[order]
        count = len(key)
        del key
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        ordered = ordered[starts]  # each fingerprint once
        least = np.minimum.reduceat(order, starts)
        place = np.minimum(np.searchsorted(self.known, ordered), len(self.known) - 1)
        group = self.known_class[place]
        fresh = np.flatnonzero(self.known[place] != ordered)
        del place
        fresh = fresh[np.argsort(least[fresh])]  # classes in the order in which their first terms were found
        chosen = least[fresh]
        places = np.array([self.places[i.shape] for i in t.instances], np.int16)[operator[chosen]]
        group[fresh] = self._add_classes(ordered[fresh], places, n, operator[chosen], a[chosen], b[chosen])
        del ordered, least, fresh
        value = np.empty(count, np.int32)
        value[order] = group.repeat(np.diff(starts, append=count))
        del order, starts
        first = np.zeros(count, bool)
        first[chosen] = True
        t.levels.append(TermLevel(operator, a, b, value, first))
        if n < self.last:
            self._evaluate(n)

    def _evaluate(self, n: int) -> None:
        """Values of the new classes."""
        t = self.terms
        for (place, size), numbers in self.terms.classes.items():
            if size != n:
                continue
            width = int(np.prod(t.shapes[place], dtype=int))
            values = np.empty((len(numbers), width), np.uint32)
            for operator in np.unique(t.operator[numbers]):
                rows = np.flatnonzero(t.operator[numbers] == operator)
                instance = t.instances[operator]
                arguments = [c[numbers[rows]] for c in (t.a, t.b)][: len(instance.shapes)]
                values[rows] = forms.evaluate(instance, [self.terms.value_of(c) for c in arguments], t.field)
            self.terms.values[place, n] = values

    def _applications(
        self, number: int, instance: Instance, n: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Argument classes and fingerprints of an operator's terms of size ``n``, in a fixed order."""
        form, over = self.forms[number], self.terms.field
        places = [self.places[s] for s in instance.shapes]
        if len(places) == 1:
            classes = self.terms.classes.get((places[0], n - 1), np.zeros(0, np.int32))
            if len(classes):
                yield classes, np.full(len(classes), NONE, np.int32), self._unary(form, instance, classes)
            return
        for i in range(n):
            for j in range(n - 1 - i, n):
                left, right = (self.terms.classes.get((p, k)) for p, k in zip(places, (i, j), strict=True))
                if left is None or right is None or i + j - (n - 1) > min(i, j):
                    continue
                if i + j == n - 1:
                    yield from self._disjoint(form, left, right, i, j)
                    continue
                a, b = self._sharing(left, right, i, j, i + j - (n - 1))
                (x, rows_x), (y, rows_y) = (np.unique(c, return_inverse=True) for c in (a, b))
                if len(a):
                    inputs = (self.terms.value_of(x), self.terms.value_of(y))
                    yield a, b, forms.key(forms.chosen(form, inputs, (rows_x, rows_y), over))

    def _unary(self, form: forms.FingerprintForm, instance: Instance, a: np.ndarray) -> np.ndarray:
        over = self.terms.field
        if form.kind == "linear":
            return forms.key(forms.fingerprints(form, [self.terms.value_of(a)], over))
        values = forms.evaluate(instance, [self.terms.value_of(a)], over)
        return forms.key(forms.product_modulo(values, forms.projection(instance.shape, over).T, over))

    def _disjoint(
        self, form: forms.FingerprintForm, left: np.ndarray, right: np.ndarray, i: int, j: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """All pairs without a common operator."""
        members = self.terms.members
        y = self.terms.value_of(right)
        rows = max(1, _CELLS // len(right))
        for start in range(0, len(left), rows):
            part = left[start : start + rows]
            prints = forms.key(forms.table(form, self.terms.value_of(part), y, self.terms.field))
            apart = np.ones(prints.shape, bool)
            for k in range(i):
                for m in range(j):
                    apart &= members[part, k][:, None] != members[right, m][None]
            x, z = np.nonzero(apart)
            yield part[x], right[z], prints[x, z]

    def _sharing(
        self, left: np.ndarray, right: np.ndarray, i: int, j: int, shared: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """All pairs with exactly ``shared`` common operators: a join on their subsets of that many."""
        a, b = (self._subsets(classes, n, shared) for classes, n in ((left, i), (right, j)))
        order = np.argsort(b[0], kind="stable")
        keys, owners = b[0][order], b[1][order]
        low, high = np.searchsorted(keys, a[0], "left"), np.searchsorted(keys, a[0], "right")
        x = a[1].repeat(high - low)
        z = owners[spans(low, high)]
        order = np.lexsort((z, x))
        x, z = x[order], z[order]
        exact = np.zeros(len(x), np.int8)
        members = self.terms.members
        for k in range(i):
            for m in range(j):
                exact += members[x, k] == members[z, m]
        keep = exact == shared
        return x[keep], z[keep]

    def _subsets(self, classes: np.ndarray, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the subsets of ``size`` operators of each class's ``n``, and the classes they belong to."""
        keys, owners = [], []
        for columns in combinations(range(n), size):
            key = np.zeros(len(classes), np.int64)
            for column in columns:
                key = key * (len(self.terms.shape) + 1) + self.terms.members[classes, column]
            keys.append(key)
            owners.append(classes)
        return np.concatenate(keys), np.concatenate(owners)


def _joined(pieces: list[np.ndarray]) -> np.ndarray:
    """All pieces as one; the list is emptied, so that both are not kept."""
    whole = np.concatenate(pieces)
    pieces.clear()
    return whole


def members_of(t: Terms, a: np.ndarray, b: np.ndarray, root: np.ndarray | None = None) -> np.ndarray:
    """Operators [N, columns of Terms.members] in terms of arguments ``a`` and ``b``: theirs, and ``root`` if given."""
    limit = np.iinfo(np.int32).max
    columns = [t.members[a], np.where((b == NONE)[:, None], NONE, t.members[b])]
    if root is not None:
        columns.append(root[:, None].astype(np.int32))
    both = np.concatenate(columns, axis=1)
    both[both == NONE] = limit
    both.sort(axis=1)
    both[:, 1:][both[:, 1:] == both[:, :-1]] = limit
    both.sort(axis=1)
    both = both[:, : t.members.shape[1]]
    both[both == limit] = NONE
    return both


def spans(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The integers low[0]…high[0]-1, low[1]…high[1]-1, … in one array."""
    lengths = high - low
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - (ends - lengths - low).repeat(lengths)

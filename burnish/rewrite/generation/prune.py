"""Pruning of pairs of equal terms that a more general pair subsumes (thesis-jia section 2.5, table 2.3).

A pair is a term that is not its class's representative, and the representative. Both are terms over representatives, so
the second form of a common subgraph (the operators at the outputs are the same) cannot occur: such terms are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from burnish.rewrite.generation import forms
from burnish.rewrite.generation.enumerate import NONE, Terms, members_of
from burnish.rewrite.language.terms import TermVariable

_ROWS = 1 << 18  # terms looked at together


class Nodes:
    """All terms of some sizes in one table, leaves first: term i is ``operator[i]`` of classes ``a[i]`` and ``b[i]``,
    its class ``value[i]``; ``first[c]`` is the representative of class c, ``start[n]`` the first term of size n.

    ``size``: the greatest. ``whole``: beyond this size there are only terms whose root is one of ``operators``.
    """

    def __init__(self, terms: Terms, size: int, whole: int | None = None, operators: Sequence[int] = ()) -> None:
        self.terms = terms
        levels = terms.levels[:size]
        for n in range(size if whole is None else whole, size):
            levels[n] = levels[n].take(np.isin(levels[n].operator, operators))
        leaves = int((terms.size == 0).sum())
        none = np.full(leaves, NONE, np.int32)
        self.operator = np.concatenate([none.astype(np.int16), *(n.operator for n in levels)])
        self.a = np.concatenate([none, *(n.a for n in levels)])
        self.b = np.concatenate([none, *(n.b for n in levels)])
        self.value = np.concatenate([np.arange(leaves, dtype=np.int32), *(n.value for n in levels)])
        self.start = np.cumsum([0, leaves, *(len(n.a) for n in levels)])
        self.level = np.concatenate([[0] * leaves, *([i] * len(n.a) for i, n in enumerate(levels, 1))]).astype(np.int8)
        chosen = np.concatenate([np.ones(leaves, bool), *(n.first for n in levels)])
        self.pair = ~chosen
        self.first = np.full(int(self.value.max()) + 1, NONE, np.int64)
        self.first[self.value[chosen]] = np.flatnonzero(chosen)
        self._base = len(self.first) + 1
        keys = self.key(self.operator, self.a, self.b)
        keys[:leaves] = np.iinfo(np.int64).max
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def key(self, operator: np.ndarray | int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """One integer for an operator and its arguments."""
        return (np.int64(operator) * self._base + a.astype(np.int64)) * self._base + b + 1

    @cached_property
    def arguments(self) -> int:
        """Number of classes, the first ones, that are small enough to be arguments in the table."""
        return int((self.terms.size < self.level.max()).sum())

    @cached_property
    def renamings(self) -> list[np.ndarray]:
        """For each renaming of the variables, the class that each argument becomes; see :func:`_exchanges`."""
        return list(_renamings(self))

    def find(self, operator: np.ndarray | int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Numbers of the terms that apply ``operator`` to these classes; NONE for those not enumerated."""
        known = (a != NONE) & (a < self._base - 1) & (b < self._base - 1)
        keys = self.key(operator, a, b)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(known & (self._keys[place] == keys), self._order[place], NONE)


def _exchanges(nodes: Nodes) -> list[np.ndarray]:
    """Class permutations by exchanges of two variables of one shape: the class that each argument becomes, NONE where
    that is no argument of the table. Exchanges of neighbours, which generate all renamings.
    """
    t = nodes.terms
    leaves = int((t.size == 0).sum())
    variables = [i for i in range(leaves) if isinstance(t.leaves[i], TermVariable)]
    found = []
    for x, y in pairwise(variables):
        if t.shape[x] != t.shape[y]:
            continue
        classes = np.full(nodes.arguments, NONE, np.int32)
        classes[:leaves] = np.arange(leaves)
        classes[[x, y]] = y, x
        for level in range(1, int(nodes.level.max())):
            rows = np.flatnonzero((nodes.level == level) & ~nodes.pair)
            a, b = classes[nodes.a[rows]], np.where(nodes.b[rows] == NONE, NONE, classes[nodes.b[rows]])
            lost = (a == NONE) | ((b == NONE) & (nodes.b[rows] != NONE))
            to = np.where(lost, NONE, nodes.find(nodes.operator[rows], a, b))
            value = nodes.value[to]
            classes[nodes.value[rows]] = np.where((to == NONE) | (value >= nodes.arguments), NONE, value)
        found.append(classes)
    return found


def _renamings(nodes: Nodes) -> Iterator[np.ndarray]:
    leaves = int((nodes.terms.size == 0).sum())
    steps = _exchanges(nodes)
    waiting = [np.arange(nodes.arguments, dtype=np.int32)]
    seen = {waiting[0][:leaves].tobytes()}
    while waiting:
        renamed = waiting.pop()
        yield renamed
        for step in steps:
            after = np.where(renamed == NONE, NONE, step[renamed])
            if after[:leaves].tobytes() not in seen:
                seen.add(after[:leaves].tobytes())
                waiting.append(after)


def canonical(nodes: Nodes, operator: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One number for each term, of type float64: equal ones for terms that a renaming of variables exchanges."""
    least = np.full(len(a), np.nan)
    for renamed in nodes.renamings:
        count = len(renamed)
        to = np.append(np.where(renamed == NONE, np.nan, renamed), NONE)  # NONE, the last, to itself
        for start in range(0, len(a), _ROWS):
            piece = slice(start, start + _ROWS)
            keys = to[a[piece]]
            keys *= count + 1.0
            keys += to[b[piece]]
            np.fmin(least[piece], keys, out=least[piece])
    return operator * (count + 1.0) ** 2 + least  # whole numbers below 2⁵³


def orbits(nodes: Nodes, rows: np.ndarray) -> np.ndarray:
    """Orbit representatives under renaming of variables: for each of ``rows`` the first that is equal up to a renaming;
    other nodes represent themselves.
    """
    keys = canonical(nodes, nodes.operator[rows], nodes.a[rows], nodes.b[rows])
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    found = np.arange(len(nodes.value))
    found[rows] = rows[first][back]
    return found


@dataclass(frozen=True)
class Pairs:
    """Terms ``operator(a, b)`` of classes ``value``, each with its class's representative. All arrays are [pairs]."""

    operator: np.ndarray
    a: np.ndarray
    b: np.ndarray
    value: np.ndarray

    def take(self, rows: np.ndarray | slice) -> Pairs:
        """Some of them."""
        return Pairs(self.operator[rows], self.a[rows], self.b[rows], self.value[rows])

    def representatives(self, t: Terms) -> Pairs:
        """The other sides."""
        return Pairs(t.operator[self.value], t.a[self.value], t.b[self.value], self.value)


def shared(t: Terms, pairs: Pairs) -> np.ndarray:
    """The greatest operator (its class) that both terms of each pair contain below their roots; NONE for none."""
    ours = members_of(t, pairs.a, pairs.b)
    other = pairs.representatives(t)
    leaf = other.operator == NONE
    a = np.where(leaf, pairs.value, other.a)  # a leaf has no members, nor has what stands here for it
    theirs = members_of(t, a, np.where(leaf, NONE, other.b))
    best = np.full(len(pairs.value), NONE, np.int32)
    for i in range(ours.shape[1]):
        for j in range(theirs.shape[1]):
            same = (ours[:, i] == theirs[:, j]) & (ours[:, i] != NONE)
            best = np.where(same, np.maximum(best, ours[:, i]), best)
    return best


def general(t: Terms, pairs: Pairs, part: np.ndarray) -> np.ndarray:
    """Whether both terms of each pair stay equal when the class ``part`` in them becomes a variable."""
    equal = np.zeros(len(part), bool)
    for place in np.unique(t.shape[pairs.value]):
        rows = np.flatnonzero(t.shape[pairs.value] == place)
        some = pairs.take(rows)
        x, y = (_rooted(t, side, part[rows]) for side in (some, some.representatives(t)))
        equal[rows] = (x == y).all(axis=1)
    return equal


def _rooted(t: Terms, pairs: Pairs, part: np.ndarray) -> np.ndarray:
    """Values of terms of one shape in which ``part`` is replaced by a random tensor."""
    place = int(t.shape[pairs.value[0]])
    out = np.empty((len(part), int(np.prod(t.shapes[place], dtype=int))), np.int64)
    for operator in np.unique(pairs.operator):
        rows = np.flatnonzero(pairs.operator == operator)
        if operator == NONE:
            out[rows] = t.value_of(pairs.value[rows])
            continue
        instance = t.instances[operator]
        arguments = [c[rows] for c in (pairs.a, pairs.b)][: len(instance.shapes)]
        out[rows] = forms.evaluate(instance, [_replaced(t, c, part[rows]) for c in arguments], t.field)
    return out


def _replaced(t: Terms, classes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Values of representatives of one shape in which ``part`` is replaced by a random tensor."""
    both, back = np.unique(classes.astype(np.int64) * len(t.shape) + part, return_inverse=True)
    classes, part = np.divmod(both, len(t.shape))
    out = t.value_of(classes)
    place = int(t.shape[classes[0]])
    out[classes == part] = t.field.random(np.random.default_rng([4, place]), (out.shape[1],))
    inside = (t.members[classes] == part[:, None]).any(axis=1) & (classes != part)
    for operator in np.unique(t.operator[classes[inside]]):
        rows = np.flatnonzero(inside & (t.operator[classes] == operator))
        instance = t.instances[operator]
        arguments = [c[classes[rows]] for c in (t.a, t.b)][: len(instance.shapes)]
        out[rows] = forms.evaluate(instance, [_replaced(t, c, part[rows]) for c in arguments], t.field)
    return out[back]


@dataclass(frozen=True)
class Pruned:
    """Pruning counts of one size: terms, pairs, pairs up to renaming, and those without a common subgraph. ``kept``:
    the places of the last in the level.
    """

    size: int
    terms: int
    pairs: int
    renamed: int
    kept: np.ndarray


def prune(nodes: Nodes, size: int) -> Pruned:
    """The pairs of one size that no renaming and no common subgraph makes redundant. ``nodes``: at least this size
    and all smaller terms.
    """
    t, level = nodes.terms, nodes.terms.levels[size - 1]
    rows = np.flatnonzero(~level.first)
    pairs = Pairs(level.operator, level.a, level.b, level.value).take(rows)
    _, first = np.unique(canonical(nodes, pairs.operator, pairs.a, pairs.b), return_index=True)
    first.sort()
    redundant = np.zeros(len(first), bool)
    for start in range(0, len(first), _ROWS):
        some = pairs.take(first[start : start + _ROWS])
        part = shared(t, some)
        both = np.flatnonzero(part != NONE)
        if len(both):
            redundant[start + both] = general(t, some.take(both), part[both])
    return Pruned(size, len(level.a), len(rows), len(first), rows[first[~redundant]])

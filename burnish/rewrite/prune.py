"""Pruning of pairs of equal terms that a more general pair subsumes (thesis-jia section 2.5, table 2.3).

A pair is a term that is not its class's representative, and the representative. Both are terms over representatives, so
the second form of a common subgraph (the operators at the outputs are the same) cannot occur: such terms are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from burnish.rewrite import forms
from burnish.rewrite.enumerate import NONE, Terms, members_of
from burnish.rewrite.terms import Var


class Nodes:
    """All terms of some sizes in one table, leaves first: term i is ``operator[i]`` of classes ``a[i]`` and ``b[i]``,
    its class ``value[i]``; ``first[c]`` is the representative of class c."""

    def __init__(self, terms: Terms, size: int) -> None:
        self.terms = terms
        levels = terms.levels[:size]
        leaves = int((terms.size == 0).sum())
        none = np.full(leaves, NONE, np.int32)
        self.operator = np.concatenate([none.astype(np.int16), *(n.operator for n in levels)])
        self.a = np.concatenate([none, *(n.a for n in levels)])
        self.b = np.concatenate([none, *(n.b for n in levels)])
        self.value = np.concatenate([np.arange(leaves, dtype=np.int32), *(n.value for n in levels)])
        self.level = np.concatenate([[0] * leaves, *([i] * len(n.a) for i, n in enumerate(levels, 1))]).astype(np.int8)
        chosen = np.concatenate([np.ones(leaves, bool), *(n.first for n in levels)])
        self.pair = ~chosen
        self.first = np.full(int(self.value.max()) + 1, NONE, np.int64)
        self.first[self.value[chosen]] = np.flatnonzero(chosen)
        self._base = int(self.a.max(initial=0)) + 2
        keys = self.key(self.operator, self.a, self.b)
        keys[:leaves] = np.iinfo(np.int64).max
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def key(self, operator: np.ndarray | int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """One integer for an operator and its arguments."""
        return (np.int64(operator) * self._base + a.astype(np.int64)) * self._base + b + 1

    def find(self, operator: np.ndarray | int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Numbers of the terms that apply ``operator`` to these classes; NONE for those not enumerated."""
        known = (a != NONE) & (a < self._base - 1) & (b < self._base - 1)
        keys = self.key(operator, a, b)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(known & (self._keys[place] == keys), self._order[place], NONE)


def renamings(nodes: Nodes) -> list[np.ndarray]:
    """For each exchange of two variables of one shape: the term that each term becomes; itself where that was not
    enumerated. Exchanges of neighbours, which generate all renamings."""
    t = nodes.terms
    leaves = int((t.size == 0).sum())
    variables = [i for i in range(leaves) if isinstance(t.leaves[i], Var)]
    found = []
    for x, y in pairwise(variables):
        if t.shape[x] != t.shape[y]:
            continue
        classes = np.arange(len(nodes.first))
        classes[[x, y]] = y, x
        image = np.arange(len(nodes.value))
        image[:leaves] = classes[:leaves]
        for level in range(1, int(nodes.level.max()) + 1):
            rows = np.flatnonzero(nodes.level == level)
            a, b = classes[nodes.a[rows]], np.where(nodes.b[rows] == NONE, NONE, classes[nodes.b[rows]])
            to = nodes.find(nodes.operator[rows], a, b)
            image[rows] = np.where(to == NONE, rows, to)
            chosen = rows[~nodes.pair[rows]]
            classes[nodes.value[chosen]] = nodes.value[image[chosen]]
        found.append(image)
    return found


def orbits(count: int, images: list[np.ndarray]) -> np.ndarray:
    """The least number that each of ``count`` things can be mapped to."""
    label = np.arange(count)
    while True:
        before = label.copy()
        for image in images:
            least = np.minimum(label, label[image])
            np.minimum.at(least, image, label)
            label = least
        if np.array_equal(label, before):
            return label


def shared(nodes: Nodes, pairs: np.ndarray) -> np.ndarray:
    """The greatest operator (its class) that both terms of each pair contain below their roots; NONE for none."""
    t = nodes.terms
    ours = members_of(t, nodes.a[pairs], nodes.b[pairs])
    other = nodes.first[nodes.value[pairs]]
    leaf = nodes.operator[other] == NONE
    a = np.where(leaf, nodes.value[other], nodes.a[other])  # a leaf has no members, nor has what stands here for it
    theirs = members_of(t, a, np.where(leaf, NONE, nodes.b[other]))
    best = np.full(len(pairs), NONE, np.int32)
    for i in range(ours.shape[1]):
        for j in range(theirs.shape[1]):
            same = (ours[:, i] == theirs[:, j]) & (ours[:, i] != NONE)
            best = np.where(same, np.maximum(best, ours[:, i]), best)
    return best


def general(nodes: Nodes, pairs: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Whether both terms of each pair stay equal when the class ``part`` in them becomes a variable."""
    t = nodes.terms
    equal = np.zeros(len(pairs), bool)
    other = nodes.first[nodes.value[pairs]]
    for place in np.unique(t.shape[nodes.value[pairs]]):
        rows = np.flatnonzero(t.shape[nodes.value[pairs]] == place)
        x, y = (_rooted(nodes, n[rows], part[rows]) for n in (pairs, other))
        equal[rows] = (x == y).all(axis=1)
    return equal


def _rooted(nodes: Nodes, roots: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Values of terms of one shape in which ``part`` is replaced by a random tensor."""
    t = nodes.terms
    place = int(t.shape[nodes.value[roots[0]]])
    out = np.empty((len(roots), int(np.prod(t.shapes[place], dtype=int))), np.int64)
    for operator in np.unique(nodes.operator[roots]):
        rows = np.flatnonzero(nodes.operator[roots] == operator)
        if operator == NONE:
            out[rows] = t.value_of(nodes.value[roots[rows]])
            continue
        instance = t.instances[operator]
        arguments = [c[roots[rows]] for c in (nodes.a, nodes.b)][: len(instance.shapes)]
        out[rows] = forms.evaluate(instance, [_replaced(t, c, part[rows]) for c in arguments], t.field)
    return out


def _replaced(t: Terms, classes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Values of representatives of one shape in which ``part`` is replaced by a random tensor."""
    both, back = np.unique(np.stack([classes, part]), axis=1, return_inverse=True)
    classes, part = both
    out = t.value_of(classes)
    place = int(t.shape[classes[0]])
    out[classes == part] = t.field.random(np.random.default_rng([4, place]), (out.shape[1],))
    inside = (t.members[classes] == part[:, None]).any(axis=1) & (classes != part)
    for operator in np.unique(t.operator[classes[inside]]):
        rows = np.flatnonzero(inside & (t.operator[classes] == operator))
        instance = t.instances[operator]
        arguments = [c[classes[rows]] for c in (t.a, t.b)][: len(instance.shapes)]
        out[rows] = forms.evaluate(instance, [_replaced(t, c, part[rows]) for c in arguments], t.field)
    return out[back.reshape(-1)]


@dataclass(frozen=True)
class Pruned:
    """What is left after each step, of one size: pairs, pairs up to renaming, and those without a common subgraph.
    ``kept``: the terms of the last."""

    size: int
    terms: int
    pairs: int
    renamed: int
    kept: np.ndarray


def prune(nodes: Nodes, label: np.ndarray, size: int) -> Pruned:
    """The pairs of one size that no renaming and no common subgraph makes redundant. ``label``: of :func:`orbits`."""
    rows = np.flatnonzero(nodes.pair & (nodes.level == size))
    _, first = np.unique(label[rows], return_index=True)
    renamed = rows[np.sort(first)]
    part = shared(nodes, renamed)
    redundant = np.zeros(len(renamed), bool)
    both = np.flatnonzero(part != NONE)
    if len(both):
        redundant[both] = general(nodes, renamed[both], part[both])
    return Pruned(size, int((nodes.level == size).sum()), len(rows), len(renamed), renamed[~redundant])

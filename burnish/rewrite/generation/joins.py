"""Rules applied to all terms of a domain at once, as joins of tables: which equal terms accepted rules connect.

A rule is matched on terms whose parts are classes: a part matches a class if any smaller term of the class does. So
what is connected follows from the rules and from equalities of smaller terms, which were all connected before.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

import numpy as np

from burnish.rewrite.generation.domains import NOTHING
from burnish.rewrite.generation.enumerate import NONE, spans
from burnish.rewrite.generation.generalize import Pair
from burnish.rewrite.generation.prune import Nodes
from burnish.rewrite.language.terms import Apply, Term, TermVariable, variables
from burnish.rewrite.language.vocabulary import Shape, infer_word

Columns = dict[str, np.ndarray]


class Joins:
    """Matches rules at terms of one size; terms below it may be their parts.

    ``literally``: a part matches a class only if its representative does, as one step of rewriting would.
    """

    def __init__(self, nodes: Nodes, size: int) -> None:
        self.nodes, self.size = nodes, size
        t = nodes.terms
        self.operators = {(i.word, i.attrs, i.shapes): n for n, i in enumerate(t.instances)}
        self.leaves = {str(leaf): c for c, leaf in enumerate(t.leaves) if isinstance(leaf, Apply)}
        several = np.bincount(nodes.value, minlength=len(nodes.first)) > 1  # a class's only term equals no other
        outer = np.flatnonzero((nodes.level == size) & several[nodes.value])
        outer = outer[np.argsort(nodes.operator[outer], kind="stable")]
        self.outer = _grouped(outer, nodes.operator[outer], len(t.instances))
        self.starts: dict[int, np.ndarray] = {}  # of an operator: where the terms of each class start in ``inner``

    @cached_property
    def inner(self) -> list[np.ndarray]:
        """Terms below the size by operator, in order of their classes."""
        inner = np.flatnonzero((self.nodes.level < self.size) & (self.nodes.operator != NONE))
        inner = inner[np.lexsort((self.nodes.value[inner], self.nodes.operator[inner]))]
        return _grouped(inner, self.nodes.operator[inner], len(self.nodes.terms.instances))

    def edges(self, pair: Pair, literally: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Terms that the pair, read either way, makes equal: one of this size, and another."""
        ways = ((pair.left[0], pair.right[0]), (pair.right[0], pair.left[0]))
        found = [self.matches(*sides, pair.shapes, literally) for sides in ways]
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def matches(
        self, left: Term, right: Term, shapes: Mapping[str, Shape], literally: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Terms of this size that are instances of ``left``, and the instances of ``right`` that they become.
        ``shapes``: of the variables.
        """
        none = np.zeros(0, np.int64)
        if isinstance(left, TermVariable) or str(left) in self.leaves or not variables(right) <= variables(left):
            return none, none
        shape_of: dict[Term, Shape] = {TermVariable(n): s for n, s in shapes.items()}
        operator = self._operator(left, shape_of)
        if operator is None or self._operator(right, shape_of) is None:
            return none, none
        roots = self.outer[operator]
        rows, columns = self._arguments(left, roots, np.arange(len(roots)), {}, shape_of, literally)
        to = self._built(right, columns, len(rows), shape_of)
        known = to != NONE
        return roots[rows[known]], to[known]

    def _operator(self, term: Term, shapes: dict[Term, Shape]) -> int | None:
        """The operator of a term's root; NONE for a variable or constant, None if the domain does not have it."""
        if isinstance(term, TermVariable) or str(term) in self.leaves:
            return NONE
        for argument in term.args:
            self._shape(argument, shapes)
        return self.operators.get((term.word, term.attrs, tuple(shapes[a] for a in term.args)))

    def _shape(self, term: Term, shapes: dict[Term, Shape]) -> Shape:
        if term not in shapes:
            assert isinstance(term, Apply)
            arguments = tuple(self._shape(a, shapes) for a in term.args)
            shapes[term] = infer_word(term.word, arguments, NOTHING.attributes(term))
        return shapes[term]

    def _arguments(
        self,
        term: Term,
        nodes: np.ndarray,
        rows: np.ndarray,
        columns: Columns,
        shapes: dict[Term, Shape],
        literally: bool,
    ) -> tuple[np.ndarray, Columns]:
        """Matches a term's arguments at ``nodes``. ``rows``: the match each stands for; gives those left."""
        assert isinstance(term, Apply)
        for argument, classes in zip(term.args, (self.nodes.a, self.nodes.b), strict=False):
            found = classes[nodes].astype(np.int64)
            if isinstance(argument, TermVariable):
                if argument.name not in columns:
                    columns = {**columns, argument.name: found}
                    continue
                keep = columns[argument.name] == found
                nodes, rows, columns = nodes[keep], rows[keep], {n: c[keep] for n, c in columns.items()}
                continue
            operator = self._operator(argument, shapes)
            if operator == NONE:
                keep = found == self.leaves[str(argument)]
                nodes, rows, columns = nodes[keep], rows[keep], {n: c[keep] for n, c in columns.items()}
                continue
            if operator is None:
                keep = np.zeros(len(found), bool)
                return rows[keep], {n: c[keep] for n, c in columns.items()} | _empty(term)
            again, parts = self._parts(operator, found, literally)
            inside = {n: c[again] for n, c in columns.items()}
            kept, inside = self._arguments(argument, parts, np.arange(len(parts)), inside, shapes, literally)
            nodes, rows, columns = nodes[again[kept]], rows[again[kept]], inside
        return rows, columns

    def _parts(self, operator: int, classes: np.ndarray, literally: bool) -> tuple[np.ndarray, np.ndarray]:
        """Terms of an operator that are in these classes, and the places of their classes in ``classes``."""
        if literally:
            parts = self.nodes.first[classes]
            again = np.flatnonzero(self.nodes.operator[parts] == operator)
            return again, parts[again]
        inner = self.inner[operator]
        if operator not in self.starts:
            arguments = int((self.nodes.terms.size < self.size).sum())
            count = np.bincount(self.nodes.value[inner], minlength=arguments)
            self.starts[operator] = np.concatenate([[0], np.cumsum(count)])
        low, high = self.starts[operator][classes], self.starts[operator][classes + 1]
        return np.arange(len(classes)).repeat(high - low), inner[spans(low, high)]

    def _built(self, term: Term, columns: Columns, count: int, shapes: dict[Term, Shape]) -> np.ndarray:
        """The terms that ``term`` is for these variables; NONE where it was not enumerated."""
        operator = self._operator(term, shapes)
        if operator is None:
            return np.full(count, NONE, np.int64)
        if isinstance(term, TermVariable):
            return self.nodes.first[columns[term.name]]
        if operator == NONE:
            return np.full(count, self.leaves[str(term)], np.int64)
        classes = []
        for argument in term.args:
            built = self._built(argument, columns, count, shapes)
            classes.append(np.where(built == NONE, NONE, self.nodes.value[built]))
        a, b = classes if len(classes) == 2 else (classes[0], np.full(count, NONE, np.int64))
        lost = (a == NONE) if len(classes) == 1 else (a == NONE) | (b == NONE)
        return np.where(lost, NONE, self.nodes.find(operator, a, b))


def _grouped(rows: np.ndarray, groups: np.ndarray, count: int) -> list[np.ndarray]:
    """Rows by group; they are in order of their groups."""
    return [rows[a:b] for a, b in pairwise(np.searchsorted(groups, np.arange(count + 1)))]


def _empty(term: Term) -> Columns:
    return {name: np.zeros(0, np.int64) for name in variables(term)}


def connect(parent: np.ndarray, edges: tuple[np.ndarray, np.ndarray]) -> None:
    """Joins the sets of things at both ends of each edge, the least of a set its root: ``parent`` leads there."""
    x, y = (roots(parent, ends) for ends in edges)
    while len(x):
        np.minimum.at(parent, np.maximum(x, y), np.minimum(x, y))
        x, y = roots(parent, x), roots(parent, y)
        apart = x != y
        x, y = x[apart], y[apart]


def roots(parent: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The root of each thing's set; the things' parents become their roots."""
    found = of
    while True:
        above = parent[found]
        if np.array_equal(above, found):
            parent[of] = found
            return found
        found = above

"""Values of terms at many sizes that differ in few names, as the search for the sizes of a substitution asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

import numpy as np

from burnish.errors import ModelError
from burnish.graph.graph import Attribute
from burnish.rewrite.language.terms import RewriteRule, Term, TermVariable, Type, variables
from burnish.rewrite.language.vocabulary import Binding
from burnish.rewrite.proofs.field import PrimeField
from burnish.rewrite.proofs.validate import evaluate_word


class TermValues:
    """Values of terms whose variables have these extents, at many sizes: what sizes have in common is computed once.

    Variables of one shape are the same random numbers at all sizes. ``arrays``: None for operands that do not fit.
    """

    def __init__(self, dims: Mapping[str, tuple[int, ...]]) -> None:
        self.dims, self.field = dims, PrimeField()
        self.names: dict[Term, tuple[str, ...]] = {}  # of the sizes in a term
        self.at: dict[tuple[Term, tuple[int, ...]], int] = {}  # a term at sizes: its number
        self.numbers: dict[object, int] = {}  # of variables of shapes, and of words applied to numbers
        self.arrays: list[np.ndarray | None] = []

    def equal(self, a: Term, b: Term, sizes: Mapping[str, int]) -> bool:
        """Whether both terms are well-typed and equal."""
        x, y = (self.arrays[self._number(t, sizes)] for t in (a, b))
        return x is not None and y is not None and x.shape == y.shape and bool((x == y).all())

    def _number(self, term: Term, sizes: Mapping[str, int]) -> int:
        if term not in self.names:
            self.names[term] = RewriteRule(
                "", {n: Type(self.dims[n]) for n in sorted(variables(term))}, (term,), ()
            ).sizes
        place = (term, tuple(sizes[n] for n in self.names[term]))
        if place not in self.at:
            self.at[place] = self._computed(term, sizes)
        return self.at[place]

    def _computed(self, term: Term, sizes: Mapping[str, int]) -> int:
        binding = Binding(sizes, {})
        if isinstance(term, TermVariable):
            shape = binding.shape(Type(self.dims[term.name]))
            random = np.random.default_rng([5, crc32(term.name.encode())])
            return self._added((term.name, shape), lambda: self.field.random(random, (1, *shape)))
        arguments = [self._number(a, sizes) for a in term.args]
        try:
            attributes = binding.attributes(term)
        except ZeroDivisionError:
            return self._added(None, lambda: None)  # a stride of zero, say
        inputs = [self.arrays[i] for i in arguments]
        return self._added((term.word, attributes, *arguments), lambda: self._applied(term.word, attributes, inputs))

    def _added(self, key: object, value: Callable[[], np.ndarray | None]) -> int:
        if key not in self.numbers:
            self.arrays.append(value())
            self.numbers[key] = len(self.arrays) - 1
        return self.numbers[key]

    def _applied(
        self, word: str, attributes: tuple[tuple[str, Attribute], ...], inputs: Sequence[np.ndarray | None]
    ) -> np.ndarray | None:
        if any(x is None for x in inputs):
            return None
        try:
            return evaluate_word(word, attributes, [x for x in inputs if x is not None], self.field)
        except ModelError:
            return None

"""Random bindings of a rule: small sizes and leading shapes at which it types, for tests at many of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from burnish.errors import ModelError, RuleError
from burnish.rewrite.language.sizes import is_extent, names_of, solve, value_of
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, subterms
from burnish.rewrite.language.vocabulary import Binding, Shape, infer_word

MOST_ELEMENTS = 1 << 22  # of a tensor in a test: 128 MB at 4 points
ATTEMPTS = 4000  # bindings drawn before a rule is said to have none
_ATTRIBUTES: Mapping[str, tuple[int, ...]] = {  # values that a name is tried with, by the attribute it stands in
    "strides": (1, 1, 2, 2, 3),
    "dilations": (1, 1, 1, 2),
    "pads": (0, 0, 1, 1, 2),
    "groups": (1, 2, 2, 3),
    "kernel": (1, 2, 3, 3),
    "start": (0, 0, 1, 2, 3),
    "axis": (-1, -2, -3, -4),
    "value": (0, 1, 2),
    "at": (0, 1),
}
_KERNEL = (1, 2, 3, 3)
_IMAGES = ("conv2d", "max_pool2d", "avg_pool2d")  # their first operand is an image, its last two extents larger


class Bindings:
    """Draws bindings of one rule.

    ``largest``: the greatest extent drawn (images are one larger); at least 3. Names that stand for strides, pads, …
    take the values that such attributes have in networks. Names get unequal values where that is possible.
    """

    def __init__(self, rule: RewriteRule, random: np.random.Generator, largest: int = 4) -> None:
        self.rule, self.random = rule, random
        self.domains = _domains(rule, largest)
        self.leads = sorted({t.lead for t in rule.types.values() if t.lead})
        self.refusal = "no values of its sizes satisfy its conditions and make its extents positive"

    def draw(self) -> Binding:
        """A binding at which both sides type, to the same types. Raises RuleError naming the rule if none is found."""
        for _ in range(ATTEMPTS):
            binding = self.candidate()
            if binding is not None and self._types(binding):
                return binding
        raise RuleError(f"'{self.rule.name}': no sizes found at which both sides type; last refusal: {self.refusal}")

    def __iter__(self) -> Iterator[Binding]:
        while True:
            yield self.draw()

    def candidate(self) -> Binding | None:
        """Values that satisfy the conditions and make every declared extent positive."""
        sizes: dict[str, int] = {}
        for name in self.random.permutation(np.array(self.rule.sizes, dtype=object)):
            if name in sizes:
                continue
            domain = self.domains[name]
            value = int(domain[self.random.integers(len(domain))])
            if value in sizes.values():  # once more: laws that hold only for equal sizes are to be found out
                value = int(domain[self.random.integers(len(domain))])
            sizes[name] = value
            if not self._solve(sizes):
                return None
        try:
            if not all(condition.holds(sizes) for condition in self.rule.conditions):
                return None
            extents = [value_of(d, sizes) for t in self.rule.types.values() for d in t.dims]
        except RuleError as error:  # a division by 0 at these sizes
            self.refusal = str(error)
            return None
        leads = {n: tuple(int(d) for d in self.random.integers(1, 4, self.random.integers(3))) for n in self.leads}
        return Binding(sizes, leads) if all(extent > 0 for extent in extents) else None

    def _solve(self, sizes: dict[str, int]) -> bool:
        """Adds the values that equations fix; False if one cannot be satisfied."""
        for condition in self.rule.conditions:
            if condition.relation != "==":
                continue
            difference = condition.left - condition.right
            solved = solve(difference, 0, sizes)
            if solved is None and not names_of(difference) - sizes.keys():
                return False
            sizes.update(solved or {})
        return True

    def _types(self, binding: Binding) -> bool:
        """Whether both sides type, to the same shapes."""
        try:
            left, right = shapes_of(self.rule, binding)
        except ModelError as error:
            self.refusal = str(error)
            return False
        if left != right:
            self.refusal = f"left {_listed(left)}, right {_listed(right)}"
        return left == right


def shapes_of(rule: RewriteRule, binding: Binding) -> tuple[list[Shape], list[Shape]]:
    """Shapes of the tensors on both sides. Raises ModelError for operands that do not fit, RuleError for no word."""
    known: dict[Term, Shape] = {TermVariable(name): _small(binding.shape(t)) for name, t in rule.types.items()}
    left, right = ([shape_of(t, binding, known) for t in terms] for terms in (rule.left, rule.right))
    return left, right


def shape_of(term: Term, binding: Binding, known: dict[Term, Shape]) -> Shape:
    """The shape of a term; ``known`` holds those of its variables and gets those of its subterms."""
    if term not in known:
        assert isinstance(term, Apply)
        shapes = tuple(shape_of(a, binding, known) for a in term.args)
        known[term] = _small(infer_word(term.word, shapes, binding.attributes(term)))
    return known[term]


def _small(shape: Shape) -> Shape:
    """Size check of a test tensor: returns the shape. Raises ModelError above MOST_ELEMENTS elements."""
    if math.prod(shape) > MOST_ELEMENTS:
        raise ModelError(f"a tensor {list(shape)}, allowed in tests: up to {MOST_ELEMENTS} elements")
    return shape


def _domains(rule: RewriteRule, largest: int) -> Mapping[str, tuple[int, ...]]:
    """The values that each size of the rule is tried with."""
    extents = tuple(range(1, largest + 1))
    domains: dict[str, tuple[int, ...]] = dict.fromkeys(rule.sizes, extents)
    for term in (t for side in (*rule.left, *rule.right) for t in subterms(side) if isinstance(t, Apply)):
        if term.word in _IMAGES and isinstance(term.args[0], TermVariable):
            for name in names_of(*rule.types[term.args[0].name].dims[-2:]):
                domains[name] = (*range(max(2, largest - 2), largest + 2),)
        if term.word == "conv2d" and len(term.args) > 1 and isinstance(term.args[1], TermVariable):
            for name in names_of(*rule.types[term.args[1].name].dims[-2:]):
                domains[name] = _KERNEL
    for term in (t for side in (*rule.left, *rule.right) for t in subterms(side) if isinstance(t, Apply)):
        for key, value in term.attrs:
            sizes = value if isinstance(value, tuple) else (value,)
            for name in names_of(*(s for s in sizes if is_extent(s))):
                if key in _ATTRIBUTES and (key != "kernel" or domains[name] == extents):
                    domains[name] = _ATTRIBUTES[key]
    return domains


def _listed(shapes: list[Shape]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)

"""The words of terms, each by the graph nodes it stands for: all semantics comes from the operators' definitions.

A word is an operator of ``ops.OPERATORS`` under its own name and with its own attributes, or one of the few below that
say with two numbers what an operator needs many for, or that stand for a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from burnish import ops
from burnish.errors import ModelError, RuleError
from burnish.graph.graph import Attribute, Graph, GraphBuilder
from burnish.rewrite.language.sizes import is_extent, value_of
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, Type, Value

Shape = tuple[int, ...]
Build = Callable[..., str]  # (builder, *inputs, **attrs) -> the tensor's name

# --- words that are no operators --------------------------------------------------------------------------------------


def part(b: GraphBuilder, x: str, *, axis: int, start: int, extent: int) -> str:
    """Elements ``start`` to ``start + extent`` of one dimension."""
    shape = b.types[x].shape
    starts, extents = [0] * len(shape), list(shape)
    starts[axis], extents[axis] = start, _positive(extent)
    return b.add("slice", x, starts=tuple(starts), extents=tuple(extents))


def swap(b: GraphBuilder, x: str) -> str:
    """The last two dimensions exchanged."""
    rank = len(b.types[x].shape)
    return b.add("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def grow(b: GraphBuilder, x: str, *, pads: tuple[int, int, int, int]) -> str:
    """Zeros around the last two dimensions: top, left, bottom, right. The papers' ``enlarge``, its pads explicit."""
    *outer, height, width = b.types[x].shape
    _positive(height + pads[0] + pads[2], width + pads[1] + pads[3])
    zeros = (0,) * len(outer)
    return b.add("pad", x, pads=(*zeros, *pads[:2], *zeros, *pads[2:]))


def block_diagonal(b: GraphBuilder, x: str, *, groups: int, merged: int) -> str:
    """Block-diagonal weights: those of a convolution in ``groups * merged`` groups for one in ``groups``, with zeros
    between the groups that are merged.
    """
    outputs, depth, *kernel = b.types[x].shape
    _positive(groups, merged)
    if outputs % (groups * merged):
        raise ValueError(f"{outputs} outputs in {groups * merged} groups; allowed: a multiple")
    rows = b.add("reshape", x, shape=(groups, merged, outputs // (groups * merged), 1, depth * kernel[0] * kernel[1]))
    spread = b.add("mul", rows, b.constant(np.eye(merged, dtype=np.float32).reshape(merged, 1, merged, 1)))
    return b.add("reshape", spread, shape=(outputs, merged * depth, *kernel))


def eye(b: GraphBuilder, *, size: int) -> str:
    """The identity matrix."""
    return b.constant(np.eye(_positive(size), dtype=np.float32))


def dirac(b: GraphBuilder, *, channels: int, groups: int, kernel: tuple[int, int], at: tuple[int, int]) -> str:
    """Weights [channels, channels / groups, *kernel] of a convolution that moves its input: 1 at ``at``, else 0."""
    _positive(channels, groups, *kernel, at[0] + 1, at[1] + 1)
    weight = np.zeros((channels, channels // groups, *kernel), np.float32)
    for c in range(channels):
        weight[(c, c % (channels // groups), *at)] = 1
    return b.constant(weight)


def box(b: GraphBuilder, *, channels: int, kernel: tuple[int, int]) -> str:
    """Weights [channels, 1, *kernel] of the depthwise convolution that is a mean over windows."""
    _positive(channels, *kernel)
    return b.constant(np.full((channels, 1, *kernel), 1 / (kernel[0] * kernel[1]), np.float32))


def full(b: GraphBuilder, *, shape: tuple[int, ...], value: int) -> str:
    """A tensor of one number."""
    _positive(*shape)
    return b.constant(np.full(shape, value, np.float32))


def _positive(*sizes: int) -> int:
    """The first of the sizes; ValueError if one is not positive: no word makes an empty tensor."""
    if min(sizes, default=1) < 1:
        raise ValueError(f"sizes {list(sizes)}; allowed: at least 1")
    return sizes[0] if sizes else 1


WORDS: Mapping[str, Build] = {w.__name__: w for w in (part, swap, grow, block_diagonal, eye, dirac, box, full)}
VOCABULARY: frozenset[str] = frozenset((*WORDS, *ops.OPERATORS))

# --- a rule at concrete sizes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Binding:
    """Numbers for the names of a rule: its sizes, and the shapes of its leading dimensions."""

    sizes: Mapping[str, int]
    leads: Mapping[str, tuple[int, ...]]

    def shape(self, t: Type) -> tuple[int, ...]:
        """The shape that a declared type has."""
        lead = self.leads[t.lead] if t.lead else ()
        return (*lead, *(value_of(d, self.sizes) for d in t.dims))

    def attribute(self, value: Value) -> Attribute:
        """The attribute's value."""
        if is_extent(value):
            return value_of(value, self.sizes)
        return tuple(value_of(s, self.sizes) for s in value) if isinstance(value, tuple) else value

    def attributes(self, term: Apply) -> tuple[tuple[str, Attribute], ...]:
        """The term's attributes as numbers, in order of their keys."""
        return tuple((key, self.attribute(value)) for key, value in term.attrs)


def build_term(b: GraphBuilder, term: Term, binding: Binding, known: dict[Term, str]) -> str:
    """Adds the nodes of ``term`` and returns the tensor's name. ``known``: terms that are there already, with names.

    Raises RuleError for a word that is not in the vocabulary, ModelError for operands that do not fit.
    """
    if term not in known:
        if isinstance(term, TermVariable):
            raise RuleError(f"variable '{term}' has no tensor")
        known[term] = apply_word(b, term, [build_term(b, a, binding, known) for a in term.args], binding)
    return known[term]


def apply_word(b: GraphBuilder, term: Apply, inputs: list[str], binding: Binding) -> str:
    """Adds the node of a term whose arguments are there."""
    return _add_word(b, term.word, inputs, dict(binding.attributes(term)))


def _add_word(b: GraphBuilder, word: str, inputs: Sequence[str], attrs: Mapping[str, Attribute]) -> str:
    if word not in VOCABULARY:
        raise RuleError(f"'{word}' is no word of the vocabulary: {', '.join(sorted(VOCABULARY))}")
    if word not in WORDS:
        return b.add(word, *inputs, name=None, node="", **attrs)
    try:
        return WORDS[word](b, *inputs, **attrs)
    except (TypeError, IndexError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{word}: {error}") from None


def word_graph(word: str, shapes: tuple[Shape, ...], attrs: tuple[tuple[str, Attribute], ...]) -> Graph:
    """A word on its own, applied to inputs of these shapes. Errors as of :func:`build_term`."""
    found = _word_graph(word, shapes, attrs)
    if isinstance(found, str):
        raise ModelError(found)
    return found


@lru_cache(maxsize=1 << 15)
def _word_graph(word: str, shapes: tuple[Shape, ...], attrs: tuple[tuple[str, Attribute], ...]) -> Graph | str:
    b = GraphBuilder()
    inputs = [b.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    try:
        return b.build(_add_word(b, word, inputs, dict(attrs)))
    except ModelError as error:
        return str(error)


def infer_word(word: str, shapes: tuple[Shape, ...], attrs: tuple[tuple[str, Attribute], ...]) -> Shape:
    """The shape of a word applied to inputs of these shapes. Errors as of :func:`build_term`."""
    graph = word_graph(word, shapes, attrs)
    return graph.types[graph.outputs[0]].shape


def sides(rule: RewriteRule, binding: Binding) -> tuple[Graph, Graph]:
    """Both sides as graphs whose inputs are the rule's variables.

    Raises RuleError if they are not of the same types, ModelError if one has operands that do not fit.
    """
    left, right = (_side(rule, terms, binding) for terms in (rule.left, rule.right))
    for i, (a, b) in enumerate(zip(left.outputs, right.outputs, strict=True)):
        if left.types[a] != right.types[b]:
            raise RuleError(f"'{rule.name}': output {i} is {left.types[a]} on the left, {right.types[b]} on the right")
    return left, right


def _side(rule: RewriteRule, terms: tuple[Term, ...], binding: Binding) -> Graph:
    b = GraphBuilder()
    known: dict[Term, str] = {TermVariable(name): b.input(name, binding.shape(t)) for name, t in rule.types.items()}
    return b.build(*[build_term(b, term, binding, known) for term in terms])

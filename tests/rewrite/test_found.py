"""What the papers name is found: both sides are enumerated, in one class, and make a general rule."""

from functools import cache

import numpy as np
import pytest

from burnish.rewrite.generation.domains import DOMAINS
from burnish.rewrite.generation.enumerate import NONE, enumerate_terms
from burnish.rewrite.generation.generalize import Pair, generalize, most_general
from burnish.rewrite.generation.prune import Nodes
from burnish.rewrite.language.terms import Term, TermVariable, parse_term, variables
from burnish.rewrite.language.types import type_rule
from burnish.rewrite.proofs.validate import validate
from burnish.rewrite.proofs.verify import load_substitutions, read_rules
from tests.marks import slow

_DENSE = "strides=(1, 1), pads=(1, 1, 1, 1), groups=1"
_POINT = "strides=(1, 1), pads=(0, 0, 0, 0), groups=1"
_DEPTH = "strides=(1, 1), pads=(1, 1, 1, 1), groups=2"
_MEAN = "count_include_pad=True, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)"
_DIRAC = "dirac(channels=2, groups=1, kernel=(3, 3), at=(1, 1))"


def halves(whole: str, axis: int, extent: int, second: int) -> list[str]:
    return [f"part({whole}, axis={axis}, start={start}, extent={extent})" for start in (0, second)]


FOUND = {
    "associativity": ("matrix", ["matmul(x, matmul(y, z))"], ["matmul(matmul(x, y), z)"]),
    "products of one input": (
        "matrix",
        ["matmul(x, y)", "matmul(x, z)"],
        halves("matmul(x, concat(y, z, axis=-1))", -1, 3, 3),
    ),
    "products by one matrix": (
        "matrix",
        ["matmul(x, z)", "matmul(y, z)"],
        halves("matmul(concat(x, y, axis=-2), z)", -2, 3, 3),
    ),
    "transpose": ("matrix", ["swap(matmul(x, y))"], ["matmul(swap(y), swap(x))"]),
    "convolutions of one image": (
        "convolution",
        [f"conv2d(x, w, {_DENSE})", f"conv2d(x, v, {_DENSE})"],
        halves(f"conv2d(x, concat(w, v, axis=-4), {_DENSE})", -3, 2, 2),
    ),
    "convolutions by one weight": (
        "convolution",
        [f"conv2d(x, w, {_DENSE})", f"conv2d(y, w, {_DENSE})"],
        halves(f"conv2d(concat(x, y, axis=-4), w, {_DENSE})", -4, 1, 1),
    ),
    "enlarge": ("convolution", [f"conv2d(x, q, {_POINT})"], [f"conv2d(x, grow(q, pads=(1, 1, 1, 1)), {_DENSE})"]),
    "linear in the image": (
        "convolution",
        [f"add(conv2d(x, w, {_DENSE}), conv2d(y, w, {_DENSE}))"],
        [f"conv2d(add(x, y), w, {_DENSE})"],
    ),
    "linear in the weights": (
        "convolution",
        [f"add(conv2d(x, w, {_DENSE}), conv2d(x, v, {_DENSE}))"],
        [f"conv2d(x, add(w, v), {_DENSE})"],
    ),
    "two average pools": (
        "convolution",
        [f"add(avg_pool2d(x, {_MEAN}), avg_pool2d(y, {_MEAN}))"],
        [f"conv2d(add(x, y), box(channels=2, kernel=(3, 3)), {_DEPTH})"],
    ),
    "RepVGG": (
        "convolution",
        [f"add(add(conv2d(x, w, {_DENSE}), conv2d(x, q, {_POINT})), x)"],
        [f"conv2d(x, add(add(w, grow(q, pads=(1, 1, 1, 1))), {_DIRAC}), {_DENSE})"],
    ),
}
SHIPPED = (
    "matmul associativity", "products of one input merged", "products by one matrix merged", "transposed product",
    "convolutions of one image merged", "convolutions by one weight merged", "grown weights",
    "sum of convolutions of one image", "sum of convolutions by one weight", "sum of average pools",
    "average pool as a convolution", "sum of convolutions of unequal kernels", "residual convolution",
)  # fmt: skip


@cache
def table(domain: str, size: int) -> Nodes:
    return Nodes(enumerate_terms(DOMAINS[domain], size), size)


def class_of(nodes: Nodes, term: Term) -> int:
    """The class of a term, which must have been enumerated over representatives of its parts."""
    leaves = {str(leaf): number for number, leaf in enumerate(nodes.terms.leaves)}
    if str(term) in leaves:
        return leaves[str(term)]
    assert not isinstance(term, TermVariable)
    args = [class_of(nodes, a) for a in term.args]
    shapes = tuple(nodes.terms.shapes[nodes.terms.shape[a]] for a in args)
    instances = [(i.word, i.attrs, i.shapes) for i in nodes.terms.instances]
    operator = instances.index((term.word, term.attrs, shapes))
    a, b = (np.array([c]) for c in (*args, NONE)[:2])
    (node,) = nodes.find(operator, a, b)
    assert node != NONE, f"{term} was not enumerated"
    return int(nodes.value[node])


@pytest.mark.parametrize("name", slow(FOUND, "RepVGG"))
def test_named_substitutions_are_found_and_general(name: str) -> None:
    domain, *texts = FOUND[name]
    left, right = (tuple(map(parse_term, side)) for side in texts)
    nodes = table(domain, 4 if name == "RepVGG" else 3)
    assert [class_of(nodes, t) for t in left] == [class_of(nodes, t) for t in right]
    chosen = DOMAINS[domain]
    names = {n for t in (*left, *right) for n in variables(t)}
    pair = Pair(left, right, {n: chosen.shapes[s] for n, s in chosen.variables.items() if n in names})
    rules = generalize(most_general(pair), name, chosen)
    assert rules
    for rule in rules:
        type_rule(rule)
        validate(rule, bindings=3, points=1, mid_bindings=1)


def test_what_the_papers_name_is_shipped_as_it_is_found() -> None:
    origins = {rule.name: rule.origin for rule in load_substitutions()}
    assert all(origins[name] in DOMAINS for name in SHIPPED)
    stated = {rule.name for rule in read_rules("statements.txt")}
    assert {name for name, origin in origins.items() if origin == "statement"} <= stated

"""Bindings against the operators' own shape inference: what is drawn types, and what cannot type is refused."""

import itertools

import numpy as np
import pytest

from burnish.errors import RuleError
from burnish.rewrite.language.bindings import Bindings, shapes_of
from burnish.rewrite.language.terms import RewriteRule, parse_rules
from burnish.rewrite.language.vocabulary import sides

GROW = """
axiom grown
  for x: [n, g*c, h, w]; k: [g*o, c, i, j]
  where 0 <= a; a <= 1; b == a + 1
  conv2d(x, k, groups=g, strides=(s, t), pads=(p, p, p, p))
    = conv2d(x, grow(k, pads=(a, b, a, b)), groups=g, strides=(s, t), pads=(p + a, p + b, p + a, p + b))
"""


def rule(text: str) -> RewriteRule:
    (only,) = parse_rules(text)
    return only


def test_bindings_type_and_satisfy_conditions() -> None:
    grown = rule(GROW)
    seen = set()
    for binding in itertools.islice(Bindings(grown, np.random.default_rng(0)), 60):
        left, right = sides(grown, binding)
        shapes = [[g.types[name].shape for name in g.outputs] for g in (left, right)]
        assert list(map(list, shapes_of(grown, binding))) == shapes
        assert binding.sizes["b"] == binding.sizes["a"] + 1
        assert all(condition.holds(binding.sizes) for condition in grown.conditions)
        seen.add((binding.sizes["g"], binding.sizes["s"], binding.sizes["p"]))
    assert {g for g, _, _ in seen} >= {1, 2} and {s for _, s, _ in seen} >= {1, 2} and {p for *_, p in seen} >= {0, 1}


def test_leading_dimensions_are_of_any_number() -> None:
    product = rule("axiom a\n  for x: [*l, m, k]; y: [*l, k, n]\n  matmul(x, y) = matmul(x, y)\n")
    drawn = [b.leads["l"] for b in itertools.islice(Bindings(product, np.random.default_rng(0)), 40)]
    assert {len(lead) for lead in drawn} == {0, 1, 2}


def test_draws_are_repeatable() -> None:
    first, second = (list(itertools.islice(Bindings(rule(GROW), np.random.default_rng(3)), 5)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("axiom odd\n  for x: [m, n]; y: [n, n + 1]\n  matmul(x, y) = x\n", "left .* right"),
        ("axiom odd\n  for x: [m, n]; y: [m + n, k]\n  matmul(x, y) = y\n", "inner extent"),
        ("axiom odd\n  for x: [m]\n  where m == 2; m == 3\n  x = x\n", "conditions"),
    ],
)
def test_a_rule_that_never_types_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(RuleError, match=f"'odd'.*{reason}"):
        Bindings(rule(text), np.random.default_rng(0)).draw()


def test_an_unknown_word_is_refused_by_name() -> None:
    with pytest.raises(RuleError, match="'product' is no word"):
        Bindings(rule("axiom a\n  for x: [m]\n  product(x) = x\n"), np.random.default_rng(0)).draw()

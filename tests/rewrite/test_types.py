"""Symbolic types against the operators' own: at every binding they are the same shapes, and what they ask for holds."""

import itertools

import numpy as np
import pytest

from burnish.errors import RuleError
from burnish.rewrite.language.bindings import Bindings, shape_of
from burnish.rewrite.language.facts import SizeFacts
from burnish.rewrite.language.sizes import parse_size, value_of
from burnish.rewrite.language.terms import (
    Apply,
    RewriteRule,
    Term,
    TermVariable,
    parse_rules,
    parse_term,
    parse_type,
    subterms,
)
from burnish.rewrite.language.types import Typing, brief, canonical_rule, is_map, type_rule
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.verify import read_rules

RULES = [*load_axioms().values(), *read_rules("substitutions.txt")]


def rule(text: str) -> RewriteRule:
    (only,) = parse_rules(text)
    return only


@pytest.mark.parametrize("start", range(0, len(RULES), 32))
def test_symbolic_types_are_the_shapes_of_the_operators(start: int) -> None:
    for law in RULES[start : start + 32]:
        typing = type_rule(law)
        for binding in itertools.islice(Bindings(law, np.random.default_rng(0)), 3):
            known: dict[Term, tuple[int, ...]] = {TermVariable(n): binding.shape(t) for n, t in law.types.items()}
            for term in (t for side in (*law.left, *law.right) for t in subterms(side)):
                assert binding.shape(typing.type_of(term)) == shape_of(term, binding, known), f"{law.name}: {term}"
            for relation, a, b in typing.obligations:
                x, y = value_of(a, binding.sizes), value_of(b, binding.sizes)
                assert x <= y if relation == "<=" else y % x == 0, f"{law.name}: {a} {relation} {b}"


@pytest.mark.parametrize(
    ("term", "types", "reason"),
    [
        ("matmul(x, y)", {"x": "[m, k]", "y": "[n, k]"}, "inner extents"),
        ("add(x, y)", {"x": "[m, k]", "y": "[n, k]"}, "extents m and n"),
        ("add(x, y)", {"x": "[*l, k]", "y": "[*j, k]"}, "leading dimensions"),
        ("concat(x, y, axis=-1)", {"x": "[m, k]", "y": "[n, k]"}, "more than axis -1"),
        ("concat(x, x, axis=1)", {"x": "[*l, k]"}, "axis 1 is not among"),
        ("concat(x, x, axis=a)", {"x": "[m, k]"}, "axis a is not among"),
        ("reshape(x, shape=(m, 2))", {"x": "[m, k]"}, "as many elements"),
        ("transpose(x, perm=(0, 0))", {"x": "[m, k]"}, "no permutation"),
        ("conv2d(x, y)", {"x": "[n, c, h, w]", "y": "[o, d, 3, 3]"}, "channels do not fit"),
        ("conv2d(x, y)", {"x": "[n, c, h]", "y": "[o, c, 3, 3]"}, "4 dimensions"),
        ("max_pool2d(x, kernel=(2, 2), ceil_mode=True)", {"x": "[n, c, h, w]"}, "ceil_mode"),
        ("max_pool2d(x)", {"x": "[n, c, h, w]"}, "kernel"),
        ("dirac(channels=c, groups=g, kernel=(1, 1), at=(0, 0))", {}, "g groups of c channels"),
        ("dirac(channels=4, groups=2, kernel=(3, 3), at=(3, 0))", {}, "4 is to be at most 3"),
        ("part(x, axis=-1, start=3, extent=2)", {"x": "[m, 4]"}, "5 is to be at most 4"),
        ("conv2d(x, y, groups=2)", {"x": "[n, 4, h, w]", "y": "[3, 2, 1, 1]"}, "3 is to be a multiple of 2"),
        ("log_softmax(x)", {"x": "[m, k]"}, "no symbolic type"),
    ],
)
def test_what_does_not_type_is_refused(term: str, types: dict[str, str], reason: str) -> None:
    with pytest.raises(RuleError, match=reason):
        Typing({n: parse_type(t) for n, t in types.items()}).type_of(parse_term(term))


def test_element_wise_operators_have_the_types_that_their_definitions_say() -> None:
    maps = ("identity", "relu", "neg", "exp", "tanh", "sigmoid", "erf", "gelu", "silu", "sqrt", "abs", "softplus")
    pairs = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
    typing = Typing({"x": parse_type("[*l, m, n]"), "y": parse_type("[n]")})
    for word in maps:
        assert is_map(word, 1) and not is_map(word, 2)
        assert str(typing.type_of(parse_term(f"{word}(x)"))) == "[*l, m, n]"
    for word in pairs:
        assert is_map(word, 2) and not is_map(word, 1)
        assert str(typing.type_of(parse_term(f"{word}(y, x)"))) == "[*l, m, n]"
    others = ("softmax", "cumsum", "reduce_sum", "trilu", "transpose", "matmul", "less", "cast", "sort", "where")
    assert not any(is_map(word, operands) for word in others for operands in (1, 2))


def test_a_rule_with_sides_of_other_types_is_refused_by_name() -> None:
    with pytest.raises(RuleError, match=r"'odd' does not type: output 0 is \[n, m\] on the left"):
        type_rule(rule("axiom odd\n  for x: [m, n]\n  swap(x) = x\n"))


def test_canonical_rules_write_attributes_one_way_and_solve_equations() -> None:
    plain = canonical_rule(
        rule("axiom a\n  for x: [m, k]; y: [n, k]\n  where m + n == o\n  part(concat(x, y, axis=0), axis=0, start=0,"
             " extent=o - n) = x\n")
    )  # fmt: skip
    assert str(plain.left[0]) == "part(concat(x, y, axis=-2), axis=-2, extent=m, start=0)"
    image = Typing({"x": parse_type("[n, c, h, w]")})
    pool = image.canonical(parse_term("max_pool2d(x, kernel=(2, 2), pads=(0, 0, 0, 0))"))
    assert isinstance(pool, Apply) and dict(pool.attrs)["strides"] == (1, 1)
    assert brief(pool) == parse_term("max_pool2d(x, kernel=(2, 2))")


FACTS = "axiom a\n  for x: [m, g * c]\n  where 0 <= p; p < i; t + f <= e; u != v\n  x = x\n"


@pytest.mark.parametrize(
    ("relation", "a", "b", "follows"),
    [
        ("<=", "1", "m", True), ("<=", "2", "m", False), ("<=", "1", "m * g", True), ("<=", "0", "p", True),
        ("<=", "1", "i", True), ("<=", "t", "e", False), ("<=", "f", "e - t", True), ("<", "p", "i + m", True),
        ("<", "i", "p", False), ("<=", "0", "q", False), ("!=", "u", "v", True), ("!=", "v", "u", True),
        ("!=", "u", "m", False), ("!=", "m", "m + 1", True), ("==", "m + m", "2 * m", True), ("==", "m", "c", False),
        ("divides", "g", "g * c", True), ("divides", "g", "m", False), ("<=", "m - 1", "m * g - 1", True),
        ("<=", "0", "floor(m, g)", True), ("<=", "0", "floor(q, g)", False), ("<=", "p * p", "p * i", False),
    ],
)  # fmt: skip
def test_what_follows_from_a_rules_facts(relation: str, a: str, b: str, follows: bool) -> None:
    facts = SizeFacts(rule(FACTS), [])
    assert facts.holds((relation, parse_size(a), parse_size(b))) is follows


def test_what_follows_is_true() -> None:
    """Whatever is said to follow from the facts holds at random bindings that satisfy them."""
    law, random = rule(FACTS), np.random.default_rng(0)
    facts, drawn = SizeFacts(law, []), list(itertools.islice(Bindings(law, random), 60))
    names, said = law.sizes, 0

    def drawn_size() -> int:
        parts = zip(random.choice(names, 2), random.integers(-1, 3, 2), strict=True)
        return sum((parse_size(str(n)) * int(f) for n, f in parts), int(random.integers(-2, 2)))

    for _ in range(400):
        a, b = drawn_size(), drawn_size()
        if facts.holds(("<=", a, b)):
            said += 1
            assert all(value_of(a, x.sizes) <= value_of(b, x.sizes) for x in drawn), f"{a} <= {b}"
    assert said > 20


def test_a_word_types_when_the_operator_does() -> None:
    """A convolution whose kernel may be larger than its image types, and says so."""
    typing = Typing({"x": parse_type("[n, c, 3, w]"), "y": parse_type("[o, c, i, j]")})
    typing.type_of(parse_term("conv2d(x, y)"))
    assert ("<=", 0, parse_size("3 - i")) in typing.obligations


def test_softmax_has_the_type_of_its_operand_and_one_way_to_write_its_axis() -> None:
    (rule,) = parse_rules("substitution opaque\n  for x: [*l, m, n]\n  softmax(relu(x), axis=-1) = softmax(relu(x))\n")
    type_rule(rule)
    plain = canonical_rule(rule)
    assert plain.left == plain.right
    (odd,) = parse_rules("substitution odd\n  for x: [*l, n]\n  softmax(x, axis=-2) = softmax(x, axis=-2)\n")
    with pytest.raises(RuleError, match="axis -2 is not among the dimensions"):
        type_rule(odd)


def test_a_vector_times_a_matrix_is_a_vector() -> None:
    (rule,) = parse_rules("substitution row\n  for x: [k]; y: [k, n]; b: [n]\n  matmul(x, y) = b\n")
    assert str(type_rule(rule).type_of(rule.left[0])) == "[n]"


def test_what_would_follow_only_from_itself_does_not_follow() -> None:
    pool = "max_pool2d(x, kernel=(i, j), strides=(s, s))"
    (rule,) = parse_rules(f"substitution r\n  for x: [n, c, h, w]\n  where 0 <= floor(h, s) - k\n  {pool} = {pool}\n")
    facts = SizeFacts(rule, type_rule(rule).obligations)
    assert not facts.holds(("<=", parse_size("k"), parse_size("s")))
    assert facts.holds(("<=", 1, parse_size("h")))

"""The language of rules: what is printed is read back, and what is no rule is refused by name."""

import pytest

from burnish.errors import RuleError
from burnish.rewrite.language.sizes import parse_size
from burnish.rewrite.language.terms import (
    Apply,
    TermVariable,
    parse_rules,
    parse_term,
    parse_type,
    resize,
    substitute,
    substitute_sizes,
    subterms,
    variables,
)
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.verify import read_rules

RULE = """
substitution pooled sums  # a comment
  for x: [n, c, h, w]; y: [n, c, h, w]
  where p < i; q != 0
  add(avg_pool2d(x, kernel=(i, 3), pads=(p, q, p, q), count_include_pad=True), y), relu(y)
    = y, relu(y)
"""


def test_a_rule_is_read() -> None:
    (rule,) = parse_rules(RULE)
    assert (rule.kind, rule.name) == ("substitution", "pooled sums")
    assert rule.sizes == ("c", "h", "i", "n", "p", "q", "w")
    assert len(rule.left) == len(rule.right) == 2
    pool = rule.left[0].args[0]  # type: ignore[union-attr]
    assert isinstance(pool, Apply)
    assert dict(pool.attrs)["count_include_pad"] is True
    assert dict(pool.attrs)["kernel"] == (parse_size("i"), 3)
    assert [c.relation for c in rule.conditions] == ["<", "!="]
    assert rule.conditions[0].holds({"p": 1, "i": 2}) and not rule.conditions[0].holds({"p": 2, "i": 2})


def test_what_is_printed_is_read_back() -> None:
    rules = [*load_axioms().values(), *read_rules("substitutions.txt"), *parse_rules(RULE)]
    assert parse_rules("\n".join(map(str, rules))) == rules


def test_a_type_with_leading_dimensions() -> None:
    t = parse_type("[*l, a + b, 3]")
    assert (t.lead, t.dims, str(t)) == ("l", (parse_size("a + b"), 3), "[*l, a + b, 3]")


def test_substitution_of_terms_and_sizes() -> None:
    term = parse_term("part(concat(x, y, axis=-1), axis=-1, start=0, extent=a)")
    put = substitute(term, {"x": parse_term("relu(z)")})
    assert str(put) == "part(concat(relu(z), y, axis=-1), axis=-1, extent=a, start=0)"
    assert str(resize(put, {"a": parse_size("b + 1")})).endswith("extent=b + 1, start=0)")
    assert variables(put) == {"y", "z"}
    assert [str(t) for t in subterms(put)][:2] == ["z", "relu(z)"]
    assert put != term and hash(parse_term(str(put))) == hash(put)


def test_sizes_are_replaced_in_a_whole_rule() -> None:
    (rule,) = parse_rules("axiom a\n  for x: [m, n]\n  where m <= n\n  full(shape=(m, n), value=0) = x\n")
    squared = substitute_sizes(rule, {"m": parse_size("n")})
    assert squared.sizes == ("n",) and str(squared.types["x"]) == "[n, n]"


def test_variables_are_terms() -> None:
    assert parse_term("x") == TermVariable("x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("law a\n  x = x\n", "begins with 'axiom NAME'"),
        ("axiom\n  x = x\n", "begins with"),
        ("axiom a\n  for x: [m]\n", "no equation"),
        ("axiom a\n  for x: [m]\n  x = y\n", "without a type: y"),
        ("axiom a\n  for x: [m]\n  x, x = x\n", "2 tensors on the left, 1"),
        ("axiom a\n  for x: m\n  x = x\n", "no declaration"),
        ("axiom a\n  for x: [m]\n  where m\n  x = x\n", "no condition"),
        ("axiom a\n  for x: [m]\n  where m > 1\n  x = x\n", "no condition"),
        ("axiom a\n  for x: [m]\n  relu(x = x\n", "no equation"),
        ("axiom a\n  for x: [m]\n  x + x = x\n", "is no term"),
        ("axiom a\n  for x: [m / 2]\n  x = x\n", "is no size"),
        ("  x = x\n", "indented line before"),
        ("axiom a\n  for x: [m]\n  x = x\naxiom a\n  for x: [m]\n  x = x\n", "defined twice: a"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RuleError, match=reason):
        parse_rules(text, "some.txt")


def test_a_refusal_names_file_and_line() -> None:
    with pytest.raises(RuleError, match=r"some\.txt, line 4, 'axiom b'"):
        parse_rules("axiom a\n  for x: [m]\n  x = x\naxiom b\n  for x: [m]\n", "some.txt")


@pytest.mark.parametrize(
    "line",
    [
        "for x: [" + "+".join(["n"] * 20_000) + "]", "for x: [" + "-" * 20_000 + "n]", "for x: [" + "9" * 5_000 + "]",
        "for x: [" + "*".join(["(a + b + c + d + e + f + g)"] * 60) + "]", "for x: [floor(n, m - m)]",
        "for x: [n\0]", "relu(" * 5_000 + "x" + ")" * 5_000 + " = x", ".x" * 100_000 + " = x",
        "relu(x, a=" + "-" * 900 + "1) = x",
    ],
)  # fmt: skip
def test_texts_without_end_are_refused_by_file_and_line(line: str) -> None:
    with pytest.raises(RuleError, match=r"some\.txt, line 2, 'axiom a'") as caught:
        parse_rules(f"\naxiom a\n  for x: [k]\n  {line}\n  x = x\n", "some.txt")
    assert len(str(caught.value)) < 1000

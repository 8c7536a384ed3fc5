"""The prover: what follows is proved, what does not is not, and the axioms do not make everything equal."""

import pytest

from burnish.errors import RuleError
from burnish.rewrite.language.terms import RewriteRule, parse_rules
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.checker import check_proof
from burnish.rewrite.proofs.prove import EFFORTS, Prover, merged_variables

AXIOMS = load_axioms()
PROVER = Prover(AXIOMS)


def rule(text: str) -> RewriteRule:
    (only,) = parse_rules(text)
    return only


PROVABLE = [
    "matrices\n  for a: [m, k]; b: [k, n]; c: [n, k]\n  add(matmul(a, b), matmul(a, swap(c)))"
    " = matmul(a, add(b, swap(c)))",
    "pools\n  for x: [n, c, h, w]; y: [n, c, h, w]\n  add(avg_pool2d(y, kernel=(3, 3)), avg_pool2d(x, kernel=(3, 3)))"
    " = avg_pool2d(add(x, y), kernel=(3, 3))",
    "equation\n  for x: [n, a, h, w]; y: [n, b, h, w]; z: [o, c, 1, 1]\n  where a + b == c\n"
    "  conv2d(concat(x, y, axis=1), z)"
    " = add(conv2d(x, part(z, axis=1, start=0, extent=a)), conv2d(y, part(z, axis=1, start=a, extent=b)))",
    "defaults\n  for x: [n, c, h, w]\n  max_pool2d(relu(relu(x)), kernel=(2, 2), strides=(1, 1))"
    " = relu(max_pool2d(x, kernel=(2, 2), pads=(0, 0, 0, 0)))",
]


@pytest.mark.parametrize("text", PROVABLE)
def test_what_follows_is_proved_and_checked(text: str) -> None:
    law = rule(f"substitution {text}\n")
    proof = PROVER.prove(law)
    assert proof is not None
    check_proof(law, proof, AXIOMS)


@pytest.mark.parametrize(
    "text",
    [
        "equal variables\n  for x: [m, n]; y: [m, n]\n  x = y",
        "equal parts\n  for x: [a]; y: [a]\n  part(concat(x, y, axis=0), axis=0, start=0, extent=a) = y",
        "no commutation\n  for x: [n, n]; y: [n, n]\n  matmul(x, y) = matmul(y, x)",
        "no linearity\n  for x: [n]; y: [n]\n  relu(add(x, y)) = add(relu(x), relu(y))",
        "cropped\n  for x: [1, c, h, w]; y: [o, c, i, i]\n  conv2d(x, y) = conv2d(x, grow(y, pads=(a, a, a, a)),"
        " pads=(a, a, a, a))",
        "mean without pads\n  for x: [1, c, h, w]\n  avg_pool2d(x, kernel=(3, 3), pads=(1, 1, 1, 1))"
        " = conv2d(x, box(channels=c, kernel=(3, 3)), pads=(1, 1, 1, 1), groups=c)",
    ],
)
def test_what_is_false_is_not_proved(text: str) -> None:
    assert PROVER.prove(rule(f"substitution {text}\n"), EFFORTS[:2]) is None


def test_a_rule_that_does_not_type_is_refused() -> None:
    with pytest.raises(RuleError, match="'odd' does not type"):
        PROVER.prove(rule("substitution odd\n  for x: [m, n]\n  swap(x) = x\n"))


@pytest.mark.parametrize("name", list(AXIOMS)[::7])
def test_axioms_are_consistent(name: str) -> None:
    assert merged_variables(AXIOMS[name], PROVER) == []


INCONSISTENT = """
axiom products are their first factor
  for x: [*l]; y: [*l]
  mul(x, y) = x
"""


def test_an_inconsistent_axiom_is_noticed() -> None:
    more = Prover(AXIOMS | {"odd": rule(INCONSISTENT)})
    assert merged_variables(AXIOMS["mul is commutative"], more) == [("x", "y")]


def test_split_without_sizes_is_inconsistent() -> None:
    """Table 2.2's split with concat's associativity: the half of a nested concat is two things at once."""
    laws = """
axiom first half of a concat
  for x: [m, n]; y: [k, n]
  part(concat(x, y, axis=-2), axis=-2, start=0, extent=h) = part(x, axis=-2, start=0, extent=m)
axiom nested
  for x: [m, n]; y: [m, n]; z: [m, n]
  part(concat(concat(x, y, axis=-2), z, axis=-2), axis=-2, start=0, extent=m + m) = concat(x, y, axis=-2)
"""
    split, nested = parse_rules(laws)
    with pytest.raises(RuleError, match="'first half of a concat' does not type"):
        PROVER.prove(split)  # sizes forbid it
    assert PROVER.prove(nested) is not None


def test_an_axiom_that_the_others_imply_is_redundant() -> None:
    types = "for x: [*l]; y: [*l]; z: [*l]"
    twice = rule(f"axiom a sum of three turned around\n  {types}\n  add(add(x, y), z) = add(z, add(y, x))\n")
    assert PROVER.prove(twice) is not None
    fewer = {n: a for n, a in AXIOMS.items() if n != "relu is idempotent"}
    assert Prover(fewer).prove(AXIOMS["relu is idempotent"]) is None

"""What is shipped: named where it has a name, in the direction of the statement, proved, and no more than is needed."""

from dataclasses import replace

import pytest

from burnish.errors import RuleError
from burnish.rewrite.generation.domains import DOMAINS
from burnish.rewrite.generation.generate import Generated, generate
from burnish.rewrite.generation.select import STATEMENT, select
from burnish.rewrite.language.terms import parse_rules
from burnish.rewrite.proofs.axioms import RESOURCES, load_axioms
from burnish.rewrite.proofs.checker import check_proof
from burnish.rewrite.proofs.verify import load_substitutions, read_rules

FOUND = parse_rules("""
substitution law 1
  from matrix
  for x: [*l, m, k]; y: [*l, k, n]
  swap(matmul(x, y)) = matmul(swap(y), swap(x))

substitution law 2
  from matrix
  for x: [m, k]; y: [k, n]; z: [k, n]
  add(matmul(x, y), matmul(x, z)) = matmul(x, add(y, z))

substitution law 3
  from matrix
  for x: [m, k]; y: [k, n]; z: [k, n]
  add(matmul(x, z), matmul(x, y)) = matmul(x, add(z, y))

substitution law 4
  from matrix
  for x: [m, n]
  sub(x, x) = mul(sub(x, x), x)

substitution law 5
  from convolution
  for x: [n, c, h, w]
  where 0 <= p; p < i; q < j; r < i; v < j
  max_pool2d(relu(x), kernel=(i, j), pads=(p, q, r, v)) = relu(max_pool2d(x, kernel=(i, j), pads=(p, q, r, v)))
""")
STATEMENTS = parse_rules("""
substitution product of transposed
  for a: [*l, k, m]; b: [*l, n, k]
  matmul(swap(a), swap(b)) = swap(matmul(b, a))

substitution relu twice
  for x: [*l]
  relu(relu(x)) = relu(x)
""")


def test_selected_rules_have_names_origins_and_proofs() -> None:
    selection = select([Generated("matrix", FOUND, FOUND[1:3])], STATEMENTS, load_axioms())
    named, stated, other = selection.rules
    assert (named.name, named.origin) == ("product of transposed", "matrix")
    assert str(named.left[0]) == "matmul(swap(y), swap(x))"  # as found, read as stated
    assert (stated.name, stated.origin) == ("relu twice", STATEMENT)
    assert other.name == "add(matmul(x, y), matmul(x, z)) = matmul(x, add(y, z))"  # of two that say the same, one
    assert [rule.name for rule in selection.unproved] == ["law 4"]
    for rule in selection.rules:
        check_proof(rule, selection.proofs[rule.name], load_axioms())
    assert [str(rule) for rule in parse_rules(selection.text)] == [str(rule) for rule in selection.rules]


def test_conditions_that_no_proof_needs_are_dropped() -> None:
    (rule,) = select([Generated("convolution", FOUND[4:], FOUND[4:])], [], load_axioms()).rules
    assert [str(c) for c in rule.conditions] == ["p < i", "q < j", "r < i", "v < j"]


def test_a_statement_without_proof_is_refused() -> None:
    with pytest.raises(RuleError, match="'false' does not follow"):
        select([], [replace(FOUND[3], name="false")], load_axioms())


def test_every_shipped_rule_has_an_origin_and_most_are_found() -> None:
    rules = load_substitutions()
    assert {rule.origin for rule in rules} <= {STATEMENT, *DOMAINS}
    assert sum(rule.origin != STATEMENT for rule in rules) > 0.55 * len(rules)
    assert {rule.name for rule in read_rules("statements.txt")} <= {rule.name for rule in rules}


@pytest.mark.slow
def test_shipped_files_are_what_is_generated() -> None:
    selection = select(generate(list(DOMAINS.values())), read_rules("statements.txt"), load_axioms())
    assert selection.text == (RESOURCES / "substitutions.txt").read_text(encoding="utf-8")
    proofs = "\n".join(map(str, selection.proofs.values()))
    assert proofs == (RESOURCES / "proofs.txt").read_text(encoding="utf-8")

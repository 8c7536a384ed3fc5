"""The checker of proofs: every shipped proof passes, and none survives a change of it or of its rule."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from burnish.errors import RuleError
from burnish.rewrite.language.terms import RewriteRule, parse_rules, parse_term
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.checker import Congruence, check_proof
from burnish.rewrite.proofs.proof import Proof, parse_proofs
from burnish.rewrite.proofs.verify import load_substitutions, read_proofs

AXIOMS = load_axioms()
SWAPPED = """
substitution swapped sums
  for x: [m, n]; y: [m, n]
  swap(swap(add(x, y))) = add(y, x)
"""
PROOF = """
proof swapped sums
  by swap is its own inverse with x = add(x, y); m = m; n = n; *l = []
  by add is commutative with x = x; y = y; *l = [m, n]
"""


def rule(text: str) -> RewriteRule:
    (only,) = parse_rules(text)
    return only


def proof(text: str, axioms: Mapping[str, RewriteRule] = AXIOMS) -> Proof:
    (only,) = parse_proofs(text, axioms).values()
    return only


def test_a_proof_is_read_and_printed_and_holds() -> None:
    check_proof(rule(SWAPPED), proof(PROOF), AXIOMS)
    assert proof(str(proof(PROOF))) == proof(PROOF)


@pytest.mark.parametrize("name", [r.name for r in load_substitutions()])
def test_no_step_of_a_shipped_proof_can_be_left_out(name: str) -> None:
    whole = read_proofs()[name]
    (shipped,) = (r for r in load_substitutions() if r.name == name)
    for i in range(len(whole.steps)):
        shorter = Proof(name, (*whole.steps[:i], *whole.steps[i + 1 :]))
        with pytest.raises(RuleError, match="does not prove it"):
            check_proof(shipped, shorter, AXIOMS)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("x = add(x, y); m = m; n = n", "x = x; m = m; n = n", "does not prove it"),
        ("x = add(x, y); m = m; n = n", "x = add(x, y); m = n; n = m", r"step 0 .*stands for a tensor \[m, n\]"),
        ("x = add(x, y); m = m", "x = add(x, y); m = m + 1", r"stands for a tensor"),
        ("x = x; y = y; *l = [m, n]", "x = x; y = z; *l = [m, n]", "variable 'z' has no type"),
        ("x = x; y = y; *l = [m, n]", "x = x; y = y; *l = [m]", "step 1 .*'add is commutative': 'x' stands for"),
        ("x = x; y = y; *l = [m, n]", "x = x; *l = [m, n]", "variables y: given or asked for"),
        ("x = x; y = y; *l = [m, n]", "x = x; y = y", "leads l: given or asked for"),
        ("x = x; y = y; *l = [m, n]", "x = x; y = matmul(y, y); *l = [m, n]", "inner extents"),
    ],
)
def test_a_broken_proof_is_refused(old: str, new: str, reason: str) -> None:
    assert old in PROOF
    with pytest.raises(RuleError, match=f"'swapped sums'.*{reason}"):
        check_proof(rule(SWAPPED), proof(PROOF.replace(old, new)), AXIOMS)


def test_an_unknown_axiom_is_refused_by_name() -> None:
    with pytest.raises(RuleError, match="line 2, 'proof swapped sums': 'sums commute' is no axiom"):
        proof(PROOF.replace("add is commutative", "sums commute"))
    fewer = {n: a for n, a in AXIOMS.items() if n != "add is commutative"}
    with pytest.raises(RuleError, match="step 1 of its proof, 'add is commutative': there is no such axiom"):
        check_proof(rule(SWAPPED), proof(PROOF), fewer)


def test_a_name_that_an_axiom_lacks_is_refused() -> None:
    with pytest.raises(RuleError, match="'add is commutative' has no 'z'"):
        proof(PROOF.replace("y = y", "z = y"))


def test_a_proof_of_another_rule_is_refused() -> None:
    with pytest.raises(RuleError, match="the proof is of 'swapped sums'"):
        check_proof(replace(rule(SWAPPED), name="other"), proof(PROOF), AXIOMS)


def test_a_rule_that_does_not_type_is_refused() -> None:
    with pytest.raises(RuleError, match="'swapped sums' does not type"):
        check_proof(rule(SWAPPED.replace("swap(swap(add(x, y)))", "swap(add(x, y))")), proof(PROOF), AXIOMS)


GROWN = """
substitution grown
  for x: [n, c, h, w]; y: [o, c, i, j]
  {where}
  conv2d(x, y) = conv2d(x, grow(y, pads=(a, 1, 0, 0)), pads=(a, 1, 0, 0))
"""
GROWN_PROOF = """
proof grown
  by grown weights and pads with x = x; y = y; a = a; b = 1; d = 0; e = 0; c = c; g = 1; h = h; i = i; j = j; n = n;\
 o = o; p = 0; q = 0; r = 0; s = 1; t = 1; v = 0; w = w
"""


def test_conditions_must_follow() -> None:
    check_proof(rule(GROWN.format(where="where 0 <= a")), proof(GROWN_PROOF), AXIOMS)
    with pytest.raises(RuleError, match="condition 0 <= a does not follow"):  # a negative pad crops the weights
        check_proof(rule(GROWN.format(where="")), proof(GROWN_PROOF), AXIOMS)


def test_what_terms_in_between_ask_for_must_follow() -> None:
    text = "substitution parts\n  for x: [a + b]; y: [a]; z: [b]\n  x = x\n"
    step = "proof parts\n  by a part of a part at axis -1 with x = x; m = a + b; s = 0; e = {}; t = 0; f = 1; *l = []\n"
    check_proof(rule(text), proof(step.format("a")), AXIOMS)
    for extent, reason in (("a + a", "nothing says that"), ("a + b + 1", "is to be at most")):
        with pytest.raises(RuleError, match=reason):
            check_proof(rule(text), proof(step.format(extent)), AXIOMS)


def test_axioms_hold_of_tensors_with_elements_alone() -> None:
    text = "substitution parts\n  for x: [a + b]{}\n  x = x\n"
    half = "part(x, axis=-1, start=0, extent=a)"
    steps = proof(f"proof parts\n  by add is commutative with x = {half}; y = {half}; *l = [a]\n")
    check_proof(rule(text.format("; y: [a]; z: [b]")), steps, AXIOMS)
    with pytest.raises(RuleError, match="'x': extent a may be empty"):  # a + b is 1 or more, a may be 0
        check_proof(rule(text.format("")), steps, AXIOMS)


def test_congruence_closure() -> None:
    closure = Congruence()
    term = parse_term
    closure.merge(term("f(f(f(x)))"), term("x"))
    assert not closure.equal(term("f(x)"), term("x"))
    closure.merge(term("f(f(f(f(f(x)))))"), term("x"))
    assert closure.equal(term("f(x)"), term("x"))
    assert not closure.equal(term("f(x)"), term("g(x)"))
    assert closure.equal(term("g(f(x), x)"), term("g(x, x)"))
    assert not closure.equal(term("g(x, x, a=1)"), term("g(x, x, a=2)"))

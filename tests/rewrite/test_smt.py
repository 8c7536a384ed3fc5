"""Z3's opinion: it entails what was proved, and not what is false."""

import pytest

from benchmarks.rewriting import smt
from benchmarks.rewriting.smt import Entailment
from burnish.base import optional
from burnish.errors import MissingDependencyError
from burnish.rewrite.language.terms import RewriteRule, TermVariable, parse_rules
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.prove import Prover
from burnish.rewrite.proofs.verify import load_substitutions

PROVER = Prover(load_axioms())


@pytest.mark.parametrize("rule", load_substitutions()[::6], ids=lambda rule: rule.name)
def test_the_axioms_entail_what_is_shipped_and_not_that_all_is_equal(
    monkeypatch: pytest.MonkeyPatch, rule: RewriteRule
) -> None:
    entailment = Entailment(rule, PROVER)
    assert entailment.proves() and entailment.seconds > 0
    names = sorted(rule.types)
    monkeypatch.setattr(smt, "TIERS", smt.TIERS[:1])  # to find that nothing follows takes all the time there is
    alike = [(a, b) for a in names for b in names if a < b and rule.types[a] == rule.types[b]]
    assert not any(entailment.proves([(TermVariable(a), TermVariable(b))]) for a, b in alike[:1])


@pytest.mark.parametrize(
    "text",
    [
        "no commutation\n  for x: [n, n]; y: [n, n]\n  matmul(x, y) = matmul(y, x)",
        "no linearity\n  for x: [n]; y: [n]\n  relu(add(x, y)) = add(relu(x), relu(y))",
        "cropped\n  for x: [1, c, h, w]; y: [o, c, i, i]\n  conv2d(x, y) = conv2d(x, grow(y, pads=(a, a, a, a)),"
        " pads=(a, a, a, a))",
    ],
)
def test_what_is_false_is_not_entailed(text: str) -> None:
    (rule,) = parse_rules(f"substitution {text}\n")
    assert not Entailment(rule, PROVER).proves()


def test_inconsistent_axioms_entail_that_all_is_equal() -> None:
    (odd,) = parse_rules("axiom odd\n  for x: [*l]; y: [*l]\n  mul(x, y) = x\n")
    (rule,) = parse_rules("substitution a\n  for x: [n]; y: [n]\n  mul(x, y) = mul(y, x)\n")
    prover = Prover({**load_axioms(), "odd": odd})
    assert Entailment(rule, prover).proves([(TermVariable("x"), TermVariable("y"))])


def test_without_z3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> None:
        raise ModuleNotFoundError(name=package)

    monkeypatch.setattr(optional.importlib, "import_module", missing)
    with pytest.raises(MissingDependencyError, match=r"burnish\[rewrite\]"):
        Entailment(load_substitutions()[0], PROVER)

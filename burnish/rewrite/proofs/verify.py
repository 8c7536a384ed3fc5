"""The verifier of substitutions: rules are tested, then proved from the axioms, then their proofs are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from time import perf_counter

from burnish.base.files import read_regular
from burnish.errors import RuleError
from burnish.rewrite.language.terms import RewriteRule, parse_rules
from burnish.rewrite.language.types import type_rule
from burnish.rewrite.proofs.axioms import RESOURCES, load_axioms
from burnish.rewrite.proofs.checker import check_proof
from burnish.rewrite.proofs.proof import Proof, count, parse_proofs
from burnish.rewrite.proofs.prove import Prover, merged_variables
from burnish.rewrite.proofs.validate import validate


@dataclass(frozen=True)
class Verdict:
    """``outcome``: proved; valid (no test finds it false, but no proof was found); refused, for ``reason``.

    ``seconds``: of proving, without the tests.
    """

    rule: RewriteRule
    outcome: str
    proof: Proof | None = None
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class VerificationReport:
    """Verdicts in the order of the rules."""

    verdicts: Sequence[Verdict]

    def of(self, outcome: str) -> list[Verdict]:
        """The verdicts of one outcome."""
        return [v for v in self.verdicts if v.outcome == outcome]

    @property
    def proofs(self) -> dict[str, Proof]:
        """The proofs found, by the names of the rules."""
        return {v.rule.name: v.proof for v in self.verdicts if v.proof is not None}

    @property
    def offered(self) -> list[RewriteRule]:
        """Rules that are valid but unproved, smallest first: what to look at for a new axiom."""
        return sorted((v.rule for v in self.of("valid")), key=size_of_rule)

    def __str__(self) -> str:
        lines = [f"{len(self.of(o))} {o}" for o in ("proved", "valid", "refused")]
        times = [v.seconds for v in self.of("proved")]
        timed = f"; median {median(times) * 1e3:.2f} ms, total {sum(times):.2f} s" if times else ""
        refused = [f"  refused: {v.reason}" for v in self.of("refused")]
        return "\n".join([f"{len(self.verdicts)} rules: {', '.join(lines)}{timed}", *refused])


def size_of_rule(rule: RewriteRule) -> int:
    """Number of applications on both sides."""
    return sum(map(count, (*rule.left, *rule.right)))


def verify_rules(
    rules: Sequence[RewriteRule],
    axioms: Mapping[str, RewriteRule] | None = None,
    known: Mapping[str, Proof] | None = None,
    bindings: int = 12,
    seed: int = 0,
) -> VerificationReport:
    """Tests every rule at ``bindings`` random bindings, and proves those that pass.

    ``axioms``: None for the shipped ones. ``known``: proofs to check instead of searching for one.
    """
    axioms = load_axioms() if axioms is None else axioms
    prover, verdicts = Prover(axioms), list[Verdict]()
    for rule in rules:
        began = perf_counter()
        try:
            type_rule(rule)
            validate(rule, bindings, seed=seed)
            began = perf_counter()
            proof = known[rule.name] if known is not None and rule.name in known else prover.prove(rule)
            if proof is not None and known is not None:
                check_proof(rule, proof, axioms)
        except RuleError as error:
            verdicts.append(Verdict(rule, "refused", None, str(error), perf_counter() - began))
            continue
        outcome = "valid" if proof is None else "proved"
        verdicts.append(Verdict(rule, outcome, proof, "", perf_counter() - began))
    return VerificationReport(verdicts)


def inconsistencies(axioms: Mapping[str, RewriteRule]) -> list[str]:
    """Axioms from whose sides follows that two different variables are equal: none, if axioms are consistent."""
    prover = Prover(axioms)
    return [name for name, axiom in axioms.items() if merged_variables(axiom, prover)]


def read_rule_file(path: Path) -> list[RewriteRule]:
    """The rules of a file of text. Raises RuleError naming the file, OSError if it cannot be read."""
    try:
        text = read_regular(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RuleError(f"{path}: no text in UTF-8: {error}") from None
    return parse_rules(text, str(path))


# --- what is shipped --------------------------------------------------------------------------------------------------


def read_rules(name: str) -> list[RewriteRule]:
    """The rules of a file that Burnish ships."""
    return parse_rules((RESOURCES / name).read_text(encoding="utf-8"), name)


def read_proofs() -> dict[str, Proof]:
    """The shipped proofs, by the names of the rules."""
    return parse_proofs((RESOURCES / "proofs.txt").read_text(encoding="utf-8"), load_axioms(), "proofs.txt")


@lru_cache(maxsize=1)
def load_substitutions() -> tuple[RewriteRule, ...]:
    """The shipped substitutions. Raises RuleError naming the first whose proof is missing or does not hold."""
    axioms, proofs = load_axioms(), read_proofs()
    rules = tuple(read_rules("substitutions.txt"))
    for rule in rules:
        if rule.name not in proofs:
            raise RuleError(f"substitutions.txt: '{rule.name}' has no proof in proofs.txt")
        check_proof(rule, proofs[rule.name], axioms)
    return rules

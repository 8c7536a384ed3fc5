"""The verifier of substitutions: tests of the axioms, proofs of what is shipped, and the checking of these proofs."""

import importlib.util
import resource
import statistics
import time

from benchmarks.boosting.report import Row, row
from benchmarks.rewriting.smt import Entailment
from burnish.rewrite.language.terms import TermVariable
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.checker import check_proof
from burnish.rewrite.proofs.prove import Prover
from burnish.rewrite.proofs.validate import validate
from burnish.rewrite.proofs.verify import inconsistencies, read_proofs, read_rules

POINTS = 16  # random points at every random binding


def run(quick: bool = False) -> list[Row]:
    """Rows of the table. `quick` tests the axioms at few bindings, and takes few rules."""
    rows = _tests(1 if quick else 346)
    rules = read_rules("substitutions.txt")[:: 10 if quick else 1]
    prover, proofs = Prover(load_axioms()), read_proofs()
    found, checked = list[float](), list[float]()
    for rule in rules:
        began = time.perf_counter()
        if prover.prove(rule) is not None:
            found.append(time.perf_counter() - began)
        began = time.perf_counter()
        check_proof(rule, proofs[rule.name], prover.axioms)
        checked.append(time.perf_counter() - began)
    rows.append(row("shipped rules proved, %", 100 * len(found) / len(rules), asked="100"))
    rows.append(row("finding a proof, median ms", statistics.median(found) * 1e3, asked="1"))
    rows.append(row("finding all proofs, s", sum(found), asked="60", note=f"{len(rules)} rules"))
    rows.append(row("checking a proof, median ms", statistics.median(checked) * 1e3, asked="1"))
    rows.append(row("checking all proofs, s", sum(checked), asked="60"))
    if importlib.util.find_spec("z3") is not None:
        entailed, opinions, equal = 0, list[float](), 0
        for rule in rules:
            entailment = Entailment(rule, prover)
            entailed += entailment.proves()
            opinions.append(entailment.seconds)
            names = [n for n in rule.types if rule.types[n] == next(iter(rule.types.values()))][:2]
            equal += len(names) == 2 and entailment.proves([(TermVariable(names[0]), TermVariable(names[1]))])
        rows.append(row("shipped rules that Z3 proves, %", 100 * entailed / len(rules), asked="100"))
        rows.append(row("Z3, median ms", statistics.median(opinions) * 1e3, asked="1"))
        rows.append(row("rules from whose axioms Z3 derives x = y", equal, asked="0"))
    merged = inconsistencies(prover.axioms if not quick else dict(list(prover.axioms.items())[:10]))
    rows.append(row("axioms from which saturation derives x = y", len(merged), asked="0"))
    return rows


def table(rows: list[Row]) -> str:
    """The rows as text."""
    return "\n".join(f"{r['name']:42} {r['ours']:12.4g}   asked {r['asked'] or '-':8} {r['note']}" for r in rows)


def _tests(bindings: int) -> list[Row]:
    """Every axiom at random sizes and attributes."""
    axioms = list(load_axioms().values())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    began = time.perf_counter()
    tested = [validate(axiom, bindings, POINTS) for axiom in axioms]
    wall, cpu = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    obligations = sum(t.obligations for t in tested)
    note = f"{len(axioms)} axioms, {sum(t.bindings for t in tested)} bindings, {wall:.0f} s, {cpu:.0f} s of one CPU"
    bound = max(t.error_bound for t in tested)
    return [
        row("obligations tested", obligations, asked="1000000", note=note),
        row("an obligation, µs", wall / obligations * 1e6, asked="600", note=f"error bound at a binding {bound:.0e}"),
    ]

"""The verifier: right rules are proved, seeded wrong ones are rejected, and what is shipped is what was proved."""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from burnish.errors import RuleError
from burnish.graph.evaluate import evaluate
from burnish.rewrite.language.bindings import Bindings
from burnish.rewrite.language.sizes import is_extent
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, Value, parse_rules
from burnish.rewrite.language.types import type_rule
from burnish.rewrite.language.vocabulary import sides
from burnish.rewrite.proofs import verify
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.checker import check_proof
from burnish.rewrite.proofs.validate import validate
from burnish.rewrite.proofs.verify import (
    load_substitutions,
    read_proofs,
    read_rule_file,
    read_rules,
    verify_rules,
)

WRONG = 50


def changed(value: Value) -> Iterator[Value]:
    """An attribute, a little off."""
    if isinstance(value, bool):
        yield not value
    elif is_extent(value):
        yield value + 1
    elif isinstance(value, tuple):
        for i in range(len(value)):
            yield (*value[:i], value[i] + 1, *value[i + 1 :])


def mutations(term: Term) -> Iterator[Term]:
    """Terms that differ in one place: operands swapped, a size off, an operator dropped or put for another."""
    if not isinstance(term, Apply):
        return
    for i, argument in enumerate(term.args):
        for other in mutations(argument):
            yield Apply(term.word, (*term.args[:i], other, *term.args[i + 1 :]), term.attrs)
    if len(term.args) == 2:
        yield Apply(term.word, term.args[::-1], term.attrs)
    if term.args:
        yield term.args[0]
    if term.word in ("add", "mul"):
        yield Apply("mul" if term.word == "add" else "add", term.args, term.attrs)
    for i, (key, value) in enumerate(term.attrs):
        for other_value in changed(value):
            yield Apply(term.word, term.args, (*term.attrs[:i], (key, other_value), *term.attrs[i + 1 :]))


def is_wrong(rule: RewriteRule) -> bool:
    """By the operators' definitions in float64: sides differ at some binding."""
    for binding in itertools.islice(Bindings(rule, np.random.default_rng(1), largest=3), 3):
        left, right = sides(rule, binding)
        random = np.random.default_rng(2)
        feeds = {n: random.standard_normal(binding.shape(t)).astype(np.float32) for n, t in rule.types.items()}
        values = [list(evaluate(g, {n: feeds[n] for n in g.inputs}, "float64").values()) for g in (left, right)]
        if not all(np.allclose(a, b, equal_nan=True) for a, b in zip(*values, strict=True)):
            return True
    return False


def wrong_rules() -> Iterator[tuple[RewriteRule, str]]:
    """Seeded mutations of the shipped rules that are wrong, and how: most are false, some do not type."""
    random, untyped = np.random.default_rng(0), 0
    rules = load_substitutions()
    while True:
        rule = rules[int(random.integers(len(rules)))]
        candidates = list(mutations(rule.right[0]))
        if not candidates:
            continue
        right = (candidates[int(random.integers(len(candidates)))], *rule.right[1:])
        mutant = RewriteRule(rule.name, rule.types, rule.left, right, rule.conditions, rule.kind)
        try:
            type_rule(mutant)
        except RuleError:
            untyped += 1
            if untyped <= WRONG // 3:
                yield mutant, "does not type"
            continue
        try:
            wrong = is_wrong(mutant)
        except RuleError:  # no sizes at which it has a meaning
            continue
        if wrong:
            yield mutant, "is false"


def test_wrong_rules_are_rejected_by_the_tests_and_by_the_checker() -> None:
    proofs, axioms = read_proofs(), load_axioms()
    wrong = list(itertools.islice(wrong_rules(), WRONG))
    verdicts = verify_rules([rule for rule, _ in wrong]).verdicts
    for (rule, reason), verdict in zip(wrong, verdicts, strict=True):
        assert verdict.outcome == "refused" and f"'{rule.name}' {reason}" in verdict.reason, str(rule)
        with pytest.raises(RuleError, match=re.escape(f"'{rule.name}'")):
            check_proof(rule, proofs[rule.name], axioms)


def test_shipped_substitutions_are_proved_and_true() -> None:
    rules = load_substitutions()
    assert {r.name for r in rules} == read_proofs().keys()
    assert len(rules) >= 100 and all(rule.kind == "substitution" for rule in rules)
    for rule in rules[::10]:
        validate(rule, bindings=2, points=1)


def test_verification_reports_what_it_found() -> None:
    right, wrong, open_ = parse_rules(
        "substitution right\n  for x: [m, n]; y: [m, n]\n  add(relu(x), relu(y)) = add(relu(y), relu(x))\n"
        "substitution wrong\n  for x: [m, n]; y: [m, n]\n  add(relu(x), relu(y)) = relu(add(x, y))\n"
        "substitution open\n  for x: [m, n]\n  sub(x, x) = mul(sub(x, x), x)\n"
    )
    report = verify_rules([right, open_, wrong], bindings=4)
    assert [v.outcome for v in report.verdicts] == ["proved", "valid", "refused"]
    assert "'wrong' is false" in report.of("refused")[0].reason
    assert report.offered == [open_]
    assert str(report).startswith("3 rules: 1 proved, 1 valid, 1 refused; median ")
    check_proof(right, report.proofs["right"], load_axioms())
    assert verify_rules([right], known=report.proofs, bindings=1).of("proved")[0].proof == report.proofs["right"]


def test_a_proof_that_does_not_fit_is_a_refusal() -> None:
    first, second = load_substitutions()[:2]
    report = verify_rules([first], known={first.name: read_proofs()[second.name]}, bindings=1)
    assert "the proof is of" in report.of("refused")[0].reason


def test_rules_are_offered_smallest_first() -> None:
    big, small = parse_rules(
        "substitution big\n  for x: [m, n]\n  relu(sub(x, x)) = relu(mul(sub(x, x), x))\n"
        "substitution small\n  for x: [m, n]\n  sub(x, x) = mul(sub(x, x), x)\n"
    )
    assert verify_rules([big, small], bindings=2).offered == [small, big]


def test_a_shipped_rule_without_proof_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = read_proofs()
    name = read_rules("substitutions.txt")[3].name
    monkeypatch.setattr(verify, "read_proofs", lambda: {n: p for n, p in proofs.items() if n != name})
    load_substitutions.cache_clear()
    with pytest.raises(RuleError, match=f"'{name}' has no proof"):
        load_substitutions()
    load_substitutions.cache_clear()


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ("4611686018427387904", "no sizes found"),
        ("n * 1000000000000000000000", "no sizes found"),
        ("100000, 100000", "allowed in tests: up to 4194304 elements"),
        ("-3", "no sizes found"),
        ("0", "no sizes found"),
        ("floor(n, m - n * m)", "no sizes found"),
    ],
)
def test_rules_of_impossible_sizes_are_refused(size: str, reason: str) -> None:
    report = verify_rules(parse_rules(f"substitution a\n  for x: [{size}]\n  relu(relu(x)) = relu(x)\n"))
    (verdict,) = report.verdicts
    assert verdict.outcome == "refused" and reason in verdict.reason


def test_sizes_at_which_a_quotient_is_none_are_not_tried() -> None:
    rules = parse_rules("substitution a\n  for x: [floor(n, m - 2)]\n  relu(relu(x)) = relu(x)\n")
    assert verify_rules(rules).verdicts[0].outcome == "proved"


def test_rule_files(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("substitution a\n  for x: [n]\n  relu(relu(x)) = relu(x)\n", encoding="utf-8")
    assert [rule.name for rule in read_rule_file(path)] == ["a"]
    path.write_bytes(b"substitution \xff\n")
    with pytest.raises(RuleError, match=r"rules\.txt: no text in UTF-8"):
        read_rule_file(path)
    os.mkfifo(tmp_path / "fifo")
    for wrong in (tmp_path, tmp_path / "fifo", tmp_path / "absent"):
        with pytest.raises(OSError):
            read_rule_file(wrong)

"""`burnish rewrite`: verification of files and of what is shipped, and drawings of rules."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from burnish.cli import app
from burnish.cli.rewriting import drawing
from burnish.rewrite.axioms import load_axioms
from burnish.rewrite.proofs import parse_proofs
from burnish.rewrite.terms import parse_rules

RIGHT = "substitution right\n  for x: [m, n]; y: [m, n]\n  add(relu(x), relu(y)) = add(relu(y), relu(x))\n"
WRONG = "substitution wrong\n  for x: [m, n]; y: [m, n]\n  add(relu(x), relu(y)) = relu(add(x, y))\n"
OPEN = "substitution open\n  for x: [m, n]\n  sub(x, x) = mul(sub(x, x), x)\n"


def test_a_file_is_verified_and_its_proofs_written(tmp_path: Path) -> None:
    file, proofs = tmp_path / "rules.txt", tmp_path / "proofs.txt"
    file.write_text(RIGHT)
    result = CliRunner().invoke(app, ["rewrite", "verify", str(file), "--proofs", str(proofs), "--bindings", "2"])
    assert result.exit_code == 0 and result.stdout.startswith("1 rules: 1 proved, 0 valid, 0 refused")
    assert parse_proofs(proofs.read_text(), load_axioms()).keys() == {"right"}


@pytest.mark.parametrize(("text", "outcome"), [(WRONG, "refused"), (OPEN, "valid")])
def test_what_is_not_proved_fails(tmp_path: Path, text: str, outcome: str) -> None:
    file = tmp_path / "rules.txt"
    file.write_text(RIGHT + text)
    result = CliRunner().invoke(app, ["rewrite", "verify", str(file), "--json", "--bindings", "4"])
    assert result.exit_code == 1
    assert [v["outcome"] for v in json.loads(result.stdout)["verdicts"]] == ["proved", outcome]
    assert CliRunner().invoke(app, ["rewrite", "verify", str(file), "--bindings", "4"]).exit_code == 1


def test_substitutions_and_axioms_are_listed() -> None:
    result = CliRunner().invoke(app, ["rewrite", "list", "RepVGG", "--json"])
    assert [r["name"] for r in json.loads(result.stdout)["rules"]] == ["RepVGG", "RepVGG without identity"]
    result = CliRunner().invoke(app, ["rewrite", "list", "relu is idempotent", "--axioms"])
    assert "relu is idempotent" in result.stdout


def test_a_rule_is_drawn_as_two_graphs() -> None:
    (rule,) = parse_rules(
        "substitution merged\n  for x: [m, k]; y: [k, n]\n  where k <= n\n"
        "  matmul(x, y), relu(matmul(x, y)) = matmul(x, y, transpose_a=False), y\n"
    )
    assert drawing(rule) == (
        "merged\n  x: [m, k]\n  y: [k, n]\n  where k <= n\n"
        "  %0 = matmul x y  │ %0 = matmul x y (transpose_a=False)\n"
        "  %1 = relu %0     │ give %0, y\n"
        "  give %0, %1      │"
    )

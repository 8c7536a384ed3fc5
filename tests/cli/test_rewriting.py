"""`burnish rewrite`: verification of files and of what is shipped, and drawings of rules."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from burnish.cli import app
from burnish.cli.rewriting import drawing
from burnish.errors import ParameterError
from burnish.frontend.onnx import from_onnx, to_onnx
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from burnish.rewrite.language.terms import parse_rules
from burnish.rewrite.proofs.axioms import load_axioms
from burnish.rewrite.proofs.proof import parse_proofs

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


def test_candidates_are_generated(tmp_path: Path) -> None:
    file = tmp_path / "rules.txt"
    asked = ["rewrite", "generate", "-o", str(file), "--size", "1", "--domain", "broadcast"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert parse_rules(file.read_text())
    wrong = CliRunner().invoke(app, [*asked[:-1], "nonsense"])
    assert wrong.exit_code != 0 and not isinstance(wrong.exception, KeyError)


def test_a_model_is_rewritten_and_exported(tmp_path: Path) -> None:
    """Two average pools and a sum become less, and the file gives the same answers."""
    random = np.random.default_rng(0)
    g = GraphBuilder()
    x, y = g.input("x", (1, 16, 12, 12)), g.input("y", (1, 16, 12, 12))
    options = {"kernel": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": True}
    graph = g.build(g.add("add", g.add("avg_pool2d", x, **options), g.add("avg_pool2d", y, **options)))
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.save(to_onnx(graph), before)
    result = CliRunner().invoke(app, ["rewrite", "apply", str(before), "-o", str(after), "--json", "--seconds", "2"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["applied"] and report["predicted_us"][1] < report["predicted_us"][0]
    assert all(each["proof"] for each in report["applied"])
    assert report["measured"]["low"] <= report["measured"]["ratio"] <= report["measured"]["high"]
    rewritten = from_onnx(str(after))
    pools = [n for n in rewritten.nodes if n.op in ("avg_pool2d", "conv2d")]
    assert len(pools) == (1 if report["rewritten"] else 2)
    feeds = {name: random.standard_normal((1, 16, 12, 12)).astype("float32") for name in "xy"}
    (expected,), (found,) = evaluate(graph, feeds).values(), evaluate(rewritten, feeds).values()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_objective_is_asked_for_by_name(tmp_path: Path) -> None:
    g = GraphBuilder()
    weights = [g.constant(np.ones((32, 32), np.float32)) for _ in range(2)]
    chain = g.build(g.add("matmul", g.add("matmul", g.input("x", (4, 32)), weights[0]), weights[1]))
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.save(to_onnx(chain), before)
    asked = ["rewrite", "apply", str(before), "-o", str(after)]
    result = CliRunner().invoke(app, [*asked, "--minimize", "flops"])
    assert result.exit_code == 0, result.output
    assert "1 × matmul" in result.stdout and "proved in 1 steps" in result.stdout and "; kept" in result.stdout
    assert len(from_onnx(str(after)).nodes) == 1
    for wrong in (["--minimize", "size"], ["--memory-limit", "-5"], ["--memory-limit", "10"]):
        refused = CliRunner().invoke(app, [*asked, *wrong])
        assert refused.exit_code != 0 and isinstance(refused.exception, (ParameterError, SystemExit))


def test_substitutions_and_axioms_are_listed() -> None:
    result = CliRunner().invoke(app, ["rewrite", "list", "RepVGG", "--json"])
    assert [(r["name"], r["origin"]) for r in json.loads(result.stdout)["rules"]] == [("RepVGG", "statement")]
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

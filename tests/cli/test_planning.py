"""`burnish plan memory | paging | devices`: strategies, budgets, refusals and live memory over time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from burnish.cli import app
from burnish.errors import ParameterError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(6):
        weights.append(numpy_helper.from_array((random.normal(size=(32, 32)) / 6).astype("f4"), f"w{i}"))
        nodes += [helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]), helper.make_node("Relu", [f"m{i}"], [f"r{i}"])]
        x = f"r{i}"
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 32]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "chain", types[:1], types[1:], weights)
    path = tmp_path_factory.mktemp("plan") / "chain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_strategies_and_budgets_in_json(model: Path) -> None:
    found = CliRunner().invoke(
        app, ["plan", "memory", str(model), "--memory-budget", "50KB", "--loss", "mse", "--json"]
    )
    report = json.loads(found.stdout)
    rows = {row["strategy"]: row for row in report["strategies"]}
    assert [*rows] == ["none", "inplace", "sharing", "packed", "drop-cheap", "sublinear", "least", "budget 50 KB"]
    assert rows["none"]["bytes"] >= rows["inplace"]["bytes"] >= rows["sharing"]["bytes"] >= rows["packed"]["bytes"]
    assert rows["budget 50 KB"]["bytes"] <= 50_000 < rows["packed"]["bytes"]
    assert rows["budget 50 KB"]["extra"] > 0 == rows["packed"]["extra"] and report["refused"] == []
    over_time = rows["budget 50 KB"]["over_time"]
    assert max(over_time["bytes"]) == rows["budget 50 KB"]["live"] <= 60_000
    assert len(over_time["bytes"]) == len(over_time["seconds"]) == 200


def test_a_table_and_a_picture_for_people(model: Path) -> None:
    found = CliRunner().invoke(app, ["plan", "memory", str(model)])
    assert found.exit_code == 0
    assert "sublinear" in found.stdout and "live memory over time (none)" in found.stdout and "█" in found.stdout


def test_a_budget_that_cannot_be_kept_is_refused_behind_the_table(model: Path) -> None:
    found = CliRunner().invoke(app, ["plan", "memory", str(model), "--memory-budget", "1KB", "--memory-budget", "50KB"])
    assert isinstance(found.exception, ParameterError) and "allowed:" in str(found.exception)
    assert "budget 50 KB" in found.stdout
    for wrong in (["--memory-budget", "much"], ["--loss", "hinge"]):
        assert isinstance(CliRunner().invoke(app, ["plan", "memory", str(model), *wrong]).exception, ParameterError)
    assert "No such command" in CliRunner().invoke(app, ["plan", str(model)]).output


def test_a_call_in_two_memories_is_planned_and_made(model: Path) -> None:
    budgets = [word for budget in ("40KB", "1KB", "90KB") for word in ("--memory-budget", budget)]
    command = ["plan", "paging", str(model), *budgets]
    found = CliRunner().invoke(app, [*command, "--json"])
    assert isinstance(found.exception, ParameterError) and "found 1000 bytes (1 KB); allowed: at" in str(
        found.exception
    )
    report = json.loads(found.stdout)
    small, large = report["budgets"]
    assert small["peak"] <= 40_000 and large["peak"] <= 90_000 and len(report["refused"]) == 1
    assert small["same"] and large["same"]
    weights_and_input = 6 * 32 * 32 * 4 + 64 * 32 * 4
    assert large["loaded"] == weights_and_input and large["loaded"] + large["stored"] < large["others"]["streaming"]
    result = CliRunner().invoke(app, ["plan", "paging", str(model), "--memory-budget", "40KB"])
    assert result.exit_code == 0 and "same" in result.stdout
    result = CliRunner().invoke(app, ["plan", "paging", str(model), "--memory-budget", "1KB"])
    assert result.exit_code and not result.stdout  # no table without a row
    assert CliRunner().invoke(app, ["plan", "paging", str(model)]).exit_code == 2  # without a budget


def test_inference_is_planned_for_many_devices(model: Path, tmp_path: Path) -> None:
    arguments = ["plan", "devices", str(model), "p100:1x2", "--seconds", "0.1", "--no-pipelines"]
    reports = []
    for more in (["--inference"], ["--loss", "mse"]):
        found = CliRunner().invoke(app, [*arguments, *more, "--json"])
        assert found.exit_code == 0, found.output
        reports.append(json.loads(found.stdout))
    inference, training = reports
    assert inference["milliseconds"] < training["milliseconds"]
    assert inference["bytes"]["gradients"] == 0 and max(inference["memory"]) < max(training["memory"])
    found = CliRunner().invoke(app, [*arguments, "--inference", "-o", str(tmp_path / "plan.txt")])
    assert "inference on p100:1x2" in found.stdout and (tmp_path / "plan.txt").read_text().startswith("strategy of ")

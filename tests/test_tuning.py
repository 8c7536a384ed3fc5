"""A small model tuned for real: the answer stays, records serve a later compilation, the command line tells it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import burnish as bn
from burnish.cli import app
from burnish.cli.tuning import summary
from burnish.driver.compilation import import_graph
from burnish.driver.tuned import described, tune_model
from burnish.errors import TargetError
from burnish.machines.target import host, target
from burnish.measure.comparison import Comparison
from burnish.measure.sandbox import Sandbox
from burnish.tune.records import RecordFile


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu(conv(x)) of 32 channels, then a pool that no template is made for."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((32, 32, 3, 3)).astype("float32") / 17, "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceL2", ["r"], ["y"], axes=[2, 3]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 32, 12, 12))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 32, 1, 1))
    graph = helper.make_graph(nodes, "small", [x], [y], [weight])
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


X = np.random.default_rng(1).standard_normal((1, 32, 12, 12)).astype("float32")


def test_a_tuned_model_gives_the_same_answer(model: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    plain = bn.compile(str(model))(X)
    heard: list[tuple[str, int, int]] = []
    tuned = bn.compile(
        str(model), tune=bn.Tune(seconds=None, trials=12, min_gain=0.0), records=records,
        progress=lambda *stage: heard.append(stage),
    )  # fmt: skip
    done = [stage for stage in heard if stage[0] == "tune"]
    assert (done[0], done[-1]) == (("tune", 0, 12), ("tune", 12, 12))
    np.testing.assert_allclose(tuned(X), plain, rtol=0, atol=1e-4 * abs(plain).max())
    assert len(RecordFile(records).all()) >= 12
    again = bn.compile(str(model), records=records)
    np.testing.assert_allclose(again(X), plain, rtol=0, atol=1e-4 * abs(plain).max())


@pytest.mark.slow
def test_the_command_line_tunes_and_goes_on(model: Path, tmp_path: Path) -> None:
    records, output = tmp_path / "records.jsonl", tmp_path / "small.bn"
    limits = ["--trials", "4", "--min-gain", "0"]
    arguments = ["tune", str(model), *limits, "-o", str(output), "--records", str(records), "--json"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert report["stop_reason"] == "trials"
    assert {"kernel", "calls", "trials", "candidates", "default_us", "best_us", "kept"} <= set(report["kernels"][0])
    assert bn.load(output)(X).shape == (1, 32, 1, 1)
    second = CliRunner().invoke(app, arguments[:-1])
    assert second.exit_code == 0, second.output
    assert "as fast as untuned" in second.stdout
    assert len([r for r in RecordFile(records).all() if not r.won]) > report["trials"]


@pytest.mark.slow
def test_records_are_shown_merged_and_compacted(model: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, seed in ((first, 0), (second, 1)):
        bn.compile(str(model), tune=bn.Tune(seconds=None, trials=4, seed=seed), records=path)
    count = len(RecordFile(first).all())

    def run(*arguments: object) -> str:
        found = CliRunner().invoke(app, ["records", *map(str, arguments)])
        assert found.exit_code == 0, found.output
        return found.stdout

    rows = json.loads(run("show", first, "--json"))["kernels"]
    assert sum(row["tried"] for row in rows) == count
    assert run("merge", first, second) == f"{first}: {len(RecordFile(second).all())} records added\n"
    won = {(r.key, r.template, str(r.choice)) for r in RecordFile(first).all() if r.won}
    assert "records dropped" in run("compact", first, "--keep", 1)
    left = RecordFile(first).all()
    assert {(r.key, r.template, str(r.choice)) for r in left if r.won} == won
    assert len(left) <= 2 * len(rows) + len(won)
    assert "no file" in str(CliRunner().invoke(app, ["records", "show", str(tmp_path / "none.jsonl")]).exception)


def test_a_corrupt_line_costs_that_line(model: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text('{"version": 1, "half a rec\n')
    with pytest.warns(RuntimeWarning, match="line 1: not JSON"):
        module = bn.compile(str(model), records=records)
    assert module(X).shape == (1, 32, 1, 1)


def test_a_tuned_model_that_fails_is_not_taken(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Comparison(outcome="wrong", error="output 'y' differs")
    monkeypatch.setattr(Sandbox, "compare", lambda *given, **options: failed)
    options = bn.Tune(seconds=None, trials=4, min_gain=0.0)
    with pytest.warns(RuntimeWarning, match="tune: .*: wrong: output 'y' differs; the untuned one is taken"):
        tuned = tune_model(import_graph(str(model)), options, tmp_path / "r.jsonl", target=host())
    report = described(tuned)
    assert (report["outcome"], report["ratio"], report["kept"]) == ("wrong", None, False)
    assert "wrong: output 'y' differs; the untuned model is kept" in summary(tuned)


def test_another_machine_cannot_be_tuned_for(model: Path, tmp_path: Path) -> None:
    other = target("aarch64-cortex-a53")
    with pytest.raises(TargetError, match=f"tune: the target is cortex-a53 .*, this machine is {host().cpu}"):
        tune_model(import_graph(str(model)), bn.Tune(), tmp_path / "r.jsonl", target=other)


def test_an_unknown_strategy_is_refused(model: Path, tmp_path: Path) -> None:
    arguments = ["tune", str(model), "--strategy", "luck", "--records", str(tmp_path / "r.jsonl")]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code != 0
    assert "strategy: found 'luck'; allowed: burnish, autotvm" in str(found.exception)

"""`burnish train`: files in, the trained model, checkpoints and a report out; refusals before any work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import burnish as bn
import burnish.fitting.fit as fit
from burnish.cli import app
from burnish.errors import BurnishError, CheckpointError, DataError, ParameterError
from burnish.measure import together
from burnish.train.evaluation import METRICS
from burnish.train.losses import LOSSES
from burnish.train.optimizers import OPTIMIZERS

RNG = np.random.default_rng(0)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a perceptron of an open batch, 192 rows to train and 64 to evaluate with."""
    first, second = (RNG.normal(size=s).astype("f4") / 3 for s in ((6, 16), (16, 3)))
    weights = [numpy_helper.from_array(first, "w1"), numpy_helper.from_array(second, "w2")]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p"]), helper.make_node("Relu", ["p"], ["h"]),
        helper.make_node("MatMul", ["h", "w2"], ["y"]),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ("batch", 6))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ("batch", 3))
    graph = helper.make_graph(nodes, "perceptron", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    centers = RNG.normal(size=(3, 6))
    for name, count in (("train", 192), ("valid", 64)):
        label = RNG.integers(0, 3, count)
        np.savez(
            tmp_path / f"{name}.npz", x=(centers[label] + RNG.normal(size=(count, 6)) / 2).astype("f4"), label=label
        )
    return tmp_path


def run(folder: Path, *more: object) -> str:
    given = ["train", folder / "m.onnx", "--data", folder / "train.npz", "--batch", 32, "--threads", 1, *more]
    result = CliRunner().invoke(app, [str(argument) for argument in given], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_model_is_trained_and_written(files: Path) -> None:
    report = json.loads(
        run(files, "--epochs", 6, "--learning-rate", 0.02, "--schedule", "cosine", "--warm-up", 4, "--clip-norm", 1.0,
            "--validation-data", files / "valid.npz", "--metric", "accuracy", "--report", files / "report.json",
            "--json")
    )  # fmt: skip
    assert report["calls"] == 36 and report["stop_reason"] == "epochs"
    assert report["losses"][-1] < 0.5 * report["losses"][0] and report["best"]["metrics"]["accuracy"] > 0.8
    assert json.loads((files / "report.json").read_text())["losses"] == report["losses"]
    data = np.load(files / "valid.npz")
    model = bn.compile(files / "m.trained.onnx", shapes={"x": (32, 6)}, threads=1, rewrite=False)
    assert np.mean(model(data["x"][:32]).argmax(1) == data["label"][:32]) > 0.7


@pytest.mark.slow
def test_ranks_train_by_a_plan_that_is_searched_for(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "COLD_BYTES", 1 << 10)
    monkeypatch.setattr(fit, "find_plan", partial(fit.find_plan, seconds=0.3))
    text = run(files, "--steps", 4, "--workers", 2, "--worker-kind", "thread", "--plan", "auto")
    assert "ms a step, predicted" in text and ("measured: plan" in text or "is the plan" in text)
    assert (files / "m.trained.onnx").exists()


def test_a_compiled_model_is_written(files: Path) -> None:
    page = files / "report.html"
    text = run(
        files, "--steps", 3, "--optimizer", "sgd", "--accumulation-steps", 2, "-o", files / "m.bn", "--report", page
    )
    assert page.read_text().count("<svg") == 2  # the loss, and live memory over a step
    assert "in 3 batches, 2 updates" in text and bn.load(files / "m.bn")(np.zeros((32, 6), "f4")).shape == (32, 3)


def test_going_on_from_a_folder(files: Path) -> None:
    more = ["--epochs", 3, "--checkpoint", files / "run", "--save-every", 4, "--json"]
    first = json.loads(run(files, *more, "--steps", 8))
    rest = json.loads(run(files, *more, "--resume"))
    assert rest["resumed"] == 8 and rest["calls"] == 18 and rest["losses"][:8] == first["losses"]
    whole = json.loads(run(files, "--epochs", 3, "--json"))
    assert rest["losses"] == whole["losses"]


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        (["--loss", "hinge"], ParameterError, "Train: loss: found 'hinge'"),
        (["--optimizer", "lion"], ParameterError, "--optimizer: found 'lion'; allowed: sgd, adam, adamw"),
        (["--schedule", "exp"], ParameterError, "schedule: found 'exp'; allowed: constant"),
        (["--resume"], ParameterError, "--resume: found without a folder"),
        (["--patience", "2"], ParameterError, "--patience: found without data"),
        (["--precision", "float8"], ParameterError, "Train: precision: found 'float8'"),
        (["-o", "m.txt"], ParameterError, "allowed: a name that ends in .onnx or .bn"),
        (["--validation-data", "none.npz"], ParameterError, "--validation-data: no file 'none.npz'"),
        (["--metric", "auc"], ParameterError, "metrics: found 'auc'"),
        (["--momentum", 0.5], ParameterError, "--momentum: found 0.5 for adamw; allowed: with --optimizer sgd"),
    ],
)
def test_what_cannot_be_is_refused(files: Path, more: list[str], kind: type[BurnishError], message: str) -> None:
    with pytest.raises(kind, match=message.replace("(", r"\(")):
        run(files, "--steps", 2, *more)
    assert not (files / "m.trained.onnx").exists()


def test_data_and_checkpoints_that_do_not_fit(files: Path) -> None:
    np.savez(files / "train.npz", y=np.zeros((64, 6), "f4"), label=np.zeros(64, int))
    with pytest.raises(DataError, match=r"found arrays \['label', 'y'\]; allowed: x, label"):
        run(files, "--steps", 2)
    np.savez(files / "train.npz", x=np.zeros((64, 6), "f4"), label=np.zeros(64, int))
    run(files, "--steps", 2, "--checkpoint", files / "run")
    newest = max((files / "run").glob("step-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="found no complete safetensors file"):
        run(files, "--steps", 4, "--checkpoint", files / "run", "--resume")


def test_the_help_names_what_there_is() -> None:
    report = " ".join(CliRunner(env={"COLUMNS": "300"}).invoke(app, ["train", "--help"]).stdout.split())
    for names in (LOSSES, METRICS, OPTIMIZERS):
        assert f"One of {', '.join(names)}." in report


@pytest.mark.parametrize(
    ("given", "calls"),
    [((), 6), (("--dim", "batch=1..16"), 12), (("--shape", "x=n,6", "--dim", "n=1..64", "--batch", 48), 4)],
    ids=str,
)
def test_an_open_batch_is_of_32_rows_and_stays_open(files: Path, given: Sequence[object], calls: int) -> None:
    whole = ["train", files / "m.onnx", "--data", files / "train.npz", "--threads", 1, "--json", *given]
    result = CliRunner().invoke(app, [str(argument) for argument in whole], catch_exceptions=False)
    assert result.exit_code == 0 and json.loads(result.stdout)["calls"] == calls
    written = bn.compile(files / "m.trained.onnx", shapes={"x": (5, 6)})
    x = np.load(files / "train.npz")["x"]
    other = bn.compile(files / "m.trained.onnx", shapes={"x": (192, 6)})
    np.testing.assert_allclose(written(x[:5]), other(x)[:5], rtol=1e-5, atol=1e-6)

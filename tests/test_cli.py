"""The command line: what each command prints and writes, its exit status, and one-line errors."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from burnish import cli
from burnish.cli import measuring, models
from burnish.driver.check import KernelCheck
from burnish.errors import InputError, ParameterError
from burnish.measure import peers
from burnish.runtime.host import obstacle


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x @ w), 2×3 times 3×2."""
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, (3, 2), [1, -2, 3, 4, -5, 6])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 2))
    graph = helper.make_graph(nodes, "affine", [x], [y], [weight])
    path = tmp_path / "affine.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def run(*arguments: object) -> str:
    """Standard output of a command that must succeed."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("command", ["compile", "train", "bench", "check", "inspect"])
def test_every_command_explains_itself(command: str) -> None:
    assert "--json" in run(command, "--help")


def test_compile_then_inspect(model: Path) -> None:
    report = json.loads(run("compile", model, "--json"))
    artifact = model.with_suffix(".bn")
    assert report["output"] == str(artifact)
    assert report["bytes"] == artifact.stat().st_size
    seen = json.loads(run("inspect", artifact, "--json"))
    assert "matmul" in seen["graph"]
    assert len(seen["kernels"]) >= 1
    assert seen["memory"] == report["memory"]


def test_a_file_for_several_cpus_names_its_variants(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "several.bn"
    options = ["--target", "cpu", "--target", "x86-64-v2", "--target", "aarch64-cortex-a53", "--no-rewrite"]
    report = json.loads(run("compile", model, "-o", output, *options, "--json"))
    seen = json.loads(run("inspect", output, "--json"))
    assert report["variants"] == seen["variants"]
    assert [v["name"] for v in seen["variants"]] == ["cpu", "x86-64-v2", "aarch64-cortex-a53"]
    assert [v["name"] for v in seen["variants"] if v["obstacle"]] == [
        v["name"] for v in seen["variants"] if obstacle(v["target"])
    ]
    text = run("inspect", output)
    assert "variant cpu: " in text and text.count("taken") == 1
    assert "variant aarch64-cortex-a53: " in text


def test_operators_are_fused_unless_told_otherwise(model: Path) -> None:
    assert len(json.loads(run("inspect", model, "--json"))["kernels"]) == 1
    assert len(json.loads(run("inspect", model, "--no-fuse", "--json"))["kernels"]) == 2
    assert json.loads(run("check", model, "--no-fuse", "--json"))["ok"]
    output = model.with_suffix(".bn")
    assert json.loads(run("compile", model, "--no-fuse", "--json"))["kernel_calls"] == 2
    with pytest.raises(ParameterError, match=r"--no-fuse: .* is compiled already"):
        run("inspect", output, "--no-fuse")


def test_inspect_prints_the_graph(model: Path) -> None:
    text = run("inspect", model)
    assert "graph(x: float32[2, 3])" in text
    assert "arena " in text and "  by matmul(tile=" in text
    assert "{" not in text.split("arena ")[1], "what Python prints of a dictionary"


def test_bench_compares_times_and_answers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SETTLE_SECONDS", 0.0)
    report = json.loads(run("bench", model, "--vs", "onnxruntime,openvino", "--seconds", 0.1, "--threads", 1, "--json"))
    assert [row["name"] for row in report["contenders"]] == ["burnish", "onnxruntime", "openvino"]
    assert all(row["median_ms"] > 0 for row in report["contenders"])
    assert all(row["error"] < 1e-6 and row["speedup"] > 0 for row in report["contenders"][1:])


def test_bench_without_peers_times_the_model_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SETTLE_SECONDS", 0.0)
    found = measuring.importlib.util.find_spec
    monkeypatch.setattr(
        measuring.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name)
    )
    with pytest.warns(
        UserWarning, match=r'onnxruntime, to time beside, is not installed: pip install "burnish\[bench\]"'
    ):
        report = json.loads(run("bench", model, "--seconds", 0.1, "--threads", 1, "--json"))
    assert [row["name"] for row in report["contenders"]] == ["burnish"]


def test_bench_takes_a_torch_network_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SETTLE_SECONDS", 0.0)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "burnish_test_network.py").write_text(
        "import numpy, torch\ndef build():\n    return torch.nn.Linear(4, 3), {'x': numpy.ones((2, 4), 'float32')}\n"
    )
    report = json.loads(run("bench", "burnish_test_network:build", "--vs", "torch", "--seconds", 0.1, "--json"))
    assert [row["name"] for row in report["contenders"]] == ["burnish", "torch"]
    assert report["contenders"][1]["error"] < 1e-6


@pytest.mark.parametrize("against", ["reference", "onnxruntime"])
def test_check_agrees(model: Path, against: str) -> None:
    report = json.loads(run("check", model, "--against", against, "--json"))
    assert report["ok"]
    assert all(row["error"] <= row["allowed"] == 1e-4 for row in report["kernels"])
    assert len(report["kernels"]) == 1


def test_check_is_stricter_when_exact(model: Path) -> None:
    report = json.loads(run("check", model, "--exact", "--json"))
    assert [row["allowed"] for row in report["kernels"]] == [1e-5]


def test_check_reports_a_wrong_kernel(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [KernelCheck("good", "p", "map", 1e-7, 1e-4), KernelCheck("bad", "q", "map", float("nan"), 1e-4)]
    monkeypatch.setattr(measuring, "check_kernels", lambda *args, **kwargs: rows)
    result = CliRunner().invoke(cli.app, ["check", str(model)])
    assert result.exit_code == 1
    assert result.stdout.index("bad") < result.stdout.index("nan") < result.stdout.index("good")
    assert "1 of 2 agree" in result.stdout


def test_inputs_come_from_a_file(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 3), np.float32))
    report = json.loads(run("check", model, "--inputs", tmp_path / "inputs.npz", "--json"))
    assert report["ok"]


def test_inputs_without_a_needed_array_are_refused(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", z=np.ones(3))
    with pytest.raises(InputError, match=r"no array 'x'; found \['z'\], needed \['x'\]"):
        run("check", model, "--inputs", tmp_path / "inputs.npz")


def test_pickled_inputs_are_refused(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"inputs\.npz"):
        run("check", model, "--inputs", tmp_path / "inputs.npz")


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (["compile", "no-such-file.onnx"], "no-such-file.onnx", 2),
        (["compile", __file__, "--force", "-o", os.devnull], "not a regular file", 2),
        (["inspect", __file__], "test_cli.py", 2),
        (["bench", "no_such_module:build"], "no_such_module", 2),
        (["--foo"], "No such option: --foo (see burnish --help)", 2),
        (["compile", "--foo"], "(see burnish compile --help)", 2),
        (["compile"], "Missing argument 'model' (see burnish compile --help)", 2),
        (["compile", __file__, "--threads", "0"], "Invalid value for '--threads'", 2),
        (["frobnicate"], "No such command 'frobnicate'", 2),
        (["check", __file__, "--against", "torch"], "--against torch: allowed are reference and onnxruntime", 2),
        (["bench", __file__, "--vs", "torchy"], "--vs torchy: unknown; allowed: onnxruntime, openvino, torch", 2),
        (["bench", __file__, "--onnx", __file__], "allowed with a .bn file", 2),
    ],
)
def test_errors_are_one_line_with_an_exit_status(
    arguments: list[str],
    message: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["burnish", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == status
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("burnish: ")
    assert message in line


def test_the_peers_that_help_names_are_those_there_are() -> None:
    assert models.PEERS == peers.NAMES

"""Files that a command is given are checked before it works, and nothing that is not its own is replaced."""

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

import burnish as bn
from burnish import cli
from burnish.cli import output, tuning
from burnish.errors import ParameterError, RecordError
from burnish.tune.records import RecordFile


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x), of an open first extent."""
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("N", 4)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout


def test_outputs_are_checked(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "ours.bn").write_bytes(b"BURNISH\nrest")
    mine = tmp_path / "notes.txt"
    output.check_output(tmp_path / "new.bn")
    output.check_output(tmp_path / "ours.bn", is_ours=output.is_artifact)
    output.check_output(mine, is_ours=output.is_artifact, force=True)
    for path, options, message in (
        (tmp_path, {}, "is a folder"),
        (tmp_path / "no" / "m.bn", {}, "there is no folder"),
        (mine / "m.bn", {}, "there is no folder"),
        (Path(os.devnull), {}, "not a regular file"),
        (mine, {"inputs": [mine], "force": True}, "is what the command reads"),
        (mine, {"is_ours": output.is_artifact}, "--force replaces it"),
        (mine, {"is_ours": output.is_json}, "--force replaces it"),
    ):
        with pytest.raises(ParameterError, match=message):
            output.check_output(path, **options)  # type: ignore[arg-type]
    assert mine.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "ours.bn"]


@pytest.mark.parametrize(
    "command",
    [
        ["compile", "MODEL", "-o"],
        ["tune", "MODEL", "--records", "FOLDER/r.jsonl", "-o"],
        ["rewrite", "apply", "MODEL", "-o"],
        ["rewrite", "generate", "-o"],
        ["rewrite", "verify", "--proofs"],
        ["boost", "train", "MODEL", "-o"],
        ["records", "train", "MODEL", "-o"],
        ["tune", "MODEL", "--records"],
        ["records", "merge"],
    ],
)
def test_every_command_checks_its_output_before_it_works(tmp_path: Path, model: Path, command: list[str]) -> None:
    arguments = [a.replace("MODEL", str(model)).replace("FOLDER", str(tmp_path)) for a in command]
    after = [str(model)] if command[1] == "merge" else []
    with pytest.raises(ParameterError, match="there is no folder"):
        run(*arguments, tmp_path / "no" / "out.npy", *after)


def test_a_file_of_another_kind_is_no_file_of_records(model: Path) -> None:
    before = model.read_bytes()
    RecordFile(model)
    for arguments in (
        ["tune", model, "--records", model],
        ["records", "merge", model, model],
        ["records", "compact", model],
    ):
        with pytest.raises(ParameterError, match="is no file of tuning records; nothing is added to it"):
            run(*arguments)
    with pytest.raises(RecordError, match="is no file of tuning records"):
        run("compile", model, "--records", model)
    assert model.read_bytes() == before


def test_compile_tells_the_signature_and_takes_shapes(model: Path) -> None:
    with pytest.warns(UserWarning, match="--shape x=8,4"):
        text = run("compile", model, "--threads", 1)
    assert "input   x: float32[1, 4]  (the first extent, 'N', is open in the model and taken as 1)" in text
    report = json.loads(run("compile", model, "--shape", "x=3,4", "--threads", 1, "--no-rewrite", "--json"))
    assert report["version"] == output.VERSION
    assert report["burnish"] == bn.__version__
    assert report["inputs"] == [{"name": "x", "dtype": "float32", "shape": [3, 4]}]
    assert report["assumed"] == {}
    assert report["rewrites"] is None
    assert bn.load(model.with_suffix(".bn")).threads == 1


def test_a_compiled_file_is_benched_and_checked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.measure.peers.SETTLE_SECONDS", 0.0)
    run("compile", model, "--shape", "x=3,4", "--threads", 1)
    artifact = model.with_suffix(".bn")
    alone = json.loads(run("bench", artifact, "--seconds", 0.1, "--json"))
    assert [row["name"] for row in alone["contenders"]] == ["burnish"]
    both = json.loads(run("bench", artifact, "--onnx", model, "--seconds", 0.1, "--json"))
    assert [row["name"] for row in both["contenders"]] == ["burnish", "onnxruntime"]
    for against in ("reference", "onnxruntime"):
        assert json.loads(run("check", artifact, "--onnx", model, "--against", against, "--json"))["ok"]
    for arguments, message in (
        (["check", artifact], "pass --onnx"),
        (["bench", artifact, "--vs", "onnxruntime"], "pass --onnx"),
        (["bench", artifact, "--exact"], "is compiled already"),
        (["inspect", artifact, "--shape", "x=1,4"], "is compiled already"),
    ):
        with pytest.raises(ParameterError, match=message):
            run(*arguments)


@pytest.mark.slow
def test_tuned_and_compiled_models_have_names_of_their_own(model: Path, tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    text = run("tune", model, "--shape", "x=64,4", "--trials", 3, "--records", records, "--threads", 1)
    assert f"{model.with_suffix('.tuned.bn')}: " in text
    assert max(map(len, text.splitlines()[:4])) <= 80
    assert "relu y" in text
    assert not model.with_suffix(".bn").exists()


def test_names_of_kernels_keep_operators_and_the_end_of_the_output() -> None:
    assert tuning.shortened("conv2d+1 /layer1/b") == "conv2d+1 /layer1/b"
    short = tuning.shortened("conv2d+1 /layer1/layer1.0/relu/Relu_output_0")
    assert len(short) <= 24
    assert short.startswith("conv2d+1 …")
    assert short.endswith("Relu_output_0")
    assert len(tuning.shortened("winograd_polyphase_conv2d+2 /layer1/relu/Relu_output_0")) <= 24


def test_the_cache_is_shown_and_emptied(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    run("compile", model, "--shape", "x=5,4", "--cache-dir", folder)
    (folder / "mine.txt").write_text("mine")
    found = json.loads(run("cache", "info", "--cache-dir", folder, "--json"))
    assert found["entries"] >= 1
    assert found["bytes"] > 0
    assert f"{found['entries']} entries" in run("cache", "info", "--cache-dir", folder)
    assert json.loads(run("cache", "clear", "--cache-dir", folder, "--json"))["removed"] == found["entries"]
    assert [p.name for p in folder.iterdir()] == ["mine.txt"]
    assert run("cache", "path", "--cache-dir", folder) == f"{folder}\n"


def burnish(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "burnish", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def test_the_module_is_a_program() -> None:
    assert burnish("--version").stdout == f"burnish {bn.__version__}\n"
    assert "--json" in burnish("bench", "-h").stdout
    assert burnish().returncode == 2


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m burnish rewrite list | head -n 1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert found.stdout.count("\n") == 1
    assert not found.stderr

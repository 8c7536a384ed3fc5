"""What the command line says of a model's inputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import burnish as bn
from burnish.cli import app
from burnish.cli.sizes import parse_dims, parse_fixed, parse_shapes
from burnish.errors import ParameterError


@pytest.mark.parametrize("text", ["x", "x=1;2", "=3", "x=-1"])
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(ParameterError, match="allowed is NAME=EXTENTS"):
        parse_shapes([text])


def test_shapes() -> None:
    assert parse_shapes(["a=1,3, 224", "b:0=2x5", "c=d=7", "s="]) == {
        "a": (1, 3, 224), "b:0": (2, 5), "c=d": (7,), "s": (),
    }  # fmt: skip
    assert parse_shapes([]) is None
    assert parse_shapes(["x=n, 3,h1"]) == {"x": ("n", 3, "h1")}
    with pytest.raises(ParameterError, match="found twice"):
        parse_shapes(["a=1", "a=2"])


def test_dimensions() -> None:
    assert parse_dims([], None) is None
    assert parse_dims(["n=4", "m=1..32", "k=1..512:20"], {"x": ("n", 3)}) == {
        "x": ("n", 3), "n": 4, "m": (1, 32), "k": (1, 512, 1, 20),
    }  # fmt: skip
    for text in ("n", "n=", "n=a", "n=1..", "n=1...3", "=3", "n=-1"):
        with pytest.raises(ParameterError, match="--dim"):
            parse_dims([text], None)
    with pytest.raises(ParameterError, match="twice"):
        parse_dims(["n=1", "n=2"], None)


def test_fixed_inputs() -> None:
    assert parse_fixed([]) is None
    assert parse_fixed(["sr=16000", "a=1,2.5"]) == {"sr": 16000, "a": [1, 2.5]}
    for text in ("sr", "=1", "sr=", "sr=x"):
        with pytest.raises(ParameterError, match="--fix"):
            parse_fixed([text])
    with pytest.raises(ParameterError, match="twice"):
        parse_fixed(["a=1", "a=2"])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x [n, m] times s, reshaped to [n, -1, 2]."""
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["y"]),
        helper.make_node("Reshape", ["y", "shape"], ["z"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", ["n", "m"]), ("s", [1]))]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [0, -1, 2])
    graph = helper.make_graph(nodes, "g", inputs, outputs, [shape])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_model_is_compiled_for_open_and_fixed_inputs(model: Path) -> None:
    found = CliRunner().invoke(app, ["compile", str(model), "--dim", "n=1..8:4", "--dim", "m=6", "--fix", "s=2"])
    assert found.exit_code == 0, found.output
    module = bn.load(model.with_suffix(".bn"))
    for n in (1, 5):
        assert np.array_equal(module(np.ones((n, 6), np.float32)), np.full((n, 3, 2), 2))


def test_what_only_calls_can_say_is_compiled_there(model: Path) -> None:
    with pytest.warns(UserWarning, match="open dimensions"):
        found = CliRunner().invoke(app, ["compile", str(model)])
    assert found.exit_code == 0 and "compiled at its calls" in found.output
    module = bn.load(model.with_suffix(".bn"))
    assert np.array_equal(module(np.ones((2, 6), np.float32), np.ones(1, np.float32)), np.ones((2, 3, 2)))
    with pytest.warns(UserWarning, match="open dimensions"):
        found = CliRunner().invoke(app, ["inspect", str(model)])
    assert found.exit_code != 0 and "compiled at its calls" in str(found.exception)

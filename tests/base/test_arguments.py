"""Arguments are refused before any work, by name, with what was found and what is allowed; assumptions are told."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import burnish as bn
from burnish.errors import BurnishError, InputError, ModelError, ParameterError, RecordError, TargetError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import host
from burnish.tune.choices import usable_records


def relu(first: int | str = "N", name: str = "x") -> onnx.ModelProto:
    value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (first, 4))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (first, 4))
    graph = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "g", [value], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def graph() -> Graph:
    b = GraphBuilder()
    return b.build(b.add("relu", b.input("x", (2, 4))))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"target": "cpu,-foo"}, TargetError, "no feature begins with 'foo'"),
        ({"target": None}, TargetError, "target: found None"),
        ({"threads": 1000}, ParameterError, r"threads: found 1000; allowed: an integer from 1 to \d+"),
        ({"threads": 0}, ParameterError, "threads: found 0"),
        ({"threads": -1}, ParameterError, "threads: found -1"),
        ({"threads": "2"}, ParameterError, "threads: found '2'"),
        ({"threads": True}, ParameterError, "threads: found True"),
        ({"threads": 1.5}, ParameterError, "threads: found 1.5"),
        ({"exact": "yes"}, ParameterError, "exact: found 'yes'; allowed: True or False"),
        ({"rewrite": "x"}, ParameterError, "rewrite: found 'x'; allowed: True, False or a burnish.RewriteObjective"),
        ({"tune": 120}, ParameterError, r"tune: found 120; allowed: burnish.Tune\(seconds=120\)"),
        ({"tune": True}, ParameterError, r"tune: found True; allowed: burnish.Tune\(seconds=120\)"),
        ({"shapes": [(1, 4)]}, ParameterError, "shapes: found"),
        ({"shapes": {"x": "14"}}, ParameterError, r"shapes\['x'\]: found '14'; allowed: integers from 0"),
        ({"shapes": {"x": (1.0, 4)}}, ParameterError, r"shapes\['x'\]: found \(1.0, 4\)"),
        ({"shapes": {"x": (-1, 4)}}, ParameterError, r"shapes\['x'\]: found \(-1, 4\)"),
        ({"shapes": {"z": (1, 4)}}, ModelError, r"shapes: found names \['z'\] of no model input; allowed: x"),
        ({"cache_dir": __file__}, ParameterError, "cache_dir: '.*test_arguments.py' is a file; allowed: a folder"),
        ({"cache_dir": 3}, ParameterError, "cache_dir: found 3; allowed: a path"),
        ({"progress": "bar"}, ParameterError, "progress: found 'bar'; allowed: a function"),
        ({"records": "no-such.jsonl"}, RecordError, "records: no file 'no-such.jsonl'"),
        ({"records": "."}, ParameterError, "records: '.' is a folder"),
        ({"records": __file__}, RecordError, "test_arguments.py' is no file of tuning records"),
    ],
)
def test_compile_refuses(arguments: dict[str, Any], error: type[BurnishError], message: str) -> None:
    with pytest.raises(error, match=message):
        bn.compile(relu(1), **arguments)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "model: found a builtins.NoneType; allowed: the path or the bytes of an ONNX file"),
        (3, "model: found a builtins.int"),
        (np.zeros(3), "model: found a numpy.ndarray"),
        ("net.pt", "'net.pt'; allowed: an ONNX file; compile the network itself, with example"),
        ("net.BN", "it is compiled already: burnish.load"),
        (Path("model.h5"), "convert it to ONNX first"),
        (".", "is a folder"),
        ("", "is a folder"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        bn.compile(model)


def test_a_graph_has_its_shapes() -> None:
    with pytest.raises(ParameterError, match="allowed: None for a Graph"):
        bn.compile(graph(), shapes={"x": (3, 4)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seconds": -1}, "Tune: seconds: found -1; allowed: a number more than 0"),
        ({"seconds": 0}, "Tune: seconds: found 0"),
        ({"seconds": float("nan")}, "Tune: seconds: found nan"),
        ({"seconds": "60"}, "Tune: seconds: found '60'"),
        ({"trials": 0}, "Tune: trials: found 0; allowed: an integer from 1"),
        ({"trials": 1.5}, "Tune: trials: found 1.5"),
        ({"min_gain": 2}, "Tune: min_gain: found 2; allowed: a number from 0 to 1"),
        ({"strategy": "luck"}, "strategy: found 'luck'; allowed: burnish, autotvm"),
        ({"seed": -1}, "Tune: seed: found -1"),
        ({"cold": "yes"}, "Tune: cold: found 'yes'"),
    ],
)
def test_tune_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        bn.Tune(**settings)


def test_an_open_first_extent_is_any(tmp_path: Path) -> None:
    """Code for 1 is there; other sizes are compiled when they come, and told of once; from the second on, for all."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        module = bn.compile(relu(), threads=1)
        assert module(-np.ones((1, 4), np.float32)).tolist() == [[0] * 4]
    with pytest.warns(UserWarning, match=r"'x' \[N, 4\] is open and taken as 1; .*; until then it is comp") as caught:
        for rows in (3, 2, 7, 9, 1, 0, 3):
            x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
            assert np.array_equal(module(x), np.maximum(x, 0))
    assert len(caught) == 1
    out = np.zeros((5, 4), np.float32)
    module.run_into([np.ones((5, 4), np.float32)], [out])
    assert out.all() and module.profile(np.ones((3, 4), np.float32), repeat=1)
    for wrong in (np.zeros((3, 5), np.float32), np.zeros((3, 4)), np.zeros(3, np.float32)):
        with pytest.raises(InputError, match=r"allowed: (x: )?float32\[(1|3|N), 4\]$"):
            module(wrong)
    with pytest.warns(UserWarning, match=r"m.bn holds code for one size: .*'x' \[N, 4\] is open and taken as 1"):
        module.save(tmp_path / "m.bn")
    loaded = bn.load(tmp_path / "m.bn")
    assert loaded.assumed == module.assumed == {"x": "N"}
    with pytest.raises(InputError, match=r"'N'\) is open .* compile with shapes=\{'x': \(3, 4\)\}"):
        loaded(np.zeros((3, 4), np.float32))


def test_other_sizes_that_the_model_does_not_take_are_named() -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", ("N", 4)), ("y", (2, 2)))]
    shape = onnx.numpy_helper.from_array(np.array([2, 2]), "s")
    made = helper.make_graph(nodes, "g", values[:1], values[1:], [shape])
    module = bn.compile(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), threads=1)
    assert module(np.ones((1, 4), np.float32)).shape == (2, 2)
    with pytest.warns(UserWarning), pytest.raises(InputError, match=r"\{'x': \[3, 4\]\} are of sizes .* 'y' \(Reshape"):
        module(np.ones((3, 4), np.float32))


def test_other_sizes_of_a_file_that_changed_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(relu().SerializeToString())
    module = bn.compile(tmp_path / "m.onnx", threads=1)
    (tmp_path / "m.onnx").unlink()
    assert module(np.ones((1, 4), np.float32)).shape == (1, 4)
    with pytest.warns(UserWarning), pytest.raises(InputError, match=r"m.onnx' gone or changed"):
        module(np.ones((2, 4), np.float32))


@pytest.mark.parametrize("shapes", [{"x": (3, 4)}, {"x": [1, 4]}])
def test_a_given_extent_is_not_warned_of(shapes: dict[str, tuple[int, ...]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        module = bn.compile(relu(), shapes=shapes, threads=1)
    assert module.inputs[0].shape == tuple(shapes["x"])
    assert not module.assumed


def test_threads_are_kept_in_the_artifact(tmp_path: Path) -> None:
    bn.compile(relu(2), threads=1).save(tmp_path / "m.bn")
    assert bn.load(tmp_path / "m.bn").threads == 1
    assert bn.load(tmp_path / "m.bn", threads=2).threads == 2


def test_records_without_a_winner_for_this_machine_are_told(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("")
    with pytest.warns(UserWarning, match="holds no winner for .*, 2 threads, weights hot.* it holds no winner at all"):
        usable_records(path, host(), 2, False)

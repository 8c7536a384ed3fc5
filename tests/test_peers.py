"""Peers run one model alike; timings alternate."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from burnish.errors import InputError
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error


def affine_model() -> bytes:
    """y = relu(x @ w), 2×3 times 3×2."""
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, (3, 2), [1, -2, 3, 4, -5, 6])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 2))
    graph = helper.make_graph(nodes, "affine", [x], [y], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = proto.SerializeToString()
    return serialized


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("from_file", [False, True])
def test_peer_runs_a_model(name: str, from_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(affine_model())
    run = peers.prepare(name, path if from_file else affine_model(), threads=1)
    x = np.array([[1, 2, 3], [-1, 0, 1]], np.float32)
    (y,) = run({"x": x})
    np.testing.assert_array_equal(y, np.maximum(x @ np.array([[1, -2], [3, 4], [-5, 6]], np.float32), 0))


def test_torch_runs_a_module_and_exports_it(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3)
    inputs = {"x": np.ones((2, 4), np.float32)}
    expected = peers.torch_eager(module, threads=1)(inputs)
    peers.export_onnx(module, inputs, tmp_path / "linear.onnx")
    found = peers.prepare("onnxruntime", tmp_path / "linear.onnx", threads=1)(inputs)
    assert scaled_error(found, expected) < 1e-6


@pytest.mark.parametrize(("name", "message"), [("torch", "MODULE:FUNCTION"), ("tvm", "unknown peer 'tvm'; allowed: ")])
def test_peer_that_cannot_run_the_file_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        peers.prepare(name, affine_model(), threads=1)


def test_alternate_times_every_contender_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SETTLE_SECONDS", 0.0)
    calls: list[str] = []
    timings = peers.alternate(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0, rounds=4, warm_up=1
    )
    assert "".join(calls) == "aaaabbbb" + "bbbbaaaa" + "aaaabbbb" + "bbbbaaaa"
    assert [(len(timings[name].rounds), timings[name].calls) for name in "ab"] == [(4, 12), (4, 12)]


def timing(*rounds: float) -> peers.ContenderTimes:
    return peers.ContenderTimes(rounds, median=min(rounds), p10=min(rounds), p90=max(rounds), calls=len(rounds))


def test_speedup_is_the_median_of_paired_ratios() -> None:
    assert peers.speedup(timing(1.0, 2.0, 2.5), timing(2.0, 6.0, 2.5)) == 2.0


def test_speedup_leaves_out_disturbed_rounds() -> None:
    assert peers.speedup(timing(1.0, 1.0, 1.0, 1.0), timing(40.0, 6.0, 40.0, 40.0)) == 6.0
    assert peers.speedup(timing(9.0, 1.0, 1.0), timing(4.0, 2.0, 40.0)) == 2.0


def test_speedup_counts_all_rounds_if_each_is_disturbed() -> None:
    assert peers.speedup(timing(1.0, 4.0), timing(8.0, 2.0)) == 4.25

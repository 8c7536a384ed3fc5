"""Opaque operators in the middle of compiled models: as native kernels, and as steps in Python."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import burnish as bn
from burnish.driver.check import check
from burnish.errors import ArtifactError, ModelError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.ops.sort import sort
from burnish.runtime.executable import Host
from burnish.runtime.module import Module


def top_k_model(shape: tuple[int, ...], k: int, **attrs: int) -> bytes:
    """relu(x * w) -> TopK -> values + 1, indices."""
    weights = np.linspace(0.5, 1.5, shape[-1], dtype=np.float32)
    axis = attrs.get("axis", -1)
    result = [*shape]
    result[axis] = k
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["scaled"]),
        helper.make_node("Relu", ["scaled"], ["positive"]),
        helper.make_node("TopK", ["positive", "k"], ["values", "indices"], "best", **attrs),
        helper.make_node("Add", ["values", "one"], ["y"]),
    ]
    constants = {"w": weights, "k": np.array([k], np.int64), "one": np.ones((1,), np.float32)}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, result),
         helper.make_tensor_value_info("indices", onnx.TensorProto.INT64, result)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator has a native kernel: all are steps in Python."""
    monkeypatch.setattr("burnish.pipeline.native.build", lambda *_: None)


def block_with_sort(rows: int = 8) -> Graph:
    """x @ w -> sort along rows -> exp: kernels on both sides of an opaque operator."""
    b = GraphBuilder()
    x = b.input("x", (rows, 16))
    w = b.constant(np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32), "w")
    values, order = b.add_many("sort", b.add("matmul", x, w), axis=-1, descending=True, node="order")
    return b.build(b.add("exp", b.add("tanh", values), name="y"), order)


@pytest.mark.parametrize(("axis", "largest", "sorted_"), list(product((-1, 0, 1), (0, 1), (0, 1))))
def test_top_k_is_onnxruntime_s(axis: int, largest: int, sorted_: int) -> None:
    model = top_k_model((6, 9), 4, axis=axis, largest=largest, sorted=sorted_)
    x = np.random.default_rng(axis + 5).normal(size=(6, 9)).astype(np.float32)
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    found = list(bn.compile(model)(x))
    if not sorted_:  # any order is right: compare what is chosen, in order of position
        at = np.argsort(expected[1], axis)
        expected = [np.take_along_axis(each, at, axis) for each in expected]
        at = np.argsort(found[1], axis)
        found = [np.take_along_axis(each, at, axis) for each in found]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])


def test_equal_values_are_taken_in_order_of_position() -> None:
    x = np.array([[1, 3, 3, 2, 3], [0, 0, 0, 0, 0]], np.float32)
    for largest, wanted in ((True, [[1, 2, 4], [0, 1, 2]]), (False, [[0, 3, 1], [0, 1, 2]])):
        b = GraphBuilder()
        _, order = b.add_many("top_k", b.input("x", x.shape), k=3, largest=largest)
        assert np.array_equal(bn.compile(b.build(order))(x), wanted)


def test_a_top_k_of_more_than_there_is_is_refused() -> None:
    with pytest.raises(ModelError, match="top_k 'y': attribute 'k': found 10; allowed: 0 to 9, the extent of axis -1"):
        bn.compile(top_k_model((6, 9), 10))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
def test_sort_by_every_kind_of_number(dtype: str) -> None:
    rng = np.random.default_rng(3)
    b = GraphBuilder()
    x = b.input("x", (5, 7, 3), dtype)
    module = bn.compile(b.build(*b.add_many("sort", x, axis=1, descending=True)))
    value = rng.integers(0, 2 if dtype == "bool" else 100, (5, 7, 3)).astype(module.executable.inputs[0].dtype)
    values, order = module(value)
    assert np.array_equal(values, np.take_along_axis(value, order, 1))
    assert np.array_equal(values.astype(float), -np.sort(-value.astype(float), 1))


@pytest.mark.usefixtures("in_python")
def test_check_and_profile_name_the_operator() -> None:
    graph = block_with_sort()
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    rows = check(graph, {"x": x})
    assert all(row.ok for row in rows) and [row.kernel for row in rows if row.template == "extern"] == ["sort (host)"]
    profile = bn.compile(graph).profile(x, repeat=3)
    assert [(row.kernel, row.node) for row in profile if "host" in row.kernel] == [("sort (host)", "order")]
    assert all(row.microseconds > 0 for row in profile) and len(profile) == len(rows)


@pytest.mark.usefixtures("in_python")
def test_check_finds_an_operator_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = block_with_sort()
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    monkeypatch.setattr(
        "burnish.runtime.runner.call_extern", lambda step, run, arrays: [a.fill(0) for a in arrays[-2:]]
    )
    assert [row.kernel for row in check(graph, {"x": x}) if not row.ok] == ["sort (host)"]


@pytest.mark.usefixtures("in_python")
def test_an_artifact_with_an_opaque_operator_holds_its_name_alone(tmp_path) -> None:
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    module = bn.compile(block_with_sort())
    module.save(tmp_path / "m.bn")
    again = bn.load(tmp_path / "m.bn")
    assert all(np.array_equal(a, b) for a, b in zip(module(x), again(x), strict=True))
    steps = [replace(s, operator="mine") if isinstance(s, Host) else s for s in module.executable.steps]
    executable = replace(module.executable, steps=tuple(steps))
    Module(executable, externs={"mine": sort}).save(tmp_path / "own.bn")
    with pytest.raises(ArtifactError, match="node 'order' calls the opaque operator 'mine', which is not one of"):
        bn.load(tmp_path / "own.bn")
    assert np.array_equal(bn.load(tmp_path / "own.bn", externs={"mine": sort})(x)[1], module(x)[1])


@pytest.mark.usefixtures("in_python")
def test_an_opaque_operator_with_other_types_than_the_file_says_is_refused() -> None:
    module = bn.compile(block_with_sort())
    steps = [replace(s, attrs={"axis": 5}) if isinstance(s, Host) else s for s in module.executable.steps]
    with pytest.raises(ArtifactError, match="node 'order': sort 'y': attribute 'axis': found 5"):
        Module(replace(module.executable, steps=tuple(steps)))


@pytest.mark.usefixtures("in_python")
def test_an_opaque_operator_of_any_number_of_rows() -> None:
    module = bn.compile(block_with_sort(dim("rows", 1, 64)))
    weights = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
    for rows in (1, 7, 64, 7):
        x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
        y, order = module(x)
        np.testing.assert_allclose(y, np.exp(np.tanh(-np.sort(-(x @ weights)))), rtol=1e-4)
        assert order.shape == (rows, 24)


def test_an_image_in_blocks_is_row_major_for_an_opaque_operator() -> None:
    rng = np.random.default_rng(2)
    b = GraphBuilder()
    x = b.input("x", (1, 32, 12, 12))
    first, second = (b.constant(rng.normal(size=(32, 32, 3, 3)).astype(np.float32) / 9) for _ in range(2))
    values, _ = b.add_many("sort", b.add("conv2d", x, first, pads=(1, 1, 1, 1)), axis=1)
    graph = b.build(b.add("conv2d", values, second, pads=(1, 1, 1, 1), name="y"))
    assert all(row.ok for row in check(graph, {"x": rng.normal(size=(1, 32, 12, 12)).astype(np.float32)}))


def test_a_sort_of_constants_is_computed_while_compiling() -> None:
    b = GraphBuilder()
    c = b.constant(np.array([3, 1, 2], np.float32))
    module = bn.compile(b.build(b.add("add", b.input("x", (3,)), b.add_many("sort", c)[0])))
    assert not any(isinstance(step, Host) for step in module.executable.steps)
    assert np.array_equal(module(np.zeros(3, np.float32)), [1, 2, 3])


@pytest.mark.usefixtures("in_python")
def test_errors_of_an_opaque_operator_leave_the_module_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = bn.compile(block_with_sort())
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    expected = module(x)
    with monkeypatch.context() as patch:
        patch.setattr("burnish.runtime.runner.call_extern", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            module(x)
    assert np.array_equal(module(x)[0], expected[0])

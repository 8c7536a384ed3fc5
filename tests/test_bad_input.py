"""What users get wrong, end to end: one clear error that names what and where, or the right answer; never a crash."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import burnish as bn
from burnish import cli
from burnish.errors import ArtifactError, BurnishError, InputError, ModelError, UnsupportedOperator
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error
from burnish.runtime import artifact

FLOAT = onnx.TensorProto.FLOAT
RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.standard_normal((3, 2)).astype(np.float32)


def two_input_model(operator: str = "Relu") -> onnx.ModelProto:
    """y = relu(a @ w + b), a 4×3, b 4×2."""
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["q"], name="sum"),
        helper.make_node(operator, ["q"], ["y"], name="last"),
    ]
    inputs = [helper.make_tensor_value_info(n, FLOAT, s) for n, s in (("a", (4, 3)), ("b", (4, 2)))]
    output = helper.make_tensor_value_info("y", FLOAT, (4, 2))
    weight = helper.make_tensor("w", FLOAT, WEIGHT.shape, WEIGHT.tobytes(), raw=True)
    graph = helper.make_graph(nodes, "g", inputs, [output], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


A = RANDOM.standard_normal((4, 3)).astype(np.float32)
B = RANDOM.standard_normal((4, 2)).astype(np.float32)
EXPECTED = np.maximum(A @ WEIGHT + B, 0)


@pytest.fixture(scope="module")
def module() -> bn.Module:
    return bn.compile(two_input_model(), threads=1)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_model_file_cut_anywhere_is_refused() -> None:
    data = two_input_model().SerializeToString()
    for size in range(len(data)):
        with pytest.raises(ModelError):
            bn.compile(data[:size])


def test_a_model_file_with_altered_bytes_compiles_or_is_refused() -> None:
    choose = random.Random(0)
    data = two_input_model().SerializeToString()
    refused = 0
    for _ in range(60):
        altered = bytearray(data)
        for _ in range(3):
            altered[choose.randrange(len(data))] = choose.randrange(256)
        try:
            bn.compile(bytes(altered), threads=1)
        except BurnishError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("content", [b"", b"hello, world\n" * 100, b"\x89PNG\r\n\x1a\n" + bytes(500)])
def test_a_file_that_is_no_model_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "picture.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"picture\.onnx"):
        bn.compile(path)


def test_an_unsupported_operator_names_the_node() -> None:
    with pytest.raises(UnsupportedOperator, match=r"Unheard \(last\)"):
        bn.compile(two_input_model("Unheard"))


def test_the_command_line_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.onnx"
    onnx.save(two_input_model("Unheard"), path)
    monkeypatch.setattr(sys, "argv", ["burnish", "check", str(path)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("burnish: ")
    assert "Unheard (last)" in line


def test_a_damaged_artifact_is_refused(module: bn.Module, tmp_path: Path) -> None:
    path = tmp_path / "model.bn"
    module.save(path)
    data = path.read_bytes()
    for position in range(0, len(data), len(data) // 40):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        with pytest.raises(ArtifactError):
            bn.load(path)
    for size in (0, 1, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(ArtifactError):
            bn.load(path)


def test_an_artifact_for_another_machine_is_refused(module: bn.Module, tmp_path: Path) -> None:
    executable = module.executable
    machine = executable.target.partition("-")[0]
    other = "aarch64" if machine == "x86_64" else "x86_64"
    images = {part: replace(getattr(executable, part), machine=other) for part in ("driver", "code")}
    foreign = replace(executable, target=executable.target.replace(machine, other, 1), **images)
    artifact.save(foreign, tmp_path / "model.bn")
    with pytest.raises(ArtifactError, match=other):
        bn.load(tmp_path / "model.bn")


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": A}, r"b: float32\[4, 2\] is missing"),
        ({"a": A, "b": B, "c": B}, "input 'c' is unknown"),
        ({"a": A.T, "b": B}, r"input 'a' is float32\[3, 4\], allowed: float32\[4, 3\]"),
        ({"a": A[:3], "b": B}, r"input 'a' is float32\[3, 3\], allowed: float32\[4, 3\]"),
        ({"a": A, "b": B.astype(np.float64)}, r"input 'b' is float64\[4, 2\], allowed: float32\[4, 2\]"),
        ({"a": A, "b": B.astype(np.int32)}, r"input 'b' is int32"),
        ({"a": A.tolist(), "b": B}, "input 'a' is a list"),
        ({"a": None, "b": B}, "input 'a' is a NoneType"),
    ],
)
def test_wrong_arguments_are_refused(module: bn.Module, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        module(**arguments)


def test_a_wrong_number_of_arguments_is_refused(module: bn.Module) -> None:
    with pytest.raises(InputError, match="3 inputs given, the model has 2"):
        module(A, B, B)


@pytest.mark.parametrize(
    "twisted",
    [
        np.asfortranarray(A),
        np.repeat(A, 2, axis=1)[:, ::2],
        A[::-1].copy()[::-1],
        np.frombuffer(b"\0" + A.tobytes(), np.uint8)[1:].view(np.float32).reshape(A.shape),
    ],
    ids=["fortran", "strided", "reversed", "unaligned"],
)
def test_arrays_of_any_strides_and_alignment_give_the_right_answer(module: bn.Module, twisted: np.ndarray) -> None:
    np.testing.assert_array_equal(twisted, A)
    np.testing.assert_allclose(module(twisted, B), EXPECTED, rtol=1e-6, atol=1e-6)


# --- numbers that are none --------------------------------------------------------------------------------------------


def build(define: Callable[[GraphBuilder], str | tuple[str, ...]]) -> Graph:
    builder = GraphBuilder()
    outputs = define(builder)
    return builder.build(*([outputs] if isinstance(outputs, str) else outputs))


def with_input(op: str, shape: tuple[int, ...], *constants: np.ndarray, **attrs: object) -> Graph:
    """One operator on one input."""
    return build(lambda b: b.add(op, b.input("x", shape), *(b.constant(c) for c in constants), **attrs))  # type: ignore[arg-type]


def clip_of_convolution(b: GraphBuilder) -> str:
    kernel = b.constant(RANDOM.standard_normal((32, 32, 3, 3)).astype(np.float32))
    return b.add("clip", b.add("conv2d", b.input("x", (1, 32, 9, 9)), kernel), min=0.0, max=6.0)


ROWS, IMAGES = (6, 40), (2, 32, 9, 9)
POOL = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
NAN_GRAPHS = {
    "relu": with_input("relu", ROWS),
    "gelu": with_input("gelu", ROWS),
    "exp": with_input("exp", ROWS),
    "maximum": with_input("maximum", ROWS, np.zeros(ROWS, np.float32)),
    "minimum": with_input("minimum", ROWS, np.zeros(ROWS, np.float32)),
    "max_pool": with_input("max_pool2d", IMAGES, **POOL),
    "avg_pool": with_input("avg_pool2d", IMAGES, **POOL),
    "reduce_max": with_input("reduce_max", ROWS, axes=(1,)),
    "reduce_min": with_input("reduce_min", ROWS, axes=(0,)),
    "reduce_sum": with_input("reduce_sum", ROWS, axes=(1,)),
    "softmax": with_input("softmax", ROWS, axis=1),
    "layer_norm": with_input("layer_norm", ROWS, np.ones(40, np.float32), np.ones(40, np.float32)),
    "matmul": with_input("matmul", ROWS, RANDOM.standard_normal((40, 33)).astype(np.float32)),
    "convolution": build(clip_of_convolution),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", NAN_GRAPHS)
def test_nan_and_infinity_arrive_where_the_reference_has_them(name: str, value: float) -> None:
    graph = NAN_GRAPHS[name]
    x = RANDOM.standard_normal(graph.types["x"].shape).astype(np.float32)
    x.reshape(-1)[[3, x.size // 2]] = value
    module = bn.compile(graph, threads=1, exact=True)
    expected = evaluate(graph, {"x": x}, "float64")[graph.outputs[0]]
    assert np.isnan(expected).any() or not math.isnan(value)
    assert scaled_error([module(x)], [expected]) < 1e-5


@pytest.mark.parametrize("operator", ["Relu", "AveragePool", "Softmax", "Sigmoid", "Tanh", "LeakyRelu", "Sign"])
def test_nan_and_infinity_come_out_as_in_onnxruntime(operator: str) -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [1, 1]} if operator == "AveragePool" else {}
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    inputs = [helper.make_tensor_value_info("x", FLOAT, (1, 4, 8, 8))]
    outputs = [helper.make_tensor_value_info("y", FLOAT, (None,) * 4)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = RANDOM.standard_normal((1, 4, 8, 8)).astype(np.float32)
    x[0, 1, 3, 2], x[0, 2, 0, 0], x[0, 3, 7, 7] = np.nan, np.inf, -np.inf
    (expected,) = peers.prepare("onnxruntime", proto.SerializeToString(), threads=1)({"x": x})
    assert np.isnan(expected).any()
    np.testing.assert_allclose(bn.compile(proto, threads=1)(x), expected, rtol=1e-5, atol=1e-6)


def test_the_maximum_of_nan_is_nan_as_in_numpy() -> None:  # onnxruntime's pooling and reduction skip NaN
    x = np.array([[[[1.0, np.nan, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]]], np.float32)
    pooled = bn.compile(with_input("max_pool2d", x.shape, kernel=(2, 2), strides=(2, 2)), threads=1)(x)
    np.testing.assert_array_equal(pooled, np.array([[[[np.nan, 8.0]]]], np.float32))
    reduced = bn.compile(with_input("reduce_max", x.shape, axes=(2,)), threads=1)(x)
    np.testing.assert_array_equal(reduced, x.max(axis=2, keepdims=True))


# --- extents of zero --------------------------------------------------------------------------------------------------


def empty_batch(b: GraphBuilder) -> str:
    kernel = b.constant(np.ones((32, 16, 3, 3), np.float32))
    x = b.add("max_pool2d", b.add("relu", b.add("conv2d", b.input("x", (0, 16, 9, 9)), kernel)), **POOL)
    return b.add("matmul", b.add("reshape", x, shape=(0, 512)), b.constant(np.ones((512, 10), np.float32)))


def empty_concat(b: GraphBuilder) -> str:
    return b.add("concat", b.input("x", (3, 0)), b.input("z", (3, 2)), axis=1)


ZERO_GRAPHS = {
    "batch": build(empty_batch),
    "concat": build(empty_concat),
    "sum": with_input("reduce_sum", (3, 0), axes=(1,)),
    "max": with_input("reduce_max", (3, 0), axes=(1,)),
    "mean": with_input("reduce_mean", (3, 0), axes=(1,)),
    "softmax": with_input("softmax", (3, 0), axis=1),
    "matmul": with_input("matmul", (3, 0), np.ones((0, 5), np.float32)),
    "gather": with_input("gather", (3, 4), np.zeros(0, np.int64)),
    "slice": with_input("slice", (3, 4), starts=(3, 0), extents=(0, 4), steps=(1, 1)),
}


@pytest.mark.parametrize("name", ZERO_GRAPHS)
def test_extents_of_zero_give_the_right_answer(name: str) -> None:
    graph = ZERO_GRAPHS[name]
    feeds = {n: np.ones(graph.types[n].shape, np.float32) for n in graph.inputs}
    expected = evaluate(graph, feeds)[graph.outputs[0]]
    np.testing.assert_array_equal(bn.compile(graph, threads=1)(**feeds), expected)


# --- outputs that nothing computes ------------------------------------------------------------------------------------


def relu_and_views(b: GraphBuilder) -> tuple[str, ...]:
    y = b.add("relu", b.input("x", (3, 4)), name="y")
    return y, b.add("reshape", y, shape=(2, 6)), b.add("reshape", "x", shape=(12,))


OUTPUT_GRAPHS = {
    "an input": build(lambda b: b.input("x", (3, 4))),
    "an input and what is computed from it": build(lambda b: ("x", b.add("relu", b.input("x", (3, 4))))),
    "a copy of an input": build(lambda b: b.add("identity", b.input("x", (3, 4)))),
    "a constant": build(lambda b: (b.input("x", (3, 4)), b.constant(np.arange(5.0)))),
    "a constant number": build(lambda b: (b.constant(np.float32(3.0)), b.add("relu", b.input("x", (3, 4))))),
    "a computed constant": build(lambda b: b.add("neg", b.constant(np.arange(5.0)))),
    "one value twice": build(lambda b: (b.add("relu", b.input("x", (3, 4)), name="y"), "y")),
    "one constant twice": build(lambda b: (b.constant(np.arange(5.0), "c"), "c")),
    "views": build(relu_and_views),
    "what does not need all inputs": build(lambda b: (b.input("u", (5,)), b.add("relu", b.input("x", (3, 4))))[1]),
    "a scalar": build(lambda b: b.add("relu", b.input("x", ()))),
}


@pytest.mark.parametrize("name", OUTPUT_GRAPHS)
def test_outputs_may_be(name: str) -> None:
    graph = OUTPUT_GRAPHS[name]
    feeds = {n: np.asarray(RANDOM.standard_normal(graph.types[n].shape), np.float32) for n in graph.inputs}
    found = bn.compile(graph, threads=1)(**feeds)
    found = found if isinstance(found, tuple) else (found,)
    expected = evaluate(graph, feeds)
    for name, array in zip(graph.outputs, found, strict=True):
        np.testing.assert_array_equal(array, expected[name])
    for i, array in enumerate(found):
        assert not any(np.may_share_memory(array, other) for other in [*feeds.values(), *found[:i]])

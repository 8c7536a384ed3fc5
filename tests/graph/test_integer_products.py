"""Products of dequantized numbers as products of bytes: right within the definition's rounding, and found."""

from __future__ import annotations

import logging

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import burnish as bn
from burnish.frontend.onnx.model import from_onnx
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph
from burnish.graph.passes import optimize
from burnish.machines.target import host, target

WORDS = target("cascadelake")  # multiplies bytes, whatever the host does
FLOATS = target("x86-64-v3")
Arrays = dict[str, np.ndarray]


class Model:
    """An ONNX model in QDQ form under construction."""

    def __init__(self) -> None:
        self.nodes: list[object] = []
        self.constants: Arrays = {}
        self.count = 0

    def add(self, op: str, *inputs: str | np.ndarray, **attrs: object) -> str:
        names = []
        for value in inputs:
            name = value if isinstance(value, str) else f"c{len(self.constants)}"
            if not isinstance(value, str):
                self.constants[name] = value
            names.append(name)
        self.count += 1
        self.nodes.append(helper.make_node(op, names, [f"t{self.count}"], **attrs))
        return f"t{self.count}"

    def through(self, x: str, scale: float, zero: int, dtype: str) -> str:
        """Quantized and dequantized."""
        parameters = np.float32(scale), np.array(zero, dtype)
        return self.add("DequantizeLinear", self.quantized(x, scale, zero, dtype), *map(np.asarray, parameters))

    def quantized(self, x: str, scale: float, zero: int, dtype: str) -> str:
        return self.add("QuantizeLinear", x, np.asarray(np.float32(scale)), np.array(zero, dtype))

    def built(self, shape: tuple[int, ...], *outputs: str) -> ModelProto:
        graph = helper.make_graph(
            self.nodes, "qdq", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(v, k) for k, v in self.constants.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def ops(graph: Graph) -> set[str]:
    return {node.op for node in graph.nodes}


def weights(graph: Graph) -> set[str]:
    """The dtypes that images are convolved with."""
    return {graph.types[node.inputs[1]].dtype for node in graph.nodes if node.op == "conv2d"}


def same_but_for_ties(found: np.ndarray, wanted: np.ndarray) -> None:
    """Integers of which at most one in a hundred differs, by one quantum."""
    difference = np.abs(found.astype(int) - wanted.astype(int))
    assert difference.max(initial=0) <= 1
    assert (difference != 0).mean() <= 0.01


def weight_of(random: np.random.Generator, shape: tuple[int, ...], dtype: str, axis: int, channels: bool) -> Arrays:
    """Bytes of the whole range with scales and zero points, of each channel or of all."""
    info, count = np.iinfo(dtype), (shape[axis],) if channels else ()
    return {
        "w": random.integers(info.min, info.max, shape, dtype, endpoint=True),
        "scale": random.uniform(0.001, 0.01, count).astype(np.float32),
        "zero": random.integers(info.min, info.max, count, dtype, endpoint=True)
        if random.random() < 0.7
        else np.zeros(count, dtype),
    }


def convolution(seed: int) -> tuple[ModelProto, np.ndarray, bool]:
    """A random quantized convolution, an input, and whether it is one of words of bytes."""
    random = np.random.default_rng(seed)
    activation, dtype = random.choice(["uint8", "int8"], 2)
    rank = int(random.choice([1, 2], p=[0.3, 0.7]))
    groups, depth, outputs = [(1, 3, 5), (1, 20, 24), (1, 16, 40), (2, 8, 12), (3, 4, 16), (12, 1, 1), (4, 3, 2)][
        seed % 7
    ]
    kernel, strides, dilations = random.integers(1, 4, rank), random.integers(1, 3, rank), random.integers(1, 3, rank)
    pads = random.integers(0, 2, 2 * rank)
    shape = (int(random.integers(1, 3)), groups * depth, *map(int, random.integers(7, 19, rank)))
    own = weight_of(random, (groups * outputs, depth, *map(int, kernel)), dtype, 0, bool(random.random() < 0.6))
    zero = int(np.iinfo(activation).min + random.integers(0, 256))
    m = Model()
    x = m.through("x", 0.02, zero, activation)
    w = m.add("DequantizeLinear", own["w"], own["scale"], own["zero"], axis=0)
    more = [random.uniform(-3, 3, groups * outputs).astype(np.float32)] if random.random() < 0.7 else []
    attrs = {"strides": strides, "dilations": dilations, "pads": pads}
    y = m.add("Conv", x, w, *more, group=groups, **{key: [int(v) for v in values] for key, values in attrs.items()})
    y = m.add("Relu", y) if random.random() < 0.5 else y
    result = m.quantized(y, float(random.uniform(0.05, 0.2)), zero, activation)
    return m.built(shape, result), random.normal(0, 2, shape).astype(np.float32), groups == 1 or depth % 4 == 0


@pytest.mark.parametrize("seed", range(7))
def test_convolutions_equal_their_definition_but_for_ties(seed: int) -> None:
    """Of bytes of both signs and any zero points, in groups, dilated, padded, of images and signals."""
    model, x, words = convolution(seed)
    plain = from_onnx(model)
    (wanted,) = evaluate(plain, {"x": x}).values()
    made = optimize(plain, target=WORDS)
    assert ("int8" in weights(made)) == words
    assert weights(optimize(plain, target=FLOATS)) == {"float32"}
    same_but_for_ties(next(iter(evaluate(made, {"x": x}).values())), wanted)
    same_but_for_ties(np.asarray(bn.compile(model, rewrite=False)(x)), wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("channels", [False, True])
def test_products_by_constants_equal_their_definition_but_for_ties(channels: bool, dtype: str) -> None:
    random = np.random.default_rng(3)
    for op, rows, depth, columns, moved in (("MatMul", 5, 33, 20, 0), ("Gemm", 1, 16, 7, 1), ("Gemm", 20, 64, 40, 0)):
        own = weight_of(random, (columns, depth) if moved else (depth, columns), dtype, 0 if moved else 1, channels)
        m = Model()
        x = m.through("x", 0.02, 128, "uint8")
        w = m.add("DequantizeLinear", own["w"], own["scale"], own["zero"], axis=0 if moved else 1)
        bias = [random.uniform(-2, 2, columns).astype(np.float32)] if op == "Gemm" else []
        y = m.add(op, x, w, *bias, **({"transB": 1} if moved else {}))
        model = m.built((rows, depth), m.quantized(y, 0.1, 3, "int8"))
        value = random.normal(0, 1, (rows, depth)).astype(np.float32)
        (wanted,) = evaluate(from_onnx(model), {"x": value}).values()
        made = optimize(from_onnx(model), target=WORDS)
        assert [made.types[n.inputs[1]].dtype for n in made.nodes if n.op == "matmul"] == ["int8"]
        same_but_for_ties(np.asarray(bn.compile(model, rewrite=False)(value)), wanted)


def attention() -> ModelProto:
    """Quantized scores of rows, which are moved in between."""
    m = Model()
    a = m.through("x", 0.03, 120, "uint8")
    b = m.through(m.add("Transpose", a, perm=[0, 2, 1]), 0.03, 120, "uint8")
    return m.built((2, 9, 16), m.quantized(m.add("MatMul", a, b), 0.2, 10, "uint8"))


def test_products_of_two_computed_matrices_are_of_bytes() -> None:
    x = np.random.default_rng(0).normal(0, 2, (2, 9, 16)).astype(np.float32)
    made = optimize(from_onnx(attention()), target=WORDS)
    assert [made.types[name].dtype for n in made.nodes if n.op == "matmul" for name in n.inputs] == ["uint8"] * 2
    assert made.types[next(n for n in made.nodes if n.op == "transpose").inputs[0]].dtype == "uint8"
    (wanted,) = evaluate(from_onnx(attention()), {"x": x}).values()
    same_but_for_ties(np.asarray(bn.compile(attention(), rewrite=False)(x)), wanted)


def test_exact_compilations_keep_the_definition() -> None:
    model, x, _ = convolution(1)
    assert ops(optimize(from_onnx(model), exact=True, target=WORDS)) == ops(optimize(from_onnx(model), exact=True))
    (wanted,) = evaluate(from_onnx(model), {"x": x}).values()
    same_but_for_ties(np.asarray(bn.compile(model, exact=True)(x)), wanted)


def test_moved_and_greatest_numbers_stay_bytes_of_the_same_scale_only() -> None:
    x = np.random.default_rng(0).normal(0, 3, (1, 4, 6, 6)).astype(np.float32)
    for zero, same in ((100, True), (101, False)):
        m = Model()
        y = m.through("x", 0.05, 100, "uint8")
        y = m.add("MaxPool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        y = m.add("Clip", m.add("Relu", y), np.float32(-1).reshape(()), np.float32(2.512).reshape(()))
        y = m.add("Reshape", m.add("Concat", y, y, axis=1), np.array([8, 36]))
        model = m.built((1, 4, 6, 6), m.quantized(y, 0.05, zero, "uint8"))
        made = optimize(from_onnx(model), target=WORDS)
        assert [made.types[n.inputs[0]].dtype for n in made.nodes if n.op == "max_pool2d"] == [
            "uint8" if same else "float32"
        ]
        (wanted,) = evaluate(from_onnx(model), {"x": x}).values()
        np.testing.assert_array_equal(np.asarray(bn.compile(model, rewrite=False)(x)), wanted)


def test_sums_of_windows_beside_ragged_channels_have_a_template(caplog: pytest.LogCaptureFixture) -> None:
    """Of uint8 weights, beside float32 results that are read again: in blocks they would not fit row-major images."""
    random = np.random.default_rng(0)
    m = Model()
    x = m.through("x", 0.02, 100, "uint8")
    for _ in range(2):
        own = weight_of(random, (24, 24, 3, 3), "uint8", 0, False)
        y = m.add("Conv", x, m.add("DequantizeLinear", own["w"], own["scale"], np.uint8(7).reshape(())), pads=[1] * 4)
        x = m.through(m.add("HardSigmoid", y), 0.01, 100, "uint8")
    with caplog.at_level(logging.WARNING, "burnish"):
        bn.compile(m.built((1, 24, 12, 12), m.add("GlobalAveragePool", x)), rewrite=False)
    assert "slow" not in caplog.text


def residual(seed: int, size: int = 14) -> tuple[ModelProto, np.ndarray, list[str]]:
    """A quantized network of convolutions (one of a channel a group), sums, a mean and a product, with biases in int32
    as quantizers write them; its input, and all its tensors of bytes.
    """
    random = np.random.default_rng(seed)
    m, found = Model(), list[str]()

    def weight(shape: tuple[int, ...], axis: int, scale: float) -> tuple[str, np.ndarray]:
        own = random.uniform(0.5, 1.5, shape[axis]).astype(np.float32) * np.float32(scale)
        whole = random.integers(-127, 128, shape, np.int8)
        return m.add("DequantizeLinear", whole, own, np.zeros(shape[axis], np.int8), axis=axis), own

    def bias(count: int, scale: np.ndarray) -> str:
        return m.add("DequantizeLinear", random.integers(-9000, 9000, count, np.int32), scale, axis=0)

    def kept(x: str, scale: float, zero: int) -> tuple[str, np.float32]:
        found.append(m.quantized(x, scale, zero, "uint8"))
        parameters = np.asarray(np.float32(scale)), np.array(zero, np.uint8)
        return m.add("DequantizeLinear", found[-1], *parameters), np.float32(scale)

    def convolved(x: tuple[str, np.float32], depth: int, outputs: int, kernel: int, groups: int = 1) -> str:
        w, own = weight((outputs, depth // groups, kernel, kernel), 0, 0.02 / np.sqrt(depth // groups * kernel**2))
        attrs = {"pads": [kernel // 2] * 4, "group": groups}
        return m.add("Conv", x[0], w, bias(outputs, x[1] * own), **attrs)

    x = kept("x", 0.0217, 121)
    y = kept(m.add("Relu", convolved(x, 8, 24, 3)), 0.0131, 0)
    for zero in (117, 0, 131):
        z = kept(m.add("Relu", convolved(y, 24, 24, 3, groups=24 if zero == 131 else 1)), 0.0173, 0)
        z = kept(convolved(z, 24, 24, 1), 0.0093, zero)
        total = m.add("Add", y[0], z[0])
        y = kept(m.add("Relu", total) if zero == 0 else total, 0.0147, 0 if zero == 0 else 97)
    mean = kept(m.add("Flatten", m.add("GlobalAveragePool", y[0])), 0.0041, 97)
    w, own = weight((24, 40), 1, 0.001)
    kept(m.add("Gemm", mean[0], w, bias(40, mean[1] * own)), 0.011, 90)
    shape = (2, 8, size, size)
    return m.built(shape, *found), random.normal(0, 1, shape).astype(np.float32), found


@pytest.mark.skipif(not host().has("avx512vnni"), reason="onnxruntime's other kernels saturate, or round otherwise")
@pytest.mark.parametrize("seed", range(3))
def test_bytes_of_networks_are_those_of_onnxruntime(seed: int) -> None:
    """Of layers one behind the other: scales, biases and sums are rounded in the same order."""
    model, x, _ = residual(seed)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    steps = [
        np.abs(np.asarray(mine).astype(int) - theirs.astype(int))
        for mine, theirs in zip(bn.compile(model, rewrite=False)(x), session.run(None, {"x": x}), strict=True)
    ]
    assert all(step.max() == 0 for step in steps), [int(step.max()) for step in steps]
    assert all(len(np.unique(theirs)) > 10 for theirs in session.run(None, {"x": x}))

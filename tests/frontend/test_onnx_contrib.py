"""Operators that onnxruntime adds to the standard, and those of ai.onnx.ml, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import burnish as bn
from burnish.errors import ModelError, UnsupportedOperator
from tests.marks import slow_except

RNG = np.random.default_rng(0)
MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
BY_CHANCE = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i32(*shape: int, low: int = -100, high: int = 100) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


class Const:
    """An input that is an initializer."""

    def __init__(self, value: Any, dtype: str = "float32") -> None:
        self.array = value if isinstance(value, np.ndarray) else np.array(value, dtype)


def scale(value: float) -> Const:
    return Const(value)


def zero(value: int, dtype: str = "uint8") -> Const:
    return Const(value, dtype)


TREES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0], "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0], "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
}  # fmt: skip


def leaves(kind: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    return {f"{kind}_treeids": [0, 0, 0, 1, 1], f"{kind}_nodeids": [2, 3, 4, 1, 2], f"{kind}_ids": ids,
            f"{kind}_weights": weights}  # fmt: skip


MIXED, POSITIVE = [1.0, -2.0, 3.0, 0.5, -0.25], [0.1, 0.2, 0.3, 0.5, 0.25]
MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
QKV = {"num_heads": 2}
BITS = {"K": 32, "N": 6, "bits": 4, "block_size": 16}
SVM = {"coefficients": f(5).tolist(), "rho": [0.2], "support_vectors": f(15).tolist(), "n_supports": 5,
       "kernel_params": [0.3, 0.1, 3.0]}  # fmt: skip
TWO = {
    "coefficients": f(5).tolist(),
    "rho": [0.2],
    "support_vectors": f(15).tolist(),
    "vectors_per_class": [3, 2],
    "classlabels_ints": [4, 9],
    "kernel_params": [0.3, 0.1, 3.0],
}
THREE = {"coefficients": f(14).tolist(), "rho": [0.2, -0.1, 0.3], "support_vectors": f(21).tolist(),
         "vectors_per_class": [3, 2, 2], "classlabels_ints": [4, 9, 2], "kernel_params": [0.3, 0.1, 2.0]}  # fmt: skip
LENGTHS = np.array([4, 2], np.int32)


def quantized_lstm(dtype: type, directions: int = 1) -> list[Any]:
    """X, W, R, B, no lengths, states or peepholes, scales and zero points: 4 steps, 2 rows, 3 features, 5 numbers."""
    weights = [Const(RNG.integers(-20, 20, (directions, k, 20)).astype(np.int16).astype(dtype)) for k in (3, 5)]
    scales = [Const(0.02 + 0.01 * np.abs(f(directions))) for _ in weights]
    zeros = [Const(np.zeros(directions, dtype)) for _ in weights]
    if dtype is np.uint8:
        weights = [Const((w.array.astype(np.int16) + 100).astype(dtype)) for w in weights]
        zeros = [Const(np.full(directions, 100, dtype)) for _ in weights]
    pairs = [part for pair in zip(scales, zeros, strict=True) for part in pair]
    return [f(4, 2, 3), *weights, Const(f(directions, 40)), None, None, None, None, *pairs]


def recurrent(gates: int, lengths: bool = False, peephole: bool = False, directions: int = 1) -> list[Any]:
    """X, W, R, B, sequence_lens, then no states, or none and peepholes: of 4 steps, 2 rows, 3 features, 5 numbers."""
    d, size = directions, 5 * gates
    found = [f(4, 2, 3), Const(f(d, size, 3)), Const(f(d, size, 5)), Const(f(d, 2 * size))]
    found.append(LENGTHS if lengths else None)
    return [*found, None, None, Const(f(d, 15))] if peephole else found


SMOOTH = ["HardSigmoid", "ScaledTanh", "Softsign"]
CASES: list[tuple[str, str, list[Any], int, dict[str, Any]]] = [
    (MICROSOFT, "Gelu", [f(3, 8)], 1, {}),
    (MICROSOFT, "BiasGelu", [f(3, 8), f(8)], 1, {}),
    (MICROSOFT, "FastGelu", [f(3, 8), f(8)], 1, {}),
    (MICROSOFT, "QuickGelu", [f(3, 8)], 1, {}),
    (MICROSOFT, "FusedMatMul", [f(3, 8), f(5, 8)], 1, {"alpha": 0.5, "transB": 1}),
    (MICROSOFT, "FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3), f(4)], 1, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    (MICROSOFT, "FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3), f(4)], 1,
     {"activation": "LeakyRelu", "activation_params": [0.1]}),
    (MICROSOFT, "FusedGemm", [f(3, 8), f(8, 5), f(5)], 1, {"activation": "Relu", "alpha": 0.5}),
    (MICROSOFT, "SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)], 4, {}),
    (MICROSOFT, "SkipSimplifiedLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8)], 1, {}),
    ("", "SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], 1, {}),
    (MICROSOFT, "EmbedLayerNormalization", [i32(2, 4, low=0, high=20), i32(2, 4, low=0, high=2), f(20, 8), f(10, 8),
                                            f(2, 8), f(8), f(8), MASK], 2, {}),
    (MICROSOFT, "Attention", [f(2, 4, 8), f(8, 24), f(24)], 1, QKV),
    (MICROSOFT, "Attention", [f(2, 4, 8), f(8, 24), f(24)], 1, {**QKV, "unidirectional": 1}),
    (MICROSOFT, "Attention", [f(2, 4, 8), f(8, 24), f(24), MASK], 1, QKV),
    (MICROSOFT, "Attention", [f(2, 4, 8), f(8, 24), f(24), np.array([3, 4], np.int32)], 1, QKV),
    (MICROSOFT, "Attention", [f(2, 4, 8), f(8, 24), f(24), None, f(2, 2, 2, 3, 4)], 2, QKV),
    (MICROSOFT, "MultiHeadAttention", [f(2, 4, 8), f(2, 6, 8), f(2, 6, 8), f(24)], 1, QKV),
    (MICROSOFT, "MultiHeadAttention", [f(2, 4, 8), f(2, 4, 8), f(2, 4, 8), None, MASK], 1, QKV),
    *((MICROSOFT, "RotaryEmbedding", [f(2, 4, 16), np.tile(np.arange(4), (2, 1)), f(10, 4), f(10, 4)], 1,
       {**QKV, "interleaved": flag}) for flag in (0, 1)),
    (MICROSOFT, "RotaryEmbedding", [f(2, 2, 4, 8), np.array([2]), f(10, 4), f(10, 4)], 1, {}),
    *((MICROSOFT, op, [u8(3, 8), scale(0.1), zero(120), u8(3, 8), scale(0.2), zero(100), scale(s), zero(110)], 1, {})
      for op, s in (("QLinearAdd", 0.3), ("QLinearMul", 5.0))),
    (MICROSOFT, "QLinearLeakyRelu", [u8(3, 8), scale(0.1), zero(120), scale(0.1), zero(110)], 1, {"alpha": 0.1}),
    (MICROSOFT, "QLinearSigmoid", [u8(3, 8), scale(0.1), zero(120), scale(1 / 255), zero(0)], 1, {}),
    (MICROSOFT, "QLinearGlobalAveragePool", [u8(1, 3, 8, 8), scale(0.1), zero(120), scale(0.1), zero(120)], 1, {}),
    (MICROSOFT, "QLinearAveragePool", [u8(1, 3, 8, 8), scale(0.1), zero(120), scale(0.1), zero(110)], 1,
     {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    *((MICROSOFT, "QAttention", [u8(2, 4, 8), Const(u8(8, 24)), Const(f(24)), scale(0.02), scale(0.01), mask, zero(120),
                                 zero(100)], 1, QKV) for mask in (None, np.array([3, 4], np.int32))),
    (MICROSOFT, "QLinearConcat", [scale(0.1), zero(120), u8(2, 3), scale(0.2), zero(3), u8(2, 3), scale(0.1),
                                  zero(120)], 1, {"axis": 1}),
    (MICROSOFT, "QGemm", [u8(3, 8), scale(0.1), zero(120), u8(8, 5), scale(0.2), zero(100), i32(5), scale(8.0),
                          zero(110)], 1, {}),
    (MICROSOFT, "MatMulIntegerToFloat", [u8(3, 8), u8(8, 5), scale(0.1), scale(0.2), zero(120), zero(100), f(5)], 1,
     {}),
    (MICROSOFT, "QuantizeLinear", [f(3, 8), scale(0.1), zero(3)], 1, {}),
    (MICROSOFT, "DequantizeLinear", [u8(3, 8), scale(0.1), zero(3)], 1, {}),
    (MICROSOFT, "DynamicQuantizeMatMul", [f(3, 8), u8(8, 5), scale(0.2), zero(100)], 1, {}),
    ("", "MatMulInteger", [u8(3, 8), u8(8, 5), zero(120), zero(100)], 1, {}),
    ("", "QLinearConv", [u8(1, 3, 8, 8), scale(0.1), zero(100), Const(i32(4, 3, 3, 3).astype(np.int8)),
                         Const(np.abs(f(4)) + 0.1), Const(np.zeros(4, np.int8)), scale(8.0), zero(120), i32(4)], 1,
     {"pads": [1, 1, 1, 1]}),
    (MICROSOFT, "MatMulNBits", [f(3, 32), Const(u8(6, 2, 8)), Const(np.abs(f(12)))], 1, BITS),
    (MICROSOFT, "MatMulNBits", [f(3, 32), Const(u8(6, 2, 8)), Const(np.abs(f(12))), Const(u8(6))], 1, BITS),
    (ML, "TreeEnsembleRegressor", [f(20, 3)], 1,
     {**TREES, **leaves("target", [0] * 5, MIXED), "base_values": [0.1], "n_targets": 1}),
    *((ML, "TreeEnsembleClassifier", [f(20, 3)], 2,
       {**TREES, **leaves("class", [0] * 5, weights), "classlabels_int64s": [3, 7], "post_transform": transform})
      for weights in (MIXED, POSITIVE) for transform in ("NONE", "LOGISTIC")),
    *((ML, "TreeEnsembleClassifier", [f(20, 3)], 2,
       {**TREES, **leaves("class", [0, 1, 2, 0, 2], MIXED), "classlabels_int64s": [3, 7, 9],
        "post_transform": transform})
      for transform in ("NONE", "SOFTMAX")),
    *((ML, "LinearClassifier", [f(50, 3)], 2,
       {"coefficients": f(3 * k).tolist(), "intercepts": f(k).tolist(), "classlabels_ints": [1, 4, 5][: max(k, 2)],
        "post_transform": transform}) for k in (1, 3) for transform in ("NONE", "SOFTMAX", "LOGISTIC")),
    (ML, "LinearRegressor", [f(5, 3)], 1, {"coefficients": f(6).tolist(), "intercepts": f(2).tolist(), "targets": 2}),
    (ML, "Scaler", [f(5, 3)], 1, {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 1.0, 2.0]}),
    *((ML, "Normalizer", [f(5, 3)], 1, {"norm": norm}) for norm in ("MAX", "L1", "L2")),
    (ML, "Imputer", [np.array([[1, np.nan, 3]], np.float32)], 1,
     {"imputed_value_floats": [7.0], "replaced_value_float": float("nan")}),
    (ML, "OneHotEncoder", [np.array([1, 2, 5, 2])], 1, {"cats_int64s": [1, 2, 3]}),
    (ML, "FeatureVectorizer", [f(2, 3), f(2, 1)], 1, {"inputdimensions": [3, 1]}),
    (ML, "Binarizer", [f(2, 3)], 1, {"threshold": 0.2}),
    (ML, "LabelEncoder", [np.array([1, 2, 5])], 1,
     {"keys_int64s": [1, 5], "values_floats": [0.5, 0.7], "default_float": 9.0}),
    ("", "GlobalLpPool", [f(2, 3, 4, 5)], 1, {"p": 3}),
    ("", "LSTM", recurrent(4, peephole=True), 3, {"hidden_size": 5}),
    ("", "LSTM", recurrent(4, lengths=True), 3, {"hidden_size": 5, "direction": "reverse"}),
    ("", "LSTM", recurrent(4, directions=2), 3,
     {"hidden_size": 5, "direction": "bidirectional", "activations": [*SMOOTH, *SMOOTH],
      "activation_alpha": [0.3, 0.9, 0.25, 1.1], "activation_beta": [0.4, 1.2, 0.5, 0.8]}),
    # Of one step: the text of the standard clips what enters the last activation, too, and onnxruntime does not.
    ("", "LSTM", [4 * f(1, 2, 3), *recurrent(4)[1:]], 3, {"hidden_size": 5, "clip": 1.5}),
    ("", "LSTM", recurrent(4), 3, {"hidden_size": 5, "input_forget": 1}),
    *(("", "GRU", recurrent(3, lengths=True), 2,
       {"hidden_size": 5, "linear_before_reset": flag, "activations": ["Relu", "Elu"], "clip": 3.0})
      for flag in (0, 1)),
    ("", "RNN", recurrent(1, lengths=True, directions=2), 2,
     {"hidden_size": 5, "direction": "bidirectional", "activations": ["LeakyRelu", "Affine"],
      "activation_alpha": [0.2, 0.5], "activation_beta": [0.1]}),
    *((ML, "SVMRegressor", [f(4, 3)], 1, {**SVM, "kernel_type": kind})
      for kind in ("LINEAR", "RBF", "POLY", "SIGMOID")),
    *((ML, "SVMClassifier", [f(40, 3)], 2, {**machine, "kernel_type": kind, **likely})
      for machine, slopes, offsets in ((TWO, [-1.5], [0.1]), (THREE, [-1.5, -0.7, -2.0], [0.1, 0.0, -0.3]))
      for kind in ("LINEAR", "RBF", "SIGMOID") for likely in ({}, {"prob_a": slopes, "prob_b": offsets})),
    (ML, "SVMClassifier", [f(40, 3)], 2, {"coefficients": f(9).tolist(), "rho": [0.2, 0.2, 0.2],
                                         "classlabels_ints": [4, 9, 2], "kernel_type": "LINEAR",
                                         "kernel_params": [0.0, 0.0, 0.0]}),
    *((MICROSOFT, "QLinearSoftmax", [u8(2, 3, 8), scale(0.1), zero(120), scale(1 / 255), zero(0)], 1,
       {"axis": axis, "opset": opset}) for axis, opset in ((-1, 13), (1, 13), (1, 12))),
    (MICROSOFT, "DynamicQuantizeLSTM", quantized_lstm(np.uint8), 3, {"hidden_size": 5}),
    (MICROSOFT, "DynamicQuantizeLSTM", quantized_lstm(np.int8, 2), 3, {"hidden_size": 5, "direction": "bidirectional"}),
    *(("", "Resize", [u8(1, 2, 5, 6), None, Const([1.0, 1.0, 2.0, 1.7])], 1,
       {"mode": "linear", "coordinate_transformation_mode": kind}) for kind in ("half_pixel", "asymmetric")),
]  # fmt: skip
PEER_CASES = {(domain, op) for domain, op, *_ in CASES}


def value_info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def build(
    domain: str, op: str, inputs: list[Any], outputs: int, attrs: dict[str, Any]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, without types of its outputs, and its feeds."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    known = [numpy_helper.from_array(v.array, n) for n, v in zip(names, inputs, strict=True) if isinstance(v, Const)]
    feeds = {n: v for n, v in zip(names, inputs, strict=True) if isinstance(v, np.ndarray)}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attrs)
    graph = helper.make_graph(
        [node], "g", [value_info(n, v) for n, v in feeds.items()],
        [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)], known,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case[1]}" for i, case in enumerate(CASES)])
def test_operator_matches_onnxruntime(case: tuple[str, str, list[Any], int, dict[str, Any]]) -> None:
    import onnxruntime as ort

    model, feeds = build(*case)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    for output, want in zip(model.graph.output, expected, strict=True):
        output.CopyFrom(value_info(output.name, want))
    found = bn.compile(model, rewrite=False, threads=1)(**feeds)
    for got, want in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "iu":
            # Where it rounds a mean that lies between two numbers; probabilities, and what is resized, downwards.
            near = int(case[1] in ("QLinearAveragePool", "QLinearSoftmax", "Resize"))
            np.testing.assert_allclose(got.astype(np.int64), want.astype(np.int64), rtol=0, atol=near)
        else:
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def refused(domain: str, op: str, inputs: list[Any], message: str, **attrs: Any) -> None:
    model, _ = build(domain, op, inputs, 1, attrs)
    with pytest.raises(ModelError, match=message):
        bn.compile(model, rewrite=False)


def test_what_is_not_computed_is_refused_by_name() -> None:
    refused(MICROSOFT, "Attention", [f(2, 4, 8), f(8, 24), f(24)], "do_rotary", num_heads=2, do_rotary=1)
    weights = [f(3, 32), Const(u8(6, 2, 6)), Const(f(12))]
    refused(MICROSOFT, "MatMulNBits", weights, "'bits': found 3", **{**BITS, "bits": 3})
    refused(MICROSOFT, "FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3)], "'activation': found Cube", activation="Cube")
    endless = {**TREES, **leaves("target", [0] * 5, MIXED), "nodes_truenodeids": [1, 1, 0, 0, 0, 1, 0, 0]}
    refused(ML, "TreeEnsembleRegressor", [f(2, 3)], "of one parent", **endless)
    with pytest.raises(UnsupportedOperator, match=r"com.microsoft.Nothing"):
        bn.compile(build(MICROSOFT, "Nothing", [f(2)], 1, {})[0])


@pytest.mark.parametrize("op", ["RandomUniform", "RandomNormal"])
def test_random_numbers_have_their_moments_and_repeat_by_seed(op: str) -> None:
    attrs = {"shape": [40, 500], "seed": 3.0}
    model, _ = build("", op, [], 1, attrs)
    model.graph.output[0].CopyFrom(value_info("y0", np.zeros((40, 500), np.float32)))
    module = bn.compile(model, rewrite=False)
    x = module()
    np.testing.assert_array_equal(x, module())
    mean, deviation = (0.5, 12**-0.5) if op == "RandomUniform" else (0.0, 1.0)
    assert abs(x.mean() - mean) < 0.03
    assert abs(x.std() - deviation) < 0.03
    other, _ = build("", op, [], 1, {"shape": [40, 500]})
    other.graph.output[0].CopyFrom(value_info("y0", x))
    unseeded = bn.compile(other, rewrite=False)
    assert not np.array_equal(unseeded(), unseeded())
    other.graph.node.append(helper.make_node(op, [], ["z"], shape=[40, 500]))
    other.graph.output.append(value_info("z", x))
    one, two = bn.compile(other)()
    assert not np.array_equal(one, two)


def test_bernoulli_and_multinomial_follow_their_probabilities() -> None:
    chance = np.full((30, 400), 0.3, np.float32)
    model, feeds = build("", "Bernoulli", [chance], 1, {"seed": 1.0})
    model.graph.output[0].CopyFrom(value_info("y0", chance))
    found = bn.compile(model, rewrite=False)(**feeds)
    assert set(np.unique(found)) == {0.0, 1.0}
    assert abs(found.mean() - 0.3) < 0.03
    logits = np.log(np.array([[0.1, 0.2, 0.7]], np.float32))
    model, feeds = build("", "Multinomial", [logits], 1, {"seed": 1.0, "sample_size": 5000})
    model.graph.output[0].CopyFrom(value_info("y0", np.zeros((1, 5000), np.int32)))
    samples = bn.compile(model, rewrite=False)(**feeds)
    np.testing.assert_allclose(np.bincount(samples[0], minlength=3) / 5000, [0.1, 0.2, 0.7], atol=0.03)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("depth", slow_except([0, 1, 257, 515, 1300], 1, 515))
@pytest.mark.parametrize(("left", "right"), [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_sums_of_the_greatest_products_are_exact(left: str, right: str, depth: int, constant: bool) -> None:
    """Each operand at its ends, so that sums are as large as can be, and odd: a float of 24 bits may lose those."""
    a = np.full((3, depth), np.iinfo(left).max, left)
    b = np.full((depth, 4), np.iinfo(right).max, right)
    a[1], a[2, ::3] = np.iinfo(left).min, 1
    b[:, 1], b[::7, 2] = np.iinfo(right).min, 3
    model, feeds = build("", "MatMulInteger", [a, Const(b) if constant else b], 1, {})
    want = a.astype(np.int64) @ b.astype(np.int64)
    model.graph.output[0].CopyFrom(value_info("y0", want.astype(np.int32)))
    np.testing.assert_array_equal(bn.compile(model, rewrite=False)(**feeds), want)


@pytest.mark.parametrize("zero_point", [0, 131])
@pytest.mark.parametrize(("channels", "kernel", "group"), [(70, 3, 1), (8, 1, 2), (300, 1, 1), (6, 5, 6), (3, 8, 1)])
def test_convolutions_of_great_products_are_exact(channels: int, kernel: int, group: int, zero_point: int) -> None:
    x = np.where(u8(1, channels, 9, 9) > 40, 255, 0).astype(np.uint8)
    w = np.where(u8(2 * group, channels // group, kernel, kernel) > 60, -128, 127).astype(np.int8)
    attrs = {"pads": [1, 0, 1, 1], "strides": [2, 1], "group": group, "kernel_shape": [kernel, kernel]}
    model, feeds = build("", "ConvInteger", [x, Const(w), zero(zero_point)], 1, attrs)
    image = np.pad(x.astype(np.int64) - zero_point, ((0, 0), (0, 0), (1, 1), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(image, (kernel, kernel), (2, 3))[:, :, ::2]
    parts = np.split(windows, group, 1), np.split(w.astype(np.int64), group)
    want = np.concatenate([np.einsum("nchwij,ocij->nohw", a, b) for a, b in zip(*parts, strict=True)], 1)
    model.graph.output[0].CopyFrom(value_info("y0", want.astype(np.int32)))
    np.testing.assert_array_equal(bn.compile(model, rewrite=False)(**feeds), want)

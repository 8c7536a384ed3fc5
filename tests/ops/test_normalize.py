"""Softmax and normalizations against ONNX's reference implementation and NumPy."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.interpret import evaluate
from burnish.loops.tensor import placeholder, stages
from burnish.ops import OPERATORS, infer


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_matches_onnx(axis, apply, reference, normal):
    x = 50 * normal(3, 4, 5)
    expected = reference("Softmax", x, axis=axis)[0]
    np.testing.assert_allclose(apply("softmax", x, axis=axis)[0], expected, rtol=1e-4, atol=1e-6)
    expected = reference("LogSoftmax", x.astype("float64"), axis=axis)[0]
    np.testing.assert_allclose(apply("log_softmax", x, axis=axis)[0], expected, rtol=1e-4, atol=1e-5)


def test_softmax_stages():
    outputs = OPERATORS["softmax"].define("p", [placeholder((2, 3))])
    assert [t.name for t in stages(outputs) if t.body is not None] == ["p.max", "p.exp", "p.sum", "p.inverse", "p"]


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("parameters", [0, 1, 2])
def test_layer_norm(axis, parameters, apply, normal):
    x = 3 * normal(2, 3, 4) + 5
    shape = x.shape[axis:]
    given = [normal(*shape) for _ in range(parameters)]
    axes = tuple(range(axis % 3, 3))
    expected = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    expected = expected * given[0] if given else expected
    expected = expected + given[1] if parameters == 2 else expected
    np.testing.assert_allclose(apply("layer_norm", x, *given, axis=axis)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("axis", "trailing"), [(1, 2), (1, 1), (-2, 1), (0, 3)])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_dimensions_behind_the_normalized_ones(op, axis, trailing, apply, normal):
    x = normal(2, 3, 4, 5) + 1
    axes = tuple(range(axis % 4, 4 - trailing))
    scale = normal(*(x.shape[a] for a in axes))
    mean = x.mean(axes, keepdims=True) if op == "layer_norm" else 0.0
    expected = (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1e-5)
    expected = expected * scale.reshape(*scale.shape, *[1] * trailing)
    y = apply(op, x, scale, axis=axis, epsilon=1e-5, trailing=trailing)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_of_a_large_mean_keeps_its_variance(normal):
    x = normal(2, 64) + 300  # the difference of E[x²] and E[x]² would be wrong in the third digit
    exact = x.astype("float64")
    expected = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    outputs = OPERATORS["layer_norm"].define("y", [placeholder(x.shape)])
    np.testing.assert_allclose(evaluate(outputs, {"x": x})[0], expected, atol=1e-4)


def test_rms_norm(apply, normal):
    x, scale = normal(3, 8), normal(8)
    expected = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(apply("rms_norm", x, scale, epsilon=1e-6)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups, apply, normal):
    x, scale, bias = normal(2, 6, 3, 4), normal(6), normal(6)
    split = x.reshape(2, groups, -1)
    unit = (split - split.mean(2, keepdims=True)) / np.sqrt(split.var(2, keepdims=True) + 1e-5)
    expected = unit.reshape(x.shape) * scale[:, None, None] + bias[:, None, None]
    y = apply("group_norm", x, scale, bias, groups=groups)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    if groups == 6:
        np.testing.assert_array_equal(apply("instance_norm", x, scale, bias)[0], y)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3)])
def test_batch_norm_matches_onnx(shape, apply, reference, normal):
    arrays = [normal(*shape), normal(3), normal(3), normal(3), np.abs(normal(3)) + 0.1]
    expected = reference("BatchNormalization", *arrays, epsilon=1e-3)[0]
    np.testing.assert_allclose(apply("batch_norm", *arrays, epsilon=1e-3)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 4, 5])
@pytest.mark.parametrize("beta", [0.75, 0.5, 0.6])
def test_lrn(size, beta, apply, normal):
    x = normal(2, 7, 3, 2)
    squares = np.zeros_like(x)
    for c in range(7):
        low, high = max(c - (size - 1) // 2, 0), min(c + size // 2 + 1, 7)
        squares[:, c] = (x[:, low:high] ** 2).sum(1)
    expected = x / (2 + 0.1 / size * squares) ** beta
    y = apply("lrn", x, size=size, alpha=0.1, beta=beta, bias=2.0)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floating_point_types(dtype, apply, normal):
    x = normal(3, 8).astype(dtype)
    tolerance = 2e-3 if dtype == "float16" else 1e-12
    wide = x.astype("float64")
    power = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(apply("softmax", x)[0], power / power.sum(1, keepdims=True), atol=tolerance)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "words"),
    [
        ("softmax", [(2, 3)], {"axis": 2}, ["'axis'", "2", "-2 to 1"]),
        ("layer_norm", [(2, 3), (2,)], {}, ["'scale'", r"\[2\]", r"\[3\]"]),
        ("layer_norm", [(2, 3)], {"trailing": 1}, ["'trailing'", "1", "0 to 0"]),
        ("rms_norm", [(2, 3)], {"axis": 0, "trailing": -1}, ["'trailing'", "-1", "0 to 1"]),
        ("group_norm", [(2, 6), (6,), (6,)], {"groups": 4}, ["'groups'", "4", "divisor of 6"]),
        ("batch_norm", [(2, 6), (6,), (6,), (5,), (6,)], {}, ["'mean'", r"\[5\]", r"\[6\]"]),
        ("batch_norm", [(2, 6), (6,)], {}, ["inputs", "2 tensors", "5"]),
        ("lrn", [(2, 6)], {"size": 0}, ["'size'", "0", "positive"]),
    ],
)
def test_refusals(name, shapes, attrs, words):
    with pytest.raises(ModelError, match=".*".join([f"{name} 'y'", *words])):
        infer(name, [(shape, "float32") for shape in shapes], attrs)

"""Convolutions against ONNX's reference implementation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import ModelError
from burnish.loops.interpret import evaluate
from burnish.loops.tensor import placeholder, stages
from burnish.ops import OPERATORS, infer
from burnish.ops.convolution import band


def onnx_attrs(attrs):
    names = {"groups": "group"}
    return {names.get(k, k): list(v) if isinstance(v, tuple) else v for k, v in attrs.items()}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("image", "kernel", "attrs"),
    [
        ((1, 3, 8, 7), (4, 3, 3, 3), {}),
        ((2, 3, 8, 7), (4, 3, 3, 2), {"strides": (2, 1), "pads": (1, 0, 2, 1)}),
        ((1, 4, 9, 9), (6, 2, 3, 3), {"groups": 2, "dilations": (2, 2), "pads": (2, 2, 2, 2)}),
        ((1, 6, 6, 6), (6, 1, 3, 3), {"groups": 6, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
        ((1, 3, 6, 6), (6, 1, 3, 3), {"groups": 3, "pads": (1, 1, 1, 1)}),
        ((3, 8, 1, 5), (4, 8, 1, 1), {}),
    ],
)
def test_conv2d_matches_onnx(image, kernel, attrs, bias, apply, reference, normal):
    arrays = [normal(*image), normal(*kernel)] + ([normal(kernel[0])] if bias else [])
    expected = reference("Conv", *arrays, **onnx_attrs(attrs))[0]
    np.testing.assert_allclose(apply("conv2d", *arrays, **attrs)[0], expected, rtol=1e-4, atol=1e-5)


def test_conv2d_of_narrow_types(apply, rng):
    x = rng.integers(-128, 128, (1, 3, 5, 5)).astype("int8")
    w = rng.integers(-128, 128, (2, 3, 3, 3)).astype("int8")
    y = apply("conv2d", x, w, pads=(1, 1, 1, 1))[0]
    wide = apply("conv2d", x.astype("float64"), w.astype("float64"), pads=(1, 1, 1, 1))[0]
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, wide)
    half = apply("conv2d", np.full((1, 4096, 1, 1), 0.5, "float16"), np.ones((1, 4096, 1, 1), "float16"))[0]
    assert half.dtype == np.float16
    assert half.item() == 2048.0  # float16 accumulation would stop at 1024


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("image", "kernel", "attrs"),
    [
        ((1, 5, 1, 1), (5, 3, 4, 4), {}),
        ((1, 4, 4, 5), (4, 3, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((2, 4, 5, 4), (4, 3, 3, 3), {"strides": (2, 3), "pads": (1, 0, 0, 1), "output_padding": (1, 2)}),
        ((1, 4, 4, 4), (4, 2, 3, 3), {"groups": 2, "strides": (2, 1), "dilations": (2, 3)}),
        ((1, 3, 3, 3), (3, 2, 1, 2), {"strides": (3, 3)}),
        ((1, 3, 6, 6), (3, 2, 3, 3), {"pads": (2, 2, 2, 2)}),
        ((2, 6, 5, 4), (6, 16, 4, 3), {"groups": 2, "strides": (2, 3), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}),
        ((2, 6, 1, 1), (6, 3, 4, 3), {"groups": 2, "pads": (1, 0, 0, 1)}),
        ((1, 2, 5, 5), (2, 2, 2, 2), {"strides": (2, 2), "pads": (3, 3, 2, 2)}),
    ],
)
def test_conv2d_transpose_matches_onnx(image, kernel, attrs, bias, apply, reference, normal):
    groups = attrs.get("groups", 1)
    arrays = [normal(*image), normal(*kernel)] + ([normal(kernel[1] * groups)] if bias else [])
    y = apply("conv2d_transpose", *arrays, **attrs)[0]
    if groups == 1:
        expected = reference("ConvTranspose", *arrays, **onnx_attrs(attrs))[0]
    else:
        expected = scattered(*arrays, **attrs)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def scattered(x, w, b=None, strides=(1, 1), pads=(0, 0, 0, 0), output_padding=(0, 0), dilations=(1, 1), groups=1):
    """The transposed convolution by its other definition: every input element adds its scaled kernel to the output."""
    n, channels, height, width = x.shape
    per_group, kernel_h, kernel_w = w.shape[1:]
    size_h = (height - 1) * strides[0] + dilations[0] * (kernel_h - 1) + 1 + output_padding[0]
    size_w = (width - 1) * strides[1] + dilations[1] * (kernel_w - 1) + 1 + output_padding[1]
    y = np.zeros((n, per_group * groups, size_h, size_w))
    for c, h, v, kh, kw in np.ndindex(channels, height, width, kernel_h, kernel_w):
        first = c // (channels // groups) * per_group
        row, column = h * strides[0] + kh * dilations[0], v * strides[1] + kw * dilations[1]
        y[:, first : first + per_group, row, column] += x[:, c, h, v, None] * w[c, :, kh, kw]
    y = y[:, :, pads[0] : size_h - pads[2], pads[1] : size_w - pads[3]]
    return y if b is None else y + b[:, None, None]


@given(
    st.tuples(*[st.integers(1, 5)] * 2),
    st.tuples(*[st.integers(1, 4)] * 2),
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.tuples(*[st.integers(1, 2)] * 2),
    st.sampled_from([2, 16]),
)
@settings(max_examples=100, deadline=None)
def test_conv2d_transpose_equals_the_scattered_form(size, kernel, strides, pads, dilations, outputs):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 2, *size)).astype("float32")
    w = rng.standard_normal((2, outputs, *kernel)).astype("float32")
    attrs = {"strides": strides, "pads": pads, "dilations": dilations}
    expected = scattered(x, w, **attrs)
    inputs = [placeholder(x.shape, name="x"), placeholder(w.shape, name="w")]
    if expected.size == 0:
        with pytest.raises(ModelError, match="'pads'"):
            OPERATORS["conv2d_transpose"].define("y", inputs, attrs)
        return
    y = evaluate(OPERATORS["conv2d_transpose"].define("y", inputs, attrs), {"x": x, "w": w})[0]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "depth", "per_group", "block"), [(4, 3, 5, 16), (4, 5, 3, 8), (2, 6, 20, 16)])
def test_banded_convolution_equals_the_grouped_one(groups, depth, per_group, block, apply, normal):
    x, weight = normal(2, groups * depth, 5, 6), normal(groups * per_group, depth, 3, 2)
    window = {"pads": (1, 0, 1, 1), "strides": (1, 2)}
    banded = {"outputs": per_group, "depth": depth, "block": block}
    y = apply("banded_conv2d", x, band(weight, groups, block), **window, **banded)[0]
    np.testing.assert_allclose(y, apply("conv2d", x, weight, **window, groups=groups)[0], rtol=1e-5, atol=1e-5)


def test_stage_names_start_with_the_prefix():
    x, w, b = placeholder((1, 4, 6, 6)), placeholder((4, 3, 4, 4), name="w"), placeholder((3,), name="b")
    outputs = OPERATORS["conv2d_transpose"].define("up", [x, w, b], {"strides": (2, 2), "pads": (1, 1, 1, 1)})
    names = [t.name for t in stages(outputs) if t.body is not None]
    assert names == ["up.conv.pad", "up.kernel", "up.weight", "up.conv", "up"]


@pytest.mark.parametrize(
    ("types", "attrs", "words"),
    [
        ([(1, 3, 8), (4, 3, 3, 3)], {}, ["input 'x'", r"\[1, 3, 8\]", "4 dimensions"]),
        ([(1, 3, 8, 8), (4, 2, 3, 3)], {}, ["input 'weight'", r"\[4, 2, 3, 3\]", "3 / groups"]),
        ([(1, 3, 8, 8), (4, 3, 3, 3), (3,)], {}, ["input 'bias'", r"\[3\]", r"\[4\]"]),
        ([(1, 3, 8, 8), (4, 3, 3, 3)], {"groups": 2}, ["'groups'", "2", "divisor"]),
        ([(1, 3, 8, 8), (4, 3, 3, 3)], {"pads": (1, 1)}, ["'pads'", "top, left, bottom, right"]),
        ([(1, 3, 8, 8), (4, 3, 3, 3)], {"strides": (0, 1)}, ["'strides'", r"\[0, 1\]", "positive"]),
        ([(1, 3, 2, 8), (4, 3, 3, 3)], {}, ["input 'x'", r"\[1, 3, 2, 8\]", "3×3"]),
    ],
)
def test_refusals(types, attrs, words):
    with pytest.raises(ModelError, match=".*".join(["conv2d 'y'", *words])):
        infer("conv2d", [(shape, "float32") for shape in types], attrs)

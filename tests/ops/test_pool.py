"""Pooling against ONNX's reference implementation."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS, infer
from burnish.ops.classify import flops

WINDOWS = [
    {"kernel": (2, 2), "strides": (2, 2)},
    {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"kernel": (3, 2), "strides": (1, 2), "pads": (1, 0, 0, 1)},
    {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True},
    {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": True},
    {"kernel": (2, 2), "strides": (1, 1), "dilations": (2, 3)},
]


def onnx_attrs(attrs):
    renamed = {"kernel": "kernel_shape"}
    return {renamed.get(k, k): list(v) if isinstance(v, tuple) else int(v) for k, v in attrs.items()}


@pytest.mark.parametrize("size", [(8, 8), (7, 10)])
@pytest.mark.parametrize("attrs", WINDOWS)
def test_max_pool2d_matches_onnx(size, attrs, apply, reference, normal):
    x = normal(2, 3, *size)
    np.testing.assert_array_equal(apply("max_pool2d", x, **attrs)[0], reference("MaxPool", x, **onnx_attrs(attrs))[0])


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("size", [(8, 8), (7, 10)])
@pytest.mark.parametrize("attrs", WINDOWS)
def test_avg_pool2d_is_the_mean_of_the_counted_elements(size, attrs, include, apply, normal):
    x = normal(2, 3, *size)
    y = apply("avg_pool2d", x, **attrs, count_include_pad=include)[0]
    np.testing.assert_allclose(y, mean_of_windows(x, include, y.shape[2:], **attrs), rtol=1e-5, atol=1e-6)


def mean_of_windows(x, include, size, kernel, strides, pads=(0, 0, 0, 0), dilations=(1, 1), ceil_mode=False):
    """Mean over each window of elements inside the input, or with ``include`` inside its padding as well."""
    low, high = (pads[0], pads[1]), (pads[2], pads[3])
    out = np.zeros((*x.shape[:2], *size))
    for oh, ow in np.ndindex(*size):
        total, count = 0.0, 0
        for kh, kw in np.ndindex(*kernel):
            at = (oh * strides[0] - low[0] + kh * dilations[0], ow * strides[1] - low[1] + kw * dilations[1])
            inside = all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True))
            padding = all(-lo <= i < n + hi for i, n, lo, hi in zip(at, x.shape[2:], low, high, strict=True))
            total = total + x[:, :, at[0], at[1]] if inside else total
            count += inside or (include and padding)
        out[:, :, oh, ow] = total / count
    return out


def test_integers_pool_with_their_own_lowest_value(apply):
    x = np.full((1, 1, 2, 2), -100, "int8")
    assert (apply("max_pool2d", x, kernel=(3, 3), pads=(1, 1, 1, 1))[0] == -100).all()


@pytest.mark.parametrize(
    ("shape", "attrs", "words"),
    [
        ((1, 3, 8), {"kernel": (2, 2)}, ["'x'", "4 dimensions"]),
        ((1, 3, 8, 8), {"kernel": (2,)}, ["'kernel'", r"\[2\]", "two positive"]),
        ((1, 3, 2, 8), {"kernel": (3, 3)}, ["'x'", r"\[1, 3, 2, 8\]", "dilated kernel"]),
        ((1, 3, 2, 8), {}, ["'kernel'", "no default"]),
    ],
)
def test_refusals(shape, attrs, words):
    with pytest.raises(ModelError, match=".*".join(["max_pool2d 'y'", *words])):
        infer("max_pool2d", [(shape, "float32")], attrs)


LARGE = [
    {"kernel": (9, 3), "pads": (8, 0, 8, 0)},
    {"kernel": (20, 30), "strides": (3, 7), "pads": (19, 20, 10, 29)},
    {"kernel": (7, 11), "strides": (2, 1), "pads": (3, 5, 3, 5)},
]


def pooled(x, kernel, pads, strides=(1, 1)):
    """The maxima of the windows, their means, and their means with padding counted."""
    top, left, bottom, right = pads
    around = ((0, 0), (0, 0), (top, bottom), (left, right))
    views = [
        np.lib.stride_tricks.sliding_window_view(np.pad(x, around, constant_values=value), kernel, (2, 3))
        for value in (-np.inf, 0)
    ]
    low, zero = (view[:, :, :: strides[0], :: strides[1]] for view in views)
    counts = np.isfinite(low).sum((-2, -1))
    return low.max((-2, -1)), zero.sum((-2, -1)) / counts, zero.mean((-2, -1))


@pytest.mark.parametrize("attrs", LARGE)
def test_windows_larger_than_the_image(attrs, apply, normal):
    x = normal(1, 2, 6, 8)
    greatest, mean, padded_mean = pooled(x, **attrs)
    np.testing.assert_array_equal(apply("max_pool2d", x, **attrs)[0], greatest)
    np.testing.assert_allclose(apply("avg_pool2d", x, **attrs)[0], mean, rtol=1e-5, atol=1e-6)
    found = apply("avg_pool2d", x, **attrs, count_include_pad=True)[0]
    np.testing.assert_allclose(found, padded_mean, rtol=1e-5, atol=1e-6)


def test_a_window_larger_than_the_image_takes_no_more_than_the_image_has():
    attrs = {"kernel": (1 << 20, 1 << 20), "strides": (1 << 20, 1 << 20), "pads": (1 << 19,) * 4}
    (y,) = OPERATORS["max_pool2d"].define("y", [placeholder((1, 1, 8, 8))], attrs)
    assert flops([y]) <= 100

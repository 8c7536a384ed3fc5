"""Winograd's algorithm computes the convolution."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops import OPERATORS
from burnish.ops.winograd import TILES, transform_weight


def both(
    x: np.ndarray, w: np.ndarray, m: int, strides: tuple[int, int], pads: tuple[int, ...]
) -> tuple[Tensor, Tensor, np.ndarray]:
    """(the definition, the algorithm, its weight) on placeholders "x", "w" and "u"."""
    xs, ws = placeholder(x.shape, str(x.dtype), "x"), placeholder(w.shape, str(w.dtype), "w")
    (direct,) = OPERATORS["conv2d"].define("y", [xs, ws], {"strides": strides, "pads": pads})
    u = transform_weight(w, m, strides)
    us = placeholder(u.shape, str(u.dtype), "u")
    (fast,) = OPERATORS["winograd_conv2d"].define("y", [xs, us], {"m": m, "strides": strides, "pads": pads})
    return direct, fast, u


@pytest.mark.parametrize("m", TILES)
@pytest.mark.parametrize(
    ("height", "width", "kernel", "strides", "pads"),
    [
        (7, 7, (3, 3), (1, 1), (1, 1, 1, 1)), (5, 13, (3, 3), (1, 1), (0, 1, 2, 0)),
        (3, 3, (3, 3), (1, 1), (0, 0, 0, 0)), (14, 14, (3, 3), (2, 2), (1, 1, 1, 1)),
        (9, 15, (3, 3), (2, 2), (0, 1, 1, 0)), (8, 11, (3, 3), (2, 1), (1, 1, 1, 1)),
        (12, 9, (5, 4), (2, 3), (2, 2, 2, 1)), (6, 10, (2, 5), (2, 1), (0, 2, 0, 2)),
    ],
)  # fmt: skip
def test_it_computes_the_convolution(
    m: int, height: int, width: int, kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, height, width)), rng.standard_normal((5, 3, *kernel))
    direct, fast, u = both(x, w, m, strides, pads)
    found = evaluate([fast], {"x": x, "u": u})[0]
    np.testing.assert_allclose(found, evaluate([direct], {"x": x, "w": w})[0], atol=1e-12)


def test_groups() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1, 6, 7, 9)), rng.standard_normal((4, 3, 3, 3))
    attrs = {"pads": (1, 1, 1, 1), "groups": 2}
    data, weight, u = placeholder(x.shape, "float64", "x"), placeholder(w.shape, "float64", "w"), transform_weight(w, 4)
    (direct,) = OPERATORS["conv2d"].define("y", [data, weight], attrs)
    (fast,) = OPERATORS["winograd_conv2d"].define("y", [data, placeholder(u.shape, "float64", "u")], attrs)
    found, expected = evaluate([fast], {"x": x, "u": u})[0], evaluate([direct], {"x": x, "w": w})[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("m", "kernel", "stride", "bound"),
    [(2, 3, 1, 2e-6), (4, 3, 1, 6e-6), (2, 3, 2, 2e-6), (4, 3, 2, 4e-6), (4, 5, 1, 1e-5)],
)
def test_rounding_error_in_float32(m: int, kernel: int, stride: int, bound: float) -> None:
    """Relative to the largest output, on 64 channels: what the choice of interpolation points buys."""
    rng = np.random.default_rng(1)
    shapes = (1, 64, 12 * stride, 12 * stride), (8, 64, kernel, kernel)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    direct, fast, u = both(x, w, m, (stride, stride), (1, 1, 1, 1))
    exact = evaluate([direct], {"x": x, "w": w}, "float64")[0]
    assert abs(evaluate([fast], {"x": x, "u": u})[0] - exact).max() < bound * abs(exact).max()


def test_refusals() -> None:
    x, w = placeholder((1, 3, 6, 6), name="x"), placeholder((5, 5, 4, 3), name="w")
    with pytest.raises(ModelError, match=r"winograd_conv2d 'y': attribute 'm': found 3; allowed: one of \[2, 4\]"):
        OPERATORS["winograd_conv2d"].define("y", [x, w], {"m": 3})
    with pytest.raises(ModelError, match=r"input 'weight'.*4 dimensions"):
        OPERATORS["winograd_conv2d"].define("y", [x, placeholder((6, 6, 4), name="w")], {"m": 4})
    with pytest.raises(ModelError, match=r"attribute 'strides': found \(3, 3\); allowed: no more than the window"):
        OPERATORS["winograd_conv2d"].define("y", [x, placeholder((5, 5, 4, 3), name="w")], {"m": 2, "strides": (3, 3)})
    with pytest.raises(ModelError, match=r"input 'weight': found shape \[6, 6, 4, 2\]; allowed: 3 / groups inputs"):
        OPERATORS["winograd_conv2d"].define("y", [x, placeholder((6, 6, 4, 2), name="w")], {"m": 4})

"""Winograd's algorithm computes the convolution."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS
from burnish.ops.winograd import TILES, transform_weight


@pytest.mark.parametrize("m", TILES)
@pytest.mark.parametrize(
    ("height", "width", "pads"), [(7, 7, (1, 1, 1, 1)), (5, 13, (0, 1, 2, 0)), (3, 3, (0, 0, 0, 0))]
)
def test_it_computes_the_convolution(m: int, height: int, width: int, pads: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, height, width)), rng.standard_normal((5, 3, 3, 3))
    xs, ws = placeholder(x.shape, "float64", "x"), placeholder(w.shape, "float64", "w")
    (direct,) = OPERATORS["conv2d"].define("y", [xs, ws], {"pads": pads})
    u = transform_weight(w, m)
    us = placeholder(u.shape, "float64", "u")
    (fast,) = OPERATORS["winograd_conv2d"].define("y", [xs, us], {"m": m, "pads": pads})
    expected = evaluate([direct], {"x": x, "w": w})[0]
    found = evaluate([fast], {"x": x, "u": u})[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(("m", "bound"), [(2, 2e-6), (4, 6e-6)])
def test_rounding_error_in_float32(m: int, bound: float) -> None:
    """Relative to the largest output, on 64 channels: what the choice of interpolation points buys."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((1, 64, 12, 12), (8, 64, 3, 3)))
    xs, ws = placeholder(x.shape, name="x"), placeholder(w.shape, name="w")
    (direct,) = OPERATORS["conv2d"].define("y", [xs, ws], {"pads": (1, 1, 1, 1)})
    exact_ = evaluate([direct], {"x": x, "w": w}, "float64")[0]
    u = transform_weight(w, m)
    (fast,) = OPERATORS["winograd_conv2d"].define("y", [xs, placeholder(u.shape, name="u")], {"m": m})
    assert abs(evaluate([fast], {"x": x, "u": u})[0] - exact_).max() < bound * abs(exact_).max()


def test_refusals() -> None:
    x, w = placeholder((1, 3, 6, 6), name="x"), placeholder((5, 5, 4, 3), name="w")
    with pytest.raises(ModelError, match=r"winograd_conv2d 'y': attribute 'm': found 3; allowed: one of \[2, 4\]"):
        OPERATORS["winograd_conv2d"].define("y", [x, w], {"m": 3})
    with pytest.raises(ModelError, match=r"input 'weight'.*4 dimensions"):
        OPERATORS["winograd_conv2d"].define("y", [x, placeholder((6, 6, 4), name="w")], {"m": 4})

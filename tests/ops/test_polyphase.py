"""The polyphase algorithm computes the convolution, for any stride, window and padding."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops import OPERATORS
from burnish.ops.polyphase import transform_phases


def both(
    x: np.ndarray, w: np.ndarray, m: int, strides: tuple[int, int], pads: tuple[int, ...], dtype: str
) -> tuple[Tensor, Tensor, np.ndarray]:
    """(the definition, the algorithm, its weight) on placeholders "x", "w" and "u"."""
    xs, ws = placeholder(x.shape, dtype, "x"), placeholder(w.shape, dtype, "w")
    (direct,) = OPERATORS["conv2d"].define("y", [xs, ws], {"strides": strides, "pads": pads})
    u = transform_phases(w, m, strides[1])
    attrs = {"m": m, "kernel_w": w.shape[3], "strides": strides, "pads": pads}
    (fast,) = OPERATORS["polyphase_conv2d"].define("y", [xs, placeholder(u.shape, dtype, "u")], attrs)
    return direct, fast, u


@pytest.mark.parametrize(
    ("kernel", "strides", "m", "pads"),
    [
        ((7, 7), (2, 2), 4, (3, 3, 3, 3)), ((11, 11), (4, 4), 4, (2, 1, 0, 3)), ((5, 5), (1, 1), 4, (2, 2, 2, 2)),
        ((3, 3), (2, 2), 4, (0, 1, 1, 0)), ((1, 7), (1, 1), 2, (0, 3, 0, 3)), ((2, 5), (3, 1), 3, (0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_it_computes_the_convolution(
    kernel: tuple[int, int], strides: tuple[int, int], m: int, pads: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 15, 21)), rng.standard_normal((5, 3, *kernel))
    direct, fast, u = both(x, w, m, strides, pads, "float64")
    found = evaluate([fast], {"x": x, "u": u})[0]
    np.testing.assert_allclose(found, evaluate([direct], {"x": x, "w": w})[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (11, 4), (5, 1), (3, 2)])
def test_rounding_error_in_float32(kernel: int, stride: int) -> None:
    """Relative to the largest output: what the choice of interpolation points buys."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((1, 16, 23, 23), (8, 16, kernel, kernel)))
    direct, fast, u = both(x, w, 4, (stride, stride), (0, 0, 0, 0), "float32")
    exact = evaluate([direct], {"x": x, "w": w}, "float64")[0]
    assert abs(evaluate([fast], {"x": x, "u": u})[0] - exact).max() < 4e-6 * abs(exact).max()


def test_refusals() -> None:
    x, define = placeholder((1, 3, 16, 16), name="x"), OPERATORS["polyphase_conv2d"].define
    with pytest.raises(ModelError, match=r"attribute 'm': found 9; allowed: m \+ 4 - 1 one of"):
        define("y", [x, placeholder((12, 7, 3, 2, 8), name="w")], {"m": 9, "kernel_w": 7, "strides": (2, 2)})
    with pytest.raises(ModelError, match=r"weight: found \(7, 7, 3, 1, 8\); allowed: \[7, KH, C, 2, O\]"):
        define("y", [x, placeholder((7, 7, 3, 1, 8), name="w")], {"m": 4, "kernel_w": 7, "strides": (2, 2)})

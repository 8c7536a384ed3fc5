"""Winograd's matrices are exact, and the algorithm computes the convolution."""

from fractions import Fraction

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS
from burnish.ops.winograd import KERNEL, POINTS, matrices, transform_weight


def exact(matrix: np.ndarray) -> list[list[Fraction]]:
    """The rational matrix that was rounded to ``matrix``; every entry has a small denominator."""
    rows = [[Fraction(float(v)).limit_denominator(1_000_000) for v in row] for row in matrix]
    np.testing.assert_array_equal(np.array(rows, dtype=float), matrix)
    return rows


@pytest.mark.parametrize("m", sorted(POINTS))
def test_the_bilinear_algorithm_is_exact(m: int) -> None:
    """``A^T [(G g) * (B^T d)]`` is the correlation of every unit vector ``g`` with every ``d``, in fractions."""
    outer, weight, data = (exact(matrix) for matrix in matrices(m))
    n = m + KERNEL - 1
    assert (len(outer), len(weight), len(data)) == (m, n, n)
    for i in range(m):
        for k in range(KERNEL):
            for d in range(n):
                total = sum(outer[i][j] * weight[j][k] * data[j][d] for j in range(n))
                assert total == (1 if d == i + k else 0), (i, k, d)


@pytest.mark.parametrize("m", sorted(POINTS))
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

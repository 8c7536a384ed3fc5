"""The matrices of F(m, r) are exact."""

from fractions import Fraction

import numpy as np
import pytest

from burnish.ops.interpolation import POINTS, matrices

SIZES = [(m, n - m + 1, 1) for n in POINTS for m in (2, 3, 4) if n > m]
STRIDED = [(2, 3, 2), (4, 3, 2), (3, 4, 2), (4, 7, 2), (4, 11, 4), (2, 4, 3), (3, 2, 2)]


def exact(matrix: np.ndarray) -> list[list[Fraction]]:
    """The rational matrix that was rounded to ``matrix``; every entry has a small denominator."""
    rows = [[Fraction(float(v)).limit_denominator(1_000_000) for v in row] for row in matrix]
    np.testing.assert_array_equal(np.array(rows, dtype=float), matrix)
    return rows


@pytest.mark.parametrize(("m", "taps", "stride"), SIZES + STRIDED)
def test_the_bilinear_algorithm_is_exact(m: int, taps: int, stride: int) -> None:
    """``A^T [(G g) * (B^T d)]`` is the correlation of every unit vector ``g`` with every ``d``, in fractions."""
    outer, weight, data = (exact(matrix) for matrix in matrices(m, taps, stride))
    n = (m - 1) * stride + taps
    assert (len(outer), len(weight), len(data)) == (m, n, n)
    assert len(outer[0]) == m + -(-taps // stride) - 1, "points"
    for i in range(m):
        for k in range(taps):
            for d in range(n):
                total = sum(outer[i][q // stride] * weight[q][k] * data[q][d] for q in range(n))
                assert total == (1 if d == i * stride + k else 0), (i, k, d)

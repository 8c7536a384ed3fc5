"""The minimal filtering algorithms F(m, r) by Toom-Cook interpolation: m outputs of r taps in m + r - 1 products."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np

from burnish.loops.expr import Expr, Literal, equal, select


def _around_zero(*points: Fraction | int) -> tuple[Fraction, ...]:
    """0, and every one of ``points`` with both signs."""
    return (Fraction(0), *(Fraction(sign * p) for p in points for sign in (1, -1)))


# Interpolation points besides infinity, by the number of products. Chosen for small rounding errors among eighths up to
# 2, by trial on random data: for m + r - 1 = 6 the usual {0, 1, -1, 2, -2} costs three times the error.
POINTS = {
    2: (Fraction(0),),
    3: (Fraction(0), Fraction(1)),
    4: _around_zero(1),
    5: (*_around_zero(Fraction(3, 4)), Fraction(7, 4)),
    6: _around_zero(Fraction(5, 8), Fraction(11, 8)),
    7: (*_around_zero(Fraction(5, 8), 1), Fraction(2)),
    8: _around_zero(Fraction(1, 2), 1, 2),
}


@cache
def matrices(m: int, taps: int, stride: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``A^T`` [m, points], ``G`` [n, taps], ``B^T`` [n, n], float64; outputs are ``stride <= taps`` inputs apart.

    With stride 1 there are n = m + taps - 1 points, and ``y = A^T [(G g) * (B^T d)]``. Any other such filter is the sum
    of ``stride`` filters of stride 1, one for each phase of the inputs and the taps, all taken at the points of the
    longest, of which shorter ones leave out the last. Product ``point * stride + phase`` belongs to ``point``; their
    sum over the phases goes through ``A^T``. There are n = (m - 1) * stride + taps products, as many as inputs.
    """
    n = (m - 1) * stride + taps
    points = POINTS[m + -(-taps // stride) - 1]
    weight, data = np.zeros((n, taps)), np.zeros((n, n))
    for phase in reversed(range(stride)):
        length = len(range(phase, taps, stride))
        outer, g, b = _at(points[: m + length - 2], m, length)
        weight[phase::stride, phase::stride], data[phase::stride, phase::stride] = g, b
    return outer, weight, data


def _at(points: Sequence[Fraction], m: int, taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices of stride 1 for infinity, which is all phases' first point, and ``m + taps - 2`` others."""
    n = m + taps - 1
    outer, weight, data = np.zeros((m, n)), np.zeros((n, taps)), np.zeros((n, n))
    outer[m - 1, 0] = weight[0, taps - 1] = 1
    data[0] = _coefficients(points)
    for j, p in enumerate(points, 1):
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        outer[:, j] = [float(p**i) for i in range(m)]
        weight[j] = [float(p**k / scale) for k in range(taps)]
        data[j, : n - 1] = _coefficients(others)
    return outer, weight, data


def _coefficients(roots: Sequence[Fraction]) -> list[float]:
    """The polynomial with these roots, constant term first."""
    poly = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *poly]
        poly = [s - root * p for s, p in zip(shifted, [*poly, Fraction(0)], strict=True)]
    return [float(c) for c in poly]


def entry(matrix: np.ndarray, row: Expr, column: Expr, dtype: str) -> Expr:
    """``matrix[row, column]`` as nested selects: a literal once the loops over both are unrolled or vectorized."""

    def pick(values: Sequence[Expr], index: Expr) -> Expr:
        chosen = values[-1]
        for position in reversed(range(len(values) - 1)):
            chosen = select(equal(index, position), values[position], chosen)
        return chosen

    return pick([pick([Literal(float(v), dtype) for v in r], column) for r in matrix], row)

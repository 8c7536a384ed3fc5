"""Fixed-point statistics: exact sums, units that fit, and the form that outliers need."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.fixed import PACKED_BITS, PACKED_ROWS, FixedPoint, Quantizer
from burnish.boost.threads import Workers


def values(fixed: FixedPoint) -> tuple[np.ndarray, np.ndarray]:
    """Gradients and Hessians as integers."""
    if fixed.packed:
        return fixed.values >> 32, fixed.values & 0xFFFFFFFF
    return fixed.values[:, 0], fixed.values[:, 1]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([10, 5000]), st.integers(-60, 60), st.integers(-60, 60), st.integers(1, 3))
def test_values_are_within_half_a_unit(rows: int, scale: int, hessian_scale: int, threads: int) -> None:
    random = np.random.default_rng(rows)
    gradient = np.ldexp(random.standard_normal(rows), scale).astype(np.float32)
    hessian = np.ldexp(random.random(rows), hessian_scale).astype(np.float32)
    fixed = Quantizer(rows, Workers(threads))(gradient, hessian)
    assert fixed.packed == (rows == 5000)
    g, h = values(fixed)
    assert (abs(g * fixed.gradient_unit - gradient.astype(np.float64)) <= 0.501 * fixed.gradient_unit).all()
    assert (abs(h * fixed.hessian_unit - hessian.astype(np.float64)) <= 0.501 * fixed.hessian_unit).all()
    assert fixed.total == (int(g.sum()), int(h.sum()))
    assert np.log2(abs(gradient).max() / fixed.gradient_unit) > PACKED_BITS - 1.001


def test_sums_of_packed_rows_unpack() -> None:
    rows = PACKED_ROWS
    for sign in (-1, 1):
        gradient = np.full(rows, sign * 0.99999994, np.float32)
        fixed = Quantizer(rows, Workers(1))(gradient, abs(gradient))
        assert fixed.packed
        total = int(fixed.values.sum())
        assert (total >> 32, total & 0xFFFFFFFF) == (sign * rows << PACKED_BITS, rows << PACKED_BITS)


@pytest.mark.parametrize("case", ["outlier", "negative"])
def test_outliers_and_negative_hessians_take_pairs(case: str) -> None:
    gradient = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    hessian = np.ones(4000, np.float32)
    quantize = Quantizer(4000, Workers(2))
    assert quantize(gradient, hessian).packed
    if case == "outlier":
        gradient[7] = 1e6
    else:
        hessian[7] = -1
    fixed = quantize(gradient, hessian)
    assert not fixed.packed
    g, h = values(fixed)
    assert np.allclose(g * fixed.gradient_unit, gradient, atol=1e-5)
    assert np.array_equal(h * fixed.hessian_unit, hessian)


def test_zeros_have_a_unit() -> None:
    zero = np.zeros(3000, np.float32)
    fixed = Quantizer(3000, Workers(1))(zero, zero)
    assert (fixed.total, fixed.gradient_unit, fixed.hessian_unit) == ((0, 0), 1.0, 1.0)
    assert not np.any(fixed.values)

"""Fixed-point statistics: exact sums, units that fit, and the form that outliers need."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.fixed import PACKED_BITS, PACKED_ROWS, FixedPoint, Quantizer
from burnish.comm import launch
from burnish.runtime.threads import Workers


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


def test_pairs_are_right_to_the_stated_share_of_the_largest() -> None:
    rng = np.random.default_rng(4)
    rows = 3000
    gradient = (np.where(rng.random(rows) < 0.01, 1e6, 1e-3) * rng.standard_normal(rows)).astype(np.float32)
    hessian = rng.random(rows).astype(np.float32)
    fixed = Quantizer(rows, Workers(2))(gradient, hessian)
    assert not fixed.packed
    error = abs(values(fixed)[0] * fixed.gradient_unit - gradient.astype(np.float64))
    assert error.max() <= 2.0 ** -(60 - int(np.log2(rows))) * abs(gradient).max()
    assert fixed.total[0] * fixed.gradient_unit == pytest.approx(gradient.astype(np.float64).sum(), rel=1e-10)


ORDINARY = {
    "normal": lambda rng, rows: rng.standard_normal(rows),
    "heavy tails": lambda rng, rows: rng.standard_t(5, rows),
    "probabilities": lambda rng, rows: rng.random(rows) - (rng.random(rows) < 0.5),
    "sampled": lambda rng, rows: rng.standard_normal(rows) * (rng.random(rows) < 0.1),
    "two values": lambda rng, rows: np.where(rng.random(rows) < 0.2, 0.8, -0.2),
}
UNEVEN = {
    "1 % far larger": lambda rng, rows: np.where(rng.random(rows) < 0.01, 1e5, 1) * rng.standard_normal(rows),
    "1 % far smaller": lambda rng, rows: np.where(rng.random(rows) < 0.01, 1e-7, 1) * rng.standard_normal(rows),
    "half far smaller": lambda rng, rows: np.where(rng.random(rows) < 0.5, 1e-4, 1) * rng.standard_normal(rows),
    "over many orders": lambda rng, rows: np.exp(rng.uniform(-30, 0, rows)),
    "one large": lambda rng, rows: np.append(rng.standard_normal(rows - 1), 1e4),
}


@pytest.mark.parametrize("name", [*ORDINARY, *UNEVEN])
@pytest.mark.parametrize("rows", [2000, 60_000, 300_000])
def test_packed_is_what_no_share_of_the_rows_is_too_small_for(name: str, rows: int) -> None:
    make = (ORDINARY | UNEVEN)[name]
    sizes = make(np.random.default_rng(rows), rows).astype(np.float32)
    level = np.full(rows, 0.5, np.float32)
    quantize = Quantizer(rows, Workers(2))
    assert quantize(sizes, level).packed == (name in ORDINARY)
    assert quantize(level, abs(sizes)).packed == (name in ORDINARY)


def test_counts_of_small_values_are_those_of_all_workers_rows() -> None:
    rng = np.random.default_rng(0)
    small = np.arange(40_000) < 20_000
    gradient = (np.where(small, 1e-6, 1) * rng.standard_normal(40_000)).astype(np.float32)
    hessian = np.ones(40_000, np.float32)

    def work(comm: Any) -> list[bool]:
        part = slice(20_000 * comm.rank, 20_000 * (comm.rank + 1))
        return [Quantizer(20_000, Workers(1), comm)(gradient[part], hessian[part]).packed]

    assert [packed for one in launch(work, [(), ()], kind="thread") for packed in one] == [False, False]
    assert Quantizer(20_000, Workers(1))(gradient[20_000:], hessian[20_000:]).packed


def test_zeros_have_a_unit() -> None:
    zero = np.zeros(3000, np.float32)
    fixed = Quantizer(3000, Workers(1))(zero, zero)
    assert (fixed.total, fixed.gradient_unit, fixed.hessian_unit) == ((0, 0), 1.0, 1.0)
    assert not np.any(fixed.values)

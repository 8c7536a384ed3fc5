import numpy as np
from numba import njit

from burnish.boost.losses.elementary import exp32, round20, sigmoid32


@njit
def exponentials(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = exp32(x[i])
    return out


@njit(error_model="numpy")
def others(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sigmoids, rounded = np.empty_like(x), np.empty_like(x)
    for i in range(len(x)):
        sigmoids[i] = sigmoid32(x[i])
        rounded[i] = round20(x[i])
    return sigmoids, rounded


X = np.concatenate([np.linspace(-87, 88, 400_001), np.linspace(-1e-3, 1e-3, 10_001), [0.0]]).astype(np.float32)


def test_exponential_is_within_two_units_of_the_last_place() -> None:
    exact = np.exp(X.astype(np.float64))
    assert (np.abs(exponentials(X) - exact) / exact).max() < 2 * 2.0**-24


def test_exponential_beyond_its_range_stays_finite() -> None:
    found = exponentials(np.array([-1e30, -np.inf, 1e30, np.inf, np.nan], np.float32))
    assert np.isfinite(found).all() and (found > 0).all()


def test_sigmoid_and_rounding() -> None:
    sigmoids, rounded = others(X)
    np.testing.assert_allclose(sigmoids, 1 / (1 + np.exp(-X.astype(np.float64))), rtol=3e-7)
    assert sigmoids[-1] == 0.5
    assert (np.abs(rounded - X) <= np.abs(X) * 2.0**-20).all()
    for weight in range(1, 17):
        product = rounded * np.float32(weight)
        assert (product.astype(np.float64) == rounded.astype(np.float64) * weight).all()

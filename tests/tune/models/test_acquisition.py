"""Expected improvement against numeric integration; the upper confidence bound; refusals."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from burnish.errors import DataError, ParameterError
from burnish.tune.models.acquisition import acquire, ei, log_ei, ucb
from burnish.tune.models.base import Floats


def integrated(mean: float, std: float, best: float) -> float:
    """The mean of max(0, score - best) over a normal distribution, by the trapezoidal rule."""
    x = np.linspace(max(best, mean - 12 * std), mean + 12 * std, 400_001)
    density = np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    return float(np.trapezoid((x - best) * density, x))


def test_expected_improvement_is_the_integral() -> None:
    random = np.random.default_rng(0)
    mean, std = random.uniform(0, 1.3, 60), random.uniform(0.01, 0.5, 60)
    for best in (0.3, 1.0):
        wanted = [integrated(m, s, best) for m, s in zip(mean, std, strict=True)]
        assert_allclose(ei(mean, std, best), wanted, rtol=1e-6, atol=1e-12)


def test_expected_improvement_of_a_certain_score() -> None:
    assert ei([0.5, 1.0, 1.25], [0.0, 0.0, 0.0], 1.0).tolist() == [0.0, 0.0, 0.25]


def test_expected_improvement_grows_with_mean_and_deviation() -> None:
    level = np.full(20, 0.2)
    assert (np.diff(ei(np.linspace(0.2, 1.4, 20), level)) > 0).all()
    assert (np.diff(ei(np.full(20, 0.7), np.linspace(0.05, 1, 20))) > 0).all()
    far = ei([0.0, 0.0], [0.05, 0.04])  # 20 and 25 deviations away: still in order
    assert far[0] > far[1] > 0


def test_log_expected_improvement_is_the_logarithm() -> None:
    random = np.random.default_rng(1)
    mean, std = random.uniform(0, 1.3, 60), random.uniform(0.05, 0.5, 60)
    assert_allclose(log_ei(mean, std), np.log(ei(mean, std)), rtol=1e-6)


def test_log_expected_improvement_where_that_itself_is_zero() -> None:
    z = np.array([-60.0, -40.0, -20.0, -10.01, -9.99, -9.0])
    found = log_ei(1.0 + 0.01 * z, np.full(6, 0.01))
    assert ei(1.0 + 0.01 * z[:2], np.full(2, 0.01)).tolist() == [0.0, 0.0]
    assert (np.diff(found) > 0).all()
    # φ(Z) + Z Φ(Z) is the integral of Φ up to Z, here of exp(t Z) over t > 0 in the scale of its largest value.
    t = np.linspace(0, 6, 2_000_001)
    for at, value in zip(z, found, strict=True):
        inner = np.trapezoid(t * np.exp(at * t - 0.5 * t * t), t)
        wanted = math.log(0.01) - 0.5 * at * at - 0.5 * math.log(2 * math.pi) + math.log(inner)
        assert_allclose(value, wanted, rtol=1e-6)
    assert np.isfinite(log_ei([0.0, 1.0, 1.5], [0.0, 0.0, 0.0])).all()  # a model that is quite sure


def test_upper_confidence_bound() -> None:
    assert_allclose(ucb([0.5, 0.2], [0.1, 0.4], 2.0), [0.7, 1.0])


class Known:
    """A model of two candidates."""

    objective = "regression"

    def predict_distribution(self, features: object) -> tuple[Floats, Floats]:
        return np.array([0.8, 0.5], np.float32), np.array([0.0, 0.5], np.float32)


def test_acquisitions_of_a_model_disagree_where_it_is_uncertain() -> None:
    chosen = {name: int(np.argmax(acquire(Known(), name, None))) for name in ("mean", "ei", "ucb")}  # type: ignore[arg-type]
    assert chosen == {"mean": 0, "ei": 1, "ucb": 1}


def test_refusals() -> None:
    with pytest.raises(ParameterError, match="'best'; allowed: 'mean', 'ei', 'ucb'"):
        acquire(Known(), "best", None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"std of candidate 1: found -1\.0"):
        ei([0, 0], [1, -1])
    with pytest.raises(DataError, match="std of candidate 0: found nan"):
        ucb([0.0], [np.nan])
    with pytest.raises(DataError, match=r"mean \[2\] and std \[3\]"):
        ei([0, 0], [1, 1, 1])

"""Acquisition functions: how much a candidate is worth measuring, from the mean and deviation of its score."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.errors import DataError, ParameterError
from burnish.tune.models.base import UncertainModel

ACQUISITIONS = ("mean", "ei", "ucb")
FAR = -10.0  # deviations below the best, from which on the expansion is as exact as the formula
LEAST_STD = 0.01  # of a relative throughput: measurements themselves are no surer


def ei(mean: Any, std: Any, best: float = 1.0) -> NDArray[np.float64]:
    """Expected improvement on a score `best` (AdaTune eqs. 1 and 2), (n,), not negative.

    With Z = (mean - best) / std it is (mean - best) Φ(Z) + std φ(Z), and max(0, mean - best) where std is 0. Scores are
    relative throughputs, so that of the best candidate measured is 1. A forest, whose trees have not all seen that one,
    predicts less of it: a tuner takes the most that the model says of any measured candidate for ``best`` (Picheny et
    al. 2013, "A benchmark of kriging-based infill criteria for noisy optimization"). Compared with 1 no candidate
    but those with the largest deviations would be expected to improve on it. mean, std: (n,). Raises DataError.
    """
    mean, std = _moments(mean, std)
    out = np.empty(len(mean))
    _expected_improvement(mean, std, float(best), out)
    return out


def log_ei(mean: Any, std: Any, best: float = 1.0) -> NDArray[np.float64]:
    """The logarithm of expected improvement, (n,), exact to where `ei` itself is 0 (Ament et al. 2023, §4.1).

    It orders candidates as `ei` does, but for a std below 0.01, which counts as that: else those that all parts of a
    model agree on would be outliers. It is what a search walks over and a batch is chosen by: expected improvement is
    next to nothing almost everywhere, so temperatures and weights in deviations of it would be those of a few points.
    mean, std: (n,). Raises DataError.
    """
    mean, std = _moments(mean, std)
    out = np.empty(len(mean))
    _log_expected_improvement(mean, std, float(best), out)
    return out


def ucb(mean: Any, std: Any, kappa: float = 1.0) -> NDArray[np.float64]:
    """Upper confidence bound (thesis-chen §5.2.3): mean + kappa · std, (n,). mean, std: (n,). Raises DataError."""
    mean, std = _moments(mean, std)
    return mean + kappa * std


def acquire(
    model: UncertainModel, acquisition: str, features: Any, best: float = 1.0, kappa: float = 1.0
) -> NDArray[np.float64]:
    """Acquisition values of candidates by a model's prediction, float64 (n,): "mean", "ei" (its logarithm) or "ucb"."""
    if acquisition not in ACQUISITIONS:
        raise ParameterError(f"acquisition: found {acquisition!r}; allowed: {', '.join(map(repr, ACQUISITIONS))}")
    mean, std = model.predict_distribution(features)
    if acquisition == "ei":
        return log_ei(mean, std, best)
    return ucb(mean, std, kappa if acquisition == "ucb" else 0.0)


def _moments(mean: Any, std: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean, std = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    if mean.ndim != 1 or mean.shape != std.shape:
        raise DataError(f"acquisition: found mean {list(mean.shape)} and std {list(std.shape)}; allowed: [n] and [n]")
    if not (std >= 0).all():
        row = int(np.argmin(std >= 0))
        raise DataError(f"acquisition: std of candidate {row}: found {std[row]}; allowed: not negative")
    return mean, std


@njit(cache=True, nogil=True)
def _expected_improvement(mean: Any, std: Any, best: float, out: Any) -> None:
    for i in range(len(mean)):
        gain = mean[i] - best
        if std[i] > 0.0:
            z = gain / std[i]
            above = 0.5 * math.erfc(-z / math.sqrt(2.0))
            density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            gain = gain * above + std[i] * density
        out[i] = max(gain, 0.0)


@njit(cache=True, nogil=True)
def _log_expected_improvement(mean: Any, std: Any, best: float, out: Any) -> None:
    """log(std) + log(φ(Z) + Z Φ(Z)); far below the best by the expansion φ(Z) / Z² · (1 - 3/Z² + 15/Z⁴ - 105/Z⁶)."""
    root = math.sqrt(2.0 * math.pi)
    for i in range(len(mean)):
        sigma = max(std[i], LEAST_STD)
        z = (mean[i] - best) / sigma
        if z >= FAR:
            above = 0.5 * math.erfc(-z / math.sqrt(2.0))
            log = math.log(math.exp(-0.5 * z * z) / root + z * above)
        else:
            square = z * z
            rest = 1.0 + (-3.0 + (15.0 - 105.0 / square) / square) / square
            log = -0.5 * square + math.log(rest / (root * square))
        out[i] = math.log(sigma) + log

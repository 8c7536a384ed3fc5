"""Survival objectives: Cox's proportional hazards, and accelerated failure times with censored labels.

Cox 1972, "Regression models and life-tables", with Breslow's treatment of ties; Barnwal, Cho and Hocking 2022,
"Survival regression with accelerated failure time model in XGBoost".
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Dataset
from burnish.boost.kernels import inlined, lean, region
from burnish.boost.losses.base import Floats
from burnish.boost.losses.reduction import Reduction
from burnish.boost.losses.regression import _Exponential, newton_step
from burnish.errors import DataError
from burnish.runtime.threads import GRAIN, Workers

_LEAST = 1e-16
DISTRIBUTIONS = {"normal": 0, "logistic": 1, "extreme": 2}
_MOST, _TINY = 15.0, 1e-12  # limits of gradients and Hessians, and the least likelihood, as in XGBoost


class Cox(_Exponential):
    """Partial likelihood of proportional hazards e^margin. A label is a time; a negative one was censored then."""

    name = "survival:cox"
    metric = "cox-nloglik"

    def first_guess(self) -> Floats:
        """One Newton step from zero, as in XGBoost: zero but for weights, as a constant changes nothing."""
        return newton_step(self)

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective. Every row's depends on all rows of all workers."""
        label, every = self.reduction.gather(self.label), self.reduction.gather(margin[0])
        first = self.reduction.before(len(self.label))
        own = slice(first, first + len(self.label))
        g, h = cox_statistics(every, label)
        gradient[0], hessian[0] = g[own], np.maximum(h[own], _LEAST)
        self._weigh(self.weight, gradient, hessian, workers)


def cox_statistics(margin: Floats, label: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gradient and diagonal of the Hessian of Cox's partial likelihood, (rows,) each, in float64.

    Rows at risk at a time are those whose own time is not before it; tied events have the same rows (Breslow).
    """
    time = np.abs(label)
    order = np.argsort(time, kind="stable")
    hazard = np.exp(margin.astype(np.float64) - float(np.max(margin, initial=-np.inf)))[order]
    event = (label > 0.0)[order].astype(np.float64)
    first, last = tie_edges(time[order])
    at_risk = np.cumsum(hazard[::-1])[::-1][first]
    once = np.cumsum(event / at_risk)[last]
    twice = np.cumsum(event / at_risk**2)[last]
    gradient, hessian = np.empty_like(hazard), np.empty_like(hazard)
    gradient[order] = hazard * once - event
    hessian[order] = hazard * once - hazard**2 * twice
    return gradient, hessian


def tie_edges(ordered: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the last position of equal values, for each of some ascending values."""
    return np.searchsorted(ordered, ordered, side="left"), np.searchsorted(ordered, ordered, side="right") - 1


class AcceleratedFailure(_Exponential):
    """log(time) = margin + σ · noise, of times known to lie between bounds (`aft_loss_distribution`, `…_scale`).

    Labels are (rows, 2), lower and upper bound: equal if the time is known, an infinite upper one if it was censored
    from the right, a lower one of zero if from the left; labels (rows,) are known times.
    """

    name = "survival:aft"
    metric = "aft-nloglik"

    def prepare(self, dataset: Dataset, reduction: Reduction) -> None:
        """See Objective."""
        self.bounds = bounds_of(dataset, f"objective {self.name!r}")
        self.bind(dataset, self.bounds[:, 0].copy(), reduction)

    def first_guess(self) -> Floats:
        """The logarithm of ½, XGBoost's default."""
        return np.array([np.log(0.5)], np.float32)

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        kind, scale = DISTRIBUTIONS[self.params.aft_loss_distribution], self.params.aft_loss_distribution_scale
        arrays = margin[0], self.bounds, kind, scale, gradient[0], hessian[0]
        workers.each(_failure_statistics, margin.shape[1], *arrays, grain=GRAIN)
        self._weigh(self.weight, gradient, hessian, workers)


def bounds_of(dataset: Dataset, who: str) -> Floats:
    """Lower and upper bounds of times, (rows, 2), from labels of one or two columns. Raises DataError."""
    label = dataset.label
    if label is None:
        raise DataError(f"{who}: the data has no labels; allowed: times, or label_lower_bound and label_upper_bound")
    if dataset.targets > 1:
        raise DataError(
            f"{who}: found a label matrix of {dataset.targets} outputs; allowed: times, or label_lower_bound and "
            "label_upper_bound"
        )
    if label.ndim == 1:
        label = np.stack([label, label], axis=1)
    if label.shape != (dataset.rows, 2):
        raise DataError(f"{who}: labels have shape {label.shape}; allowed: ({dataset.rows}, 2), bounds of times")
    low, high = label[:, 0], label[:, 1]
    good = (low >= 0.0) & np.isfinite(low) & (high >= low) & (high > 0.0)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(f"label of row {row}: found bounds {low[row]}, {high[row]}; allowed: 0 <= lower <= upper, > 0")
    return np.require(label, np.float32, ("C", "W"))


@inlined
def _density(z: Any, kind: Any) -> Any:
    """Density of the noise, its distribution function, and the density's first and second derivative, at z."""
    if kind == 0:
        pdf = math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
        return pdf, 0.5 * math.erfc(-z / math.sqrt(2.0)), -z * pdf, (z * z - 1.0) * pdf
    if kind == 1:
        w = math.exp(-abs(z))  # the density is even: nothing overflows
        sign = 1.0 if z > 0.0 else -1.0
        pdf = w / ((1.0 + w) * (1.0 + w))
        cdf = 1.0 / (1.0 + w) if z > 0.0 else w / (1.0 + w)
        return pdf, cdf, sign * pdf * (w - 1.0) / (1.0 + w), pdf * (w * w - 4.0 * w + 1.0) / ((1.0 + w) * (1.0 + w))
    if z > 6.0:  # e^-w is below 1e-175
        return 0.0, 1.0, 0.0, 0.0
    w = math.exp(z)
    pdf = w * math.exp(-w)
    return pdf, -math.expm1(-w), (1.0 - w) * pdf, (w * w - 3.0 * w + 1.0) * pdf


@inlined
def _limits(right: Any, left: Any, positive: Any, kind: Any, scale: Any) -> Any:
    """Gradient and Hessian where the likelihood is too small to compute with: those at infinite margins."""
    if (right and not positive) or (left and positive):
        return 0.0, _LEAST
    if kind == 0:
        return (-_MOST if positive else _MOST), 1.0 / (scale * scale)
    if kind == 1:
        return (-1.0 / scale if positive else 1.0 / scale), _LEAST
    return (-_MOST, _MOST) if positive else (1.0 / scale, _LEAST)


@region
def _failure_statistics(
    margin: Any, bounds: Any, kind: Any, scale: Any, gradient: Any, hessian: Any, begin: int, end: int, thread: int
) -> None:
    """Gradient and Hessian of the negative log-likelihood of a time, or of an interval of times, in float64."""
    for row in range(np.uint64(begin), np.uint64(end)):
        low, high, center = float(bounds[row, 0]), float(bounds[row, 1]), float(margin[row])
        right, left = high == math.inf, low <= 0.0
        z_low = 0.0 if left else (math.log(low) - center) / scale
        z_high = 0.0 if right else (math.log(high) - center) / scale
        if low == high:
            pdf, _, slope, bend = _density(z_low, kind)
            top, base, curve = slope, scale * pdf, slope * slope - pdf * bend
            positive = z_low > 0.0
        else:
            pdf, cdf, slope, bend = _density(z_low, kind)
            if left:
                pdf = cdf = slope = 0.0
            other, below, tilt, bend = _density(z_high, kind)
            if right:
                other, below, tilt = 0.0, 1.0, 0.0
            top, base = other - pdf, scale * (below - cdf)
            curve = top * top - (below - cdf) * (tilt - slope)
            positive = z_high > 0.0 or z_low > 0.0
        g, h = top / base, curve / (base * base)
        if base < _TINY and not math.isfinite(g):
            g = _limits(right, left, positive, kind, scale)[0]
        if base * base < _TINY and not math.isfinite(h):
            h = _limits(right, left, positive, kind, scale)[1]
        gradient[row] = min(max(g, -_MOST), _MOST)
        hessian[row] = min(max(h, _LEAST), _MOST)


@lean
def _failure_losses(margin: Any, bounds: Any, kind: Any, scale: Any, loss: Any) -> None:
    """The negative logarithm of the likelihood, at least 1e-12, of each row's time or interval of times."""
    for row in range(len(margin)):
        low, high, center = float(bounds[row, 0]), float(bounds[row, 1]), float(margin[row])
        if low == high:
            likelihood = _density((math.log(low) - center) / scale, kind)[0] / (scale * low)
        else:
            likelihood = 1.0 if high == math.inf else _density((math.log(high) - center) / scale, kind)[1]
            if low > 0.0:
                likelihood -= _density((math.log(low) - center) / scale, kind)[1]
        loss[row] = -math.log(max(likelihood, _TINY))


def failure_losses(margin: Floats, bounds: Floats, distribution: str, scale: float) -> NDArray[np.float64]:
    """Losses of "survival:aft", (rows,), at margins (rows,)."""
    loss = np.empty(len(bounds), np.float64)
    _failure_losses(np.require(margin, np.float32, ("C", "W")), bounds, DISTRIBUTIONS[distribution], scale, loss)
    return loss


KINDS = (Cox, AcceleratedFailure)

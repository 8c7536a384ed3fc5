"""Objectives of one number: absolute error, Huber's losses, and deviances of positive labels (gamma, Tweedie)."""

from typing import Any

import numpy as np

from burnish.boost.kernels import region
from burnish.boost.losses import gradients
from burnish.boost.losses.base import Floats, Objective, check_values, transformed
from burnish.boost.losses.basic import Quantile
from burnish.boost.losses.elementary import exp32, round20
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

_ONE, _NOUGHT = np.float32(1.0), np.float32(0.0)


@region
def absolute_error(
    margin: Any, label: Any, gradient: Any, hessian: Any, unused: Any, begin: int, end: int, thread: int
) -> None:
    """Absolute error: |margin - label|; Hessian 1, as the leaves are refitted."""
    for row in range(np.uint64(begin), np.uint64(end)):
        rest = margin[row] - label[row]
        gradient[row] = _ONE if rest > _NOUGHT else -_ONE if rest < _NOUGHT else _NOUGHT
        hessian[row] = _ONE


@region
def pseudo_huber(
    margin: Any, label: Any, gradient: Any, hessian: Any, slope: Any, begin: int, end: int, thread: int
) -> None:
    """Pseudo-Huber loss: slope² (√(1 + (z / slope)²) - 1), z = margin - label."""
    for row in range(np.uint64(begin), np.uint64(end)):
        z = margin[row] - label[row]
        square = _ONE + (z / slope) * (z / slope)
        root = np.sqrt(square)
        gradient[row] = round20(z / root)
        hessian[row] = round20(_ONE / (square * root))


@region
def huber(margin: Any, label: Any, gradient: Any, hessian: Any, slope: Any, begin: int, end: int, thread: int) -> None:
    """Huber loss: z² / 2 within `slope`, slope (|z| - slope / 2) beyond, z = margin - label.

    The Hessian is 1, as in LightGBM.
    """
    for row in range(np.uint64(begin), np.uint64(end)):
        z = margin[row] - label[row]
        z = z if z < slope else slope
        gradient[row] = round20(z if z > -slope else -slope)
        hessian[row] = _ONE


@region
def gamma(margin: Any, label: Any, gradient: Any, hessian: Any, unused: Any, begin: int, end: int, thread: int) -> None:
    """Gamma loss: margin + label · e^-margin, of a gamma distribution of mean e^margin, but for its shape."""
    for row in range(np.uint64(begin), np.uint64(end)):
        ratio = round20(label[row] * exp32(-margin[row]))
        gradient[row] = round20(_ONE - ratio)
        hessian[row] = ratio if ratio > gradients.LEAST_HESSIAN else gradients.LEAST_HESSIAN


@region
def tweedie(
    margin: Any, label: Any, gradient: Any, hessian: Any, power: Any, begin: int, end: int, thread: int
) -> None:
    """Tweedie loss: -label · e^((1 - p) margin) / (1 - p) + e^((2 - p) margin) / (2 - p), p the variance's power."""
    one, two = _ONE - power, np.float32(2.0) - power
    for row in range(np.uint64(begin), np.uint64(end)):
        below = label[row] * exp32(one * margin[row])
        above = exp32(two * margin[row])
        gradient[row] = round20(above - below)
        h = round20(two * above - one * below)
        hessian[row] = h if h > gradients.LEAST_HESSIAN else gradients.LEAST_HESSIAN


def newton_step(objective: Objective) -> Floats:
    """The constant margin (1,) that one Newton step from zero gives."""
    zero = np.zeros((1, len(objective.label)), np.float32)
    gradient, hessian = np.empty_like(zero), np.empty_like(zero)
    objective.gradient(zero, gradient, hessian, 0, Workers(1))
    total = objective.reduction.sum(hessian)
    return np.array([-objective.reduction.sum(gradient) / total if total > 0.0 else 0.0], np.float32)


class AbsoluteError(Quantile):
    """|margin - label|: leaves become the median of the residuals in them, times the learning rate."""

    name = "reg:absoluteerror"
    metric = "mae"

    @property
    def levels(self) -> tuple[float, ...]:
        """The median."""
        return (0.5,)

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        self._by_rows(absolute_error, margin, gradient, hessian, 0.0, workers)


class PseudoHuber(Objective):
    """A smooth Huber loss: squared near the label, absolute far from it; `huber_slope` is where it turns."""

    name = "reg:pseudohubererror"
    metric = "mphe"

    def first_guess(self) -> Floats:
        """One Newton step from zero, as in XGBoost."""
        return newton_step(self)

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        self._by_rows(pseudo_huber, margin, gradient, hessian, self.params.huber_slope, workers)


class HuberObjective(Objective):
    """Huber's loss as LightGBM has it: squared within `huber_slope` of the label, absolute beyond."""

    name = "huber"
    metric = "huber"

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        self._by_rows(huber, margin, gradient, hessian, self.params.huber_slope, workers)


class _Exponential(Objective):
    """An objective whose prediction is e^margin."""

    def margin_of(self, prediction: float) -> float:
        """The logarithm; of labels that are all zero, that of 1e-6."""
        if self.params.base_score is not None and prediction <= 0.0:
            raise ParameterError(f"parameter 'base_score': found {prediction}; objective {self.name!r} allows (0, inf)")
        return float(np.log(max(prediction, 1e-6)))

    def prediction(self, margin: Floats, workers: Workers | None = None) -> Floats:
        """The mean."""
        return transformed(gradients.exponential_of, margin, workers)


class Gamma(_Exponential):
    """Negative log-likelihood of a positive label under a gamma distribution of mean e^margin."""

    name = "reg:gamma"
    metric = "gamma-nloglik"

    def check_labels(self) -> None:
        """See Objective."""
        check_values("label", self.label, self.label > 0.0, "positive numbers, of objective 'reg:gamma'")

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        self._by_rows(gamma, margin, gradient, hessian, 0.0, workers)


class Tweedie(_Exponential):
    """Negative log-likelihood under a Tweedie distribution of mean e^margin: a mass at zero and positive numbers."""

    name = "reg:tweedie"
    metric = "tweedie-nloglik"

    def check_labels(self) -> None:
        """See Objective."""
        check_values(
            "label", self.label, self.label >= 0.0, "numbers that are not negative, of objective 'reg:tweedie'"
        )

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        self._by_rows(tweedie, margin, gradient, hessian, self.params.tweedie_variance_power, workers)


KINDS: tuple[type[Objective], ...] = (AbsoluteError, PseudoHuber, HuberObjective, Gamma, Tweedie)

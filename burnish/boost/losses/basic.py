"""Objectives of one number or class: squared error, logistic, Poisson, quantile, softmax, and a user's function."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.losses import gradients
from burnish.boost.losses.base import Floats, Objective, check_values, transformed
from burnish.boost.params import Params
from burnish.boost.tree import Tree
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import GRAIN, Workers


class SquaredError(Objective):
    """(margin - label)² / 2."""

    name = "squared_error"

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        self._by_rows(gradients.squared_error, margin, gradient, hessian, 0.0, workers)


class Logistic(Objective):
    """Cross-entropy of a label in [0, 1] and the probability 1 / (1 + e^-margin)."""

    name = "logistic"
    metric = "logloss"

    def check_labels(self) -> None:
        """See Objective; scale_pos_weight becomes part of the weights."""
        check_values(
            "label", self.label, (self.label >= 0.0) & (self.label <= 1.0), "0 or 1, or a probability between them"
        )
        if self.params.scale_pos_weight != 1.0:
            weight = np.ones_like(self.label) if self.weight is None else self.weight
            self.weight = np.where(self.label == 1.0, weight * np.float32(self.params.scale_pos_weight), weight)

    def margin_of(self, prediction: float) -> float:
        """The log-odds; of a constant label, those of 1e-6 or its complement."""
        if self.params.base_score is not None and not 0.0 < prediction < 1.0:
            raise ParameterError(f"parameter 'base_score': found {prediction}; objective 'logistic' allows (0, 1)")
        p = min(max(prediction, 1e-6), 1.0 - 1e-6)
        return float(np.log(p / (1.0 - p)))

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        self._by_rows(gradients.logistic, margin, gradient, hessian, 0.0, workers)

    def prediction(self, margin: Floats, workers: Workers | None = None) -> Floats:
        """The probability of label 1."""
        return transformed(gradients.sigmoid_of, margin, workers)


class Poisson(Objective):
    """Negative log-likelihood of a count under a Poisson distribution of mean e^margin."""

    name = "poisson"
    metric = "poisson-nloglik"

    def check_labels(self) -> None:
        """See Objective."""
        check_values("label", self.label, self.label >= 0.0, "counts, not negative")

    def margin_of(self, prediction: float) -> float:
        """The logarithm; of labels that are all zero, that of 1e-6."""
        if self.params.base_score is not None and prediction <= 0.0:
            raise ParameterError(f"parameter 'base_score': found {prediction}; objective 'poisson' allows (0, inf)")
        return float(np.log(max(prediction, 1e-6)))

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        self._by_rows(gradients.poisson, margin, gradient, hessian, self.params.max_delta_step, workers)

    def prediction(self, margin: Floats, workers: Workers | None = None) -> Floats:
        """The mean count."""
        return transformed(gradients.exponential_of, margin, workers)


class Quantile(Objective):
    """The pinball loss, least at the quantile `quantile_alpha` of the labels; an output for each of several quantiles.

    Its second derivative is zero, so a tree's structure is fitted with Hessian 1, and then each leaf gets the quantile
    of the residuals in it times the learning rate.
    """

    name = "quantile"
    metric = "quantile"

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.outputs = len(self.levels)

    @property
    def levels(self) -> tuple[float, ...]:
        """The quantile of each output."""
        alpha = self.params.quantile_alpha
        return alpha if isinstance(alpha, tuple) else (alpha,)

    def first_guess(self) -> Floats:
        """The quantiles of the labels."""
        label = self.reduction.gather(self.label)
        weight = None if self.weight is None else self.reduction.gather(self.weight)
        return np.array([least_quantile(label, level, weight) for level in self.levels], np.float32)

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        for output, level in enumerate(self.levels):
            rows = slice(output, output + 1)
            self._by_rows(gradients.quantile, margin[rows], gradient[rows], hessian[rows], level, workers)

    def refit(self, tree: Tree, leaf: NDArray[np.int32], margin: Floats, hessian: Floats, output: int = 0) -> Tree:
        """Leaves of sampled rows (positive Hessian) get the quantile of their residuals."""
        sampled = hessian > 0.0
        residual, leaf = (self.label - margin)[sampled], leaf[sampled]
        weight = None if self.weight is None else self.weight[sampled]
        residual, leaf = self.reduction.gather(residual), self.reduction.gather(leaf)
        weight = None if weight is None else self.reduction.gather(weight)
        order = np.argsort(leaf, kind="stable")
        start = np.searchsorted(leaf[order], np.arange(tree.size + 1))
        residual, weight = residual[order], None if weight is None else weight[order]
        value = tree.value.copy()
        for node in np.flatnonzero((tree.left < 0) & (np.diff(start) > 0)):
            rows = slice(start[node], start[node + 1])
            level = least_quantile(residual[rows], self.levels[output], None if weight is None else weight[rows])
            step = level * self.params.learning_rate / self.params.num_parallel_tree
            limit = self.params.max_delta_step * self.params.learning_rate / self.params.num_parallel_tree
            value[node] = step if limit == 0.0 else min(max(step, -limit), limit)
        return dataclasses.replace(tree, value=value)


class Softmax(Objective):
    """Cross-entropy of a class number and the probabilities e^margin / Σ e^margin of `num_class` outputs."""

    name = "softmax"
    metric = "mlogloss"

    def check_labels(self) -> None:
        """See Objective."""
        label = self.label
        whole = (label >= 0.0) & (label < self.outputs) & (label == np.floor(label))
        check_values("label", label, whole, f"whole numbers from 0 to {self.outputs - 1}")
        self._classes = label.astype(np.int32)

    def first_guess(self) -> Floats:
        """The logarithms of the classes' shares, less their mean; a class without rows counts as 1e-6."""
        share = [self.reduction.mean((self._classes == c).astype(np.float64), self.weight) for c in range(self.outputs)]
        if not np.isfinite(share).all():
            return np.zeros(self.outputs, np.float32)
        margin = np.log(np.maximum(share, 1e-6))
        return (margin - margin.mean()).astype(np.float32)

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        scratch = np.empty((workers.threads, 2, gradients.BLOCK), np.float32)
        arrays = margin, self._classes, gradient, hessian, scratch
        workers.each(gradients.softmax, margin.shape[1], *arrays, grain=GRAIN)
        self._weigh(self.weight, gradient, hessian, workers)

    def prediction(self, margin: Floats, workers: Workers | None = None) -> Floats:
        """The probability of each class."""
        return transformed(gradients.softmax_of, margin, workers)


class Custom(Objective):
    """A user's function (margin, dataset) -> (gradient, Hessian), each of the shape of the margin.

    That is (rows,), or (rows, outputs) of several outputs, such as those of a label matrix. Weights are multiplied in
    after it. Predictions are margins.
    """

    name = "custom"

    def __init__(self, params: Params, function: Callable[..., Any]) -> None:
        super().__init__(params)
        self.function = function

    def first_guess(self) -> Floats:
        """Zero: nothing is known of the loss."""
        return np.zeros(self.outputs, np.float32)

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective. Raises DataError for results of another shape, or that are not finite."""
        result = self.function(margin[0].copy() if self.outputs == 1 else margin.T.copy(), self.dataset)
        if not isinstance(result, tuple) or len(result) != 2:
            raise DataError(f"objective: the function returned {type(result).__name__}; allowed: (gradient, Hessian)")
        shape = (margin.shape[1],) if self.outputs == 1 else margin.shape[::-1]
        for what, values, out in zip(("gradient", "Hessian"), result, (gradient, hessian), strict=True):
            values = np.asarray(values, np.float32)
            if values.shape != shape:
                raise DataError(f"objective: the function's {what} has shape {values.shape}; allowed: {shape}")
            if not np.isfinite(values).all():
                row = int(np.argmin(np.isfinite(values).reshape(shape[0], -1).all(axis=1)))
                raise DataError(f"objective: the function's {what} of row {row} is {values[row]}; allowed: finite")
            out[...] = values.T
        self._weigh(self.weight, gradient, hessian, workers)


def least_quantile(values: Floats, alpha: float, weight: Floats | None = None) -> float:
    """The least value with at least the share `alpha` of the weight at or below it; it minimises the pinball loss."""
    if not len(values):
        return 0.0
    if weight is None:
        place = max(int(np.ceil(alpha * len(values))) - 1, 0)
        return float(np.partition(values, place)[place])
    order = np.lexsort((weight, values))
    below = np.cumsum(weight[order], dtype=np.float64)
    return float(values[order[min(int(np.searchsorted(below, alpha * below[-1])), len(values) - 1)]])

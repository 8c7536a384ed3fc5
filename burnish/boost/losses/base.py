"""The base of objectives: checked labels and weights, a first guess, gradient and Hessian, predictions (§2.1.2)."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Dataset
from burnish.boost.losses import gradients
from burnish.boost.losses.reduction import Reduction
from burnish.boost.params import Params
from burnish.boost.tree import Tree
from burnish.errors import DataError
from burnish.runtime.threads import GRAIN, Workers

Floats = NDArray[np.float32]


class Objective(ABC):
    """A loss. `prepare` binds it to the training data; `prediction` works without."""

    name = ""
    metric = "rmse"
    ranks = False  # whether rows belong to queries

    def __init__(self, params: Params) -> None:
        self.params = params
        self.outputs = params.num_class
        self.dataset: Dataset
        self.label: Floats
        self.weight: Floats | None
        self.reduction = Reduction()

    def set_params(self, params: Params) -> None:
        """Takes the parameters of a round, of which the learning rate may be another than before."""
        self.params = params

    def prepare(self, dataset: Dataset, reduction: Reduction) -> None:
        """Checks labels and weights, and keeps them. Raises DataError naming the first row that is wrong."""
        if dataset.label is None:
            raise DataError(f"objective {self.name!r}: the data has no labels; allowed: one for each row")
        _each_row("label", dataset.label, dataset.rows)
        self.bind(dataset, dataset.label, reduction)

    def bind(self, dataset: Dataset, label: Floats, reduction: Reduction) -> None:
        """Keeps one label of each row, and the weights, once they are checked."""
        self.dataset, self.label, self.reduction = dataset, _own(label), reduction
        self.weight = None
        if dataset.weight is not None:
            _each_row("weight", dataset.weight, dataset.rows)
            self.weight = _own(dataset.weight)
            check_values("weight", self.weight, self.weight >= 0.0, "numbers that are not negative")
        check_values("label", self.label, np.isfinite(self.label), "finite numbers")
        self.check_labels()

    def check_labels(self) -> None:  # noqa: B027 - most objectives take every finite label
        """Raises DataError if a label is outside the objective's range."""

    def base_score(self) -> Floats:
        """The best constant margin of each output, (outputs,), or the parameter `base_score` as a margin."""
        if self.params.base_score is not None:
            return np.full(self.outputs, self.margin_of(self.params.base_score), np.float32)
        return self.first_guess()

    def margin_of(self, prediction: float) -> float:
        """The margin that gives a prediction."""
        return prediction

    def first_guess(self) -> Floats:
        """The constant margin of least loss, (outputs,); zero without rows."""
        mean = self.reduction.mean(self.label, self.weight)
        return np.array([self.margin_of(mean) if np.isfinite(mean) else 0.0], np.float32)

    @abstractmethod
    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """Writes gradient and Hessian at the margins, all (outputs, rows), weights multiplied in."""

    def _by_rows(
        self, kernel: Any, margin: Floats, gradient: Floats, hessian: Floats, constant: float, workers: Workers
    ) -> None:
        """A kernel of one output on all rows."""
        arrays = margin[0], self.label, gradient[0], hessian[0], np.float32(constant)
        workers.each(kernel, margin.shape[1], *arrays, grain=GRAIN)
        self._weigh(self.weight, gradient, hessian, workers)

    def _weigh(self, weight: Floats | None, gradient: Floats, hessian: Floats, workers: Workers) -> None:
        if weight is not None:
            workers.each(gradients.multiply, gradient.shape[1], gradient, hessian, weight, grain=GRAIN)

    def prediction(self, margin: Floats, workers: Workers | None = None) -> Floats:
        """Predictions at margins, both (outputs, rows)."""
        return margin

    def refit(self, tree: Tree, leaf: NDArray[np.int32], margin: Floats, hessian: Floats, output: int = 0) -> Tree:
        """The tree of an output with the leaf values that the objective wants, from what rows (rows,) are in them."""
        return tree


def transformed(kernel: Any, margin: Floats, workers: Workers | None) -> Floats:
    """Applies a kernel to margins (outputs, rows), in ranges of rows on the workers: float32, of the same shape."""
    margin = np.ascontiguousarray(margin, np.float32)
    out = np.empty_like(margin)
    (workers or Workers(1)).each(kernel, margin.shape[1], margin, out, grain=GRAIN)
    return out


def _own(values: Floats) -> Floats:
    """The values as the kernels want them; memory that is read only is copied."""
    return np.require(values, np.float32, ("C", "W"))


def _each_row(what: str, values: Floats, rows: int) -> None:
    if values.shape != (rows,):
        raise DataError(f"{what}: found shape {values.shape}; allowed: ({rows},), one for each row")


def check_values(what: str, values: Floats, good: NDArray[np.bool_], allowed: str) -> None:
    """Raises DataError for the first value that is not good."""
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(f"{what} of row {row}: found {values[row]}; allowed: {allowed}")

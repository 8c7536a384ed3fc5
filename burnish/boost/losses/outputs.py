"""Multi-output objectives: a loss for each column of a label matrix, whose trees are grown one output at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Dataset
from burnish.boost.losses.reduction import Reduction
from burnish.boost.objective import Custom, Floats, Objective, objective_of
from burnish.boost.params import Params
from burnish.boost.tree import Tree
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

# Objectives of one margin for one label, of which a model may have several side by side.
SEPARABLE = (
    "squared_error", "logistic", "poisson", "quantile", "reg:absoluteerror", "reg:pseudohubererror", "huber",
    "reg:gamma", "reg:tweedie",
)  # fmt: skip


class PerOutput(Objective):
    """One objective on several labels of a row, each an output: XGBoost's multi_strategy="one_output_per_tree"."""

    def __init__(self, params: Params, targets: int) -> None:
        super().__init__(params)
        self.parts = [objective_of(params) for _ in range(targets)]
        self.name, self.metric, self.outputs = self.parts[0].name, self.parts[0].metric, targets

    def prepare(self, dataset: Dataset, reduction: Reduction) -> None:
        """See Objective. Raises DataError naming the output too."""
        labels = label_matrix(dataset, self.outputs)
        for number, part in enumerate(self.parts):
            try:
                part.bind(dataset, labels[:, number], reduction)
            except DataError as error:
                raise DataError(f"output {number}: {error}") from None
        self.dataset, self.reduction, self.weight = dataset, reduction, self.parts[0].weight

    def base_score(self) -> Floats:
        """See Objective."""
        return np.concatenate([part.base_score() for part in self.parts])

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        for number, part in enumerate(self.parts):
            own = slice(number, number + 1)
            part.gradient(margin[own], gradient[own], hessian[own], round_number, workers)

    def prediction(self, margin: Floats, workers: Workers | None = None) -> Floats:
        """See Objective: each output by itself."""
        return self.parts[0].prediction(margin, workers)

    def set_params(self, params: Params) -> None:
        """See Objective."""
        super().set_params(params)
        for part in self.parts:
            part.set_params(params)

    def refit(self, tree: Tree, leaf: NDArray[np.int32], margin: Floats, hessian: Floats, output: int = 0) -> Tree:
        """See Objective."""
        return self.parts[output].refit(tree, leaf, margin, hessian)


class CustomOutputs(Custom):
    """A user's function on a label matrix: margin, gradient and Hessian are (rows, outputs)."""

    def prepare(self, dataset: Dataset, reduction: Reduction) -> None:
        """See Objective; the function reads ``dataset.label`` itself."""
        self.bind(dataset, label_matrix(dataset, self.outputs)[:, 0], reduction)


def objective_for(params: Params, dataset: Dataset, targets: int | None = None) -> Objective:
    """The objective that the parameters name, for the labels of a data set, or for `targets` columns of them.

    Raises ParameterError for an objective that has no form for a label matrix.
    """
    targets = dataset.targets if targets is None else targets
    if targets == 1:
        return objective_of(params)
    if callable(params.objective):
        if params.num_class not in (1, targets):
            raise ParameterError(
                f"parameter 'num_class': found {params.num_class} with a label matrix of {targets} outputs; allowed: "
                f"1, or {targets}"
            )
        return CustomOutputs(replace(params, num_class=targets), params.objective)
    several = params.quantile_alpha
    if params.objective in SEPARABLE and not isinstance(several, tuple):
        return PerOutput(params, targets)
    if params.objective in SEPARABLE and isinstance(several, tuple):
        raise ParameterError(
            f"parameter 'quantile_alpha': found {len(several)} quantiles with a label matrix of "
            f"{targets} outputs; allowed: one quantile of all outputs, or one label with several quantiles"
        )
    raise ParameterError(
        f"objective: found {params.objective!r} with a label matrix of {targets} outputs; allowed: "
        f"{', '.join(map(repr, SEPARABLE))}, or a function; or a model for each column"
    )


def label_matrix(dataset: Dataset, outputs: int) -> NDArray[np.float32]:
    """The labels (rows, outputs). Raises DataError for none, or other columns of them."""
    if dataset.label is None:
        raise DataError("label: the data has no labels; allowed: one of each output for each row")
    if dataset.targets != outputs:
        raise DataError(f"label: found shape {dataset.label.shape}; allowed: ({dataset.rows}, {outputs})")
    return dataset.label

"""Update of a model, process_type "update": its trees keep their splits, and their leaves follow from other data."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.categories import encode_as
from burnish.boost.data import Dataset
from burnish.boost.ensemble import Ensemble
from burnish.boost.inference.forest import CompiledForest
from burnish.boost.params import Params
from burnish.boost.predictor import add_forest
from burnish.boost.tree import Tree
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers


class GrownTrees:
    """A grower of trees that are known: gives one after the other, and the leaf of every row in it."""

    def __init__(self, trees: tuple[Tree, ...], dataset: Dataset, workers: Workers) -> None:
        self._trees, self._table, self._rows, self._workers = iter(trees), dataset.table, dataset.rows, workers

    def grow(self, gradient: Any, hessian: Any, columns: Any) -> tuple[Tree, NDArray[np.int32]]:
        """The next tree, and the leaf (node number) of every row of the data set."""
        tree = next(self._trees)
        leaf = np.zeros((1, self._rows), np.float32)
        numbers = np.arange(tree.size, dtype=np.float32)
        add_forest(CompiledForest((tree,), 1, (numbers,)), self._table, leaf, self._workers)
        return tree, leaf[0].astype(np.int32)


def update_of(
    params: Params, dataset: Dataset, workers: Workers, model: Ensemble, rounds: int | None
) -> tuple[Params, GrownTrees]:
    """Parameters with the number of rounds to update, at most those of the model, and the grower of its trees.

    Raises ParameterError if `rounds` are more than there are, and for booster "dart", which changes trees again.
    """
    if params.booster == "dart":
        raise ParameterError("parameter 'process_type': found 'update' with booster 'dart'; allowed: with 'gbtree'")
    there = model.rounds // params.num_parallel_tree
    if rounds is not None and rounds > there:
        raise ParameterError(f"rounds: found {rounds} with process_type 'update'; allowed: 0 to {there}, the model's")
    model = model.arranged(dataset.feature_names, "continue_from")
    if model.features != dataset.features:
        raise ParameterError(
            f"continue_from: the model's features: found {model.features}; allowed: {dataset.features}"
        )
    fitting = encode_as(dataset, model.categories, model.category_policy)
    return replace(params, rounds=min(params.rounds, there)), GrownTrees(model.trees, fitting, workers)

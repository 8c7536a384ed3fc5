"""A random forest with mean and variance: the surrogate of AdaTune (§4.2.1), as in SMAC (Hutter et al. 2011)."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.data import Dataset
from burnish.boost.formats.values import float32_array, floats
from burnish.boost.grower import HistGrower
from burnish.boost.inference.forest import CompiledForest
from burnish.boost.model import Model, dumps, loads
from burnish.boost.params import Params
from burnish.boost.predictor import add_forest
from burnish.boost.sampling import column_sampler
from burnish.boost.tree import Tree
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers
from burnish.tune.models.base import Floats, MeasuredTrials, document, not_fitted, opened, table
from burnish.tune.models.trees import MAX_BIN


class ForestModel:
    """Regression trees on relative throughputs, each on a bootstrap sample of the measurements.

    `share` of the features, drawn for each level of a tree, may be split on: trees that differ more make the deviation,
    and with it expected improvement, more telling. A leaf holds `least` candidates or more.
    By default trees grow to their end, as those of scikit-learn that AdaTune has do: with so few rows they order
    candidates better than shallow ones. Raises ParameterError.
    """

    kind = "forest"
    objective = "regression"

    def __init__(
        self,
        *,
        trees: int = 50,
        max_depth: int = 32,
        least: int = 1,
        share: float = 0.5,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        if trees < 1:
            raise ParameterError(f"trees: found {trees}; allowed: 1 and more")
        if max_depth < 1:
            raise ParameterError(f"max_depth: found {max_depth}; allowed: 1 and more")
        if least < 1:
            raise ParameterError(f"least: found {least}; allowed: 1 and more")
        self.settings: dict[str, Any] = {
            "trees": trees, "max_depth": max_depth, "least": least, "share": share, "seed": seed,
        }  # fmt: skip
        self._params = Params.of({
            "learning_rate": 1.0, "reg_lambda": 0.0, "max_depth": max_depth, "min_child_weight": least,
            "colsample_bylevel": share, "seed": seed, "max_bin": MAX_BIN,
        })  # fmt: skip
        self._threads = threads
        self._workers = Workers(threads)
        self._fitted: _Fitted | None = None

    def fit(self, features: Any, cost_seconds: Any, groups: Any) -> None:
        """See CostModel."""
        rows = table("fit", features)
        measured = MeasuredTrials.of(len(rows), cost_seconds, groups)
        label, count, random = measured.throughput, len(rows), np.random.default_rng(self.settings["seed"])
        grower = HistGrower(Dataset.of(rows), self._params, self._workers)
        grown = []
        for number in range(self.settings["trees"]):
            # The Hessian of a row is how often it was drawn: a leaf's weight is then the mean of its rows.
            times = np.bincount(random.integers(0, count, count), minlength=count).astype(np.float32)
            columns = column_sampler(self._params, rows.shape[1], number)
            tree, leaf = grower.grow(-label * times, times, columns)
            tree = _between(tree, rows, times, random.random(tree.size))
            grown.append((tree, _leaf_variances(tree, leaf, label, times)))
        model = Model(tuple(tree for tree, _ in grown), rows.shape[1])
        self._fitted = _Fitted(model, tuple(variance for _, variance in grown))

    def predict(self, features: Any) -> Floats:
        """The mean of the trees, (n,), a relative throughput; see CostModel."""
        return self.predict_distribution(features)[0]

    def predict_distribution(self, features: Any) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the relative throughput, (n,) each; see UncertainModel.

        The variance is that of the mixture of all leaves a candidate reaches: variance of the leaves' means across the
        trees, and the mean of the variances in them (Hutter et al. 2014, "Algorithm runtime prediction", §4.3.2).
        """
        if self._fitted is None:
            raise not_fitted()
        rows = table("predict", features, self._fitted.model.features)
        return self._fitted.moments(rows, self._workers)

    def fresh(self, seed: int) -> "ForestModel":
        """See CostModel."""
        return ForestModel(**{**self.settings, "seed": seed}, threads=self._threads)

    def dump(self) -> dict[str, Any]:
        """See CostModel."""
        if self._fitted is None:
            return document(self.kind, self.settings, None)
        variances = [floats(variance) for variance in self._fitted.variances]
        state = {"model": json.loads(dumps(self._fitted.model)), "variances": variances}
        return document(self.kind, self.settings, state)

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Self:
        """See CostModel."""
        _, settings, state = opened(document, cls.kind)
        model = cls(**settings)
        if state is not None:
            trees = loads(json.dumps(state["model"]), "cost model")
            variances = tuple(float32_array(values, "cost model: variances") for values in state["variances"])
            if [len(variance) for variance in variances] != [tree.size for tree in trees.trees]:
                raise DataError("cost model: variances do not fit the trees; allowed: one for each node")
            model._fitted = _Fitted(trees, variances)
        return model


class _Fitted:
    """Trees with the variance in each of their leaves."""

    def __init__(self, model: Model, variances: tuple[Floats, ...]) -> None:
        self.model, self.variances = model, variances

    @cached_property
    def _numbered(self) -> CompiledForest:
        """A forest in which every tree is an output of its own, and gives the number of the leaf among all nodes."""
        ends = np.cumsum([0, *(tree.size for tree in self.model.trees)])
        numbers = tuple(np.arange(a, b, dtype=np.float32) for a, b in pairwise(ends))
        return CompiledForest(self.model.trees, len(numbers), numbers)

    @cached_property
    def _means(self) -> Floats:
        return np.concatenate([tree.value for tree in self.model.trees])

    @cached_property
    def _variances(self) -> Floats:
        return np.concatenate(self.variances)

    def moments(self, rows: Floats, workers: Workers) -> tuple[Floats, Floats]:
        """Mean and standard deviation, (n,) each."""
        leaf = np.zeros((len(self.model.trees), len(rows)), np.float32)
        add_forest(self._numbered, rows, leaf, workers)
        mean, std = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
        _moments(leaf, self._means, self._variances, mean, std)
        return mean, std


@njit(cache=True, nogil=True)
def _moments(leaf: Any, means: Any, variances: Any, mean: Any, std: Any) -> None:
    """Mean and deviation of the mixture of each row's leaves, from their numbers (trees, n)."""
    trees, rows = leaf.shape
    first, second = np.zeros(rows), np.zeros(rows)
    for tree in range(trees):
        for row in range(rows):
            number = np.int64(leaf[tree, row])
            value = np.float64(means[number])
            first[row] += value
            second[row] += value * value + variances[number]
    for row in range(rows):
        center = first[row] / trees
        mean[row] = center
        std[row] = math.sqrt(max(second[row] / trees - center * center, 0.0))


def _between(tree: Tree, rows: Floats, times: Floats, share: NDArray[np.float64]) -> Tree:
    """The tree with each threshold anywhere between the two sides of the rows it parts, at `share` (nodes,) of the way.

    So trees differ where there are no data, and the variance grows with the distance from them; growers put all
    thresholds at values of the data (Hutter et al. 2014, §4.3.2).
    """
    lower, upper = np.full(tree.size, -np.inf), np.full(tree.size, np.inf)
    _sides(tree.left, tree.right, tree.feature, tree.threshold, rows, times, lower, upper)
    inner = tree.left >= 0
    threshold = tree.threshold.copy()
    moved = (lower[inner] + share[inner] * (upper[inner] - lower[inner])).astype(np.float32)
    threshold[inner] = np.where(moved > lower[inner], moved, upper[inner])
    return replace(tree, threshold=threshold)


@njit(cache=True, nogil=True)
def _sides(left: Any, right: Any, feature: Any, threshold: Any, rows: Any, times: Any, lower: Any, upper: Any) -> None:
    """The largest value that goes left and the smallest that goes right at every node, of the rows that were drawn."""
    for row in range(len(rows)):
        node = 0
        while times[row] > 0 and left[node] >= 0:
            value = rows[row, feature[node]]
            if value < threshold[node]:
                lower[node] = max(lower[node], value)
                node = left[node]
            else:
                upper[node] = min(upper[node], value)
                node = right[node]


def _leaf_variances(tree: Tree, leaf: NDArray[np.int32], label: Floats, times: Floats) -> Floats:
    """The variance of the labels in each leaf, rows counted as often as they were drawn, (nodes,)."""
    rest = label - tree.value[leaf]
    total = np.bincount(leaf, times * rest * rest, tree.size)
    drawn = np.bincount(leaf, times, tree.size)
    return np.divide(total, drawn, out=np.zeros(tree.size), where=drawn > 0).astype(np.float32)

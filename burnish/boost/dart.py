"""Training with dropped trees: Vinayak and Gilad-Bachrach 2015, "DART: dropouts meet multiple additive regression"."""

from dataclasses import replace
from typing import Any

import numpy as np

from burnish.boost.booster import Training
from burnish.boost.data import Dataset
from burnish.boost.losses.base import Floats
from burnish.boost.params import Params
from burnish.boost.sampling import DROPS, stream
from burnish.boost.threads import Workers
from burnish.boost.tree import Tree
from burnish.errors import ParameterError


class DartTraining(Training):
    """Each round is fitted to what a random part of the trees lacks; then new and dropped trees share the step.

    Weights are multiplied into the leaves, so that a model is one as any other. Margins are computed anew whenever
    trees were dropped: a model predicts what its training saw, bit for bit.
    """

    rescales = True

    def __init__(self, params: Params, dataset: Dataset, workers: Workers, *more: Any) -> None:
        if params.early_stopping_rounds:
            raise ParameterError(
                "parameter 'early_stopping_rounds': found with booster 'dart', whose later rounds change the trees of "
                "the best one; allowed: none, or booster 'gbtree'"
            )
        super().__init__(params, dataset, workers, *more)
        self._whole = list(self.trees)
        self._weights = [1.0] * len(self.trees)

    def boost(self) -> list[Tree]:
        """One round; see Training."""
        dropped = self._dropped(self.rounds)
        if dropped:
            self.margin[:] = self._margins_without(dropped)
        grown = super().boost()
        self._whole.extend(grown)
        self._weights.extend([1.0] * len(grown))
        if dropped:
            self._normalize(dropped, len(grown))
            self.margin[:] = self.margins(self.dataset)
        return grown

    def replay(self, trees: Any) -> None:
        """Not possible: weights are not kept."""
        raise ParameterError("resume_from: found with booster 'dart', whose trees change later; allowed: 'gbtree'")

    def _uniform(self, *counters: int) -> float:
        return float(stream(self.params.seed, DROPS, *counters)) / 2.0**64

    def _dropped(self, number: int) -> list[int]:
        """The trees that round `number` does without."""
        params, count = self.params, len(self._whole)
        if not count or self._uniform(number, 0) < params.skip_drop:
            return []
        weight = np.array(self._weights)
        share = weight * (count / weight.sum()) if params.sample_type == "weighted" else np.ones(count)
        drawn = [self._uniform(number, 1, tree) for tree in range(count)]
        found = np.flatnonzero(np.array(drawn) < params.rate_drop * share).tolist()
        if not found and params.one_drop:
            edges = np.cumsum(share)
            found = [min(int(np.searchsorted(edges, self._uniform(number, 2) * edges[-1], "right")), count - 1)]
        return [int(tree) for tree in found]

    def _margins_without(self, dropped: list[int]) -> Floats:
        trees, self.trees = self.trees, list(self.trees)
        for number in dropped:
            self.trees[number] = replace(trees[number], value=np.zeros_like(trees[number].value))
        margin = self.margins(self.dataset)
        self.trees = trees
        return margin

    def _normalize(self, dropped: list[int], grown: int) -> None:
        """Weights of dropped and new trees, as in XGBoost."""
        rate, count = self.params.learning_rate / grown, len(dropped)
        forest = self.params.normalize_type == "forest"
        kept = 1.0 / (1.0 + rate) if forest else count / (count + rate)
        new = 1.0 / (1.0 + rate) if forest else 1.0 / (count + rate)
        total = len(self._whole)
        for number in dropped:
            self._weights[number] *= kept
        self._weights[total - grown :] = [new] * grown
        for number in (*dropped, *range(total - grown, total)):
            tree = self._whole[number]
            self.trees[number] = replace(tree, value=tree.value * np.float32(self._weights[number]))

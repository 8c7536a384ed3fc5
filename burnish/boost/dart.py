"""Dropped trees of a training: Vinayak and Gilad-Bachrach 2015, "DART: dropouts meet multiple additive regression"."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from burnish.boost.params import Params
from burnish.boost.sampling import DROPS, stream
from burnish.boost.tree import Tree
from burnish.errors import ParameterError


class Drops:
    """The trees of a training as they were grown, and the weight of each; which trees a round does without."""

    def __init__(self, params: Params, trees: Sequence[Tree]) -> None:
        self.params = params
        self._whole = list(trees)
        self._weights = [1.0] * len(trees)

    def chosen(self, number: int) -> list[int]:
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

    def add(self, grown: Sequence[Tree]) -> None:
        """Keeps the trees of a round."""
        self._whole.extend(grown)
        self._weights.extend([1.0] * len(grown))

    def shared(self, dropped: Sequence[int], grown: int) -> dict[int, Tree]:
        """The dropped trees and the last `grown` ones at their new weights, as in XGBoost, by number."""
        rate, count = self.params.learning_rate / grown, len(dropped)
        forest = self.params.normalize_type == "forest"
        kept = 1.0 / (1.0 + rate) if forest else count / (count + rate)
        new = 1.0 / (1.0 + rate) if forest else 1.0 / (count + rate)
        total = len(self._whole)
        for number in dropped:
            self._weights[number] *= kept
        self._weights[total - grown :] = [new] * grown
        return {number: self._weighted(number) for number in (*dropped, *range(total - grown, total))}

    def _weighted(self, number: int) -> Tree:
        tree = self._whole[number]
        return replace(tree, value=tree.value * np.float32(self._weights[number]))

    def _uniform(self, *counters: int) -> float:
        return float(stream(self.params.seed, DROPS, *counters)) / 2.0**64


def without(trees: Sequence[Tree], dropped: Sequence[int]) -> list[Tree]:
    """The trees, of which those dropped predict zero."""
    kept = list(trees)
    for number in dropped:
        kept[number] = replace(kept[number], value=np.zeros_like(kept[number].value))
    return kept


def check_dart(params: Params) -> None:
    """Raises ParameterError for what dropping trees rules out."""
    if params.early_stopping_rounds:
        raise ParameterError(
            "parameter 'early_stopping_rounds': found with booster 'dart', whose later rounds change the trees of "
            "the best one; allowed: none, or booster 'gbtree'"
        )

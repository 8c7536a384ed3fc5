"""Ranking: pairwise and LambdaMART objectives on pairs of documents of a query.

Burges 2010, "From RankNet to LambdaRank to LambdaMART", sections 4 and 7; pairs and normalisation as in XGBoost.
"""

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Dataset
from burnish.boost.losses.base import Floats, Objective, check_values
from burnish.boost.losses.pairs import (
    MAP,
    NDCG,
    PAIRWISE,
    PairRule,
    PairScratch,
    Queries,
    lambda_gradients,
    order_queries,
)
from burnish.boost.losses.reduction import Reduction
from burnish.boost.params import Params
from burnish.boost.sampling import PAIRS, stream
from burnish.errors import DataError
from burnish.runtime.threads import Workers

LARGEST_EXPONENT = 31  # of the gain 2^label - 1, as in XGBoost


class Ranking(Objective):
    """Logistic loss on pairs of documents of one query with different labels, of the better's score less the other's.

    A row's weight multiplies its own statistics. Labels of NDCG are grades whose gain is 2^label - 1 (or the label).
    """

    metric = "ndcg"
    ranks = True
    kind = PAIRWISE

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.sampled = params.lambdarank_pair_method == "mean"
        self.pairs = params.lambdarank_num_pair_per_sample or (1 if self.sampled else 32)

    def prepare(self, dataset: Dataset, reduction: Reduction) -> None:
        """See Objective; also orders each query by label, once. Raises DataError without queries."""
        super().prepare(dataset, reduction)
        start = query_starts(dataset, f"objective {self.name!r}")
        count = int(np.diff(start).max(initial=1))
        self._start, self._first_row = start, reduction.before(dataset.rows)
        self._gain = gains(self.label, self.params.ndcg_exp_gain)
        self._by_label = np.empty(dataset.rows, np.int32)
        order_queries(self.label, start, self._by_label)
        self._longest = np.uint64(count)
        self._discounts = discounts(count)
        self._ideal = self._ideals()

    def check_labels(self) -> None:
        """See Objective."""
        label, exponential = self.label, self.params.ndcg_exp_gain and self.kind == NDCG
        check_values("label", label, label >= 0.0, "relevance grades, not negative")
        if exponential:
            check_values(
                "label", label, label <= LARGEST_EXPONENT, f"grades up to {LARGEST_EXPONENT}, for gains 2^label - 1"
            )
        if self.kind == MAP:
            check_values("label", label, (label == 0.0) | (label == 1.0), "0 or 1")

    def _ideals(self) -> Floats:
        """1 / best possible value of each query, (queries,); 0 where nothing is relevant."""
        best = np.zeros(len(self._start) - 1)
        if self.kind == PAIRWISE or not len(best):
            return best.astype(np.float32)
        position = np.arange(len(self.label)) - np.repeat(self._start[:-1], np.diff(self._start))
        if self.kind == NDCG:
            ranked = self._gain[self._by_label + np.repeat(self._start[:-1], np.diff(self._start))]
            parts = ranked.astype(np.float64) * self._discounts[position]
            if not self.sampled:
                parts[position >= self.pairs] = 0.0  # as XGBoost: the list is cut where the pairs are
        else:
            parts = (self.label > 0).astype(np.float64)
        np.add.at(best, np.repeat(np.arange(len(best)), np.diff(self._start)), parts)
        return np.divide(1.0, best, out=np.zeros_like(best), where=best > 0).astype(np.float32)

    def first_guess(self) -> Floats:
        """Zero: a constant orders nothing."""
        return np.zeros(self.outputs, np.float32)

    def gradient(self, margin: Floats, gradient: Floats, hessian: Floats, round_number: int, workers: Workers) -> None:
        """See Objective."""
        key = stream(self.params.seed, PAIRS, round_number)
        queries = Queries(
            self.label, self._gain, self._start, self._by_label, self._ideal, self._discounts,
            np.uint64(self._first_row), self._longest,
        )  # fmt: skip
        normalize = self.params.lambdarank_normalization
        rule = PairRule(self.kind, self.sampled, normalize, np.uint64(self.pairs), key)
        given = margin[0], queries, rule, gradient[0], hessian[0]
        edges = self._query_edges(workers)
        workers.each(
            lambda_gradients, len(edges) - 1, *given, edges, PairScratch.of(int(self._longest), workers.threads)
        )
        self._weigh(self.weight, gradient, hessian, workers)

    def _query_edges(self, workers: Workers) -> NDArray[np.uint64]:
        """Where ranges of whole queries with about equally many rows begin, and the last one's end."""
        rows, queries = int(self._start[-1]), len(self._start) - 1
        begins = [begin for begin, _ in workers.ranges(rows, 2048)]
        return np.append(np.searchsorted(self._start, begins), queries).astype(np.uint64)


class PairwiseRanking(Ranking):
    """Every pair counts the same (RankNet)."""

    name = "rank_pairwise"


class NdcgRanking(Ranking):
    """A pair counts as much as swapping it changes the query's NDCG (LambdaMART)."""

    name = "rank_ndcg"
    kind = NDCG


class MapRanking(Ranking):
    """A pair counts as much as swapping it changes the query's average precision."""

    name = "rank_map"
    metric = "map"
    kind = MAP


def query_starts(dataset: Dataset, who: str) -> NDArray[np.int64]:
    """Where the rows of each query begin, (queries + 1,). Raises DataError if the data has no queries."""
    if dataset.group_start is None:
        raise DataError(f"{who}: the data has no queries; allowed: 'group' sizes or a 'qid' for each row")
    start = np.array(dataset.group_start, np.int64)
    if start[0] != 0 or start[-1] != dataset.rows or (np.diff(start) < 0).any():
        raise DataError(f"{who}: the sizes of the queries add up to {start[-1]}; allowed: {dataset.rows}, the rows")
    return start


def gains(label: Floats, exponential: bool) -> Floats:
    """The gain of each label: 2^label - 1, or the label."""
    if not exponential:
        return label
    return (np.exp2(np.minimum(label, LARGEST_EXPONENT).astype(np.float64)) - 1.0).astype(np.float32)


def discounts(count: int) -> Floats:
    """1 / log2(rank + 2) of ranks 0 … count - 1."""
    return (1.0 / np.log2(np.arange(count) + 2.0)).astype(np.float32)

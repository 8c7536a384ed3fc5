"""Gradient-boosted trees as the cost model (AutoTVM §3.1): rank loss on sampled pairs, or squared error."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.model import Model, dumps, loads
from burnish.boost.params import Params
from burnish.errors import DataError
from burnish.runtime.threads import Workers
from burnish.tune.models.base import Floats, MeasuredTrials, check_objective, document, not_fitted, opened, table

MAX_BIN = 64  # knobs and loop features take few values
PAIRS = 1 << 14  # drawn in a round, about,
MOST_PAIRS = 32  # of one candidate


class TreeModel:
    """Boosted trees on `burnish.boost`, by histograms of 64 bins.

    Of the objective "rank", each candidate is compared with some others of its task, drawn anew in every round, the
    fewer the more candidates there are: eq. 5.2 of thesis-chen sums over all pairs, whose number grows with the square.
    Of "regression", a score is the throughput relative to the task's best. Raises ParameterError.
    """

    kind = "trees"

    def __init__(
        self,
        objective: str = "rank",
        *,
        rounds: int = 50,
        learning_rate: float = 0.2,
        max_depth: int = 4,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.objective = check_objective(objective)
        self.settings: dict[str, Any] = {
            "objective": objective, "rounds": rounds, "learning_rate": learning_rate, "max_depth": max_depth,
            "seed": seed,
        }  # fmt: skip
        self._params(1)
        self._workers = Workers(threads)
        self._threads = threads
        self._model: Model | None = None

    @property
    def model(self) -> Model | None:
        """The trees; None before the first fit."""
        return self._model

    def fit(self, features: Any, cost_seconds: Any, groups: Any, scores: Floats | None = None) -> None:
        """See CostModel. scores: (n,), of a model that this one adds to, as boosting goes on from its margins."""
        rows = table("fit", features)
        measured = MeasuredTrials.of(len(rows), cost_seconds, groups)
        order, sizes = measured.by_group()
        sorted_rows = rows if measured.groups == 1 else rows[order]
        margin, params = None, self._params(len(rows))
        if scores is not None:
            if np.shape(scores) != (len(rows),):
                raise DataError(f"fit: found scores {list(np.shape(scores))}; allowed: [{len(rows)}]")
            margin, params = np.asarray(scores, np.float32)[order], replace(params, base_score=0.0)
        dataset = Dataset.of(sorted_rows, measured.throughput[order], base_margin=margin, group=sizes)
        self._model = train(params, dataset, threads=self._threads)

    def _params(self, rows: int) -> Params:
        """Boosting parameters for a training set of ``rows`` rows."""
        settings = self.settings
        params = {name: settings[name] for name in ("rounds", "learning_rate", "max_depth", "seed")}
        params |= {"max_bin": MAX_BIN, "min_child_weight": 2.0}
        if self.objective == "rank":
            pairs = min(max(PAIRS // rows, 1), MOST_PAIRS)
            # A row's statistics are sums over its pairs, so regularisation is by pair. They are not normalised: that
            # would divide them by a measure of how many candidates the task has. A candidate that differs from all
            # others by a quarter of what its pairs may weigh can be a leaf: often one is all that a search has seen.
            params |= {
                "objective": "rank_pairwise", "lambdarank_pair_method": "mean", "lambdarank_normalization": False,
                "lambdarank_num_pair_per_sample": pairs, "min_child_weight": pairs / 4, "reg_lambda": pairs,
            }  # fmt: skip
        return Params.of(params)

    def predict(self, features: Any) -> Floats:
        """See CostModel."""
        if self._model is None:
            raise not_fitted()
        rows = table("predict", features, self._model.features)
        scores: Floats = self._model.predict_margin(rows, self._workers)[0]
        return scores

    def fresh(self, seed: int) -> "TreeModel":
        """See CostModel."""
        return TreeModel(**{**self.settings, "seed": seed}, threads=self._threads)

    def dump(self) -> dict[str, Any]:
        """See CostModel."""
        return document(self.kind, self.settings, None if self._model is None else json.loads(dumps(self._model)))

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Self:
        """See CostModel."""
        _, settings, state = opened(document, cls.kind)
        model = cls(**settings)
        if state is not None:
            model._model = loads(json.dumps(state), "cost model")
        return model

"""Transfer learning (thesis-chen §5.3, eq. 5.4): a global model of other tasks, and a local one that adds to it."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from burnish.errors import ParameterError
from burnish.tune.models.base import CostModel, Floats, document, opened, table
from burnish.tune.models.registry import load_model
from burnish.tune.models.trees import TreeModel


class TransferModel:
    """f = f_global + f_local (eq. 5.4): the global model is frozen, and boosting goes on from its scores.

    The global model has been fitted on other tasks' measurements. It reads the first `invariant` columns of the
    features (by default all), which must mean the same for every task; the local trees read all columns. With the
    objective "regression" the local trees learn what the global model leaves over, with "rank" they learn where it
    orders pairs wrongly. Both models have the same objective. Until it is fitted, the model predicts as the global one
    alone does. Raises ParameterError.
    """

    kind = "transfer"

    def __init__(self, global_model: CostModel, local: TreeModel | None = None, invariant: int | None = None) -> None:
        local = local or TreeModel(global_model.objective)
        if local.objective != global_model.objective:
            raise ParameterError(
                f"local: found objective {local.objective!r}; allowed: {global_model.objective!r}, the global model's"
            )
        if invariant is not None and invariant < 1:
            raise ParameterError(f"invariant: found {invariant}; allowed: 1 and more columns")
        self.objective = global_model.objective
        self._global, self._local, self._invariant = global_model, local, invariant

    def fit(self, features: Any, cost_seconds: Any, groups: Any) -> None:
        """Fits the local trees on the task at hand; see CostModel."""
        rows = table("fit", features)
        self._local.fit(rows, cost_seconds, groups, scores=self._global_scores(rows))

    def predict(self, features: Any) -> Floats:
        """See CostModel."""
        rows = table("predict", features)
        scores = self._global_scores(rows)
        return scores if self._local.model is None else scores + self._local.predict(rows)

    def _global_scores(self, rows: Floats) -> Floats:
        invariant = rows if self._invariant is None else np.ascontiguousarray(rows[:, : self._invariant])
        return self._global.predict(invariant)

    def fresh(self, seed: int) -> "TransferModel":
        """See CostModel; the global model stays as it is."""
        return TransferModel(self._global, self._local.fresh(seed), self._invariant)

    def dump(self) -> dict[str, Any]:
        """See CostModel."""
        settings = {"global": self._global.dump(), "invariant": self._invariant}
        return document(self.kind, settings, {"local": self._local.dump()})

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Self:
        """See CostModel."""
        _, settings, state = opened(document, cls.kind)
        return cls(load_model(settings["global"]), TreeModel.load(state["local"]), settings["invariant"])

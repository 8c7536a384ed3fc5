"""Transfer learning (thesis-chen §5.3, eq. 5.4): a global model of other tasks, and a local one that adds to it."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from burnish.errors import ParameterError
from burnish.tune.models.base import (
    CostModel,
    Floats,
    LoopNests,
    MeasuredTrials,
    NestsAndTable,
    document,
    opened,
    table,
)
from burnish.tune.models.registry import load_model
from burnish.tune.models.trees import TreeModel

FAITH = 4.0  # measurements that speak for the global model as it is, before there are any
_COMPARED = 128  # of a task's measurements, one with another
_HALVINGS = 12


class TransferModel:
    """f = w f_global + f_local (eq. 5.4): the global model is frozen, and boosting goes on from its scores.

    The paper's w is 1. Here ``trust`` in the global model falls as far as it orders wrongly what is measured: a search
    that starts from kernels of another kind would otherwise go on where they were fast, and learn of nothing else.

    The global model has been fitted on other tasks' measurements. It reads the first `invariant` columns of the
    features (by default all), which must mean the same for every task; the local trees read all columns. Of features
    that are `NestsAndTable`, the global model reads the loop nests and the local trees the table. With the
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
        self.trust = 1.0

    def fit(self, features: Any, cost_seconds: Any, groups: Any) -> None:
        """Fits the local trees on the task at hand; see CostModel."""
        common, rows = self._parts("fit", features)
        measured, known = MeasuredTrials.of(len(rows), cost_seconds, groups), self._global.predict(common)
        self.trust = (_trust_in_order if self.objective == "rank" else _trust_in_size)(known, measured)
        self._local.fit(rows, cost_seconds, groups, scores=np.float32(self.trust) * known)

    def predict(self, features: Any) -> Floats:
        """See CostModel."""
        common, rows = self._parts("predict", features)
        scores: Floats = np.float32(self.trust) * self._global.predict(common)
        return scores if self._local.model is None else scores + self._local.predict(rows)

    def _parts(self, what: str, features: Any) -> tuple[Floats | LoopNests, Floats]:
        """Features of the global model, and those of the local one."""
        if isinstance(features, NestsAndTable):
            return features.nests, table(what, features.table)
        rows = table(what, features)
        return (rows if self._invariant is None else np.ascontiguousarray(rows[:, : self._invariant])), rows

    def fresh(self, seed: int) -> "TransferModel":
        """See CostModel; the global model stays as it is."""
        return TransferModel(self._global, self._local.fresh(seed), self._invariant)

    def dump(self) -> dict[str, Any]:
        """See CostModel."""
        settings = {"global": self._global.dump(), "invariant": self._invariant}
        return document(self.kind, settings, {"local": self._local.dump(), "trust": self.trust})

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Self:
        """See CostModel."""
        _, settings, state = opened(document, cls.kind)
        model = cls(load_model(settings["global"]), TreeModel.load(state["local"]), settings["invariant"])
        model.trust = float(state["trust"])
        return model


def _trust_in_order(scores: Floats, measured: MeasuredTrials) -> float:
    """The weight of scores, 0 … 1, under which the order of each task's measurements is likeliest.

    Likelihood as of the rank objective (eq. 5.2), of all pairs of a task together as if of one pair a measurement;
    beside them stands a prior about 1, as of ``FAITH`` measurements. The sum is convex in the weight.
    """
    steps = []
    for group in range(measured.groups):
        own = np.flatnonzero(measured.group == group)
        own = own[:: -(-len(own) // _COMPARED)]
        faster = measured.throughput[own, None] > measured.throughput[None, own]
        steps.append((scores[own, None] - scores[None, own])[faster].astype(np.float64))
    step = np.concatenate(steps)
    if not len(step):
        return 1.0
    return _falling(lambda weight: len(scores) * np.mean(step * (1.0 - np.tanh(weight * step / 2.0)) / 2.0))


def _trust_in_size(scores: Floats, measured: MeasuredTrials) -> float:
    """The weight of scores, 0 … 1, that leaves the least squares of what is measured; with the same prior."""
    scale = float(np.var(measured.throughput)) or 1.0
    label, score = (values - values.mean(dtype=np.float64) for values in (measured.throughput, scores))
    return _falling(lambda weight: len(scores) * np.mean((label - weight * score) * score) / scale)


def _falling(gain: Callable[[float], np.floating]) -> float:
    """Bisection in 0 … 1 for the zero of a falling derivative of likelihood and prior; else the end it points to."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if gain(middle) + FAITH * (1.0 - middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2

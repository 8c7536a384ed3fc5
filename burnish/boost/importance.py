"""Feature importance: how often features are tested, what their tests gain, and how many rows they see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from burnish.errors import ParameterError

if TYPE_CHECKING:
    from burnish.boost.ensemble import Ensemble

KINDS = ("weight", "gain", "cover", "total_gain", "total_cover")


def importance(model: Ensemble, kind: str = "gain") -> NDArray[np.float64]:
    """The importance of every feature, (features,), not normalised; 0 for features that no tree tests.

    `weight`: the number of nodes that test the feature. `total_gain`: the reduction of the loss by those nodes
    (eq. 2.7). `total_cover`: the sum of the Hessians of the rows that reach them. `gain`, `cover`: totals per node.
    Raises ParameterError for another kind.
    """
    if kind not in KINDS:
        raise ParameterError(f"importance: kind is {kind!r}, allowed: {', '.join(KINDS)}")
    weight, total = np.zeros(model.features), np.zeros(model.features)
    measure = kind.removeprefix("total_")
    for tree in model.trees:
        inner = tree.left >= 0
        feature = tree.feature[inner]
        weight += np.bincount(feature, minlength=model.features)
        if measure != "weight":
            values = (tree.gain if measure == "gain" else tree.cover)[inner]
            total += np.bincount(feature, values.astype(np.float64), model.features)
    if kind == "weight":
        return weight
    if kind.startswith("total_"):
        return total
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)


def shares(model: Ensemble, kind: str = "gain") -> NDArray[np.float32]:
    """The importance of every feature as a share of their sum, (features,); all 0 if no tree tests any."""
    values = importance(model, kind)
    total = values.sum()
    return (values / total if total else values).astype(np.float32)


def importance_by_name(model: Ensemble, kind: str = "gain") -> dict[str, float]:
    """The importance of the features that any tree tests, by name, the most important first."""
    used = importance(model, "weight") > 0
    scores = zip(model.names, importance(model, kind).tolist(), used.tolist(), strict=True)
    return dict(sorted(((name, score) for name, score, known in scores if known), key=lambda item: -item[1]))

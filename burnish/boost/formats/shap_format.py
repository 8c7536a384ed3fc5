"""SHAP's form of a model: the dictionary of trees that ``shap.TreeExplainer`` takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.boost.ensemble import Ensemble
from burnish.boost.tree import Tree
from burnish.errors import DataError, ParameterError


def explainer_trees(model: Any) -> dict[str, Any]:
    """The trees of a Model or a fitted estimator as ``shap.TreeExplainer(explainer_trees(model))`` takes them.

    Margins are explained, of the rounds up to `best_iteration`. Raises ParameterError for what is no model, and
    DataError for one that splits by categories, which SHAP's form cannot hold.
    """
    found = getattr(model, "model_", model)
    if not isinstance(found, Ensemble):
        raise ParameterError(f"explainer_trees: found {type(model).__name__}; allowed: a Model, or a fitted estimator")
    found = found.slice(*found.used)
    if any(len(tree.category) for tree in found.trees):
        raise DataError(
            "explainer_trees: found splits by category; allowed: by numbers. The nearest there is: "
            "burnish.boost.shap.contributions(model, X)"
        )
    trees = [_tree(tree, number % found.outputs, found.outputs) for number, tree in enumerate(found.trees)]
    base = found.base_score.astype(np.float64)
    offset = {"base_offset": base if found.outputs > 1 else float(base[0])}
    kind = {"tree_output": "log_odds", "objective": "binary_crossentropy"} if found.objective == "logistic" else {}
    return {"trees": trees, "input_dtype": np.float32, "internal_dtype": np.float64, **offset, **kind}


def _tree(tree: Tree, output: int, outputs: int) -> dict[str, Any]:
    """One tree; SHAP sends ``x <= threshold`` to the left, so that thresholds are the next float32 below ours."""
    value = np.zeros((tree.size, outputs))
    value[:, output] = tree.value
    return {
        "children_left": tree.left, "children_right": tree.right,
        "children_default": np.where(tree.default_left, tree.left, tree.right),
        "feature": tree.feature,
        "threshold": np.nextafter(tree.threshold, np.float32(-np.inf)).astype(np.float64),
        "value": value, "node_sample_weight": tree.cover.astype(np.float64),
    }  # fmt: skip

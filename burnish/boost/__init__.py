"""Tree boosting (thesis-chen ch. 2): regularised second-order boosting with exact, approximate and histogram search."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.boost.booster import Callback, Progress, train
    from burnish.boost.checkpoint import keep_on_interrupt, print_scores, save_every
    from burnish.boost.cross_validation import cv
    from burnish.boost.data import Dataset, Sparse
    from burnish.boost.distributed import train_distributed
    from burnish.boost.formats.shap_format import explainer_trees
    from burnish.boost.model import Model
    from burnish.boost.params import Params
    from burnish.boost.prediction import predict
    from burnish.boost.sklearn import GBTClassifier, GBTRanker, GBTRegressor
    from burnish.boost.tree import Tree

_HOME = {
    "Callback": "booster",
    "Dataset": "data",
    "GBTClassifier": "sklearn",
    "GBTRanker": "sklearn",
    "GBTRegressor": "sklearn",
    "Model": "model",
    "Params": "params",
    "Progress": "booster",
    "Sparse": "data",
    "Tree": "tree",
    "cv": "cross_validation",
    "explainer_trees": "formats.shap_format",
    "keep_on_interrupt": "checkpoint",
    "predict": "prediction",
    "print_scores": "checkpoint",
    "save_every": "checkpoint",
    "train": "booster",
    "train_distributed": "distributed",
}

__all__ = [
    "Callback", "Dataset", "GBTClassifier", "GBTRanker", "GBTRegressor", "Model", "Params", "Progress", "Sparse",
    "Tree", "cv", "explainer_trees", "keep_on_interrupt", "predict", "print_scores", "save_every", "train",
    "train_distributed",
]  # fmt: skip


if not TYPE_CHECKING:  # a checker is to know the names above, and no other

    def __getattr__(name: str) -> Any:
        """Imports a public name when it is first used: numba, and scikit-learn for its three estimators, take time."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

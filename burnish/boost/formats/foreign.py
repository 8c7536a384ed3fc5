"""Models of any kind that holds boosted trees, as ours: estimators, and boosters of XGBoost and LightGBM in memory."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from burnish.errors import ParameterError

if TYPE_CHECKING:
    from burnish.boost.model import Model

_LIBRARIES = ("xgboost", "lightgbm")


def holds_trees(model: Any) -> bool:
    """Whether `model` is ours, one of our estimators, or a booster or estimator of XGBoost or LightGBM.

    Nothing is imported to find out.
    """
    ours = sys.modules.get("burnish.boost.ensemble")
    estimators = sys.modules.get("burnish.boost.estimator")
    if ours is not None and isinstance(model, ours.Ensemble):
        return True
    if estimators is not None and isinstance(model, estimators.Estimator):
        return True
    return _library(model) is not None and any(hasattr(model, name) for name in ("save_raw", "model_to_string", "fit"))


def as_model(model: Any) -> Model:
    """The trees of `model`, which predict what it predicts: up to the best iteration where it stops there.

    Raises ParameterError for an estimator that is not fitted, DataError for a booster that is not supported.
    """
    from burnish.boost.ensemble import Ensemble
    from burnish.boost.formats.files import loads_any
    from burnish.boost.model import Model

    if isinstance(model, Ensemble):
        return model if isinstance(model, Model) else Model.of(model)
    library = _library(model)
    if library is None:
        found = getattr(model, "model_", None)
        if not isinstance(found, Model):
            raise _not_fitted(model)
        return found
    if library == "lightgbm":
        booster = _booster(model, "booster_") if hasattr(model, "fit") else model
        return Model.of(loads_any(booster.model_to_string().encode(), "lightgbm"))
    estimator = hasattr(model, "get_booster")
    booster = _booster(model, "get_booster") if estimator else model
    found = Model.of(loads_any(bytes(booster.save_raw(raw_format="ubj")), "xgboost"))
    return found if estimator else replace(found, best_iteration=None)  # a Booster predicts by all of its trees


def _library(model: Any) -> str | None:
    names = (kind.__module__.partition(".")[0] for kind in type(model).__mro__)
    return next((name for name in names if name in _LIBRARIES), None)


def _booster(model: Any, name: str) -> Any:
    try:
        found = getattr(model, name)
        return found() if callable(found) and name.startswith("get") else found
    except Exception as error:  # of the library's own kinds, of which none is imported
        raise _not_fitted(model) from error


def _not_fitted(model: Any) -> ParameterError:
    return ParameterError(f"model: found a {type(model).__name__} that is not fitted; allowed: a fitted one")

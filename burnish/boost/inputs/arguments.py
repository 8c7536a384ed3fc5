"""Arguments of estimators as other libraries have them: keywords, evaluation sets, functions of y_true and y_pred."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.optional import require
from burnish.boost.params import ALIASES, Params
from burnish.boost.synonyms import NAMES
from burnish.errors import ParameterError

_multiclass: Any = require("sklearn.utils.multiclass", "boost")
_validation: Any = require("sklearn.utils.validation", "boost")

DEFAULT_ROUNDS = 100
_TRUE = ("y_true", "labels", "label", "y", "target", "true", "actual")
_PREDICTED = ("y_pred", "preds", "pred", "prediction", "predictions", "predt", "y_hat", "yhat", "raw", "margin")


def with_others(rounds: Any, extra: Any, others: Mapping[str, Any]) -> tuple[Any, Any]:
    """Rounds and the entries of `extra`, with the keywords that are no arguments of an estimator.

    What they hold is checked by `fit`, as scikit-learn wants it.
    """
    if not others or not isinstance(extra, (Mapping, type(None))):
        return rounds, extra
    merged = dict(extra or {})
    for key, value in others.items():
        if (ALIASES.get(key) or NAMES.get(key)) == "rounds" and rounds in (None, DEFAULT_ROUNDS):
            rounds = value
        else:
            merged[key] = value
    return rounds, merged or None


def of_true_and_predicted(objective: Any) -> Any:
    """An objective of (margin, dataset), made of a function of (y_true, y_pred) or (y_true, y_pred, weight).

    Those are the arguments of functions for the estimators of XGBoost and LightGBM, told apart by their names.
    """
    if not callable(objective):
        return objective
    try:
        names = list(inspect.signature(objective).parameters)
    except (TypeError, ValueError):
        return objective
    if len(names) not in (2, 3) or names[0] not in _TRUE or names[1] not in _PREDICTED:
        return objective

    @functools.wraps(objective)
    def swapped(margin: NDArray[np.float32], dataset: Any) -> Any:
        weight = (dataset.weight,) if len(names) == 3 else ()
        return objective(dataset.label, margin, *weight)

    return swapped


def label_indicators(y: Any, labels: int = 0) -> NDArray[np.float64] | None:
    """Labels 0 and 1 of each row, (rows, labels); None for classes in one column.

    labels: how many there have to be, of an evaluation set. Raises ParameterError for several columns of other values.
    """
    if labels and (np.ndim(y) != 2 or np.shape(y)[1] != labels) and not hasattr(y, "toarray"):
        raise ParameterError(f"eval_set: found labels of shape {np.shape(y)}; allowed: (rows, {labels}) of 0 and 1")
    if y is None:
        return None
    y = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    if y.ndim != 2 or y.shape[1] < 2:
        return None
    kind = _multiclass.type_of_target(y)
    if kind == "multilabel-indicator":
        return y.astype(np.float64)
    if kind in ("multiclass-multioutput", "unknown"):
        raise ParameterError(
            f"y: found {y.shape[1]} columns of classes ({kind}); allowed: one column, or several of 0 and 1; the "
            "nearest there is: sklearn.multioutput.MultiOutputClassifier of this estimator"
        )
    return None


def pairs_of(eval_set: Any) -> list[tuple[Any, ...]]:
    """The entries of eval_set. Raises ParameterError for what is no list of them, such as one pair alone."""
    entries: list[Any] = list(eval_set) if isinstance(eval_set, (list, tuple)) else [None]
    if not all(isinstance(entry, (list, tuple)) and 2 <= len(entry) <= 3 for entry in entries):
        raise ParameterError("eval_set: found an entry that is no pair (X, y); allowed: a list of pairs, [(X, y), …]")
    return [tuple(entry) for entry in entries]


def either(name: str, value: Any, other: str, instead: Any) -> Any:
    """The value of an argument of two names. Raises ParameterError for both."""
    if value is not None and instead is not None:
        raise ParameterError(f"{name}, {other}: found both; allowed: one, they are two names of the same")
    return value if instead is None else instead


def rows_of_sets(sets: int, weights: Any, margins: Any) -> list[dict[str, Any]]:
    """The weights and base margins of each evaluation set. Raises ParameterError for another number of them."""
    rows: list[dict[str, Any]] = [{} for _ in range(sets)]
    for name, key, given in (
        ("sample_weight_eval_set", "weight", weights), ("base_margin_eval_set", "base_margin", margins)
    ):  # fmt: skip
        if given is None:
            continue
        if len(given) != sets:
            raise ParameterError(f"{name}: found {len(given)} entries; allowed: {sets}, one for each set")
        for row, values in zip(rows, given, strict=True):
            row[key] = values
    return rows


def column_of(y: Any) -> NDArray[Any]:
    """Labels as one dimension, with scikit-learn's warning for a column."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    return np.asarray(_validation.column_or_1d(y, warn=True))


def labels_of(estimator: Any, y: Any) -> NDArray[np.float64]:
    """Labels as numbers, (rows,) or (rows, outputs)."""
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None")
    y = _validation.check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=estimator)
    return y if y.ndim == 2 and y.shape[1] > 1 else column_of(y)


def weights_of(weight: Any, x: Any) -> NDArray[np.float64]:
    """Weights of rows as scikit-learn checks them (rows,); ones for None. Raises ValueError."""
    weights: NDArray[np.float64] = _validation._check_sample_weight(weight, x, dtype=np.float64)
    return weights


# Keywords of `fit` in other libraries that change nothing, and what there is instead of others.
_QUIET = {"verbose": None, "feature_name": "auto", "categorical_feature": "auto", "feature_weights": None}
_OF_FIT = {
    "early_stopping_rounds": "the estimator's parameter early_stopping_rounds",
    "eval_metric": "the estimator's parameter eval_metric",
    "categorical_feature": "the estimator's parameter categorical",
    "cat_features": "the estimator's parameter categorical",
    "xgb_model": "the estimator's parameter warm_start", "init_model": "the estimator's parameter warm_start",
    "eval_names": "valid_0, valid_1, … in evals_result_", "eval_class_weight": "sample_weight_eval_set",
    "feature_name": "a frame with named columns", "feature_weights": "colsample_bynode", "group": "GBTRanker",
    "qid": "GBTRanker", "eval_group": "GBTRanker", "eval_qid": "GBTRanker", "eval_at": "eval_metric 'ndcg@k'",
}  # fmt: skip
_OF_PREDICT = {
    "iteration_range": "burnish.boost.predict(model_, X, rounds=(begin, end))",
    "num_iteration": "burnish.boost.predict(model_, X, rounds=(0, end))",
    "ntree_limit": "burnish.boost.predict(model_, X, rounds=(0, end))",
    "output_margin": "decision_function, or burnish.boost.predict(model_, X, output='margin')",
    "raw_score": "decision_function, or burnish.boost.predict(model_, X, output='margin')",
    "pred_contrib": "burnish.boost.shap.contributions(model_, X)", "pred_leaf": "apply(X)",
}  # fmt: skip


def of_fit(others: Mapping[str, Any], base_margin: Any, weights: Any, margins: Any) -> tuple[Any, Any, Any]:
    """Base margin, and weights and base margins of evaluation sets, by those names or by LightGBM's in `others`.

    Raises ParameterError for any other keyword that asks for something, with the nearest there is.
    """
    left = dict(others)
    base_margin = either("base_margin", base_margin, "init_score", left.pop("init_score", None))
    weights = either("sample_weight_eval_set", weights, "eval_sample_weight", left.pop("eval_sample_weight", None))
    margins = either("base_margin_eval_set", margins, "eval_init_score", left.pop("eval_init_score", None))
    for key, value in left.items():
        if value is None or key == "verbose" or (isinstance(value, str) and value == _QUIET.get(key)):
            continue
        hint = f"; the nearest there is: {_OF_FIT[key]}" if key in _OF_FIT else ""
        raise ParameterError(f"fit: found the keyword {key!r}; allowed: those that help(fit) lists{hint}")
    return base_margin, weights, margins


def refuse_of_predict(others: Mapping[str, Any]) -> None:
    """Raises ParameterError for a keyword of other libraries' predictions, with the nearest there is."""
    for key, value in others.items():
        if value is None or value is False or key == "validate_features":
            continue
        hint = f"; the nearest there is: {_OF_PREDICT[key]}" if key in _OF_PREDICT else ""
        raise ParameterError(f"predict: found the keyword {key!r}; allowed: X alone{hint}")


def without_class_count(extra: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """Entries of `extra` but the number of classes, which the labels tell anyway."""
    names = ("num_class", "num_classes")
    return {key: value for key, value in extra.items() if key not in names or value != classes}


def check_label_objective(objective: Any) -> None:
    """Raises ParameterError for an objective that has no form for a matrix of labels 0 and 1."""
    if objective is not None and not callable(objective) and Params.objective_named(objective) != "logistic":
        raise ParameterError(
            f"objective: found {objective!r} with a matrix of labels; allowed: None, 'logistic' or a function"
        )

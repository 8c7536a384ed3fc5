"""Arguments of estimators as other libraries have them: keywords, evaluation sets, functions of y_true and y_pred."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.params import ALIASES
from burnish.boost.synonyms import NAMES
from burnish.errors import ParameterError
from burnish.optional import require

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


def label_indicators(y: Any) -> NDArray[np.float64] | None:
    """Labels 0 and 1 of each row, (rows, labels); None for classes in one column.

    Raises ParameterError for several columns of other values.
    """
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
    weights: NDArray[np.float64] = _validation._check_sample_weight(weight, x, dtype=np.float64)
    return weights

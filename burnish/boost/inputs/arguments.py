"""Arguments of estimators as other libraries have them: keywords, evaluation sets, functions of y_true and y_pred."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.params import Params
from burnish.errors import ParameterError
from burnish.optional import require

_multiclass: Any = require("sklearn.utils.multiclass", "boost")

DEFAULT_ROUNDS = 100
_TRUE = ("y_true", "labels", "label", "y", "target", "true", "actual")
_PREDICTED = ("y_pred", "preds", "pred", "prediction", "predictions", "predt", "y_hat", "yhat", "raw", "margin")


def with_others(rounds: int, extra: dict[str, Any] | None, others: Mapping[str, Any]) -> tuple[int, Any]:
    """Rounds and the entries of `extra`, with the keywords that are no arguments of an estimator.

    Raises ParameterError for one that `train` does not know, or that says otherwise than an argument.
    """
    if not others:
        return rounds, extra
    merged = dict(extra or {})
    for key, value in others.items():
        name = Params.named(key, value)
        if name is None:
            continue
        if name == "rounds":
            if rounds not in (DEFAULT_ROUNDS, value):
                raise ParameterError(f"n_estimators={rounds!r} and {key}={value!r}: found both; allowed: one of them")
            rounds = value
        elif key in merged and merged[key] != value:
            raise ParameterError(f"extra: found {key}={merged[key]!r}; allowed: {value!r}, the keyword itself")
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
    kind = _multiclass.type_of_target(y) if hasattr(y, "toarray") or np.ndim(y) == 2 else ""
    if kind == "multilabel-indicator":
        return np.asarray(y.toarray() if hasattr(y, "toarray") else y, np.float64)
    if np.ndim(y) == 2 and np.shape(y)[1] > 1:
        raise ParameterError(
            f"y: found {np.shape(y)[1]} columns of classes ({kind}); allowed: one column, or several of 0 and 1; the "
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

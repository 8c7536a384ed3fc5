"""Categories of a model: data that was encoded by its own categories is encoded anew by those of the training data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from burnish.boost.data import Dataset
from burnish.boost.inputs.factors import POLICIES, Factor, ascending, number
from burnish.boost.inputs.tables import Sparse, feature_label
from burnish.errors import DataError, ParameterError


def encode(data: Dataset, categories: tuple[Any, ...], policy: str = "error") -> Dataset:
    """The data with the category numbers of the training data: `categories` is (features,) of None or values.

    A column that `data` holds as plain numbers is taken for category values. Nothing is copied if the categories
    agree. Raises DataError for a category that training has not seen if the policy is "error", and for categories in
    a column that was not categorical in training.
    """
    if policy not in POLICIES:
        raise ParameterError(f"policy: found {policy!r}; allowed are {', '.join(POLICIES)}")
    if data.categories == categories and (not any(categories) or data.policy == policy):
        return data
    if categories and len(categories) != data.features:
        raise DataError(f"x: found {data.features} features; allowed is {len(categories)}, as in training")
    found = data.categories or (None,) * data.features
    wanted = categories or (None,) * data.features
    table = data.table
    fresh = False
    for feature, (own, trained) in enumerate(zip(found, wanted, strict=True)):
        name = feature_label(feature, data.feature_names)
        if trained is None and own is not None:
            raise DataError(f"{name}: found categories; allowed are numbers, as in training")
        if trained is None or (own == trained and data.policy == policy):
            continue
        if not fresh:
            table = _copy(table)
            fresh = True
        here = table.columns == feature if isinstance(table, Sparse) else slice(None)
        column = table.values[here] if isinstance(table, Sparse) else table[:, feature]
        numbers = number(_factor(column, own, name), trained, policy, name)
        if isinstance(table, Sparse):
            table.values[here] = numbers
        else:
            table[:, feature] = numbers
    if isinstance(table, Sparse):
        table = table.without(np.isnan(table.values))
    return replace(data, table=table, categories=categories, policy=policy)


def encode_as(data: Dataset, categories: tuple[Any, ...], policy: str) -> Dataset:
    """The data encoded by a model's categories: unchanged if it has these already, by any policy.

    Otherwise as `encode`, whose errors it raises.
    """
    return data if tuple(data.categories) == tuple(categories) else encode(data, categories, policy)


def merge(first: tuple[Any, ...], second: tuple[Any, ...], names: Sequence[str] = ()) -> tuple[Any, ...]:
    """The categories of two parts of the data together, ascending in every feature."""
    if not first or not second:
        return first or second
    if len(first) != len(second):
        raise DataError(f"categories: found {len(first)} and {len(second)} features; allowed are as many in each part")
    merged: list[Any] = []
    for feature, (one, other) in enumerate(zip(first, second, strict=True)):
        if one is None and other is None:
            merged.append(None)
        else:
            merged.append(ascending([*(one or ()), *(other or ())], feature_label(feature, names)))
    return tuple(merged)


def _copy(table: Any) -> Any:
    if isinstance(table, Sparse):
        return Sparse(table.start, table.columns, table.values.copy())
    return table.copy()


def _factor(column: Any, own: Sequence[Any] | None, name: str) -> Factor:
    """The column's category values; numbers that are beyond its own categories are "other" than all."""
    if own is None:
        values, codes = np.unique(column, return_inverse=True)
        codes[np.isnan(column)] = -1
        return Factor(codes, [int(value) if float(value).is_integer() else float(value) for value in values])
    codes = np.where(np.isnan(column), -1, column).astype(np.int64)
    return Factor(codes, [*own, f"other than the categories of {name}"])

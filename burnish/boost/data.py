"""Training data: a table of float32 features with missing values, dense or sparse, and what belongs to its rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inputs import rows as checked
from burnish.boost.inputs.factors import POLICIES
from burnish.boost.inputs.naming import order_of
from burnish.boost.inputs.tables import INFINITE, Sparse, convert
from burnish.errors import DataError, ParameterError

__all__ = ["Dataset", "Sparse"]


@dataclass(frozen=True)
class Dataset:
    """Rows of features with labels. Dense tables are float32, in C order, NaN where a value is missing."""

    table: NDArray[np.float32] | Sparse
    rows: int
    features: int
    label: NDArray[np.float32] | None = None  # (rows,), or (rows, outputs), or bounds of times (rows, 2)
    weight: NDArray[np.float32] | None = None  # (rows,)
    base_margin: NDArray[np.float32] | None = None  # (rows, outputs)
    group_start: NDArray[np.int64] | None = None  # (groups + 1,): query q has rows group_start[q] … group_start[q + 1]
    feature_names: tuple[str, ...] = ()
    categories: tuple[Any, ...] = ()  # for each feature None or its category values; empty if none is categorical
    policy: str = "error"  # what a category is that training has not seen: one of factors.POLICIES
    bounded: bool = False  # whether the label is lower and upper bounds of times
    infinite: str = "error"  # what an infinite value is: one of tables.INFINITE
    missing: float = math.nan  # the number that stood for a missing value where the table was read, beside NaN

    def __repr__(self) -> str:
        given = ", ".join(n for n in ("label", "weight", "base_margin", "group_start") if getattr(self, n) is not None)
        return f"Dataset({self.rows} rows, {self.features} features; {given or 'no label'})"

    @property
    def categorical(self) -> NDArray[np.bool_]:
        """Which features are categorical, (features,): their values in the table are category numbers 0, 1, …"""
        if not self.categories:
            return np.zeros(self.features, np.bool_)
        return np.array([values is not None for values in self.categories])

    @property
    def targets(self) -> int:
        """Columns of a label matrix, each of which is an output of its own; else 1."""
        return 1 if self.label is None or self.label.ndim == 1 or self.bounded else self.label.shape[1]

    @classmethod
    def of(
        cls,
        x: Any,
        label: Any = None,
        weight: Any = None,
        base_margin: Any = None,
        group: Any = None,
        qid: Any = None,
        missing: float | None = math.nan,
        *,
        categorical: Sequence[int | str] = (),
        categories: tuple[Any, ...] = (),
        policy: str = "error",
        feature_names: Sequence[str] | None = None,
        label_lower_bound: Any = None,
        label_upper_bound: Any = None,
        columns: Sequence[str] = (),
        infinite: str = "error",
    ) -> "Dataset":
        """Data from arrays and frames: x is (rows, features); nothing of it is copied if it is float32 in C order.

        x: NumPy or a list of rows, SciPy sparse (absent is missing; duplicates add up), pandas, or Arrow.
        label: (rows,), finite, or (rows, outputs) of several outputs; or for "survival:aft" label_lower_bound and
        label_upper_bound, (rows,), which may be infinite.
        weight: (rows,), or (groups,) for all rows of a query; not negative.
        base_margin: (rows,) or (rows, outputs), added to the margins. group: sizes of the queries in order of the
        rows; or qid: (rows,), equal in the rows of a query, which stand together.
        missing: a number that stands for a missing value, beside NaN and None. A model of the data keeps it.
        categorical: features, by name or number, whose values are categories; columns of text and of pandas' or
        Arrow's own categorical types are in any case. Categories that such a type lists are known, though no row has
        them: they go where a split sends what it does not list. categories: those of the training data
        (`Dataset.categories`), when x is to be encoded for a model. policy: what a category is that is not among them:
        an "error", "missing", or "other" (a further category, which no split lists). columns: the feature names of the
        training data, when x is to be read for a model: where x has names, its columns are put into this order.
        infinite: what an infinite value is, or one that float32 cannot hold: an "error", "missing", or the "largest"
        finite one of its sign. A model of the data keeps it.

        Raises DataError, which names row and column, for what cannot be used. Warns of whole numbers beyond 2^24 that
        float32 rounds, as it does seconds since 1970.
        """
        if policy not in POLICIES:
            raise ParameterError(f"policy: found {policy!r}; allowed are {', '.join(POLICIES)}")
        if infinite not in INFINITE:
            raise ParameterError(f"infinite: found {infinite!r}; allowed are {', '.join(INFINITE)}")
        if group is not None and qid is not None:
            raise DataError("group and qid: found both; allowed is one of them")
        if (label_lower_bound is None) != (label_upper_bound is None) or (
            label is not None and label_lower_bound is not None
        ):
            raise DataError("label_lower_bound, label_upper_bound: allowed are both, without a label, or neither")
        missing = math.nan if missing is None else float(missing)
        converted = convert(x, missing, categorical, categories, policy, feature_names, columns, infinite)
        count = converted.rows
        group_start = None
        if group is not None:
            group_start = checked.groups(group, count)
        elif qid is not None:
            group_start = checked.queries(qid, count)
        return cls(
            table=converted.table,
            rows=count,
            features=converted.features,
            label=_labels(label, label_lower_bound, label_upper_bound, count),
            weight=None if weight is None else checked.weights(weight, count, group_start),
            base_margin=None if base_margin is None else checked.margins(base_margin, count),
            group_start=group_start,
            feature_names=converted.names,
            categories=converted.categories,
            policy=policy,
            bounded=label_lower_bound is not None,
            missing=missing,
            infinite=infinite,
        )

    def arranged(self, names: Sequence[str], what: str = "x") -> "Dataset":
        """The data with the features in the order of `names`, found by name; as they are if either has no names.

        Raises DataError, which begins with `what`, if they are other features.
        """
        order = order_of(self.feature_names, names, what)
        if order is None:
            return self
        table = self.table
        return replace(
            self,
            table=table.arranged(order) if isinstance(table, Sparse) else np.ascontiguousarray(table[:, order]),
            feature_names=tuple(names),
            categories=tuple(self.categories[j] for j in order.tolist()) if self.categories else (),
        )


def _labels(label: Any, lower: Any, upper: Any, rows: int) -> NDArray[np.float32] | None:
    """Labels (rows,), a matrix of them (rows, outputs), or bounds (rows, 2)."""
    if label is not None:
        return checked.labels(label, rows)
    return None if lower is None else checked.bounds(lower, upper, rows)


def check_dataset(who: str, dataset: Any) -> None:
    """Raises ParameterError for training data that are no Dataset."""
    if not isinstance(dataset, Dataset):
        found = f"{type(dataset).__module__}.{type(dataset).__name__}".removeprefix("builtins.")
        raise ParameterError(f"{who}: dataset: found {found}; allowed: a Dataset, as Dataset.of(x, label=y) makes")

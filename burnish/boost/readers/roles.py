"""Column roles of a CSV or Parquet file: features, label, weight, query, or nothing to training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError

SKIPPED, LABEL, WEIGHT, QUERY = -1, -2, -3, -4


@dataclass(frozen=True)
class ColumnRoles:
    """Which columns of a table file are not features, or are categorical: by name, or by number from 0."""

    label: int | str | None = None
    weight: int | str | None = None
    qid: int | str | None = None
    ignore: Sequence[int | str] = ()
    categorical: Sequence[int | str] = ()
    trained: tuple[Any, ...] = ()  # the categories of a model, (features,), which say what is categorical instead
    features: Sequence[str] = ()  # names of the columns that are features, in this order; empty: all that are left

    def codes(self, names: Sequence[str], fields: int, file: Path) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The role of every field, as in `Layout.roles`, and whether it is categorical."""
        codes = np.zeros(fields, np.int64)
        for what, column, code in (
            ("label", self.label, LABEL),
            ("weight", self.weight, WEIGHT),
            ("qid", self.qid, QUERY),
            *(("ignore", column, SKIPPED) for column in self.ignore),
        ):
            if column is not None:
                field = place_of(what, column, names, fields, file)
                if codes[field] != 0:
                    raise DataError(f"{file}: {what}={column!r} is a column that has another role already")
                codes[field] = code
        chosen = np.zeros(fields, np.bool_)
        for column in self.categorical:
            chosen[place_of("categorical", column, names, fields, file)] = True
        if self.features and names:
            codes[codes == 0] = SKIPPED
            for place, name in enumerate(self.features):
                field = place_of("feature", name, names, fields, file)
                if codes[field] < SKIPPED:
                    raise DataError(f"{file}: the feature {name!r} is a column that has another role")
                codes[field] = place
        else:
            codes[codes == 0] = np.arange(np.count_nonzero(codes == 0))
        features = codes >= 0
        chosen &= features
        count = int(np.count_nonzero(features))
        if not count:
            raise DataError(f"{file}: found no column for features; {fields} in all")
        if self.trained:
            if len(self.trained) != count:
                raise DataError(f"{file}: found {count} features; allowed is {len(self.trained)}, as in training")
            chosen[features] = [self.trained[code] is not None for code in codes[features].tolist()]
        return codes, chosen


def place_of(what: str, column: int | str, names: Sequence[str], fields: int, file: Path) -> int:
    """The number of a column that is given by name or number."""
    if isinstance(column, str):
        if column not in names:
            listed = f"allowed are {', '.join(names)}" if names else "there are no names; give its number"
            raise DataError(f"{file}: {what}={column!r} is no column; {listed}")
        return list(names).index(column)
    if not 0 <= column < fields:
        raise DataError(f"{file}: {what}={column} is no column; allowed are 0 to {fields - 1}")
    return column


def in_order(names: Sequence[str], codes: NDArray[np.int64]) -> tuple[str, ...]:
    """The names of the features, (features,); empty if the columns have none."""
    named = {code: name for name, code in zip(names, codes.tolist(), strict=False) if code >= 0}
    return tuple(named[code] for code in sorted(named))

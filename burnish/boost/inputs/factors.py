"""Categorical columns: their values, and the number that each value has in a table."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inputs.rows import is_absent
from burnish.errors import DataError

POLICIES = ("error", "missing", "other")
MOST_CATEGORIES = 1 << 24  # whole numbers that float32 tells apart
MOST_LISTED = 65_534  # bins of a feature, less one for what is missing: `binning.MOST_BINS`

Value = str | int | float
"""A category: text or a number, as JSON holds them."""


@dataclass(frozen=True)
class Factor:
    """A column of categories: the value of row i is ``values[codes[i]]``, and missing where the code is -1."""

    codes: NDArray[Any]  # (rows,) integers
    values: Sequence[Value]  # in any order; not all of them need occur, as those of a categorical type


def plain(value: Any) -> Value:
    """A category's value as text or a number: whole numbers as int, and what is neither (dates, intervals) as text."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bool, np.bool_, int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return int(value) if float(value).is_integer() else float(value)
    return str(value)


def factor(column: NDArray[Any], missing: float = math.nan) -> Factor:
    """The categories of an array of numbers, of text or of objects; NaN, None and `missing` are no category."""
    if column.dtype.kind in "biuf":
        present = np.ones(len(column), np.bool_) if column.dtype.kind in "biu" else ~np.isnan(column)
        if not math.isnan(missing):
            present &= column != missing
        values, inverse = np.unique(column[present], return_inverse=True)
        codes = np.full(len(column), -1, np.int64)
        codes[present] = inverse
        return Factor(codes, [plain(value) for value in values])
    numbers: dict[Value, int] = {}
    codes = np.empty(len(column), np.int64)
    for row, value in enumerate(column.tolist()):
        if is_absent(value) or value == missing:
            codes[row] = -1
        else:
            codes[row] = numbers.setdefault(plain(value), len(numbers))
    return Factor(codes, list(numbers))


def known_values(column: Factor, name: str) -> tuple[Value, ...]:
    """Categories of training data, ascending: values that occur in the column, and those that its type lists.

    The latter are left out if they are text among numbers, numbers among text, or more than a feature has bins.
    """
    used = np.zeros(len(column.values) + 1, np.bool_)
    used[column.codes] = True  # -1, missing, marks the last, which is no value
    occurring = ascending((value for value, here in zip(column.values, used, strict=False) if here), name)
    texts = isinstance((*occurring, *column.values, "")[0], str)
    listed = set(occurring).union(value for value in column.values if isinstance(value, str) == texts)
    return occurring if len(listed) > MOST_LISTED else ascending(listed, name)


def ascending(values: Iterable[Value], name: str) -> tuple[Value, ...]:
    """Distinct categories in their order; text and numbers do not mix."""
    distinct = set(values)
    texts = [value for value in distinct if isinstance(value, str)]
    numbers = [value for value in distinct if not isinstance(value, str)]
    if texts and numbers:
        found = f"{min(texts)!r} and {min(numbers)!r}"
        raise DataError(f"{name}: found the categories {found}; allowed are text or numbers, not both")
    if len(distinct) > MOST_CATEGORIES:
        raise DataError(f"{name}: found {len(distinct)} categories; allowed are at most {MOST_CATEGORIES}")
    return tuple(sorted(texts) or sorted(numbers))


def number(column: Factor, categories: Sequence[Value], policy: str, name: str) -> NDArray[np.float32]:
    """The category number of every row, (rows,): its place in `categories`; NaN where missing.

    A value that is not among them is, by policy, an error that names the row; missing; or "other", numbered
    ``len(categories)``, which no split lists, so that it goes where a split sends all that it does not list.
    """
    place = {value: index for index, value in enumerate(categories)}
    unknown = math.nan if policy == "missing" else float(len(categories))
    table = np.array([place.get(value, unknown) for value in column.values] + [math.nan], np.float32)
    numbers: NDArray[np.float32] = table[column.codes]
    if policy == "error":
        unseen = numbers == np.float32(len(categories))
        if unseen.any():
            row = int(np.argmax(unseen))
            raise DataError(
                f"{name}: row {row} is {column.values[column.codes[row]]!r}, a category that training has not seen; "
                f"allowed are {_listed(categories)}; or any with policy (of an estimator: category_policy) 'missing' "
                "or 'other'"
            )
    return numbers


def _listed(categories: Sequence[Value], most: int = 5) -> str:
    text = ", ".join(repr(value) for value in categories[:most])
    return text + (f" and {len(categories) - most} more" if len(categories) > most else "")

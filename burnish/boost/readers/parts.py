"""Rows as they come from a file, before categories are numbered: cut, joined, and made into a Dataset."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Dataset
from burnish.boost.inputs import rows as checked
from burnish.boost.inputs.factors import Factor, ascending, known_values, number
from burnish.boost.inputs.tables import Sparse, feature_label
from burnish.errors import DataError

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?")


@dataclass(frozen=True)
class TableRows:
    """Some rows of a file. Categorical features are in `factors`; their column of the table is not filled in."""

    table: NDArray[np.float32] | Sparse
    rows: int
    features: int
    label: NDArray[np.float32] | None = None
    weight: NDArray[np.float32] | None = None
    qid: NDArray[Any] | None = None
    factors: dict[int, Factor] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    textual: bool = False  # categories were read as text, which may be that of numbers

    def cut(self, begin: int, end: int) -> "TableRows":
        """Rows ``begin … end - 1``, as views."""
        table = self.table
        if isinstance(table, Sparse):
            first, last = int(table.start[begin]), int(table.start[end])
            start = table.start[begin : end + 1] - first
            cut: Any = Sparse(start, table.columns[first:last], table.values[first:last])
        else:
            cut = table[begin:end]
        return TableRows(
            table=cut,
            rows=end - begin,
            features=self.features,
            label=None if self.label is None else self.label[begin:end],
            weight=None if self.weight is None else self.weight[begin:end],
            qid=None if self.qid is None else self.qid[begin:end],
            factors={key: Factor(one.codes[begin:end], one.values) for key, one in self.factors.items()},
            names=self.names,
            textual=self.textual,
        )


def join(parts: Sequence[TableRows]) -> TableRows:
    """The rows of several parts as one. A weight that only some of them have is 1 in the others."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    weights: list[NDArray[np.float32]] = []
    if any(part.weight is not None for part in parts):
        weights = [np.ones(part.rows, np.float32) if part.weight is None else part.weight for part in parts]
    labels = [part.label for part in parts if part.label is not None]
    queries = [part.qid for part in parts if part.qid is not None]
    return TableRows(
        table=_join_tables([part.table for part in parts]),
        rows=sum(part.rows for part in parts),
        features=max(part.features for part in parts),
        label=np.concatenate(labels) if labels else None,
        weight=np.concatenate(weights) if weights else None,
        qid=np.concatenate(queries) if queries else None,
        factors={key: _join_factors([part.factors[key] for part in parts]) for key in first.factors},
        names=first.names,
        textual=first.textual,
    )


def _join_tables(tables: Sequence[Any]) -> Any:
    if not isinstance(tables[0], Sparse):
        return np.concatenate(tables)
    offsets = np.cumsum([0, *(len(table.columns) for table in tables)])
    starts = [table.start[1:] + offset for table, offset in zip(tables, offsets, strict=False)]
    return Sparse(
        np.concatenate([np.zeros(1, np.int64), *starts]),
        np.concatenate([table.columns for table in tables]),
        np.concatenate([table.values for table in tables]),
    )


def _join_factors(factors: Sequence[Factor]) -> Factor:
    place: dict[Any, int] = {}
    codes = []
    for one in factors:
        table = np.array([place.setdefault(value, len(place)) for value in one.values] + [-1], np.int64)
        codes.append(table[one.codes])
    return Factor(np.concatenate(codes), list(place))


def regroup(parts: Iterable[TableRows], rows: int) -> Iterator[TableRows]:
    """The same rows in parts of `rows` each (the last may have fewer).

    A query is not cut: a part ends before it, or is larger if the query alone is. Raises DataError for a query whose
    rows are in several places.
    """
    waiting: list[TableRows] = []
    seen: set[Any] = set()
    held = 0
    for part in parts:
        if not part.rows:
            continue
        waiting.append(part)
        held += part.rows
        more = rows + (part.qid is not None)  # a row beyond tells whether the last query goes on
        if held < more:
            continue
        whole = join(waiting)
        begin = 0
        while whole.rows - begin >= more:
            end = begin + rows
            if whole.qid is not None:
                end = _query_end(whole.qid, begin, end)
                if end == whole.rows:
                    break  # the query may go on in the next part
            yield _noted(whole.cut(begin, end), seen)
            begin = end
        waiting = [whole.cut(begin, whole.rows)] if begin < whole.rows else []
        held = whole.rows - begin
    if waiting:
        yield _noted(join(waiting), seen)


def _query_end(qid: NDArray[Any], begin: int, end: int) -> int:
    """The last end of a query that is at most `end`; the first after it if a query alone is longer."""
    if end < len(qid) and qid[end] != qid[end - 1]:
        return end
    same = qid[begin:end] == qid[end - 1]
    if not same.all():
        return begin + int(np.flatnonzero(~same)[-1]) + 1
    after = np.flatnonzero(qid[end:] != qid[end - 1])
    return end + int(after[0]) if len(after) else len(qid)


def _noted(part: TableRows, seen: set[Any]) -> TableRows:
    if part.qid is not None and part.rows:
        here = set(np.unique(part.qid).tolist())
        again = here & seen
        if again:
            raise DataError(
                f"qid: found query {min(again)!r} again, after others; allowed are rows that stand together"
            )
        seen |= here
    return part


def known_in(part: TableRows) -> tuple[Any, ...]:
    """The categories of a part by themselves, (features,) of None or values as they were read; empty if it has none."""
    if not part.factors:
        return ()
    found: list[Any] = [None] * part.features
    for feature, one in part.factors.items():
        found[feature] = known_values(one, feature_label(feature, part.names))
    return tuple(found)


def numbers_told(categories: tuple[Any, ...], names: Sequence[str]) -> tuple[Any, ...]:
    """The categories, as numbers in those features where every text is one: text files do not tell them apart."""
    by_feature: list[Any] = []
    for feature, values in enumerate(categories):
        texts = values or ()
        numbers = [found for value in texts if (found := _numeric(value)) is not None]
        all_numbers = values is not None and len(numbers) == len(texts)
        by_feature.append(ascending(numbers, feature_label(feature, names)) if all_numbers else values)
    return tuple(by_feature)


def _numeric(value: Any) -> int | float | None:
    """The number that a text is, if it is one; a code such as 007 is none."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return None
    found = float(value)
    return int(found) if found.is_integer() else found


def finished(part: TableRows, categories: tuple[Any, ...], policy: str) -> Dataset:
    """The Dataset of a part, its categories numbered by those given, (features,), or empty if none is categorical."""
    table = part.table
    for feature, one in part.factors.items():
        name = feature_label(feature, part.names)
        known = categories[feature] if categories else None
        if known is None:
            raise DataError(f"{name}: found categories; allowed are numbers, as in training")
        if part.textual and any(not isinstance(value, str) for value in known):
            numbers = [_numeric(value) for value in one.values]
            one = Factor(one.codes, [text if n is None else n for text, n in zip(one.values, numbers, strict=True)])
        assert not isinstance(table, Sparse)
        table[:, feature] = number(one, known, policy, name)
    return Dataset(
        table=table,
        rows=part.rows,
        features=part.features,
        label=part.label,
        weight=part.weight,
        group_start=None if part.qid is None else checked.queries(part.qid, part.rows),
        feature_names=part.names,
        categories=categories if part.factors else (),
        policy=policy,
    )

"""Parquet files by pyarrow, a bounded number of rows at a time."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.optional import require
from burnish.boost.inputs import rows as checked
from burnish.boost.inputs.factors import Factor, factor
from burnish.boost.inputs.frames import arrow_columns
from burnish.boost.inputs.tables import stack
from burnish.boost.readers.digits import marked
from burnish.boost.readers.parts import TableRows
from burnish.boost.readers.roles import LABEL, QUERY, SKIPPED, WEIGHT, ColumnRoles, in_order
from burnish.errors import DataError

ROWS = 1 << 16  # of a part


def parts(files: list[Path], roles: ColumnRoles, marks: NDArray[np.float32], rows: int = ROWS) -> Iterator[TableRows]:
    """The rows of Parquet files in parts of at most `rows`. Raises DataError, which names file and row."""
    parquet = require("pyarrow.parquet", "boost")
    arrow = require("pyarrow", "boost")
    names: list[str] | None = None
    for file in files:
        try:
            with parquet.ParquetFile(file) as stored:
                found = list(stored.schema_arrow.names)
                if names is not None and found != names:
                    raise DataError(f"{file}: found the columns {found}; allowed are {names}, as in {files[0].name}")
                names = found
                codes, chosen = roles.codes(names, len(names), file)
                wanted = [name for name, code in zip(names, codes.tolist(), strict=True) if code != SKIPPED]
                first = 0
                for batch in stored.iter_batches(batch_size=rows, columns=wanted):
                    yield _part(batch, file, first, names, codes, chosen, marks)
                    first += batch.num_rows
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{file}: not a whole Parquet file; {error}") from None


def columns_of(file: Path) -> tuple[str, ...]:
    """The names of a file's columns."""
    parquet = require("pyarrow.parquet", "boost")
    try:
        return tuple(parquet.read_schema(file).names)
    except (require("pyarrow", "boost").ArrowException, OSError) as error:
        raise DataError(f"{file}: not a whole Parquet file; {error}") from None


def _part(
    batch: Any,
    file: Path,
    first: int,
    names: list[str],
    codes: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    marks: NDArray[np.float32],
) -> TableRows:
    try:
        columns = dict(zip(batch.schema.names, arrow_columns(batch).values, strict=True))
        rows: dict[int, Any] = {LABEL: None, WEIGHT: None, QUERY: None}
        labels = in_order(names, codes)
        values: list[NDArray[Any]] = [np.empty(0)] * len(labels)
        factors: dict[int, Factor] = {}
        for name, code, categorical in zip(names, codes.tolist(), chosen.tolist(), strict=True):
            if code == SKIPPED:
                continue
            column = columns[name]
            if code < SKIPPED:
                rows[code] = column
                continue
            if categorical and not isinstance(column, Factor):
                column = factor(column)
            if isinstance(column, Factor):
                factors[code] = column
                column = np.full(batch.num_rows, math.nan, np.float32)
            values[code] = column
        table = stack(values, [math.nan] * len(values), labels, batch.num_rows)
        if len(marks):
            table[marked(table, marks)] = np.nan
        count = batch.num_rows
        return TableRows(
            table=table,
            rows=count,
            features=len(values),
            label=None if rows[LABEL] is None else checked.vector("label", _plain(rows[LABEL], "label"), count),
            weight=None if rows[WEIGHT] is None else checked.weights(_plain(rows[WEIGHT], "weight"), count, None),
            qid=None if rows[QUERY] is None else _queries(rows[QUERY]),
            factors=factors,
            names=labels,
        )
    except DataError as error:
        raise DataError(f"{file}, in the rows after row {first}: {error}") from None


def _plain(column: Any, what: str) -> NDArray[Any]:
    if isinstance(column, Factor):
        raise DataError(f"{what}: found text; allowed are numbers")
    result: NDArray[Any] = column
    return result


def _queries(column: Any) -> NDArray[Any]:
    if isinstance(column, Factor):
        if (column.codes < 0).any():
            raise DataError(f"qid: row {int(np.argmax(column.codes < 0))} has none; allowed is one for each row")
        return np.array([str(value) for value in column.values], np.str_)[column.codes]
    return np.asarray(column)

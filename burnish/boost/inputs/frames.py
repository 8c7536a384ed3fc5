"""pandas and Arrow tables as columns of numbers and of categories; neither package is imported before it is used."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inputs.factors import Factor, plain
from burnish.errors import DataError

ALLOWED = "allowed are numbers, booleans, text and categories"


@dataclass(frozen=True)
class Columns:
    """A frame: a name, and an array or a factor of `rows` values, for each column. No names where there were none."""

    names: tuple[str, ...]
    values: Sequence[NDArray[Any] | Factor]
    rows: int
    matrix: NDArray[Any] | None = None  # (rows, columns), the same values, where one array of numbers holds all


def _distinct(names: Sequence[Any]) -> tuple[str, ...]:
    texts = tuple(" ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in names)
    if len(set(texts)) != len(texts):
        twice = next(name for index, name in enumerate(texts) if name in texts[:index])
        raise DataError(f"x: found two columns {twice!r}; allowed are distinct names")
    return texts


def pandas_columns(frame: Any) -> Columns:
    """Columns of a DataFrame: booleans are 0 and 1; text and categorical columns are factors; NA is NaN."""
    names = _distinct(list(frame.columns))
    kinds = {dtype for dtype in frame.dtypes if isinstance(dtype, np.dtype)}
    if len(kinds) == 1 and len(kinds) == len(set(frame.dtypes)) and next(iter(kinds)).kind in "biuf":
        matrix = frame.to_numpy()  # one block: columns are views of it
        return Columns(names, [matrix[:, j] for j in range(len(names))], len(frame), matrix)
    return Columns(names, [_pandas_column(frame.iloc[:, j], name) for j, name in enumerate(names)], len(frame))


def _pandas_column(series: Any, name: str) -> NDArray[Any] | Factor:
    pandas = sys.modules["pandas"]
    types, dtype = pandas.api.types, series.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        return Factor(series.cat.codes.to_numpy(), [plain(value) for value in series.cat.categories])
    if isinstance(dtype, pandas.SparseDtype):
        return np.asarray(series)
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        return series.to_numpy()
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        kind = types.infer_dtype(series, skipna=True)
        if kind in ("boolean", "integer", "floating", "mixed-integer-float", "decimal"):
            return series.to_numpy(np.float64, na_value=math.nan)
        if kind == "empty":
            return np.full(len(series), math.nan)
        if kind in ("string", "mixed", "mixed-integer"):
            codes, values = pandas.factorize(series)
            return Factor(codes, [plain(value) for value in values])
    elif types.is_bool_dtype(dtype) or types.is_numeric_dtype(dtype):
        return series.to_numpy(np.float64, na_value=math.nan)
    elif types.is_string_dtype(dtype):
        codes, values = pandas.factorize(series)
        return Factor(codes, [plain(value) for value in values])
    raise DataError(f"x: column {name!r} holds {dtype}; {ALLOWED}")


def arrow_columns(table: Any) -> Columns:
    """Columns of an Arrow table or record batch: text and dictionary columns are factors; null is NaN."""
    names = _distinct(table.column_names if hasattr(table, "column_names") else table.schema.names)
    columns = [_arrow_column(table.column(index), name) for index, name in enumerate(names)]
    return Columns(names, columns, table.num_rows)


def _arrow_column(column: Any, name: str) -> NDArray[Any] | Factor:
    arrow = sys.modules["pyarrow"]
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, arrow.ChunkedArray):  # combine_chunks keeps what is beyond one array's size apart
        raise DataError(f"x: column {name!r} has more text than one Arrow array holds; pass it in parts")
    types, kind = arrow.types, column.type
    if types.is_string(kind) or types.is_large_string(kind) or getattr(types, "is_string_view", bool)(kind) is True:
        column = column.cast(arrow.string()) if not types.is_string(kind) else column
        column = column.dictionary_encode()
    if types.is_dictionary(column.type):
        codes = column.indices.cast(arrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        values = column.dictionary.to_pylist()
        absent = [index for index, value in enumerate(values) if value is None]
        codes = np.where(np.isin(codes, absent), -1, codes) if absent else codes
        return Factor(codes, ["" if value is None else plain(value) for value in values])
    if types.is_null(kind):
        return np.full(len(column), math.nan)
    if types.is_boolean(kind) or types.is_decimal(kind):
        column = column.cast(arrow.float64())
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        raise DataError(f"x: column {name!r} holds {kind}; {ALLOWED}")
    if column.null_count:
        wide = types.is_integer(kind) and kind.bit_width > 16
        column = column.cast(arrow.float64() if wide or not types.is_floating(column.type) else column.type)
        column = column.fill_null(math.nan)
    return column.to_numpy(zero_copy_only=False)

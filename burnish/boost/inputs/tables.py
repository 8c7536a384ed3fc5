"""Tables of features as boosting reads them: dense float32 in C order, or compressed rows, from arrays and frames."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inputs.factors import Factor, factor, known_values, number
from burnish.boost.inputs.frames import Columns, arrow_columns, pandas_columns
from burnish.boost.inputs.naming import order_of
from burnish.boost.inputs.rounding import EXACT, Rounding
from burnish.boost.inputs.rows import FLOAT32_MAX
from burnish.errors import DataError
from burnish.runtime.threads import Workers

BLOCK = 1 << 15  # entries converted at a time: they stay in the second-level cache
INFINITE = ("error", "missing", "largest")  # what an infinite value is
_WORKERS = Workers()


@dataclass(frozen=True)
class Sparse:
    """Compressed rows: entry j of row i is ``values[j]`` in column ``columns[j]``, start[i] <= j < start[i + 1].

    Columns ascend within a row. An absent entry is missing, as in XGBoost; a stored zero is a zero.
    """

    start: NDArray[np.int64]  # (rows + 1,)
    columns: NDArray[np.int32]  # (entries,)
    values: NDArray[np.float32]  # (entries,); no NaN

    def without(self, gone: NDArray[np.bool_]) -> "Sparse":
        """The table less the entries that are marked, (entries,)."""
        if not gone.any():
            return self
        kept = np.concatenate([[0], np.cumsum(~gone)])
        return Sparse(kept[self.start].astype(np.int64), self.columns[~gone], self.values[~gone])

    def arranged(self, order: NDArray[np.int64]) -> "Sparse":
        """The table whose column j is this one's column order[j]; `order` has every column once."""
        columns = np.argsort(order).astype(np.int32)[self.columns]
        place = np.lexsort((columns, np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))))
        return Sparse(self.start, columns[place], self.values[place])


@dataclass(frozen=True)
class Converted:
    """Table converted by `convert`: float32 (rows, features) or sparse, with names and categories."""

    table: NDArray[np.float32] | Sparse
    rows: int
    features: int
    names: tuple[str, ...]  # (features,), or empty
    categories: tuple[Any, ...]  # (features,) of None or values, or empty


def feature_label(feature: int, names: Sequence[str]) -> str:
    """Name of a feature in messages."""
    return f"feature {names[feature]!r}" if names else f"feature {feature}"


@dataclass(frozen=True, eq=False)
class _Conversion:
    """Conversion of a table to numbers: arguments of `Dataset.of`; `trained`: the categories of training."""

    missing: float
    listed: NDArray[np.bool_]
    trained: Sequence[Any] | None
    policy: str
    names: Sequence[str]
    infinite: str

    @property
    def wanted(self) -> NDArray[np.bool_]:
        """The features that are numbered as categories, (features,)."""
        return self.listed if self.trained is None else np.array([values is not None for values in self.trained])

    def label(self, feature: int) -> str:
        """Name of a feature in messages."""
        return feature_label(feature, self.names)

    def numbered(self, column: Factor, feature: int) -> tuple[NDArray[np.float32], tuple[Any, ...]]:
        """Category numbers of a column, and the categories: those of training, or `known_values`."""
        name = self.label(feature)
        known = known_values(column, name) if self.trained is None else self.trained[feature]
        if known is None:
            raise DataError(f"{name}: found categories; allowed are numbers, as in training")
        return number(column, known, self.policy, name), tuple(known)


def convert(
    x: Any,
    missing: float,
    categorical: Sequence[int | str],
    categories: tuple[Any, ...],
    policy: str,
    feature_names: Sequence[str] | None,
    columns: Sequence[str] = (),
    infinite: str = "error",
) -> Converted:
    """A table of any accepted kind as float32 numbers, its categories numbered; arguments as of `Dataset.of`."""
    sparse, frame = _scipy_sparse(x), _frame(x)
    names = frame.names if frame is not None else ()
    if frame is not None and frame.matrix is not None:
        x, frame = frame.matrix, None
    matrix = None if sparse is not None or frame is not None else _matrix(x)
    if matrix is not None and matrix.dtype.kind not in "biuf":
        frame, matrix = Columns((), [matrix[:, j] for j in range(matrix.shape[1])], len(matrix)), None
    if frame is not None:
        rows, features = frame.rows, len(frame.values)
    else:
        rows, features = (sparse if sparse is not None else matrix).shape  # type: ignore[union-attr]
    if features < 1:
        raise DataError(f"x: found shape ({rows}, 0); allowed are tables of 1 or more features")
    names = _names(feature_names, features) if feature_names is not None else names
    listed = _listed(categorical, features, names)
    order = order_of(names, columns, "x")
    if order is not None:
        names, listed = tuple(columns), listed[order]
        sparse = sparse if sparse is None else sparse.tocsc()[:, order].tocsr()
        matrix = matrix if matrix is None else matrix[:, order]
        frame = frame if frame is None else Columns(names, [frame.values[j] for j in order.tolist()], rows)
    if categories and len(categories) != features:
        raise DataError(f"x: found {features} features; allowed is {len(categories)}, as in training")
    how = _Conversion(missing, listed, list(categories) if categories else None, policy, names, infinite)
    table: NDArray[np.float32] | Sparse
    if sparse is not None:
        table, found = _from_sparse(sparse, how)
    elif matrix is not None:
        table, found = _from_matrix(matrix, how)
    else:
        assert frame is not None
        table, found = _from_columns(frame, how)
    return Converted(table, rows, features, names, tuple(found) if any(c is not None for c in found) else ())


def _scipy_sparse(x: Any) -> Any:
    module = sys.modules.get("scipy.sparse")
    if module is None or not module.issparse(x):
        return None
    if x.ndim != 2:
        raise DataError(f"x: found shape {x.shape}; allowed are two dimensions, (rows, features)")
    return x


def _frame(x: Any) -> Columns | None:
    pandas, arrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    if pandas is not None and isinstance(x, pandas.DataFrame):
        return pandas_columns(x)
    if arrow is not None and isinstance(x, (arrow.Table, arrow.RecordBatch)):
        return arrow_columns(x)
    if hasattr(x, "to_arrow") and hasattr(x, "columns"):  # polars, and others that speak Arrow
        return arrow_columns(x.to_arrow())
    return None


def _matrix(x: Any) -> NDArray[Any]:
    try:
        matrix = np.asarray(x)
    except ValueError as error:
        raise DataError(f"x: rows of different lengths; {error}") from None
    if matrix.ndim != 2:
        raise DataError(f"x: found shape {matrix.shape}; allowed are two dimensions, (rows, features)")
    if matrix.dtype.kind not in "biufOSUT":
        raise DataError(f"x: found {matrix.dtype} values; allowed are real numbers, and text in categorical columns")
    return matrix


def _names(names: Sequence[str], features: int) -> tuple[str, ...]:
    found = tuple(str(name) for name in names)
    if len(found) != features:
        raise DataError(f"feature_names: found {len(found)} names; allowed is {features}, one for each feature")
    if len(set(found)) != features:
        twice = next(name for index, name in enumerate(found) if name in found[:index])
        raise DataError(f"feature_names: found {twice!r} twice; allowed are distinct names")
    return found


def _listed(categorical: Any, features: int, names: Sequence[str]) -> NDArray[np.bool_]:
    """Which features are listed as categorical, by number or by name, (features,)."""
    chosen = np.zeros(features, np.bool_)
    for feature in [categorical] if isinstance(categorical, (str, int, np.integer)) else categorical:
        if not isinstance(feature, str) and (isinstance(feature, bool) or not isinstance(feature, (int, np.integer))):
            raise DataError(f"categorical: found {feature!r}; allowed are numbers and names of features")
        if isinstance(feature, str):
            if feature not in names:
                raise DataError(f"categorical: found {feature!r}; allowed are names out of {list(names)}")
            chosen[names.index(feature)] = True
        elif not 0 <= feature < features:
            raise DataError(f"categorical: found {feature}; allowed are 0 to {features - 1}")
        else:
            chosen[feature] = True
    return chosen


def _from_matrix(matrix: NDArray[Any], how: _Conversion) -> tuple[NDArray[np.float32], list[Any]]:
    wanted = how.wanted
    table = dense(matrix, how.missing, how.names, wanted, how.infinite)
    found: list[Any] = [None] * matrix.shape[1]
    if wanted.any() and np.shares_memory(table, matrix):
        table = table.copy()
    for feature in np.flatnonzero(wanted).tolist():
        column = factor(matrix[:, feature], how.missing)  # before rounding to float32, which could merge large numbers
        table[:, feature], found[feature] = how.numbered(column, feature)
    return table, found


def _from_columns(frame: Columns, how: _Conversion) -> tuple[NDArray[np.float32], list[Any]]:
    found: list[Any] = [None] * len(frame.values)
    columns: list[NDArray[Any]] = []
    wanted = how.wanted
    for feature, column in enumerate(frame.values):
        if not isinstance(column, Factor) and wanted[feature]:
            column = factor(column, how.missing)
        if isinstance(column, Factor):
            numbers, found[feature] = how.numbered(column, feature)
            columns.append(numbers)
        else:
            columns.append(_object_numbers(column, how.label(feature)) if column.dtype.kind not in "biuf" else column)
    # A missing mark such as 0 must not remove category 0: those columns have had theirs applied.
    marks = [math.nan if values is not None else how.missing for values in found]
    return stack(columns, marks, how.names, frame.rows, how.infinite), found


def _object_numbers(column: NDArray[Any], name: str) -> NDArray[np.float64]:
    """A column of Python objects as numbers; text is refused by its row."""
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError):
        pass
    numbers = np.empty(len(column), np.float64)
    for row, value in enumerate(column.tolist()):
        try:
            numbers[row] = math.nan if value is None or type(value).__name__ == "NAType" else float(value)
        except (TypeError, ValueError):
            raise DataError(
                f"x: row {row}, {name} is {value!r}; allowed are numbers, or the feature listed in categorical="
            ) from None
    return numbers


def dense(
    matrix: NDArray[Any],
    missing: float,
    names: Sequence[str] = (),
    wanted: NDArray[np.bool_] | None = None,
    infinite: str = "error",
) -> NDArray[np.float32]:
    """The matrix as float32 in C order: itself if it is that, and has nothing to mark as missing.

    wanted: features that will be numbered as categories. Warns of whole numbers in others that are rounded.
    """
    marked = not math.isnan(missing)
    same = matrix.dtype == np.float32 and matrix.flags.c_contiguous and matrix.dtype.isnative
    keep = same and not (marked and _holds(matrix, missing))
    keep = keep and (infinite == "error" or not (_holds(matrix, math.inf) or _holds(matrix, -math.inf)))
    rows, features = matrix.shape
    table: NDArray[np.float32] = matrix if keep else np.empty(matrix.shape, np.float32)
    step = max(16, BLOCK // features)
    floating = matrix.dtype.kind == "f"
    rounding = Rounding()

    def part(begin: int, end: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(begin, end, step):
                last = min(first + step, end)
                target = table[first:last]
                if not keep:
                    source = matrix[first:last]
                    target[...] = source
                    if marked:
                        np.copyto(target, np.nan, where=source == missing)
                    rounding.look(source, target)
                if floating and np.isinf(target).any():
                    if infinite != "error":
                        _replace_infinite(target, infinite)
                        continue
                    row, feature = np.argwhere(np.isinf(target))[0].tolist()
                    _refuse(matrix[first + row, feature], first + row, feature_label(feature, names))

    _WORKERS.run(part, _WORKERS.ranges(rows, least=step))
    rounding.warn(names, wanted)
    return table


def stack(
    columns: Sequence[NDArray[Any]], marks: Sequence[float], names: Sequence[str], rows: int, infinite: str = "error"
) -> NDArray[np.float32]:
    """Columns of numbers side by side as float32 in C order; marks[j] is a value that is missing in column j.

    Warns of whole numbers that are rounded.
    """
    table = np.empty((rows, len(columns)), np.float32)
    step = max(256, 4 * BLOCK // len(columns))  # fewer and longer: each is a call for every column
    rounding = Rounding()

    def part(begin: int, end: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(begin, end, step):
                last = min(first + step, end)
                block = table[first:last]
                for feature, column in enumerate(columns):
                    block[:, feature] = column[first:last]
                    if not math.isnan(marks[feature]):
                        block[column[first:last] == marks[feature], feature] = np.nan
                    rounding.look(column[first:last, None], block[:, feature, None], feature)
                if np.isinf(block).any():
                    if infinite != "error":
                        _replace_infinite(block, infinite)
                        continue
                    row, feature = np.argwhere(np.isinf(block))[0].tolist()
                    _refuse(columns[feature][first + row], first + row, feature_label(feature, names))

    _WORKERS.run(part, _WORKERS.ranges(rows, least=step))
    rounding.warn(names)
    return table


def _holds(matrix: NDArray[np.float32], value: float) -> bool:
    """Whether an entry equals the value; looked up in blocks, without an array of the matrix's size."""
    step = max(1, BLOCK // matrix.shape[1])
    return any(bool((matrix[first : first + step] == value).any()) for first in range(0, len(matrix), step))


def _replace_infinite(values: NDArray[np.float32], infinite: str) -> None:
    """Makes infinite float32 missing, or the largest and least of finite ones, in place."""
    if infinite == "missing":
        values[np.isinf(values)] = np.nan
    else:
        np.clip(values, -FLOAT32_MAX, FLOAT32_MAX, out=values)


def _refuse(value: Any, row: int, name: str) -> None:
    """Raises the error for a value that is infinite as float32."""
    if math.isinf(value):
        raise DataError(
            f"x: row {row}, {name} is {value}; allowed are finite numbers, or NaN for a missing value; or any with "
            "infinite 'missing' or 'largest'"
        )
    raise DataError(f"x: row {row}, {name} is {value}; allowed is at most {FLOAT32_MAX:.3g}, the most of a float32")


def _from_sparse(matrix: Any, how: _Conversion) -> tuple[Sparse, list[Any]]:
    """Compressed rows of a SciPy matrix; shares its memory where dtypes and order are right."""
    features = matrix.shape[1]
    if features > np.iinfo(np.int32).max:
        raise DataError(f"x: found {features} features; allowed are at most {np.iinfo(np.int32).max} of a sparse table")
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"x: found {matrix.dtype} values; allowed are real numbers")
    compressed = matrix.tocsr()
    if not _canonical(compressed.indptr, compressed.indices, features):
        compressed = compressed.copy() if compressed is matrix else compressed
        compressed.has_canonical_format = compressed.has_sorted_indices = False  # what it remembers may be stale
        compressed.sum_duplicates()
    start, columns = compressed.indptr.astype(np.int64, copy=False), compressed.indices.astype(np.int32, copy=False)
    entries = int(start[-1])
    columns, source = columns[:entries], compressed.data[:entries]
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(source, np.float32)
    gone = np.isnan(values) if source.dtype.kind == "f" else np.zeros(entries, np.bool_)
    if not math.isnan(how.missing):
        gone |= source == how.missing
    if source.dtype.kind == "f":
        here = np.isinf(values) & ~gone
        if here.any() and how.infinite != "error":
            values = values.copy()
            _replace_infinite(values, how.infinite)
            gone |= np.isnan(values)
        elif here.any():
            entry = int(np.argmax(here))
            row = int(np.searchsorted(start, entry, side="right")) - 1
            _refuse(source[entry], row, how.label(int(columns[entry])))
    found: list[Any] = [None] * features
    wanted, rounding = how.wanted, Rounding()
    large = np.flatnonzero((np.abs(values) > EXACT) & ~gone)
    for feature in np.unique(columns[large]).tolist():
        here = large[columns[large] == feature]
        rounding.look(source[here, None], values[here, None], feature)
    rounding.warn(how.names, wanted)
    if wanted.any() and np.shares_memory(values, source):
        values = values.copy()
    for feature in np.flatnonzero(wanted).tolist():
        here = columns == feature
        column = factor(source[here], how.missing)
        values[here], found[feature] = how.numbered(column, feature)
        gone |= np.isnan(values)
    return Sparse(start, np.ascontiguousarray(columns), values).without(gone), found


def _canonical(start: NDArray[Any], columns: NDArray[Any], features: int) -> bool:
    """Whether columns ascend strictly within every row; raises DataError for a column or a start out of range."""
    entries = int(start[-1])
    if start[0] != 0 or (np.diff(start) < 0).any() or entries > len(columns):
        raise DataError("x: the row starts of the sparse matrix do not ascend from 0 to its entries")
    columns = columns[:entries]
    if entries and (columns.min() < 0 or columns.max() >= features):
        raise DataError(f"x: found a sparse entry in column {columns.max()}; allowed are 0 to {features - 1}")
    falls = columns[1:] <= columns[:-1]
    heads = start[1:-1]
    falls[heads[(heads > 0) & (heads < entries)] - 1] = False
    return not falls.any()

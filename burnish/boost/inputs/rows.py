"""Row data: labels, weights, base margins and query groups, checked and brought to their dtypes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError

FLOAT32_MAX = float(np.finfo(np.float32).max)


def numbers(name: str, values: Any) -> NDArray[Any]:
    """Converts any sequence or array of real numbers to an array; None and pandas' NA become NaN. Raises DataError."""
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if array.dtype.kind == "O":
            array = np.array([np.nan if is_absent(value) else value for value in array.ravel()], np.float64)
            array = array.reshape(np.shape(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: must be real numbers; {error}") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: found {array.dtype} values; allowed are real numbers")
    return array


def is_absent(value: Any) -> bool:
    """Whether an object of a frame stands for nothing: None, NaN, or a marker such as pandas' NA and NaT."""
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def finite(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    """The array as contiguous float32; raises DataError naming the first row that is NaN or infinite as such."""
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array, np.float32)
    good = np.isfinite(result)
    if not good.all():
        row = int(np.argwhere(~good)[0][0])
        value = float(array[row] if array.ndim == 1 else array[tuple(np.argwhere(~good)[0])])
        allowed = f"at most {FLOAT32_MAX:.3g} in magnitude" if np.isfinite(value) else "finite numbers"
        raise DataError(f"{name}: row {row} is {value:g}; allowed are {allowed}")
    return result


def vector(name: str, values: Any, rows: int) -> NDArray[np.float32]:
    """One finite number for every row, (rows,); a single column is taken for a vector."""
    array = numbers(name, values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (rows,):
        raise DataError(f"{name}: found shape {array.shape}; allowed is ({rows},), one number for each row of x")
    return finite(name, array)


def labels(values: Any, rows: int) -> NDArray[np.float32]:
    """Labels (rows,), or of several outputs (rows, outputs); a single column is taken for a vector."""
    array = numbers("label", values.toarray() if hasattr(values, "toarray") else values)
    if array.ndim != 2 or array.shape[1] < 2:
        return vector("label", array, rows)
    if len(array) != rows:
        raise DataError(f"label: found shape {array.shape}; allowed is ({rows},) or ({rows}, outputs)")
    return finite("label", array)


def bounds(lower: Any, upper: Any, rows: int) -> NDArray[np.float32]:
    """Lower and upper bounds of labels, (rows, 2); an upper one may be infinite."""
    high = numbers("label_upper_bound", upper).astype(np.float64)
    endless = np.isposinf(high)
    known = vector("label_upper_bound", np.where(endless, 0.0, high), rows)
    high32 = np.where(endless.reshape(known.shape), np.float32(np.inf), known)
    return np.stack([vector("label_lower_bound", lower, rows), high32], axis=1)


def weights(values: Any, rows: int, group_start: NDArray[np.int64] | None) -> NDArray[np.float32]:
    """Weights of the rows, (rows,), not negative; one for each query is spread over the query's rows."""
    array = numbers("weight", values)
    if group_start is not None and array.shape == (len(group_start) - 1,) and len(array) != rows:
        array = np.repeat(array, np.diff(group_start))
    result = vector("weight", array, rows)
    if rows and result.min() < 0:
        row = int(np.argmax(result < 0))
        raise DataError(f"weight: row {row} is {result[row]:g}; allowed are weights of 0 or more")
    return result


def margins(values: Any, rows: int) -> NDArray[np.float32]:
    """Margins to start from, (rows, outputs); one for each row is one output."""
    array = numbers("base_margin", values)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or len(array) != rows or array.shape[1] < 1:
        raise DataError(f"base_margin: found shape {np.shape(values)}; allowed is ({rows},) or ({rows}, outputs)")
    return finite("base_margin", array)


def groups(sizes: Any, rows: int) -> NDArray[np.int64]:
    """Starts of the queries, (groups + 1,), from their sizes, which must add up to the rows."""
    array = numbers("group", sizes)
    if array.ndim != 1 or not np.array_equal(array, np.floor(array)) or (len(array) and array.min() < 1):
        wrong = f"shape {array.shape}" if array.ndim != 1 else f"a size of {float(array[_first_unusable(array)]):g}"
        raise DataError(f"group: found {wrong}; allowed are whole numbers of rows, 1 or more, one for each query")
    total = int(array.sum(dtype=np.float64))
    if total != rows:
        raise DataError(f"group: the sizes add up to {total}; allowed is {rows}, the number of rows")
    return np.concatenate([[0], np.cumsum(array, dtype=np.int64)]).astype(np.int64)


def _first_unusable(sizes: NDArray[Any]) -> int:
    return int(np.argmax(~((sizes == np.floor(sizes)) & (sizes >= 1))))


def queries(qid: Any, rows: int) -> NDArray[np.int64]:
    """Starts of the queries, (groups + 1,), from the query of each row; rows of a query must stand together."""
    array = np.asarray(qid)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (rows,):
        raise DataError(f"qid: found shape {array.shape}; allowed is ({rows},), one query for each row of x")
    if array.dtype.kind not in "biufUS":
        array = np.array([str(value) for value in array])
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise DataError(f"qid: row {int(np.argmax(np.isnan(array)))} has none; allowed is one query for each row")
    changes = np.flatnonzero(array[1:] != array[:-1]) + 1
    start = np.concatenate([[0] if rows else [], changes, [rows]]).astype(np.int64)
    heads = array[start[:-1]]
    _, first = np.unique(heads, return_index=True)
    if len(first) != len(heads):
        again = int(np.setdiff1d(np.arange(len(heads)), first)[0])
        raise DataError(
            f"qid: found query {heads[again]} again in row {start[again]}, after another; "
            "allowed are queries whose rows stand together"
        )
    return start

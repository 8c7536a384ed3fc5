"""Values of model files in JSON: objects, lists of integers and of float32, checked; floats of fewest digits."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError


def parse_json(text: str | bytes, source: str) -> dict[str, Any]:
    """A JSON object. Raises DataError where the text is none: truncated, not UTF-8, or nested too deeply."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is no JSON, or truncated: {error or 'nested too deeply'}") from None
    if not isinstance(document, dict):
        raise DataError(f"{source} holds a JSON {type(document).__name__}, allowed: an object")
    return document


def int32_array(values: Any, where: str) -> NDArray[np.int32]:
    """A list of JSON as int32 in one dimension. Raises DataError for anything but integers in range."""
    array = np.asarray(values if len(values) else np.empty(0, np.int64))
    if (
        array.ndim != 1
        or array.dtype.kind not in "iub"
        or (array.size and np.abs(array.astype(np.int64)).max() >= 2**31)
    ):
        raise DataError(f"{where} is no list of 32-bit integers")
    return array.astype(np.int32)


def float32_array(values: Any, where: str) -> NDArray[np.float32]:
    """A list of JSON as float32 in one dimension. Raises DataError for anything but numbers."""
    array = np.asarray(values if len(values) else np.empty(0))
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise DataError(f"{where} is no list of numbers")
    with np.errstate(over="ignore"):  # what overflows becomes infinite, which check_tree refuses
        return array.astype(np.float64).astype(np.float32)


def floats(values: NDArray[np.float32]) -> list[float]:
    """The doubles of fewest digits that round to the float32 values."""
    short = values.astype(str).astype(np.float64)
    exact: list[float] = np.where(short.astype(np.float32) == values, short, values.astype(np.float64)).tolist()
    return exact

"""Fields of graphs in arrays, texts and objects of other programs: features, labels, masks by any of their names."""

from __future__ import annotations

import gzip
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError
from burnish.gnn.data.csr import integers

MASKS = ("train", "validation", "test")
# Names of fields in files and objects of other programs.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "features": ("features", "feature", "x", "feat", "node_feat"),
    "labels": ("labels", "label", "y", "node_label", "classes"),
    "train": ("train", "train_mask", "train_idx"),
    "validation": ("validation", "val_mask", "valid_mask", "validation_mask", "valid", "val_idx"),
    "test": ("test", "test_mask", "test_idx"),
    "weights": ("weights", "edge_weight", "edge_weights"),
}


def fields_of(get: Callable[[str], Any]) -> dict[str, Any]:
    """Fields by our names, the first of each that there is."""
    found = {}
    for name, names in FIELDS.items():
        value = next((value for value in map(get, names) if value is not None), None)
        if value is not None:
            found[name] = value
    return found


def vertex_fields(fields: Mapping[str, Any], vertices: int) -> dict[str, Any]:
    """Features, labels and masks as a graph has them: labels as integers, masks also from numbers of vertices."""
    made = {"features": fields.get("features"), "labels": _labels(fields.get("labels"))}
    return made | {name: _as_mask(name, fields.get(name), vertices) for name in MASKS}


def _labels(found: Any) -> Any:
    """Labels as integers; one column is none; NaN is unknown. Raises DataError for other fractions."""
    if found is None:
        return None
    array = np.asarray(found)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind != "f":
        return array
    whole = np.where(np.isnan(array), -1, array)
    wrong = (whole != np.floor(whole)) | (np.abs(whole) > 2**31)
    if wrong.any():
        raise DataError(f"graph: labels: found {whole[wrong][0]:g}; allowed: integers, or NaN if unknown")
    return whole.astype(np.int64)


def _as_mask(name: str, found: Any, vertices: int) -> Any:
    """A mask from a mask, or from numbers of vertices. Raises DataError.

    As many 0 and 1 as vertices are a mask: of more than two vertices they are no different numbers.
    """
    if found is None:
        return None
    array = np.asarray(found)
    flags = array.shape == (vertices,) and array.dtype.kind in "iu" and bool(np.isin(array, (0, 1)).all())
    if array.dtype == np.bool_ or (flags and (array.dtype == np.uint8 or vertices > 2)):
        return array.astype(np.bool_)
    numbers = integers(name, array, np.int64)
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= vertices):
        raise DataError(f"graph: {name}: found vertices {numbers.min()} to {numbers.max()}; allowed: below {vertices}")
    mask = np.zeros(vertices, np.bool_)
    mask[numbers] = True
    return mask


def array_of(value: Any) -> Any:
    """NumPy's view of a tensor of PyTorch; other values as they are."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") and hasattr(value, "numpy") else value


def weights_of(data: Any) -> NDArray[Any] | None:
    """Weights of a matrix's entries, None if each is one."""
    array = np.asarray(data)
    return None if (array == 1).all() else array.astype(np.float32) if array.dtype.kind == "b" else array


def pair_of(edges: Any, name: str) -> tuple[Any, Any]:
    """Sources and targets of edges (2, E). Raises DataError."""
    array = np.asarray(edges)
    if array.ndim != 2 or array.shape[0] != 2:
        raise DataError(f"graph: {name}: found edges of shape {array.shape}; allowed: (2, edges)")
    return array[0], array[1]


def whole_numbers(found: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Numbers of a text as integers. Raises DataError for fractions, NaN, and what is beyond 2⁵³."""
    wrong = ~(np.abs(found) <= 2**53) | (found != np.floor(found))
    if wrong.any():
        raise DataError(f"graph: {name}: found {found[wrong][0]:g}; allowed: integers")
    return found.astype(np.int64)


def integer_of(found: Any, name: str) -> int:
    """An array of one integer. Raises DataError."""
    array = np.asarray(found)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise DataError(f"graph: {name}: found {array.dtype} of shape {array.shape}; allowed: one integer")
    return int(array.reshape(-1)[0])


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz``; never of Python objects. Raises OSError, DataError."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, AttributeError) as error:
        raise DataError(f"'{path}' cannot be read, it is truncated, altered or holds objects: {error}") from None


def table_of(path: Path) -> NDArray[np.float64]:
    """Numbers of a text, (lines, columns), by commas or blanks. Raises OSError, DataError."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            lines = (line.replace(",", " ") for line in file)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "loadtxt: input contained no data", UserWarning)
                return np.loadtxt(lines, dtype=np.float64, comments="#", ndmin=2)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"'{path}' cannot be read, it is truncated or no table of numbers: {error}") from None

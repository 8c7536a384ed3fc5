"""Training data from LibSVM, CSV and Parquet files, whole or in chunks; a folder is the rows of its files by name."""

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from burnish.boost.categories import merge
from burnish.boost.data import Dataset
from burnish.boost.inputs.factors import POLICIES
from burnish.boost.inputs.tables import Sparse
from burnish.boost.readers import csv, libsvm, parquet
from burnish.boost.readers.files import FORMATS, files_of, format_of, name_tokens
from burnish.boost.readers.parts import TableRows, finished, join, known_in, numbers_told, regroup
from burnish.boost.readers.roles import ColumnRoles
from burnish.errors import DataError, ParameterError

__all__ = ["FORMATS", "FileOptions", "chunks", "columns_of", "kind_of", "numbering", "read"]


@dataclass(frozen=True)
class FileOptions:
    """Options of reading files. What a format has not, such as a separator in Parquet, is ignored there."""

    format: str | None = None  # one of FORMATS; None: by the suffix, before ".gz", or by the first line
    label: int | str | None = None  # column of the label, by name or by number from 0 (CSV, Parquet)
    weight: int | str | None = None
    qid: int | str | None = None
    ignore: Sequence[int | str] = ()  # columns to leave out
    categorical: Sequence[int | str] = ()  # columns of categories, beside Parquet's own of text and dictionaries
    categories: tuple[Any, ...] = ()  # of the training data, (features,), when the file is to be encoded for a model
    policy: str = "error"  # what a category is that is not among them: "error", "missing", "other"
    columns: Sequence[
        str
    ] = ()  # the features, by name and in this order, where columns have names; the rest is left out
    missing: Sequence[str | float] = ()  # further marks of a missing value, texts or numbers
    header: bool | None = None  # CSV: None looks whether the first line has a field that is no number
    separator: str | None = None  # CSV: one of , ; | and tab; None takes what is most frequent in the first line
    first_index: int | None = None  # LibSVM: 0 or 1; None looks through the file: 0 if there is a feature 0
    features: int | None = None  # LibSVM: how many there are; None looks through the file
    threads: int | None = None  # that parse text; None: one for each core

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ParameterError(f"policy: found {self.policy!r}; allowed are {', '.join(POLICIES)}")
        if self.first_index not in (None, 0, 1):
            raise ParameterError(f"first_index: found {self.first_index!r}; allowed are 0, 1 and None")
        if self.features is not None and not 1 <= self.features <= libsvm.LARGEST + 1:
            raise ParameterError(f"features: found {self.features}; allowed are 1 to {libsvm.LARGEST + 1}")

    @property
    def workers(self) -> int:
        """The number of threads."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def roles(self) -> ColumnRoles:
        """Which columns are no features, or categorical."""
        return ColumnRoles(
            self.label, self.weight, self.qid, self.ignore, self.categorical, self.categories, self.columns
        )


def read(path: str | os.PathLike[str], **options: Any) -> Dataset:
    """The rows of a file, or of all files of a folder, as one Dataset. Keywords are those of `FileOptions`.

    Raises DataError, which names file and line (of Parquet, the row), for what cannot be read.
    """
    chosen = FileOptions(**options)
    files = files_of(path)
    kind = format_of(files, chosen.format)
    counted = libsvm.Numbering(chosen.first_index or 0, chosen.features or libsvm.LARGEST + 1)
    if kind == "libsvm" and chosen.first_index is None and chosen.features is not None:
        counted = libsvm.numbering_of(files, None, chosen.features, chosen.workers)
    found = [part for part in _parts(files, kind, chosen, counted) if part.rows]
    if not found:
        raise DataError(f"{path}: found no rows")
    whole = join(found)
    if isinstance(whole.table, Sparse):
        return finished(_counted(whole, whole.table, chosen), (), chosen.policy)
    return finished(whole, chosen.categories or _categories([whole]), chosen.policy)


def _counted(whole: TableRows, table: Sparse, options: FileOptions) -> TableRows:
    """LibSVM rows with features numbered from 0, if that was left to be seen at the end."""
    shift = 0
    if options.first_index is None and options.features is None and len(table.columns):
        shift = min(int(table.columns.min()), 1)
        np.subtract(table.columns, shift, out=table.columns, dtype=np.int32)
    return replace(whole, features=max(whole.features - shift, 1))


def chunks(path: str | os.PathLike[str], chunk_rows: int, **options: Any) -> Generator[Dataset, None, None]:
    """The same rows in Datasets of `chunk_rows` rows, one at a time; the last has what is left.

    All have the same features and the same categories, so that what is not given of `features`, `first_index` and
    `categories` takes a pass over the files first, which also holds no more than a chunk. A query is never cut: its
    chunk ends before it, or is larger if the query alone is. Raises as `read` does, when it gets there.
    """
    if chunk_rows < 1:
        raise ParameterError(f"chunk_rows: found {chunk_rows}; allowed is 1 or more")
    chosen = FileOptions(**options)
    files = files_of(path)
    kind = format_of(files, chosen.format)
    counted = libsvm.Numbering()
    if kind == "libsvm" and chosen.first_index is not None and chosen.features is not None:
        counted = libsvm.Numbering(chosen.first_index, chosen.features)
    elif kind == "libsvm":
        counted = libsvm.numbering_of(files, chosen.first_index, chosen.features, chosen.workers)
    categories = chosen.categories
    if kind == "parquet" or (kind == "csv" and chosen.categorical and not categories):
        categories = categories or _categories(_parts(files, kind, chosen, counted))
    part = None
    for part in regroup(_parts(files, kind, chosen, counted), chunk_rows):
        yield finished(part, categories, chosen.policy)
    if part is None:
        raise DataError(f"{path}: found no rows")


def columns_of(path: str | os.PathLike[str], **options: Any) -> tuple[tuple[str, ...], int]:
    """The names of the columns of a CSV or Parquet file, or none where it has no header, and how many there are."""
    chosen = FileOptions(**options)
    files = files_of(path)
    kind = format_of(files, chosen.format)
    if kind == "parquet":
        names = parquet.columns_of(files[0])
        return names, len(names)
    if kind == "csv":
        layout = csv.layout_of(files[0], ColumnRoles(), chosen.header, chosen.separator, *name_tokens(chosen.missing))
        return layout.names, layout.features
    raise DataError(f"{files[0]}: found {kind}, which has no columns; allowed are csv and parquet")


def _categories(parts: Iterable[TableRows]) -> tuple[Any, ...]:
    """The categories of all parts together; looks at the first only if it has none."""
    union: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    textual = False
    for part in parts:
        if not part.factors:
            return ()
        names, textual = part.names, part.textual
        union = merge(union, known_in(part), names)
    return numbers_told(union, names) if textual else union


def kind_of(path: str | os.PathLike[str], format: str | None = None) -> str:
    """The format that a file, or every file of a folder, has: one of FORMATS."""
    return format_of(files_of(path), format)


def numbering(path: str | os.PathLike[str], **options: Any) -> tuple[int, int]:
    """The number of the first feature in a LibSVM file, 0 or 1, and how many features there are."""
    chosen = FileOptions(**options)
    found = libsvm.numbering_of(files_of(path), chosen.first_index, chosen.features, chosen.workers)
    return found.first, found.features


def _parts(files: list[Path], kind: str, options: FileOptions, counted: libsvm.Numbering) -> Iterator[TableRows]:
    tokens, marks = name_tokens(options.missing)
    if kind == "libsvm":
        return libsvm.parts(files, counted, marks, options.workers)
    if kind == "parquet":
        return parquet.parts(files, options.roles, marks)
    layouts = [csv.layout_of(file, options.roles, options.header, options.separator, tokens, marks) for file in files]
    for file, layout in zip(files, layouts, strict=True):
        if layout.names != layouts[0].names or len(layout.roles) != len(layouts[0].roles):
            raise DataError(
                f"{file}: its columns differ from those of {files[0].name}; allowed are the same in a folder"
            )
    return csv.parts(files, layouts, options.workers)

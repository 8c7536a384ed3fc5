"""LibSVM text by pyarrow: lines of ``label[:weight] [qid:query] feature:value … [# comment]``.

`parse` hands the tokens of a block of lines to pyarrow's reader of CSV as a table of two columns. What that refuses
`_read_lines` reads token by token: slow, but it knows the line of every error. (scikit-learn's `load_svmlight_file`
takes three times as long, one thread at a time, and knows neither weights nor features out of order.)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from burnish.base.optional import require
from burnish.boost.inputs.tables import Sparse
from burnish.boost.readers.digits import exact, has_payload, infinite, marked, shown
from burnish.boost.readers.files import NEWLINE, LineBlock, ahead, blocks
from burnish.boost.readers.parts import TableRows
from burnish.errors import DataError

LARGEST = np.iinfo(np.int32).max - 1  # feature numbers are int32
_COMMENT = re.compile(rb"#[^\n]*")
_QUERY = re.compile(rb"qid:([0-9]{1,18})")  # which int64 holds
_QUERIES = re.compile(rb"\nqid:([0-9]{1,18})(?=\n)")
_WEIGHTS = re.compile(rb"\n:([^\n:]+):(?=[^\n:])")
_LINES = bytes.maketrans(b" \t\r", b"\n\n\n")
_LABEL_KEY, _WEIGHT_KEY, _QUERY_KEY = 1 << 60, 2 << 60, 3 << 60  # of tokens that are no feature, which are smaller
_FEATURE = re.compile(rb"(-?[0-9]+)(?:(:)(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Numbering:
    """Numbering of a file's features."""

    first: int = 0
    features: int = LARGEST + 1


@dataclass(frozen=True)
class _Rows:
    """The tokens of some lines as numbers. Entry j of row i has start[i] <= j < start[i + 1]."""

    label: NDArray[np.float32]  # (rows,)
    weight: NDArray[np.float32] | None
    qid: NDArray[np.int64] | None
    start: NDArray[np.int64]  # (rows + 1,)
    columns: NDArray[np.int64]  # (entries,), as they are numbered in the file
    values: NDArray[np.float32]  # NaN where missing


def parse(block: LineBlock, numbering: Numbering, marks: NDArray[np.float32]) -> TableRows:
    """The rows of a block of text. Raises DataError, which names file and line."""
    found = _read_by_arrow(block.text)
    rows = None if found is None else _ascending(found)
    if rows is None or not _sound(rows, numbering):
        rows = _ascending(_read_lines(block, numbering))
    table = Sparse(rows.start, (rows.columns - numbering.first).astype(np.int32), rows.values)
    table = table.without(np.isnan(rows.values))
    if len(marks):
        table = table.without(marked(table.values, marks))
    features = int(rows.columns.max()) - numbering.first + 1 if len(rows.columns) else 0
    if numbering.features <= LARGEST:
        features = numbering.features
    return TableRows(table, len(rows.label), features, rows.label, rows.weight, rows.qid)


def _in_order(rows: _Rows) -> bool:
    """Whether features ascend in each row, none twice."""
    after = np.diff(rows.columns) > 0
    begins = rows.start[(rows.start > 0) & (rows.start < len(rows.columns))]
    after[begins - 1] = True
    return bool(after.all())


def _ascending(rows: _Rows) -> _Rows:
    """The same rows with features in ascending order."""
    if _in_order(rows):
        return rows
    order = np.lexsort((rows.columns, np.repeat(np.arange(len(rows.label)), np.diff(rows.start))))
    return replace(rows, columns=rows.columns[order], values=rows.values[order])


def _sound(rows: _Rows, numbering: Numbering) -> bool:
    """Whether no feature is twice in a row, and all numbers are among the allowed ones."""
    columns = rows.columns
    first, last = numbering.first, min(numbering.first + numbering.features - 1, LARGEST)
    return bool(
        _in_order(rows)
        and (not len(columns) or (columns.min() >= first and columns.max() <= last))
        and np.isfinite(rows.label).all()
        and not np.isinf(rows.values).any()
        and (rows.weight is None or (np.isfinite(rows.weight).all() and rows.weight.min() >= 0))
    )


def _read_by_arrow(text: bytes) -> _Rows | None:
    """The lines by pyarrow, or None if it refuses them or may read them otherwise."""
    if b"#" in text:
        text = _COMMENT.sub(b"", text)
    if b"x" in text or b"X" in text or has_payload(text):
        return None  # pyarrow reads hexadecimal numbers of features
    # A line for each token: `:label`, `feature:value`; of a blank line `:` is left.
    tokens = (b"\n:" + text[:-1].replace(b"\n", b"\n:") + b"\n").translate(_LINES)
    qid = _QUERIES.findall(tokens) if b"q" in text else []
    if qid:
        tokens = tokens.replace(b"\nqid:", b"\n%d:" % _QUERY_KEY)
    found, weights = _table(tokens), 0
    if found is None:
        tokens, weights = _WEIGHTS.subn(rb"\n:\1\n%d:" % _WEIGHT_KEY, tokens)
        found = _table(tokens) if weights else None
    if found is None:
        return None
    keys, numbers, absent = found
    entry, head, weighted = keys < _LABEL_KEY, keys == _LABEL_KEY, np.flatnonzero(keys == _WEIGHT_KEY)
    query = np.flatnonzero(keys == _QUERY_KEY)
    if np.count_nonzero(head) != text.count(NEWLINE) or len(weighted) != weights or len(query) != len(qid):
        return None  # a feature without a number, or one of these
    if absent.any():
        if (absent & ~(head & np.append(head[1:], True))).any():
            return None  # a feature without a value, or blanks before a label
        head &= ~absent  # blank lines
    with np.errstate(over="ignore", under="ignore"):  # rounded to float64 first, as np.float32(float(text)) is
        singles = numbers.astype(np.float32)
    places = np.flatnonzero(head)
    if qid and not np.array_equal(np.searchsorted(places, query), np.arange(1, len(places) + 1)):
        return None  # not one in each row
    weight = np.ones(len(places), np.float32)
    weight[np.searchsorted(places, weighted) - 1] = singles[weighted]
    before = places - np.searchsorted(np.flatnonzero(~entry), places)
    return _Rows(
        singles[places],
        weight if weights else None,
        np.array(qid, np.int64) if qid else None,
        np.append(before, np.count_nonzero(entry)),
        keys[entry],
        singles[entry],
    )


def _table(tokens: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]] | None:
    """The key of each token, its number, and whether there is no number; None if pyarrow refuses them."""
    arrow, csv = require("pyarrow", "boost"), require("pyarrow.csv", "boost")
    try:
        table = csv.read_csv(
            arrow.BufferReader(tokens),
            csv.ReadOptions(use_threads=False, block_size=len(tokens) + 1, column_names=["key", "number"]),
            csv.ParseOptions(delimiter=":", quote_char=False),
            csv.ConvertOptions(
                column_types={"key": arrow.int64(), "number": arrow.float64()}, null_values=[""], check_utf8=False
            ),
        )
    except (arrow.ArrowInvalid, OverflowError):  # the latter beyond 2 GiB
        return None
    keys = table.column("key").fill_null(_LABEL_KEY).to_numpy()
    return keys, table.column("number").to_numpy(), table.column("number").is_null().to_numpy()


def _read_lines(block: LineBlock, numbering: Numbering) -> _Rows:
    """The lines token by token. Raises DataError, which names file and line."""
    label: list[float] = []
    weight: list[float] = []
    qid: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    start, at, weighted = [0], 0, False
    for line in block.text.split(NEWLINE):
        found = line.partition(b"#")[0].split()
        if found:
            head, colon, tail = found[0].partition(b":")
            label.append(_number(block, at, "label", head))
            weight.append(_number(block, at, "weight", tail) if colon else 1.0)
            weighted |= bool(colon)
            if weight[-1] < 0:
                raise block.error(at, "the weight is negative; allowed is 0 or more")
            entries: dict[int, float] = {}
            for token in found[1:]:
                if token.startswith(b"q"):
                    qid.append(_query(block, at, token))
                    continue
                column, text = _feature(block, at, token, numbering)
                if column in entries:
                    raise block.error(at, f"feature {column} occurs twice; allowed is once in a line")
                entries[column] = _number(block, at, "value", text)
            columns += entries.keys()
            values += entries.values()
            start.append(len(columns))
        at += len(line) + 1
    if len(qid) not in (0, len(label)):
        place = f"{block.file}, line {block.line} or after"
        raise DataError(f"{place}: found {len(qid)} qid: in {len(label)} rows; allowed is one in each")
    return _Rows(
        np.array(label, np.float32),
        np.array(weight, np.float32) if weighted else None,
        np.array(qid, np.int64) if qid else None,
        np.array(start, np.int64),
        np.array(columns, np.int64),
        np.array(values, np.float32),
    )


def _number(block: LineBlock, at: int, what: str, token: bytes) -> float:
    try:
        value = exact(token)
    except ValueError:
        raise block.error(at, f"the {what} {shown(token)} is not a number") from None
    if infinite(value) or (what != "value" and value != value):
        raise block.error(at, f"the {what} is {shown(token)}; allowed are finite numbers of float32")
    return value


def _query(block: LineBlock, at: int, token: bytes) -> int:
    found = _QUERY.fullmatch(token)
    if not found:
        raise block.error(at, f"{shown(token)} is no query; allowed is qid: and a whole number")
    return int(found[1])


def _feature(block: LineBlock, at: int, token: bytes, numbering: Numbering) -> tuple[int, bytes]:
    """The number of a feature, and the text of its value."""
    found = _FEATURE.fullmatch(token)
    if not found:
        allowed = "allowed are lines of label[:weight] [qid:query] feature:value …"
        raise block.error(at, f"{shown(token)} is no feature number; {allowed}")
    column = int(found[1][:12])  # digits enough for one that is out of range
    if not found[3]:
        raise block.error(at, f"feature {shown(token)} has no value; allowed is feature:value")
    if not 0 <= column <= LARGEST:
        raise block.error(at, f"feature {shown(token)} is out of range; allowed are 0 to {LARGEST}")
    if column < numbering.first:
        below = "is numbered below the first, which is 1; pass first_index=0 if the file counts from 0"
        raise block.error(at, f"feature {shown(token)} {below}")
    if column >= numbering.first + numbering.features:
        raise block.error(at, f"feature {shown(token)} is more than the number of features allows")
    return column, found[3]


def parts(files: list[Path], numbering: Numbering, marks: NDArray[np.float32], threads: int) -> Iterator[TableRows]:
    """The rows of LibSVM files, block by block."""
    for file in files:
        yield from ahead(partial(parse, numbering=numbering, marks=marks), blocks(file, quoted=False), threads)


def numbering_of(files: list[Path], first: int | None, features: int | None, threads: int) -> Numbering:
    """Numbering of features, not given parts from a pass over the files: they count from 0 if there is a 0."""
    smallest, largest = LARGEST, -1
    for part in parts(files, Numbering(), np.empty(0, np.float32), threads):
        table = part.table
        assert isinstance(table, Sparse)
        if len(table.columns):
            smallest, largest = min(smallest, int(table.columns.min())), max(largest, int(table.columns.max()))
    if first is None:
        first = 0 if smallest == 0 else 1
    return Numbering(first, max(largest - first + 1, 1) if features is None else features)

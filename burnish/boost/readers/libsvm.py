"""LibSVM text: lines of ``label[:weight] [qid:query] feature:value … [# comment]``."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inputs.tables import Sparse
from burnish.boost.kernels import always_inlined
from burnish.boost.readers.digits import exact, marked, number, shown, single
from burnish.boost.readers.files import Block, ahead, blocks
from burnish.boost.readers.parts import Part
from burnish.errors import DataError
from burnish.jit import njit

LARGEST = np.iinfo(np.int32).max - 1  # feature numbers are int32
LABEL, WEIGHT, VALUE = range(3)
NO_FEATURE, NO_VALUE, OUT_OF_RANGE, NO_QUERY, BELOW_FIRST, TOO_MANY = range(1, 7)  # errors
_ONE = np.uint64(1)
_MOST_DIGITS = np.uint64(18)  # of a query, which int64 holds
_MESSAGES = {
    NO_FEATURE: "{token} is no feature number; allowed are lines of label[:weight] [qid:query] feature:value …",
    NO_VALUE: "feature {token} has no value; allowed is feature:value",
    OUT_OF_RANGE: f"feature {{token}} is out of range; allowed are 0 to {LARGEST}",
    NO_QUERY: "{token} is no query; allowed is qid: and a whole number",
    BELOW_FIRST: "feature {token} is numbered below the first, which is 1; "
    "pass first_index=0 if the file counts from 0",
    TOO_MANY: "feature {token} is more than the number of features allows",
}


@dataclass(frozen=True)
class Numbering:
    """How the features of a file are numbered."""

    first: int = 0
    features: int = LARGEST + 1


class _Entries(NamedTuple):
    """Rows and their entries, as `_parse` writes them."""

    label: NDArray[np.float32]
    weight: NDArray[np.float32]
    qid: NDArray[np.int64]
    start: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    doubts: NDArray[np.int64]  # (n, 4), of numbers that need `exact`: LABEL, WEIGHT or VALUE, index, begin, end


@always_inlined
def _space(character: Any) -> Any:
    return character == 32 or character == 9 or character == 13


@always_inlined
def _ends(character: Any) -> Any:
    """Whether a token ends: at a space, the end of the line or a comment."""
    return _space(character) or character == 10 or character == 35


@always_inlined
def _after_spaces(text: Any, at: Any) -> Any:
    """The position after spaces, and after a comment if that follows."""
    while _space(text[at]):
        at += _ONE
    if text[at] == 35:
        while text[at] != 10:
            at += _ONE
    return at


@always_inlined
def _note(doubts: Any, doubt: Any, kind: Any, index: Any, begin: Any, end: Any) -> Any:
    """Leaves a number to `exact`; the number of these."""
    doubts[doubt, 0], doubts[doubt, 1], doubts[doubt, 2], doubts[doubt, 3] = kind, index, begin, end
    return doubt + _ONE


@always_inlined
def _label_part(text: Any, at: Any, kind: Any, row: Any, doubt: Any, doubts: Any) -> Any:
    """A label or weight: its value, the position after it, the doubts so far."""
    begin = at
    value, at, certain = number(text, at)
    if not certain or not (_ends(text[at]) or text[at] == 58):
        while not (_ends(text[at]) or text[at] == 58):
            at += _ONE
        doubt = _note(doubts, doubt, kind, row, begin, at)
    return value, at, doubt


@always_inlined
def _query(text: Any, at: Any) -> Any:
    """What follows the q of ``qid:``: the query, the position after it, the error."""
    if not (text[at + _ONE] == 105 and text[at + _ONE + _ONE] == 100 and text[at + np.uint64(3)] == 58):
        return np.int64(0), at, NO_QUERY
    at += np.uint64(4)
    begin, query = at, np.int64(0)
    while np.uint8(text[at] - np.uint8(48)) < 10 and at - begin < _MOST_DIGITS:
        query = query * 10 + np.int64(text[at] - np.uint8(48))
        at += _ONE
    return query, at, 0 if at > begin and _ends(text[at]) else NO_QUERY


@always_inlined
def _column(text: Any, at: Any, first: Any, last: Any) -> Any:
    """The number of a feature before its colon, the position after that, the error."""
    begin = at
    column: Any = 0
    while np.uint8(text[at] - np.uint8(48)) < 10:
        column = min(column * 10 + np.int64(text[at] - np.uint8(48)), 99999999999)
        at += _ONE
    if text[at] != 58 or at == begin:
        if text[begin] == 45:
            return column, at, OUT_OF_RANGE
        return column, at, NO_VALUE if at > begin and _ends(text[at]) else NO_FEATURE
    if column > LARGEST:
        return column, at, OUT_OF_RANGE
    return column, at + _ONE, BELOW_FIRST if column < first else TOO_MANY if column >= last else 0


@always_inlined
def _parse_entries(text: Any, at: Any, row: Any, entry: Any, doubt: Any, first: Any, last: Any, out: Any) -> Any:
    """Parses the rest of a line after its label: the position of its end or of the token in error, entries and doubts
    so far, queries, whether columns are out of order, the error.
    """
    queries, disorder, previous = 0, 0, np.int64(-1)
    while True:
        at = _after_spaces(text, at)
        token = at
        if text[at] == 10:
            return at, entry, doubt, queries, disorder, 0
        if text[at] == 113:
            query, at, error = _query(text, at)
            if error:
                return token, entry, doubt, queries, disorder, error
            out.qid[row] = query
            queries += 1
            continue
        column, begin, error = _column(text, at, first, last)
        if error:
            return token, entry, doubt, queries, disorder, error
        value, at, certain = number(text, begin)
        if not certain or not _ends(text[at]):
            while not _ends(text[at]):
                at += _ONE
            if at == begin:
                return token, entry, doubt, queries, disorder, NO_VALUE
            doubt = _note(out.doubts, doubt, VALUE, entry, begin, at)
        column -= first
        disorder |= column <= previous
        previous = column
        out.columns[entry] = column
        out.values[entry] = value
        entry += _ONE


@njit(cache=True, nogil=True)
def _parse(text: Any, first: Any, last: Any, out: Any, flags: Any) -> Any:
    """Parses lines. `flags`: rows, entries, doubts, error, its position, weights, queries, rows out of order."""
    at, end = np.uint64(0), np.uint64(len(text))
    row, entry, doubt = np.uint64(0), np.uint64(0), np.uint64(0)
    error, weights, queries, disorder = 0, 0, 0, 0
    while at < end:
        at = _after_spaces(text, at)
        if text[at] != 10:
            value, at, doubt = _label_part(text, at, LABEL, row, doubt, out.doubts)
            out.label[row] = value
            value, out.qid[row] = np.float32(1.0), 0
            if text[at] == 58:
                value, at, doubt = _label_part(text, at + _ONE, WEIGHT, row, doubt, out.doubts)
                weights += 1
            out.weight[row] = value
            at, entry, doubt, more, wrong, error = _parse_entries(text, at, row, entry, doubt, first, last, out)
            if error:
                break
            queries += more
            disorder += wrong
            row += _ONE
            out.start[row] = entry
        at += _ONE
    flags[0], flags[1], flags[2], flags[3] = row, entry, doubt, error
    flags[4], flags[5], flags[6], flags[7] = at, weights, queries, disorder


@njit(cache=True, nogil=True)
def _sort(start: Any, columns: Any, values: Any) -> Any:
    """Puts the entries of every row in order of columns; the first row with a column twice, or -1."""
    for row in range(len(start) - 1):
        begin, end = start[row], start[row + 1]
        for entry in range(begin + 1, end):
            column, value = columns[entry], values[entry]
            place = entry
            while place > begin and columns[place - 1] > column:
                columns[place], values[place] = columns[place - 1], values[place - 1]
                place -= 1
            columns[place], values[place] = column, value
        for entry in range(begin + 1, end):
            if columns[entry] == columns[entry - 1]:
                return row
    return -1


def parse(block: Block, numbering: Numbering, marks: NDArray[np.float32]) -> Part:
    """The rows of a block of text. Raises DataError, which names file and line."""
    text = block.text
    most_rows = int(np.count_nonzero(text == 10))
    colons = int(np.count_nonzero(text == 58))
    label, weight = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
    qid, start = np.empty(most_rows, np.int64), np.zeros(most_rows + 1, np.int64)
    columns, values = np.empty(colons, np.int32), np.empty(colons, np.float32)
    doubts, flags = np.empty((most_rows + colons, 4), np.int64), np.zeros(8, np.int64)
    last = numbering.first + numbering.features
    _parse(text, numbering.first, last, _Entries(label, weight, qid, start, columns, values, doubts), flags)
    rows, entries, doubt, error, position, weights, queries, disorder = flags.tolist()
    if error:
        raise block.error(position, _MESSAGES[error].format(token=shown(_token(text, position))))
    label, weight, qid, start = label[:rows], weight[:rows], qid[:rows], start[: rows + 1]
    columns, values = columns[:entries], values[:entries]
    _resolve(block, doubts[:doubt], (label, weight, values))
    if rows and weight.min() < 0:
        raise block.error(
            _row_position(block, int(np.argmax(weight < 0))), "the weight is negative; allowed is 0 or more"
        )
    if queries not in (0, rows):
        raise DataError(
            f"{block.file}, line {block.line} or after: found {queries} qid: in {rows} rows; allowed is one in each"
        )
    if disorder:
        row = _sort(start, columns, values)
        if row >= 0:
            twice = columns[start[row] : start[row + 1]]
            twice = twice[1:][twice[1:] == twice[:-1]][0] + numbering.first
            raise block.error(_row_position(block, row), f"feature {twice} occurs twice; allowed is once in a line")
    table = Sparse(start, columns, values).without(np.isnan(values))
    if len(marks):
        table = table.without(marked(table.values, marks))
    features = int(columns.max()) + 1 if entries else 0
    if numbering.features <= LARGEST:
        features = numbering.features
    return Part(table, rows, features, label, weight if weights else None, qid if queries else None)


def _token(text: NDArray[np.uint8], position: int) -> bytes:
    return text[position : position + 200].tobytes().split(None, 1)[0]


def _row_position(block: Block, row: int) -> int:
    """Where a row stands in the text: blank and comment lines are none."""
    at, found = 0, -1
    for line in block.text.tobytes().splitlines(keepends=True):
        found += bool(line.split(b"#")[0].strip())
        if found == row:
            return at
        at += len(line)
    return at


def _resolve(block: Block, doubts: NDArray[np.int64], targets: tuple[NDArray[np.float32], ...]) -> None:
    """Reads the numbers that the fast way left, and refuses what is none."""
    for kind, index, begin, end in doubts.tolist():
        token = block.text[begin:end].tobytes()
        what = ("label", "weight", "value")[kind]
        try:
            value = exact(token)
        except ValueError:
            raise block.error(begin, f"the {what} {shown(token)} is not a number") from None
        if np.isinf(single(value)) or (kind != VALUE and value != value):
            raise block.error(begin, f"the {what} is {shown(token)}; allowed are finite numbers of float32") from None
        targets[kind][index] = single(value)


def parts(files: list[Path], numbering: Numbering, marks: NDArray[np.float32], threads: int) -> Iterator[Part]:
    """The rows of LibSVM files, block by block."""
    for file in files:
        yield from ahead(partial(parse, numbering=numbering, marks=marks), blocks(file, quoted=False), threads)


def numbering_of(files: list[Path], first: int | None, features: int | None, threads: int) -> Numbering:
    """What is not given of the numbering, from a pass over the files: features count from 0 if there is a 0."""
    smallest, largest = LARGEST, -1
    for part in parts(files, Numbering(), np.empty(0, np.float32), threads):
        table = part.table
        assert isinstance(table, Sparse)
        if len(table.columns):
            smallest, largest = min(smallest, int(table.columns.min())), max(largest, int(table.columns.max()))
    if first is None:
        first = 0 if smallest == 0 else 1
    return Numbering(first, max(largest - first + 1, 1) if features is None else features)

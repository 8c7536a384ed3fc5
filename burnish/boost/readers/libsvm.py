"""LibSVM text: lines of ``label[:weight] [qid:query] feature:value … [# comment]``."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inputs.tables import Sparse
from burnish.boost.readers.digits import exact, marked, number, shown, single
from burnish.boost.readers.files import Block, ahead, blocks
from burnish.boost.readers.parts import Part
from burnish.errors import DataError
from burnish.jit import njit

LARGEST = np.iinfo(np.int32).max - 1  # feature numbers are int32
_MESSAGES = {
    1: "{token} is no feature number; allowed are lines of label[:weight] [qid:query] feature:value …",
    2: "feature {token} has no value; allowed is feature:value",
    3: f"feature {{token}} is out of range; allowed are 0 to {LARGEST}",
    4: "{token} is no query; allowed is qid: and a whole number",
    5: "feature {token} is numbered below the first, which is 1; pass first_index=0 if the file counts from 0",
    6: "feature {token} is more than the number of features allows",
}


@dataclass(frozen=True)
class Numbering:
    """How the features of a file are numbered."""

    first: int = 0
    features: int = LARGEST + 1


@njit(cache=True, nogil=True)
def _space(character: Any) -> Any:
    return character == 32 or character == 9 or character == 13


@njit(cache=True, nogil=True)
def _parse(
    text: Any, first: Any, last: Any, label: Any, weight: Any, qid: Any, start: Any, columns: Any,
    values: Any, doubts: Any, flags: Any,
) -> Any:  # fmt: skip
    """Parses lines of text. `doubts` (n, 4) receives numbers that need `exact`: kind (0 label, 1 weight, 2 value),
    index, begin, end. `flags`: rows, entries, doubts, error, its position, weights, queries, rows out of order.
    """
    one = np.uint64(1)
    at, end = np.uint64(0), np.uint64(len(text))
    row, entry, doubt = np.uint64(0), np.uint64(0), np.uint64(0)
    error, weights, queries, disorder = 0, 0, 0, 0
    position = at
    while at < end:
        while _space(text[at]):
            at += one
        if text[at] == 35:  # a comment
            while text[at] != 10:
                at += one
        if text[at] == 10:
            at += one
            continue
        weight[row] = 1.0
        qid[row] = 0
        for kind in range(2):
            begin = at
            value, at, certain = number(text, at)
            if not certain or not (_space(text[at]) or text[at] == 58 or text[at] == 10 or text[at] == 35):
                while not (_space(text[at]) or text[at] == 58 or text[at] == 10 or text[at] == 35):
                    at += one
                doubts[doubt, 0], doubts[doubt, 1], doubts[doubt, 2], doubts[doubt, 3] = kind, row, begin, at
                doubt += one
            if kind == 0:
                label[row] = value
            else:
                weight[row] = value
                weights += 1
            if text[at] != 58:
                break
            if kind == 0:
                at += one
        previous = -1
        while True:
            while _space(text[at]):
                at += one
            if text[at] == 35:
                while text[at] != 10:
                    at += one
            if text[at] == 10:
                break
            position = at
            if text[at] == 113:  # qid:
                if not (text[at + one] == 105 and text[at + one + one] == 100 and text[at + np.uint64(3)] == 58):
                    error = 4
                    break
                at += np.uint64(4)
                begin = at
                query: Any = 0
                while np.uint8(text[at] - np.uint8(48)) < 10 and at - begin < np.uint64(18):
                    query = query * 10 + np.int64(text[at] - np.uint8(48))
                    at += one
                if at == begin or not (_space(text[at]) or text[at] == 10 or text[at] == 35):
                    error = 4
                    break
                qid[row] = query
                queries += 1
                continue
            begin = at
            column: Any = 0
            while np.uint8(text[at] - np.uint8(48)) < 10:
                column = min(column * 10 + np.int64(text[at] - np.uint8(48)), 99999999999)
                at += one
            if text[at] != 58 or at == begin:
                error = 2 if at > begin and (_space(text[at]) or text[at] == 10 or text[at] == 35) else 1
                if text[begin] == 45:
                    error = 3
                break
            at += one
            if column > 2147483646 or column < first or column >= last:
                error = 3 if column > 2147483646 else (5 if column < first else 6)
                break
            begin = at
            value, at, certain = number(text, at)
            if not certain or not (_space(text[at]) or text[at] == 10 or text[at] == 35):
                while not (_space(text[at]) or text[at] == 10 or text[at] == 35):
                    at += one
                if at == begin:
                    error = 2
                    break
                doubts[doubt, 0], doubts[doubt, 1], doubts[doubt, 2], doubts[doubt, 3] = 2, entry, begin, at
                doubt += one
            column -= first
            disorder += column <= previous
            previous = column
            columns[entry] = column
            values[entry] = value
            entry += one
        if error:
            break
        row += one
        start[row] = entry
        at += one
    flags[0], flags[1], flags[2], flags[3] = row, entry, doubt, error
    flags[4], flags[5], flags[6], flags[7] = position, weights, queries, disorder


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
    _parse(
        text, numbering.first, last, label, weight, qid, start, columns, values, doubts, flags,
    )  # fmt: skip
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
        if np.isinf(single(value)) or (kind < 2 and value != value):
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

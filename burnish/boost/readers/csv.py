"""CSV text: a row of fields in each line, quoted where need be (RFC 4180), with a header or without."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inputs.factors import Factor
from burnish.boost.kernels import always_inlined
from burnish.boost.readers.digits import exact, marked, number, shown, single
from burnish.boost.readers.files import QUOTE, Block, ahead, blocks
from burnish.boost.readers.parts import Part
from burnish.boost.readers.roles import LABEL, QUERY, WEIGHT, Roles, in_order
from burnish.errors import DataError
from burnish.jit import njit

MISSING = frozenset((b"", b"NA", b"N/A", b"n/a", b"na", b"NaN", b"nan", b"NAN", b"null", b"NULL", b"None", b"?"))
SEPARATORS = (",", "\t", ";", "|")
RAGGED, OPEN_QUOTE, AFTER_QUOTE = 1, 2, 3  # errors of a line
_ONE = np.uint64(1)


@dataclass(frozen=True)
class Layout:
    """What each field of a line is, and how fields look."""

    names: tuple[str, ...]  # of the features; empty if there is no header
    roles: NDArray[np.int64]  # (fields,): the feature's number; or a negative code of label, weight, query, skipped
    textual: NDArray[np.int64]  # (fields,): its place among the fields that are kept as text, or -1
    separator: int
    header: bool
    missing: frozenset[bytes]
    marks: NDArray[np.float32]

    @property
    def features(self) -> int:
        """The number of features."""
        return int(np.count_nonzero(self.roles >= 0))


class _Form(NamedTuple):
    """`Layout` as kernels take it."""

    separator: int
    slots: NDArray[np.int64]
    textual: NDArray[np.int64]


class _Rows(NamedTuple):
    """Where the fields of row r go: to ``table[r, slot]``, to ``extra[r, -2 - slot]`` of a slot below -1, or as a span
    of the text (begin, end) to ``spans[r, textual]``. What is no plain number goes to ``doubts`` as (row, field, begin,
    end) too. ``lines[r]`` is the row's line.
    """

    table: NDArray[np.float32]
    extra: NDArray[np.float32]
    spans: NDArray[np.int64]
    lines: NDArray[np.int64]
    doubts: NDArray[np.int64]


@always_inlined
def _after_blanks(text: Any, at: Any, separator: Any) -> Any:
    """The position after spaces and tabs, unless tabs separate."""
    while text[at] == 32 or (text[at] == 9 and separator != 9):
        at += _ONE
    return at


@always_inlined
def _after_padding(text: Any, at: Any, separator: Any) -> Any:
    """The same, after carriage returns too."""
    while text[at] == 32 or text[at] == 13 or (text[at] == 9 and separator != 9):
        at += _ONE
    return at


@always_inlined
def _before_padding(text: Any, begin: Any, at: Any, separator: Any) -> Any:
    """The end of a field of which padding is taken off."""
    while at > begin:
        last = text[at - _ONE]
        if last != 32 and last != 13 and (last != 9 or separator == 9):
            break
        at -= _ONE
    return at


@always_inlined
def _ends(character: Any, separator: Any) -> Any:
    return character == separator or character == 10


@always_inlined
def _plain(text: Any, at: Any, separator: Any, numeric: Any) -> Any:
    """A field without quotes: its end, the position of what ends it, its number, whether that is certain."""
    begin = at
    value, certain = np.float32(0.0), False
    if numeric:
        value, at, certain = number(text, at)
    finish = at
    at = _after_padding(text, at, separator)
    if not _ends(text[at], separator):
        certain = False
        while not _ends(text[at], separator):
            at += _ONE
    if not certain:
        finish = _before_padding(text, begin, at, separator)
    return finish, at, value, certain


@always_inlined
def _quoted(text: Any, at: Any, separator: Any, numeric: Any) -> Any:
    """What `_plain` returns, of a field after its opening quote; then lines that end in it, and the error."""
    end = np.uint64(len(text))
    value, certain, lines = np.float32(0.0), False, 0
    if numeric:
        value, at, certain = number(text, at)
    while at < end and (text[at] != 34 or (at + _ONE < end and text[at + _ONE] == 34)):
        lines += text[at] == 10
        certain = False
        at += _ONE if text[at] != 34 else _ONE + _ONE
    if at >= end:
        return at, at, value, certain, lines, OPEN_QUOTE
    finish = at
    at = _after_padding(text, at + _ONE, separator)
    return finish, at, value, certain, lines, 0 if _ends(text[at], separator) else AFTER_QUOTE


@always_inlined
def _parse_row(text: Any, at: Any, row: Any, doubt: Any, form: Any, rows: Any) -> Any:
    """Parses one row: the position of what ends it, fields found, doubts so far, lines that end in it, the error."""
    found, fields = np.uint64(0), np.uint64(len(form.slots))
    separator, lines = form.separator, 0
    while True:
        slot, place = np.int64(-1), np.int64(-1)
        if found < fields:
            slot, place = form.slots[found], form.textual[found]
        numeric = place < 0 and slot != -1
        begin = _after_blanks(text, at, separator)
        if text[begin] == 34:
            begin += _ONE
            finish, at, value, certain, more, error = _quoted(text, begin, separator, numeric)
            lines += more
            if error:
                return at, found, doubt, lines, error
        else:
            finish, at, value, certain = _plain(text, begin, separator, numeric)
        if place >= 0:
            rows.spans[row, place, 0] = begin
            rows.spans[row, place, 1] = finish
        elif numeric:
            if not certain:
                value = np.float32(np.nan)
                if finish > begin:
                    entry = rows.doubts[doubt]
                    entry[0], entry[1], entry[2], entry[3] = row, found, begin, finish
                    doubt += _ONE
            if slot >= 0:
                rows.table[row, slot] = value
            else:
                rows.extra[row, -2 - slot] = value
        found += _ONE
        if text[at] == 10:
            return at, found, doubt, lines, 0 if found == fields else RAGGED
        at += _ONE


@njit(cache=True, nogil=True)
def _parse(text: Any, form: Any, rows: Any, flags: Any) -> Any:
    """Parses lines. `flags`: rows, doubts, error (RAGGED, …), the position of its line, fields found there."""
    at, end = np.uint64(0), np.uint64(len(text))
    row, doubt, line = np.uint64(0), np.uint64(0), 0
    error, found, position = 0, np.uint64(0), np.uint64(0)
    while at < end:
        position = at
        at = _after_padding(text, at, form.separator)
        if text[at] != 10:  # no blank line
            rows.lines[row] = line
            at, found, doubt, more, error = _parse_row(text, at, row, doubt, form, rows)
            line += more
            if error:
                break
            row += _ONE
        at += _ONE
        line += 1
    flags[0], flags[1], flags[2], flags[3], flags[4] = row, doubt, error, position, found


def parse(block: Block, layout: Layout) -> Part:
    """The rows of a block of text, after the header. Raises DataError, which names file and line."""
    text, fields = block.text, len(layout.roles)
    most_rows = int(np.count_nonzero(text == 10))
    kept = int(layout.textual.max()) + 1
    table = np.empty((most_rows, layout.features), np.float32)
    extra = np.full((most_rows, 2), np.nan, np.float32)
    spans = np.empty((most_rows, kept, 2), np.int64)
    lines, flags = np.empty(most_rows, np.int64), np.zeros(5, np.int64)
    doubts = np.empty((min(most_rows * fields, len(text)), 4), np.int64)
    form = _Form(layout.separator, layout.roles, layout.textual)
    _parse(text, form, _Rows(table, extra, spans, lines, doubts), flags)
    rows, doubt, error, position, found = flags.tolist()
    if error == RAGGED:
        raise block.error(position, f"{found} fields; allowed is {fields}, as in the first line")
    if error:
        what = "does not end" if error == OPEN_QUOTE else "goes on after its closing quote"
        raise block.error(position, f"a quoted field {what}")
    table, extra, lines = table[:rows], extra[:rows], lines[:rows] + block.line
    _resolve(block, layout, doubts[:doubt], table, extra)
    if len(layout.marks):
        table[marked(table, layout.marks)] = np.nan
    factors: dict[int, Factor] = {}
    qid = None
    for field in np.flatnonzero(layout.textual >= 0).tolist():
        column = _texts(text, spans[:rows], int(layout.textual[field]), layout.missing)
        if layout.roles[field] != QUERY:
            factors[int(layout.roles[field])] = column
        elif rows and (column.codes < 0).any():
            raise _wrong(block, lines, column.codes < 0, "the query is missing")
        else:
            qid = np.array(column.values, np.str_)[column.codes] if rows else np.empty(0, np.str_)
    roles = layout.roles.tolist()
    label = _required(block, lines, extra[:, 0], "label") if LABEL in roles else None
    weight = _required(block, lines, extra[:, 1], "weight") if WEIGHT in roles else None
    if weight is not None and rows and weight.min() < 0:
        raise _wrong(block, lines, weight < 0, "the weight is negative; allowed is 0 or more")
    return Part(table, rows, layout.features, label, weight, qid, factors, layout.names, textual=True)


def _required(block: Block, lines: NDArray[np.int64], column: NDArray[np.float32], what: str) -> NDArray[np.float32]:
    if np.isnan(column).any():
        raise _wrong(block, lines, np.isnan(column), f"the {what} is missing; allowed are finite numbers")
    return np.ascontiguousarray(column)


def _wrong(block: Block, lines: NDArray[np.int64], rows: NDArray[np.bool_], message: str) -> DataError:
    return DataError(f"{block.file}, line {lines[int(np.argmax(rows))]}: {message}")


def _resolve(
    block: Block, layout: Layout, doubts: NDArray[np.int64], table: NDArray[np.float32], extra: NDArray[np.float32]
) -> None:
    """Reads the fields that the fast way left: marks of missing values, rare numbers; refuses the rest."""
    text = block.text.tobytes() if len(doubts) else b""
    for row, field, begin, end in doubts.tolist():
        token = text[begin:end]
        if token in layout.missing:
            continue
        role = int(layout.roles[field])
        name = {LABEL: "the label", WEIGHT: "the weight"}.get(role) or (
            f"column {layout.names[role]!r}" if layout.names else f"column {field}"
        )
        try:
            value = single(exact(token.strip()))
        except ValueError:
            hint = "" if role < 0 else "; list the column in categorical= if its values are categories"
            raise block.error(begin, f"{name} is {shown(token)}, which is not a number{hint}") from None
        if np.isinf(value):
            raise block.error(begin, f"{name} is {shown(token)}; allowed are finite numbers of float32")
        if role >= 0:
            table[row, role] = value
        else:
            extra[row, -2 - role] = value


@njit(cache=True, nogil=True)
def _number_texts(text: Any, spans: Any, place: Any, codes: Any, first: Any, slots: Any) -> Any:
    """Numbers the distinct texts of a column in the order they come: `codes` (rows,), and `first`, the row that each
    occurs in first; returns how many there are. `slots` is a hash table of -1, in size a power of 2 above the rows.
    """
    mask = np.uint64(len(slots) - 1)
    count = 0
    for row in range(len(codes)):
        begin, end = spans[row, place, 0], spans[row, place, 1]
        code = np.uint64(0xCBF29CE484222325)  # Fowler, Noll and Vo's hash
        for at in range(begin, end):
            code = (code ^ np.uint64(text[at])) * np.uint64(0x100000001B3)
        slot = (code ^ (code >> np.uint64(32))) & mask
        while True:
            found = slots[slot]
            if found < 0:
                slots[slot] = count
                first[count] = row
                found = count
                count += 1
                break
            other = spans[first[found], place, 0]
            same = spans[first[found], place, 1] - other == end - begin
            at = 0
            while same and at < end - begin:
                same = text[other + at] == text[begin + at]
                at += 1
            if same:
                break
            slot = (slot + np.uint64(1)) & mask
        codes[row] = found
    return count


def _texts(text: NDArray[np.uint8], spans: NDArray[np.int64], place: int, missing: frozenset[bytes]) -> Factor:
    """The texts of a column."""
    rows = len(spans)
    codes, first = np.empty(rows, np.int64), np.empty(rows, np.int64)
    count = _number_texts(text, spans, place, codes, first, np.full(2 << rows.bit_length(), -1, np.int64))
    values: list[str] = []
    numbers = np.empty(count, np.int64)
    for index, (begin, end) in enumerate(spans[first[:count], place].tolist()):
        token = text[begin:end].tobytes()
        numbers[index] = -1 if token in missing else len(values)
        if token not in missing:
            values.append(token.replace(b'""', b'"').decode("utf-8", "replace"))
    return Factor(numbers[codes], values)


def fields_of(line: bytes, separator: int) -> list[str]:
    """The fields of one line."""
    found, at, mark = [], 0, bytes([separator])
    line = line.rstrip(b"\r\n")
    while True:
        while line[at : at + 1] == b" ":
            at += 1
        if line[at : at + 1] == b'"':
            end = at + 1
            while end < len(line) and (line[end] != QUOTE or line[end + 1 : end + 2] == b'"'):
                end += 2 if line[end] == QUOTE else 1
            found.append(line[at + 1 : end].replace(b'""', b'"'))
            at = line.find(mark, end)
        else:
            end = line.find(mark, at)
            found.append(line[at : end if end >= 0 else len(line)].strip())
            at = end
        if at < 0:
            return [field.decode("utf-8", "replace") for field in found]
        at += 1


def layout_of(
    file: Path, roles: Roles, header: bool | None, separator: str | None, tokens: frozenset[bytes],
    marks: NDArray[np.float32],
) -> Layout:  # fmt: skip
    """What the columns of a file are, from its first line."""
    if separator is not None and separator not in SEPARATORS:
        raise DataError(f"{file}: separator={separator!r}; allowed are {', '.join(map(repr, SEPARATORS))}")
    line = _first_line(file)
    if separator is None:
        separator = max(SEPARATORS, key=lambda mark: line.count(mark.encode()))  # the first of those as frequent
    fields = fields_of(line, ord(separator))
    missing = MISSING | tokens
    if header is None:
        textual = {column for column in (*roles.categorical, *roles.ignore, roles.qid) if isinstance(column, int)}
        header = any(
            not _numeric(field.encode(), missing) for index, field in enumerate(fields) if index not in textual
        )
    names = tuple(fields) if header else ()
    if len(set(names)) != len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise DataError(f"{file}, line 1: two columns {twice!r}; allowed are distinct names")
    codes, chosen = roles.codes(names, len(fields), file)
    kept = chosen | (codes == QUERY)
    places = np.where(kept, np.cumsum(kept) - 1, -1)
    return Layout(in_order(names, codes), codes, places.astype(np.int64), ord(separator), header, missing, marks)


def _numeric(field: bytes, missing: frozenset[bytes]) -> bool:
    if field in missing:
        return True
    try:
        exact(field)
    except ValueError:
        return False
    return True


def _first_line(file: Path) -> bytes:
    for block in blocks(file, quoted=True, size=1 << 16):
        text = block.text.tobytes().removeprefix(b"\xef\xbb\xbf")
        lines = text.split(b"\n")
        for index, line in enumerate(lines):
            if line.strip(b" \t\r"):
                while line.count(b'"') % 2 and index + 1 < len(lines):
                    index += 1
                    line += b"\n" + lines[index]
                return line
    raise DataError(f"{file}: the file is empty; allowed are lines of fields")


def _after_header(block: Block) -> Block:
    """The block less its first record that is not blank."""
    at, line = 0, block.line
    whole = block.text.tobytes()
    while True:
        end = whole.index(b"\n", at) + 1
        while whole.count(b'"', at, end) % 2 and end < len(whole):
            end = whole.index(b"\n", end) + 1
        blank, line = not whole[at:end].strip(b" \t\r\n"), line + whole.count(b"\n", at, end)
        at = end
        if not blank or at == len(whole):
            return Block(block.file, block.text[at:], line)


def _body(file: Path, layout: Layout) -> Iterator[Block]:
    """The blocks of a file less its header and its byte-order mark."""
    for number_, block in enumerate(blocks(file, quoted=True)):
        if number_ == 0 and block.text[:3].tobytes() == b"\xef\xbb\xbf":
            block = Block(file, block.text[3:], block.line)
        yield _after_header(block) if number_ == 0 and layout.header else block


def parts(files: list[Path], layouts: Sequence[Layout], threads: int) -> Iterator[Part]:
    """The rows of CSV files, block by block."""
    for file, layout in zip(files, layouts, strict=True):
        yield from ahead(partial(parse, layout=layout), _body(file, layout), threads)

"""CSV text by pyarrow: a row of fields in each line, quoted where need be (RFC 4180), with a header or without.

`parse` hands a block of lines to pyarrow. What that refuses, or would read otherwise than a plain reader does (blanks
around quotes, a quote within a field), `_read_fields` reads field by field: slow, but it knows the line of every error.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.optional import require
from burnish.boost.inputs.factors import Factor
from burnish.boost.readers.digits import exact, has_payload, infinite, marked, shown
from burnish.boost.readers.files import NEWLINE, LineBlock, ahead, blocks
from burnish.boost.readers.parts import TableRows
from burnish.boost.readers.roles import LABEL, QUERY, SKIPPED, WEIGHT, ColumnRoles, in_order
from burnish.errors import DataError

MISSING = frozenset((b"", b"NA", b"N/A", b"n/a", b"na", b"NaN", b"nan", b"NAN", b"null", b"NULL", b"None", b"?"))
SEPARATORS = (",", "\t", ";", "|")
_ORDER_MARK = b"\xef\xbb\xbf"  # of bytes, in UTF-8
_NO_CODE = -1  # of a missing category


@dataclass(frozen=True)
class CsvLayout:
    """Layout of CSV columns: the role of each field of a line, and the syntax of fields."""

    names: tuple[str, ...]  # of the features; empty if there is no header
    roles: NDArray[np.int64]  # (fields,): the feature's number; or a negative code of label, weight, query, skipped
    textual: NDArray[np.bool_]  # (fields,): whether the field is kept as text
    separator: str
    header: bool
    missing: frozenset[bytes]
    marks: NDArray[np.float32]

    @property
    def features(self) -> int:
        """The number of features."""
        return int(np.count_nonzero(self.roles >= 0))


@dataclass(frozen=True)
class _Columns:
    """The fields of some rows: numbers by role, (rows,) float64 with NaN where missing, and texts by role."""

    rows: int
    numbers: dict[int, NDArray[np.float64]]
    texts: dict[int, Factor]


def parse(block: LineBlock, layout: CsvLayout) -> TableRows:
    """The rows of a block of text, after the header. Raises DataError, which names file and line."""
    part = None
    columns = _read_by_arrow(block.text, layout)
    if columns is not None:
        part = _part(columns, layout)
    if part is None:
        part = _part(_read_fields(block, layout), layout)
    assert part is not None  # `_read_fields` has raised what `_part` returns None for
    return part


def _part(columns: _Columns, layout: CsvLayout) -> TableRows | None:
    """The rows, or None if a number is infinite in float32, a label or weight is missing, or a weight is negative."""
    table = np.empty((columns.rows, layout.features), np.float32)
    special: dict[int, NDArray[np.float32]] = {}
    with np.errstate(over="ignore", under="ignore"):  # rounded to float64 first, as np.float32(float(text)) is
        for role, numbers in columns.numbers.items():
            if role >= 0:
                table[:, role] = numbers
            else:
                special[role] = numbers.astype(np.float32)
    for role in columns.texts:
        if role >= 0:
            table[:, role] = np.nan
    weight = special.get(WEIGHT)
    if np.isinf(table).any() or not all(np.isfinite(numbers).all() for numbers in special.values()):
        return None
    if weight is not None and (weight < 0).any():
        return None
    if len(layout.marks):
        table[marked(table, layout.marks)] = np.nan
    factors = dict(columns.texts)
    queries = factors.pop(QUERY, None)
    qid = None
    if queries is not None:
        if (queries.codes == _NO_CODE).any():
            return None
        qid = np.array(queries.values, np.str_)[queries.codes] if columns.rows else np.empty(0, np.str_)
    label = special.get(LABEL)
    return TableRows(table, columns.rows, layout.features, label, weight, qid, factors, layout.names, textual=True)


def _read_by_arrow(text: bytes, layout: CsvLayout) -> _Columns | None:
    """The fields by pyarrow, or None if it refuses the text or may read it otherwise."""
    quoted = b'"' in text
    if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
        return None
    text = _unpadded(text, layout.separator)
    if has_payload(text) or (quoted and not _quoted_regularly(text, layout.separator)):
        return None
    arrow, csv = require("pyarrow", "boost"), require("pyarrow.csv", "boost")
    kept = [field for field, role in enumerate(layout.roles.tolist()) if role != SKIPPED]
    as_text = arrow.dictionary(arrow.int32(), arrow.binary())
    types = {str(field): as_text if layout.textual[field] else arrow.float64() for field in kept}
    try:
        found = csv.read_csv(
            arrow.BufferReader(text),
            csv.ReadOptions(
                use_threads=False, block_size=len(text) + 1, column_names=[str(k) for k in range(len(layout.roles))]
            ),
            csv.ParseOptions(
                delimiter=layout.separator, quote_char='"' if quoted else False, newlines_in_values=quoted
            ),
            csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[token.decode() for token in layout.missing],
                strings_can_be_null=True,
                check_utf8=False,
            ),
        )
    except (arrow.ArrowInvalid, OverflowError):  # the latter beyond 2 GiB
        return None
    numbers: dict[int, NDArray[np.float64]] = {}
    texts: dict[int, Factor] = {}
    for field in kept:
        role, column = int(layout.roles[field]), found.column(str(field))
        if not layout.textual[field]:
            numbers[role] = column.to_numpy()
            continue
        coded = column.combine_chunks()
        coded = coded.chunk(0) if isinstance(coded, arrow.ChunkedArray) else coded
        values = [value.decode("utf-8", "replace") for value in coded.dictionary.to_pylist()]
        texts[role] = Factor(coded.indices.fill_null(_NO_CODE).to_numpy(), values)
    return _Columns(found.num_rows, numbers, texts)


def _quoted_regularly(text: bytes, separator: str) -> bool:
    """Whether quotes open at the start of a field and close at its end, or before a second quote."""
    characters = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(characters == ord('"'))
    if len(places) % 2:
        return False
    opening, closing = places[::2], places[1::2]
    before = characters[opening - 1]
    after = characters[closing + 1]  # there is a newline at the end
    starts = (before == ord(separator)) | (before == ord("\n")) | (opening == 0)
    starts[1:] |= opening[1:] == closing[:-1] + 1
    ends = (after == ord(separator)) | (after == ord("\n")) | (after == ord("\r")) | (after == ord('"'))
    return bool(starts.all() and ends.all())


def _unpadded(text: bytes, separator: str) -> bytes:
    """The text less blanks before and after fields, but within quotes; where tabs separate, they are none."""
    if b" " not in text and (separator == "\t" or b"\t" not in text):
        return text
    characters = np.frombuffer(text, np.uint8)
    blank = characters == ord(" ")
    if separator != "\t":
        blank |= characters == ord("\t")
    if b'"' in text:
        blank &= np.cumsum(characters == ord('"'), dtype=np.uint8) % 2 == 0
    edges = np.flatnonzero(np.diff(blank, prepend=False, append=False))
    begin, end = edges[::2], edges[1::2]  # of runs of blanks; a newline is last
    ends = np.isin(np.arange(256), [ord(separator), ord("\n"), ord("\r")])
    padding = ends[characters[begin - 1]] | ends[characters[end]]
    if not padding.any():
        return text
    steps = np.zeros(len(text) + 1, np.int8)
    steps[begin[padding]], steps[end[padding]] = 1, -1
    return characters[np.cumsum(steps[:-1], dtype=np.int8) == 0].tobytes()


@lru_cache
def _field(separator: str) -> re.Pattern[bytes]:
    """The regular expression of a field, with what ends it.

    Groups: what is within quotes, the closing quote, or what is without quotes; then the separator or newline, empty if
    something else follows.
    """
    mark, blank = re.escape(separator.encode()), rb" \r" if separator == "\t" else rb" \t\r"
    return re.compile(rb'[%b]*(?:"([^"]*(?:""[^"]*)*)("?)[%b]*|([^%b\n]*))([%b\n]?)' % (blank, blank, mark, mark))


def _records(block: LineBlock, separator: str) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """The rows that are not blank: where each begins, and its fields, each with its position.

    Raises DataError for quotes that do not end a field.
    """
    field, blanks = _field(separator), b" \r" if separator == "\t" else b" \t\r"
    text, at = block.text, 0
    while at < len(text):
        begin, fields, end = at, [], b""
        while end != NEWLINE:
            found = field.match(text, at)
            assert found is not None  # every part of it may be empty
            quoted, closed, plain, end = found.groups()
            if quoted is not None and not (closed and end):
                what = "goes on after its closing quote" if closed else "does not end"
                raise block.error(begin, f"a quoted field {what}")
            if quoted is not None:
                fields.append((found.start(1), quoted))
            else:
                fields.append((found.start(3), plain.rstrip(blanks)))
            at = found.end()
        if text[begin:at].strip(blanks + NEWLINE):
            yield begin, fields


def _read_fields(block: LineBlock, layout: CsvLayout) -> _Columns:
    """The fields one by one. Raises DataError, which names file and line."""
    kept = [(field, role) for field, role in enumerate(layout.roles.tolist()) if role != SKIPPED]
    columns: dict[int, list[Any]] = {role: [] for _, role in kept}
    values: dict[int, dict[bytes, int]] = {role: {} for field, role in kept if layout.textual[field]}
    rows = 0
    for begin, fields in _records(block, layout.separator):
        if len(fields) != len(layout.roles):
            raise block.error(begin, f"{len(fields)} fields; allowed is {len(layout.roles)}, as in the first line")
        for field, role in kept:
            place, token = fields[field]
            missing = token in layout.missing
            if role in values:
                codes = values[role]
                value: Any = _NO_CODE if missing else codes.setdefault(token, len(codes))
                absent = missing and role == QUERY
            else:
                value = np.nan if missing else _number(block, layout, field, place, token)
                absent = role < 0 and value != value
            if absent:
                allowed = "" if role == QUERY else "; allowed are finite numbers"
                raise block.error(begin, f"{_name(layout, field)} is missing{allowed}")
            if role == WEIGHT and value < 0:
                raise block.error(begin, "the weight is negative; allowed is 0 or more")
            columns[role].append(value)
        rows += 1
    texts = {
        role: Factor(
            np.array(columns.pop(role), np.int64),
            [token.replace(b'""', b'"').decode("utf-8", "replace") for token in codes],
        )
        for role, codes in values.items()
    }
    return _Columns(rows, {role: np.array(column, np.float64) for role, column in columns.items()}, texts)


def _name(layout: CsvLayout, field: int) -> str:
    """Name of a field in messages."""
    role = int(layout.roles[field])
    named = {LABEL: "the label", WEIGHT: "the weight", QUERY: "the query"}.get(role)
    return named or (f"column {layout.names[role]!r}" if layout.names else f"column {field}")


def _number(block: LineBlock, layout: CsvLayout, field: int, place: int, token: bytes) -> float:
    """The number of a field; raises DataError for what is none, and for what float32 does not hold."""
    try:
        value = exact(token.strip())
    except ValueError:
        hint = "" if layout.roles[field] < 0 else "; list the column in categorical= if its values are categories"
        found = f"{_name(layout, field)} is {shown(token)}"
        raise block.error(place, f"{found}, which is not a number{hint}") from None
    if infinite(value):
        raise block.error(place, f"{_name(layout, field)} is {shown(token)}; allowed are finite numbers of float32")
    return value


def layout_of(
    file: Path, roles: ColumnRoles, header: bool | None, separator: str | None, tokens: frozenset[bytes],
    marks: NDArray[np.float32],
) -> CsvLayout:  # fmt: skip
    """CSV layout of a file, from its first line. Raises DataError."""
    if separator is not None and separator not in SEPARATORS:
        raise DataError(f"{file}: separator={separator!r}; allowed are {', '.join(map(repr, SEPARATORS))}")
    start = _first_row(file)
    if separator is None:
        separator = max(SEPARATORS, key=lambda mark: start.text.count(mark.encode()))  # the first of those as frequent
    fields = [token for _, token in next(_records(start, separator))[1]]
    missing = MISSING | tokens
    if header is None:
        textual = {column for column in (*roles.categorical, *roles.ignore, roles.qid) if isinstance(column, int)}
        header = any(not _numeric(field, missing) for index, field in enumerate(fields) if index not in textual)
    names = tuple(field.replace(b'""', b'"').decode("utf-8", "replace") for field in fields) if header else ()
    if len(set(names)) != len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise DataError(f"{file}, line {start.line}: two columns {twice!r}; allowed are distinct names")
    codes, chosen = roles.codes(names, len(fields), file)
    return CsvLayout(in_order(names, codes), codes, chosen | (codes == QUERY), separator, header, missing, marks)


def _numeric(field: bytes, missing: frozenset[bytes]) -> bool:
    if field in missing:
        return True
    try:
        exact(field)
    except ValueError:
        return False
    return True


def _row_of(text: bytes) -> tuple[int, int]:
    """Where the first row that is not blank begins, and where it ends."""
    begin = len(text) - len(text.lstrip(b" \t\r\n"))
    begin = text.rfind(NEWLINE, 0, begin) + 1
    end = text.find(NEWLINE, begin) + 1
    while 0 < end < len(text) and text.count(b'"', begin, end) % 2:
        end = text.index(NEWLINE, end) + 1
    return begin, end


def _first_row(file: Path) -> LineBlock:
    """The first line that is not blank, and those after it that a quoted field goes on in."""
    for block in _body(file, header=False, size=1 << 16):
        begin, end = _row_of(block.text)
        if end:
            return LineBlock(file, block.text[begin:end], block.line + block.text.count(NEWLINE, 0, begin))
    raise DataError(f"{file}: the file is empty; allowed are lines of fields")


def _body(file: Path, header: bool, size: int | None = None) -> Iterator[LineBlock]:
    """The blocks of a file less its byte-order mark, and its header if there is one."""
    first = True
    for block in blocks(file, quoted=True, size=size):
        if block.line == 1:
            block = LineBlock(file, block.text.removeprefix(_ORDER_MARK), 1)
        end = _row_of(block.text)[1] if header and first else 0
        first &= header and not end  # the header is in a later block
        yield LineBlock(file, block.text[end:], block.line + block.text.count(NEWLINE, 0, end))


def parts(files: list[Path], layouts: Sequence[CsvLayout], threads: int) -> Iterator[TableRows]:
    """The rows of CSV files, block by block."""
    for file, layout in zip(files, layouts, strict=True):
        yield from ahead(partial(parse, layout=layout), _body(file, layout.header), threads)

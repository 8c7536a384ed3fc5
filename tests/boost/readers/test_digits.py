"""Decimal numbers as float32, rounded as Python and NumPy round them."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.boost import readers
from burnish.boost.readers.digits import exact
from burnish.errors import DataError
from tests.boost.readers.reading import relaxed


def between(bits: int) -> float:
    """The middle between two neighbours in float32."""
    below, above = np.array([bits, bits + 1], np.uint32).view(np.float32).astype(float)
    return float(below + (above - below) / 2)


decimal = st.one_of(
    st.from_regex(r"\A[+-]?([0-9]{1,25}\.?[0-9]{0,25}|\.[0-9]{1,25})([eE][+-]?[0-9]{1,3})?\Z"),
    st.floats(width=32).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    # Numbers at, and next to, the middle between two neighbours in float32.
    st.builds(lambda bits, rest: f"{between(bits):.60f}{rest}", st.integers(1 << 23, 254 << 23), st.sampled_from("01")),
).map(str.strip)


def rounded(text: str) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(float(text))


def read(folder: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers by way of a CSV file, and by way of a LibSVM file."""
    (folder / "a.csv").write_text("".join(f"{row},{text}\n" for row, text in enumerate(texts)))
    (folder / "a.svm").write_text("".join(f"{row} 0:0 1:{text}\n" for row, text in enumerate(texts)))
    table = readers.read(folder / "a.csv", header=False, label=0, separator=",").table[:, 0]
    values = readers.read(folder / "a.svm", first_index=0).table.values
    assert not values[::2].any()
    return table, values[1::2]


@given(st.lists(decimal.filter(lambda text: np.isfinite(rounded(text))), min_size=1, max_size=50))
@relaxed
def test_numbers_are_rounded_as_python_and_numpy_do(tmp_path: Path, texts: list[str]) -> None:
    for found in read(tmp_path, texts):
        assert found.dtype == np.float32
        assert found.tobytes() == np.array([rounded(text) for text in texts], np.float32).tobytes()


@pytest.mark.parametrize("text", ["0", "-0", "1", "-2.5", "3e2", "0.1", "123456.789", "1e-30", "16777217", ".5", "5."])
def test_common_numbers_are_read_by_pyarrow(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("burnish.boost.readers.csv._read_fields")
    monkeypatch.delattr("burnish.boost.readers.libsvm._read_lines")
    for (value,) in read(tmp_path, [text]):
        assert value == np.float32(float(text))
        assert math.copysign(1, value) == math.copysign(1, float(text))


@pytest.mark.parametrize(
    "text",
    ["", "-", ".", "e5", "1e", "1_000", "0x10", "1.5.2", "abc", "1e+", "--1", "infinite", "+-1", "nan(ind)", "1e400"],
)
def test_what_is_no_finite_number_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(f"1,2\n1,{text}\n")
    (tmp_path / "a.svm").write_text(f"1 1:2\n1 1:{text}\n")
    with pytest.raises(DataError, match=r"a.csv, line 2: the label is"):
        readers.read(tmp_path / "a.csv", header=False, label=1)
    with pytest.raises(DataError, match=r"a.svm, line 2: "):
        readers.read(tmp_path / "a.svm")
    if text != "1e400":
        with pytest.raises(ValueError):
            exact(text.encode())

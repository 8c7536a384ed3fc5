"""What the tests of readers share: files read whole and in chunks, and compared."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from burnish.boost import readers
from burnish.boost.data import Dataset, Sparse

NAN = math.nan
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text(st.sampled_from('ab ,;"\n\t0é|'), max_size=5).map(str.strip).filter(lambda text: text not in ("", "0"))
cells = st.one_of(st.none(), st.floats(-1e30, 1e30), st.integers(-99999, 99999))


def dense(data: Dataset) -> np.ndarray:
    """The table, NaN where a sparse one has no entry."""
    if not isinstance(data.table, Sparse):
        return data.table
    full = np.full((data.rows, data.features), NAN, np.float32)
    full[np.repeat(np.arange(data.rows), np.diff(data.table.start)), data.table.columns] = data.table.values
    return full


def same(one: Dataset, other: Dataset) -> None:
    """Asserts that two datasets are equal in every part."""
    assert (one.rows, one.features, one.feature_names) == (other.rows, other.features, other.feature_names)
    assert one.categories == other.categories
    np.testing.assert_array_equal(dense(one), dense(other))
    for part in ("label", "weight", "group_start"):
        np.testing.assert_array_equal(getattr(one, part), getattr(other, part))


def whole(parts: list[Dataset]) -> Dataset:
    """Chunks put together; their queries are counted on."""
    first = parts[0]
    starts = [] if first.group_start is None else [np.diff(part.group_start) for part in parts]
    joined = {
        part: None if getattr(first, part) is None else np.concatenate([getattr(one, part) for one in parts])
        for part in ("label", "weight")
    }
    return Dataset(
        np.concatenate([dense(part) for part in parts]),
        sum(part.rows for part in parts),
        first.features,
        **joined,
        group_start=np.concatenate([[0], np.cumsum(np.concatenate(starts))]) if starts else None,
        feature_names=first.feature_names,
        categories=first.categories,
    )


def check_chunks(path: Path, rows: int, **options: Any) -> Dataset:
    """Reads a file whole and in chunks of some rows, which must agree."""
    data = readers.read(path, **options)
    parts = list(readers.chunks(path, rows, **options))
    if data.group_start is None:
        assert [part.rows for part in parts[:-1]] == [rows] * (len(parts) - 1)
    same(whole(parts), data)
    return data

"""Cuts of rows on several workers: those that one worker with all rows makes, for any multiset and any sharing out."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.binning import Cuts
from burnish.boost.data import Dataset
from burnish.boost.distributed import part
from burnish.boost.quantiles import _keys, _values, shared_cuts
from burnish.comm import Comm, launch
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

Floats = np.ndarray[Any, np.dtype[np.float32]]


def job(comm: Comm, dataset: Dataset, max_bin: int, weight: Floats | None) -> tuple[Floats, Any]:
    cuts = shared_cuts(dataset, max_bin, Workers(2), comm, weight)
    return cuts.values, cuts.start


def check(dataset: Dataset, edges: list[int], max_bin: int, weight: Floats | None) -> None:
    """The cuts of the shards between the edges against those of the whole."""
    expected = Cuts.of(dataset, max_bin, Workers(1), weight)
    shards = [
        (part(dataset, begin, end), max_bin, None if weight is None else weight[begin:end])
        for begin, end in pairwise(edges)
    ]
    for values, start in launch(job, shards):
        assert start.tolist() == expected.start.tolist()
        assert values.tobytes() == (expected.values + np.float32(0)).tobytes()


@st.composite
def tables(draw: st.DrawFn) -> tuple[Dataset, list[int], int, Floats | None]:
    rows = draw(st.integers(1, 400))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    columns = [
        random.standard_normal(rows),
        random.integers(-5, 5, rows),
        np.where(random.random(rows) < 0.6, 3.0, random.standard_normal(rows)),
        random.exponential(size=rows) * 10.0 ** draw(st.integers(-42, 36)),
        np.full(rows, np.nan),
    ]
    x = np.stack(columns, axis=1).astype(np.float32)
    x[random.random(x.shape) < draw(st.sampled_from([0.0, 0.3]))] = np.nan
    x[random.random(x.shape) < draw(st.sampled_from([0.0, 0.1]))] = -0.0
    weight = None
    if draw(st.booleans()):
        weight = random.exponential(size=rows).astype(np.float32)
        weight[random.random(rows) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = 0.0
    inner = sorted(draw(st.lists(st.integers(0, rows), max_size=3)))
    return Dataset.of(x), [0, *inner, rows], draw(st.sampled_from([2, 3, 16, 256])), weight


@settings(max_examples=60, deadline=None)
@given(tables())
def test_cuts_are_those_of_one_worker(case: tuple[Dataset, list[int], int, Floats | None]) -> None:
    check(*case)


@pytest.mark.parametrize("weighted", [False, True])
def test_cuts_of_sparse_and_categorical_columns(weighted: bool) -> None:
    import scipy.sparse as scipy

    random = np.random.default_rng(1)
    weight = random.exponential(size=500).astype(np.float32) if weighted else None
    dense = random.standard_normal((500, 6)).round(2) * (random.random((500, 6)) < 0.3)
    dense[:, 5] = 0.0
    check(Dataset.of(scipy.csr_array(dense)), [0, 100, 101, 500], 16, weight)
    dense[:, 2] = random.integers(0, 7, 500)
    check(Dataset.of(dense, categorical=[2]), [0, 250, 500], 32, weight)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_keys_order_as_values_do(values: list[float]) -> None:
    array = np.array(values, np.float32)
    keys = _keys(array)
    assert _values(keys.astype(np.int64)).tobytes() == (array + np.float32(0)).tobytes()
    assert np.array_equal(array[:, None] < array[None, :], keys[:, None] < keys[None, :])


def test_bad_numbers_of_bins_are_refused() -> None:
    with pytest.raises(ParameterError, match="max_bin: found 1; allowed: 2 to 65535"):
        launch(job, [(Dataset.of(np.zeros((2, 1))), 1, None)])

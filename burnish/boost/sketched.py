"""Cuts by the weighted quantile sketch (thesis-chen §2.6): of streamed rows, and of rows on several workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import LAST_CUT, Cuts, category_cuts
from burnish.boost.blocks import ColumnBlock, column_block
from burnish.boost.data import Dataset
from burnish.boost.sketch import Sketch, Summary, merge_all
from burnish.comm.protocol import Comm
from burnish.errors import DataError
from burnish.runtime.threads import Workers

LEVELS = 24  # of a stream's sketch: 2^23 chunks and more are not expected


def shared_summaries(own: Sequence[Summary], eps: float, comm: Comm) -> list[Summary]:
    """Summaries, one a feature, of the rows of all workers: each sends its own, pruned, once.

    Of own summaries with error e, the result's is e + eps at most (Theorems 2.6.1 and 2.6.2). One exchange of 32 bytes
    for each of 1/eps points, a feature and worker.
    """
    budget = math.ceil(1.0 / eps)
    arrays = [summary.prune(budget).to_array() for summary in own]
    lengths = comm.all_gather_v(np.array([len(array) for array in arrays], np.int64))
    gathered = comm.all_gather_v(np.concatenate([np.zeros(0), *arrays]))
    parts = [np.split(body, np.cumsum(length)[:-1]) for body, length in zip(gathered, lengths, strict=True)]
    return [merge_all(Summary.from_array(part[k]) for part in parts) for k in range(len(own))]


def cuts_of(summary: Summary, max_bin: int, present: int, rows: int) -> NDArray[np.float32]:
    """Cuts of a column by its summary, as `binning.column_cuts` closes them: none if it has no value present."""
    bins = max(1, max_bin - int(present < rows))  # a missing value counts as a bin
    return np.append(summary.candidates(bins), LAST_CUT) if present else np.empty(0, np.float32)


def sketched_cuts(
    dataset: Dataset, max_bin: int, workers: Workers, comm: Comm, weight: NDArray[np.float32] | None, eps: float
) -> Cuts:
    """Cuts of the rows of all workers together, of ranks right to the share `eps`; rows of this worker and weights."""
    block, rows = column_block(dataset, workers), int(comm.all_reduce(np.array([dataset.rows]))[0])
    present = np.asarray(comm.all_reduce(np.diff(block.start)))
    merged = shared_summaries(_exact(block, range(dataset.features), weight), eps, comm)
    found = [cuts_of(s, max_bin, n, rows) for s, n in zip(merged, present.tolist(), strict=True)]
    return _with_categories(found, dataset.categories)


def _exact(block: ColumnBlock, features: Sequence[int], weight: NDArray[Any] | None) -> list[Summary]:
    """Summaries of sorted columns that hold every value."""
    found = []
    for feature in features:
        own = slice(int(block.start[feature]), int(block.start[feature + 1]))
        rows, values = block.rows[own], block.values[own]
        mass = np.ones(len(rows)) if weight is None else weight[rows].astype(np.float64)
        found.append(Summary.of_sorted(values, mass))
    return found


def _with_categories(found: list[NDArray[np.float32]], categories: Sequence[Any]) -> Cuts:
    for feature, known in enumerate(categories):
        if known is not None:
            found[feature] = category_cuts(len(known))
    return Cuts.join(found)


class SketchedColumns:
    """Sorted columns of one worker's rows, for quantiles within ``eps`` under weights that change.

    As `quantiles.SharedColumns`, but by one exchange of summaries for all features, not by 32 for each of some.
    """

    def __init__(self, block: ColumnBlock, comm: Comm, eps: float) -> None:
        self._block, self._comm, self._eps = block, comm, eps

    def few(self, most: NDArray[np.int64]) -> dict[int, NDArray[np.float32]]:
        """By feature, the distinct values of those that have at most `most` (features,) of them."""
        features = range(len(most))
        own = _exact(self._block, features, None)
        counts = self._comm.all_reduce(np.array([len(s) for s in own], np.int64), "max")
        budget = max(math.ceil(1.0 / self._eps), int(most.max(initial=1)) + 1)
        merged = shared_summaries(own, 1.0 / budget, self._comm)
        few = np.flatnonzero(counts <= most)  # where a worker has more, so have all together
        return {int(f): merged[f].value for f in few if len(merged[f]) <= most[f]}

    def cuts(
        self, features: Sequence[int], weight: NDArray[np.int32], most: NDArray[np.int64]
    ) -> dict[int, NDArray[np.float32]]:
        """By feature, the inner cuts of `most` (features,) bins by the integer weights of the rows, which may be 0."""
        merged = shared_summaries(_exact(self._block, features, weight), self._eps, self._comm)
        return {f: s.candidates(int(most[f])) for f, s in zip(features, merged, strict=True)}


class StreamSketch:
    """Sketches of all columns of a stream of chunks, in memory for about ``features · 24² / eps`` points at most.

    Every chunk is seen once, when it arrives; cuts are of ranks right to the share ``eps`` of all weight (§2.6.2).
    Raises DataError for chunks that differ in their number of features.
    """

    def __init__(self, eps: float, workers: Workers) -> None:
        self._eps, self._workers, self._rows = eps, workers, 0
        self._budget = math.ceil(LEVELS / eps)
        self._columns: list[Sketch] = []
        self._present = np.zeros(0, np.int64)

    def push(self, chunk: Dataset) -> None:
        """Adds the rows of a chunk."""
        if not self._columns:
            self._columns = [Sketch(self._budget) for _ in range(chunk.features)]
            self._present = np.zeros(chunk.features, np.int64)
        if chunk.features != len(self._columns):
            raise DataError(f"chunk of the source: found {chunk.features} features; allowed: {len(self._columns)}")
        if not chunk.rows:
            return
        block = column_block(chunk, self._workers)
        self._rows += chunk.rows
        self._present += np.diff(block.start)

        def add(own: Sequence[int]) -> None:
            for feature, summary in zip(own, _exact(block, own, chunk.weight), strict=True):
                self._columns[feature].add(summary)

        self._workers.run(add, [(own,) for own in self._workers.over(range(chunk.features))])

    def cuts(self, max_bin: int, categories: Sequence[Any] = (), comm: Comm | None = None) -> Cuts:
        """Cuts of all columns into at most `max_bin` bins, that of missing values among them; of all workers' rows."""
        summaries = [column.summary() for column in self._columns]
        present, rows = self._present, self._rows
        if comm is not None:
            summaries = shared_summaries(summaries, self._eps / LEVELS, comm)
            present = np.asarray(comm.all_reduce(present))
            rows = int(comm.all_reduce(np.array([rows]))[0])
        pairs = zip(summaries, present.tolist(), strict=True)
        return _with_categories([cuts_of(s, max_bin, n, rows) for s, n in pairs], categories)

"""Numbers of rows by bin, for splits whose sides have a least number of them each."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.fixed import FixedPoint
from burnish.boost.growth.bins import DenseBins, SparseBins
from burnish.boost.histogram import Histograms
from burnish.runtime.threads import Workers


class Counted(NamedTuple):
    """Rows of some nodes, and how many of them a side of a split must have; of all workers."""

    pool: NDArray[np.int64]  # flat; a slot's second plane, where Hessians lie elsewhere, has numbers of rows by bin
    slots: NDArray[np.int64]  # (nodes,)
    rows: NDArray[np.int64]  # (nodes,)
    least: int

    def part(self, begin: int, end: int) -> "Counted":
        """Slice of the nodes begin … end."""
        return self._replace(slots=self.slots[begin:end], rows=self.rows[begin:end])


class RowCounts:
    """Numbers of rows in bins. Rows that are not sampled, whose statistics are zero, do not count."""

    def __init__(self, bins: DenseBins | SparseBins, rows: int, least: int, workers: Workers, comm: Any) -> None:
        self._histograms = Histograms(bins, workers, comm)
        self._least = least
        self._values = np.zeros((rows, 2), np.int64)
        self._comm = comm

    def start(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32]) -> None:
        """Takes the rows of a tree."""
        self._values[:, 1] = (gradient != 0.0) | (hessian != 0.0)

    def of(self, nodes: NDArray[Any], order: NDArray[np.uint32]) -> Counted:
        """The counts of nodes, of all workers' rows; to be given back."""
        slots = self._histograms.take(len(nodes))
        own = nodes.copy()
        own["slot"] = slots
        self._histograms.build(own, np.arange(len(own)), order, FixedPoint(self._values, 1.0, 1.0, (0, 0)))
        pairs = zip(nodes["begin"].tolist(), nodes["end"].tolist(), strict=True)
        rows = np.array([self._values[order[low:high], 1].sum() for low, high in pairs], np.int64)
        rows = rows if self._comm is None else np.asarray(self._comm.all_reduce(rows))
        return Counted(self._histograms.pool.reshape(-1), slots, rows, self._least)

    def give_back(self, counted: Counted) -> None:
        """Frees the slots of some counts."""
        self._histograms.give_back(counted.slots)

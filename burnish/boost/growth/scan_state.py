"""Row state of a scan: gradient and Hessian in fixed point, and the slot of the node in which the row is."""

import numpy as np
from numpy.typing import NDArray

from burnish.boost import fixed
from burnish.boost.intrinsics import aligned
from burnish.boost.kernels import inlined, region
from burnish.runtime.threads import GRAIN, Workers

SLOTS = 0xFFFF  # of nodes in one scan; a row in none of them has the slot after the last
_BITS = 23  # magnitude of a statistic of the narrow form
_WIDE_BITS = 46  # of the wide one, whose gradient shares a word with a slot of 16 bits
_SUM_BITS = 52  # of a sum, which float64 holds exactly
_FEW_ROWS = 1 << 15  # whose wide form fits into the cache


class RowRecords:
    """The rows of a training set, as int64 `words`.

    Narrow, (rows,): gradient in bits 40–63, Hessian in bits 16–39, slot in bits 0–15: statistics are right to 2^-23 of
    the largest. Where that is too coarse (not `fixed.resolved`), or more costs nothing, (rows, 2): the gradient above
    the slot, then the Hessian, with sums of all rows below 2^53. Then each is right to 2^-b of the largest, with
    b = min(46, 51 - ⌊log2 rows⌋).
    """

    def __init__(self, rows: int, workers: Workers, min_child_weight: float = 1.0) -> None:
        self._least = min_child_weight
        self._workers = workers
        self._rows = rows
        self.words: NDArray[np.int64] = np.empty(0, np.int64)
        self.units = (1.0, 1.0)  # of the gradient, of the Hessian
        self.total = (0.0, 0.0)  # of the gradients, of the Hessians, in units

    @property
    def narrow(self) -> bool:
        """Whether a row is one word."""
        return self.words.ndim == 1

    def load(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], wide: bool = False) -> None:
        """Takes over a tree's statistics, (rows,) each; in the wide form where need be, or if asked to.

        Raises DataError if one is not finite.
        """
        *largest, _ = fixed.extremes(gradient, hessian, self._workers)
        shape: tuple[int, ...] = (self._rows,)
        bits = _BITS
        units = [fixed.unit_of(value, bits) for value in largest]
        wide = wide or self._rows <= _FEW_ROWS
        if wide or not fixed.fine_enough(gradient, hessian, units, self._least, self._rows, self._workers):
            shape = (self._rows, 2)
            bits = min(_WIDE_BITS, _SUM_BITS - self._rows.bit_length())
            units = [fixed.unit_of(value, bits) for value in largest]
        if self.words.shape != shape:
            self.words = aligned(shape, np.int64)
        self.units = units[0], units[1]
        arguments = (gradient, hessian, 1 / units[0], 1 / units[1], (1 << bits) - 1, self.words)
        sums = np.zeros((self._workers.threads, 2), np.int64)
        self._workers.each(_write, self._rows, *arguments, sums, grain=GRAIN)
        self.total = float(sums[:, 0].sum()), float(sums[:, 1].sum())

    def assign(
        self, position: NDArray[np.int32], slot_of: NDArray[np.int64], nowhere: int,
        taken: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """Gives each row the slot of the node at which it is, ``slot_of[position]``; `nowhere` if it has no statistics.

        slot_of: (nodes,). position: (rows,). taken: (rows,), which rows have some, where rows must be counted even if
        theirs are smaller than a unit; None: those that have some units.
        """
        arguments = (self.words, position, slot_of, nowhere, taken)
        self._workers.each(_assign, self._rows, *arguments, grain=GRAIN)


@region
def _write(  # type: ignore[no-untyped-def]
    gradient, hessian, scale, scale_h, limit, words, sums, begin, end, thread
):
    """Writes statistics; adds them up in sums[thread]."""
    total = total_h = np.int64(0)
    for row in range(np.uint64(begin), np.uint64(end)):
        g = min(max(np.int64(np.rint(gradient[row] * scale)), -limit), limit)  # the largest may round up to 2^bits
        h = min(max(np.int64(np.rint(hessian[row] * scale_h)), -limit), limit)
        if words.ndim == 1:
            words[row] = g << 40 | (h & 0xFFFFFF) << 16
        else:
            words[row, np.uint64(0)] = g << 16
            words[row, np.uint64(1)] = h
        total, total_h = total + g, total_h + h
    sums[thread, 0] += total
    sums[thread, 1] += total_h


@inlined
def _left_out(taken, row, empty):  # type: ignore[no-untyped-def]
    if taken is None:
        return empty
    return not taken[row]


@region
def _assign(words, position, slot_of, nowhere, taken, begin, end, thread):  # type: ignore[no-untyped-def]
    for row in range(np.uint64(begin), np.uint64(end)):
        slot = slot_of[np.uint64(position[row])]
        if words.ndim == 1:
            statistics = words[row] & ~0xFFFF
            words[row] = statistics | (nowhere if _left_out(taken, row, statistics == 0) else slot)
        else:
            statistics = words[row, np.uint64(0)] & ~0xFFFF
            empty = statistics == 0 and words[row, np.uint64(1)] == 0
            words[row, np.uint64(0)] = statistics | (nowhere if _left_out(taken, row, empty) else slot)

"""What a scan reads of a row: gradient and Hessian in fixed point, and the slot of the node in which the row is."""

import math

import numpy as np
from numpy.typing import NDArray

from burnish.boost.intrinsics import aligned
from burnish.boost.threads import Workers
from burnish.errors import DataError
from burnish.jit import njit

SLOTS = 0xFFFF  # of nodes in one scan; a row in none of them has the slot after the last
_BITS = 23  # magnitude of a statistic of the narrow form
_FINE = 64  # units that most statistics other than 0 must have for the narrow form
_FEW_ROWS = 1 << 15  # whose wide form fits into the cache


class Records:
    """The rows of a training set, as int64 `words`.

    Narrow, (rows,): gradient in bits 40–63, Hessian in bits 16–39, slot in bits 0–15. Where 24 bits are too coarse, or
    more cost nothing, (rows, 2): the gradient above the slot, then the Hessian, with sums of all rows below 2^53.
    """

    def __init__(self, rows: int, workers: Workers) -> None:
        self._workers = workers
        self._ranges = workers.ranges(rows, 16384)
        self._rows = rows
        self.words: NDArray[np.int64] = np.empty(0, np.int64)
        self.units = (1.0, 1.0)  # of the gradient, of the Hessian
        self.total = (0.0, 0.0)  # of the gradients, of the Hessians, in units

    def load(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32]) -> None:
        """Takes over a tree's statistics, (rows,) each. DataError if one is not finite."""
        parts = np.array(self._workers.run(_extent, [(gradient, hessian, *part) for part in self._ranges]))
        largest = parts[:, :2].max(axis=0)
        if not np.isfinite(largest).all():
            raise DataError("gradient, hessian: found NaN or infinite values; allowed: finite numbers")
        if self._rows > _FEW_ROWS and self._fill((self._rows,), largest, _BITS, gradient, hessian):
            return
        self._fill((self._rows, 2), largest, min(44, 52 - self._rows.bit_length()), gradient, hessian)

    def _fill(
        self,
        shape: tuple[int, ...],
        largest: NDArray[np.float64],
        bits: int,
        gradient: NDArray[np.float32],
        hessian: NDArray[np.float32],
    ) -> bool:
        """Writes the words; returns whether most statistics other than 0 are many units."""
        if self.words.shape != shape:
            self.words = aligned(shape, np.int64)
        self.units = (_unit(largest[0], bits), _unit(largest[1], bits))
        arguments = (gradient, hessian, 1.0 / self.units[0], 1.0 / self.units[1], (1 << bits) - 1, self.words)
        sums = np.array(self._workers.run(_write, [(*arguments, *part) for part in self._ranges])).sum(axis=0)
        self.total = (float(sums[0]), float(sums[1]))
        return bool(2 * sums[2] >= sums[3] and 2 * sums[4] >= sums[5])

    def assign(self, position: NDArray[np.int32], slot_of: NDArray[np.int64], nowhere: int) -> None:
        """Gives each row the slot of the node at which it is, ``slot_of[position]``; `nowhere` if it has no statistics.

        slot_of: (nodes,). position: (rows,).
        """
        arguments = (self.words, position, slot_of, nowhere)
        self._workers.run(_assign, [(*arguments, *part) for part in self._ranges])


def _unit(largest: float, bits: int) -> float:
    return math.ldexp(1.0, math.frexp(largest)[1] - bits) if largest > 0 else 1.0


@njit(cache=True, nogil=True)
def _extent(gradient, hessian, begin, end):  # type: ignore[no-untyped-def]
    """Largest magnitudes; infinite if a value is NaN."""
    largest, largest_h = 0.0, 0.0
    for i in range(np.uint64(begin), np.uint64(end)):
        g, h = abs(float(gradient[i])), abs(float(hessian[i]))
        largest = max(largest, g) if g == g else np.inf
        largest_h = max(largest_h, h) if h == h else np.inf
    return largest, largest_h


@njit(cache=True, nogil=True)
def _write(gradient, hessian, scale, scale_h, limit, words, begin, end):  # type: ignore[no-untyped-def]
    """Writes statistics; returns their sums, then of both how many are many units, and how many are not 0."""
    total = total_h = fine = count = fine_h = count_h = np.int64(0)
    for row in range(np.uint64(begin), np.uint64(end)):
        g = min(max(np.int64(np.rint(gradient[row] * scale)), -limit), limit)  # the largest may round up to 2^bits
        h = min(max(np.int64(np.rint(hessian[row] * scale_h)), -limit), limit)
        if words.ndim == 1:
            words[row] = g << 40 | (h & 0xFFFFFF) << 16
        else:
            words[row, np.uint64(0)] = g << 16
            words[row, np.uint64(1)] = h
        total, total_h = total + g, total_h + h
        fine, fine_h = fine + (abs(g) >= _FINE), fine_h + (abs(h) >= _FINE)
        count, count_h = count + (gradient[row] != 0), count_h + (hessian[row] != 0)
    return total, total_h, fine, count, fine_h, count_h


@njit(cache=True, nogil=True)
def _assign(words, position, slot_of, nowhere, begin, end):  # type: ignore[no-untyped-def]
    for row in range(np.uint64(begin), np.uint64(end)):
        slot = slot_of[np.uint64(position[row])]
        if words.ndim == 1:
            statistics = words[row] & ~0xFFFF
            words[row] = statistics | (nowhere if statistics == 0 else slot)
        else:
            statistics = words[row, np.uint64(0)] & ~0xFFFF
            empty = statistics == 0 and words[row, np.uint64(1)] == 0
            words[row, np.uint64(0)] = statistics | (nowhere if empty else slot)

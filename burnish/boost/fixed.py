"""Gradient statistics as fixed-point integers: sums that are exact, and so the same in any order of addition."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.kernels import inlined, lean, region
from burnish.errors import DataError
from burnish.runtime.threads import GRAIN, Workers

PACKED_BITS = 18  # magnitude of one packed gradient or Hessian
PACKED_ROWS = (1 << (31 - PACKED_BITS)) - 1  # so many rows' packed sums fit into 32 bits each
_SUM_BITS = 61  # magnitude of a sum of pairs
_CHANCE = 8  # where values are small by chance alone, one in 16 of those below a level is below the level before
_RARE_BITS = 13  # one row in 2^13 may be small for another reason
_MOST = 4  # reciprocal of the greatest share of values that may be small
_FEW = 4  # number of small values that is always tolerated
_FEW_ROWS = 1024  # where precision costs nothing
_HALF = np.float32(0.5)
_INFINITY = 0x7F800000  # bits of float32's infinity


@dataclass(frozen=True)
class FixedPoint:
    """Gradients and Hessians of all rows as integer multiples of two units, which are powers of two.

    Sums of integers are exact: what is rounded is each row, once, to at most half a unit.

    Pairs: a row is two int64. Of n rows whose largest magnitude is M, each is right to M 2^-b with b = 60 - ⌊log2 n⌋,
    the most of which n fit into a sum. So the sum of any k rows whose magnitudes are m in the mean is right to the
    share 2^-b M / m of the sum of these magnitudes, whatever their distribution: of a million rows, to 1e-3 if m is
    1e-9 M or more.

    Packed, a row is one int64, ``(gradient << 32) + hessian``, and one addition adds both; sums of up to `PACKED_ROWS`
    rows unpack. Each row is right to M 2^-18. That serves to choose splits, where `fine_enough` holds, and nothing
    else: the weights of leaves come from finer sums (`leaves.LeafSums`). Groups that are too small for that to see them
    show as nodes most of whose gradients have few units: such a tree is grown again with pairs (`growth.coarse`).
    """

    values: NDArray[np.int64]  # (rows,) packed or (rows, 2) pairs; rows of this worker
    gradient_unit: float
    hessian_unit: float
    total: tuple[int, int]  # sums over the rows of all workers, in units

    @property
    def packed(self) -> bool:
        """Whether a row is one integer."""
        return self.values.ndim == 1


class Quantizer:
    """Makes `FixedPoint` of float32 statistics; keeps its buffers from tree to tree."""

    def __init__(self, rows: int, workers: Workers, comm: Any = None, min_child_weight: float = 1.0) -> None:
        self._least = min_child_weight
        self._workers = workers
        self._comm = comm
        self.total_rows = reduced([(rows,)], "sum", comm)[0]
        self._packed = np.empty(rows, np.int64)
        self._pairs: NDArray[np.int64] | None = None

    def __call__(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], pairs: bool = False) -> FixedPoint:
        """The statistics of all rows, (rows,) each, in units fitted to the largest; DataError if one is not finite.

        They are pairs where need be, or if asked for.
        """
        *largest, negative = extremes(gradient, hessian, self._workers, self._comm)
        rows = self.total_rows
        if not negative and rows > _FEW_ROWS and not pairs:
            units = [packed_unit(value) for value in largest]
            if fine_enough(gradient, hessian, units, self._least, rows, self._workers, self._comm):
                return self._pack(gradient, hessian, *units)
        return self._pair(gradient, hessian, *(unit_of(value, pair_bits(rows)) for value in largest))

    def _pack(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], unit: float, hessian_unit: float
    ) -> FixedPoint:
        scales = np.float32(1 / unit), np.float32(1 / hessian_unit)
        sums = self._sums(_pack, gradient, hessian, *scales, self._packed)
        return FixedPoint(self._packed, unit, hessian_unit, (sums[0], sums[1]))

    def _pair(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], unit: float, hessian_unit: float
    ) -> FixedPoint:
        if self._pairs is None:
            self._pairs = np.empty((len(gradient), 2), np.int64)
        sums = self._sums(_pair, gradient, hessian, 1 / unit, 1 / hessian_unit, self._pairs)
        return FixedPoint(self._pairs, unit, hessian_unit, (sums[0], sums[1]))

    def _sums(self, kernel: Any, gradient: NDArray[np.float32], *arguments: Any) -> list[int]:
        """Sums over the rows of all workers, by a region that writes integers of rows."""
        sums = np.zeros((self._workers.threads, 2), np.int64)
        self._workers.each(kernel, len(gradient), gradient, *arguments, sums, grain=GRAIN)
        return reduced(sums.tolist(), "sum", self._comm)


def fine_enough(
    gradient: NDArray[np.float32], hessian: NDArray[np.float32], units: Sequence[float], min_child_weight: float,
    rows: int, workers: Workers, comm: Any = None,
) -> bool:  # fmt: skip
    """Whether splits may be chosen by multiples of two units: `resolved` of the gradients and of the Hessians.

    Besides, the Hessians below the least level must add up to less than half of what a leaf must have: no split may
    tell rows apart that the units do not show. rows: those of all workers; gradient, hessian: those of this one.
    """
    limits = [tuple(np.array([size * unit for size in levels(rows)], np.float32).view(np.int32)) for unit in units]
    bits = gradient.view(np.int32), hessian.view(np.int32)
    counted = np.zeros((workers.threads, 8), np.int64)
    workers.each(_add_small, len(gradient), *bits, *limits, counted, grain=GRAIN)
    nonzero, *below = reduced(counted.tolist(), "sum", comm)
    zeros = rows - nonzero, rows - below[3]
    counts = [[many - zeros[0] for many in below[:3]], [many - zeros[1] for many in below[4:]]]
    light = counts[1][0] * max(levels(rows)[0], 1.0) * units[1]
    return 2 * light <= min_child_weight and resolved(nonzero, counts[0]) and resolved(below[3], counts[1])


def levels(rows: int) -> tuple[float, float, float]:
    """Thresholds in units, 16 times apart, below which values are counted for `resolved`.

    Above the last, about 4 √rows, half a unit of each row, were it in one direction for all, is less than what chance
    moves a sum of the values by.
    """
    top = float(4 << (rows.bit_length() // 2))
    return top / 256, top / 16, top


def resolved(nonzero: int, below: Sequence[int]) -> bool:
    """Whether so few values are small that their units are fine enough to choose splits by.

    nonzero: how many values are not zero. below: how many of them are below each of `levels`. Most must be above the
    last. Of values that are small by chance, such as residuals around zero, equally many are in equal intervals near
    zero: one in 16 of those below a level is below the one before. Rows that are small as a group, which a split may
    tell apart from the rest, are below both. If those are more than one in 8 of the next level and one row in 2^13, the
    answer is no.
    """
    rare = max(nonzero >> _RARE_BITS, _FEW)
    chance = all(few * _CHANCE <= many + rare * _CHANCE for few, many in pairwise(below))
    return chance and below[-1] * _MOST <= nonzero


def extremes(
    gradient: NDArray[np.float32], hessian: NDArray[np.float32], workers: Workers, comm: Any = None
) -> tuple[float, float, bool]:
    """Largest |gradient| and |Hessian| of all workers' rows, and whether a Hessian is negative.

    Raises DataError if one is not finite.
    """
    bits = gradient.view(np.int32), hessian.view(np.int32)
    found = np.zeros((workers.threads, 3), np.int64)
    workers.each(_raise_extremes, len(gradient), *bits, found, grain=GRAIN)
    largest = reduced(found.tolist(), "max", comm)
    if max(largest[:2]) >= _INFINITY:
        raise DataError("gradient, hessian: found NaN or infinite values; allowed: finite numbers")
    limits: list[float] = np.array(largest[:2], np.int32).view(np.float32).tolist()
    return limits[0], limits[1], largest[2] > 0


def reduced(parts: Sequence[Sequence[int]], op: str, comm: Any = None) -> list[int]:
    """Sums or maxima, column by column, over threads and workers."""
    values = [int(sum(column) if op == "sum" else max(column)) for column in zip(*parts, strict=True)]
    if comm is None:
        return values
    found: list[int] = np.asarray(comm.all_reduce(np.array(values, np.int64), op=op)).tolist()
    return found


def pair_bits(rows: int) -> int:
    """Bits of a fixed-point statistic's magnitude such that a sum over `rows` rows fits into int64."""
    return _SUM_BITS - rows.bit_length()


def unit_of(largest: float, bits: int) -> float:
    """The power of two of which `largest` is fewer than 2^bits multiples (or as many, after rounding)."""
    return math.ldexp(1.0, math.frexp(largest)[1] - bits) if largest > 0 else 1.0


def packed_unit(largest: float) -> float:
    """The unit of packed statistics. Its reciprocal is a float32."""
    return max(unit_of(largest, PACKED_BITS), 2.0**-120)


@region
def _raise_extremes(gradient: Any, hessian: Any, found: Any, begin: int, end: int, thread: int) -> None:
    """Raises a thread's row of `found` to the `_extremes` of some rows."""
    for k, value in enumerate(_extremes(gradient, hessian, begin, end)):
        found[thread, k] = max(found[thread, k], value)


@inlined
def _extremes(gradient: NDArray[np.int32], hessian: NDArray[np.int32], begin: int, end: int) -> tuple[int, int, int]:
    """Largest |gradient| and |Hessian| of some rows, as bits, which order as the numbers do; how many Hessians are < 0.

    NaN and infinity have the largest bits of all.
    """
    magnitude = np.int32(0x7FFFFFFF)
    largest, largest_hessian, negative = np.int32(0), np.int32(0), 0
    for i in range(np.uint64(begin), np.uint64(end)):
        size, hessian_size = gradient[i] & magnitude, hessian[i] & magnitude
        largest = size if size > largest else largest
        largest_hessian = hessian_size if hessian_size > largest_hessian else largest_hessian
        negative += (hessian[i] < 0) & (hessian_size != 0)
    return np.int64(largest), np.int64(largest_hessian), np.int64(negative)  # type: ignore[return-value]


@region
def _add_small(
    gradient: Any, hessian: Any, limits: Any, hessian_limits: Any, counts: Any, begin: int, end: int, thread: int
) -> None:
    """Adds the `_count_small` of some rows to a thread's row of `counts`."""
    for k, value in enumerate(_count_small(gradient, hessian, limits, hessian_limits, begin, end)):
        counts[thread, k] += value


@inlined
def _count_small(
    gradient: NDArray[np.int32],
    hessian: NDArray[np.int32],
    limits: tuple[int, int, int],
    hessian_limits: tuple[int, int, int],
    begin: int,
    end: int,
) -> tuple[int, ...]:
    """Counts of gradients, then of Hessians, of rows begin … end: not zero, and below each limit in magnitude.

    All are given as bits. Zeros are below all limits.
    """
    nonzero, small, fair, large = _below(gradient, limits, begin, end)
    hessian_nonzero, hessian_small, hessian_fair, hessian_large = _below(hessian, hessian_limits, begin, end)
    return (  # type: ignore[return-value]
        np.int64(nonzero), np.int64(small), np.int64(fair), np.int64(large), np.int64(hessian_nonzero),
        np.int64(hessian_small), np.int64(hessian_fair), np.int64(hessian_large),
    )  # fmt: skip


@inlined
def _below(values: NDArray[np.int32], limits: tuple[int, int, int], begin: int, end: int) -> tuple[int, int, int, int]:
    """Counts of `_count_small`; of this form, and of 32 bits, the loop takes 16 values at once."""
    magnitude, one, none = np.int32(0x7FFFFFFF), np.int32(1), np.int32(0)
    first, second, third = limits
    nonzero, small, fair, large = none, none, none, none
    for i in range(np.uint64(begin), np.uint64(end)):
        size = np.int32(values[i] & magnitude)
        nonzero = nonzero if size == none else np.int32(nonzero + one)
        small = np.int32(small + one) if size < first else small
        fair = np.int32(fair + one) if size < second else fair
        large = np.int32(large + one) if size < third else large
    return nonzero, small, fair, large  # type: ignore[return-value]


@inlined
def sums_of(values: NDArray[np.int64], row: np.uint64) -> tuple[np.int64, np.int64]:
    """Gradient and Hessian of a row, of packed statistics (rows,) or pairs (rows, 2)."""
    if values.ndim == 1:  # known when it is compiled
        return values[row] >> 32, values[row] & np.int64(0xFFFFFFFF)
    return values[row, np.uint64(0)], values[row, np.uint64(1)]


@region
def _pack(
    gradient: Any, hessian: Any, scale: Any, hessian_scale: Any, packed: Any, sums: Any, begin: int, end: int,
    thread: int,
) -> None:  # fmt: skip
    """`_pack_rows`, whose sums are added to a thread's row of `sums`."""
    g, h = _pack_rows(gradient, hessian, scale, hessian_scale, begin, end, packed)
    sums[thread, 0] += g
    sums[thread, 1] += h


@region
def _pair(
    gradient: Any, hessian: Any, scale: Any, hessian_scale: Any, pairs: Any, sums: Any, begin: int, end: int,
    thread: int,
) -> None:  # fmt: skip
    """`_pair_rows` in the same way."""
    g, h = _pair_rows(gradient, hessian, scale, hessian_scale, begin, end, pairs)
    sums[thread, 0] += g
    sums[thread, 1] += h


@lean
def _pack_rows(
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
    scale: float,
    hessian_scale: float,
    begin: int,
    end: int,
    packed: NDArray[np.int64],
) -> tuple[int, int]:
    """Packs rows; returns their sums."""
    total, hessian_total = np.int64(0), np.int64(0)
    for i in range(np.uint64(begin), np.uint64(end)):
        g = np.int64(np.int32(math.floor(gradient[i] * scale + _HALF)))
        h = np.int64(np.int32(math.floor(hessian[i] * hessian_scale + _HALF)))
        packed[i] = (g << 32) + h
        total += g
        hessian_total += h
    return total, hessian_total  # type: ignore[return-value]


@lean
def _pair_rows(
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
    scale: float,
    hessian_scale: float,
    begin: int,
    end: int,
    pairs: NDArray[np.int64],
) -> tuple[int, int]:
    """Writes rows as pairs; returns their sums."""
    total, hessian_total = np.int64(0), np.int64(0)
    for i in range(np.uint64(begin), np.uint64(end)):
        g = np.int64(math.floor(float(gradient[i]) * scale + 0.5))
        h = np.int64(math.floor(float(hessian[i]) * hessian_scale + 0.5))
        pairs[i, 0] = g
        pairs[i, 1] = h
        total += g
        hessian_total += h
    return total, hessian_total  # type: ignore[return-value]

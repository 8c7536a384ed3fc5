"""Sums, maxima and collections over the rows of all workers that do not depend on how rows are shared out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_PART = 1 << 16  # values


class Reduction:
    """Reduces over one worker (`comm` None) or all of them; every worker calls the same methods in the same order."""

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm if comm is not None and comm.size > 1 else None

    def sum(self, values: NDArray[Any]) -> float:
        """The sum in fixed point with a power-of-two scale: exact addition, so that any order gives the same bits.

        Each value is rounded to 2^-62 of (largest magnitude × number of values); NaN and infinities propagate.
        """
        values = np.asarray(values).reshape(-1)
        # In parts, lest a sum over rows take many times the memory of the rows.
        parts = [values[begin : begin + _PART] for begin in range(0, values.size, _PART)]
        largest = float(np.max([0.0, *(np.abs(part).max() for part in parts)]))  # NaN if one is
        count, peak = self.count(values.size), self.maximum(largest)
        if peak == 0.0:
            return 0.0
        if not np.isfinite(peak):
            return float("nan")
        exponent = 62 - int(np.frexp(peak)[1]) - int(count).bit_length()
        sums = [np.rint(np.ldexp(part.astype(np.float64), exponent)).astype(np.int64).sum() for part in parts]
        fixed = np.array([np.array(sums, np.int64).sum()], np.int64)
        if self.comm is not None:
            fixed = np.asarray(self.comm.all_reduce(fixed))
        return float(np.ldexp(np.float64(fixed[0]), -exponent))

    def mean(self, values: NDArray[Any], weight: NDArray[np.float32] | None = None) -> float:
        """The weighted mean; NaN without rows."""
        if weight is None:
            count = self.count(np.asarray(values).size)
            return self.sum(values) / count if count else float("nan")
        total = self.sum(weight.astype(np.float64))
        return self.sum(values * weight) / total if total else float("nan")

    def count(self, number: int) -> int:
        """The sum of whole numbers."""
        if self.comm is None:
            return number
        return int(np.asarray(self.comm.all_reduce(np.array([number], np.int64)))[0])

    def maximum(self, value: float) -> float:
        """The largest value; NaN if one is."""
        if self.comm is None:
            return value
        every = self.gather(np.array([value], np.float64))
        return float(np.max(every))

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """Every worker's values, one after another in the order of the ranks; of two dimensions, along the last."""
        if self.comm is None:
            return values
        if values.ndim == 2:
            return np.stack([self.gather(np.ascontiguousarray(row)) for row in values])
        return np.concatenate(self.comm.all_gather_v(np.ascontiguousarray(values)))

    def before(self, number: int) -> int:
        """The sum of the whole numbers of the workers of lower rank: where this worker's rows begin."""
        if self.comm is None:
            return 0
        return int(self.gather(np.array([number], np.int64))[: self.comm.rank].sum())

"""Cost model of ROC: a layer's time on a range of vertices is linear in sums of vertex features (§4.4.1, Table 4.2).

Weights are not negative, and fitted to relative residuals: ranges of all sizes count alike. Beside the sums stands one
feature that is none: the rows that a range reads, each once, its own and its halo's, which an aggregation by blocks of
sources packs, and an exchange sends. Dense ranges of any size read nearly the whole graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.errors import DataError, ParameterError
from burnish.gnn.data.csr import CSR

# x₁ … x₅ of Table 4.2, then two of ours, for graphs whose parts differ in density and order.
ROC_FEATURES = ("vertices", "neighbours", "runs", "accesses", "activations")
SUMMED = (*ROC_FEATURES, "cold")
FEATURES = (*SUMMED, "rows")
WARP = 32  # neighbouring values that one access of a GPU reads: WS in Table 4.2
CACHED = 1 << 20  # bytes of source rows that stay in a core's cache, for "cold"
BLOCKS = 256  # of equally many vertices, between which "rows" is known, and beside which it is interpolated
POINTS = 4096  # measurements that are kept, the last ones

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """Features of any range of a graph's vertices: one subtraction of partial sums, and a place in a table.

    sums: (V + 1, ``SUMMED``), of the vertices before each. table: (B + 1, B + 1), the rows that blocks i … j - 1 read,
    of ``block`` vertices each.
    """

    sums: Floats
    table: Floats
    block: int
    width: int

    @classmethod
    def of(cls, csr: CSR, width: int, cached: int = CACHED) -> FeatureSums:
        """Feature sums over a graph's rows; its layer reads ``width`` features of each neighbour (d_in). O(E), once.

        vertices 1; neighbours |N(v)|; runs: ranges c_i of consecutive neighbours; accesses Σ⌈c_i / WS⌉; activations
        Σ⌈c_i · width / WS⌉; cold: neighbours that ``cached`` bytes of rows did not hold any more since they were read;
        rows: of a range, its vertices and their neighbours, each once. Raises ParameterError.
        """
        return cls.of_parts([csr], csr.rows, width, cached)

    @classmethod
    def of_parts(cls, parts: Iterable[CSR], vertices: int, width: int, cached: int = CACHED) -> FeatureSums:
        """As ``of``, of rows that come range by range, in order: only one range has to be in memory."""
        if width < 1 or cached < 0:
            raise ParameterError(f"cost: found width {width}, cached {cached}; allowed: 1 or more, 0 or more")
        sums = np.zeros((vertices + 1, len(SUMMED)))
        block = block_size(vertices)
        firsts = np.zeros((-(-vertices // block), -(-vertices // block) + 1))
        last, blocks = np.full(vertices, -1, np.int64), np.zeros(vertices, np.int32)
        rows, edges = 0, 0
        for csr in parts:
            out = sums[rows : rows + csr.rows + 1]
            _features(csr.offsets, csr.sources, width, cached // (4 * width), edges, last, out)
            _first_reads(csr.offsets, csr.sources, block, rows, blocks, firsts)
            rows, edges = rows + csr.rows, edges + csr.edges
        np.cumsum(sums, axis=0, out=sums)
        return cls(sums, _table(firsts), block, width)

    @property
    def vertices(self) -> int:
        """V."""
        return len(self.sums) - 1

    def between(self, cuts: Sequence[int] | NDArray[np.int64]) -> Floats:
        """Features of the ranges between the cuts, (ranges, features)."""
        places = np.asarray(cuts, np.int64)
        rows = [self.rows(int(begin), int(end)) for begin, end in itertools.pairwise(places)]
        return np.column_stack([np.diff(self.sums[places], axis=0), np.array(rows)])

    def rows(self, begin: int, end: int) -> float:
        """Rows that the vertices begin … end - 1 read, each once: exact between blocks, else interpolated."""
        if end <= begin:
            return 0.0
        (i, x), (j, y) = self._place(begin), self._place(end)
        t = self.table
        found = (1 - x) * ((1 - y) * t[i, j] + y * t[i, j + 1]) + x * ((1 - y) * t[i + 1, j] + y * t[i + 1, j + 1])
        least, more = self.sums[end, :2] - self.sums[begin, :2]
        return float(min(max(found, least), least + more))

    def _place(self, v: int) -> tuple[int, float]:
        """The block of a vertex, and which share of it lies before; of the end of the last one, 1."""
        i = min(v // self.block, len(self.table) - 2)
        return i, (v - i * self.block) / (min((i + 1) * self.block, self.vertices) - i * self.block)


@dataclass(frozen=True, eq=False)
class LayerCostModel:
    """Seconds of one layer as Σ w_i x_i(range), Equation 4.6; immutable: ``learned`` gives the next one.

    x: features of the ranges measured, (points, features); seconds: their times; weights: (features,), for ``names``.
    """

    names: tuple[str, ...] = FEATURES
    x: Floats | None = None
    seconds: Floats | None = None
    weights: Floats | None = None

    def learned(self, x: Floats, seconds: Any) -> LayerCostModel:
        """The model that also knows these measurements, fitted to all. Ranges of no vertices tell nothing.

        x: all features, (ranges, features); seconds: (ranges,). Raises DataError for times that are not finite and
        above 0.
        """
        times = np.asarray(seconds, np.float64)
        if times.shape != (len(x),):
            raise DataError(f"cost: found {times.shape} times of {len(x)} ranges; allowed: one of each")
        known = x[:, 0] > 0
        x, times = x[known], times[known]
        if not (np.isfinite(times) & (times > 0)).all():
            raise DataError(f"cost: found times {times.min()} to {times.max()}; allowed: finite seconds above 0")
        if self.x is not None and self.seconds is not None:
            x, times = np.concatenate([self.x, x]), np.concatenate([self.seconds, times])
        x, times = x[-POINTS:], times[-POINTS:]
        return replace(self, x=x, seconds=times, weights=fit(x[:, self._columns], times))

    @property
    def _columns(self) -> list[int]:
        return [FEATURES.index(name) for name in self.names]

    def full_weights(self) -> Floats:
        """Weights of all ``FEATURES``, 0 for those that the model does not use. Raises ParameterError before any."""
        if self.weights is None:
            raise ParameterError("cost: nothing was measured; allowed: a model after `learned`")
        out = np.zeros(len(FEATURES))
        out[self._columns] = self.weights
        return out

    def predict(self, x: Floats) -> Floats:
        """Seconds of ranges by all their features, (ranges,)."""
        return x @ self.full_weights()

    def to_json(self) -> dict[str, Any]:
        """Plain lists from which `from_json` makes the model again."""
        if self.weights is None or self.x is None or self.seconds is None:
            return {"names": list(self.names)}
        lists = {"weights": self.weights.tolist(), "x": self.x.tolist(), "seconds": self.seconds.tolist()}
        return {"names": list(self.names), **lists}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LayerCostModel:
        """The model that `to_json` has written. Raises DataError for what it cannot have written."""
        try:
            names = tuple(document["names"])
            if not names or not set(names) <= set(FEATURES):
                raise DataError(f"cost: found features {', '.join(map(str, names))}; allowed: {', '.join(FEATURES)}")
            if "weights" not in document:
                return cls(names)
            weights, x, times = (np.asarray(document[name], np.float64) for name in ("weights", "x", "seconds"))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"cost: found a model that cannot be read: {error!r}") from None
        fits = weights.shape == (len(names),) and x.shape == (len(times), len(FEATURES)) and times.ndim == 1
        if not fits or not np.isfinite(weights).all() or (weights < 0).any():
            raise DataError("cost: found weights or measurements of other shapes or signs; allowed: those of `to_json`")
        return cls(names, x, times, weights)


def fit(x: Floats, seconds: Floats) -> Floats:
    """Weights, none negative, of the least squares of (x w - seconds) / seconds; x: (points, features)."""
    if not len(x):
        return np.zeros(x.shape[1])
    scale = x.max(axis=0)
    scale[scale == 0] = 1
    return nonnegative_least_squares(x / scale / seconds[:, None], np.ones(len(x))) / scale


def nonnegative_least_squares(a: Floats, b: Floats) -> Floats:
    """The w ≥ 0 that minimizes ‖a w - b‖², by active sets (Lawson and Hanson 1974, chapter 23); a: (points, n)."""
    n = a.shape[1]
    w, free = np.zeros(n), np.zeros(n, np.bool_)
    tolerance = 1e-10 * max(1.0, float(np.abs(a.T @ b).max(initial=0)))
    for _ in range(3 * n):
        slope = a.T @ (b - a @ w)
        slope[free] = -np.inf
        if free.all() or slope.max() <= tolerance:
            break
        free[np.argmax(slope)] = True
        while True:
            trial = np.zeros(n)
            trial[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            if (trial[free] > 0).all():
                break
            # As far towards the trial as no weight falls below 0; those that reach it leave.
            falls = free & (trial <= 0)
            step = (w[falls] / (w[falls] - trial[falls])).min(initial=1.0) if (w[falls] > 0).any() else 0.0
            w = w + step * (trial - w)
            free &= w > 1e-14
            w[~free] = 0
            if not free.any():
                break
        w = np.where(free, trial, 0.0)
    return w


def block_size(vertices: int) -> int:
    """Vertices of a block of ``FeatureSums.table``."""
    return max(1, -(-vertices // BLOCKS))


def _table(firsts: Floats) -> Floats:
    """Rows that blocks i … j - 1 read, (B + 1, B + 1): all reads by one of these with none by an earlier one of these.

    firsts: (B, B + 1), the rows that block b reads and whose last reader before was block p - 1, or none for p = 0.
    """
    blocks = len(firsts)
    before = np.zeros((blocks + 1, blocks + 1))
    np.cumsum(np.cumsum(firsts, axis=1), axis=0, out=before[1:])  # by blocks before j, with readers before i at most
    return np.triu((before - np.diag(before)).T)


@njit(cache=True, nogil=True, error_model="numpy")
def _first_reads(offsets, sources, block, first, blocks, firsts):  # type: ignore[no-untyped-def]
    """Adds to ``firsts`` as `_table` takes it. blocks (V,): 0 in, 1 + the last block that read each vertex's row.

    first: the number of row 0.
    """
    for v in range(offsets.shape[0] - 1):
        b = (v + first) // block
        for e in range(offsets[v], offsets[v + 1] + 1):
            u = sources[e] if e < offsets[v + 1] else v + first
            if blocks[u] != b + 1:
                firsts[b, blocks[u]] += 1
                blocks[u] = b + 1


@njit(cache=True, nogil=True, error_model="numpy")
def _features(offsets, sources, width, cached, before, last, out):  # type: ignore[no-untyped-def]
    """``out[v + 1]``: the features of row v. last (columns,): -1 in, the place of the last edge from each source.

    before: the number of edge 0.
    """
    for v in range(offsets.shape[0] - 1):
        run = 0
        row = out[v + 1]
        row[0] = 1
        row[1] = offsets[v + 1] - offsets[v]
        for e in range(offsets[v], offsets[v + 1]):
            u = sources[e]
            if last[u] < 0 or e + before - last[u] > cached:
                row[5] += 1
            last[u] = e + before
            if run and u == sources[e - 1] + 1:
                run += 1
                continue
            if run:
                row[2] += 1
                row[3] += (run + WARP - 1) // WARP
                row[4] += (run * width + WARP - 1) // WARP
            run = 1
        if run:
            row[2] += 1
            row[3] += (run + WARP - 1) // WARP
            row[4] += (run * width + WARP - 1) // WARP

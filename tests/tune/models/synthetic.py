"""Candidates of made-up tasks whose cost behaves as that of tiled loops: caches that overflow, vectors, failures."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.tune.models.base import LoopNests

LEVELS = 6


@dataclass(frozen=True)
class Sample:
    """Candidates of one task."""

    features: NDArray[np.float32]  # (n, 32): logarithms of tiles, of bytes touched, of reuse, and noise
    nests: LoopNests
    cost: NDArray[np.float64]  # (n,) seconds, inf where the candidate failed
    groups: NDArray[np.int64]

    def __getitem__(self, rows: slice) -> "Sample":
        return Sample(self.features[rows], self.nests[rows], self.cost[rows], self.groups[rows])


def sample(
    count: int, seed: int, *, size: int = 512, cache: float = 2**15, failing: float = 0.0, task: int = 0
) -> Sample:
    """Products of size³ in tiles of (i, j, k) with a vectorised j; `cache` bytes decide what a tile may touch."""
    random = np.random.default_rng((seed, 7))
    tile = 2.0 ** random.integers(0, 9, (count, 3))
    unroll, order = random.integers(0, 5, count), random.integers(0, 2, count)
    i, j, k = np.minimum(tile, size).T
    touched = 4 * (i * k + k * j + i * j)
    loads = size**3 * (1 / i + 1 / j + 1 / k)
    misses = loads * np.where(touched > cache, 8.0, 1.0) * np.where(touched > 16 * cache, 4.0, 1.0)
    arithmetic = size**3 / np.minimum(j, 16) * np.where(order == 1, 1.5, 1.0) * (1 + 0.1 * np.abs(unroll - 2))
    cost = (arithmetic + misses) * 1e-9 * random.lognormal(0, 0.02, count)
    cost[random.random(count) < failing] = np.inf
    known = np.stack([i, j, k, touched, i * j * k, i * j * k / touched, size / i, size / j, size / k], axis=1)
    noise = random.standard_normal((count, 21))
    features = np.concatenate([np.log2(known), unroll[:, None], order[:, None], noise], axis=1).astype(np.float32)
    extents = np.stack([size / i, size / j, size / k, i, k, j], axis=1)
    extents = np.where(order[:, None] == 1, extents[:, [0, 1, 2, 3, 5, 4]], extents)
    inner = np.cumprod(extents[:, ::-1], axis=1)[:, ::-1]
    vectorised = np.zeros((count, LEVELS))
    vectorised[:, -1] = 1 - order
    repeated = np.repeat(np.stack([touched, unroll], axis=1)[:, None, :], LEVELS, axis=1)
    nests = np.concatenate([np.stack([extents, inner, vectorised], axis=2), repeated], axis=2)
    return Sample(features, LoopNests(nests.astype(np.float32), extents > 0), cost, np.full(count, task, np.int64))


def joined(*samples: Sample) -> Sample:
    """Several tasks as one body of data."""
    return Sample(
        np.concatenate([s.features for s in samples]),
        LoopNests(np.concatenate([s.nests.levels for s in samples]), np.concatenate([s.nests.mask for s in samples])),
        np.concatenate([s.cost for s in samples]),
        np.concatenate([s.groups for s in samples]),
    )


def pairs_in_order(score: NDArray[np.floating], cost: NDArray[np.float64]) -> float:
    """The share of pairs with different costs whose faster one has the higher score; equal scores count half."""
    faster = cost[:, None] < cost[None, :]
    gap = score[:, None].astype(np.float64) - score[None, :]
    return float(((gap > 0) + 0.5 * (gap == 0))[faster].mean())


def linear_scores(train: Sample, test: Sample) -> NDArray[np.float64]:
    """The baseline: least squares of log-throughput on the features."""
    worked = np.isfinite(train.cost)
    x = np.column_stack([train.features[worked], np.ones(worked.sum())])
    weights = np.linalg.lstsq(x, -np.log(train.cost[worked]), rcond=None)[0]
    return np.column_stack([test.features, np.ones(len(test.cost))]) @ weights

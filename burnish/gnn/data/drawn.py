"""Drawn graphs: random edges, and features that tell of classes, in memory or written piece by piece into a file."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.gnn.data.csr import CSR, Offsets, Sources
from burnish.gnn.data.graph import Graph, Mask
from burnish.gnn.data.rows import FeatureRows, MadeRows, Matrix
from burnish.gnn.data.spool import FileSources, spooled
from burnish.gnn.data.store import save
from burnish.runtime.threads import Workers

IN_MEMORY = 2 << 30  # bytes of features; larger ones are made when they are read
_ROWS = 1024  # of features that share one seed


@dataclass(frozen=True, eq=False)
class Pieces:
    """A symmetric graph whose edges lie in a file: what ``store.save`` writes of a :class:`Graph`."""

    offsets: Offsets
    sources: FileSources
    classes: int
    features: Matrix | FeatureRows | None
    labels: NDArray[np.int32]
    train: Mask
    validation: Mask
    test: Mask
    symmetric: bool = True
    weights: None = None
    order: None = None


@dataclass(frozen=True, eq=False)
class Drawn:
    """A graph that is drawn once: ``pairs`` of ends by chunk, and the ``blocks`` that its vertices belong to.

    ``noise``: share of vertices whose label is drawn at random; ``splits``: shares of training and validation.
    """

    pairs: Iterator[tuple[Sources, Sources]]
    blocks: NDArray[np.int32]
    classes: int
    width: int
    noise: float
    seed: int
    splits: tuple[float, float]
    workers: Workers

    def graph(self) -> Graph:
        """The graph; features of more than ``IN_MEMORY`` bytes are made when they are read."""
        csr = CSR.from_pairs(list(self.pairs), len(self.blocks))
        return Graph(csr, classes=self.classes, **self._fields(IN_MEMORY))

    def write(self, path: str | Path) -> None:
        """Writes the graph as ``store.save`` does, with a few arrays of one number a vertex and some megabytes in main
        memory. Beside the file stands a folder for the edges while it is written. Raises OSError.
        """
        with tempfile.TemporaryDirectory(prefix=".burnish-", dir=Path(path).absolute().parent) as folder:
            edges = spooled(self.pairs, len(self.blocks), Path(folder))
            save(path, Pieces(*edges, self.classes, **self._fields(0)))

    def _fields(self, most: int) -> dict[str, Any]:
        """Features, in memory up to ``most`` bytes, labels, of which some are wrong, and splits."""
        generator = np.random.default_rng((self.seed, 4))
        labels = self.blocks.copy()
        wrong = generator.random(len(labels)) < self.noise
        labels[wrong] = generator.integers(0, self.classes, int(wrong.sum()))
        draw = generator.random(len(labels))
        features = None
        if self.width:
            features = drawn_features(self.blocks, self.classes, self.width, self.seed, 0, self.workers, most)
        train, known = self.splits[0], self.splits[0] + self.splits[1]
        masks = {"train": draw < train, "validation": (draw >= train) & (draw < known), "test": draw >= known}
        return {"features": features, "labels": labels, **masks}


def drawn_features(
    blocks: NDArray[np.int32], classes: int, width: int, seed: int, number: int, workers: Workers, most: int
) -> Matrix | FeatureRows:
    """Rows of unit noise around the mean of each block, means two units apart; in memory up to ``most`` bytes."""
    means = np.random.default_rng((seed, 5)).standard_normal((classes, width), dtype=np.float32)
    means *= np.float32(math.sqrt(2 / max(1, width)))

    def block(first: int, out: Matrix) -> None:
        key = (seed, 6, number, first // _ROWS)
        np.random.default_rng(key).standard_normal(out=out, dtype=np.float32)
        out += means[blocks[first : first + len(out)]]

    def fill(begin: int, out: Matrix) -> None:
        """Rows from ``begin`` on: whole blocks in place, others by way of a buffer."""
        row = begin
        while row < begin + len(out):
            first = row - row % _ROWS
            size = min(_ROWS, len(blocks) - first)
            last = min(first + size, begin + len(out))
            if row == first and last == first + size:
                block(first, out[row - begin : last - begin])
            else:
                made = np.empty((size, width), np.float32)
                block(first, made)
                out[row - begin : last - begin] = made[row - first : last - first]
            row = last

    if 4 * width * len(blocks) > most:
        return MadeRows((len(blocks), width), fill)
    out = np.empty((len(blocks), width), np.float32)
    parts = [(a * _ROWS, min(b * _ROWS, len(blocks))) for a, b in workers.ranges(-(-len(blocks) // _ROWS))]
    workers.run(lambda begin, end: fill(begin, out[begin:end]), parts)
    return out

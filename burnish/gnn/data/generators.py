"""Generators of graphs with classes, features and splits: R-MAT and block models, at the sizes of ROC's Table 4.4."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.arguments import check_count, check_number, typed
from burnish.errors import ParameterError
from burnish.gnn.data import draws
from burnish.gnn.data.csr import LARGEST
from burnish.gnn.data.drawn import IN_MEMORY, Drawn, drawn_features
from burnish.gnn.data.graph import Graph
from burnish.runtime.threads import Workers

SHARES = (0.57, 0.19, 0.19)  # of R-MAT's upper left, upper right and lower left quarter
SPLITS = (0.66, 0.10)  # training, validation; the rest is for tests
_PPI_GRAPHS, PPI_UNSEEN = 24, 4
_PPI_COMMUNITIES = 20


@dataclass(frozen=True)
class DatasetSize:
    """A data set's size: vertices, edges in both directions, features, classes; and shares of its splits."""

    vertices: int
    edges: int
    width: int
    classes: int
    splits: tuple[float, float] = SPLITS


SIZES = {
    "pubmed": DatasetSize(19_717, 108_365, 500, 3),
    "ppi": DatasetSize(56_944, 1_612_348, 700, 121),
    "reddit": DatasetSize(232_965, 114_848_857, 602, 41),
    "reddit/10": DatasetSize(23_297, 11_484_886, 602, 41),
    "amazon": DatasetSize(9_430_088, 231_594_310, 300, 24),
}
KINDS = ("block", "rmat")


@typed
def dataset(name: str, kind: str = "block", seed: int = 0, threads: int | None = None, scale: float = 1.0) -> Graph:
    """A symmetric graph of a known size (``SIZES``), by a block model or R-MAT; vertices in random order.

    Features that take more than 2 GiB are made when they are read. ``scale``: of the numbers of vertices and of edges.
    Raises ParameterError.
    """
    return _dataset(name, kind, seed, threads, scale).graph()


@typed
def write_dataset(
    path: str | Path, name: str, kind: str = "block", seed: int = 0, threads: int | None = None, scale: float = 1.0
) -> None:
    """Writes :func:`dataset`'s graph as a .bngraph file, piece by piece: main memory holds some numbers a vertex.

    Raises ParameterError, OSError.
    """
    _dataset(name, kind, seed, threads, scale).write(path)


def _dataset(name: str, kind: str, seed: int, threads: int | None, scale: float) -> Drawn:
    if name not in SIZES:
        raise ParameterError(f"dataset: found {name!r}; allowed: {', '.join(SIZES)}")
    if kind not in KINDS:
        raise ParameterError(f"dataset: kind: found {kind!r}; allowed: {', '.join(KINDS)}")
    check_number("dataset: scale", scale, 0)
    size = SIZES[name]
    vertices, edges = int(size.vertices * scale), int(size.edges * scale)
    if kind == "rmat":
        return _drawn_rmat(vertices, edges, size.classes, size.width, seed, SHARES, True, size.splits, threads)
    # At ten times the density of its kind a class would be nearly complete: more edges leave it.
    inside = 0.4 if edges > 0.02 * vertices**2 else 0.7
    return _drawn_blocks(vertices, edges, size.classes, size.width, seed=seed, inside=inside, splits=size.splits,
                         threads=threads)  # fmt: skip


@typed
def rmat(
    vertices: int,
    edges: int,
    classes: int = 2,
    width: int = 0,
    *,
    seed: int = 0,
    shares: tuple[float, float, float] = SHARES,
    shuffle: bool = False,
    splits: tuple[float, float] = SPLITS,
    threads: int | None = None,
) -> Graph:
    """A symmetric R-MAT graph (Chakrabarti, Zhan and Faloutsos 2004), of a power law; half of it may be isolated.

    edges: in both directions, after duplicates are gone. shares: of the upper left, upper right and lower left quarter.
    Classes are equal ranges of vertices as made, heavy ones first; shuffle: in random order instead. Raises
    ParameterError.
    """
    return _drawn_rmat(vertices, edges, classes, width, seed, shares, shuffle, splits, threads).graph()


def _drawn_rmat(
    vertices: int, edges: int, classes: int, width: int, seed: int, shares: tuple[float, float, float], shuffle: bool,
    splits: tuple[float, float], threads: int | None,
) -> Drawn:  # fmt: skip
    _check(vertices, edges, classes, width, splits)
    check_count("seed", seed, 0)
    if len(shares) != 3 or min(shares) < 0 or not sum(shares) <= 1:
        raise ParameterError(f"rmat: shares: found {shares}; allowed: three from 0 on, at most 1 together")
    limits = np.round(np.cumsum(shares) * 65536).astype(np.int64)
    levels = max(1, math.ceil(math.log2(max(2, vertices))))
    new = _names(vertices, seed, shuffle)
    workers = Workers(threads)
    pairs = draws.draw_distinct(
        lambda chunk, source, target: draws.draw_rmat(chunk, seed, levels, vertices, limits, new, source, target),
        edges // 2,
        workers,
    )
    blocks = (np.arange(vertices, dtype=np.int64) * classes // max(1, vertices)).astype(np.int32)
    return Drawn(pairs, _called(blocks, new), classes, width, 0.0, seed, splits, workers)


@typed
def block_model(
    vertices: int,
    edges: int,
    classes: int,
    width: int = 0,
    *,
    seed: int = 0,
    inside: float = 0.7,
    exponent: float = 2.1,
    heaviest: float = 60.0,
    densities: Sequence[float] | None = None,
    noise: float = 0.05,
    shuffle: bool = True,
    splits: tuple[float, float] = SPLITS,
    threads: int | None = None,
) -> Graph:
    """A symmetric degree-corrected stochastic block model (Karrer and Newman 2011) whose features tell of the class.

    edges: in both directions, after duplicates are gone. inside: share of edges within a class, beside those there by
    chance. exponent, heaviest: weights of vertices follow a power law from 1 to heaviest. densities: relative degree of
    the classes' vertices. noise: share of vertices whose label is drawn at random. shuffle: in random order, else class
    after class. Raises ParameterError.
    """
    return _drawn_blocks(
        vertices, edges, classes, width, seed=seed, inside=inside, exponent=exponent, heaviest=heaviest,
        densities=densities, noise=noise, shuffle=shuffle, splits=splits, threads=threads,
    ).graph()  # fmt: skip


def _drawn_blocks(
    vertices: int, edges: int, classes: int, width: int, *, seed: int, inside: float, exponent: float = 2.1,
    heaviest: float = 60.0, densities: Sequence[float] | None = None, noise: float = 0.05, shuffle: bool = True,
    splits: tuple[float, float], threads: int | None,
) -> Drawn:  # fmt: skip
    _check(vertices, edges, classes, width, splits)
    check_count("seed", seed, 0)
    if not 0 <= inside <= 1 or not exponent > 1 or not heaviest >= 1 or not 0 <= noise <= 1:
        raise ParameterError(
            f"block_model: inside {inside}, exponent {exponent}, heaviest {heaviest}, noise {noise}; allowed: 0 to 1, "
            "above 1, 1 or more, 0 to 1"
        )
    if densities is not None and (len(densities) != classes or not min(densities) > 0):
        raise ParameterError(f"block_model: densities: found {densities}; allowed: {classes} numbers above 0")
    generator = np.random.default_rng((seed, 1))
    begins = _class_sizes(vertices, classes, generator if densities is None else None)
    blocks = np.repeat(np.arange(classes, dtype=np.int32), np.diff(begins))
    weights = np.minimum((1 - generator.random(vertices)) ** (-1 / (exponent - 1)), heaviest)
    if densities is not None:
        weights *= np.asarray(densities, np.float64)[blocks]
    tables = _alias_tables(weights, begins)
    new = _names(vertices, seed, shuffle)
    workers = Workers(threads)
    pairs = draws.draw_distinct(
        lambda chunk, source, target: draws.draw_blocks(chunk, seed, inside, begins, *tables, new, source, target),
        edges // 2,
        workers,
    )
    return Drawn(pairs, _called(blocks, new), classes, width, noise, seed, splits, workers)


@typed
def ppi_graphs(seed: int = 0, scale: float = 1.0, threads: int | None = None) -> list[Graph]:
    """24 graphs like those of PPI, of one distribution: vertices have several of 121 labels; the last 4 are unseen.

    Communities, their densities, features and labels are the same in all graphs; sizes differ. scale: of the numbers of
    vertices and edges. Vertices stand community after community, as proteins of one function do.
    """
    check_count("seed", seed, 0)
    check_number("scale", scale, 0)
    size = SIZES["ppi"]
    generator = np.random.default_rng((seed, 2))
    share = np.exp(generator.normal(0, 0.4, _PPI_GRAPHS))
    counts = np.maximum(4 * _PPI_COMMUNITIES, scale * size.vertices * share / share.sum()).astype(int)
    densities = np.exp(generator.normal(0, 0.8, _PPI_COMMUNITIES))
    likely = generator.beta(0.4, 1.2, (_PPI_COMMUNITIES, size.classes))
    graphs = []
    for number, count in enumerate(counts):
        edges = int(scale * size.edges * count / counts.sum())
        made = block_model(
            int(count), edges, _PPI_COMMUNITIES, 0, seed=seed * 1000 + number, densities=densities.tolist(), noise=0.0,
            shuffle=False, threads=threads,
        )  # fmt: skip
        community = made.labels
        assert community is not None
        own = np.random.default_rng((seed, 3, number))
        labels = (own.random((count, size.classes)) < likely[community]).astype(np.uint8)
        features = drawn_features(community, _PPI_COMMUNITIES, size.width, seed, number, Workers(threads), IN_MEMORY)
        mask = np.full(count, number < _PPI_GRAPHS - PPI_UNSEEN)
        graphs.append(Graph(made.csr, features, labels, train=mask, test=~mask))
    return graphs


def _check(vertices: int, edges: int, classes: int, width: int, splits: tuple[float, float]) -> None:
    most = vertices * (vertices - 1)
    if not 1 <= classes <= vertices <= LARGEST or not 0 <= edges <= most or width < 0:
        raise ParameterError(
            f"generator: found {vertices} vertices, {edges} edges, {classes} classes, {width} features; allowed: 1 to "
            f"{LARGEST} vertices, 0 to {most} edges, 1 to {vertices} classes, no negative number"
        )
    if min(splits) < 0 or sum(splits) > 1:
        raise ParameterError(f"generator: splits: found {splits}; allowed: shares of training and validation")


def _class_sizes(vertices: int, classes: int, generator: np.random.Generator | None) -> NDArray[np.int64]:
    """Where classes begin, (classes + 1,): of unequal size, or of equal size without a generator; none is empty."""
    shares = np.full(classes, 1 / classes) if generator is None else generator.dirichlet(np.full(classes, 4.0))
    spare = vertices - classes
    inner = np.round(np.cumsum(shares)[:-1] * spare).astype(np.int64) + np.arange(1, classes)
    return np.concatenate([[0], inner, [vertices]]).astype(np.int64)


def _alias_tables(weights: NDArray[np.float64], begins: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """Alias tables of the classes, and of the vertices within each."""
    classes = len(begins) - 1
    sums = np.add.reduceat(weights, begins[:-1])
    tables = []
    for values, ranges in ((sums, [(0, classes)]), (weights, list(itertools.pairwise(begins)))):
        chance, other = np.empty(len(values), np.float64), np.empty(len(values), np.int64)
        for begin, end in ranges:
            draws.fill_alias(values, int(begin), int(end), chance, other)
        tables += [chance, other]
    return tuple(tables)


def _names(vertices: int, seed: int, shuffle: bool) -> NDArray[np.int32]:
    """Numbers of the vertices as made, a random permutation [vertices], int32; empty for the same numbers."""
    if not shuffle:
        return np.empty(0, np.int32)
    return np.random.default_rng((seed, 7)).permutation(vertices).astype(np.int32)


def _called(values: NDArray[Any], new: NDArray[np.int32]) -> NDArray[Any]:
    """Values of the vertices by their new names."""
    if not len(new):
        return values
    out = np.empty_like(values)
    out[new] = values
    return out

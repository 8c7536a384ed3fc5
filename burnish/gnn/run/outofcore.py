"""A graph in blocks of vertices, for training within a budget: features, and edges of a file, are read when needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from burnish.base.arguments import check_count
from burnish.errors import DataError
from burnish.gnn.data.formats import read
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.share import LEAST_ROWS, Blocks, Edges, Share, SomeRows, blocks_of, edges_of
from burnish.gnn.data.store import SUFFIX, GraphFile, load
from burnish.gnn.model.layers import Cost
from burnish.gnn.model.models import FEATURES, VERTICES, Extents, Network, gathered_bytes, structure_names
from burnish.gnn.model.structures import adapted, structures_of
from burnish.gnn.run.feeds import (
    UNKNOWN,
    check_fits,
    check_labels,
    check_weighted,
    labels_of,
    mask_of,
    scales_of,
    some_of,
)  # fmt: skip
from burnish.graph.graph import Graph as Operators
from burnish.loops.sizes import dim

ROWS = 1024  # blocks are a multiple of so many vertices: all of their rows' memory can be given back
BLOCK_BYTES = 16 << 20  # of a block of features
LEAST_BLOCKS, MOST_BLOCKS = 8, 64


@dataclass(frozen=True, eq=False)
class Shared:
    """Share of a graph with what training needs besides: labels by mask, and how a model of it is made."""

    share: Share
    edges: int
    symmetric: bool
    masks: dict[str, np.ndarray]
    multilabel: bool
    network: Network

    @property
    def has_validation(self) -> bool:
        """Whether there are labels to evaluate with."""
        return "validation" in self.masks

    @property
    def cost(self) -> Cost:
        """Cost of an aggregation by its width: the bytes that it gathers."""
        return partial(gathered_bytes, Extents(self.share.vertices, {"plain": self.edges}, self.symmetric))

    def model(self) -> Operators:
        """The network over :data:`VERTICES` vertices, in training form; its numbers of edges are open, too."""
        weighted = any(edges.weighted for edges in self.share.edges.values())
        edges = {name: dim(f"edges_{name}", 0, 1 << 40) for name in self.network.structures}
        extents = Extents(VERTICES, edges, self.symmetric, weighted)
        return self.network.graph(extents, self.cost, part=True)

    def labels(self, mask: str) -> np.ndarray:
        """Labels of this share's vertices under a mask."""
        return self.masks[mask]


def block_rows(vertices: int, features: int, block: int | None = None) -> int:
    """Vertices of a block: as given, or so that its features are some megabytes, and that there are several: in one
    block everything would be there at once. Raises ParameterError.
    """
    if block is not None:
        check_count("block", block, LEAST_ROWS)
        return block
    rows = min(BLOCK_BYTES // max(4 * features, 1), -(-vertices // LEAST_BLOCKS))
    rows = max(rows, -(-vertices // MOST_BLOCKS))
    return max(-(-rows // ROWS) * ROWS, ROWS)


def shared_of(network: Network, graph: Graph | str | Path, block: int | None = None, labelled: bool = True) -> Shared:
    """The whole graph as one share; of a symmetric .bngraph file the edges stay in the file. ``labelled``: with labels.

    Raises DataError, OSError.
    """
    if not isinstance(graph, Graph) and Path(graph).suffix == SUFFIX:
        file = GraphFile.open(graph)
        if file.symmetric:
            return _of_file(network, file, block, labelled)
        graph = load(graph, "file", cached=False)
    elif not isinstance(graph, Graph):
        graph = read(graph)
    check_fits(network, graph)
    if labelled:
        check_labels(network, graph)
    blocks = blocks_of(graph.vertices, block_rows(graph.vertices, graph.width, block))
    structures = structures_of(network.structures, graph.csr)
    symmetric = all(csr.symmetric for csr in structures.values())
    edges: dict[str, Edges] = {}
    for name, csr in structures.items():
        names = structure_names(name)
        edges[names[0]] = edges_of(csr, blocks)
        if not symmetric:
            edges[names[2]] = edges_of(csr.transpose, blocks)
    tensors = scales_of(graph.csr, structures["bare"]) if network.scaled else {}
    features = None
    if isinstance(graph.features, np.ndarray):
        tensors[FEATURES] = graph.features
    else:
        assert graph.features is not None
        features = SomeRows(graph.features, 0, graph.vertices)
    share = Share(0, graph.vertices, graph.vertices, blocks, features, tensors, edges)
    wanted = ("train", "validation") if labelled else ()
    if labelled:
        mask_of(graph, "train")
    masks = {name: labels_of(graph, mask) for name in wanted if (mask := getattr(graph, name)) is not None}
    return Shared(share, graph.edges, symmetric, _some(masks), graph.multilabel, network)


def _of_file(network: Network, file: GraphFile, block: int | None, labelled: bool) -> Shared:
    """A symmetric graph whose features and edges are read from its file."""
    rows = file.rows(cached=False)
    if rows is None or rows.shape[1] != network.features:
        found = "no features" if rows is None else f"{rows.shape[1]} features"
        raise DataError(f"'{file.path}': found {found}; allowed: {network.features}, as the network has")
    check_weighted(network, "weights" in file.sections)
    blocks = blocks_of(file.vertices, block_rows(file.vertices, rows.shape[1], block))
    edges: dict[str, Edges] = {}
    for structure in network.structures:
        offsets = [adapted(structure, file.part(begin, end), begin).offsets for begin, end in blocks]
        read = partial(_read_edges, file, blocks, structure)
        edges[structure_names(structure)[0]] = Edges(
            file.vertices, tuple(offsets), None, partial(read, "sources"),
            read_weights=partial(read, "weights") if "weights" in file.sections else None,
        )  # fmt: skip
    tensors = _scales(file, blocks) if network.scaled else {}
    if labelled and "train" in file.sections:
        some_of("train", file.read("train"))
    masks, multilabel = file_labels(network, file, 0, file.vertices) if labelled else ({}, False)
    share = Share(0, file.vertices, file.vertices, blocks, SomeRows(rows, 0, file.vertices), tensors, edges)
    return Shared(share, file.edges, True, masks, multilabel, network)


def file_labels(network: Network, file: GraphFile, begin: int, end: int) -> tuple[dict[str, np.ndarray], bool]:
    """Labels of some vertices by mask, and whether a vertex may have several. Raises DataError."""
    if "labels" not in file.sections or "train" not in file.sections:
        raise DataError(f"'{file.path}': found no labels with a mask to train; allowed: a graph with both")
    labels = file.read("labels", begin, end)
    multilabel = labels.ndim == 2
    if file.classes > network.classes or (multilabel and file.classes != network.classes):
        raise DataError(f"'{file.path}': found {file.classes} classes; allowed: {network.classes}, as the network has")
    low, high = (0, 1) if multilabel else (UNKNOWN, file.classes - 1)
    if labels.size and not low <= labels.min() <= labels.max() <= high:
        raise DataError(f"'{file.path}': labels: found {labels.min()} to {labels.max()}; allowed: {low} to {high}")
    labels = np.asarray(labels, np.float32 if multilabel else np.int64)
    masks: dict[str, np.ndarray] = {}
    for name in ("train", "validation"):
        if name in file.sections:
            mask = file.read(name, begin, end)
            masks[name] = np.where(mask[:, None] if multilabel else mask, labels, labels.dtype.type(UNKNOWN))
    return masks, multilabel


def _some(masks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without a mask for validation under which nothing is."""
    return {name: found for name, found in masks.items() if name == "train" or (found >= 0).any()}


def _scales(file: GraphFile, blocks: Blocks) -> dict[str, np.ndarray]:
    """``feeds.scales_of`` the edges of a file."""
    found: list[dict[str, np.ndarray]] = []
    for begin, end in blocks:
        part = file.part(begin, end)
        found.append(scales_of(part, adapted("bare", part, begin), begin))
    return {name: np.concatenate([scales[name] for scales in found]) for name in found[0]}


def _read_edges(file: GraphFile, blocks: Blocks, structure: str, what: str, block: int, out: np.ndarray) -> None:
    """``what``: sources or weights of a block."""
    begin, end = blocks[block]
    found: np.ndarray = getattr(adapted(structure, file.part(begin, end), begin), what)
    out[: len(found)] = found
    out[len(found) :] = 0

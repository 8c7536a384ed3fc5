"""Feeds of a compiled graph network: structure, scale, features and labels of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.base.arguments import typed
from burnish.errors import DataError, ModelError
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.graph import Graph
from burnish.gnn.model.layers import STRUCTURES
from burnish.gnn.model.models import FEATURES, LOOP, SCALE, Extents, Network, structure_names, weight_names
from burnish.gnn.model.structures import structures_of
from burnish.runtime.module import Module

LABEL = "label"
Batch = Mapping[str, np.ndarray]  # arrays by name, of :class:`burnish.fitting.data.Source`
UNKNOWN = -1


def check_fits(network: Network, graph: Graph) -> None:
    """Raises DataError for a graph that the network does not take."""
    check_features(graph, network.features)
    check_weighted(network, graph.weights is not None)


def check_features(graph: Graph, width: int) -> None:
    """Raises DataError for a graph without features, or with another number of them than ``width``."""
    if graph.features is None:
        raise DataError("graph: found no features; allowed: a graph with features")
    if graph.width != width:
        raise DataError(f"graph: found {graph.width} features; allowed: {width}, as the network has")


def check_weighted(network: Network, weights: bool) -> None:
    """Raises DataError for a network with a layer that needs weights of edges which are not there, or the reverse."""
    for layer in network.layers:
        if weights and not layer.weighted:
            raise DataError(f"graph: found weights of edges, and layer {layer}; allowed with weights: weighted=True")
        if not weights and layer.needs_weights:
            raise DataError(f"graph: found no weights of edges, and layer {layer}; allowed without: weighted=False")


def check_labels(network: Network, graph: Graph) -> None:
    """Raises DataError for labels that the network's output does not stand for."""
    if graph.labels is None:
        raise DataError("graph: found no labels; allowed: a graph with labels")
    if graph.classes > network.classes:
        raise DataError(f"graph: found {graph.classes} classes; allowed: {network.classes}, as the network has")
    if graph.multilabel and graph.classes != network.classes:
        raise DataError(f"graph: found {graph.classes} labels of a vertex; allowed: {network.classes}")


def extents_of(structures: Mapping[str, CSR]) -> Extents:
    """The extents of structures of one graph."""
    some = next(iter(structures.values()))
    symmetric = all(csr.symmetric for csr in structures.values())
    edges = {name: csr.edges for name, csr in structures.items()}
    return Extents(some.rows, edges, symmetric, some.weights is not None)


def scale_of(degrees: np.ndarray, loops: np.ndarray | float = 1.0) -> np.ndarray:
    """``1 / sqrt(d + l)`` [V, 1], float32, 0 where the sum is; ``degrees``, or sums of weights, without self loops.

    Raises DataError for a sum below 0.
    """
    total = np.asarray(degrees + loops, np.float64)
    if len(total) and total.min() < 0:
        v = int(total.argmin())
        raise DataError(
            f"graph: weights: found a sum of {total[v]:g} over the in-edges of a vertex; allowed: 0 or more"
        )
    with np.errstate(divide="ignore"):
        return np.where(total > 0, 1.0 / np.sqrt(total), 0.0).astype(np.float32)[:, None]


def loop_weights(csr: CSR, begin: int = 0) -> np.ndarray:
    """The weight of the self loop of each vertex from ``begin`` on, float32 [rows]: 1 where there is none."""
    assert csr.weights is not None
    row = np.repeat(np.arange(csr.rows), csr.degrees)
    own = csr.sources == row + begin
    sums = np.bincount(row[own], csr.weights[own], csr.rows)
    return np.where(np.bincount(row[own], minlength=csr.rows) > 0, sums, 1.0).astype(np.float32)


def scales_of(csr: CSR, bare: CSR, begin: int = 0) -> dict[str, np.ndarray]:
    """Scale and, of edges with weights, weights of self loops by the names of inputs, of vertices from ``begin`` on.

    ``csr``: their in-edges; ``bare``: the same without self loops. Raises DataError.
    """
    if csr.weights is None or bare.weights is None:
        return {SCALE: scale_of(bare.degrees)}
    loops = loop_weights(csr, begin)
    before = np.concatenate([np.zeros(1), np.cumsum(bare.weights, dtype=np.float64)])
    return {SCALE: scale_of(np.diff(before[bare.offsets]), loops), LOOP: loops[:, None]}


def structure_arrays(structures: Mapping[str, CSR], csr: CSR, scaled: bool) -> dict[str, np.ndarray]:
    """Structure, weights and, where they are ``scaled``, scale of a graph's edges ``csr`` by the names of inputs."""
    symmetric = extents_of(structures).symmetric
    found: dict[str, np.ndarray] = {}
    for name, own in structures.items():
        back = own.transpose
        arrays = (own.offsets, own.sources, *(() if symmetric else (back.offsets, back.sources)))
        found |= zip(structure_names(name), arrays, strict=False)
        weights = [some.weights for some in (own, *(() if symmetric else (back,))) if some.weights is not None]
        found |= zip(weight_names(name), weights, strict=False)
    return found | (scales_of(csr, structures["bare"]) if scaled else {})


def inputs_of(network: Network, graph: Graph) -> tuple[Extents, dict[str, np.ndarray]]:
    """The extents of a graph and all inputs of the network but labels. Raises DataError."""
    check_fits(network, graph)
    structures = structures_of(network.structures, graph.csr)
    found = structure_arrays(structures, graph.csr, network.scaled)
    return extents_of(structures), {FEATURES: graph.rows(0, graph.vertices), **found}


@typed
def graph_inputs(module: Module, graph: Graph) -> dict[str, np.ndarray]:
    """Inputs by name of a compiled graph network: ``module(**graph_inputs(module, graph))`` are a graph's logits.

    ``module``: as ``done.compile()`` makes it of what ``bn.fit`` has trained, also saved and loaded. A graph of V
    vertices, E edges and F features has ``x`` [V, F], float32; offsets [V + 1], int64, and sources [E], int32, of
    in-edges, as they are or, where a layer wants it, without self loops (``bare``) or with one each (``loops``); their
    weights [E], float32; and ``scale`` [V, 1] of GCN. Raises ModelError for another module, DataError for a graph that
    does not fit.
    """
    specs = {spec.name: spec for spec in module.inputs}
    names = [name for name in STRUCTURES if structure_names(name)[0] in specs]
    if FEATURES not in specs or not names:
        raise ModelError(f"module: found inputs {', '.join(specs)}; allowed: those of a graph network")
    check_features(graph, int(specs[FEATURES].shape[1]))
    weighted = weight_names(names[0])[0] in specs
    if weighted != (graph.weights is not None):
        has = "weights" if graph.weights is not None else "no weights"
        raise DataError(f"graph: found {has} of edges; allowed: as in training, {'some' if weighted else 'none'}")
    made = structure_arrays(structures_of(names, graph.csr), graph.csr, SCALE in specs)
    return {FEATURES: graph.rows(0, graph.vertices)} | {name: a for name, a in made.items() if name in specs}


def labels_of(graph: Graph, mask: np.ndarray | None) -> np.ndarray:
    """Labels under a mask, the others -1: int64 [V], or float32 [V, C] of graphs with several labels a vertex."""
    assert graph.labels is not None
    if graph.multilabel:
        labels = np.asarray(graph.labels, np.float32)
        return labels if mask is None else np.where(mask[:, None], labels, np.float32(UNKNOWN))
    labels = np.asarray(graph.labels, np.int64)
    return labels if mask is None else np.where(mask, labels, UNKNOWN)


def mask_of(graph: Graph, name: str) -> np.ndarray:
    """A mask by name, "train", "validation" or "test", or "all" labelled vertices. Raises ModelError, DataError."""
    if name == "all":
        return np.ones(graph.vertices, np.bool_)
    if name not in ("train", "validation", "test"):
        raise ModelError(f"mask: found {name!r}; allowed: train, validation, test, all")
    return some_of(name, getattr(graph, name))


def some_of(name: str, mask: np.ndarray | None) -> np.ndarray:
    """The mask ``name``. Raises DataError where there is none, or no vertex under it."""
    if mask is None or not mask.any():
        raise DataError(f"graph: found no vertices to {name} with; allowed: a graph with a mask '{name}'")
    return mask


@dataclass(frozen=True, eq=False)
class Whole:
    """One batch, the whole graph, in every epoch: a :class:`burnish.fitting.data.Source`."""

    batch: Mapping[str, np.ndarray]

    @property
    def batches(self) -> int:
        """One."""
        return 1

    def facts(self) -> dict[str, Any]:
        """Shapes."""
        return {"shapes": {name: list(array.shape) for name, array in self.batch.items()}}

    def random(self) -> dict[str, np.ndarray]:
        """None."""
        return {}

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Nothing is to be set."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batch."""
        if not skip:
            yield self.batch

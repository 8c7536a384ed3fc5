"""Graph neural networks: layers, their weights and dropout, as a graph of operators, and their file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from burnish.base.arguments import check_count, check_number, refusal, typed
from burnish.base.files import write_atomic
from burnish.errors import ModelError, ParameterError
from burnish.gnn.data.share import LEAST_ROWS
from burnish.gnn.model.layers import GAT, GCN, GIN, LAYERS, SAGE, STRUCTURES, Adjacency, CommNet, Cost, Layer
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim

FEATURES = "x"  # the input with the vertices' features
FIRST = "first"  # the input with the number of the first row, of a graph whose rows are a part of all
SCALE, LOOP = "scale", "loop"
TENSORS = ("offsets", "sources", "offsets_t", "sources_t")  # of a structure; those of the plain one have no prefix
WEIGHTS = ("weights", "weights_t")  # of the edges of a structure, and of its transpose
LANES = 16  # to a multiple of which kernels fill rows up
VERSION = 1
KINDS = (*LAYERS, "deep_gcn")
VERTICES = dim("vertices", LEAST_ROWS, 1 << 31)  # open, of a graph that blocks of them are made of


@dataclass(frozen=True)
class Extents:
    """Extents of a graph: ``vertices``, ``edges`` by structure, whether every edge goes in both directions, and
    whether edges have weights.
    """

    vertices: int
    edges: Mapping[str, int]
    symmetric: bool = False
    weighted: bool = False


def gathered_bytes(extents: Extents, width: int) -> float:
    """Bytes that an aggregation reads: a row of the source and its number for each edge. Rows fill whole vectors."""
    return max(extents.edges.values(), default=0) * 4.0 * (-(-width // LANES) * LANES + 1)


@dataclass(frozen=True, eq=False)
class Network:
    """A graph neural network: ``layers`` behind each other, for ``features`` of each vertex.

    ``weights`` by name, ``LAYER.NAME`` with layers numbered from 0. In training ``dropout`` is the probability with
    which an element in front of a layer is 0; in front of the first one only with ``input_dropout``.
    """

    features: int
    layers: tuple[Layer, ...]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    dropout: float = 0.0
    input_dropout: bool = False

    def __repr__(self) -> str:
        layers = ", ".join(type(layer).__name__ for layer in self.layers)
        return f"Network({self.features} features -> {self.classes} classes; {layers})"

    def __post_init__(self) -> None:
        """Raises ParameterError, and ModelError for weights that do not fit the layers."""
        check_count("features", self.features, 1)
        if not self.layers:
            raise refusal("layers", self.layers, "one or more")
        check_number("dropout", self.dropout, 0, 1)
        if self.dropout == 1:
            raise refusal("dropout", self.dropout, "less than 1")
        wanted = {name: array.shape for name, array in initial_weights(self.features, self.layers, 0).items()}
        found = {name: np.shape(array) for name, array in self.weights.items()}
        for name in sorted({*wanted, *found}):
            if wanted.get(name) != found.get(name):
                raise ModelError(
                    f"weight '{name}': found {_shape(found.get(name))}; allowed: {_shape(wanted.get(name))}"
                )

    @property
    def classes(self) -> int:
        """Width of the output."""
        width = self.features
        for layer in self.layers:
            width = layer.width(width)
        return width

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return sum(np.size(w) for w in self.weights.values())

    def __str__(self) -> str:
        width, words = self.features, [str(self.features)]
        for layer in self.layers:
            width = layer.width(width)
            words.append(f"{layer.kind} {width}")
        return " -> ".join(words)

    def graph(self, extents: Extents, cost: Cost | None = None, part: bool = False) -> Graph:
        """The network over a graph of such extents, in its form of training: features and structure to the output.

        Inputs: ``x`` [vertices, features], tensors of the structures that layers read, and ``scale`` where one does.
        ``cost``: of an aggregation by its width; by default the bytes that it gathers. ``part``: with a last input,
        ``first``, int64, for rows that are a part of all, from the row of this number on: dropout goes by it.
        """
        cost = partial(gathered_bytes, extents) if cost is None else cost
        b = GraphBuilder()
        x = b.input(FEATURES, (extents.vertices, self.features))
        near = self._adjacency(b, extents)
        first = b.input(FIRST, (), "int64") if part else None
        names = {name: b.constant(np.asarray(value, np.float32), name) for name, value in self.weights.items()}
        for number, layer in enumerate(self.layers):
            if self.dropout and (number or self.input_dropout):
                more = () if first is None else (first,)
                x = b.add("dropout", x, b.constant(0, dtype="int64"), *more, rate=self.dropout)
            own = {name.partition(".")[2]: t for name, t in names.items() if name.partition(".")[0] == str(number)}
            x = layer.build(b, x, own, near, cost, number > 0)
        return b.build(x)

    @property
    def structures(self) -> tuple[str, ...]:
        """Structures that layers read, of ``layers.STRUCTURES`` and in their order."""
        used = {layer.structure for layer in self.layers}
        return tuple(name for name in STRUCTURES if name in used)

    @property
    def scaled(self) -> bool:
        """Whether a layer reads the scale."""
        return any(layer.scaled for layer in self.layers)

    def _adjacency(self, b: GraphBuilder, extents: Extents) -> Adjacency:
        """The structure's inputs. Of a symmetric graph the transpose is the structure itself."""
        found, weights = {}, {}
        for structure in self.structures:
            names = structure_names(structure)[: 2 if extents.symmetric else 4]
            for name, own in zip(names, TENSORS, strict=False):
                if own.startswith(TENSORS[0]):
                    b.input(name, (extents.vertices + 1,), "int64")
                else:
                    b.input(name, (extents.edges[structure],), "int32")
            found[structure] = names * (2 if extents.symmetric else 1)
            if extents.weighted:
                held = weight_names(structure)[: 1 if extents.symmetric else 2]
                for name in held:
                    b.input(name, (extents.edges[structure],))
                weights[structure] = held[0], held[-1]
        scale = b.input(SCALE, (extents.vertices, 1)) if self.scaled else ""
        loop = b.input(LOOP, (extents.vertices, 1)) if self.scaled and extents.weighted else ""
        return Adjacency(found, scale, weights, loop)

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file, complete or not at all: weights, and layers as metadata. Raises OSError."""
        header = json.dumps({
            "version": VERSION, "features": self.features, "dropout": self.dropout,
            "input_dropout": self.input_dropout, "layers": [_described(layer) for layer in self.layers],
        })  # fmt: skip
        arrays = {name: np.ascontiguousarray(value, np.float32) for name, value in self.weights.items()}
        write_atomic(Path(path), [save(arrays, {"burnish.gnn": header})])

    @classmethod
    def load(cls, path: str | Path) -> Network:
        """The network of a file. Raises ModelError for a file that is no such network, and OSError."""
        try:
            with safe_open(str(path), "numpy") as file:
                header = json.loads((file.metadata() or {})["burnish.gnn"])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            if header["version"] != VERSION:
                raise ModelError(f"{path}: found version {header['version']}; allowed: {VERSION}")
            layers = tuple(_layer(described) for described in header["layers"])
            return cls(header["features"], layers, weights, header["dropout"], header["input_dropout"])
        except (SafetensorError, ValueError, KeyError, TypeError, ParameterError) as error:
            raise ModelError(f"{path}: found no graph neural network of Burnish: {error!r}") from error


def structure_names(structure: str) -> tuple[str, ...]:
    """The inputs that hold a structure of ``layers.STRUCTURES``: offsets and sources, and those of its transpose."""
    return tuple(name if structure == STRUCTURES[0] else f"{structure}.{name}" for name in TENSORS)


def weight_names(structure: str) -> tuple[str, ...]:
    """The inputs that hold the weights of a structure's edges, and of those of its transpose."""
    return tuple(name if structure == STRUCTURES[0] else f"{structure}.{name}" for name in WEIGHTS)


@typed
def initial_weights(features: int, layers: Sequence[Layer], seed: int) -> dict[str, np.ndarray]:
    """Random weights of layers behind each other, by name, as :class:`Network` has them; the same for the same seed."""
    check_count("features", features, 1)
    check_count("seed", seed, 0)
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for number, layer in enumerate(layers):
        made |= {f"{number}.{name}": value for name, value in layer.initial(rng, features).items()}
        features = layer.width(features)
    return made


@typed
def network(
    kind: str,
    features: int,
    classes: int,
    *,
    hidden: int = 128,
    depth: int = 2,
    heads: int = 8,
    reduction: str = "mean",
    weighted: bool = False,
    dropout: float = 0.5,
    input_dropout: bool = False,
    seed: int = 0,
    weights: Mapping[str, np.ndarray] | None = None,
) -> Network:
    """A network of layers of one kind, with weights by ``seed`` or given.

    ``kind``: of layers (:data:`KINDS`). ``hidden``: the width of hidden layers. ``depth``: layers. ``heads``: of
    "gat", together as wide as ``hidden``, and one in the last layer, with ELU between them; others have ReLU.
    "deep_gcn": GCN layers with residuals (thesis-jia §4.7.5). ``reduction``: of GraphSAGE, mean, sum or max.
    ``weighted``: attention reads weights of edges, as other layers do where a graph has them. ``dropout``: its
    probability in front of hidden layers. ``input_dropout``: in front of the first layer, too. ``seed``: of weights,
    dropout and samples. Raises ParameterError.
    """
    check_count("depth", depth, 1)
    check_count("hidden", hidden, 1)
    check_count("features", features, 1)
    check_count("classes", classes, 1)
    check_count("heads", heads, 1)
    check_count("seed", seed, 0)
    if kind not in KINDS:
        raise refusal("kind", kind, ", ".join(KINDS))
    if kind == GAT.kind and hidden % heads:
        raise refusal("hidden", hidden, f"a multiple of heads, {heads}")
    layers = tuple(
        _standard(kind, hidden, classes, number == depth - 1, heads, reduction, weighted) for number in range(depth)
    )
    made = initial_weights(features, layers, seed) if weights is None else weights
    return Network(features, layers, made, dropout, input_dropout)


def _standard(kind: str, hidden: int, classes: int, last: bool, heads: int, reduction: str, weighted: bool) -> Layer:
    width, activation = (classes, "none") if last else (hidden, "relu")
    match kind:
        case GCN.kind:
            return GCN(width, activation)
        case "deep_gcn":
            return GCN(width, activation, residual=True)
        case SAGE.kind:
            return SAGE(width, activation, reduction)
        case GIN.kind:
            return GIN(width, activation, hidden)
        case CommNet.kind:
            return CommNet(width, activation)
    if last:
        return GAT(classes, weighted=weighted)
    return GAT(hidden // heads, "elu", heads, weighted=weighted)


def _described(layer: Layer) -> dict[str, Any]:
    return {"kind": layer.kind, **{f.name: getattr(layer, f.name) for f in fields(layer)}}  # type: ignore[arg-type]


def _layer(described: Mapping[str, Any]) -> Layer:
    given = dict(described)
    kind = given.pop("kind")
    if kind not in LAYERS:
        raise refusal("layer", kind, ", ".join(LAYERS))
    return LAYERS[kind](**given)


def _shape(found: tuple[int, ...] | None) -> str:
    return "nothing" if found is None else f"shape {list(found)}"

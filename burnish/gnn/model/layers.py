"""Layers of graph neural networks as graphs of aggregations and products: GCN, GraphSAGE, GIN, CommNet, GAT.

A layer that is linear in its neighbours aggregates before or after its product, whichever its cost says is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from burnish.base.arguments import check_count, check_number, refusal, typed
from burnish.graph.graph import GraphBuilder

Cost = Callable[[int], float]  # of one aggregation over all edges, by the width of its rows
ACTIVATIONS = (
    "none",
    "relu",
    "elu",
    "tanh",
    "leaky_relu",
    "sigmoid",
    "silu",
    "selu",
    "softplus",
    "gelu",
    "log_softmax",
)  # operators of one operand, with the attributes that they have by default
REDUCTIONS = ("mean", "sum", "max")
STRUCTURES = ("plain", "bare", "loops")
"""A graph's edges as they are, without those from a vertex to itself, and with one such edge at each vertex, whose
weight is the mean of those of the others that lead to it."""
Weights = Mapping[str, str]  # the name of a weight in its layer -> the tensor


@dataclass(frozen=True)
class Adjacency:
    """Names of the tensors of a graph's structure, in a graph of operators.

    ``structures``: by :data:`STRUCTURES`, CSR by in-edges and its transpose, as operators of aggregation take them.
    ``scale`` [V, 1]: ``1 / sqrt(d + l)``, d the in-degree without self loops, or the sum of the weights of these edges,
    and ``loop`` [V, 1], l, the weight of each vertex' self loop, where edges have weights; else 1. ``weights``: by
    structure, those of the edges and of the transpose's; empty without.
    """

    structures: Mapping[str, tuple[str, ...]]
    scale: str = ""
    weights: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    loop: str = ""

    def aggregate(self, b: GraphBuilder, x: str, structure: str, reduction: str) -> str:
        """The sum, mean or maximum over neighbours; rows times the weights of edges, if there are: a mean is the sum
        of these over the number of edges, a maximum that of the products.
        """
        edges, weights = self.structures[structure], self.weights.get(structure)
        if weights is None:
            return b.add("aggregate", x, *edges, reduction=reduction)
        kind = "max" if reduction == "max" else "sum"
        total = b.add("aggregate_weighted", x, weights[0], *edges, weights[1], reduction=kind)
        if reduction == "mean":
            return b.add("div", total, b.add("csr_degrees", edges[0], dtype=b.types[x].dtype))
        return total


class Layer(Protocol):
    """One layer: a frozen dataclass whose fields are numbers, strings and flags, by which files describe it."""

    kind: ClassVar[str]

    @property
    def activation(self) -> str:
        """Activation, one of :data:`ACTIVATIONS`."""

    @property
    def residual(self) -> bool:
        """Whether what it reads is added to its result."""

    @property
    def structure(self) -> str:
        """Structure of the edges that it reads, one of :data:`STRUCTURES`."""

    @property
    def scaled(self) -> bool:
        """Whether it reads the scale."""

    @property
    def weighted(self) -> bool:
        """Whether it is defined for edges with weights."""

    @property
    def needs_weights(self) -> bool:
        """Whether it is defined for them only."""

    def width(self, features: int) -> int:
        """Features of a vertex behind the layer."""

    def initial(self, rng: np.random.Generator, features: int) -> dict[str, np.ndarray]:
        """Random weights by name, for ``features`` features in front of the layer."""

    def build(self, b: GraphBuilder, x: str, weights: Weights, near: Adjacency, cost: Cost, trained: bool) -> str:
        """Adds the layer behind ``x`` [V, features]. ``trained``: whether gradients pass it, to weights before it."""


@dataclass(frozen=True)
class PlainLayer:
    """A layer of ``features`` behind it, over edges as they are, with weights or without."""

    features: int
    activation: str = "none"
    kind: ClassVar[str]
    structure: ClassVar[str] = "plain"
    scaled: ClassVar[bool] = False
    weighted: ClassVar[bool] = True
    needs_weights: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        _check(self.kind, self.features, self.activation)

    def width(self, features: int) -> int:
        """The layer's own."""
        return self.features


@typed
@dataclass(frozen=True)
class GCN(PlainLayer):
    """Graph convolution (Kipf and Welling 2017): ``D^-1/2 (A + I) D^-1/2 X W + b``, D the in-degree plus 1.

    Each vertex has one self loop, be it in the graph or not. ``residual``, of all layers, adds X, or X W' where the
    widths differ, behind the activation (thesis-jia §4.7.5). Where edges have weights they are A's elements, a
    self loop that is not in the graph has weight 1, and D holds the sums of A + I's rows.
    """

    residual: bool = False
    bias: bool = True
    kind: ClassVar[str] = "gcn"
    structure: ClassVar[str] = "bare"
    scaled: ClassVar[bool] = True

    def initial(self, rng: np.random.Generator, features: int) -> dict[str, np.ndarray]:
        """``weight``, ``bias``, and ``skip`` where the residual needs it."""
        made = {"weight": glorot(rng, features, self.features)}
        if self.bias:
            made["bias"] = np.zeros(self.features, np.float32)
        return made | _skip(self, rng, features)

    def build(self, b: GraphBuilder, x: str, weights: Weights, near: Adjacency, cost: Cost, trained: bool) -> str:
        """See :meth:`Layer.build`."""

        def spread(z: str) -> str:
            scaled = b.add("mul", z, near.scale)
            own = b.add("mul", scaled, near.loop) if near.loop else scaled
            gathered = b.add("add", near.aggregate(b, scaled, self.structure, "sum"), own)
            return b.add("mul", gathered, near.scale)

        y = _biased(b, _linear(b, x, weights["weight"], spread, cost, trained), weights.get("bias"))
        return _finished(b, self, y, x, weights)


@typed
@dataclass(frozen=True)
class SAGE(PlainLayer):
    """GraphSAGE (Hamilton et al. 2017): ``X W + reduction(neighbours of X) W' + b``.

    Neighbours' rows are multiplied by the weights of edges, if there are.
    """

    reduction: str = "mean"
    bias: bool = True
    residual: bool = False
    kind: ClassVar[str] = "sage"

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        _check(self.kind, self.features, self.activation, self.reduction)

    def initial(self, rng: np.random.Generator, features: int) -> dict[str, np.ndarray]:
        """``own``, ``neighbours`` and ``bias``."""
        made = {"own": glorot(rng, features, self.features), "neighbours": glorot(rng, features, self.features)}
        made |= {"bias": np.zeros(self.features, np.float32)} if self.bias else {}
        return made | _skip(self, rng, features)

    def build(self, b: GraphBuilder, x: str, weights: Weights, near: Adjacency, cost: Cost, trained: bool) -> str:
        """See :meth:`Layer.build`."""

        def spread(z: str) -> str:
            return near.aggregate(b, z, self.structure, self.reduction)

        if self.reduction == "max":  # which no product may pass
            aggregated = b.add("matmul", spread(x), weights["neighbours"])
        else:
            aggregated = _linear(b, x, weights["neighbours"], spread, cost, trained)
        y = _biased(b, b.add("add", aggregated, b.add("matmul", x, weights["own"])), weights.get("bias"))
        return _finished(b, self, y, x, weights)


@typed
@dataclass(frozen=True)
class CommNet(PlainLayer):
    """CommNet (Sukhbaatar et al. 2016): ``X H + mean(neighbours of X) C``, behind which is the activation."""

    residual: bool = False
    kind: ClassVar[str] = "commnet"

    def initial(self, rng: np.random.Generator, features: int) -> dict[str, np.ndarray]:
        """Random weights, [features, the layer's features] each: ``own``, H, of the vertex.

        ``neighbours``: C, of its neighbours. ``skip``: of a residual connection of another width.
        """
        made = {"own": glorot(rng, features, self.features), "neighbours": glorot(rng, features, self.features)}
        return made | _skip(self, rng, features)

    def build(self, b: GraphBuilder, x: str, weights: Weights, near: Adjacency, cost: Cost, trained: bool) -> str:
        """See :meth:`Layer.build`."""

        def spread(z: str) -> str:
            return near.aggregate(b, z, self.structure, "mean")

        aggregated = _linear(b, x, weights["neighbours"], spread, cost, trained)
        return _finished(b, self, b.add("add", aggregated, b.add("matmul", x, weights["own"])), x, weights)


@typed
@dataclass(frozen=True)
class GIN(PlainLayer):
    """Graph isomorphism network (Xu et al. 2019): ``MLP((1 + eps) X + sum of neighbours)``, the MLP of two products.

    ``hidden``: its inner width, by default ``features``; ``eps`` is trained with ``train_eps``.
    """

    hidden: int | None = None
    eps: float = 0.0
    train_eps: bool = False
    residual: bool = False
    kind: ClassVar[str] = "gin"

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        super().__post_init__()
        if self.hidden is not None:
            check_count("gin: hidden", self.hidden, 1)
        check_number("gin: eps", self.eps, -1e6)

    def initial(self, rng: np.random.Generator, features: int) -> dict[str, np.ndarray]:
        """``first`` and ``first_bias``, ``second`` and ``second_bias``; ``eps`` [1, 1] where it is trained."""
        hidden = self.features if self.hidden is None else self.hidden
        made = {
            "first": glorot(rng, features, hidden), "first_bias": np.zeros(hidden, np.float32),
            "second": glorot(rng, hidden, self.features), "second_bias": np.zeros(self.features, np.float32),
        }  # fmt: skip
        made |= {"eps": np.full((1, 1), self.eps, np.float32)} if self.train_eps else {}
        return made | _skip(self, rng, features)

    def build(self, b: GraphBuilder, x: str, weights: Weights, near: Adjacency, cost: Cost, trained: bool) -> str:
        """See :meth:`Layer.build`."""
        one = b.constant(1.0 if self.train_eps else 1.0 + self.eps, dtype=b.types[x].dtype)
        share = b.add("add", one, weights["eps"]) if self.train_eps else one

        def spread(z: str) -> str:
            own = z if not self.train_eps and self.eps == 0.0 else b.add("mul", z, share)
            return b.add("add", near.aggregate(b, z, self.structure, "sum"), own)

        h = b.add("add", _linear(b, x, weights["first"], spread, cost, trained), weights["first_bias"])
        h = b.add("matmul", b.add("relu", h), weights["second"])
        return _finished(b, self, b.add("add", h, weights["second_bias"]), x, weights)


@typed
@dataclass(frozen=True)
class GAT:
    """Graph attention (Velickovic et al. 2018): ``heads`` of ``features`` each, joined, or else their mean.

    A vertex attends to its in-neighbours and, with ``loops``, to itself. ``slope``: of the leaky ReLU of scores.
    ``weighted``: a trained number of each head times the weight of the edge is added to scores, and a vertex' edge to
    itself has the mean weight of the others that lead to it: PyG's ``GATConv(edge_dim=1)`` with ``edge_attr``.
    """

    features: int
    activation: str = "none"
    heads: int = 1
    joined: bool = True
    slope: float = 0.2
    loops: bool = True
    bias: bool = True
    weighted: bool = False
    residual: bool = False
    kind: ClassVar[str] = "gat"
    scaled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raises ParameterError, naming the field, what was found and what is allowed."""
        _check(self.kind, self.features, self.activation)
        check_count("gat: heads", self.heads, 1)
        check_number("gat: slope", self.slope, 0, 1)

    @property
    def needs_weights(self) -> bool:
        """As it says itself."""
        return self.weighted

    @property
    def structure(self) -> str:
        """With self loops, or as it is."""
        return "loops" if self.loops else "plain"

    def width(self, features: int) -> int:
        """Width of all heads, if they are joined, else of one."""
        return self.features * (self.heads if self.joined else 1)

    def initial(self, rng: np.random.Generator, features: int) -> dict[str, np.ndarray]:
        """``weight``, ``left`` and ``right`` [heads, features] of source and target, ``bias``; ``edge`` [heads]."""
        made = {
            "weight": glorot(rng, features, self.heads * self.features),
            "left": glorot(rng, self.heads, self.features), "right": glorot(rng, self.heads, self.features),
        }  # fmt: skip
        if self.weighted:
            made["edge"] = glorot(rng, self.heads, 1)[:, 0]
        made |= {"bias": np.zeros(self.width(features), np.float32)} if self.bias else {}
        return made | _skip(self, rng, features)

    def build(self, b: GraphBuilder, x: str, weights: Weights, near: Adjacency, cost: Cost, trained: bool) -> str:
        """See :meth:`Layer.build`."""
        rows = b.types[x].shape[0]
        z = b.add("reshape", b.add("matmul", x, weights["weight"]), shape=(rows, self.heads, self.features))
        scores = [
            b.add("reduce_sum", b.add("mul", z, weights[side]), axes=(-1,), keepdims=False)
            for side in ("left", "right")
        ]
        edges = near.structures[self.structure]
        if self.weighted:
            own, back = near.weights[self.structure]
            y = b.add("attention_weighted", z, *scores, weights["edge"], own, *edges, back, slope=self.slope)
        else:
            y = b.add("attention", z, *scores, *edges, slope=self.slope)
        if self.joined:
            y = b.add("reshape", y, shape=(rows, self.heads * self.features))
        elif self.heads == 1:
            y = b.add("reshape", y, shape=(rows, self.features))
        else:
            y = b.add("reduce_mean", y, axes=(1,), keepdims=False)
        return _finished(b, self, _biased(b, y, weights.get("bias")), x, weights)


LAYERS: Mapping[str, type[GCN] | type[SAGE] | type[GIN] | type[CommNet] | type[GAT]] = {
    "gcn": GCN, "sage": SAGE, "gin": GIN, "commnet": CommNet, "gat": GAT,
}  # fmt: skip


def glorot(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Uniform random weights [rows, columns], float32, between ±sqrt(6 / (rows + columns)) (Glorot and Bengio 2010)."""
    bound = np.sqrt(6.0 / max(rows + columns, 1))
    return rng.uniform(-bound, bound, (rows, columns)).astype(np.float32)


def _skip(layer: Layer, rng: np.random.Generator, features: int) -> dict[str, np.ndarray]:
    """``skip``, the weight of a residual of another width; else nothing."""
    width = layer.width(features)
    return {"skip": glorot(rng, features, width)} if layer.residual and features != width else {}


def _finished(b: GraphBuilder, layer: Layer, y: str, x: str, weights: Weights) -> str:
    """``y`` behind the layer's activation, and plus what it reads, if it has a residual."""
    y = y if layer.activation == "none" else b.add(layer.activation, y)
    if not layer.residual:
        return y
    return b.add("add", y, b.add("matmul", x, weights["skip"]) if "skip" in weights else x)


def _linear(b: GraphBuilder, x: str, weight: str, spread: Callable[[str], str], cost: Cost, trained: bool) -> str:
    """``spread(x) W``, or ``spread(x W)``, which is the same: each way's aggregations there and back decide.

    Before the product nothing goes back through the aggregation unless weights in front of it are trained.
    """
    before, after = b.types[weight].shape
    if cost(before) * (2 if trained else 1) < cost(after) * 2:
        return b.add("matmul", spread(x), weight)
    return spread(b.add("matmul", x, weight))


def _biased(b: GraphBuilder, x: str, bias: str | None) -> str:
    return x if bias is None else b.add("add", x, bias)


def _check(kind: str, features: int, activation: str, reduction: str = "mean") -> None:
    check_count(f"{kind}: features", features, 1)
    if activation not in ACTIVATIONS:
        raise refusal(f"{kind}: activation", activation, ", ".join(ACTIVATIONS))
    if reduction not in REDUCTIONS:
        raise refusal(f"{kind}: reduction", reduction, ", ".join(REDUCTIONS))

"""Calls of a PyTorch Geometric model: with features, edges and their weights, as its forward takes them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.errors import BurnishError, ModelError
from burnish.gnn.data.graph import Graph

VERTICES, EDGES = 17, 61  # of a random graph to compare a model on
EXTRA = "pyg"


@dataclass(frozen=True)
class ForwardSignature:
    """Signature of a model's forward: called with one ``Data`` if ``whole``, else with x, edges and perhaps weights.

    ``reads``: whether weights are given where edges may have none; ``third``: whether they must be; ``key``: their name
    where no place is theirs.
    """

    whole: bool
    reads: bool
    third: bool
    key: str = ""

    def __call__(self, model: Any, x: Any, edges: Any, weights: Any) -> Any:
        """The model's result. ``weights`` None: of a model that must have some, 1. Raises ModelError where it fails."""
        try:
            if self.whole:
                data = require("torch_geometric.data", EXTRA).Data
                return model(data(x=x, edge_index=edges, edge_weight=weights, edge_attr=weights))
            if weights is None:
                return model(x, edges, x.new_ones(edges.shape[1])) if self.third else model(x, edges)
            return model(x, edges, **{self.key: weights}) if self.key else model(x, edges, weights)
        except BurnishError:
            raise
        except Exception as error:  # whatever another's code does
            raise ModelError(
                f"model: its forward fails on a graph of {len(x)} vertices: {type(error).__name__}: {error}; allowed: "
                "one that takes (x, edge_index), with edge_weight, or (data)"
            ) from error


def arguments_of(model: Any, weighted: bool) -> ForwardSignature:
    """Arguments of a model's call; ``weighted``: with weights of edges also where they are optional.

    Raises ModelError for a forward of other arguments.
    """
    named = inspect.signature(model.forward).parameters
    places = [p for p in named.values() if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in places if p.default is Parameter.empty]
    several = any(p.kind is Parameter.VAR_POSITIONAL for p in named.values())
    if len(needed) > 3 or not (places or several):
        raise ModelError(
            f"model: found forward({', '.join(needed)}); allowed: (x, edge_index), with edge_weight, or (data)"
        )
    whole, third = len(places) == 1 and not several, len(needed) == 3
    key = "edge_attr" if weighted and not third and "edge_attr" in named else ""
    return ForwardSignature(whole, weighted or whole or third, third, key)


def random_graph(features: int, weights: bool) -> Graph:
    """A small graph with directions, equal edges once, a self loop and a vertex without edges."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, VERTICES - 1, (2, EDGES))
    source[0] = target[0]
    rows = rng.standard_normal((VERTICES, features)).astype(np.float32)
    given = rng.uniform(0.5, 1.5, EDGES) if weights else None
    return Graph.of((source, target), rows, weights=given, vertices=VERTICES)


def tensors_of(graph: Graph) -> tuple[Any, Any, Any]:
    """Features, edges [2, E] and weights [E], or None, as tensors of PyTorch."""
    torch = require("torch", EXTRA)
    targets = np.repeat(np.arange(graph.vertices), graph.in_degrees)
    edges = torch.from_numpy(np.stack([graph.sources.astype(np.int64), targets]))
    weights = None if graph.weights is None else torch.from_numpy(np.array(graph.weights))
    return torch.from_numpy(np.array(graph.rows(0, graph.vertices))), edges, weights

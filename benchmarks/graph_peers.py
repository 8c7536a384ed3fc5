"""Peers of the benchmarks of graph networks: training steps by torch.sparse, PyTorch Geometric, and DGL.

DGL is a modified peer: its newest CPU wheel (2.1.0) carries no `libgraphbolt` for a current PyTorch, and is imported
with an empty module in place of `dgl.graphbolt`. Its graphs are given explicit edge ids, without which wide features
and attention crash in it.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.gnn.data.graph import Graph
from burnish.gnn.model.models import Network


def torch_step(net: Network, graph: Graph, threads: int) -> Callable[[], float] | None:
    """The same step by products with a matrix of torch.sparse; None for attention, or without torch."""
    if importlib.util.find_spec("torch") is None or net.layers[0].kind == "gat":
        return None
    torch = require("torch", "torch")
    torch.set_num_threads(threads)
    csr = graph.csr.without_self_loops()
    ones = torch.ones(csr.edges)
    ends = (torch.from_numpy(np.array(array, np.int32)) for array in (csr.offsets, csr.sources))
    matrix = torch.sparse_csr_tensor(*ends, ones, (graph.vertices, graph.vertices))
    degrees = torch.from_numpy(csr.degrees.astype(np.float32))[:, None]

    class Sum(torch.autograd.Function):  # type: ignore[name-defined]
        """A symmetric matrix is its own transpose."""

        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return matrix @ x

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return matrix @ gradient

    spread: Callable[[Any], Any] = Sum.apply
    w = {name: torch.tensor(np.array(value), requires_grad=True) for name, value in net.weights.items()}
    scale, mean = (degrees + 1).rsqrt(), 1 / degrees.clamp(min=1)

    def layer(number: int, h: Any) -> Any:
        own = {name.partition(".")[2]: value for name, value in w.items() if name.startswith(f"{number}.")}
        if net.layers[number].kind == "gcn":
            z = (h @ own["weight"]) * scale
            return (spread(z) + z) * scale + own["bias"]
        if net.layers[number].kind == "sage":
            return h @ own["own"] + spread(h @ own["neighbours"]) * mean + own["bias"]
        if net.layers[number].kind == "commnet":
            return h @ own["own"] + spread(h @ own["neighbours"]) * mean
        z = h @ own["first"]
        return torch.relu(spread(z) + z + own["first_bias"]) @ own["second"] + own["second_bias"]

    return _update(graph, [*w.values()], len(net.layers), torch.relu, layer)


def _update(
    graph: Graph, parameters: Any, count: int, between: Callable[[Any], Any], layer: Callable[[int, Any], Any]
) -> Callable[[], float]:
    """An epoch by PyTorch: ``count`` layers, what lies between them, loss, gradients, Adam. Returns the loss."""
    torch = require("torch", "torch")
    x = torch.from_numpy(np.array(graph.rows(0, graph.vertices)))
    labels, mask = torch.from_numpy(np.array(graph.labels, np.int64)), torch.from_numpy(np.array(graph.train))
    optimizer = torch.optim.Adam(parameters, 0.01)

    def call() -> float:
        optimizer.zero_grad()
        h = x
        for number in range(count):
            h = layer(number, between(h) if number else h)
        loss = torch.nn.functional.cross_entropy(h[mask], labels[mask])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return call


def pyg_step(net: Network, graph: Graph, threads: int, most: float) -> Callable[[], float] | None:
    """The same step by PyTorch Geometric's convolutions; None where it is not installed, or needs too much memory."""
    heads = [getattr(layer, "heads", 1) for layer in net.layers]
    messages = 4.0 * graph.edges * max(layer.width(0) for layer in net.layers)
    if importlib.util.find_spec("torch_geometric") is None or messages > most:
        return None
    torch, pyg = require("torch", "torch"), require("torch_geometric.nn", "pyg")
    torch.set_num_threads(threads)
    widths = [net.features, *(layer.width(0) for layer in net.layers)]
    made = {
        "gcn": lambda n: pyg.GCNConv(widths[n], widths[n + 1]),
        "sage": lambda n: pyg.SAGEConv(widths[n], widths[n + 1]),
        "gin": lambda n: pyg.GINConv(_perceptron(widths, n)),
        "commnet": lambda n: pyg.SAGEConv(widths[n], widths[n + 1], bias=False),  # the same sum of two products
        "gat": lambda n: pyg.GATConv(widths[n], widths[n + 1] // heads[n], heads[n]),
    }
    kind = net.layers[0].kind
    layers = torch.nn.ModuleList([made[kind](n) for n in range(len(net.layers))])
    targets = np.repeat(np.arange(graph.vertices), graph.in_degrees)
    edges = torch.from_numpy(np.stack([graph.sources.astype(np.int64), targets]))
    between = torch.nn.functional.elu if kind == "gat" else torch.relu
    return _update(graph, layers.parameters(), len(layers), between, lambda n, h: layers[n](h, edges))


def _perceptron(widths: Sequence[int], n: int) -> Any:
    """The two products of GIN's layer n."""
    nn = require("torch.nn", "torch")
    return nn.Sequential(nn.Linear(widths[n], widths[1]), nn.ReLU(), nn.Linear(widths[1], widths[n + 1]))


def stubbed_dgl() -> Any:
    """DGL with an empty module in place of `dgl.graphbolt`; None where it is not installed or does not import."""
    if importlib.util.find_spec("dgl") is None or importlib.util.find_spec("torch") is None:
        return None
    sys.modules.setdefault("dgl.graphbolt", types.ModuleType("dgl.graphbolt"))
    try:
        return require("dgl", "peers")
    except (ImportError, OSError):
        return None


def dgl_graph(dgl: Any, offsets: Any, sources: Any) -> Any:
    """DGL's graph of edges by their targets: row offsets of [vertices + 1], sources of [edges]."""
    torch = require("torch", "torch")
    numbers = torch.from_numpy(np.array(offsets, np.int64)), torch.from_numpy(np.array(sources, np.int64))
    return dgl.graph(("csc", (*numbers, torch.arange(len(sources)))))


def dgl_step(net: Network, graph: Graph, threads: int) -> Callable[[], float] | None:
    """The same step by DGL's layers (see the module about the stub); None where it is not installed."""
    dgl = stubbed_dgl()
    if dgl is None:
        return None
    torch, nn = require("torch", "torch"), require("dgl.nn.pytorch", "peers")
    torch.set_num_threads(threads)
    kind = net.layers[0].kind
    widths = [net.features, *(layer.width(0) for layer in net.layers)]
    heads = [getattr(layer, "heads", 1) for layer in net.layers]
    csr = graph.csr.without_self_loops()
    edges = dgl_graph(dgl, csr.offsets, csr.sources)
    if kind in ("gcn", "gat"):
        edges = dgl.add_self_loop(edges)
    made = {
        "gcn": lambda n: nn.GraphConv(widths[n], widths[n + 1], norm="both"),
        "sage": lambda n: nn.SAGEConv(widths[n], widths[n + 1], "mean"),
        "gin": lambda n: nn.GINConv(_perceptron(widths, n), "sum"),
        "commnet": lambda n: nn.SAGEConv(widths[n], widths[n + 1], "mean", bias=False),
        "gat": lambda n: nn.GATConv(widths[n], widths[n + 1] // heads[n], heads[n]),
    }
    layers = torch.nn.ModuleList([made[kind](n) for n in range(len(net.layers))])
    between = torch.nn.functional.elu if kind == "gat" else torch.relu
    return _update(graph, layers.parameters(), len(layers), between, lambda n, h: layers[n](edges, h).flatten(1))

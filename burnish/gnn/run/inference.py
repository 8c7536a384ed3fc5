"""Inference of graph networks, also on graphs that they have never seen: logits of all vertices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from burnish.base.arguments import typed
from burnish.base.sizes import parse_budget
from burnish.driver.api import compile
from burnish.gnn.data.csr import LARGEST
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.store import GraphFile
from burnish.gnn.model.layers import STRUCTURES
from burnish.gnn.model.models import FEATURES, FIRST, Extents, Network, gathered_bytes
from burnish.gnn.model.program import build
from burnish.gnn.run.blocked import BlockedStep
from burnish.gnn.run.feeds import inputs_of
from burnish.gnn.run.outofcore import shared_of
from burnish.gnn.run.whole import loaded, within
from burnish.graph.graph import Graph as Operators
from burnish.loops.sizes import dim
from burnish.runtime.module import Module
from burnish.train.evaluation import without_dropout

MOST_EDGES = 1 << 40  # of a compiled network


def size_of(graph: Graph | str | Path) -> Extents:
    """Vertices and edges of a graph or a .bngraph file, and whether edges have weights: what a module is made for."""
    if isinstance(graph, Graph):
        return Extents(graph.vertices, {STRUCTURES[0]: graph.edges}, weighted=graph.weights is not None)
    file = GraphFile.open(graph)
    return Extents(file.vertices, {STRUCTURES[0]: file.edges}, weighted="weights" in file.sections)


def open_model(network: Network, like: Extents) -> Operators:
    """The network in its form of inference, for graphs of any size; kernels are scheduled for one ``like`` this.

    It reads in-edges only: those of out-edges are for gradients, and stand for them where layers name both.
    """
    edges = max(like.edges.values())
    counts = {name: dim(f"edges_{name}", 0, MOST_EDGES, hint=edges) for name in network.structures}
    vertices = dim("vertices", 1, LARGEST, hint=max(like.vertices, 1))
    open_extents = Extents(vertices, counts, symmetric=True, weighted=like.weighted)
    return without_dropout(network.graph(open_extents, partial(gathered_bytes, like)))


@typed
def logits_of(
    network: Network,
    graph: Graph | str | Path,
    *,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    memory_budget: str | int | None = None,
    block: int | None = None,
) -> np.ndarray:
    """Logits of all vertices, float32 [V, classes]. ``memory_budget``, ``block``: as for ``fit``.

    Raises DataError for a graph that the network does not take, ParameterError for a budget that is too small, OSError.
    """

    def whole(given: Graph) -> tuple[Callable[[], np.ndarray], list[Module]]:
        extents, arrays = inputs_of(network, given)
        model = without_dropout(network.graph(extents))
        module = compile(model, threads=threads, cache_dir=cache_dir, rewrite=False)
        return lambda: np.asarray(module(*(arrays[spec.name] for spec in module.inputs))), [module]

    if memory_budget is None:
        assert isinstance(graph, Graph)
        return whole(graph)[0]()
    budget = parse_budget("memory_budget", memory_budget)

    def blocks() -> Callable[[], np.ndarray]:
        shared = shared_of(network, graph, block, labelled=False)
        program = build(without_dropout(shared.model()), shared.share, FIRST, (), threads, cache_dir)
        step = stack.enter_context(BlockedStep(program, shared.share, FEATURES, FIRST, budget, labels=()))
        return lambda: np.asarray(step())

    graph = loaded(graph, whole=False)
    with ExitStack() as stack:
        call = blocks() if block is not None else within(network, graph, budget, False, whole, blocks)
        return call()

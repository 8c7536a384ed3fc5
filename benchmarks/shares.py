"""Workers' shares of a graph, compiled as in training, and measured one after another on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

import burnish as bn
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.halo import GraphPart, split
from burnish.gnn.data.partition import Cuts
from burnish.graph.graph import GraphBuilder
from burnish.loops.sizes import dim

ROUNDS = 3  # rounds of measurements
GCN = ((602, 64), (64, 48))  # input and output features of the layers
Layers = tuple[tuple[int, int], ...]


@cache
def compiled_product(width: int, features: int) -> Any:
    """Rows (any, width) times weights, on one thread."""
    net = GraphBuilder()
    x = net.input("x", (dim("rows", 1, 1 << 24), width))
    w = net.constant(np.random.default_rng(0).standard_normal((width, features), dtype=np.float32), "w")
    return bn.compile(net.build(net.add("matmul", x, w)), threads=1, rewrite=False)


def compiled_sum(rows: int, columns: int, edges: int, width: int) -> Any:
    """Sums over the in-neighbours of a worker's vertices, on one thread, for its sizes, as in training."""
    net = GraphBuilder()
    x = net.input("x", (columns, width))
    offsets, sources = net.input("offsets", (rows + 1,), "int64"), net.input("sources", (edges,), "int32")
    return bn.compile(net.build(net.add("aggregate", x, offsets, sources)), threads=1, rewrite=False)


Calls = list[list[Callable[[], object]]]  # by range, by layer


class Work:
    """The layers of a graph on its workers' shares, own rows before those of the halo; they multiply or sum first."""

    def __init__(self, csr: CSR, layers: Layers = GCN, aggregate_first: bool = False) -> None:
        self.csr, self.layers, self.first = csr, layers, aggregate_first
        self.rows = {
            width: np.ones((csr.rows, width), np.float32) for width in {*self.widths, *(width for width, _ in layers)}
        }

    @property
    def widths(self) -> tuple[int, ...]:
        """Features that the layers aggregate."""
        return tuple(layer[0 if self.first else 1] for layer in self.layers)

    def calls(self, cuts: Cuts) -> Calls:
        """Compiled calls of each worker."""
        return [[self._layer(part, layer) for layer in range(len(self.layers))] for part in split(self.csr, cuts)]

    def _layer(self, part: GraphPart, layer: int) -> Callable[[], object]:
        (width, features), n, csr = self.layers[layer], part.vertices, part.csr
        product, own = compiled_product(width, features), self.rows[width][:n]
        if not n:
            return lambda: None
        if not csr.edges:
            return lambda: product(own)
        read = self.rows[self.widths[layer]][: csr.columns]
        total = compiled_sum(n, csr.columns, csr.edges, read.shape[1])
        if self.first:
            return lambda: product(total(read, csr.offsets, csr.sources))
        return lambda: (product(own), total(read, csr.offsets, csr.sources))

    def measure(self, cuts: Cuts, rounds: int = ROUNDS) -> np.ndarray:
        """CPU seconds (layers, ranges) of the ranges between cuts."""
        return in_turns({"": self.calls(cuts)}, rounds)[""]


def in_turns(contenders: Mapping[str, Calls], rounds: int) -> dict[str, np.ndarray]:
    """CPU seconds (layers, ranges) of every contender, the least of the rounds: in each all ranges of all, in turn.

    What else runs only adds to them. A first round is not counted: edges are put in order for the kernels there.
    """
    found = {name: np.empty((rounds + 1, len(calls[0]), len(calls))) for name, calls in contenders.items()}
    for turn in range(rounds + 1):
        for name, calls in contenders.items():
            for place, worker in enumerate(calls):
                for layer, call in enumerate(worker):
                    began = time.thread_time()
                    call()
                    found[name][turn, layer, place] = time.thread_time() - began
    return {name: times[1:].min(axis=0) for name, times in found.items()}

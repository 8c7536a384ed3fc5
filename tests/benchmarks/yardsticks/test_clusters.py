"""Partitions of few crossing edges: fewer than those of ranges, within their weights."""

import sys

import numpy as np
import pytest

from benchmarks.yardsticks.clusters import clusters, crossing
from burnish.errors import MissingDependencyError, ParameterError
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.generators import block_model
from burnish.gnn.data.partition import equal_edges


def test_fewer_edges_cross_than_between_ranges() -> None:
    graph = block_model(2000, 40_000, 8, seed=1, inside=0.9, noise=0.0)
    labels = clusters(graph.csr, 4)
    ranges = np.repeat(np.arange(4), np.diff(equal_edges(graph.csr, 4)))
    assert crossing(graph.csr, labels) < 0.7 * crossing(graph.csr, ranges)
    loads = np.bincount(labels, graph.in_degrees + 1)
    assert len(loads) == 4
    assert loads.max() < 1.1 * loads.mean()


def test_crossing_edges_are_counted() -> None:
    csr = CSR.from_edges([0, 1, 2, 3], [1, 0, 1, 3], 4)
    assert crossing(csr, np.array([0, 0, 1, 1])) == 1
    assert crossing(csr, np.array([0, 1, 1, 1])) == 2


def test_graphs_of_few_vertices() -> None:
    assert set(clusters(CSR.from_edges([], [], 3), 5).tolist()) <= {0, 1, 2, 3, 4}
    assert clusters(CSR.from_edges([0], [1], 2), 1).tolist() == [0, 0]


def test_wrong_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    csr = CSR.from_edges([0], [1], 2)
    with pytest.raises(ParameterError, match="found 'spectral'; allowed: greedy, metis"):
        clusters(csr, 2, "spectral")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(MissingDependencyError, match="pymetis is not installed"):
        clusters(csr, 2, "metis")

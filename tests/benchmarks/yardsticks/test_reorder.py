"""Orders of vertices: permutations that put hubs, or communities, together."""

import numpy as np
import pytest

from benchmarks.yardsticks.reorder import communities, grouped
from burnish.errors import ParameterError
from burnish.gnn.data.csr import CSR, inverse
from burnish.gnn.data.generators import block_model


def test_communities_are_found() -> None:
    graph = block_model(1500, 40_000, 5, seed=1, inside=0.9, noise=0.0)
    labels = communities(graph.csr)
    # A vertex's community is mostly of its own class.
    pure = sum(np.bincount(graph.labels[labels == c]).max() for c in np.unique(labels))
    assert pure > 0.9 * graph.vertices
    assert len(np.unique(labels)) < 200
    moved = graph.reordered(grouped(labels)[0])
    apart = [np.abs(np.repeat(np.arange(g.vertices), g.in_degrees) - g.sources).mean() for g in (graph, moved)]
    assert apart[1] < 0.6 * apart[0]


def test_communities_are_no_larger_than_allowed() -> None:
    graph = block_model(1000, 30_000, 2, seed=2)
    assert np.bincount(communities(graph.csr, largest=64)).max() <= 64
    assert (communities(graph.csr, largest=1) == np.arange(1000)).all()


def test_isolated_vertices_stay_alone() -> None:
    csr = CSR.from_edges([0], [2], 4, symmetrize=True)
    labels = communities(csr)
    assert labels[0] == labels[2]
    assert len(set(labels.tolist())) == 3
    assert sorted(grouped(labels)[0].tolist()) == [0, 1, 2, 3]
    assert grouped(communities(CSR.from_edges([], [], 0)))[0].tolist() == []


def test_groups_become_ranges() -> None:
    new, cuts = grouped(np.array([2, 0, 2, 1, 0]), 4)
    assert inverse(new).tolist() == [1, 4, 3, 0, 2]
    assert cuts.tolist() == [0, 2, 3, 5, 5]


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ParameterError, match="largest 0"):
        communities(CSR.from_edges([0], [1], 2), largest=0)

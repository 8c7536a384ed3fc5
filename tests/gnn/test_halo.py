"""Halo exchange between thread ranks: partitions aggregate as the whole graph does; gradients go to their owners."""

import itertools

import numpy as np
import pytest

from burnish.comm.local import launch
from burnish.errors import DataError, InputError
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.generators import block_model
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.halo import GraphPart, exchange, halo_sizes, split
from burnish.gnn.data.partition import equal_edges


def aggregate(csr: CSR, x: np.ndarray) -> np.ndarray:
    """Weighted sums over in-neighbours, (rows, features), by a plain loop."""
    out = np.zeros((csr.rows, x.shape[1]), x.dtype)
    for v in range(csr.rows):
        row = slice(csr.offsets[v], csr.offsets[v + 1])
        weights = 1 if csr.weights is None else csr.weights[row][:, None]
        out[v] = (weights * x[csr.sources[row]]).sum(axis=0)
    return out


def directed(weights: bool) -> Graph:
    rng = np.random.default_rng(3)
    edges = rng.integers(0, 90, (2, 700))
    return Graph.of(edges, vertices=90, weights=rng.random(700) if weights else None)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("weights", [False, True])
def test_partitions_aggregate_as_the_whole_graph(ranks: int, weights: bool) -> None:
    graph = directed(weights)
    x = np.random.default_rng(4).standard_normal((90, 5))
    cuts = equal_edges(graph.csr, ranks)

    def work(comm, rows: CSR, own: np.ndarray) -> tuple[np.ndarray, int]:
        part = GraphPart.of(rows, cuts, comm)
        return aggregate(part.csr, exchange(comm, part, own)), len(part.halo)

    ranges = list(itertools.pairwise(cuts.tolist()))
    found = launch(work, [(graph.csr.slice(begin, end), x[begin:end]) for begin, end in ranges])
    np.testing.assert_allclose(
        np.concatenate([rows for rows, _ in found]), aggregate(graph.csr, x), rtol=1e-12, atol=1e-14
    )
    assert [size for _, size in found] == halo_sizes(graph.csr, cuts).tolist()


def test_partitions_made_apart_and_together_are_the_same() -> None:
    graph = block_model(60, 400, 3)
    cuts = np.array([0, 10, 10, 45, 60])
    together = split(graph.csr, cuts)
    apart = launch(
        lambda comm, rows: GraphPart.of(rows, cuts, comm),
        [(graph.csr.slice(begin, end),) for begin, end in itertools.pairwise(cuts.tolist())],
    )
    for one, other in zip(together, apart, strict=True):
        assert (one.begin, one.end, one.receives) == (other.begin, other.end, other.receives)
        for name in ("offsets", "sources"):
            np.testing.assert_array_equal(getattr(one.csr, name), getattr(other.csr, name))
        np.testing.assert_array_equal(one.halo, other.halo)
        for mine, theirs in zip(one.sends, other.sends, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_each_row_of_a_halo_is_sent_once() -> None:
    graph = block_model(200, 3000, 3)
    cuts = np.array([0, 50, 120, 200])
    for part in split(graph.csr, cuts):
        rows = graph.sources[graph.offsets[part.begin] : graph.offsets[part.end]]
        outside = np.unique(rows[(rows < part.begin) | (rows >= part.end)])
        np.testing.assert_array_equal(part.halo, outside)
        assert sum(part.receives) == len(outside)
        # Renumbered sources mean the same vertices.
        names = np.concatenate([np.arange(part.begin, part.end), part.halo])
        for v in range(part.vertices):
            own = part.csr.sources[part.csr.offsets[v] : part.csr.offsets[v + 1]]
            whole = graph.sources[graph.offsets[part.begin + v] : graph.offsets[part.begin + v + 1]]
            assert sorted(names[own]) == whole.tolist()


def test_rows_are_exchanged_in_place() -> None:
    graph = block_model(40, 200, 2)
    cuts = np.array([0, 20, 40])

    def work(comm, part: GraphPart) -> bool:
        out = np.zeros((part.vertices + len(part.halo), 2), np.float32)
        out[: part.vertices] = np.arange(part.begin, part.end)[:, None]
        found = exchange(comm, part, out[: part.vertices], out)
        names = np.concatenate([np.arange(part.begin, part.end), part.halo])
        return found is out and (out == names[:, None]).all()

    assert launch(work, [(part,) for part in split(graph.csr, cuts)]) == [True, True]


def test_wrong_arguments_are_refused() -> None:
    graph = block_model(40, 200, 2)
    part = split(graph.csr, [0, 40])[0]

    def alone(function) -> None:
        launch(function, [()])

    with pytest.raises(InputError, match=r"rows: found shape \(39, 2\); allowed: 40 rows"):
        alone(lambda comm: exchange(comm, part, np.zeros((39, 2))))
    with pytest.raises(InputError, match="out: found float32"):
        alone(lambda comm: exchange(comm, part, np.zeros((40, 2)), np.zeros((40, 2), np.float32)))
    with pytest.raises(DataError, match="found 2 ranges; allowed: 1"):
        alone(lambda comm: GraphPart.of(graph.csr, [0, 20, 40], comm))
    with pytest.raises(DataError, match="found 30 rows; allowed: 40"):
        alone(lambda comm: GraphPart.of(graph.csr.slice(0, 30), [0, 40], comm))
    with pytest.raises(DataError, match="cuts: found"):
        split(graph.csr, [0, 30])

"""Generated graphs: their sizes, the same for any number of threads, with classes that edges and features tell of."""

from pathlib import Path

import numpy as np
import pytest

from burnish.errors import ParameterError
from burnish.gnn.data import drawn, generators, spool
from burnish.gnn.data.draws import draw_blocks, draw_rmat, fill_alias
from burnish.gnn.data.generators import PPI_UNSEEN, SIZES, block_model, dataset, ppi_graphs, rmat, write_dataset
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.store import load


def same_class(graph: Graph) -> float:
    """Share of edges within a class."""
    target = np.repeat(np.arange(graph.vertices), graph.in_degrees)
    return float((graph.labels[target] == graph.labels[graph.sources]).mean())


@pytest.mark.parametrize("kind", ["block", "rmat"])
def test_pubmed_has_its_size(kind: str) -> None:
    graph, size = dataset("pubmed", kind), SIZES["pubmed"]
    assert (graph.vertices, graph.width, graph.classes) == (size.vertices, size.width, size.classes)
    assert abs(graph.edges - size.edges) <= 0.01 * size.edges
    assert graph.symmetric
    assert graph.csr.without_self_loops() is graph.csr
    assert graph.facts()["isolated"] > 0
    assert (graph.train.astype(int) + graph.validation + graph.test == 1).all()
    assert abs(graph.train.mean() - size.splits[0]) < 0.02


def test_duplicates_are_made_up_for() -> None:
    # A fifth of all pairs: about a quarter of the draws of a block model are lost.
    graph = block_model(500, 50_000, 5, seed=1, heaviest=4)
    assert abs(graph.edges - 50_000) <= 1000
    assert len(set(zip(np.repeat(np.arange(500), graph.in_degrees), graph.sources, strict=True))) == graph.edges


def test_draws_end_where_classes_are_full() -> None:
    graph = block_model(20, 380, 4, inside=1.0)
    assert graph.edges < 380


@pytest.mark.parametrize("make", [block_model, rmat])
def test_threads_change_nothing_and_seeds_all(make) -> None:
    graphs = [make(3000, 40_000, 3, 5, seed=seed, threads=threads) for seed, threads in ((0, 1), (0, 3), (1, 1))]
    for name in ("offsets", "sources", "features", "labels", "train"):
        first, same, other = (getattr(graph, name) for graph in graphs)
        np.testing.assert_array_equal(first, same)
        if make is block_model or name not in ("labels",):
            assert first.shape != other.shape or (first != other).any()


def test_chunks_are_different_streams() -> None:
    shares, none = np.array([37355, 49807, 62259]), np.empty(0, np.int32)
    pairs = []
    for chunk in range(8):
        source, target = np.empty(2000, np.int32), np.empty(2000, np.int32)
        draw_rmat(chunk, 0, 20, 1 << 20, shares, none, source, target)
        pairs.append(source.astype(np.int64) << 32 | target)
    assert len(np.unique(np.concatenate(pairs))) > 0.98 * 16_000


def test_rmat_has_its_shares() -> None:
    source, target = np.empty(200_000, np.int32), np.empty(200_000, np.int32)
    shares = np.round(np.cumsum([0.57, 0.19, 0.19]) * 65536).astype(np.int64)
    draw_rmat(0, 3, 6, 64, shares, np.empty(0, np.int32), source, target)
    high = np.bincount(2 * (source >= 32) + (target >= 32), minlength=4) / len(source)
    # Loops are drawn again: the quarters with loops hold a little less.
    assert np.abs(high - [0.57, 0.19, 0.19, 0.05]).max() < 0.05
    assert high[0] > 0.5 > 0.25 > high[1] > 0.15 and abs(high[1] - high[2]) < 0.01
    assert (source != target).all()


def test_alias_tables_draw_by_weight() -> None:
    weights = np.array([5.0, 1, 2, 4, 1, 3])
    chance, other = np.empty(6), np.empty(6, np.int64)
    fill_alias(weights, 0, 2, chance, other)
    fill_alias(weights, 2, 6, chance, other)
    for begin, end in ((0, 2), (2, 6)):
        mass = np.zeros(6)
        for i in range(begin, end):
            mass[i] += chance[i]
            mass[other[i]] += 1 - chance[i]
        wanted = weights[begin:end] / weights[begin:end].sum()
        np.testing.assert_allclose(mass[begin:end] / (end - begin), wanted)


def test_ends_of_edges_follow_weights_and_classes() -> None:
    begins, weights = np.array([0, 2, 5]), np.array([1.0, 3, 2, 2, 4])
    tables = generators._alias_tables(weights, begins)
    source, target = np.empty(200_000, np.int32), np.empty(200_000, np.int32)
    draw_blocks(0, 1, 0.5, begins, *tables, np.empty(0, np.int32), source, target)
    p = weights / weights.sum()
    block = np.array([0, 0, 1, 1, 1])
    joint = 0.5 * np.outer(p, p)
    for u in range(5):
        own = block == block[u]
        joint[u, own] += 0.5 * p[u] * weights[own] / weights[own].sum()
    np.fill_diagonal(joint, 0)
    found = np.bincount(5 * source + target, minlength=25).reshape(5, 5) / len(source)
    np.testing.assert_allclose(found, joint / joint.sum(), atol=0.005)


def test_classes_show_in_edges_and_features() -> None:
    graph = block_model(2000, 40_000, 4, 32, seed=2, inside=0.8, noise=0.0)
    assert same_class(graph) > 0.75
    means = np.stack([graph.features[graph.labels == c].mean(axis=0) for c in range(4)])
    nearest = ((graph.features[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert 0.5 < (nearest == graph.labels).mean() < 0.95
    noisy = block_model(2000, 40_000, 4, 32, seed=2, inside=0.8, noise=0.4)
    assert same_class(noisy) < 0.5


def test_densities_and_order() -> None:
    graph = block_model(4000, 80_000, 2, seed=3, densities=[1, 20], shuffle=False, noise=0.0)
    assert (np.diff(graph.labels) >= 0).all()
    sparse, dense = (graph.in_degrees[graph.labels == c].mean() for c in range(2))
    assert dense > 10 * sparse
    mixed = block_model(4000, 80_000, 2, seed=3, noise=0.0)
    assert (np.diff(mixed.labels) < 0).any()


def test_features_that_are_too_large_are_made_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = block_model(3000, 10_000, 3, 8, seed=4)
    monkeypatch.setattr(drawn, "IN_MEMORY", 0)
    made = block_model(3000, 10_000, 3, 8, seed=4)
    assert not isinstance(made.features, np.ndarray)
    for begin, end in ((0, 3000), (1000, 1030), (1024, 2048), (2999, 3000), (5, 5)):
        np.testing.assert_array_equal(made.rows(begin, end), whole.features[begin:end])


@pytest.mark.parametrize("kind", ["block", "rmat"])
def test_graphs_are_written_in_pieces_as_they_are_made(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of R-MAT's the heaviest vertex has more edges than a piece."""
    monkeypatch.setattr(spool, "PIECE", 60)
    write_dataset(tmp_path / "g.bngraph", "pubmed", kind, 3, 2, scale=0.05)
    found, wanted = load(tmp_path / "g.bngraph"), dataset("pubmed", kind, 3, 1, scale=0.05)
    assert wanted.vertices == 985 and wanted.in_degrees.max() > (60 if kind == "rmat" else 0)
    for name in ("offsets", "sources", "features", "labels", "train", "validation", "test"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert found.symmetric and found.classes == wanted.classes
    assert [path.name for path in tmp_path.iterdir()] == ["g.bngraph"]


def test_graphs_like_those_of_ppi() -> None:
    graphs = ppi_graphs(seed=1, scale=0.1)
    assert len(graphs) == 24
    assert [bool(graph.test.all()) for graph in graphs] == [False] * (24 - PPI_UNSEEN) + [True] * PPI_UNSEEN
    assert all(graph.multilabel and graph.classes == 121 and graph.width == 700 for graph in graphs)
    assert len({graph.vertices for graph in graphs}) > 10
    total = sum(graph.vertices for graph in graphs)
    assert abs(total - 5694) < 300
    assert 1 < graphs[0].labels.sum(axis=1).mean() < 60


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dataset("cora"), "dataset: found 'cora'; allowed: pubmed, ppi, reddit"),
        (lambda: dataset("pubmed", "ring"), "kind: found 'ring'; allowed: block, rmat"),
        (lambda: dataset("pubmed", scale=-1), "dataset: scale: found -1"),
        (lambda: rmat(0, 0), "found 0 vertices"),
        (lambda: rmat(10, 91), "found 10 vertices, 91 edges.*0 to 90 edges"),
        (lambda: rmat(10, 20, shares=(0.6, 0.3, 0.3)), "shares: found"),
        (lambda: block_model(10, 20, 11), "allowed: .* 1 to 10 classes"),
        (lambda: block_model(10, 20, 2, inside=1.5), "inside 1.5"),
        (lambda: block_model(10, 20, 2, densities=[1]), "densities: found"),
        (lambda: block_model(10, 20, 2, splits=(0.8, 0.3)), "splits: found"),
    ],
)
def test_wrong_sizes_are_refused(call, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        call()

"""Graphs as they come: edges unsorted, twice, to themselves, isolated vertices, shares without edges or vertices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish.gnn.model.program as programs
from burnish.errors import DataError, ParameterError
from burnish.fitting.fit import fit
from burnish.gnn.data.generators import block_model
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.share import blocks_of
from burnish.gnn.data.store import GraphFile, save
from burnish.gnn.model.models import Network, network
from burnish.gnn.run.train import GraphOptions
from burnish.train.optimizers import Adam
from burnish.train.step import Train
from tests.gnn.references import Reference
from tests.gnn.test_blocks import Interpreted
from tests.marks import slow_except

KINDS = ("gcn", "sage", "gin", "gat")
VERTICES, ALONE = 40, 10


def messy() -> Graph:
    """The last ten vertices have no edges; others have some twice, some to themselves, in one direction, unsorted."""
    rng = np.random.default_rng(2)
    source, target = rng.integers(0, VERTICES - ALONE, (2, 150))
    own = np.arange(0, VERTICES - ALONE, 7)
    source, target = np.concatenate([source, source[:40], own, own]), np.concatenate([target, target[:40], own, own])
    mixed = rng.permutation(len(source))
    graph = Graph.of(
        (source[mixed], target[mixed]), features=rng.standard_normal((VERTICES, 6)),
        labels=rng.integers(0, 3, VERTICES), train=np.arange(VERTICES) % 3 > 0,
    )  # fmt: skip
    dense = np.zeros((VERTICES, VERTICES))
    dense[target, source] = 1
    np.testing.assert_array_equal(Reference(made("gcn", graph), graph).a.numpy(), dense)
    return graph


def made(kind: str, graph: Graph) -> Network:
    return network(kind, graph.width, graph.classes, hidden=4, heads=2, dropout=0.0, seed=1)


@pytest.mark.parametrize("kind", slow_except(KINDS, "gcn"))
def test_losses_of_a_messy_graph(kind: str) -> None:
    graph = messy()
    net = made(kind, graph)
    wanted = Reference(net, graph).train(graph, 4, 0.01)
    np.testing.assert_allclose(fit(net, graph, epochs=4, threads=1).report.losses, wanted, rtol=1e-4)


@pytest.mark.parametrize("kind", slow_except(KINDS, "gcn", "gat"))
@pytest.mark.parametrize("block", [None, 4])
def test_losses_of_shares_without_edges(kind: str, block: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of four workers has only vertices without edges."""
    monkeypatch.setattr(programs, "compile", Interpreted)
    graph = messy()
    net = made(kind, graph)
    wanted = Reference(net, graph).train(graph, 2, 0.01)
    found = fit(
        net,
        graph,
        workers=4,
        worker_kind="thread",
        epochs=2,
        graph_options=GraphOptions(block=block, partition="vertices"),
    )
    np.testing.assert_allclose(found.report.losses, wanted, rtol=1e-4)


def test_every_worker_has_a_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a star all edges are one vertex's."""
    monkeypatch.setattr(programs, "compile", Interpreted)
    rng = np.random.default_rng(1)
    star = Graph.of(
        (np.arange(8), np.full(8, 3)), features=rng.standard_normal((9, 6)), labels=np.arange(9) % 3,
        train=np.ones(9, np.bool_),
    )  # fmt: skip
    net = made("gcn", star)
    found = fit(net, star, workers=4, worker_kind="thread", epochs=2)
    assert (np.diff(found.cuts) >= 2).all()
    np.testing.assert_allclose(found.report.losses, Reference(net, star).train(star, 2, 0.01), rtol=1e-4)
    with pytest.raises(ParameterError, match="workers: found 5; allowed: 1 to 4, with 2 vertices each"):
        fit(net, star, workers=5, worker_kind="thread", epochs=1)


@pytest.mark.parametrize(("vertices", "block"), [(9, 4), (9, 2), (9, 8), (2, 5)])
def test_no_block_is_of_one_vertex(vertices: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the vertices leave one over, the last block has one more."""
    monkeypatch.setattr(programs, "compile", Interpreted)
    graph = block_model(vertices, 4 * vertices - 6, 2, 6, noise=0.0).with_(train=np.ones(vertices, np.bool_))
    net = made("gcn", graph)
    assert min(end - begin for begin, end in blocks_of(vertices, block)) >= 2
    found = fit(
        net, graph, Train(optimizer=Adam(0.01), memory_budget="20GB"), epochs=2, graph_options=GraphOptions(block=block)
    )
    np.testing.assert_allclose(found.report.losses, Reference(net, graph).train(graph, 2, 0.01), rtol=1e-4)


def test_a_graph_without_any_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "compile", Interpreted)
    rng = np.random.default_rng(0)
    graph = Graph.of([], features=rng.standard_normal((9, 6)), labels=np.arange(9) % 3, train=np.ones(9, np.bool_))
    for kind in ("gcn", "sage"):
        net = made(kind, graph)
        wanted = Reference(net, graph).train(graph, 2, 0.01)
        np.testing.assert_allclose(
            fit(net, graph, workers=2, worker_kind="thread", epochs=2).report.losses, wanted, rtol=1e-4
        )


def test_nothing_to_learn_from_is_refused(tmp_path: Path) -> None:
    graph = messy().with_(train=np.zeros(VERTICES, np.bool_))
    path = tmp_path / "g.bngraph"
    save(path, graph)
    net = made("gcn", graph)
    for run in (
        lambda: fit(net, graph, epochs=1),
        lambda: fit(net, path, Train(memory_budget="1TB"), epochs=1),
        lambda: fit(net, graph, workers=2, worker_kind="thread", epochs=1),
        lambda: fit(net, path, workers=2, worker_kind="thread", epochs=1),
    ):
        with pytest.raises(DataError, match="found no vertices to train with; allowed: a graph with a mask 'train'"):
            run()
    with pytest.raises(DataError, match="found 3 classes; allowed: 2"):
        fit(network("gcn", 6, 2), messy(), workers=2, worker_kind="thread", epochs=1)


def test_budgets_of_workers_that_are_too_small_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "g.bngraph", messy())
    net = made("gcn", messy())
    with pytest.raises(ParameterError, match=r"memory_budget: found 1000000 bytes \(1 MB\); allowed: \d+ bytes"):
        fit(net, tmp_path / "g.bngraph", Train(memory_budget="1MB"), workers=2, worker_kind="thread", epochs=1)


def test_features_that_are_not_finite_are_named(tmp_path: Path) -> None:
    """Also those of a file that was altered after it had been written."""
    graph = messy()
    with pytest.raises(DataError, match="features: found nan in row 7, column 2"):
        graph.with_(features=np.where(np.arange(VERTICES * 6).reshape(VERTICES, 6) == 44, np.nan, graph.features))
    path = tmp_path / "g.bngraph"
    save(path, graph)
    section = GraphFile.open(path).sections["features"]
    held = bytearray(path.read_bytes())
    held[section.start + 4 * 44 : section.start + 4 * 45] = np.float32(np.nan).tobytes()
    path.write_bytes(held)
    net = made("gcn", graph)
    for run in (
        lambda: fit(net, path, epochs=1),
        lambda: fit(net, path, Train(memory_budget="1TB"), epochs=1),
        lambda: fit(net, path, workers=2, worker_kind="thread", epochs=1),
    ):
        with pytest.raises(DataError, match="features: found nan in row 7, column 2"):
            run()

"""Training of graph networks: losses of PyTorch from the same weights, a task that is learned, samples, resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.errors import CheckpointError, DataError, ParameterError
from burnish.fitting.fit import fit
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.disjoint import union
from burnish.gnn.data.generators import block_model
from burnish.gnn.data.graph import Graph
from burnish.gnn.model.losses import KnownLogistic, micro_f1
from burnish.gnn.model.models import Network, network
from burnish.gnn.run.feeds import inputs_of
from burnish.gnn.run.sampling import Sampled, Sampling
from burnish.gnn.run.train import GraphOptions, score
from tests.gnn.references import Reference, small, torch, weighted
from tests.marks import slow, slow_except

MODELS = slow_except(("gcn", "sage", "gin", "gat"), "gcn", "sage")


def made(kind: str, graph: Graph, **more: float | str) -> Network:
    return network(kind, graph.width, graph.classes, hidden=16, heads=2, seed=3, **{"dropout": 0.0, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", MODELS)
def test_losses_are_those_of_torch(kind: str) -> None:
    graph = small()
    net = made(kind, graph)
    rate = 0.002 if kind == "gin" else 0.01
    trained = fit(net, graph, bn.Train(optimizer=bn.Adam(rate)), epochs=100, threads=1)
    reference = Reference(net, graph)
    wanted = reference.train(graph, 100, rate)
    np.testing.assert_allclose(trained.report.losses, wanted, atol=1e-3 * wanted[0])
    assert wanted[-1] < 0.8 * wanted[0]
    logits = trained.predict(graph)
    np.testing.assert_allclose(logits, reference().detach().numpy(), atol=1e-2 * np.abs(logits).max())


@pytest.mark.parametrize("kind", slow_except(["gcn", "gat", "sage", "sage max"], "gcn"))
def test_losses_with_weights_of_edges_are_those_of_torch(kind: str) -> None:
    graph = weighted(small())
    name, _, reduction = kind.partition(" ")
    net = made(name, graph, weighted=True, reduction=reduction or "mean")
    trained = fit(net, graph, epochs=20, threads=1)
    wanted = Reference(net, graph).train(graph, 20, 0.01)
    np.testing.assert_allclose(trained.report.losses, wanted, atol=1e-4 * wanted[0])
    assert abs(wanted[0] - Reference(net, small()).train(graph, 1, 0.01)[0]) > 1e-4, "weights count"


@pytest.mark.slow
def test_a_task_is_learned_as_torch_learns_it(tmp_path: Path) -> None:
    """Also: an interrupted training goes on to the same losses; the best of its evaluations is kept."""
    graph = block_model(400, 6000, 4, 8, seed=5, noise=0.0)
    net = made("gcn", graph, dropout=0.3)
    whole = fit(net, graph, epochs=40, threads=1)
    test = score(whole.model, graph)
    reference = Reference(net, graph)
    reference.train(graph, 40, 0.01)
    found = reference().detach().numpy().argmax(1) == graph.labels
    wanted = float(found[np.asarray(graph.test)].mean())
    assert test >= wanted - 0.03
    assert test > 0.6
    folder = tmp_path / "states"
    fit(net, graph, epochs=15, threads=1, checkpoint=folder, save_every=5)
    again = fit(net, graph, epochs=40, threads=1, checkpoint=folder, save_every=50, resume=True)
    np.testing.assert_array_equal(again.report.losses, whole.report.losses)
    assert again.report.resumed == 15
    best = min(whole.report.evaluations, key=lambda e: e.loss)
    assert whole.report.best == best
    assert whole.trained.best is not None
    with pytest.raises(CheckpointError, match="data: found"):
        fit(net, graph.subgraph(np.arange(300)), epochs=50, threads=1, checkpoint=folder, resume=True)


def test_sampled_batches_hold_their_vertices() -> None:
    """Each vertex has in-edges of the graph only, as many as the fan-out allows; a seed gives the same batches."""
    graph = weighted(small(200)).without_self_loops()
    net = made("sage", graph)
    heavy = {
        (u, v): w for u, v, w in zip(graph.sources.tolist(), np.repeat(np.arange(200), graph.in_degrees).tolist(),
                                     graph.weights.tolist(), strict=True)
    }  # fmt: skip
    source = Sampled(net, graph, Sampling(32, (4, 3), seed=1), np.asarray(graph.train))
    batches = [*source.epoch(0)]
    again = [*source.epoch(0)]
    other = [*source.epoch(1)]
    assert len(batches) == source.batches == np.count_nonzero(graph.train) // 32
    for one, two in zip(batches, again, strict=True):
        assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.array_equal(batches[0]["x"], other[0]["x"])
    rows = {row.tobytes(): v for v, row in enumerate(np.array(graph.features))}
    for batch in batches:
        offsets, sources, x = batch["offsets"], batch["sources"], batch["x"]
        assert offsets[0] == 0
        assert offsets[-1] == len(sources)
        degrees = np.diff(offsets)[:-1]
        known = np.flatnonzero(batch["label"] >= 0)
        assert np.array_equal(known, np.arange(32))
        numbers = [rows[x[i].tobytes()] for i in range(len(x) - 1) if degrees[i] or i < 32]
        for i, v in enumerate(numbers[:32]):
            own = {rows[x[u].tobytes()] for u in sources[offsets[i] : offsets[i + 1]]}
            neighbours = set(np.array(graph.sources[graph.offsets[v] : graph.offsets[v + 1]]).tolist())
            assert own <= neighbours
            assert len(own) == min(len(neighbours), 4)
            for e in range(offsets[i], offsets[i + 1]):
                assert batch["weights"][e] == np.float32(heavy[rows[x[sources[e]].tobytes()], v])
        back = np.zeros((len(x), len(x)))
        for v in range(len(x)):
            for e in range(offsets[v], offsets[v + 1]):
                back[sources[e], v] += batch["weights"][e]
        for u in range(len(x)):
            for e in range(batch["offsets_t"][u], batch["offsets_t"][u + 1]):
                back[u, batch["sources_t"][e]] -= batch["weights_t"][e]
        np.testing.assert_allclose(back, 0, atol=1e-3)


@pytest.mark.parametrize("kind", slow(["gat", "sage"], "sage"))
def test_samples_of_all_neighbours_are_the_whole(kind: str) -> None:
    """With room for every neighbour of every neighbour, a batch has the losses of the graph with its weights."""
    graph = weighted(small(60)).without_self_loops()
    net = made(kind, graph, weighted=True)
    sampling = Sampling(int(np.count_nonzero(graph.train)), (60, 60))
    sampled = fit(net, graph, epochs=2, threads=1, graph_options=GraphOptions(sampling)).report.losses
    np.testing.assert_allclose(sampled, Reference(net, graph).train(graph, 2, 0.01), rtol=1e-4)


def test_scales_of_samples_are_sums_of_weights() -> None:
    """With all of a vertex' edges in the sample, self loops included, they are those of the graph."""
    graph = weighted(small(60))
    net = made("gcn", graph)
    known = np.flatnonzero(graph.train)
    found = Sampled(net, graph, Sampling(len(known), (60, 60)), np.asarray(graph.train)).sample(known, 0)
    whole = inputs_of(net, graph)[1]
    for name in ("scale", "loop"):
        np.testing.assert_allclose(found[name][: len(known)], whole[name][known], rtol=1e-6)


@pytest.mark.parametrize("kind", slow(["gcn", "gat"], "gat"))
def test_training_on_samples(kind: str) -> None:
    graph = small(200)
    trained = fit(made(kind, graph), graph, epochs=15, threads=1, graph_options=GraphOptions(Sampling(64, (6, 4))))
    losses = trained.report.losses
    assert trained.report.calls == 15 * (np.count_nonzero(graph.train) // 64)
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:2])


def test_several_labels_a_vertex() -> None:
    """Training on the union of two graphs; a third is never seen. Loss and score are those of torch."""
    rng = np.random.default_rng(0)
    graphs = []
    for seed in range(3):
        graph = small(80, seed)
        group = np.asarray(graph.labels)
        labels = (rng.random((4, 5)) < 0.5)[group].astype(np.uint8)
        graphs.append(graph.with_(labels=labels, classes=5))
    graph = union(graphs[:2])
    assert (graph.vertices, graph.edges) == (160, graphs[0].edges + graphs[1].edges)
    net = network("gin", 12, 5, hidden=16, dropout=0.0)
    trained = fit(net, graph, bn.Train(optimizer=bn.Adam(0.003)), epochs=30, threads=1)
    labels, mask = torch.tensor(np.array(graph.labels, np.float32)), torch.tensor(np.array(graph.train))
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(Reference(net, graph)()[mask], labels[mask])
    np.testing.assert_allclose(trained.report.losses[0], wanted.item(), rtol=1e-5)
    assert trained.report.losses[-1] < 0.7 * trained.report.losses[0]
    logits = trained.predict(graphs[2])
    assert logits.shape == (80, 5)
    assert score(trained.model, graphs[2], "all") == micro_f1(logits, np.array(graphs[2].labels, np.float32))
    assert isinstance(KnownLogistic(), KnownLogistic)


def test_micro_f1_by_counting() -> None:
    output = np.array([[1.0, -1.0, 2.0], [-1.0, -1.0, 3.0]])
    label = np.array([[1.0, 1.0, 0.0], [-1.0, -1.0, -1.0]])
    assert micro_f1(output, label) == pytest.approx(2 * 1 / (2 * 1 + 1 + 1))


def test_what_cannot_be_is_refused() -> None:
    graph = small(60)
    net = made("gcn", graph)
    with pytest.raises(DataError, match="found 12 features; allowed: 5"):
        fit(network("gcn", 5, 4), graph)
    with pytest.raises(DataError, match="found 4 classes; allowed: 3"):
        fit(network("gcn", 12, 3), graph)
    with pytest.raises(DataError, match="found no vertices to train with"):
        fit(net, graph.with_(train=np.zeros(60, np.bool_)))
    with pytest.raises(DataError, match="found no labels"):
        fit(net, graph.with_(labels=None))
    with pytest.raises(DataError, match="found no features"):
        fit(net, graph.with_(features=None))
    with pytest.raises(ParameterError, match="sampling, memory_budget: found both"):
        fit(net, graph, bn.Train(memory_budget="1GB"), graph_options=GraphOptions(Sampling()))
    with pytest.raises(ParameterError, match="planner: found 'fifo'; allowed: best, streaming"):
        GraphOptions(planner="fifo")
    with pytest.raises(ParameterError, match=r"fanouts: found \(5,\); allowed: 2 numbers"):
        fit(net, graph, graph_options=GraphOptions(Sampling(8, (5,))))
    with pytest.raises(ParameterError, match="epochs: found 0"):
        fit(net, graph, epochs=0)
    heavy = weighted(graph)
    with pytest.raises(DataError, match=r"found weights of edges, and layer GAT.*allowed with weights: weighted=True"):
        fit(made("gat", graph), heavy)
    with pytest.raises(DataError, match=r"found no weights of edges, and layer GAT.*allowed without: weighted=False"):
        fit(made("gat", graph, weighted=True), graph)
    below = heavy.csr.weights.copy()
    below[heavy.offsets[3] : heavy.offsets[4]] = -5
    csr = CSR(heavy.offsets, heavy.sources, 60, below)
    with pytest.raises(DataError, match=r"found a sum of .* over the in-edges of a vertex; allowed: 0 or more"):
        fit(net, heavy.with_(csr=csr))

"""Inference by workers: the logits of one, by cuts that training has learned, on graphs that it has not seen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.errors import DataError, ParameterError
from burnish.gnn.data.cost import FEATURES
from burnish.gnn.data.partition import LayerSeconds, Partitioner, equal_edges, equal_vertices
from burnish.gnn.run.train import GraphOptions
from tests.marks import slow

TRAINED = bn.gnn.block_model(600, 3000, 4, 12, seed=0)
UNSEEN = replace(bn.gnn.rmat(700, 6000, 4, 12, seed=1), labels=None, train=None, validation=None, test=None)


def learned() -> Partitioner:
    """What ranges cost where a vertex costs as much as 50 of its edges."""
    partitioner = Partitioner((12,))
    graph = partitioner.features(TRAINED.csr)
    for cuts in (equal_vertices(TRAINED.vertices, 4), equal_edges(TRAINED.csr, 4), np.array([0, 50, 200, 500, 600])):
        x = graph.layers[0].between(cuts)
        seconds = 1e-6 * (50 * x[:, FEATURES.index("vertices")] + x[:, FEATURES.index("neighbours")])
        partitioner = partitioner.learned(graph, LayerSeconds(cuts, seconds[None]))
    return partitioner


@pytest.mark.parametrize("kind", slow(["gcn", "gin"], "gin"))
def test_logits_by_workers_are_those_of_one(kind: str) -> None:
    network = bn.gnn.network(kind, 12, 4, hidden=8)
    alone = bn.gnn.logits_of(network, UNSEEN)
    for partitioner in (None, learned()):
        found = bn.gnn.logits_by_workers(network, UNSEEN, 2, partitioner=partitioner, worker_kind="thread", threads=1)
        np.testing.assert_allclose(found, alone, atol=2e-5, rtol=1e-4)


def test_what_was_learned_cuts_a_graph_that_was_not_seen(tmp_path: Path) -> None:
    partitioner = learned()
    partitioner.save(tmp_path / "costs.json")
    again = Partitioner.load(tmp_path / "costs.json")
    graph = again.features(UNSEEN.csr)
    cuts = again.cuts(graph, 4)
    x = graph.layers[0].between(cuts)
    cost = 50 * x[:, FEATURES.index("vertices")] + x[:, FEATURES.index("neighbours")]
    assert cost.max() < 1.1 * cost.mean()
    other = graph.layers[0].between(equal_edges(UNSEEN.csr, 4))
    assert (50 * other[:, 0] + other[:, 1]).max() > 1.1 * cost.max()
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(DataError, match=r"broken\.json': partitioner: found a file that cannot be read"):
        Partitioner.load(tmp_path / "broken.json")


@pytest.mark.slow
def test_training_by_workers_gives_back_what_it_has_learned() -> None:
    network = bn.gnn.network("gcn", 12, 4, hidden=8)
    options = {"epochs": 4, "workers": 2, "worker_kind": "thread", "threads": 1}
    fitted = bn.fit(network, TRAINED, graph_options=GraphOptions(partition="learned"), **options)
    assert fitted.partitioner is not None and fitted.partitioner.ready
    cuts = fitted.partitioner.cuts(fitted.partitioner.features(UNSEEN.csr), 2)
    assert cuts[0] == 0 < cuts[1] < cuts[2] == UNSEEN.vertices
    found = bn.gnn.logits_by_workers(
        fitted.model, UNSEEN, 2, partitioner=fitted.partitioner, worker_kind="thread", threads=1
    )
    np.testing.assert_allclose(found, bn.gnn.logits_of(fitted.model, UNSEEN), atol=2e-5, rtol=1e-4)
    plain = bn.fit(network, TRAINED, graph_options=GraphOptions(partition="edges"), **options)
    assert plain.partitioner is None


def test_wrong_arguments_are_refused() -> None:
    network = bn.gnn.network("gcn", 12, 4, hidden=8)
    with pytest.raises(ParameterError, match="workers"):
        bn.gnn.logits_by_workers(network, UNSEEN, 400, worker_kind="thread")
    with pytest.raises(ParameterError, match="nothing was measured"):
        bn.gnn.logits_by_workers(network, UNSEEN, 2, partitioner=Partitioner((12,)), worker_kind="thread")
    with pytest.raises(DataError, match="features"):
        bn.gnn.logits_by_workers(bn.gnn.network("gcn", 9, 4), UNSEEN, 2, worker_kind="thread")

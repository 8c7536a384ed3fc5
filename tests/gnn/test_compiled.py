"""Modules of graph networks: one for graphs of any size, saved and loaded, with the answers of ``predict``."""

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.driver.tuned import _over_sizes
from burnish.errors import DataError, InputError, ModelError
from burnish.fitting.graphs import TrainedNetwork
from burnish.gnn.run.feeds import inputs_of
from burnish.gnn.run.inference import open_model, size_of
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from burnish.train.evaluation import without_dropout
from tests.gnn.references import small, weighted
from tests.marks import slow


def random_graph(vertices: int, edges: int, weights: bool, seed: int = 0) -> bn.gnn.Graph:
    """A directed graph with self loops and equal edges, of which one stays."""
    rng = np.random.default_rng(seed)
    own = rng.uniform(0.5, 2, edges) if weights else None
    ends, rows = rng.integers(0, vertices, (2, edges)), rng.standard_normal((vertices, 12))
    return bn.gnn.Graph.of((*ends,), rows, weights=own, vertices=vertices)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "commnet", "gat", "deep_gcn"])
@pytest.mark.parametrize("weights", slow([False, True], True))
def test_one_module_takes_graphs_of_any_size(kind: str, weights: bool, tmp_path: Path) -> None:
    like = random_graph(400, 8000, weights)
    net = bn.gnn.network(kind, 12, 4, hidden=16, weighted=weights and kind == "gat")
    with TrainedNetwork(net, size_of(like)).compile({"threads": 2}) as module:
        module.save(tmp_path / "net.bn")
    module = bn.load(tmp_path / "net.bn", threads=2)
    for vertices, edges in ((1, 1), (2, 0), (5, 900), (700, 9000)):
        graph = random_graph(vertices, edges, weights, seed=vertices)
        found = module(**bn.gnn.graph_inputs(module, graph))
        extents, arrays = inputs_of(net, graph)
        (wanted,) = evaluate(without_dropout(net.graph(extents)), arrays).values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_a_trained_network_compiles_from_a_file_and_of_workers(tmp_path: Path) -> None:
    graph = weighted(small())
    net = bn.gnn.network("sage", 12, 4, hidden=8)
    bn.gnn.save(tmp_path / "g.bngraph", graph)
    for more in ({}, {"workers": 2, "worker_kind": "thread"}):
        done = bn.fit(net, tmp_path / "g.bngraph", epochs=2, threads=1, **more)
        module = done.compile(threads=1)
        inputs = bn.gnn.graph_inputs(module, graph)
        np.testing.assert_allclose(module(**inputs), done.predict(graph, threads=1), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match=r"input 'sources': found rows from 0 to 120; allowed: 0 to 119"):
        module(**inputs | {"sources": np.where(np.arange(graph.edges) == 7, 120, graph.sources).astype(np.int32)})
    with pytest.raises(InputError, match=r"input 'offsets': found offsets from 0 to \d+; allowed: 0 to \d+"):
        module(**inputs | {"offsets": graph.offsets + (graph.offsets > 9)})
    with pytest.raises(InputError, match="inputs differ in vertices: 'x' has 119, 'offsets' has 120"):
        module(**inputs | {"x": graph.features[:-1]})
    with pytest.raises(DataError, match="found no weights of edges; allowed: as in training, some"):
        bn.gnn.graph_inputs(module, small())
    with pytest.raises(DataError, match="found 3 features; allowed: 12"):
        bn.gnn.graph_inputs(module, graph.with_(features=np.zeros((120, 3))))
    with pytest.raises(ModelError, match="module: found inputs x; allowed: those of a graph network"):
        b = GraphBuilder()
        bn.gnn.graph_inputs(bn.compile(b.build(b.add("relu", b.input("x", (2, 3))))), graph)


@pytest.mark.slow
def test_open_graph_networks_are_compared_at_several_sizes() -> None:
    net = bn.gnn.network("sage", 12, 4, hidden=8)
    model = open_model(net, size_of(random_graph(50, 300, False)))
    module = bn.compile(model, rewrite=False, threads=1)
    found = _over_sizes(module, module, model, exact=False)
    assert (found.outcome, found.error) == ("ok", "")

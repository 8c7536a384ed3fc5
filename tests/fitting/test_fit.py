"""One fit for all kinds of models: what comes back predicts, compiles and is pictured; a plan trains from the API."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnish as bn
from burnish.errors import DataError, ParameterError, PlanError
from burnish.fitting.fit import fit
from burnish.gnn.data.generators import block_model
from burnish.gnn.model.models import network
from burnish.gnn.run.train import GraphOptions
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from tests.train.networks import perceptron, rows

DATA = rows(40)
X = DATA["x"]


def trained(**more: Any) -> Any:
    return fit(perceptron(), DATA, bn.Train(optimizer=bn.SGD(0.1)), epochs=1, threads=1, **more)


def logits(model: Graph, x: np.ndarray) -> np.ndarray:
    """By the reference interpreter, in the batches that the model was trained in."""
    size = model.types["x"].shape[0]
    padded = np.concatenate([x, np.zeros((-len(x) % size, *x.shape[1:]), x.dtype)])
    parts = [evaluate(model, {"x": padded[i : i + size]})[model.outputs[0]] for i in range(0, len(padded), size)]
    return np.concatenate(parts)[: len(x)]


def test_a_model_trained_in_batches_takes_any_number_of_rows(tmp_path: Path) -> None:
    done = trained(validation_data=DATA)
    size = done.model.types["x"].shape[0]
    module = done.compile(threads=1)
    for count in (1, 7, size, 2 * size + 3):
        np.testing.assert_allclose(np.asarray(module(X[:count])), logits(done.model, X[:count]), atol=1e-5)
    wanted = logits(done.model, X)
    for given in (X, X.astype(np.float64), torch.tensor(X), {"x": X}, (X,)):
        np.testing.assert_allclose(done.predict(given, threads=1), wanted, atol=1e-5)
    np.testing.assert_allclose(done.predict(X, batch=9, threads=1), wanted, atol=1e-5)
    with pytest.raises(DataError, match=r"'x': found shape \[40, 3\]"):
        done.predict(X[:, :3])
    with pytest.raises(DataError, match="found no rows"):
        done.predict(X[:0])
    assert done.curves()["loss"][1].tolist() == done.report.losses.tolist() and len(done.curves()["validation"][0]) == 1
    assert done.picture(tmp_path / "report.html") == (tmp_path / "report.html").read_text()
    with pytest.raises(ParameterError, match="copy_to: found 'Linear'; allowed: for a network of PyTorch"):
        done.copy_to(torch.nn.Linear(2, 2))


def test_a_model_that_mixes_rows_keeps_its_batch() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 12))
    centred = b.add("sub", x, b.add("reduce_mean", x, axes=(0,), keepdims=True))
    graph = b.build(b.add("matmul", centred, b.constant(np.ones((12, 6), np.float32), "w")))
    done = fit(graph, DATA, bn.Train(optimizer=bn.SGD(0.0)), steps=1, threads=1)
    np.testing.assert_allclose(done.predict(X[:8], threads=1), logits(graph, X[:8]), atol=1e-5)
    with pytest.raises(
        DataError, match=r"found 7 rows for a model without a form for any .*; allowed: a multiple of 4"
    ):
        done.predict(X[:7], threads=1)


def test_a_plan_trains_and_is_refused_by_name(tmp_path: Path) -> None:
    plan = bn.plan(perceptron(), train=bn.Train(optimizer=bn.SGD(0.1)), devices="host:2", seconds=0.2)
    plan.save(tmp_path / "plan.txt")
    alone = trained()
    for given in ({"plan": plan}, {"plan": tmp_path / "plan.txt", "workers": 2}, {"plan": str(tmp_path / "plan.txt")}):
        found = trained(worker_kind="thread", **given)
        np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-5)
        assert len(found.memory) == 2 and found.step is None
        np.testing.assert_allclose(found.predict(X[:7], threads=1), alone.predict(X[:7], threads=1), atol=1e-5)
    for wrong, message in (
        ({"plan": plan, "workers": 3}, "workers: found 3; allowed: 2, as many as the plan has devices"),
        ({"plan": "auto"}, "workers: found 1; allowed: with a plan, as many as it has devices"),
        ({"plan": 3, "workers": 2}, "plan: found 3; allowed: what burnish.plan returns"),
        ({"workers": 2, "rewrite": True}, "rewrite: found True; allowed here: target, exact, cache_dir"),
        (
            {"workers": 2, "progress": print},
            "progress: found .*; allowed: a function on one device, or with worker_kind",
        ),
        ({"graph_options": GraphOptions()}, "graph_options: found .*; allowed: None for models of rows"),
        ({"workers": 0}, "workers: found 0"),
    ):
        with pytest.raises(ParameterError, match=message):
            trained(**wrong)
    (tmp_path / "other.txt").write_text("no plan")
    for workers in ({}, {"workers": 2}):
        with pytest.raises(PlanError, match=r"other\.txt: line 1: found 'no plan'; allowed: strategy of"):
            trained(plan=tmp_path / "other.txt", **workers)


def test_batch_normalization_trains_on_several_devices() -> None:
    b, ones = GraphBuilder(), np.ones(3, np.float32)
    x = b.add("reshape", b.input("x", (8, 12)), shape=(8, 3, 4))
    given = [b.constant(value, name) for name, value in zip("sbmv", (ones, 0 * ones, 0 * ones, ones), strict=True)]
    y = b.add("reshape", b.add("batch_norm", x, *given, name="n"), shape=(8, 12))
    weights = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    graph = b.build(b.add("matmul", y, b.constant(weights, "w")))
    alone, found = (
        fit(graph, DATA, bn.Train(optimizer=bn.SGD(0.1)), epochs=1, threads=1, workers=workers, worker_kind="thread")
        for workers in (1, 2)
    )
    np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-5)
    np.testing.assert_allclose(found.weights["m"], alone.weights["m"], atol=1e-6)


def test_a_graph_network_is_fitted_by_the_same_function(tmp_path: Path) -> None:
    graph = block_model(60, 300, 3, 6)
    net = network("gcn", graph.width, graph.classes, hidden=8)
    done = fit(net, graph, epochs=2, threads=1, checkpoint=tmp_path / "kept")
    assert done.predict(graph).shape == (60, 3) and done.weights.keys() == net.weights.keys()
    again = done.restore(tmp_path / "kept" / "best.safetensors")
    np.testing.assert_array_equal(again.weights["0.weight"], done.weights["0.weight"])
    assert "gcn" in done.picture()
    for refused, message in (
        (lambda: done.copy_to(None), "copy_to: found"),
        (lambda: done.predict(graph, batch=8), "batch: found 8; allowed: None for graph networks"),
        (lambda: fit(net, graph, plan="auto"), "plan: found 'auto'; allowed: None for graph networks"),
        (lambda: fit(net, graph, validation_data=graph), "validation_data: found"),
        (lambda: fit(net, graph, exact=True), "exact: found True; allowed here: cache_dir"),
    ):
        with pytest.raises(ParameterError, match=message):
            refused()

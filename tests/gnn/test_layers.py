"""Layers of graph networks: gradients of every weight against differences, and both orders of product and sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from burnish.errors import ModelError, ParameterError
from burnish.gnn.data.graph import Graph
from burnish.gnn.model.layers import GAT, GCN, GIN, SAGE, CommNet, Layer
from burnish.gnn.model.models import KINDS, Network, initial_weights, network
from burnish.gnn.run.feeds import inputs_of
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import gradients
from tests.gnn.references import weighted
from tests.marks import slow

LAYERS: list[Layer] = [
    GCN(3), GCN(3, "tanh", residual=True), GCN(4, "tanh", residual=True), SAGE(3, "tanh"), SAGE(3, reduction="sum"),
    SAGE(3, reduction="max"), CommNet(3, "tanh"), GIN(3, eps=0.5), GIN(3, hidden=2, train_eps=True),
    GAT(2, "elu", heads=2), GAT(2, heads=2, joined=False), GAT(3, heads=1, joined=False, loops=False),
    SAGE(3, "gelu", residual=True), CommNet(4, "softplus", residual=True), GIN(3, "log_softmax", residual=True),
    GAT(2, "silu", heads=2, residual=True), GCN(3, "sigmoid"), GCN(3, "leaky_relu"), GCN(3, "selu"),
]  # fmt: skip
ATTENTION: list[Layer] = [GAT(2, "elu", heads=2, weighted=True), GAT(3, joined=False, loops=False, weighted=True)]


def directed(seed: int = 0) -> Graph:
    """Six vertices, one of them isolated, with edges in one direction, two self loops and random features."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, 5, 12), rng.integers(0, 5, 12)
    source[:2] = target[:2]
    features = rng.normal(size=(6, 4)).astype(np.float32)
    return Graph.of((source, target), features, vertices=6)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("before", slow([False, True], True), ids=["product first", "sum first"])
def test_gradients_are_differences(layer: Layer, before: bool) -> None:
    check_gradients(layer, before, directed())


@pytest.mark.parametrize("layer", [*(layer for layer in LAYERS if layer.weighted), *ATTENTION], ids=str)
@pytest.mark.parametrize("symmetric", slow([False, True], True))
def test_gradients_with_weights_of_edges_are_differences(layer: Layer, symmetric: bool) -> None:
    graph = weighted(directed(), symmetric)
    assert graph.symmetric == symmetric
    check_gradients(layer, True, graph)


def check_gradients(layer: Layer, before: bool, graph: Graph) -> None:
    """Those of all weights and of the features, against differences in float64."""
    rng = np.random.default_rng(1)
    weights = {
        name: (value + rng.normal(size=value.shape, scale=0.3)).astype(np.float32)
        for name, value in initial_weights(4, [layer], 0).items()
    }
    net = Network(4, (layer,), weights)
    extents, arrays = inputs_of(net, graph)
    model = net.graph(extents, cost=lambda width: -width if before else width)
    seed = rng.normal(size=(6, net.classes)).astype(np.float32)
    wanted = ["x", *weights]
    backward = gradients(model, model.outputs[0], wanted)
    feeds = {**arrays, f"{model.outputs[0]}.seed": seed}
    found = evaluate(backward, feeds, "float64")

    def value(name: str, change: np.ndarray) -> float:
        moved = {n: np.asarray(v, np.float64) + (change if n == name else 0.0) for n, v in weights.items()}
        x = np.asarray(arrays["x"], np.float64) + (change if name == "x" else 0.0)
        constants = {"x": x} | {n: moved.get(n, v) for n, v in model.constants.items()}
        held = replace(model, constants=constants, inputs=tuple(n for n in model.inputs if n != "x"))
        (output,) = evaluate(held, arrays, "float64").values()
        return float(np.sum(output * seed))

    for name, result in zip(wanted, [f"{n}.grad" for n in wanted], strict=True):
        shape = arrays["x"].shape if name == "x" else weights[name].shape
        numeric = np.zeros(shape)
        for place in np.ndindex(shape):
            step = np.zeros(shape)
            step[place] = 1e-5
            numeric[place] = (value(name, step) - value(name, -step)) / 2e-5
        np.testing.assert_allclose(found[result], numeric, atol=2e-7, rtol=2e-5, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_its_file(kind: str, tmp_path: pytest.TempPathFactory) -> None:
    made = network(kind, 5, 3, hidden=8, heads=2, seed=4)
    path = f"{tmp_path}/n.safetensors"
    made.save(path)
    again = Network.load(path)
    assert (again.layers, again.dropout, str(again)) == (made.layers, made.dropout, str(made))
    assert all(np.array_equal(again.weights[name], made.weights[name]) for name in made.weights)


def test_seeds_make_weights() -> None:
    one, two, other = (network("gcn", 5, 3, seed=seed).weights["0.weight"] for seed in (1, 1, 2))
    assert np.array_equal(one, two) and not np.array_equal(one, other)
    bound = np.sqrt(6 / (5 + 128))
    assert np.abs(one).max() <= bound and np.abs(one).max() > 0.9 * bound


def test_refusals(tmp_path: pytest.TempPathFactory) -> None:
    with pytest.raises(ParameterError, match="kind: found 'gnn'; allowed: gcn, sage"):
        network("gnn", 5, 3)
    with pytest.raises(ParameterError, match=r"activation: found 'mish'; allowed: none, relu"):
        GCN(3, "mish")
    with pytest.raises(ParameterError, match="reduction: found 'median'"):
        SAGE(3, reduction="median")
    with pytest.raises(ParameterError, match="hidden: found 10; allowed: a multiple of heads, 4"):
        network("gat", 5, 3, hidden=10, heads=4)
    wrong = {"0.weight": np.zeros((4, 3), np.float32), "0.bias": np.zeros(3, np.float32)}
    with pytest.raises(ModelError, match=r"weight '0.weight': found shape \[4, 3\]; allowed: shape \[5, 3\]"):
        Network(5, (GCN(3),), wrong)
    path = f"{tmp_path}/n.safetensors"
    network("gcn", 5, 3).save(path)
    with open(path, "rb+") as file:
        file.truncate(100)
    with pytest.raises(ModelError, match="found no graph neural network of Burnish"):
        Network.load(path)

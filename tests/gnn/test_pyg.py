"""Networks of PyTorch Geometric, where it is installed: the same answers, and the same losses in training."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ModelError, UnsupportedOperator
from burnish.fitting.fit import fit
from burnish.gnn.data.graph import Graph
from burnish.gnn.run.feeds import inputs_of
from burnish.gnn.run.pyg import from_pyg
from burnish.graph.evaluate import evaluate
from burnish.train.evaluation import without_dropout
from tests.gnn.references import small, torch, weighted

pyg = pytest.importorskip("torch_geometric.nn")
F = torch.nn.functional


class Stack(torch.nn.Module):
    """Convolutions with ReLU between them."""

    def __init__(self, *convolutions: torch.nn.Module) -> None:
        super().__init__()
        self.convolutions = torch.nn.ModuleList(convolutions)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for number, convolution in enumerate(self.convolutions):
            x = convolution(x if number == 0 else torch.relu(x), edges, *weights)
        return x


def mlp(rows: int, columns: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(rows, 8), torch.nn.ReLU(), torch.nn.Linear(8, columns))


def stack(kind: str) -> Stack:
    torch.manual_seed(1)
    made = {
        "gcn": lambda: (pyg.GCNConv(12, 8), pyg.GCNConv(8, 4)),
        "sage": lambda: (pyg.SAGEConv(12, 8), pyg.SAGEConv(8, 4, aggr="max")),
        "gin": lambda: (pyg.GINConv(mlp(12, 8), eps=0.3), pyg.GINConv(mlp(8, 4), train_eps=True)),
        "gat": lambda: (pyg.GATConv(12, 4, heads=2), pyg.GATConv(8, 4, heads=3, concat=False)),
        "gat with edges": lambda: (
            pyg.GATConv(12, 4, heads=2, edge_dim=1),
            pyg.GATConv(8, 4, heads=3, concat=False, edge_dim=1),
        ),
    }
    return Stack(*made[kind]())


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_answers_are_those_of_pyg(kind: str) -> None:
    """The conversion compares them itself."""
    network = from_pyg(stack(kind), check=small(60))
    assert [layer.kind for layer in network.layers] == [kind, kind]
    assert [layer.activation for layer in network.layers] == ["relu", "none"]


@pytest.mark.parametrize("kind", ["gcn", "gat with edges"])
def test_answers_with_weights_of_edges_are_those_of_pyg(kind: str) -> None:
    """Also of self loops: in GATConv they have the mean weight of a vertex' other edges."""
    network = from_pyg(stack(kind), check=weighted(small(60)))
    assert all(layer.weighted for layer in network.layers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_losses_are_those_of_pyg(kind: str) -> None:
    graph, model = small(100), stack(kind)
    network = from_pyg(model)
    losses = fit(network, graph, bn.Train(optimizer=bn.Adam(0.005)), epochs=100, threads=1).report.losses
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    targets = np.repeat(np.arange(graph.vertices), graph.in_degrees)
    edges = torch.tensor(np.stack([np.array(graph.sources, np.int64), targets]))
    x, labels = torch.tensor(np.array(graph.features)), torch.tensor(np.array(graph.labels, np.int64))
    mask = torch.tensor(np.array(graph.train))
    wanted = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, edges)[mask], labels[mask])
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    np.testing.assert_allclose(losses, wanted, atol=1e-3 * wanted[0])


def test_models_of_pyg_tell_their_activation_and_dropout() -> None:
    network = from_pyg(pyg.GraphSAGE(12, 8, 3, out_channels=4, dropout=0.25, act="elu"), check=small(60))
    assert [layer.activation for layer in network.layers] == ["elu", "elu", "none"]
    assert network.dropout == 0.25


def test_what_is_no_such_model_is_refused() -> None:
    with pytest.raises(ModelError, match="found no convolution of PyG; allowed: GCNConv"):
        from_pyg(mlp(12, 4))
    with pytest.raises(UnsupportedOperator, match="improved: found True; allowed: False"):
        from_pyg(Stack(pyg.GCNConv(12, 4, improved=True)))
    with pytest.raises(UnsupportedOperator, match=r"found parameters \['1.weight', '1.bias'\] outside of convolutions"):
        from_pyg(torch.nn.Sequential(pyg.GCNConv(12, 4), torch.nn.Linear(4, 4)))

    with pytest.raises(UnsupportedOperator, match=r"aggr: found mean; allowed: \('add', 'sum'\)"):
        from_pyg(Stack(pyg.GCNConv(12, 4, aggr="mean")))
    with pytest.raises(UnsupportedOperator, match="flow: found target_to_source"):
        from_pyg(Stack(pyg.GCNConv(12, 4, flow="target_to_source")))
    with pytest.raises(ModelError, match=r"found forward\(x, y, z, t\); allowed: \(x, edge_index\)"):
        from_pyg(Net(lambda self, x, y, z, t: x))
    with pytest.raises(ModelError, match="its forward fails on a graph of 17 vertices: ZeroDivisionError"):
        from_pyg(Net(lambda self, x, e: 1 // 0))


class Net(torch.nn.Module):
    """Convolutions ``a``, 12 -> 8, ``b``, 8 -> 8, and ``c``, 8 -> 4, with any forward."""

    def __init__(self, forward: Callable[..., object], make: Callable[..., torch.nn.Module] | None = None) -> None:
        super().__init__()
        torch.manual_seed(2)
        make = pyg.GCNConv if make is None else make
        self.a, self.b, self.c = make(12, 8), make(8, 8), make(8, 4)
        self.forward = forward.__get__(self)  # type: ignore[method-assign]


def changed(x: torch.Tensor) -> torch.Tensor:
    x += x.new_ones(())
    return x


def trained_branch(self: Net, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    h = F.leaky_relu(self.a(x, e))
    if self.training:
        h = F.dropout(h, 0.2)
    return self.c(h, e)


FORWARDS: dict[str, tuple[Callable[..., object], list[str], list[bool], float]] = {
    "nothing between": (lambda self, x, e: self.c(self.a(x, e), e), ["none", "none"], [False, False], 0.0),
    "in the order of calls": (
        lambda self, x, e: self.c(F.elu(self.b(self.a(x, e).tanh(), e)), e),
        ["tanh", "elu", "none"], [False, False, False], 0.0,
    ),
    "residual": (
        lambda self, x, e: self.c((h := F.relu(self.a(x, e))) + F.relu(self.b(h, e), inplace=True), e),
        ["relu", "relu", "none"], [False, True, False], 0.0,
    ),
    "dropout in front of relu": (
        lambda self, x, e: self.c(F.relu(F.dropout(self.a(x, e), 0.3, self.training)), e),
        ["relu", "none"], [False, False], 0.3,
    ),
    "branch of training": (
        trained_branch,
        ["leaky_relu", "none"], [False, False], 0.2,
    ),
    "logarithms": (
        lambda self, x, e: F.log_softmax(self.c(F.gelu(self.a(x, e)), e), dim=1),
        ["gelu", "log_softmax"], [False, False], 0.0,
    ),
    "data": (lambda self, d: self.c(self.a(d.x, d.edge_index), d.edge_index), ["none"] * 2, [False] * 2, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("make", ["GCNConv", "SAGEConv", "GATConv"])
def test_forward_is_followed(name: str, make: str) -> None:
    forward, activations, residuals, dropout = FORWARDS[name]
    model = Net(forward, getattr(pyg, make)).eval()
    network = from_pyg(model)
    assert [layer.activation for layer in network.layers] == activations
    assert [layer.residual for layer in network.layers] == residuals
    assert network.dropout == dropout and not network.input_dropout
    graph = small(40)
    targets = np.repeat(np.arange(graph.vertices), graph.in_degrees)
    edges = torch.tensor(np.stack([np.array(graph.sources, np.int64), targets]))
    x = torch.tensor(np.array(graph.features))
    data = SimpleNamespace(x=x, edge_index=edges)
    wanted = (model(data) if name == "data" else model(x, edges)).detach().numpy()
    extents, arrays = inputs_of(network, graph)
    (found,) = evaluate(without_dropout(network.graph(extents)), arrays).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "forward, message",
    [
        (lambda self, x, e: 2 * self.c(self.a(x, e), e), "has mul of 'c'; allowed: convolutions one after another"),
        (lambda self, x, e: self.c(F.elu(self.a(x, e), 0.5), e), "has elu with alpha = 0.5 of 'a'"),
        (lambda self, x, e: self.c(F.relu(self.b(h := self.a(x, e), e) + h), e), "has sum of 'b', 'a'"),
        (lambda self, x, e: self.c(self.a(x, e) + self.a(x, e), e), "has sum of 'a', 'a'"),
        (lambda self, x, e: self.c(self.b(self.b(self.a(x, e), e), e), e), "'b': its weights are used 2 times"),
        (lambda self, x, e: torch.cat([self.c(h := self.a(x, e), e), h], 1), "has cat of 'c', 'a'"),
        (lambda self, x, e: self.c(self.a(x, e), e.flip(0)), "'c': is called with features and flip"),
        (lambda self, x, e: self.c(changed(self.a(x, e)), e), "has a sum of different shapes of 'a', new_ones"),
        (lambda self, x, e: (h := self.a(x, e), changed(h[:, :1]), self.c(h, e))[-1], "has a change in place of 'a'"),
        (lambda self, x, e: F.dropout(self.c(self.a(x, e), e), 0.5, self.training), "found dropout of its result"),
        (lambda self, x, e: self.c(F.elu(F.dropout(self.a(x, e), 0.5, self.training)), e), "has dropout of 'a'"),
        (
            lambda self, x, e: self.c(F.dropout(self.b(F.dropout(self.a(x, e), 0.5), e), 0.25), e),
            r"dropout of rates \[0.0, 0.5, 0.25\]",
        ),
        (lambda self, x, e: (self.a(x, e), x), "its forward gives tuple; allowed: one tensor"),
    ],
)
def test_forwards_that_no_layers_say_are_refused(forward: Callable[..., object], message: str) -> None:
    with pytest.raises(UnsupportedOperator, match=message):
        from_pyg(Net(forward))


def test_what_is_another_network_outside_training_is_refused() -> None:
    """The forward of training is followed; answers are compared without it, on a random graph or a given one."""

    def forward(self: Net, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        y = self.c(self.a(x, e), e)
        return y if self.training else 2 * y

    for check in (None, small(60)):
        with pytest.raises(ModelError, match=r"its output differs from that of the converted network by 5\.0e-01"):
            from_pyg(Net(forward), check=check)


def test_the_model_stays_as_it_is() -> None:
    model = Stack(pyg.GCNConv(12, 4, cached=True)).train()
    from_pyg(model)
    assert model.training and model.convolutions[0]._cached_edge_index is None and model.convolutions[0].cached
    assert "forward" not in vars(model.convolutions[0])


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_equal_edges_and_self_loops_are_those_of_pyg(kind: str) -> None:
    edges = np.array([(0, 0), (0, 0), (1, 0), (1, 0), (2, 2), (3, 4)])
    x = np.random.default_rng(3).standard_normal((6, 12)).astype(np.float32)
    from_pyg(stack(kind), check=Graph.of(edges, x, duplicates="keep"))

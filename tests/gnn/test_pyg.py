"""Networks of PyTorch Geometric, where it is installed: the same answers, and the same losses in training."""

from __future__ import annotations

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ModelError, UnsupportedOperator
from burnish.gnn.pyg import from_pyg
from burnish.gnn.train import fit
from tests.gnn.references import small, torch, weighted

pyg = pytest.importorskip("torch_geometric.nn")


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

    class Twice(Stack):
        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x, edges)

    with pytest.raises(ModelError, match="its output differs"):
        from_pyg(Twice(pyg.GCNConv(12, 8), pyg.GCNConv(8, 4)), check=small(60))

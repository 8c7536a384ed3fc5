"""Learning of graph networks against PyTorch Geometric: the same loss curve from the same weights, the same accuracy.

`python -m benchmarks.graph_learning [gcn|sage|gin|gat …] [--epochs 100] [--json FILE]`. Two layers of PyG's are
converted with their weights, and both are trained by Adam on a block model. Needs `pip install "burnish[pyg]"`. Fails
where a curve differs by more than 1e-3 of the first loss, or test accuracy is lower by more than a hundredth.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import burnish as bn
from benchmarks.provenance import stored
from burnish.base.optional import require
from burnish.fitting.fit import fit
from burnish.gnn.data.generators import block_model
from burnish.gnn.data.graph import Graph
from burnish.gnn.run.pyg import from_pyg
from burnish.gnn.run.train import score

KINDS = ("gcn", "sage", "gin", "gat")
WIDTH, HIDDEN, CLASSES = 32, 64, 8
APART, LOWER = 1e-3, 0.01
RATES = {"gin": 0.002, "gat": 0.005}  # at 0.01 differences of rounding grow, epoch by epoch
Row = dict[str, Any]


def made(kind: str) -> Any:
    """Two convolutions of PyG with ReLU between them."""
    torch, pyg = require("torch", "torch"), require("torch_geometric.nn", "pyg")
    torch.manual_seed(1)

    def mlp(rows: int, columns: int) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(rows, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, columns))

    layers = {
        "gcn": lambda: (pyg.GCNConv(WIDTH, HIDDEN), pyg.GCNConv(HIDDEN, CLASSES)),
        "sage": lambda: (pyg.SAGEConv(WIDTH, HIDDEN), pyg.SAGEConv(HIDDEN, CLASSES)),
        "gin": lambda: (pyg.GINConv(mlp(WIDTH, HIDDEN)), pyg.GINConv(mlp(HIDDEN, CLASSES))),
        "gat": lambda: (pyg.GATConv(WIDTH, HIDDEN // 4, heads=4), pyg.GATConv(HIDDEN, CLASSES)),
    }[kind]()

    class Stack(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x: Any, edges: Any) -> Any:
            return self.layers[1](torch.relu(self.layers[0](x, edges)), edges)

    return Stack()


def beside(kind: str, graph: Graph, epochs: int) -> Row:
    """Losses and test accuracy of both."""
    torch = require("torch", "torch")
    model, rate = made(kind), RATES.get(kind, 0.01)
    network = from_pyg(model, check=graph)
    trained = fit(network, graph, bn.Train(optimizer=bn.Adam(rate)), epochs=epochs, evaluate_every=epochs)
    losses = np.asarray(trained.report.losses)
    target = np.repeat(np.arange(graph.vertices), graph.in_degrees)
    edges = torch.from_numpy(np.stack([np.array(graph.sources, np.int64), target]))
    x, labels = torch.from_numpy(np.array(graph.features)), torch.from_numpy(np.array(graph.labels, np.int64))
    train, test = torch.from_numpy(np.array(graph.train)), torch.from_numpy(np.array(graph.test))
    optimizer, wanted = torch.optim.Adam(model.parameters(), rate), []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, edges)[train], labels[train])
        loss.backward()
        optimizer.step()
        wanted.append(float(loss.detach()))
    right = (model(x, edges).argmax(1) == labels)[test]
    return {
        "network": kind, "epochs": epochs, "first loss": wanted[0], "last loss": float(losses[-1]),
        "PyG last loss": wanted[-1], "apart": float(np.abs(losses - wanted).max() / wanted[0]),
        "in 10 epochs": float(np.abs(losses - wanted)[:10].max() / wanted[0]),
        "test accuracy": score(trained.model, graph, "test"),
        "PyG accuracy": float(right.double().mean()),
    }  # fmt: skip


def missed(rows: list[Row]) -> list[str]:
    """Curves that differ, and accuracies that are not reached."""
    found = [f"{r['network']}: losses differ by {r['apart']:.1e}, allowed {APART}" for r in rows if r["apart"] > APART]
    return found + [
        f"{r['network']}: accuracy {r['test accuracy']:.3f} after PyG's {r['PyG accuracy']:.3f}"
        for r in rows if r["test accuracy"] < r["PyG accuracy"] - LOWER
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*KINDS, []], help="networks (default: all)")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    arguments = parser.parse_args()
    graph = block_model(3000, 45_000, CLASSES, WIDTH, seed=3, inside=0.5, noise=0.0)
    rows = [beside(kind, graph, arguments.epochs) for kind in arguments.names or KINDS]
    table = Table(title="learning beside PyTorch Geometric")
    for heading in rows[0]:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=130).print(table)
    failures = missed(rows)
    if arguments.json:
        arguments.json.write_text(stored({"rows": rows, "missed": failures}, indent=1))
    for failure in failures:
        print(f"missed: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())

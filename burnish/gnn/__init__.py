"""Graph neural networks on whole graphs: graphs, their partitions, layers and training (ROC, Jia 2020, chapter 4)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.gnn.csr import CSR
    from burnish.gnn.disjoint import union
    from burnish.gnn.formats import read
    from burnish.gnn.generators import block_model, dataset, ppi_graphs, rmat, write_dataset
    from burnish.gnn.graph import Graph
    from burnish.gnn.inference import logits_of
    from burnish.gnn.layers import GAT, GCN, GIN, SAGE, CommNet
    from burnish.gnn.models import Network, initial_weights, network
    from burnish.gnn.partition import Partitioner, equal_edges, equal_vertices
    from burnish.gnn.pyg import from_pyg
    from burnish.gnn.sampling import Sampling
    from burnish.gnn.store import GraphFile, load, save
    from burnish.gnn.train import Trained, fit, score
    from burnish.gnn.workers import fit_workers

_HOME = {
    "CSR": "csr",
    "CommNet": "layers",
    "GAT": "layers",
    "GCN": "layers",
    "GIN": "layers",
    "Graph": "graph",
    "GraphFile": "store",
    "Network": "models",
    "Partitioner": "partition",
    "SAGE": "layers",
    "Sampling": "sampling",
    "Trained": "train",
    "block_model": "generators",
    "dataset": "generators",
    "equal_edges": "partition",
    "equal_vertices": "partition",
    "fit": "train",
    "fit_workers": "workers",
    "from_pyg": "pyg",
    "initial_weights": "models",
    "load": "store",
    "logits_of": "inference",
    "network": "models",
    "ppi_graphs": "generators",
    "read": "formats",
    "rmat": "generators",
    "save": "store",
    "score": "train",
    "union": "disjoint",
    "write_dataset": "generators",
}

__all__ = [
    "CSR", "GAT", "GCN", "GIN", "SAGE", "CommNet", "Graph", "GraphFile", "Network", "Partitioner", "Sampling",
    "Trained", "block_model", "dataset", "equal_edges", "equal_vertices", "fit", "fit_workers", "from_pyg",
    "initial_weights", "load", "logits_of", "network", "ppi_graphs", "read", "rmat", "save", "score", "union",
    "write_dataset",
]  # fmt: skip


if not TYPE_CHECKING:  # a checker is to know the names above, and no other

    def __getattr__(name: str) -> Any:
        """Imports a public name when it is first used: the compiler and numba take time."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

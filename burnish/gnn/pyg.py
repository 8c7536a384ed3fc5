"""Networks of PyTorch Geometric as networks of Burnish, with their weights: GCNConv, SAGEConv, GINConv and GATConv."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from burnish.arguments import refusal
from burnish.errors import ModelError, UnsupportedOperator
from burnish.gnn.graph import Graph
from burnish.gnn.inference import logits_of
from burnish.gnn.layers import ACTIVATIONS, GAT, GCN, GIN, SAGE, Layer
from burnish.gnn.models import Network
from burnish.optional import require

EXTRA = "pyg"
TOLERANCE = 1e-3  # of the largest logit, when a conversion is checked
Weights = dict[str, np.ndarray]


def from_pyg(
    model: Any, *, activation: str = "relu", dropout: float | None = None, check: Graph | None = None
) -> Network:
    """The network of a model of PyG whose convolutions follow each other in the order of its modules.

    ``activation``: behind all of them but the last, unless the model's own ``act`` tells; ``dropout``: in front of all
    but the first, by default the model's own. ``check``: a graph with features, on which the model is called as
    ``model(x, edge_index)`` and must give the same. Raises ModelError, UnsupportedOperator, MissingDependencyError.
    """
    found = require("torch_geometric.nn", EXTRA)
    makers: Mapping[type, Callable[[Any, str], tuple[Layer, Weights]]] = {
        found.GCNConv: _gcn, found.SAGEConv: _sage, found.GINConv: _gin, found.GATConv: _gat,
    }  # fmt: skip
    activation = _activation(model, activation)
    names = [(name, module) for name, module in model.named_modules() if type(module) in makers]
    if not names:
        allowed = ", ".join(kind.__name__ for kind in makers)
        raise ModelError(f"model: found no convolution of PyG; allowed: {allowed}")
    _check_rest(model, [name for name, _ in names])
    layers: list[Layer] = []
    weights: Weights = {}
    for number, (name, module) in enumerate(names):
        layer, own = makers[type(module)](module, name)
        last = number == len(names) - 1
        layers.append(replace(layer, activation="none" if last else activation))  # type: ignore[type-var]
        weights |= {f"{number}.{key}": np.array(value, np.float32) for key, value in own.items()}
    if dropout is None:
        rate = getattr(model, "dropout", 0.0)
        dropout = float(getattr(rate, "p", rate) or 0.0)
    network = Network(_width_in(layers[0], weights), tuple(layers), weights, dropout)
    if check is not None:
        _compare(model, network, check)
    return network


def _activation(model: Any, given: str) -> str:
    """The name of a model's own activation, else what is given. Raises UnsupportedOperator, ParameterError."""
    own = getattr(model, "act", None)
    name = given if own is None else type(own).__name__.lower()
    if name not in ACTIVATIONS:
        if own is not None:
            raise UnsupportedOperator(
                f"model: found activation {type(own).__name__}; allowed: {', '.join(ACTIVATIONS)}"
            )
        raise refusal("activation", given, ", ".join(ACTIVATIONS))
    return name


def _check_rest(model: Any, names: list[str]) -> None:
    """Raises UnsupportedOperator for parameters outside of the convolutions."""
    rest = [n for n, _ in model.named_parameters() if not any(n.startswith(f"{own}.") or not own for own in names)]
    if rest:
        raise UnsupportedOperator(f"model: found parameters {rest} outside of convolutions; allowed: none")


def _gcn(conv: Any, name: str) -> tuple[Layer, Weights]:
    _require(name, conv, improved=False, normalize=True, add_self_loops=True)
    weights = {"weight": _array(conv.lin.weight).T} | _bias(conv)
    return GCN(conv.out_channels, bias="bias" in weights), weights


def _sage(conv: Any, name: str) -> tuple[Layer, Weights]:
    _require(name, conv, normalize=False, project=False, root_weight=True)
    reduction = {"add": "sum"}.get(str(conv.aggr), str(conv.aggr))
    weights = {"neighbours": _array(conv.lin_l.weight).T, "own": _array(conv.lin_r.weight).T}
    if conv.lin_l.bias is not None:
        weights["bias"] = _array(conv.lin_l.bias)
    return SAGE(conv.out_channels, reduction=reduction, bias="bias" in weights), weights


def _gin(conv: Any, name: str) -> tuple[Layer, Weights]:
    """The MLP must be two products with a ReLU between them."""
    parts = [m for m in conv.nn.modules() if not [*m.children()]]
    parts = [m for m in parts if type(m).__name__ not in ("Identity", "Dropout")]
    kinds = [type(m).__name__ for m in parts]
    if kinds not in (["Linear", "ReLU", "Linear"], ["Linear", "Linear", "ReLU"]) or parts[0].bias is None:
        raise UnsupportedOperator(f"'{name}': found an MLP of {kinds}; allowed: Linear with bias, ReLU, Linear")
    first, second = (m for m in parts if type(m).__name__ == "Linear")
    trained = any(key == "eps" for key, _ in conv.named_parameters())
    weights = {
        "first": _array(first.weight).T, "first_bias": _array(first.bias), "second": _array(second.weight).T,
        "second_bias": np.zeros(second.out_features) if second.bias is None else _array(second.bias),
    }  # fmt: skip
    eps = float(conv.eps.detach())
    if trained:
        weights["eps"] = np.full((1, 1), eps)
    hidden, width = weights["second"].shape
    return GIN(width, hidden=hidden, eps=eps, train_eps=trained), weights


def _gat(conv: Any, name: str) -> tuple[Layer, Weights]:
    _require(name, conv, dropout=0.0, residual=False)
    weighted = getattr(conv, "edge_dim", None) is not None
    if weighted:
        _require(name, conv, edge_dim=1, fill_value="mean")
    lin = conv.lin if getattr(conv, "lin", None) is not None else conv.lin_src
    weights = {"weight": _array(lin.weight).T, "left": _array(conv.att_src)[0], "right": _array(conv.att_dst)[0]}
    weights |= _bias(conv)
    if weighted:  # a feature of one number: its product with both of PyG's weights is one number of each head
        weights["edge"] = (_array(conv.lin_edge.weight).reshape(conv.heads, -1) * _array(conv.att_edge)[0]).sum(-1)
    layer = GAT(
        conv.out_channels, heads=conv.heads, joined=conv.concat, slope=float(conv.negative_slope),
        loops=conv.add_self_loops, bias="bias" in weights, weighted=weighted,
    )  # fmt: skip
    return layer, weights


def _require(name: str, conv: Any, **wanted: Any) -> None:
    """Raises UnsupportedOperator for options that the layers do not have."""
    for key, value in wanted.items():
        found = getattr(conv, key, value)
        if found != value:
            raise UnsupportedOperator(f"'{name}' ({type(conv).__name__}): {key}: found {found}; allowed: {value}")


def _bias(conv: Any) -> Weights:
    return {} if conv.bias is None else {"bias": _array(conv.bias)}


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().numpy())


def _width_in(layer: Layer, weights: Weights) -> int:
    first = {"gcn": "weight", "sage": "own", "gin": "first", "gat": "weight"}[layer.kind]
    return int(weights[f"0.{first}"].shape[0])


def _compare(model: Any, network: Network, graph: Graph) -> None:
    """Raises ModelError where the model itself gives something else."""
    torch = require("torch", EXTRA)
    targets = np.repeat(np.arange(graph.vertices), graph.in_degrees)
    edges = torch.from_numpy(np.stack([graph.sources.astype(np.int64), targets.astype(np.int64)]))
    training = model.training
    model.eval()
    given = () if graph.weights is None else (torch.from_numpy(np.array(graph.weights)),)
    with torch.no_grad():
        wanted = model(torch.from_numpy(np.array(graph.rows(0, graph.vertices))), edges, *given).numpy()
    model.train(training)
    found = logits_of(network, graph)
    error = float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))
    if not error <= TOLERANCE:
        raise ModelError(
            f"model: its output differs from that of the converted network by {error:.1e} of its largest value; "
            f"allowed: {TOLERANCE:.0e}. Between its convolutions it does more than {network}"
        )

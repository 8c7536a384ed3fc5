"""Networks of PyTorch Geometric as networks of Burnish, with their weights: GCNConv, SAGEConv, GINConv and GATConv."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.errors import ModelError, UnsupportedOperator
from burnish.gnn.data.graph import Graph
from burnish.gnn.model.calls import ForwardSignature, arguments_of, random_graph, tensors_of
from burnish.gnn.model.forwards import steps_of
from burnish.gnn.model.layers import GAT, GCN, GIN, REDUCTIONS, SAGE, Layer
from burnish.gnn.model.models import Network
from burnish.gnn.run.feeds import inputs_of
from burnish.gnn.run.inference import logits_of
from burnish.graph.evaluate import evaluate
from burnish.train.evaluation import without_dropout

EXTRA = "pyg"
TOLERANCE = 1e-3  # of the largest logit, when a conversion is checked
FORWARD: Mapping[str, Any] = {"flow": "source_to_target", "node_dim": (-2, 0)}
SUMMED: Mapping[str, Any] = {"aggr": ("add", "sum"), **FORWARD}
Weights = dict[str, np.ndarray]


def from_pyg(model: Any, *, dropout: float | None = None, check: Graph | None = None) -> Network:
    """The network of a model of PyG whose forward is a chain of convolutions.

    The model is called as ``model(x, edge_index)``, or with a ``Data`` where it takes one argument, and its forward
    followed: behind a convolution may come an activation, then the sum with what it reads, then dropout. Both are
    compared on ``check``, a graph with features, by default a small random one. ``dropout``: its rate, by default the
    model's own. Raises ModelError, UnsupportedOperator, MissingDependencyError.
    """
    found = require("torch_geometric.nn", EXTRA)
    makers: Mapping[type, Callable[[Any, str], tuple[Layer, Weights]]] = {
        found.GCNConv: _gcn, found.SAGEConv: _sage, found.GINConv: _gin, found.GATConv: _gat,
    }  # fmt: skip
    copied = _fresh(model)
    convolutions = {name: module for name, module in copied.named_modules() if type(module) in makers}
    if not convolutions:
        allowed = ", ".join(kind.__name__ for kind in makers)
        raise ModelError(f"model: found no convolution of PyG; allowed: {allowed}")
    _check_rest(copied, [*convolutions])
    made = {name: makers[type(module)](module, name) for name, module in convolutions.items()}
    weighted = any(getattr(module, "edge_dim", None) is not None for module in convolutions.values())
    arguments = arguments_of(copied, weighted)
    sample = random_graph(_width_in(*next(iter(made.values()))), weights=True)
    steps = steps_of(_fresh(model).train(), [*convolutions], tensors_of(sample), arguments)
    layers: list[Layer] = []
    weights: Weights = {}
    for number, step in enumerate(steps):
        layer, own = made[step.convolution]
        if isinstance(layer, GAT) and layer.weighted and not step.weighted:  # as PyG without features of edges
            layer, own = replace(layer, weighted=False), {key: own[key] for key in own if key != "edge"}
        layers.append(replace(layer, activation=step.activation, residual=step.residual))  # type: ignore[type-var]
        weights |= {f"{number}.{key}": np.array(value, np.float32) for key, value in own.items()}
    rate, first = (
        _rates(model, [step.dropout for step in steps]) if dropout is None else (dropout, steps[0].dropout > 0)
    )
    network = Network(_width_in(*made[steps[0].convolution]), tuple(layers), weights, rate, first)
    if check is None:
        read = any(step.weighted for step in steps)
        _compare(copied, network, sample if read else sample.with_(csr=replace(sample.csr, weights=None)), arguments)
    else:
        _compare(copied, network, check, arguments, compiled=True)
    return network


def _fresh(model: Any) -> Any:
    """A copy to be called, which leaves the model as it is. Its convolutions do not keep the edges of a first call."""
    copied = copy.deepcopy(model).cpu().float()
    for module in copied.modules():
        if getattr(module, "cached", False):
            module.cached, module._cached_edge_index, module._cached_adj_t = False, None, None
    return copied


def _rates(model: Any, found: list[float]) -> tuple[float, bool]:
    """The rate of dropout in front of layers, and whether it is in front of the first. Raises UnsupportedOperator."""
    rates = {*found[1:], *(rate for rate in found[:1] if rate)}
    if len(rates) > 1:
        raise UnsupportedOperator(
            f"model: found dropout of rates {found} in front of convolutions; allowed: one rate for all, or not in "
            "front of the first; dropout= says another one"
        )
    return next(iter(rates), 0.0), found[0] > 0


def _check_rest(model: Any, names: list[str]) -> None:
    """Raises UnsupportedOperator for parameters outside of the convolutions."""
    rest = [n for n, _ in model.named_parameters() if not any(n.startswith(f"{own}.") or not own for own in names)]
    if rest:
        raise UnsupportedOperator(f"model: found parameters {rest} outside of convolutions; allowed: none")


def _gcn(conv: Any, name: str) -> tuple[Layer, Weights]:
    _require(name, conv, improved=False, normalize=True, add_self_loops=True, **SUMMED)
    weights = {"weight": _array(conv.lin.weight).T} | _bias(conv)
    return GCN(conv.out_channels, bias="bias" in weights), weights


def _sage(conv: Any, name: str) -> tuple[Layer, Weights]:
    _require(name, conv, normalize=False, project=False, root_weight=True, **FORWARD)
    reduction = {"add": "sum"}.get(str(conv.aggr), str(conv.aggr))
    if reduction not in REDUCTIONS:
        raise UnsupportedOperator(f"'{name}' (SAGEConv): aggr: found {conv.aggr}; allowed: {', '.join(REDUCTIONS)}")
    weights = {"neighbours": _array(conv.lin_l.weight).T, "own": _array(conv.lin_r.weight).T}
    if conv.lin_l.bias is not None:
        weights["bias"] = _array(conv.lin_l.bias)
    return SAGE(conv.out_channels, reduction=reduction, bias="bias" in weights), weights


def _gin(conv: Any, name: str) -> tuple[Layer, Weights]:
    """The MLP must be two products with a ReLU between them."""
    _require(name, conv, **SUMMED)
    parts = [m for m in conv.nn.modules() if not [*m.children()]]
    parts = [m for m in parts if type(m).__name__ != "Identity" and (type(m).__name__ != "Dropout" or m.p)]
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
    _require(name, conv, dropout=0.0, residual=False, **SUMMED)
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
        if found not in value if isinstance(value, tuple) else found != value:
            raise UnsupportedOperator(f"'{name}' ({type(conv).__name__}): {key}: found {found}; allowed: {value}")


def _bias(conv: Any) -> Weights:
    return {} if conv.bias is None else {"bias": _array(conv.bias)}


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().numpy())


def _width_in(layer: Layer, own: Weights) -> int:
    first = {"gcn": "weight", "sage": "own", "gin": "first", "gat": "weight"}[layer.kind]
    return int(own[first].shape[0])


def _compare(model: Any, network: Network, graph: Graph, arguments: ForwardSignature, compiled: bool = False) -> None:
    """Raises ModelError where the model itself gives something else. ``compiled``: else by operators' definitions."""
    torch = require("torch", EXTRA)
    model.eval()
    with torch.no_grad():
        wanted = arguments(model, *tensors_of(graph)).numpy()
    if compiled:
        found = logits_of(network, graph)
    else:
        extents, arrays = inputs_of(network, graph)
        found = next(iter(evaluate(without_dropout(network.graph(extents)), arrays).values()))
    if found.shape != wanted.shape:
        raise ModelError(f"model: its output has shape {wanted.shape}; allowed: {found.shape}, that of {network}")
    error = float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))
    if not error <= TOLERANCE:
        raise ModelError(
            f"model: its output differs from that of the converted network by {error:.1e} of its largest value; "
            f"allowed: {TOLERANCE:.0e}. It does more than {network}"
        )

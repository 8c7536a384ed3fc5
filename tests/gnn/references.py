"""Graph networks in plain PyTorch, by dense matrices, from the same weights: what training is compared with."""

from __future__ import annotations

import numpy as np
import torch

from burnish.gnn.data.csr import CSR
from burnish.gnn.data.generators import block_model
from burnish.gnn.data.graph import Graph
from burnish.gnn.model.layers import GAT, GCN, GIN, SAGE, CommNet, Layer
from burnish.gnn.model.models import Network


def weighted(graph: Graph, symmetric: bool = False, seed: int = 7) -> Graph:
    """The graph with random weights of edges, and some self loops; with ``symmetric`` both ways alike."""
    rng = np.random.default_rng(seed)
    source, target = np.array(graph.sources), np.repeat(np.arange(graph.vertices), graph.in_degrees)
    if symmetric:
        once = source < target
        source, target = source[once], target[once]
    source, target = (np.concatenate([ends, np.arange(0, graph.vertices, 5)]) for ends in (source, target))
    weights = rng.uniform(0.2, 2.0, len(source)).astype(np.float32)
    csr = CSR.from_edges(source, target, graph.vertices, weights, symmetrize=symmetric)
    return graph.with_(csr=csr)


def small(vertices: int = 120, seed: int = 0, validation: bool = False) -> Graph:
    """A graph whose classes can be learned; without vertices for validation, as these cost a second compilation."""
    graph = block_model(vertices, 8 * vertices, 4, 12, seed=seed)
    return graph if validation else graph.with_(validation=None)


class Reference:
    """A network with trained weights of its own, called with features [V, F]; without dropout."""

    def __init__(self, network: Network, graph: Graph) -> None:
        self.network = network
        self.weights = {n: torch.tensor(np.array(w), requires_grad=True) for n, w in network.weights.items()}
        v = graph.vertices
        self.a = torch.zeros(v, v)
        targets = np.repeat(np.arange(v), graph.in_degrees)
        weights = np.ones(graph.edges) if graph.weights is None else graph.weights
        for target, source, weight in zip(targets.tolist(), graph.sources.tolist(), weights.tolist(), strict=True):
            self.a[target, source] += weight
        self.counts = torch.tensor(np.array(graph.in_degrees), dtype=torch.float32)[:, None]
        own = self.a.diagonal() if graph.weights is not None else torch.zeros(v)
        self.loops = self.a.clone().fill_diagonal_(0.0) + torch.diag(torch.where(own != 0, own, 1.0))
        bare = self.a.clone().fill_diagonal_(0.0)
        self.joined = bare + torch.diag(bare.sum(1) / (bare != 0).sum(1).clamp(min=1))  # with loops of mean weight
        self.near = (bare != 0) | torch.eye(v, dtype=torch.bool)
        self.x = torch.tensor(np.array(graph.rows(0, v)))

    def __call__(self) -> torch.Tensor:
        h = self.x
        for number, layer in enumerate(self.network.layers):
            own = {n.partition(".")[2]: w for n, w in self.weights.items() if n.startswith(f"{number}.")}
            h = self.activate(self.layer(layer, own, h), layer, own, h)
        return h

    def activate(self, y: torch.Tensor, layer: Layer, w: dict[str, torch.Tensor], h: torch.Tensor) -> torch.Tensor:
        kinds = {"none": lambda t: t, "relu": torch.relu, "elu": torch.nn.functional.elu, "tanh": torch.tanh}
        y = kinds[layer.activation](y)
        if isinstance(layer, GCN) and layer.residual:
            y = y + (h @ w["skip"] if "skip" in w else h)
        return y

    def layer(self, layer: Layer, w: dict[str, torch.Tensor], h: torch.Tensor) -> torch.Tensor:
        mean = self.a @ h / self.counts.clamp(min=1)
        if isinstance(layer, GCN):
            s = self.loops.sum(1, keepdim=True).rsqrt()
            return s * (self.loops @ (s * h)) @ w["weight"] + w["bias"]
        if isinstance(layer, SAGE):
            if layer.reduction == "max":
                each = (self.a[:, :, None] * h[None]).masked_fill(self.a[:, :, None] == 0, -torch.inf)
                mean = torch.where(self.counts > 0, each.amax(1), 0.0)
            return h @ w["own"] + mean @ w["neighbours"] + w["bias"]
        if isinstance(layer, CommNet):
            return h @ w["own"] + mean @ w["neighbours"]
        if isinstance(layer, GIN):
            z = (1 + layer.eps) * h + self.a @ h
            return torch.relu(z @ w["first"] + w["first_bias"]) @ w["second"] + w["second_bias"]
        assert isinstance(layer, GAT)
        z = (h @ w["weight"]).view(len(h), layer.heads, layer.features)
        left, right = (z * w["left"]).sum(-1), (z * w["right"]).sum(-1)
        scores = left[None] + right[:, None]  # [target, source, heads]
        if layer.weighted:
            scores = scores + self.joined[:, :, None] * w["edge"]
        scores = torch.nn.functional.leaky_relu(scores, layer.slope)
        scores = scores.masked_fill(~self.near[:, :, None], -torch.inf)
        y = torch.einsum("vuh,uhd->vhd", scores.softmax(1), z)
        return (y.flatten(1) if layer.joined else y.mean(1)) + w["bias"]

    def train(self, graph: Graph, epochs: int, rate: float) -> list[float]:
        """The losses of Adam over epochs."""
        mask, labels = torch.tensor(np.array(graph.train)), torch.tensor(np.array(graph.labels, np.int64))
        optimizer = torch.optim.Adam([*self.weights.values()], rate)
        losses = []
        for _ in range(epochs):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self()[mask], labels[mask])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

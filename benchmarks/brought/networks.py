"""Small networks that people write by hand for text, sound, steps, points, graphs and tables, as `image_networks.py`.

Needs torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.brought.image_networks import BATCH, Given, Residual, conv

# --- text and sound ---------------------------------------------------------------------------------------------------


def sentence_embedding() -> Given:
    """An encoder whose tokens are averaged where the mask says so, and normalized."""

    class Embedder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
            self.words, self.encoder = (
                nn.Embedding(200, 64),
                nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            )

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            hidden = self.encoder(self.words(tokens), src_key_padding_mask=mask == 0)
            weight = mask.unsqueeze(-1).float()
            return F.normalize((hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9), dim=1)

    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 10:] = 0
    axes = {i: {0: "batch", 1: "seq"} for i in range(2)}
    return Embedder(), (torch.randint(3, 200, (2, 16)), mask), axes, ["ids", "mask"]


def spectrogram() -> Given:
    class Mel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.window: Tensor
            self.mel: Tensor
            self.register_buffer("window", torch.hann_window(128))
            self.register_buffer("mel", torch.rand(65, 20))

        def forward(self, x: Tensor) -> Tensor:
            parts = torch.view_as_real(torch.stft(x, 128, 64, window=self.window, return_complex=True))
            return torch.log((parts.pow(2).sum(-1).transpose(1, 2) @ self.mel).clamp(min=1e-6))

    return Mel(), (torch.randn(1, 1600),)


def conformer() -> Given:
    class Block(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()

            def feed() -> nn.Sequential:
                layers = (nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
                return nn.Sequential(nn.LayerNorm(width), *layers)

            self.before, self.after = feed(), feed()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
            self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
            self.local = nn.Sequential(
                nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, 15, padding=7, groups=width),
                nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            x = x + 0.5 * self.before(x)
            y = self.norms[0](x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            x = x + self.local(self.norms[1](x).transpose(1, 2)).transpose(1, 2)
            return self.norms[2](x + 0.5 * self.after(x))

    class Conformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sub = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU())
            self.into, self.blocks, self.out = nn.Linear(72, 32), nn.Sequential(Block(), Block()), nn.Linear(32, 30)

        def forward(self, x: Tensor) -> Tensor:
            y = self.sub(x.unsqueeze(1)).transpose(1, 2).flatten(2)
            return self.out(self.blocks(self.into(y))).log_softmax(-1)

    return Conformer(), (torch.randn(2, 60, 40),), {0: {0: "batch", 1: "time"}}


def tcn() -> Given:
    """Dilated causal convolutions with a sum over their outputs."""

    class Causal(nn.Module):
        def __init__(self, width: int, dilation: int) -> None:
            super().__init__()
            self.pad, self.conv = 2 * dilation, nn.Conv1d(width, width, 3, dilation=dilation)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.conv(F.pad(x, (self.pad, 0))))

    blocks = (Residual(Causal(16, 2**i)) for i in range(4))
    return nn.Sequential(nn.Conv1d(4, 16, 1), *blocks, nn.Conv1d(16, 2, 1)), (torch.randn(2, 4, 50),), BATCH


def wavenet() -> Given:
    """Gated dilated convolutions with skips."""

    class Wavenet(nn.Module):
        def __init__(self, width: int = 16) -> None:
            super().__init__()
            self.into = nn.Conv1d(1, width, 1)
            self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(6))
            self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(6))
            self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 32, 1), nn.ReLU(), nn.Conv1d(32, 64, 1))

        def forward(self, x: Tensor) -> Tensor:
            y, skips = self.into(x), torch.zeros(())
            for i, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
                a, b = gate(F.pad(y, (2**i, 0))).chunk(2, 1)
                rest, skip = out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
                y, skips = y + rest, skips + skip
            return self.head(skips)

    return Wavenet(), (torch.randn(1, 1, 256),)


def keyword_spotting() -> Given:
    def separable(width: int) -> nn.Sequential:
        depth = nn.Conv2d(width, width, 3, padding=1, groups=width)
        return nn.Sequential(depth, nn.BatchNorm2d(width), nn.ReLU(), conv(width, width, 1))

    net = nn.Sequential(
        nn.Conv2d(1, 32, (10, 4), 2, (5, 1)), nn.ReLU(), separable(32), separable(32), separable(32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 12), nn.Softmax(1),
    )  # fmt: skip
    return net, (torch.randn(1, 1, 49, 10),), BATCH


# --- recurrent --------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], layers: int = 2, both: bool = False) -> None:
        super().__init__()
        self.layers = kind(16, 32, layers, batch_first=True, bidirectional=both)
        self.out = nn.Linear(32 * (1 + both), 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x)[0])


STEPS = {0: {0: "batch", 1: "steps"}}


def lstm() -> Given:
    return Recurrent(nn.LSTM), (torch.randn(2, 12, 16),), STEPS


def gru() -> Given:
    return Recurrent(nn.GRU, both=True), (torch.randn(2, 12, 16),), STEPS


def rnn() -> Given:
    return Recurrent(nn.RNN), (torch.randn(2, 12, 16),), STEPS


def long_lstm() -> Given:
    return Recurrent(nn.LSTM, 1), (torch.randn(1, 300, 16),), STEPS


def stateful_lstm() -> Given:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.LSTM(16, 32), nn.Linear(32, 5)

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            y, (h, c) = self.cell(x, (h, c))
            return self.out(y), h, c

    return Stateful(), (torch.randn(1, 1, 16), torch.randn(1, 1, 32), torch.randn(1, 1, 32))


def branch() -> Given:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    return Branch(), (torch.randn(4, 4),)


# --- points, graphs, tables, control ----------------------------------------------------------------------------------


def pointnet() -> Given:
    class Pointnet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.turn = nn.Sequential(nn.Conv1d(3, 32, 1), nn.ReLU()), nn.Linear(32, 9)
            self.points = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 64, 1))
            self.out = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            turn = self.turn(self.seen(x).max(2)[0]).view(-1, 3, 3) + torch.eye(3)
            return self.out(self.points((x.transpose(1, 2) @ turn).transpose(1, 2)).max(2)[0])

    return Pointnet(), (torch.randn(2, 3, 64),), {0: {0: "batch", 2: "points"}}


def gcn() -> Given:
    """A graph network whose edges are an input."""

    class Gcn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

        def spread(self, x: Tensor, edges: Tensor) -> Tensor:
            degree = torch.zeros(x.shape[0]).scatter_add(0, edges[1], torch.ones(edges.shape[1])) + 1
            scale = degree.rsqrt()
            message = x[edges[0]] * (scale[edges[0]] * scale[edges[1]]).unsqueeze(1)
            return torch.zeros_like(x).index_add(0, edges[1], message) + x * (scale * scale).unsqueeze(1)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.spread(self.last(torch.relu(self.spread(self.first(x), edges))), edges)

    arguments = (torch.randn(20, 16), torch.randint(0, 20, (2, 60)))
    return Gcn(), arguments, {0: {0: "nodes"}, 1: {1: "edges"}}, ["x", "edges"]


def recommender() -> Given:
    """Embeddings, a bag of them, and the products of all pairs."""

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(50, 16) for _ in range(3))
            self.bag = nn.EmbeddingBag(50, 16, mode="mean")
            self.dense = nn.Sequential(nn.Linear(13, 16), nn.ReLU())
            self.top = nn.Sequential(nn.Linear(26, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

        def forward(self, dense: Tensor, sparse: Tensor, bag: Tensor) -> Tensor:
            x = self.dense(dense)
            v = torch.stack([x, *(table(sparse[:, i]) for i, table in enumerate(self.tables)), self.bag(bag)], 1)
            i, j = torch.tril_indices(5, 5, -1)
            return self.top(torch.cat([x, (v @ v.transpose(1, 2))[:, i, j]], 1))

    arguments = (torch.randn(4, 13), torch.randint(0, 50, (4, 3)), torch.randint(0, 50, (4, 6)))
    return Recommender(), arguments, {i: {0: "batch"} for i in range(3)}


def tabular() -> Given:
    net = nn.Sequential(
        nn.BatchNorm1d(20), nn.Linear(20, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.ELU(),
        nn.Linear(64, 3), nn.Softmax(-1),
    )  # fmt: skip
    return net, (torch.randn(8, 20),), BATCH


def policy() -> Given:
    """An actor on normalized observations, whose actions are squashed."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
            self.center, self.spread = nn.Linear(64, 6), nn.Linear(64, 6)
            self.mean: Tensor
            self.std: Tensor
            self.register_buffer("mean", torch.randn(17))
            self.register_buffer("std", torch.rand(17) + 0.5)

        def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
            h = self.net(((seen - self.mean) / self.std).clamp(-5, 5))
            return torch.tanh(self.center(h)), self.spread(h).clamp(-20, 2).exp()

    return Policy(), (torch.randn(1, 17),), BATCH


def fourier() -> Given:
    """A Fourier neural operator: products of the lowest modes."""

    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.real, self.imaginary = (nn.Parameter(torch.randn(8, 8, 12) * 0.1) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            modes = torch.fft.rfft(x)[..., :12]
            a, b = modes.real, modes.imag
            mix = lambda v, w: torch.einsum("bix,iox->box", v, w)  # noqa: E731
            real = mix(a, self.real) - mix(b, self.imaginary)
            imaginary = mix(a, self.imaginary) + mix(b, self.real)
            return torch.fft.irfft(torch.complex(real, imaginary), n=x.shape[-1])

    return Fourier(), (torch.randn(2, 8, 64),)


def indexing() -> Given:
    """Operators between layers: stores at positions, masks, sums along an axis, one-hot, rolls, sorting."""

    class Indexing(nn.Module):
        def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            y = x.clone()
            y[:, 2:5] = 0.5
            y[:, i] = x[:, i] * 2
            above = torch.triu(torch.ones(x.shape[1], x.shape[1]), 1).bool()
            s = torch.einsum("bi,bj->bij", y, x).masked_fill(above, -math.inf).softmax(-1)
            hot = F.one_hot(i, 12).float() @ x.t()[:12]
            sums = (s.sum(1).roll(1, 1).flip(1), x.cumsum(1), hot, x.std(1), x.var(0))
            return (*sums, torch.logsumexp(x, 1), x.sort(1)[0])

    return Indexing(), (torch.randn(4, 12), torch.tensor([1, 7]))


def topk_pooling() -> Given:
    """The best rows of each set, kept and weighted."""

    class Pooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.out = nn.Linear(16, 1), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            values, positions = self.score(x).squeeze(2).topk(8, 1)
            kept = x.gather(1, positions.unsqueeze(2).expand(-1, -1, 16))
            return self.out((kept * values.sigmoid().unsqueeze(2)).mean(1))

    return Pooling(), (torch.randn(2, 40, 16),), BATCH


def mixture_density() -> Given:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.heads = nn.Sequential(nn.Linear(8, 32), nn.Softplus()), nn.Linear(32, 15)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            weight, mean, scale = self.heads(self.net(x)).chunk(3, 1)
            weight, scale = weight.softmax(1), F.softplus(scale) + 1e-3
            center = (weight * mean).sum(1, keepdim=True)
            return center, (weight * (scale * scale + (mean - center) ** 2)).sum(1).sqrt()

    return Mixture(), (torch.randn(16, 8),), BATCH


def attention_opset23() -> Given:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projections, self.norm = nn.Linear(32, 96), nn.RMSNorm(32)

        def forward(self, x: Tensor) -> Tensor:
            parts = self.projections(self.norm(x)).chunk(3, -1)
            q, k, v = (part.view(2, -1, 4, 8).transpose(1, 2) for part in parts)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Attention(), (torch.randn(2, 10, 32),)


def double_mlp() -> Given:
    net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 3), nn.Softmax(1))
    return net, (torch.randn(8, 20),)

"""Building blocks of published networks: what stands around convolutions, products and normalizations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shapes = tuple[tuple[int, ...], ...]
Block = tuple[Callable[[], nn.Module], Shapes]


class Function(nn.Module):
    """A function of inputs and of the modules that hold its weights."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.held = function, nn.ModuleList(modules)

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x, *self.held)


class ChannelNorm(nn.Module):
    """Layer normalization of the channels of [N, C, H, W], written between two permutations (timm's LayerNorm2d)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return normed.permute(0, 3, 1, 2)


def _mlp(width: int, inner: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, after))


def _heads(qkv: Tensor, heads: int) -> tuple[Tensor, ...]:
    batch, rows, width = qkv.shape
    return qkv.reshape(batch, rows, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4).unbind(0)


def _rdnet() -> nn.Module:
    """Dense block of RDNet: 7x7 depthwise, channel norm, 1x1 expansion, GELU, 1x1."""
    convolutions = nn.Conv2d(192, 768, 1), nn.GELU(), nn.Conv2d(768, 64, 1)
    return nn.Sequential(nn.Conv2d(192, 192, 7, padding=3, groups=192), ChannelNorm(192), *convolutions)


def _mambaout() -> nn.Module:
    """Gated block of MambaOut: part of a product's columns is convolved between permutations."""

    def forward(x: Tensor, norm: nn.Module, first: nn.Module, conv: nn.Module, second: nn.Module) -> Tensor:
        gate, kept, part = torch.split(first(norm(x)), (128, 80, 48), -1)
        part = conv(part.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        result: Tensor = x + second(F.gelu(gate) * torch.cat((kept, part), -1))
        return result

    conv = nn.Conv2d(48, 48, 7, padding=3, groups=48)
    return Function(forward, nn.LayerNorm(48), nn.Linear(48, 256), conv, nn.Linear(128, 48))


def _convnext() -> nn.Module:
    def forward(x: Tensor, conv: nn.Module, norm: nn.Module, mlp: nn.Module) -> Tensor:
        result: Tensor = x + mlp(norm(conv(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return result

    return Function(forward, nn.Conv2d(96, 96, 7, padding=3, groups=96), nn.LayerNorm(96), _mlp(96, 384, 96))


def _conformer() -> nn.Module:
    def forward(x: Tensor, norm: nn.Module, expand: nn.Module, conv: nn.Module, project: nn.Module) -> Tensor:
        y = F.glu(expand(norm(x).transpose(1, 2)), 1)
        result: Tensor = x + project(F.silu(conv(y))).transpose(1, 2)
        return result

    conv = nn.Sequential(nn.Conv1d(144, 144, 31, padding=15, groups=144), nn.BatchNorm1d(144))
    return Function(forward, nn.LayerNorm(144), nn.Conv1d(144, 288, 1), conv, nn.Conv1d(144, 144, 1))


def _tcn() -> nn.Module:
    layers: list[nn.Module] = []
    for dilation in (1, 2, 4):
        layers += [nn.Conv1d(64, 64, 3, padding=dilation, dilation=dilation), nn.BatchNorm1d(64), nn.ReLU()]
    return nn.Sequential(*layers)


def _wavenet() -> nn.Module:
    def forward(x: Tensor, *convolutions: nn.Module) -> Tensor:
        for gated, project in zip(convolutions[::2], convolutions[1::2], strict=True):
            t, gate = gated(x).chunk(2, 1)
            x = x + project(torch.tanh(t) * torch.sigmoid(gate))
        return x

    pairs = [(nn.Conv1d(64, 128, 3, padding=2**i, dilation=2**i), nn.Conv1d(64, 64, 1)) for i in range(4)]
    return Function(forward, *(conv for pair in pairs for conv in pair))


def _wav2vec() -> nn.Module:
    def forward(x: Tensor, *layers: nn.Module) -> Tensor:
        for conv, norm in zip(layers[::2], layers[1::2], strict=True):
            x = F.gelu(norm(conv(x).transpose(1, 2)).transpose(1, 2))
        return x

    convolutions = nn.Conv1d(1, 64, 10, 5), nn.Conv1d(64, 64, 3, 2), nn.Conv1d(64, 64, 3, 2)
    return Function(forward, *(part for conv in convolutions for part in (conv, nn.LayerNorm(64))))


def _res2net() -> nn.Module:
    def forward(x: Tensor, *convolutions: nn.Module) -> Tensor:
        first, *rest = x.chunk(4, 1)
        parts, last = [first], None
        for part, conv in zip(rest, convolutions, strict=True):
            last = torch.relu(conv(part if last is None else part + last))
            parts.append(last)
        return torch.cat(parts, 1)

    return Function(forward, *(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)))


def _shufflenet() -> nn.Module:
    def forward(x: Tensor, branch: nn.Module) -> Tensor:
        left, right = x.chunk(2, 1)
        y = torch.cat([left, branch(right)], 1)
        return y.view(1, 2, 58, 28, 28).transpose(1, 2).reshape(1, 116, 28, 28)

    depthwise = nn.Conv2d(58, 58, 3, padding=1, groups=58)
    return Function(forward, nn.Sequential(nn.Conv2d(58, 58, 1), nn.ReLU(), depthwise, nn.Conv2d(58, 58, 1), nn.ReLU()))


def _swin_merge() -> nn.Module:
    def forward(x: Tensor, norm: nn.Module, reduce: nn.Module) -> Tensor:
        parts = [x[:, row::2, column::2] for column in range(2) for row in range(2)]
        result: Tensor = reduce(norm(torch.cat(parts, -1)))
        return result

    return Function(forward, nn.LayerNorm(384), nn.Linear(384, 192, bias=False))


def _xcit() -> nn.Module:
    def forward(x: Tensor, qkv: nn.Module, project: nn.Module) -> Tensor:
        q, k, v = (t.transpose(-2, -1) for t in _heads(qkv(x), 4))
        scores = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)).softmax(-1)
        result: Tensor = project((scores @ v).permute(0, 3, 1, 2).reshape(x.shape))
        return result

    return Function(forward, nn.Linear(192, 576), nn.Linear(192, 192))


def _linear_attention() -> nn.Module:
    def forward(x: Tensor, qkv: nn.Module) -> Tensor:
        q, k, v = _heads(qkv(x), 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        weight = 1 / (q @ k.sum(-2, keepdim=True).transpose(-2, -1) + 1e-6)
        return ((q @ (k.transpose(-2, -1) @ v)) * weight).transpose(1, 2).reshape(x.shape)

    return Function(forward, nn.Linear(192, 576))


def _attention() -> nn.Module:
    def forward(x: Tensor, qkv: nn.Module) -> Tensor:
        return F.scaled_dot_product_attention(*_heads(qkv(x), 4))

    return Function(forward, nn.Linear(192, 576))


def _mixer() -> nn.Module:
    def forward(x: Tensor, norm: nn.Module, mlp: nn.Module) -> Tensor:
        result: Tensor = x + mlp(norm(x).transpose(1, 2)).transpose(1, 2)
        return result

    return Function(forward, nn.LayerNorm(192), _mlp(196, 384, 196))


def _squeeze() -> nn.Module:
    def forward(x: Tensor, reduce: nn.Module, expand: nn.Module) -> Tensor:
        return x * torch.sigmoid(expand(torch.relu(reduce(x.mean((2, 3), keepdim=True)))))

    return Function(forward, nn.Conv2d(128, 32, 1), nn.Conv2d(32, 128, 1))


def _pyramid() -> nn.Module:
    def forward(x: Tensor, *convolutions: nn.Module) -> Tensor:
        pooled = [conv(F.adaptive_avg_pool2d(x, k)) for conv, k in zip(convolutions, (1, 2, 3, 6), strict=True)]
        return torch.cat([x, *(F.interpolate(p, size=x.shape[2:], mode="bilinear") for p in pooled)], 1)

    return Function(forward, *(nn.Conv2d(128, 32, 1) for _ in range(4)))


def _enlarged(conv: nn.Module, factor: int) -> nn.Module:
    return Function(lambda x, own: F.interpolate(own(x), scale_factor=factor, mode="bilinear"), conv)


def _decoder() -> nn.Module:
    def forward(x: Tensor, skip: Tensor, conv: nn.Module) -> Tensor:
        large = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        result: Tensor = conv(torch.cat([large, skip], 1))
        return result

    return Function(forward, nn.Conv2d(96, 32, 3, padding=1))


def _channels_last(conv: nn.Module) -> nn.Module:
    return Function(lambda x, own: own(x.permute(0, 3, 1, 2)), conv)


def _tokens(conv: nn.Module, after: nn.Module) -> nn.Module:
    return Function(lambda x, own, last: last(own(x).flatten(2).transpose(1, 2)), conv, after)


def _cumulative(axis: int) -> nn.Module:
    return Function(lambda x: torch.cumsum(x, axis))


IMAGE, TOKENS = ((1, 192, 40, 40),), ((1, 196, 192),)
BLOCKS: dict[str, Block] = {
    "channel norm": (partial(ChannelNorm, 192), IMAGE),
    "RDNet": (_rdnet, IMAGE),
    "MambaOut": (_mambaout, ((1, 40, 40, 48),)),
    "ConvNeXt": (_convnext, ((1, 96, 56, 56),)),
    "conformer": (_conformer, ((1, 200, 144),)),
    "temporal convolutions": (_tcn, ((4, 64, 400),)),
    "WaveNet": (_wavenet, ((1, 64, 800),)),
    "wav2vec": (_wav2vec, ((1, 1, 8000),)),
    "Res2Net": (_res2net, ((1, 64, 56, 56),)),
    "ShuffleNet": (_shufflenet, ((1, 116, 28, 28),)),
    "Swin merging": (_swin_merge, ((1, 56, 56, 96),)),
    "XCiT": (_xcit, TOKENS),
    "linear attention": (_linear_attention, ((1, 784, 192),)),
    "attention": (_attention, TOKENS),
    "mixer": (_mixer, TOKENS),
    "squeeze and excitation": (_squeeze, ((1, 128, 28, 28),)),
    "pyramid pooling": (_pyramid, ((1, 128, 24, 24),)),
    "bilinear decoder": (_decoder, ((1, 64, 28, 28), (1, 32, 56, 56))),
    "bilinear, twice": (
        lambda: _enlarged(nn.Conv2d(32, 32, 3, padding=1), 2), ((1, 32, 56, 56),)
    ),
    "bilinear, 8 times": (
        lambda: _enlarged(nn.Conv2d(64, 21, 1), 8), ((1, 64, 65, 65),)
    ),
    "1x1, channels last": (lambda: _channels_last(nn.Conv2d(192, 768, 1)), ((1, 40, 40, 192),)),
    "3x3, channels last": (lambda: _channels_last(nn.Conv2d(64, 64, 3, padding=1)), ((1, 56, 56, 64),)),
    "depthwise, channels last": (
        lambda: _channels_last(nn.Conv2d(64, 64, 3, padding=1, groups=64)), ((1, 56, 56, 64),)
    ),
    "tokens of a convolution": (lambda: _tokens(nn.Conv2d(16, 192, 1), nn.Linear(192, 192)), ((1, 16, 28, 28),)),
    "patches, normalized": (lambda: _tokens(nn.Conv2d(3, 192, 16, 16), nn.LayerNorm(192)), ((1, 3, 224, 224),)),
    "group norm": (
        lambda: nn.Sequential(nn.GroupNorm(32, 128), nn.SiLU(), nn.Conv2d(128, 128, 3, padding=1)), ((1, 128, 32, 32),)
    ),
    "pixel shuffle": (
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(16, 16, 3, padding=1)),
        ((1, 64, 56, 56),),
    ),
    "3-D convolutions": (
        lambda: nn.Sequential(nn.Conv3d(16, 16, 3, padding=1), nn.SiLU(), nn.Conv3d(16, 16, (3, 1, 1))),
        ((1, 16, 8, 28, 28),),
    ),
    "running sum": (partial(_cumulative, 1), ((8, 512, 64),)),
    "running sum of rows": (partial(_cumulative, 2), ((8, 512, 64),)),
}  # fmt: skip
"""Constructor of each block, with random weights, and the shapes of its inputs."""

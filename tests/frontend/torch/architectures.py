"""Small networks of the usual kinds, with random weights and calibrated normalizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        same = channels == out and stride == 1
        self.skip = nn.Identity() if same else nn.Sequential(nn.Conv2d(channels, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.skip(x)
        return F.relu_(y)


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(32, 10))


class Inverted(nn.Module):
    """Expansion, depthwise convolution, squeeze and excitation, projection."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), nn.SiLU(), nn.Conv2d(8, wide, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        y = self.project(y * self.squeeze(y))
        return x + y if self.stride == 1 else y


def mobilenet() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish()]
    return nn.Sequential(
        *stem, Inverted(16, 1), Inverted(16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 7)
    )


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU("tanh"), nn.Linear(4 * dim, dim), nn.Dropout(0.1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.before(x), mask)
        return x + self.mlp(self.after(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.position = nn.Parameter(torch.randn(1, 17, 32))
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.position
        for block in self.blocks:
            y = block(y)
        return self.head(y[:, 0])


class Swin(nn.Module):
    """Attention in shifted windows with a mask, as Swin has it; written into slices as its code does."""

    def __init__(self, size: int = 8, window: int = 4, dim: int = 24) -> None:
        super().__init__()
        self.window, self.shift = window, window // 2
        self.patch, self.norm = nn.Conv2d(3, dim, 4, 4), nn.LayerNorm(dim)
        self.attention = Attention(dim, 3)
        self.merge = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.bias = nn.Parameter(torch.randn((2 * window - 1) ** 2, 3))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = (at[:, :, None] - at[:, None]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", relative[..., 0] * (2 * window - 1) + relative[..., 1], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.patch(x).permute(0, 2, 3, 1))
        b, h, w, _ = y.shape
        s = self.window
        y = y + self._back(
            self.attention(self._windows(torch.roll(y, (-self.shift,) * 2, (1, 2))), self._mask(b, h, w)), b, h, w
        )
        y = torch.cat([y[:, 0::2, 0::2], y[:, 1::2, 0::2], y[:, 0::2, 1::2], y[:, 1::2, 1::2]], -1)
        return self.merge(y).mean((1, 2)) * s

    def _windows(self, y: Tensor) -> Tensor:
        b, h, w, d = y.shape
        s = self.window
        return y.view(b, h // s, s, w // s, s, d).transpose(2, 3).reshape(-1, s * s, d)

    def _back(self, y: Tensor, b: int, h: int, w: int) -> Tensor:
        s = self.window
        y = y.view(b, h // s, w // s, s, s, -1).transpose(2, 3).reshape(b, h, w, -1)
        return torch.roll(y, (self.shift,) * 2, (1, 2))

    def _mask(self, b: int, h: int, w: int) -> Tensor:
        regions, count = torch.zeros(1, h, w, 1), 0
        for rows in (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None)):
            for columns in (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None)):
                regions[:, rows, columns] = count
                count += 1
        of = self._windows(regions).squeeze(-1)
        mask = (of[:, None] - of[:, :, None]).ne(0) * -100.0
        bias = self.bias[self.index.view(-1)].view(*self.index.shape, -1).permute(2, 0, 1)
        return mask.repeat(b, 1, 1).unsqueeze(1) + bias


class BERT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.norm = nn.LayerNorm(32)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.pooler = nn.Linear(32, 32)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        y = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        attended = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        for block in self.blocks:
            y = block(y, attended)
        return {"states": y, "pooled": torch.tanh(self.pooler(y[:, 0]))}


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block(32, 4, causal=True) for _ in range(2))
        self.norm = nn.LayerNorm(32)

    def forward(self, ids: Tensor) -> Tensor:
        y = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            y = block(y)
        return F.linear(self.norm(y), self.words.weight)


class Llama(nn.Module):
    """RMS norm, rotary positions, grouped queries, gated MLP."""

    def __init__(self, dim: int = 32, heads: int = 4, shared: int = 2) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, dim // heads
        self.words, self.first, self.second = nn.Embedding(50, dim), nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate, self.up, self.down = nn.Linear(dim, 64), nn.Linear(dim, 64), nn.Linear(64, dim)
        self.register_buffer("inverse", 10000.0 ** -(torch.arange(0, self.size, 2) / self.size), persistent=False)

    def _rotated(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            angles = torch.outer(torch.arange(x.shape[2]).float(), self.inverse)
            angles = torch.cat([angles, angles], -1)
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        b, n, d = x.shape
        y = self.first(x)
        q = self._rotated(self.q(y).view(b, n, self.heads, self.size).transpose(1, 2))
        k, v = self.kv(y).view(b, n, 2, self.shared, self.size).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, self._rotated(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8)
        self.rnn = nn.RNN(8, 4, nonlinearity="relu", bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor, Tensor]:
        y, states = self.lstm(x)
        z, last = self.gru(y.transpose(0, 1), torch.ones(1, x.shape[0], 8))
        return z, states, last, self.rnn(z)[0]


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.inner = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.1))
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.down(x)
        b = self.inner(a)
        y = torch.cat([a, self.up(b)], 1)
        coarse = F.interpolate(b.mean(1, keepdim=True), scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(y) + coarse, F.interpolate(coarse, size=(5, 6), mode="nearest")


def _ids(*shape: int) -> Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(3))


def _image(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4))


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)), lambda b: (_image(b, 12),)),
    "resnet": (resnet, lambda b: (_image(b, 3, 32, 32),)),
    "mobilenet": (mobilenet, lambda b: (_image(b, 3, 32, 32),)),
    "convnext": (lambda: nn.Sequential(nn.Conv2d(3, 16, 4, 4), ConvNeXtBlock(16), ConvNeXtBlock(16)),
                 lambda b: (_image(b, 3, 32, 32),)),
    "vit": (ViT, lambda b: (_image(b, 3, 32, 32),)),
    "swin": (Swin, lambda b: (_image(b, 3, 32, 32),)),
    "bert": (BERT, lambda b: (_ids(b, 9), (_ids(b, 9) > 5).long())),
    "gpt": (GPT, lambda b: (_ids(b, 9),)),
    "llama": (Llama, lambda b: (_ids(b, 9),)),
    "recurrent": (Recurrent, lambda b: (_image(b, 7, 6),)),
    "unet": (UNet, lambda b: (_image(b, 3, 16, 20),)),
}  # fmt: skip


def made(name: str) -> nn.Module:
    """The network with random weights, its running statistics those of some random inputs."""
    torch.manual_seed(0)
    network = ARCHITECTURES[name][0]()
    inputs = ARCHITECTURES[name][1](4)
    with torch.no_grad():
        for _ in range(20):
            network(*inputs)
    return network.eval()


def inputs_of(name: str, batch: int = 2) -> tuple[Any, ...]:
    return ARCHITECTURES[name][1](batch)

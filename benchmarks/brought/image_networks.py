"""Small networks on images that people write by hand; a function gives module, arguments, open extents, names.

Needs torch, and where a function says so torchvision or diffusers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Given = tuple[Any, ...]
BATCH = {0: {0: "batch"}}
PIXELS = {0: {0: "batch", 2: "height", 3: "width"}}


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def conv(before: int, after: int, kernel: int = 3, stride: int = 1, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after), act())


def unet() -> Given:
    def double(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(conv(before, after), conv(after, after))

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top, self.middle, self.bottom = double(3, 16), double(16, 32), double(32, 64)
            self.up, self.smooth = nn.ConvTranspose2d(64, 32, 2, 2), double(64, 32)
            self.larger, self.last = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), double(48, 16)
            self.head = nn.Conv2d(16, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            a = self.top(x)
            b = self.middle(F.max_pool2d(a, 2))
            c = self.bottom(F.max_pool2d(b, 2))
            y = self.smooth(torch.cat([self.up(c), b], 1))
            return self.head(self.last(torch.cat([self.larger(y), a], 1)))

    return Unet(), (torch.randn(1, 3, 64, 64),), PIXELS


def yolo() -> Given:
    """A detector's backbone, neck and heads with distributions over distances, decoded to boxes."""

    class Split(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            half = width // 2
            self.first, self.last = conv(width, width, 1, act=nn.SiLU), conv(3 * half, width, 1, act=nn.SiLU)
            self.inner = nn.Sequential(conv(half, half, act=nn.SiLU), conv(half, half, act=nn.SiLU))

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.first(x).chunk(2, 1)
            return self.last(torch.cat([a, b, b + self.inner(b)], 1))

    class Yolo(nn.Module):
        def __init__(self, classes: int = 4, bins: int = 16) -> None:
            super().__init__()
            self.stem = nn.Sequential(conv(3, 16, 3, 2, nn.SiLU), conv(16, 32, 3, 2, nn.SiLU), Split(32))
            self.fine = nn.Sequential(conv(32, 64, 3, 2, nn.SiLU), Split(64))
            self.coarse = nn.Sequential(conv(64, 64, 3, 2, nn.SiLU), Split(64))
            self.up, self.fused = nn.Upsample(scale_factor=2), conv(128, 64, 1, act=nn.SiLU)
            self.heads = nn.ModuleList(nn.Conv2d(64, 4 * bins + classes, 1) for _ in range(2))
            self.bins: Tensor
            self.register_buffer("bins", torch.arange(float(bins)).view(1, 1, bins, 1))

        def forward(self, x: Tensor) -> Tensor:
            fine = self.fine(self.stem(x))
            coarse = self.coarse(fine)
            pooled = F.max_pool2d(coarse, 5, 1, 2)
            fine = self.fused(torch.cat([fine, self.up(coarse + pooled)], 1))
            found = [
                self.decode(head(y), stride)
                for head, y, stride in zip(self.heads, (fine, coarse), (8.0, 16.0), strict=True)
            ]
            return torch.cat(found, 2)

        def decode(self, y: Tensor, stride: float) -> Tensor:
            n, _, h, w = y.shape
            sides = (y[:, :64].view(n, 4, 16, h * w).softmax(2) * self.bins).sum(2)
            rows, columns = torch.meshgrid(torch.arange(float(h)), torch.arange(float(w)), indexing="ij")
            center = torch.stack([columns.reshape(-1), rows.reshape(-1)]) + 0.5
            scores = y[:, 64:].reshape(n, -1, h * w).sigmoid()
            return torch.cat([(center - sides[:, :2]) * stride, (center + sides[:, 2:]) * stride, scores], 1)

    return Yolo(), (torch.randn(1, 3, 64, 64),), PIXELS


def style_transfer() -> Given:
    net = nn.Sequential(
        nn.ReflectionPad2d(4), nn.Conv2d(3, 8, 9), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
        nn.ReflectionPad2d(1), nn.Conv2d(8, 16, 3, 2), nn.InstanceNorm2d(16), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.Conv2d(16, 3, 3, padding=1), nn.Tanh(),
    )  # fmt: skip
    return net, (torch.randn(1, 3, 64, 64),), PIXELS


def super_resolution() -> Given:
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 16, 3, padding=1), nn.Tanh(),
        nn.Conv2d(16, 9, 3, padding=1), nn.PixelShuffle(3),
    )  # fmt: skip
    return net, (torch.randn(1, 1, 48, 48),), PIXELS


def deformconv() -> Given:
    from torchvision.ops import DeformConv2d

    class Deformed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offsets, self.conv = nn.Conv2d(4, 18, 3, padding=1), DeformConv2d(4, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x, self.offsets(x))

    return Deformed(), (torch.randn(1, 4, 16, 16),)


def dcgan() -> Given:
    net = nn.Sequential(
        nn.ConvTranspose2d(32, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    return net, (torch.randn(2, 32, 1, 1),), BATCH


def segnet() -> Given:
    """Pooling that hands its positions to an unpooling."""

    class Segnet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)
            self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            y, positions = self.pool(torch.relu(self.first(x)))
            return self.last(self.unpool(y, positions))

    return Segnet(), (torch.randn(1, 3, 16, 16),)


def keypoints() -> Given:
    """A pose head: heat maps, and their expected positions."""

    class Pose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2), Residual(conv(32, 32)))
            self.up, self.head = nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.Conv2d(16, 5, 1)

        def forward(self, x: Tensor) -> Tensor:
            maps = self.head(torch.relu(self.up(self.net(x))))
            n, k, h, w = maps.shape
            weight = maps.view(n, k, h * w).softmax(2).view(n, k, h, w)
            column = (weight.sum(2) * torch.arange(w)).sum(2)
            row = (weight.sum(3) * torch.arange(h)).sum(2)
            return torch.stack([column, row, maps.amax((2, 3))], 2)

    return Pose(), (torch.randn(1, 3, 64, 48),), BATCH


def matting() -> Given:
    """A guided filter behind a coarse mask of one channel: box sums, divisions, bilinear resizing."""

    class Matting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.coarse = nn.Sequential(conv(3, 8, 3, 2), nn.Conv2d(8, 1, 3, padding=1), nn.Sigmoid())

        def forward(self, x: Tensor) -> Tensor:
            small = F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)
            guide, mask = small.mean(1, keepdim=True), self.coarse(x)
            box = lambda t: F.avg_pool2d(t, 5, 1, 2, count_include_pad=False)  # noqa: E731
            mean, center = box(guide), box(mask)
            slope = (box(guide * mask) - mean * center) / (box(guide * guide) - mean * mean + 1e-3)
            offset = center - slope * mean
            sized = [F.interpolate(t, size=x.shape[2:], mode="bilinear", align_corners=False) for t in (slope, offset)]
            return (sized[0] * x.mean(1, keepdim=True) + sized[1]).clamp(0, 1)

    return Matting(), (torch.rand(1, 3, 64, 64),)


def siamese() -> Given:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 16))
            self.net = nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2), *pooled)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return F.cosine_similarity(F.normalize(self.net(a)), F.normalize(self.net(b)))

    axes = {0: {0: "batch"}, 1: {0: "batch"}}
    return Siamese(), (torch.randn(2, 3, 32, 32), torch.randn(2, 3, 32, 32)), axes


def capsules() -> Given:
    """Dynamic routing: products in a fixed number of rounds."""

    class Capsules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.primary = nn.Conv2d(1, 32, 5, 2)
            self.weight = nn.Parameter(torch.randn(1, 5, 4 * 12 * 12, 8, 8) * 0.1)

        def forward(self, x: Tensor) -> Tensor:
            u = self.primary(x).view(x.shape[0], 1, -1, 1, 8)
            votes = (u @ self.weight).squeeze(3)
            logits = torch.zeros(x.shape[0], 5, votes.shape[2])
            for _ in range(3):
                s = (logits.softmax(1).unsqueeze(3) * votes).sum(2)
                length = (s * s).sum(2, keepdim=True)
                v = s * length / ((1 + length) * (length + 1e-8).sqrt())
                logits = logits + (votes * v.unsqueeze(2)).sum(3)
            return v.norm(dim=2)

    return Capsules(), (torch.randn(1, 1, 28, 28),)


def diffusion_unet() -> Given:
    from diffusers import UNet2DConditionModel

    inner = UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=8,
    )  # fmt: skip

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor, t: Tensor, context: Tensor) -> Tensor:
            return self.inner(x, t, context, return_dict=False)[0]

    arguments = (torch.randn(1, 4, 16, 16), torch.tensor([10]), torch.randn(1, 7, 32))
    return Step(), arguments, {0: {0: "batch"}, 2: {0: "batch"}}, ["sample", "timestep", "context"]


def diffusion_vae() -> Given:
    from diffusers import AutoencoderKL

    inner = AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, sample_size=16,
    )  # fmt: skip

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, z: Tensor) -> Tensor:
            return self.inner.decode(z, return_dict=False)[0]

    return Decoder(), (torch.randn(1, 4, 8, 8),), BATCH

"""Networks of parallel branches that are concatenated: Inception-v3 and SqueezeNet 1.1, for 1000 classes."""

import torch
from torch import Tensor, nn

Kernel = int | tuple[int, int]


class Branches(nn.Module):
    """The outputs of several branches of one input, concatenated by channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def chain(channels: int, *layers: tuple[int, Kernel] | tuple[int, Kernel, int], padded: bool = True) -> nn.Sequential:
    """Convolutions given as (channels, kernel) or (channels, kernel, stride), each with normalization and ReLU.

    Those of stride 1 keep the size if ``padded``; the others are not padded.
    """
    modules: list[nn.Module] = []
    for width, kernel, *stride in layers:
        height, breadth = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (height // 2, breadth // 2) if padded and not stride else (0, 0)
        modules += [
            nn.Conv2d(channels, width, (height, breadth), stride[0] if stride else 1, padding, bias=False),
            nn.BatchNorm2d(width, eps=1e-3),
            nn.ReLU(),
        ]
        channels = width
    return nn.Sequential(*modules)


def pooled(channels: int, width: int) -> nn.Sequential:
    """3×3 averages and a 1×1 convolution."""
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), chain(channels, (width, 1)))


def block_35(channels: int, pool: int) -> nn.Module:
    """The module for 35×35 (Szegedy et al. 2016, figure 5), its first 3×3 pair one 5×5 as in the authors' code."""
    return Branches(
        chain(channels, (64, 1)), chain(channels, (48, 1), (64, 5)), chain(channels, (64, 1), (96, 3), (96, 3)),
        pooled(channels, pool),
    )  # fmt: skip


def block_17(channels: int, width: int) -> nn.Module:
    """The module for 17×17 with 7×7 convolutions factorized (figure 6)."""
    return Branches(
        chain(channels, (192, 1)),
        chain(channels, (width, 1), (width, (1, 7)), (192, (7, 1))),
        chain(channels, (width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))),
        pooled(channels, 192),
    )


def block_8(channels: int) -> nn.Module:
    """The module for 8×8 with expanded filter banks (figure 7)."""

    def expanded(*layers: tuple[int, Kernel]) -> nn.Sequential:
        return nn.Sequential(chain(channels, *layers), Branches(chain(384, (384, (1, 3))), chain(384, (384, (3, 1)))))

    return Branches(chain(channels, (320, 1)), expanded((384, 1)), expanded((448, 1), (384, 3)), pooled(channels, 192))


def inception_v3() -> nn.Module:
    """Inception-v3 for 3×299×299 images, without the auxiliary classifier (Szegedy et al. 2016, table 1)."""
    return nn.Sequential(
        chain(3, (32, 3, 2)), chain(32, (32, 3), padded=False), chain(32, (64, 3)), nn.MaxPool2d(3, 2),
        chain(64, (80, 1)), chain(80, (192, 3), padded=False), nn.MaxPool2d(3, 2),
        block_35(192, 32), block_35(256, 64), block_35(288, 64),
        Branches(chain(288, (384, 3, 2)), chain(288, (64, 1), (96, 3), (96, 3, 2)), nn.MaxPool2d(3, 2)),
        block_17(768, 128), block_17(768, 160), block_17(768, 160), block_17(768, 192),
        Branches(
            chain(768, (192, 1), (320, 3, 2)),
            chain(768, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)),
            nn.MaxPool2d(3, 2),
        ),
        block_8(1280), block_8(2048),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000),
    )  # fmt: skip


def fire(channels: int, squeeze: int, expand: int) -> nn.Module:
    """1×1 convolution to few channels, then 1×1 and 3×3 side by side (Iandola et al. 2016, figure 1)."""
    return nn.Sequential(
        nn.Conv2d(channels, squeeze, 1), nn.ReLU(),
        Branches(
            nn.Sequential(nn.Conv2d(squeeze, expand, 1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(squeeze, expand, 3, padding=1), nn.ReLU()),
        ),
    )  # fmt: skip


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1 for 3×224×224 images: the authors' release with 3×3 filters first and earlier pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(64, 16, 64), fire(128, 16, 64), nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(128, 32, 128), fire(256, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256),
        nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip

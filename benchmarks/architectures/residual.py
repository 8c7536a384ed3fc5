"""Networks of residual blocks: ResNet-50, ResNeXt-50 and RepVGG-A0, for 3×224×224 images and 1000 classes."""

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1×1, 3×3 (in groups), 1×1 convolution with a shortcut (He et al. 2016, figure 5; Xie et al. 2017, figure 3c)."""

    def __init__(self, channels_in: int, width: int, channels_out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *normalized(channels_in, width, 1, 1, 1), nn.ReLU(),
            *normalized(width, width, 3, stride, groups), nn.ReLU(),
            *normalized(width, channels_out, 1, 1, 1),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(*normalized(channels_in, channels_out, 1, stride, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def normalized(channels_in: int, channels_out: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    """A convolution without bias, and its batch normalization."""
    return [
        nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out),
    ]


def bottlenecks(width: int, groups: int) -> nn.Module:
    """Stages of 3, 4, 6 and 3 bottlenecks, the first of ``width`` channels inside and 256 outside."""
    layers: list[nn.Module] = [*normalized(3, 64, 7, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, repeats in enumerate((3, 4, 6, 3)):
        for index in range(repeats):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(Bottleneck(channels, width << stage, 256 << stage, stride, groups))
            channels = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def resnet50() -> nn.Module:
    """ResNet-50 (He et al. 2016, table 1), with the stride in the 3×3 convolution."""
    return bottlenecks(64, 1)


def resnext50() -> nn.Module:
    """ResNeXt-50 of 32 groups, 4 channels wide (Xie et al. 2017, table 1)."""
    return bottlenecks(128, 32)


class RepVggBlock(nn.Module):
    """3×3 and 1×1 convolution and identity, each normalized, added (Ding et al. 2021, figure 4): the training form."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                nn.Sequential(*normalized(channels_in, channels_out, 3, stride, 1)),
                nn.Sequential(*normalized(channels_in, channels_out, 1, stride, 1)),
            ]
        )
        if channels_in == channels_out and stride == 1:
            self.branches.append(nn.BatchNorm2d(channels_in))

    def forward(self, x: Tensor) -> Tensor:
        total = self.branches[0](x)
        for branch in self.branches[1:]:
            total = total + branch(x)
        return torch.relu(total)


def repvgg_a0() -> nn.Module:
    """RepVGG-A0 before its branches are merged (Ding et al. 2021, tables 2 and 3: a = 0.75, b = 2.5)."""
    layers: list[nn.Module] = []
    channels = 3
    for width, repeats in ((48, 1), (48, 2), (96, 4), (192, 14), (1280, 1)):
        for index in range(repeats):
            layers.append(RepVggBlock(channels, width, 2 if index == 0 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))

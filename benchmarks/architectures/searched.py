"""Networks found by neural architecture search: the NAS recurrent cell and NASNet-A."""

import torch
from torch import Tensor, nn


class NasRnn(nn.Module):
    """The recurrent cell of Zoph and Le 2017 without its memory, as TASO has it (thesis-jia section 2.9), unrolled.

    Inputs (steps, batch, hidden) to the last state (batch, hidden). The eight gates are products of their own: merging
    them is what a rewriting system has to find. The steps share their weights, and the first state is one.
    """

    def __init__(self, hidden: int = 512) -> None:
        super().__init__()
        self.inputs, self.states = (
            nn.ModuleList([nn.Linear(hidden, hidden, bias=False) for _ in range(8)]) for _ in range(2)
        )
        self.first = nn.Parameter(torch.randn(1, hidden))

    def forward(self, xs: Tensor) -> Tensor:
        state = self.first
        for x in xs.unbind(0):
            state = self.step(x, state)
        return state

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        gates = [u(x) + v(state) for u, v in zip(self.inputs, self.states, strict=True)]
        relu, sigmoid, tanh = torch.relu, torch.sigmoid, torch.tanh
        pairs = [
            relu(gates[0]) + sigmoid(gates[3]),
            sigmoid(gates[1]) + tanh(gates[2]),
            sigmoid(gates[4]) * tanh(gates[5]),
            sigmoid(gates[6]) * relu(gates[7]),
        ]
        left, right = sigmoid(pairs[1]) + tanh(pairs[2]), tanh(pairs[0]) * tanh(pairs[3])
        return tanh(tanh(left) * tanh(right))


class SeparableConv(nn.Sequential):
    """ReLU, depthwise and 1×1 convolution, normalization; all twice, the stride in the first (Zoph et al. 2018)."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int = 1) -> None:
        super().__init__(*self.half(channels, width, kernel, stride), *self.half(width, width, kernel, 1))

    @staticmethod
    def half(channels: int, width: int, kernel: int, stride: int) -> list[nn.Module]:
        return [
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False),
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
        ]


class Projection(nn.Sequential):
    """ReLU, 1×1 convolution, normalization; nothing if the channels are right already."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        if channels != width:
            super().__init__(nn.ReLU(), nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))


class Halving(nn.Module):
    """Half the height and width, without loss of the odd pixels: two 1×1 convolutions of stride 2, one pixel apart."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(channels, width // 2, 1, 2, bias=False)
        self.odd = nn.Conv2d(channels, width - width // 2, 1, 2, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        shifted = nn.functional.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], dim=1))


class Cell(nn.Module):
    """Two inputs brought to ``width`` channels: the output of the cell before, and of the one before that.

    The latter, of ``before`` channels, by ``adjustment``: Projection, Halving if it is larger, or Identity if it stays.
    """

    def __init__(self, before: int, current: int, width: int, adjustment: type[nn.Module]) -> None:
        super().__init__()
        self.before = adjustment(before, width)
        self.current = Projection(current, width)
        self.average = nn.AvgPool2d(3, 1, 1, count_include_pad=False)


class NormalCell(Cell):
    """Zoph et al. 2018, figure 4, left: 6 · ``width`` channels."""

    def __init__(self, before: int, current: int, width: int, adjustment: type[nn.Module]) -> None:
        super().__init__(before, current, width, adjustment)
        self.branches = nn.ModuleList([SeparableConv(width, width, kernel) for kernel in (3, 3, 5, 5, 3)])

    def forward(self, before: Tensor, current: Tensor) -> Tensor:
        p, h = self.before(before), self.current(current)
        first, second, third, fourth, fifth = self.branches
        parts = [
            p, first(h) + h, second(p) + third(h), self.average(h) + p, self.average(p) + self.average(p),
            fourth(p) + fifth(p),
        ]  # fmt: skip
        return torch.cat(parts, dim=1)


class ReductionCell(Cell):
    """Zoph et al. 2018, figure 4, right: 4 · ``width`` channels, half the height and width."""

    def __init__(self, before: int, current: int, width: int, adjustment: type[nn.Module]) -> None:
        super().__init__(before, current, width, adjustment)
        p = before if adjustment is nn.Identity else width
        sources = ((p, 7), (width, 5), (p, 7), (p, 5))
        self.branches = nn.ModuleList([SeparableConv(channels, width, kernel, 2) for channels, kernel in sources])
        self.last = SeparableConv(width, width, 3)
        self.maximum = nn.MaxPool2d(3, 2, 1)
        self.halved_average = nn.AvgPool2d(3, 2, 1, count_include_pad=False)

    def forward(self, before: Tensor, current: Tensor) -> Tensor:
        p, h = self.before(before), self.current(current)
        first, second, third, fourth = self.branches
        sum1 = first(p) + second(h)
        sum2 = self.maximum(h) + third(p)
        sum3 = self.halved_average(h) + fourth(p)
        sum4 = self.maximum(h) + self.last(sum1)
        sum5 = self.average(sum1) + sum2
        return torch.cat([sum2, sum3, sum4, sum5], dim=1)


class NasNetA(nn.Module):
    """NASNet-A (4 @ 1056), the mobile one, for 3×224×224 images and 1000 classes (Zoph et al. 2018, appendix A.4).

    A 3×3 convolution of stride 2, two reduction cells, then three times four normal cells with reductions between; no
    auxiliary classifier and no path dropping, which are for training.
    """

    def __init__(self, repeats: int = 4, channels: int = 1056, stem: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, 2, bias=False), nn.BatchNorm2d(stem))
        self.cells = nn.ModuleList()
        width = channels // 24
        plan = [(ReductionCell, width // 4), (ReductionCell, width // 2)]
        for stage in range(3):
            plan += [(ReductionCell, width << stage)] if stage else []
            plan += [(NormalCell, width << stage)] * repeats
        before, current, adjustment = stem, stem, nn.Identity
        for kind, size in plan:
            self.cells.append(kind(before, current, size, adjustment))
            before, current = current, (4 if kind is ReductionCell else 6) * size
            adjustment = Halving if kind is ReductionCell else Projection
        self.classifier = nn.Linear(current, 1000)

    def forward(self, x: Tensor) -> Tensor:
        before = current = self.stem(x)
        for cell in self.cells:
            before, current = current, cell(before, current)
        return self.classifier(torch.relu(current).mean(dim=(2, 3)))

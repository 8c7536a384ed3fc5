"""Loss curves of training against PyTorch's, from the same weights and data: ResNet-18, an LSTM, a small GPT.

`python -m benchmarks.curves [NAME ...] [--steps N] [--threads N] [--double] [--note TEXT] [--json FILE]`. The bar: at
most 0.001 apart, each step; of losses above 1 a part of them. Rounding grows from step to step: with `--double` PyTorch
trains a second time, in float64, and the distances of both float32 curves from that one are printed.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import burnish as bn
from benchmarks import networks
from burnish.machines.target import target

BAR = 1e-3
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Curve:
    """Losses of both, step by step; ``double``: PyTorch's in float64, empty where that was not run."""

    name: str
    ours: list[float]
    torch: list[float]
    double: list[float]

    @property
    def apart(self) -> float:
        """The greatest difference of all steps."""
        return greatest(self.ours, self.torch)

    @property
    def from_double(self) -> dict[str, float]:
        """The same of both from PyTorch's float64 curve; nothing where that was not run."""
        curves = {"ours_from_float64": self.ours, "torch_from_float64": self.torch} if self.double else {}
        return {key: greatest(losses, self.double) for key, losses in curves.items()}


def greatest(losses: Sequence[float], others: Sequence[float]) -> float:
    """The greatest difference of two curves, relative to the second where that is above 1."""
    return max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(losses, others, strict=True))


class Gpt(nn.Module):
    """Four pre-norm blocks of 128 features and 4 heads over 64 tokens of a vocabulary of 2000."""

    def __init__(self, words: int = 2000, width: int = 128, layers: int = 4, heads: int = 4, tokens: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        count = ids.shape[1]
        x = self.words(ids) + self.places(torch.arange(count))
        mask = nn.Transformer.generate_square_subsequent_mask(count, dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(self.norm(x))


class LanguageModel(nn.Module):
    """Two LSTM layers of 200 units over 100 steps, which repeat one body, of a vocabulary of 1000."""

    def __init__(self, words: int = 1000, hidden: int = 200) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(words, hidden), nn.LSTM(hidden, hidden, 2)
        self.decoder = nn.Linear(hidden, words)

    def forward(self, ids: Tensor) -> Tensor:
        return self.decoder(self.lstm(self.embedding(ids))[0])


def images() -> tuple[nn.Module, list[Batch]]:
    """ResNet-18 on four batches of 16 images of 64 x 64."""
    network = networks.resnet18()
    for module in network.modules():
        networks.initialize(module)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    return network, [(torch.randn(16, 3, 64, 64), torch.randint(0, 1000, (16,))) for _ in range(4)]


def texts(network: nn.Module, words: int, shape: tuple[int, int], along: int) -> tuple[nn.Module, list[Batch]]:
    """Four batches of random words, of which every other one repeats the one before."""
    batches = []
    for _ in range(4):
        ids = torch.randint(0, words, shape).transpose(0, along)
        ids[1::2] = ids[0:-1:2]
        ids = ids.transpose(0, along)
        count = shape[along] - 1
        batches.append((ids.narrow(along, 0, count).contiguous(), ids.narrow(along, 1, count).contiguous()))
    return network, batches


SETUPS: dict[str, tuple[Callable[[], tuple[nn.Module, list[Batch]]], float]] = {
    "resnet18": (images, 0.0001),
    "lstm": (lambda: texts(LanguageModel(), 1000, (101, 8), 0), 1.0),
    "gpt": (lambda: texts(Gpt(), 2000, (8, 65), 1), 0.05),
}


def measure(name: str, steps: int, threads: int, double: bool = False) -> Curve:
    """The curves of one network, by SGD with momentum 0.9."""
    torch.manual_seed(0)
    make, rate = SETUPS[name]
    network, batches = make()
    exact = copy.deepcopy(network).double() if double else None
    step = bn.compile(network, batches[0][0], train=bn.Train(optimizer=bn.SGD(rate, momentum=0.9)), threads=threads)
    given = [batches[k % len(batches)] for k in range(steps)]
    theirs = losses_of(network, given, rate)
    ours = [float(step(np.ascontiguousarray(x.numpy()), y.numpy())) for x, y in given]
    return Curve(name, ours, theirs, [] if exact is None else losses_of(exact, given, rate))


def losses_of(network: nn.Module, given: Sequence[Batch], rate: float) -> list[float]:
    """PyTorch's losses, of each step before its update; the network is trained."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), rate, momentum=0.9)
    dtype, losses = next(network.parameters()).dtype, []
    for x, y in given:
        optimizer.zero_grad()
        logits = network(x.to(dtype) if x.is_floating_point() else x)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each network; 1 if one is too far apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*SETUPS], metavar="NAME", help=", ".join(SETUPS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--double", action="store_true", help="PyTorch in float64 as well")
    parser.add_argument("--note", default="", help="said in the JSON file")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    found, missed = list[dict[str, Any]](), False
    for name in given.names:
        curve = measure(name, given.steps, given.threads, given.double)
        found.append({**asdict(curve), "apart": curve.apart, **curve.from_double})
        verdict = "ok" if curve.apart <= BAR else "MISSED"
        missed |= verdict == "MISSED"
        ends = f"{curve.torch[0]:.3f} -> {curve.torch[-1]:.3f}"
        own = "".join(f", {key.replace('_', ' ')} {value:.1e}" for key, value in curve.from_double.items())
        print(f"{name:10} loss {ends:18} apart {curve.apart:.1e} (bar {BAR:.0e}) {verdict}{own}", flush=True)
    if given.json:
        head = {"cpu": target("cpu").cpu, "torch": torch.__version__, "steps": given.steps, "note": given.note}
        given.json.write_text(json.dumps({**head, "rows": found}, indent=1) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())

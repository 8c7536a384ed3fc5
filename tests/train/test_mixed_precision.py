"""Steps in mixed precision are as near to float64 as those of PyTorch's autocast, and GradScaler with float16."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import burnish as bn

nn = torch.nn

RATE, STEPS, SCALE = 0.05, 4, 1024.0


class Causal(nn.Module):
    """Small GPT: embeddings, a block of causal attention and a feed-forward network, a head."""

    def __init__(self, width: int = 32, heads: int = 2, words: int = 48) -> None:
        super().__init__()
        self.heads, self.tokens, self.places = heads, nn.Embedding(words, width), nn.Embedding(16, width)
        self.first, self.second, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down, self.head = nn.Linear(width, 64), nn.Linear(64, width), nn.Linear(width, words)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        own, shape = self.first(x), (*ids.shape, self.heads, -1)
        q, k, v = (f(own).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        x = x + self.down(nn.functional.gelu(self.up(self.second(x))))
        return self.head(self.last(x))


def layers() -> tuple[Any, Any, Any]:
    """Layers of 24, 64 and 10 units, with rows and labels."""
    net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 10))
    return net, torch.randn(16, 24), torch.randint(0, 10, (16,))


def images() -> tuple[Any, Any, Any]:
    """Two convolutions, normalized, a pool and a product, with images and labels."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    return net, torch.randn(8, 3, 12, 12), torch.randint(0, 10, (8,))


def words() -> tuple[Any, Any, Any]:
    """A small GPT, with sentences and the words that follow."""
    ids = torch.randint(0, 48, (4, 16))
    return Causal(), ids, ids.roll(-1, 1)


def autocast(net: Any, x: Any, label: Any, dtype: Any) -> np.ndarray:
    """Losses of PyTorch in mixed precision, and all parameters at the end."""
    optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", SCALE, enabled=dtype == torch.float16)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            logits = net(x)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, -2), label.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return found(losses, net.named_parameters())


def wide(net: Any, x: Any, label: Any) -> np.ndarray:
    """The same in float64."""
    net = net.double()
    x = x.double() if x.is_floating_point() else x
    optimizer, losses = torch.optim.SGD(net.parameters(), RATE, momentum=0.9), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x).flatten(0, -2), label.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return found(losses, net.named_parameters())


def found(losses: list[float], parameters: Any) -> np.ndarray:
    """Losses, and parameters in the order of their names."""
    kept = [np.asarray(p.detach().double()).reshape(-1) for _, p in sorted(parameters)]
    return np.concatenate([np.array(losses), *kept])


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (layers, "float16"),
        pytest.param(images, "bfloat16", marks=pytest.mark.slow),
        pytest.param(images, "float16", marks=pytest.mark.slow),
        pytest.param(words, "bfloat16", marks=pytest.mark.slow), pytest.param(words, "float16", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_step_errs_no_more_than_autocast(model: Callable[[], tuple[Any, Any, Any]], dtype: str) -> None:
    torch.manual_seed(0)
    net, x, label = model()
    exact = wide(copy.deepcopy(net).train(), x, label)
    theirs = autocast(copy.deepcopy(net).train(), x, label, getattr(torch, dtype))
    precision = bn.MixedPrecision(dtype, SCALE if dtype == "float16" else None)
    step = bn.compile(
        net.train(), (x,), train=bn.Train(optimizer=bn.SGD(RATE, momentum=0.9), precision=precision), threads=1
    )
    assert {str(spec.dtype) for spec in step.states} <= {"float32", "float64", "int64"}
    losses = [float(step(x, label)) for _ in range(STEPS)]
    ours = found(losses, [(name, torch.from_numpy(step.state[name])) for name, _ in net.named_parameters()])
    ours, theirs = np.abs(ours - exact), np.abs(theirs - exact)
    rounding = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    assert (ours[:STEPS] <= 2 * theirs[:STEPS].max() + rounding / 8 * exact[:STEPS]).all()
    assert np.sqrt((ours[STEPS:] ** 2).mean()) <= 1.3 * np.sqrt((theirs[STEPS:] ** 2).mean())

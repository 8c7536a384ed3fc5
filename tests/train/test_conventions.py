"""Gradients where a convention decides, at ties, edges and singular points: PyTorch's own values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.marks import slow

F = torch.nn.functional

import burnish as bn  # noqa: E402

CASES: dict[str, tuple[Callable[..., Any], list[list[float]]]] = {
    "maximum of equal elements": (torch.maximum, [[1, 2, 3, 0], [1, 3, 2, 0]]),
    "minimum of equal elements": (torch.minimum, [[1, 2, 3, 0], [1, 3, 2, 0]]),
    "relu at 0": (F.relu, [[0, -0.0, 1, -1]]),
    "clamp at its edges": (lambda x: x.clamp(-1, 2), [[-1, 2, 0, 3]]),
    "clamp at its upper edge alone": (lambda x: x.clamp(max=2), [[-1, 2, 0, 3]]),
    "hardtanh at its edges": (lambda x: F.hardtanh(x, -1, 2), [[-1, 2, 0, 3]]),
    "relu6 at its edges": (F.relu6, [[0, 6, 3, 7]]),
    "leaky_relu at 0": (lambda x: F.leaky_relu(x, 0.1), [[0, -0.0, 1, -1]]),
    "elu at 0": (lambda x: F.elu(x, 0.7), [[0, -0.0, 1, -1]]),
    "abs at 0": (torch.abs, [[0, -0.0, 1, -1]]),
    "amax of equal elements": (lambda x: x.reshape(2, 2).amax(1), [[2, 2, 1, 3]]),
    "amax of all": (lambda x: x.amax(), [[3, 2, 1, 3]]),
    "amin of equal elements": (lambda x: x.reshape(2, 2).amin(1), [[2, 2, 1, 3]]),
    "max along an axis takes one": (lambda x: x.reshape(2, 2).max(1).values, [[2, 2, 1, 3]]),
    "min along an axis takes one": (lambda x: x.reshape(2, 2).min(0).values, [[2, 2, 2, 3]]),
    "norm at a zero vector": (lambda x: x.reshape(2, 2).norm(dim=1), [[0, 0, 3, 4]]),
    "1-norm at a zero vector": (lambda x: x.reshape(2, 2).norm(1, dim=1), [[0, 0, 3, -4]]),
    "greatest norm of equal elements": (lambda x: x.norm(float("inf")), [[4, -4, 3, 4]]),
    "normalize of a zero vector": (lambda x: F.normalize(x.reshape(2, 2), dim=1) * 1e-6, [[0, 0, 3, 4]]),
    "cosine of a zero vector": (lambda x, y: F.cosine_similarity(x, y, 0) * 1e-6, [[0, 0, 0, 0], [1, 2, 3, 4]]),
    "std of equal elements": (lambda x: x.reshape(2, 2).std(1), [[2, 2, 1, 3]]),
    "weight norm of a zero row": (
        lambda v, g: torch._weight_norm(v.reshape(2, 2), g.reshape(4, 1)[:2], 0)[1:], [[1, 2, 3, 4], [2, 3, 0, 0]]
    ),
    "logsumexp with -inf": (
        lambda x: torch.cat([x[:1] * 0 - float("inf"), x[1:]]).logsumexp(0), [[1, 2, 3, 0]]
    ),
    "logaddexp of equal and distant numbers": (torch.logaddexp, [[2, 90, -500, 1], [2, -90, 500, 1.5]]),
    "logaddexp2 of equal and distant numbers": (torch.logaddexp2, [[2, 90, -500, 1], [2, -90, 500, 1.5]]),
    "sinc at 0": (torch.sinc, [[0, -0.0, 0.3, 2.5]]),
    "xlog1py of zeros": (torch.special.xlog1py, [[0, 0, 2, -0.5], [0.1, -0.5, 3, 0.7]]),
    "softmax with -inf": (
        lambda x: x.masked_fill(torch.tensor([True, False, False, True]), -float("inf")).softmax(0), [[1, 2, 3, 0]]
    ),
    "fake quantization at the ends of its range": (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, 2, 0, 15), [[-0.5, 3.25, -0.75, 0.3]]
    ),
    "fake quantization of channels": (
        lambda x: torch.fake_quantize_per_channel_affine(
            x.reshape(2, 2), torch.tensor([0.25, 0.5]), torch.tensor([0, 2], dtype=torch.int32), 0, 0, 3
        ), [[0.75, 1.0, -1.0, -1.5]]
    ),
}  # fmt: skip


class Every(torch.nn.Module):
    """A weighted sum of all cases, each of parameters of its own."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        for i, (_, given) in enumerate(CASES.values()):
            for k, values in enumerate(given):
                setattr(self, f"w{i}_{k}", torch.nn.Parameter(torch.tensor(values, dtype=dtype)))

    def forward(self, x: Any) -> Any:
        total = x.sum() * 0
        for i, (function, given) in enumerate(CASES.values()):
            y = function(*(getattr(self, f"w{i}_{k}") for k in range(len(given))))
            weight = torch.sin(torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) * 0.7 + 0.3)
            total = total + (torch.nan_to_num(y, neginf=0.0) * weight).sum()
        return total


@pytest.mark.parametrize("dtype", slow(["float64", "float32"], "float64"))
def test_conventions_are_those_of_torch(dtype: str) -> None:
    network, x = Every(getattr(torch, dtype)), torch.ones(1, dtype=getattr(torch, dtype))
    network(x).backward()
    before = {name: p.detach().numpy().copy() for name, p in network.named_parameters()}
    wanted = {name: p.grad.numpy() for name, p in network.named_parameters()}
    step = bn.compile(network, (x,), train=bn.Train("output", bn.SGD(1.0)), threads=1)
    step(x.numpy())
    tolerance = 1e-9 if dtype == "float64" else 2e-6
    wrong = {}
    for i, (name, (_, given)) in enumerate(CASES.items()):
        for k in range(len(given)):
            own = f"w{i}_{k}"
            found = before[own] - np.asarray(step.state[own])
            if not np.allclose(found, wanted[own], rtol=tolerance, atol=tolerance):
                wrong[f"{name}, operand {k}"] = (found.tolist(), wanted[own].tolist())
    assert not wrong

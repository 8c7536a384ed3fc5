"""Gradients at ties, edges, zeros, infinities and NaN, where a convention decides: PyTorch's, in both precisions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.marks import slow

F = torch.nn.functional

from burnish.frontend.torch.export import import_torch  # noqa: E402
from burnish.graph.evaluate import evaluate  # noqa: E402
from burnish.graph.gradient import gradients  # noqa: E402

INF, NAN = math.inf, math.nan
ONES, ZEROS = [[1.0] * 4] * 3, [[0.0] * 4] * 3
EDGES = [[-1.0, 0.0, -0.0, 1.0, 2.0, 6.0, -3.0, 3.0, 0.5]]
TIES = [[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-1.0, 5.0, 2.0, 5.0]]
SQUARE = [[2.0, 1.0, 0.5], [0.3, -1.5, 1.0], [1.0, 0.2, 3.0]]
SHARES = [[0.5, -0.2, 3.0, 0.1], [1.5, 0.25, -1.0, 0.7], [0.0, 2.0, -2.5, 1.0], [1.0, 0.3, 0.9, -0.4]]
BAG = torch.tensor([0, 2, 2, 1])


def put(x: torch.Tensor, values: torch.Tensor, among: bool) -> torch.Tensor:
    """Writes at positions that depend on the input, in the first or among the other dimensions."""
    place = (x[0, :2] > 100).long() + torch.tensor([0, 2])
    return x.index_put((place,), values) if not among else x[None].index_put((torch.tensor(0), place), values, True)


def sampled(mode: str, padding: str) -> Callable[..., torch.Tensor]:
    """Values of an image at places inside and outside."""
    return lambda x, g: F.grid_sample(x.view(1, 1, 4, 4), g.view(1, 2, 4, 2), mode, padding, mode == "nearest")


CASES: dict[str, tuple[Any, ...]] = {  # a function, and its arguments
    "maximum": (torch.maximum, ONES, ONES), "minimum": (torch.minimum, TIES, ONES),
    "maximum of NaN": (torch.maximum, [1.0, NAN, 2.0, NAN], [1.0, 1.0, NAN, NAN]),
    "minimum of one tensor": (lambda x: torch.minimum(x, x), TIES),
    "clamp": (lambda x: x.clamp(-1, 1), EDGES), "clamp of NaN": (lambda x: x.clamp(-1, 1), [NAN, 0.0]),
    "clamp below": (lambda x: x.clamp(min=0), EDGES), "clamp above": (lambda x: x.clamp(max=3), EDGES),
    "clamp crossed": (lambda x: x.clamp(1, -1), EDGES),
    "clamp by tensors": (
        lambda x, a, b: x.clamp(a, b),
        [1.0, 2.0, 0.0, NAN, 0.5], [1.0] * 5, [2.0, 2.0, 2.0, 2.0, NAN],
    ),
    "hardtanh": (F.hardtanh, EDGES), "relu6": (F.relu6, EDGES), "hardswish": (F.hardswish, EDGES),
    "hardsigmoid": (F.hardsigmoid, EDGES), "relu": (F.relu, EDGES), "relu of NaN": (F.relu, [NAN, 0.0]),
    "leaky relu": (F.leaky_relu, EDGES), "elu": (lambda x: F.elu(x, 0.7), EDGES), "selu": (F.selu, EDGES),
    "celu": (lambda x: F.celu(x, 1.5), EDGES), "softshrink": (F.softshrink, EDGES), "abs": (torch.abs, EDGES),
    "prelu": (lambda x, w: F.prelu(x, w), EDGES, [0.3] * 9),
    "amax": (lambda x: x.amax(1), TIES), "amin": (lambda x: x.amin((0, 1)), TIES), "max": (torch.max, TIES),
    "max along": (lambda x: x.max(1).values, TIES), "min along": (lambda x: x.min(0, keepdim=True).values, TIES),
    "amax of NaN": (lambda x: x.amax(1), [[1.0, NAN, 2.0], [1.0, 1.0, 0.0]]),
    "max along of NaN": (lambda x: x.max(1).values, [[1.0, NAN, 2.0], [1.0, 1.0, 0.0]]),
    "max pool": (lambda x: F.max_pool1d(x[None], 2, 1), TIES), "sort": (lambda x: x.sort(1).values, TIES),
    "std": (lambda x: x.std(1), ONES), "std of all": (torch.std, ONES), "biased std": (lambda x: x.std(0, False), TIES),
    "norm": (lambda x: x.norm(dim=1), TIES), "norm of all": (torch.norm, ZEROS),
    **{f"norm {p}": (lambda x, p=p: torch.linalg.vector_norm(x, p, 1), TIES) for p in (1, 1.5, 3, INF, -INF)},
    "normalize": (F.normalize, TIES), "cosine": (F.cosine_similarity, ZEROS, TIES),
    "weight norm": (lambda v, g: g * v / v.norm(dim=1, keepdim=True), [[3.0, 4.0], [1.0, 0.0]], [[1.0], [2.0]]),
    "softmax of -inf": (lambda x: x.softmax(1), [[1.0, -INF, 2.0]]),
    "log-softmax of -inf": (lambda x: x.log_softmax(1), [[1.0, -INF, 2.0]]),
    "expm1": (torch.expm1, EDGES), "log1p": (torch.log1p, [0.0, 1e-8, 2.0]),
    "remainder": (torch.remainder, [4.0, 5.0, -4.0, 0.0, -1.0], [2.0, 3.0, 2.0, 2.0, -3.0]),
    "fmod": (torch.fmod, [4.0, 5.0, -4.0, 0.0], [2.0, 3.0, 2.0, 2.0]),
    "xlogy": (torch.xlogy, [0.0, 0.0, 2.0, 1.0], [0.5, -1.0, 3.0, 1.0]), "prod": (lambda x: x.prod(1), TIES),
    "pow": (torch.pow, [0.0, 2.0, 0.0, 4.0], [2.0, 0.0, 0.0, 0.5]), "sqrt": (torch.sqrt, [0.0, 4.0]),
    "atan2": (torch.atan2, [0.0, 1.0, -1.0, 2.0, 0.0, -2.0, 1.0], [0.0, 1.0, -3.0, -1.0, -1.0, 0.0, 0.0]),
    "hypot": (torch.hypot, [3.0, 1e-3, -2.0], [4.0, 0.0, 1.0]),
    "copysign": (torch.copysign, [1.0, -2.0, 0.0, 3.0], [-1.0, -0.0, 1.0, 0.0]),
    "fmax": (torch.fmax, [1.0, NAN, 2.0, 3.0], [1.0, 1.0, NAN, 5.0]),
    "fmin": (torch.fmin, [1.0, NAN, 2.0, 3.0], [1.0, 1.0, NAN, 5.0]),
    "cumprod": (lambda x: x.cumprod(1), TIES), "unfold": (lambda x: x.unfold(1, 2, 1), TIES),
    "median along": (lambda x: x.median(1).values, [[1.0, 4.0, 2.0, 3.0], [5.0, NAN, 2.0, 1.0]]),
    "median": (torch.median, TIES), "kth value": (lambda x: x.kthvalue(3, 1).values, [[1.0, 4.0, 2.0, 3.0]]),
    "cdist": (torch.cdist, ZEROS, TIES), "cdist 1": (lambda a, b: torch.cdist(a, b, 1), TIES, TIES),
    **{f"scatter {r} {own}": (lambda x, s, r=r, own=own: x.scatter_reduce(
        1, torch.tensor([[0, 1, 1], [3, 3, 3], [0, 2, 0]]), s, r, include_self=own),
        [[1.5, 2.0, 3.0, 0.5]] * 3, [[0.7, -2.0, 5.0], [6.0, 0.2, 1.0], [0.1, 3.5, -4.0]])
       for r in ("sum", "mean", "prod", "amax", "amin") for own in (True, False)},
    **{f"cross entropy {r} {ignored} {smooth}": (lambda x, r=r, i=ignored, s=smooth: F.cross_entropy(
        x, torch.tensor([1, 0, 3]), torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=x.dtype), reduction=r, ignore_index=i,
        label_smoothing=s), TIES)
       for r in ("mean", "sum", "none") for ignored in (-100, 0) for smooth in (0.0, 0.1)},
    "cross entropy of maps": (lambda x: F.cross_entropy(
        x.reshape(1, 3, 2, 2), torch.tensor([[[1, 0], [2, 2]]]), torch.tensor([0.5, 1.0, 2.0], dtype=x.dtype)), TIES),
    "remainder of 0": (lambda x, y: torch.remainder(x, y).log2(), [-4.0, 4.0, 0.0], [2.0, 2.0, -3.0]),
    "cummax": (lambda x: x.cummax(1).values, TIES), "cummin": (lambda x: x.cummin(0).values, TIES),
    "cummax of NaN": (lambda x: x.cummax(1).values, [[1.0, NAN, 2.0, NAN], [1.0, 1.0, 0.0, 3.0]]),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), TIES), "erfinv": (torch.erfinv, [0.0, 0.5, -0.9, 0.999, 1.0]),
    "lgamma": (torch.lgamma, [0.3, -0.7, 2.5, 9.5, -3.2]), "digamma": (torch.digamma, [0.3, -0.7, 2.0, 9.5, -3.2]),
    "inverse": (torch.linalg.inv, SQUARE), "determinant": (torch.linalg.det, SQUARE),
    "logarithm of a determinant": (lambda a: torch.linalg.slogdet(a)[1], SQUARE),
    "solve": (torch.linalg.solve, SQUARE, TIES), "solve from the right": (
        lambda a, b: torch.linalg.solve(a, b, left=False), SQUARE, [[1.0, 2.0, 0.5], [0.3, -1.0, 0.7]]),
    "triangular solve": (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), SQUARE, TIES),
    "cholesky": (lambda a: torch.linalg.cholesky(a @ a.T + torch.eye(3, dtype=a.dtype)), SQUARE),
    "cholesky of a parameter": (lambda a: torch.linalg.cholesky(a), [[4.0, 1.0], [1.0, 3.0]]),
    "bilinear": (lambda a, b: F.bilinear(a, b[:3], a[:2, :, None] * b[None, :3]), SQUARE, SHARES),
    **{f"bag {mode}": (lambda w, mode=mode: F.embedding_bag(BAG, w, torch.tensor([0, 3]), mode=mode), TIES)
       for mode in ("sum", "mean", "max")},
    "weighted bag": (lambda w, s: F.embedding_bag(
        BAG, w, torch.tensor([0, 0, 3]), mode="sum", per_sample_weights=s, padding_idx=1), TIES, [0.5, 2.0, -1.0, 3.0]),
    "embedding by frequency": (lambda w: F.embedding(BAG, w, scale_grad_by_freq=True), TIES),
    "put": (lambda x, v: put(x, v, False), TIES, TIES[:2]), "put among": (lambda x, v: put(x, v, True), TIES, TIES[:2]),
    "scatter": (lambda x, s: x.scatter(1, (x[:, :2] > 100).long() + torch.tensor([2, 1]), s), TIES, [[5.0, 6.0]] * 3),
    "masked scatter": (lambda x, s: x.masked_scatter(x > 0.5, s), TIES, TIES),
    "diagonal scatter": (lambda x, s: x.diagonal_scatter(s, 1), TIES, [5.0, 6.0, 7.0]),
    **{f"samples {mode} {padding}": (sampled(mode, padding), SHARES, SHARES)
       for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")},
    "convolution of volumes": (
        lambda x, w: F.conv3d(x.view(1, 2, 2, 2, 2), w[:, :2].reshape(2, 2, 2, 1, 1), padding=1, stride=(1, 2, 1)),
        SHARES, SHARES),
    "transposed convolution of volumes": (
        lambda x, w: F.conv_transpose3d(x.view(1, 2, 2, 2, 2), w.view(2, 1, 2, 2, 2), stride=2, padding=1),
        SHARES, SHARES),
    "max pool of volumes": (lambda x: F.max_pool3d(x.view(1, 1, 3, 2, 2), 2, 1), TIES),
    "adaptive max pool": (lambda x: F.adaptive_max_pool2d(x[None], (2, 3)), TIES),
    "all labels ignored": (lambda x: F.cross_entropy(x, torch.tensor([-100, -100, -100])), TIES),
}  # fmt: skip


def compare(function: Callable[..., Any], values: list[Any], dtype: str) -> None:
    """Holds the gradients by all values against autograd's."""

    class Network(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    given = tuple(torch.tensor(v, dtype=getattr(torch, dtype), requires_grad=True) for v in values)
    y = function(*given)
    seeds = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
    want = torch.autograd.grad(y, given, seeds if y.numel() > 1 else torch.ones_like(y))
    model = import_torch(Network(), given, training=True).graph
    graph = gradients(model, model.outputs[0], [*model.inputs])
    arrays = [*(t.detach().numpy() for t in given), *([seeds.numpy()] if y.numel() > 1 else [])]
    with np.errstate(all="ignore"):
        found = evaluate(graph, dict(zip(graph.inputs, arrays, strict=True)))
    rounding = 4 * np.finfo(dtype).eps  # of terms that cancel
    np.testing.assert_allclose(found[graph.outputs[0]], y.detach(), rtol=1e-5, atol=rounding)
    for name, peer in zip(graph.outputs[1:], want, strict=True):
        tolerance = 1e-5 if dtype == "float32" else 1e-7  # some of PyTorch's kernels have factors of float32
        np.testing.assert_allclose(found[name], peer, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", slow(["float32", "float64"], "float64"))
@pytest.mark.parametrize("name", CASES)
def test_slopes_where_a_convention_decides_are_those_of_pytorch(name: str, dtype: str) -> None:
    function, *values = CASES[name]
    compare(function, values, dtype)

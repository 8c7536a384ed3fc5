"""Gradients at ties, edges, zeros, infinities and NaN, where a convention decides: PyTorch's, in both precisions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.marks import slow

F = torch.nn.functional

import burnish as bn  # noqa: E402
from burnish.frontend.torch.export import import_torch  # noqa: E402
from burnish.graph.evaluate import evaluate  # noqa: E402
from burnish.graph.gradient import gradients  # noqa: E402
from burnish.graph.graph import GraphBuilder  # noqa: E402

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


def words(text: str) -> list[str]:
    return text.split()


ONE_OPERAND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in words(
        "abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac "
        "lgamma log log10 log1p log2 logit neg reciprocal relu round rsqrt sigmoid sign sin sinc sinh sqrt square tan "
        "tanh trunc nan_to_num")},
    "entr": torch.special.entr,
    **{name: getattr(F, name) for name in words(
        "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus "
        "softshrink softsign tanhshrink")},
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"), "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "clamp": lambda x: x.clamp(-1, 2), "bounded logit": lambda x: torch.logit(x, 1e-3),
    **{f"power {p}": (lambda x, p=p: x.pow(p)) for p in (-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3)},
    **{f"powers of {b}": (lambda x, b=b: torch.pow(b, x)) for b in (0.0, 0.5, 2.0)},
}  # fmt: skip
TWO_OPERANDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in words(
        "add atan2 copysign div fmax fmin fmod hypot logaddexp logaddexp2 maximum minimum mul pow remainder sub "
        "xlogy")},
    "xlog1py": torch.special.xlog1py, "prelu": torch.ops.aten._prelu_kernel,
    "lerp": lambda x, y: torch.lerp(x, y, 0.75), "near lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "where": lambda x, y: torch.where(x > y, x, y), "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    **{name: (lambda x, y, name=name: getattr(F, name)(x, y, reduction="none")) for name in words(
        "smooth_l1_loss huber_loss mse_loss l1_loss binary_cross_entropy_with_logits kl_div poisson_nll_loss")},
    "smooth l1 of 0": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.0),
    "huber of 2": lambda x, y: F.huber_loss(x, y, reduction="none", delta=2.0),
}  # fmt: skip


def is_minus_zero(x: float) -> bool:
    return x == 0 and math.copysign(1, x) < 0


def extreme(*values: float) -> bool:
    """Whether a square of one of these is 0 or infinite, in its dtype."""
    return any(abs(x) > 1e30 or 0 < abs(x) < 1e-30 for x in values)


# Arguments at which PyTorch has another value or slope, since it multiplies 0 by infinity, or squares what is extreme;
# and where the limits of a slope on both sides of 0 differ, of which it takes one and the sign of 0 decides here.
APART: dict[str, Callable[..., bool]] = {
    "entr": lambda x: x == INF or is_minus_zero(x), "logit": is_minus_zero, "power -0.5": is_minus_zero,
    "xlogy": lambda x, y: is_minus_zero(x), "xlog1py": lambda x, y: is_minus_zero(x),
    **dict.fromkeys(("gelu", "hardswish", "atan2", "copysign", "fmod", "remainder", "addcdiv"), extreme),
    **dict.fromkeys(("logaddexp", "logaddexp2"), lambda x, y: x == y and math.isinf(x)),
}  # fmt: skip
LOSSES = ("smooth_l1_loss", "huber_loss", "huber of 2")  # that move weights to NaN where they are NaN


def edges(dtype: str, operands: int) -> list[tuple[float, ...]]:
    """Values at which elementwise functions have poles, corners, limits, or overflow; all pairs of some of them."""
    limits = torch.finfo(getattr(torch, dtype))
    far = [limits.tiny * 4, limits.max / 4, INF]
    size = [0.0, 0.5, 1.0, 2.5, *far] if operands > 1 else [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 20.0, *far]
    return [*product([*size, *(-x for x in size), NAN], repeat=operands)]


@lru_cache
def swept(operands: int, dtype: str) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Values and gradients at the edges of all functions of so many operands: ours, and PyTorch's."""
    functions = [ONE_OPERAND, TWO_OPERANDS][operands - 1]
    columns = zip(*edges(dtype, operands), strict=True)
    one = [torch.tensor(values, dtype=getattr(torch, dtype)) for values in columns]

    class Network(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return tuple(f(*given[i * operands : (i + 1) * operands]) for i, f in enumerate(functions.values()))

    given = [t.clone().requires_grad_() for _ in functions for t in one]
    results = Network()(*given)
    seeds = torch.linspace(0.5, 1.5, len(one[0]), dtype=one[0].dtype)
    found = torch.autograd.grad(results, given, [seeds] * len(results), allow_unused=True)
    model = import_torch(Network(), tuple(given), training=True).graph
    graph = gradients(model, model.outputs, [*model.inputs])
    arrays = [*(t.detach().numpy() for t in given), *[seeds.numpy()] * len(results)]
    with np.errstate(all="ignore"):
        ours = [*evaluate(graph, dict(zip(graph.inputs, arrays, strict=True))).values()]
    values, slopes = ours[: len(results)], ours[len(results) :]
    peers = [np.zeros_like(own) if t is None else t.numpy() for own, t in zip(slopes, found, strict=True)]
    pairs = [*zip(slopes, peers, strict=True)]
    return {
        name: [(values[i], y.detach().numpy()), *pairs[i * operands : (i + 1) * operands]]
        for i, (name, y) in enumerate(zip(functions, results, strict=True))
    }


def compare(function: Callable[..., Any], values: list[Any], dtype: str, seed: float | None = None) -> None:
    """Holds the gradients by all values against autograd's, of adjoints about 1, or that are all ``seed``."""

    class Network(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    given = tuple(torch.tensor(v, dtype=getattr(torch, dtype), requires_grad=True) for v in values)
    y = function(*given)
    seeds = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
    seeds = seeds if seed is None else torch.full_like(y, seed)
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


INFINITE = [[1.0, 2.0, 3.0], [1.0, INF, 2.0], [INF, INF, 1.0], [-INF, 1.0, 2.0], [-INF] * 3, [-INF, INF, 0.0]]
LOGARITHMS: dict[str, tuple[Any, ...]] = {  # of sums of powers
    "logaddexp": (torch.logaddexp, [1.0, 2.0, 3.0, INF, -INF, 0.0], [3.0, 2.0, -800.0, 1.0, 2.0, -INF]),
    "logaddexp2": (torch.logaddexp2, [1.0, 2.0, 3.0, INF, -INF, 0.0], [3.0, 2.0, -800.0, 1.0, 2.0, -INF]),
    "logsumexp": (lambda x: x.logsumexp(1), INFINITE), "logsumexp kept": (lambda x: x.logsumexp(0, True), INFINITE[:1]),
    "softplus": (F.softplus, INFINITE), "logsigmoid": (F.logsigmoid, INFINITE),
    "log-softmax": (lambda x: x.log_softmax(1), INFINITE), "softmax": (lambda x: x.softmax(1), INFINITE),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 0, 1, 2]), reduction="none"), INFINITE),
}  # fmt: skip


@pytest.mark.parametrize("seed", [1.0, INF, -INF])
@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_of_sums_of_powers_by_infinite_adjoints(name: str, seed: float) -> None:
    function, *values = LOGARITHMS[name]
    compare(function, values, "float64", seed)


@pytest.mark.parametrize("base", [math.e, 2.0])
def test_equal_numbers_share_the_slope_of_logaddexp(base: float) -> None:
    """Infinite ones too, of which PyTorch's slope is NaN."""
    b = GraphBuilder()
    x, y = (b.input(name, (5,), "float64") for name in "xy")
    graph = b.build(b.add("logaddexp", x, y, base=base, name="z"))
    equal = np.array([INF, -INF, 0.0, 700.0, -1e308])
    graph = gradients(graph, "z", ["x", "y"])
    found = bn.compile(graph, threads=1)(equal, equal, np.array([1.0, 2.0, INF, -INF, 4.0]))
    np.testing.assert_allclose(found[0], equal + math.log(2, base), rtol=1e-15)
    for slopes in found[1:]:
        np.testing.assert_array_equal(slopes, [0.5, 1.0, INF, -INF, 2.0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*ONE_OPERAND, *TWO_OPERANDS])
def test_elementwise_functions_at_their_edges(name: str, dtype: str) -> None:
    operands = 1 if name in ONE_OPERAND else 2
    value, *slopes = swept(operands, dtype)[name]
    compared = np.array([not (name in APART and APART[name](*x)) for x in edges(dtype, operands)])
    known = compared & ~np.isnan(value[1] if name not in LOSSES else 0.0)  # outside of the domain no slope is right
    tolerance = 1e-5 if dtype == "float32" else 1e-7
    for (own, peer), places in ((value, compared), *((pair, known) for pair in slopes)):
        np.testing.assert_allclose(own[places], peer[places], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_losses_of_shares_at_0_and_1(dtype: str) -> None:
    """Of certain shares, as a sigmoid rounds them: logarithms are at least -100, and their slopes at most 1e12."""
    shares = [(p, t) for p in (0.0, 1e-14, 1e-6, 0.3, 1.0) for t in (0.0, 0.4, 1.0)]
    wrong = [(p, t) for p, t in shares if abs(p - t) > 1e-12]  # where it is right, PyTorch's slope is 0, ours 1
    given, targets = ([*column] for column in zip(*wrong, strict=True))
    labels, weights = (torch.tensor(v, dtype=getattr(torch, dtype)) for v in (targets, [0.5, *targets[1:]]))
    for how, weight in (("none", None), ("mean", None), ("sum", weights)):
        compare(lambda p, how=how, w=weight: F.binary_cross_entropy(p, labels, w, reduction=how), [given], dtype)
    loss = import_torch(torch.nn.BCELoss(), (torch.zeros(3), torch.ones(3)), training=True).graph
    graph = gradients(loss, loss.outputs[0], [loss.inputs[0]])
    found = evaluate(graph, dict(zip(graph.inputs, [np.float32([0, 0.5, 1])] * 2, strict=True)))[graph.outputs[1]]
    np.testing.assert_allclose(found, np.float32([1, 0, -1]) / 3, rtol=1e-6)


def test_compiled_gradients_at_edges() -> None:
    """As the definitions say: infinite at the ends of domains, where kernels approximate roots and quotients."""
    places = [0.0, 1.0, -1.0, 0.5, 3.0, -3.0, INF, -INF, NAN]
    functions = [ONE_OPERAND[name] for name in ("asin", "acosh", "atanh", "cosh", "logit", "entr", "lgamma")]

    class Network(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            *xs, y, z, p = given
            loss = F.binary_cross_entropy(p, torch.ones(len(places)), reduction="none")
            return (*(f(x) for f, x in zip(functions, xs, strict=True)), F.huber_loss(y, z, reduction="none"), loss)

    shares = torch.tensor([0.0, 1.0, 0.5, 0.25, 1e-14, 1e-6, 0.0, 1.0, 0.5])
    given = *(torch.tensor(places) for _ in range(len(functions) + 1)), torch.zeros(len(places)), shares
    model = import_torch(Network(), given, training=True).graph
    graph = gradients(model, model.outputs, [*model.inputs])
    feeds = [*(t.numpy() for t in given), *[np.ones(len(places), "f4")] * len(model.outputs)]
    with np.errstate(all="ignore"):
        wanted = evaluate(graph, dict(zip(graph.inputs, feeds, strict=True))).values()
    for own, peer in zip(bn.compile(graph)(*feeds), wanted, strict=True):
        np.testing.assert_allclose(own, peer, rtol=1e-5, atol=1e-6)

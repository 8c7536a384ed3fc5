"""Gradients of operators through torch.compile(backend="burnish"), against eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

F = torch.nn.functional

from burnish.torch import register, report  # noqa: E402

register()
R = torch.randn
CASES: dict[str, tuple[Any, ...]] = {  # a function, and its arguments
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), R(2, 4, 11), R(6, 4, 3)),
    "conv1d_unbatched": (lambda x, w: F.conv1d(x, w), R(4, 11), R(6, 4, 3)),
    "conv_t": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        R(2, 4, 5, 6),
        R(4, 3, 3, 3),
        R(3),
    ),
    "conv_dil_group": (
        lambda x, w, b: F.conv2d(x, w, b, dilation=2, groups=2, padding=2),
        R(2, 4, 9, 8),
        R(6, 2, 3, 3),
        R(6),
    ),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4, padding=1), R(2, 4, 9, 8), R(4, 1, 3, 3)),
    "maxpool_ceil": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), R(2, 3, 8, 9)),
    "maxpool1d": (lambda x: F.max_pool1d(x, 2), R(2, 3, 8)),
    "avgpool": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), R(2, 3, 8, 9)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), R(2, 3, 8, 8)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), R(2, 3, 4, 5)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), R(2, 3, 4, 5)),
    "groupnorm": (lambda x, w, b: F.group_norm(x, 2, w, b), R(2, 4, 5), R(4), R(4)),
    "layernorm": (lambda x: F.layer_norm(x, (5,)), R(3, 5)),
    "instancenorm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), R(2, 4, 5, 5), R(4), R(4)),
    "rms": (lambda x, w: F.rms_norm(x, (5,), w), R(3, 5), R(5)),
    "embed": (lambda w: F.embedding(torch.tensor([1, 2, 2, 0]), w, padding_idx=0), R(5, 4)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 0, 1], [2, 1, 1]])), R(2, 4)),
    "index": (lambda x: x[:, torch.tensor([0, 2, 2])], R(3, 4)),
    "index2": (lambda x: x[torch.tensor([0, 2, 2]), torch.tensor([1, 1, 1])], R(3, 4)),
    "slice": (lambda x: x[1:, ::2].sin(), R(4, 7)),
    "select": (lambda x: x[:, -1] * x[0, 1], R(4, 7)),
    "cat": (lambda x, y: torch.cat([x, y.exp()], 1), R(2, 3), R(2, 4)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), R(2, 3, 4)),
    "reflect": (lambda x: F.pad(x, (1, 2), mode="reflect"), R(2, 3, 4)),
    "roll": (lambda x: torch.roll(x, 2, 1).square(), R(2, 5)),
    "cumsum": (lambda x: x.cumsum(1), R(2, 5)),
    "prelu": (lambda x, w: F.prelu(x, w), R(2, 3, 4), R(3)),
    "acts": (
        lambda x: (
            F.silu(x)
            + F.gelu(x, approximate="tanh")
            + F.elu(x)
            + F.leaky_relu(x)
            + F.hardswish(x)
            + F.softplus(x)
            + F.mish(x)
            + F.hardtanh(x)
            + F.logsigmoid(x)
        ),
        R(4, 6),
    ),
    "math": (lambda x: x.abs().add(1).log().sqrt() + x.pow(3) + torch.atan(x) + x.clamp(-0.5, 0.5) + x.erf(), R(4, 6)),
    "minmax": (lambda x: x.max(1).values + x.min(1).values + x.amax(1), R(4, 6)),
    "norm": (lambda x: x.norm(dim=1) + x.std(1) + x.var(1) + x.prod(1), R(4, 6)),
    "logsumexp": (lambda x: x.logsumexp(1) + x.softmax(1)[:, 0], R(4, 6)),
    "where": (lambda x, y: torch.where(x > 0, x * y, y), R(4, 6), R(4, 6)),
    "bmm": (lambda x, y: x @ y, R(2, 3, 4), R(2, 4, 5)),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), R(2, 3, 4), R(2, 5, 4)),
    "bce": (lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(4, 6)), R(4, 6)),
    "losses": (
        lambda x, y: (
            F.mse_loss(x, y)
            + F.l1_loss(x, y)
            + F.smooth_l1_loss(x, y)
            + F.huber_loss(x, y)
            + F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean")
        ),
        R(4, 6),
        R(4, 6),
    ),
    "ce_smooth": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, -100, 2]), label_smoothing=0.1), R(4, 6)),
    "ce_weight": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, 5, 2]), weight=torch.arange(6.0) + 1), R(4, 6)),
    "ce_2d": (lambda x: F.cross_entropy(x, torch.zeros(2, 3, 3, dtype=torch.long)), R(2, 6, 3, 3)),
    "ce_none": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, -100, 2]), reduction="none"), R(4, 6)),
    "sdpa_mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tril(torch.ones(5, 5)).bool()),
        R(2, 2, 5, 8),
        R(2, 2, 5, 8),
        R(2, 2, 5, 8),
    ),
    "inplace": (lambda x: (x * 2).add_(1).relu_(), R(4, 6)),
    "sort": (lambda x: x.sort(1).values[:, :2], R(4, 6)),
    "topk": (lambda x: x.topk(2, 1).values, R(4, 6)),
    "chunk": (lambda x: sum(c.tanh() * i for i, c in enumerate(x.chunk(3, 1))), R(4, 6)),
    "unfold": (lambda x: F.unfold(x, 3), R(1, 2, 5, 5)),
    "expand": (lambda x, y: (x[:, None] + y[None]).square(), R(3, 4), R(5, 4)),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_operators_are_those_of_eager(name: str) -> None:
    function: Callable[..., Any]
    function, *arguments = CASES[name]
    own, wanted = ([x.clone().requires_grad_() for x in arguments] for _ in range(2))
    torch._dynamo.reset()
    before = report()[-1].number if report() else 0
    with warnings.catch_warnings():
        y, z = torch.compile(function, backend="burnish")(*own), function(*wanted)
    seed = torch.randn_like(z)
    y.backward(seed)
    z.backward(seed)
    torch.testing.assert_close(y, z, atol=1e-5, rtol=1e-5)
    for a, b in zip(own, wanted, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-5)
    graphs = [g for g in report() if g.number > before]
    assert {g.direction for g in graphs} == {"forward", "backward"}
    assert all(g.whole for g in graphs), "\n".join(map(str, graphs))

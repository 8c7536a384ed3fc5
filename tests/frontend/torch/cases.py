"""Cases of ATen operators: functions of the same inputs, by family."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Case(NamedTuple):
    functions: list[Callable[..., Any]]
    inputs: tuple[Tensor, ...]


def _made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _ints(*shape: int, high: int = 5, low: int = -5) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1))


SHAPES = {"vector": (17,), "cube": (2, 3, 5), "scalar": (), "empty": (0, 4)}

UNARY = [
    torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.neg, torch.abs, torch.sin, torch.cos, torch.sinh,
    torch.cosh, torch.erf, torch.erfc, F.silu, F.hardswish, F.hardsigmoid, F.mish, torch.sign, torch.sgn, torch.floor,
    torch.ceil, torch.round, torch.trunc, torch.frac, torch.exp2, torch.expm1, torch.square, torch.isnan, torch.isinf,
    torch.isfinite, torch.logical_not, torch.tan, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.selu,
    lambda x: F.leaky_relu(x, 0.2), lambda x: F.elu(x, 0.7), lambda x: F.celu(x, 1.3), F.softplus,
    lambda x: F.softplus(x, beta=2.0, threshold=1.0), F.logsigmoid, F.hardtanh, F.relu6, F.softsign, F.tanhshrink,
    lambda x: F.threshold(x, 0.1, 20.0), F.softshrink, F.hardshrink, lambda x: x.clamp(-0.5, 0.5),
    lambda x: x.clamp(min=0.1), lambda x: x.clamp_max(0.2), lambda x: x**2, lambda x: x**3, lambda x: x**-1,
    lambda x: 2.5**x, torch.nan_to_num, lambda x: x.abs().sqrt(), lambda x: (x.abs() + 0.1).rsqrt(),
    lambda x: (x.abs() + 0.1).log(), lambda x: (x.abs() + 0.1).log2(), lambda x: (x.abs() + 0.1).log10(),
    lambda x: x.abs().log1p(), lambda x: (x.abs() + 0.1).reciprocal(), lambda x: x.abs() ** 0.5,
    lambda x: x.abs() ** 1.7, lambda x: x.to(torch.int32), lambda x: x.to(torch.bool), lambda x: x.double(),
    lambda x: x.half(), lambda x: torch.zeros_like(x), lambda x: torch.ones_like(x) + x,
    lambda x: torch.full_like(x, 3), lambda x: x.new_zeros(2), lambda x: x + torch.arange(3).sum(),
]  # fmt: skip
BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.eq, torch.ne, torch.lt, torch.le,
    torch.gt, torch.ge, torch.fmod, torch.remainder, lambda a, b: torch.add(a, b, alpha=2), lambda a, b: a.abs() ** b,
    lambda a, b: torch.sub(a, b, alpha=0.5), lambda a, b: torch.div(a, b, rounding_mode="floor"),
    lambda a, b: torch.div(a, b, rounding_mode="trunc"), lambda a, b: a // b, torch.logical_and, torch.logical_or,
    torch.logical_xor, lambda a, b: (a > 0) & (b > 0), lambda a, b: (a > 0) | (b > 0), lambda a, b: (a > 0) ^ (b > 0),
    lambda a, b: ~(a > b), lambda a, b: torch.where(a > b, a, b), lambda a, b: torch.where(a > b, a, 0.0),
    lambda a, b: torch.where(a > b, 1, 2), lambda a, b: a.masked_fill(b > 5, -math.inf) if a.dim() else a,
    lambda a, b: torch.lerp(*torch.broadcast_tensors(a, b), 0.3), lambda a, b: torch.addcmul(a, a, b, value=0.5),
    lambda a, b: 1 - a, lambda a, b: 2 / (b.abs() + 1), lambda a, b: torch.clamp(a, min=b),
    lambda a, b: torch.rsub(a, b), lambda a, b: a * True, lambda a, b: a + 2, lambda a, b: a >= 1,
]  # fmt: skip
INTEGERS = [
    torch.add, torch.sub, torch.mul, torch.div, torch.eq, torch.lt, torch.maximum,
    lambda a, b: a // 3, lambda a, b: torch.div(a, b.abs() + 1, rounding_mode="trunc"), lambda a, b: a % 3,
    lambda a, b: torch.fmod(a, 3), lambda a, b: a + 1.5, lambda a, b: a * 2, lambda a, b: a.float() + b,
    lambda a, b: a.sum(), lambda a, b: a.sum(0), lambda a, b: a.cumsum(0), lambda a, b: torch.sin(a), lambda a, b: ~a,
    lambda a, b: a.clamp(-1, 2), lambda a, b: a**2, lambda a, b: a.prod(), lambda a, b: a.amax(0), lambda a, b: a.abs(),
    lambda a, b: a.to(torch.int32) + b, lambda a, b: (a > 0).sum(), lambda a, b: (a > 0).float().mean(),
    lambda a, b: a.any(0), lambda a, b: (a > -9).all(), lambda a, b: torch.relu(a), lambda a, b: (a > 0) + (b > 0),
    lambda a, b: -a, lambda a, b: a.sign(), lambda a, b: a.max(0)[1], lambda a, b: a / 2,
]  # fmt: skip
REDUCTIONS = [
    lambda x: x.sum(), lambda x: x.sum(-1), lambda x: x.sum((0, -1), keepdim=True), lambda x: x.mean(1),
    lambda x: x.mean((0, 2)), lambda x: x.mean(), lambda x: x.amax(1), lambda x: x.amin((0, 1), keepdim=True),
    lambda x: x.amax(), lambda x: x.max(), lambda x: x.min(), lambda x: x.max(-1), lambda x: x.min(0, keepdim=True),
    lambda x: x.argmax(), lambda x: x.argmax(1), lambda x: x.argmin(-1, keepdim=True), lambda x: x.prod(),
    lambda x: x.prod(-2), lambda x: (x > 0).any(), lambda x: (x > 0).all(1), lambda x: x.var(),
    lambda x: x.var(-1, unbiased=False), lambda x: x.std((0, 1)), lambda x: torch.var_mean(x, 1, correction=0),
    lambda x: torch.logsumexp(x, -1), lambda x: torch.linalg.vector_norm(x, dim=1), lambda x: x.norm(dim=-1),
    lambda x: torch.linalg.vector_norm(x, ord=1), lambda x: torch.linalg.vector_norm(x, ord=math.inf, dim=0),
    lambda x: torch.linalg.vector_norm(x, ord=3, dim=-1, keepdim=True), lambda x: x.cumsum(1),
    lambda x: x.softmax(-1), lambda x: x.softmax(0), lambda x: x.log_softmax(1), lambda x: x.double().softmax(-1),
    lambda x: F.normalize(x, dim=-1), lambda x: x.sort(-1), lambda x: x.sort(1, descending=True)[0],
    lambda x: x.argsort(-1), lambda x: x.topk(2, -1), lambda x: x.topk(2, 1, largest=False)[0],
    lambda x: x.sum(-1, dtype=torch.float64), lambda x: x.count_nonzero() if False else x.ne(0).sum(),
]  # fmt: skip
SCALARS = [
    lambda x: x.sum(), lambda x: x.sum(-1), lambda x: x.mean(0), lambda x: x.amax(), lambda x: x.softmax(-1),
    lambda x: x.cumsum(0), lambda x: x.max(0)[0], lambda x: x.argmax(), lambda x: x.unsqueeze(0), lambda x: x.view(1, 1),
    lambda x: x.expand(3), lambda x: x.squeeze(), lambda x: x.any(), lambda x: x.reshape(-1), lambda x: x.clone(),
    lambda x: x * torch.ones(2, 2),
]  # fmt: skip
MOVEMENT = [
    lambda x: x.view(-1), lambda x: x.reshape(4, -1), lambda x: x.flatten(1), lambda x: x.unflatten(2, (2, 3)),
    lambda x: x.unsqueeze(-1), lambda x: x.unsqueeze(1), lambda x: x[:, :1].squeeze(1), lambda x: x[:1].squeeze(),
    lambda x: x[:1].squeeze((0, 1)), lambda x: x.permute(2, 0, 1), lambda x: x.permute(-1, 0, -2),
    lambda x: x.transpose(0, -1), lambda x: x.mT, lambda x: x[0].t(), lambda x: x.expand(3, -1, -1, -1),
    lambda x: x[:, :1].expand(-1, 5, -1), lambda x: x.repeat(2, 1, 3), lambda x: x.repeat(2, 1, 1, 1),
    lambda x: x.repeat_interleave(2, 1), lambda x: x.repeat_interleave(3), lambda x: x[1], lambda x: x[:, -1],
    lambda x: x[..., 1:4], lambda x: x[..., -3:-1], lambda x: x[:, ::2], lambda x: x[:, 1:100], lambda x: x[:, 2:1],
    lambda x: x.narrow(2, 1, 3), lambda x: x.select(-1, -2), lambda x: x.split(2, -1), lambda x: x.split([1, 5], -1),
    lambda x: x.chunk(4, 2), lambda x: x.unbind(1), lambda x: torch.cat([x, x * 2], -1),
    lambda x: torch.cat([x, x[:, :1]], 1), lambda x: torch.stack([x, x + 1], -1), lambda x: x.flip(0, -1),
    lambda x: x.flip(1), lambda x: x.roll(1, 1), lambda x: x.roll((-1, 2), (0, 2)), lambda x: x.roll(3),
    lambda x: x.tril(), lambda x: x.triu(1), lambda x: x.tril(-1), lambda x: F.pad(x, (1, 2)),
    lambda x: F.pad(x, (1, 0, 0, 2), value=3.0), lambda x: F.pad(x, (2, 1), mode="reflect"),
    lambda x: F.pad(x, (2, 1), mode="replicate"), lambda x: F.pad(x, (2, 1), mode="circular"),
    lambda x: F.pad(x, (-1, -2)), lambda x: torch.diagonal(x, 0, 1, 2), lambda x: torch.diagonal(x, 1, 0, 2),
    lambda x: x.swapaxes(0, 1).contiguous(), lambda x: torch.cat([torch.empty(0), x[0, 0]]),
    lambda x: torch.slice_scatter(x, x[:, :2] * 0, 1, 1, 3), lambda x: torch.slice_scatter(x, x[..., :2], 2, 0, 4, 2),
    lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, -1), lambda x: x.movedim(0, 2), lambda x: x.view(2, 4, 6) + 0,
    lambda x: torch.triu(torch.ones(6, 6, dtype=torch.bool), 1) & (x[0, :1] > 0), lambda x: x.clone().fill_(2.0),
    lambda x: torch.tensor_split(x, 3, dim=2), lambda x: x.reshape(2, 2, 2, 6)[:, :, 1], lambda x: x.as_strided((2, 4, 6), (24, 6, 1)),
]  # fmt: skip
INDEXING = [
    lambda x, i: x[i], lambda x, i: x[:, i % 4], lambda x, i: x[i, i], lambda x, i: x[:, i % 4, i],
    lambda x, i: x[i, :, i], lambda x, i: x[i[:, None], i[None] % 4], lambda x, i: x[:, i[:, None] % 4, i[None]],
    lambda x, i: x.index_select(-1, i % 4), lambda x, i: F.embedding(i % 2, x[:, 0]),
    lambda x, i: x.gather(1, (i % 4).view(1, 3, 1).expand(2, 3, 6)), lambda x, i: x[..., torch.tensor([0, 2, 2])],
    lambda x, i: torch.take_along_dim(x, x.argmax(-1, keepdim=True), -1),
    lambda x, i: x.scatter(1, torch.tensor([[[0], [2]]]), 9.0),
    lambda x, i: x.scatter(2, torch.tensor([[[1, 3]]]), x[:1, :1, :2] * 2), lambda x, i: _put(x),
    lambda x, i: _masked_put(x), lambda x, i: F.one_hot(torch.tensor([0, 2]), 4) + x[0, :2, :4].long(),
    lambda x, i: x[:, torch.tensor([True, False, True, True])], lambda x, i: x[-1, i % 4],
]  # fmt: skip
PRODUCTS = [
    lambda a, b: a @ b, lambda a, b: torch.bmm(a, b), lambda a, b: a[0] @ b[0], lambda a, b: a @ b[0],
    lambda a, b: a[0] @ b, lambda a, b: a @ b[0, :, 0], lambda a, b: a[0, 0] @ b[0], lambda a, b: a[0, 0] @ b[0, :, 0],
    lambda a, b: torch.addmm(a[0] @ b[0], a[0], b[0], beta=0.5, alpha=2), lambda a, b: torch.dot(a[0, 0], b[0, :, 0]),
    lambda a, b: torch.baddbmm(torch.ones(3, 4, 6), a, b), lambda a, b: torch.mv(a[0], b[0, :, 1]),
    lambda a, b: torch.einsum("bij,bjk->bik", a, b), lambda a, b: torch.einsum("bij,bjk->ki", a, b),
    lambda a, b: torch.outer(a[0, 0], b[0, 0]), lambda a, b: F.linear(a, b[0].t().contiguous()),
    lambda a, b: F.linear(a, b[0].t(), b[0, 0]),
    lambda a, b: torch.addmv(a[0, :, 0], a[0], b[0, :, 0]), lambda a, b: torch.tensordot(a, b[0], 1),
    lambda a, b: torch.matmul(a.unsqueeze(1), b), lambda a, b: torch.addbmm(torch.zeros(4, 6), a, b) if False else a,
]  # fmt: skip
ATTENTION = [
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v),
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0),
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3),
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, torch.where(m > 0, 0.0, -math.inf).expand(2, 4, 5, 7)),
    lambda q, k, v, m: F.scaled_dot_product_attention(q[0], k[0], v[0]),
]
NORMS = [
    lambda x, w: F.layer_norm(x, (6,)), lambda x, w: F.layer_norm(x, (4, 6), x[0], x[1]),
    lambda x, w: F.layer_norm(x, (6,), x[0, 0], None, 1e-3), lambda x, w: F.rms_norm(x, (6,), x[0, 0]),
    lambda x, w: F.rms_norm(x, (4, 6), None, 1e-5), lambda x, w: F.group_norm(x, 2, w, w),
    lambda x, w: F.instance_norm(x), lambda x, w: F.batch_norm(x, w, w.abs() + 0.1, w, w * 2),
    lambda x, w: F.batch_norm(x, w, w.abs() + 0.1, eps=1e-3), lambda x, w: F.dropout(x, 0.5, training=False),
    lambda x, w: F.prelu(x, w), lambda x, w: F.glu(x, 1), lambda x, w: F.group_norm(x[..., None], 4),
]  # fmt: skip
CONVOLUTIONS = [
    lambda x, w, t: F.conv2d(x, w), lambda x, w, t: F.conv2d(x, w, w[:, 0, 0, 0], stride=2, padding=1),
    lambda x, w, t: F.conv2d(x, w, padding="same"), lambda x, w, t: F.conv2d(x, w, dilation=(1, 2), padding=(0, 2)),
    lambda x, w, t: F.conv2d(x, w[:4, :1], groups=4, padding=1), lambda x, w, t: F.conv1d(x[:, :, 0], w[:, :, 0], w[:, 0, 0, 0]),
    lambda x, w, t: F.conv1d(x[:, :, 0], w[:, :, 0], stride=2, padding=2, dilation=2), lambda x, w, t: F.conv2d(x[0], w),
    lambda x, w, t: F.conv_transpose2d(x, t), lambda x, w, t: F.conv_transpose2d(x, t, stride=2, padding=1, output_padding=1),
    lambda x, w, t: F.conv_transpose1d(x[:, :, 0], t[:, :, 0], t[0, :, 0, 0], stride=3),
    lambda x, w, t: F.conv1d(x[:, :, 0], w[:, :, 0], padding="same"), lambda x, w, t: F.conv2d(x, w[:, :, :2, :2], padding="same"),
    lambda x, w, t: F.conv_transpose2d(x, t[:, :1], stride=2, groups=2),
]  # fmt: skip
WINDOWS = [
    lambda x: F.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, (2, 3), ceil_mode=True),
    lambda x: F.max_pool1d(x[:, :, 0], 2), lambda x: F.avg_pool2d(x, 2), lambda x: F.avg_pool2d(x, 3, 2, 1),
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    lambda x: F.avg_pool1d(x[:, :, 0], 3, 2), lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x: F.adaptive_avg_pool2d(x, 1), lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    lambda x: F.adaptive_avg_pool2d(x, (3, 5)), lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 4),
    lambda x: F.adaptive_max_pool2d(x, (4, 3)), lambda x: F.interpolate(x, scale_factor=2),
    lambda x: F.interpolate(x, size=(5, 7)), lambda x: F.interpolate(x, size=(11, 4), mode="nearest-exact"),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda x: F.interpolate(x[:, :, 0], scale_factor=3),
    lambda x: F.interpolate(x, size=(5, 13), mode="bilinear", align_corners=True),
    lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=False),
    lambda x: F.interpolate(x, size=(11, 5), mode="bicubic"),
    lambda x: F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=True),
    lambda x: F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True),
    lambda x: F.interpolate(x[:, :, 0], scale_factor=2, mode="linear"), lambda x: F.pixel_shuffle(x, 2),
    lambda x: F.pixel_unshuffle(x, 3) if x.shape[-1] % 3 == 0 and x.shape[-2] % 3 == 0 else x,
    lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), lambda x: F.channel_shuffle(x, 2), lambda x: F.max_pool2d(x[0], 2),
]  # fmt: skip


def _put(x: Tensor) -> Tensor:
    x = x.clone()
    x[0, 1] = 7.0
    x[:, torch.tensor([0, 2])] = -x[:, 1:3]
    x[..., 1:3] = 0
    return x


def _masked_put(x: Tensor) -> Tensor:
    x = x.clone()
    x[x > 0.5] = -1.0
    return x


CUBE = _made(2, 4, 6)
INFINITE = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-30, 50.0, -50.0, 1e30])
CASES: dict[str, Case] = {
    **{f"unary {name}": Case(UNARY, (_made(*shape),)) for name, shape in SHAPES.items()},
    "unary strided": Case(UNARY, (_made(5, 8).t()[::2],)),
    "unary special": Case([f for f in UNARY if f not in (torch.sin, torch.cos, torch.tan, torch.frac, F.gelu)][:45], (INFINITE,)),
    "binary same": Case(BINARY, (_made(3, 5), _made(3, 5, seed=1))),
    "binary broadcast": Case(BINARY, (_made(3, 1, 5), _made(4, 1, seed=1))),
    "binary scalar": Case([f for f in BINARY], (_made(3, 5), _made(seed=1))),
    "integers": Case(INTEGERS, (_ints(4, 6), _ints(4, 6, low=1))),
    "reductions": Case(REDUCTIONS, (_made(3, 4, 5),)),
    "reductions strided": Case(REDUCTIONS, (_made(5, 4, 6).permute(2, 1, 0)[::2],)),
    "scalars": Case(SCALARS, (_made(),)),
    "movement": Case(MOVEMENT, (CUBE,)),
    "movement strided": Case([f for f in MOVEMENT[1:] if f is not MOVEMENT[-1]][:], (_made(2, 6, 4).mT.contiguous(),)),
    "indexing": Case(INDEXING, (CUBE, torch.tensor([1, 0, -1]))),
    "products": Case(PRODUCTS, (_made(3, 4, 5), _made(3, 5, 6, seed=1))),
    "attention": Case(ATTENTION, (_made(2, 4, 5, 8), _made(2, 4, 7, 8, seed=1), _made(2, 4, 7, 8, seed=2), _made(2, 1, 5, 7))),
    "norms": Case(NORMS, (CUBE, _made(4))),
    "convolutions": Case(CONVOLUTIONS, (_made(2, 4, 7, 9), _made(6, 4, 3, 3, seed=1), _made(4, 2, 3, 3, seed=2))),
    "windows": Case(WINDOWS, (_made(2, 4, 8, 9),)),
}  # fmt: skip

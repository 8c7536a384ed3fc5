"""Translators of ATen matrix products and of attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.symbols import is_open


def _matmul(c: TorchContext, x: Ref, other: Ref) -> Ref:
    return c.cast(c.add("matmul", x, other), c.dtype(x))


def _mm(c: TorchContext, x: Ref, mat2: Ref) -> Ref:
    return _matmul(c, x, mat2)


def _dot(c: TorchContext, x: Ref, tensor: Ref) -> Ref:
    return _matmul(c, x, tensor)


def _mv(c: TorchContext, x: Ref, vec: Ref) -> Ref:
    return _matmul(c, x, vec)


def _linear(c: TorchContext, input: Ref, weight: Ref, bias: Ref | None) -> Ref:
    vector = c.rank(weight) == 1
    y = c.add("matmul", input, weight) if vector else c.add("matmul", input, weight, transpose_b=True)
    return y if bias is None else c.add("add", y, bias)


def _scaled_sum(c: TorchContext, addend: Ref, product: Ref, beta: float, alpha: float) -> Ref:
    """``beta * addend + alpha * product``; with beta 0 the addend is not read."""
    product = c.cast(product, c.out_dtype)
    if alpha != 1:
        product = c.add("mul", product, c.scalar(alpha, product))
    if beta == 0:
        return product
    return c.add("add", product, addend if beta == 1 else c.add("mul", addend, c.scalar(beta, addend)))


def _addmm(c: TorchContext, x: Ref, mat1: Ref, mat2: Ref, beta: float, alpha: float) -> Ref:
    return _scaled_sum(c, x, c.add("matmul", mat1, mat2), beta, alpha)


def _baddbmm(c: TorchContext, x: Ref, batch1: Ref, batch2: Ref, beta: float, alpha: float) -> Ref:
    return _scaled_sum(c, x, c.add("matmul", batch1, batch2), beta, alpha)


def _addmv(c: TorchContext, x: Ref, mat: Ref, vec: Ref, beta: float, alpha: float) -> Ref:
    return _scaled_sum(c, x, c.add("matmul", mat, vec), beta, alpha)


def _outer(c: TorchContext, x: Ref, vec2: Ref) -> Ref:
    return c.add("mul", c.reshape(x, (*c.shape(x), 1)), c.reshape(vec2, (1, *c.shape(vec2))))


def _trilinear(
    c: TorchContext, i1: Ref, i2: Ref, i3: Ref, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Ref:  # fmt: skip
    """The sum over ``sumdim`` of the products of three tensors, each with extents of 1 added where ``expand`` says."""
    given = []
    for x, added in ((i1, expand1), (i2, expand2), (i3, expand3)):
        extents = iter(c.shape(x))
        rank = c.rank(x) + len(added)
        given.append(c.reshape(x, [1 if d in added else next(extents) for d in range(rank)]))
    y = c.add("mul", c.add("mul", given[0], given[2]), given[1])
    return c.add("reduce_sum", y, axes=tuple(sumdim), keepdims=False)


# --- attention --------------------------------------------------------------------------------------------------------


def _attention(
    c: TorchContext, query: Ref, key: Ref, value: Ref, attn_mask: Ref | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Ref:  # fmt: skip
    """``softmax(scale * Q K' + mask) V`` over [..., tokens, features] (Vaswani et al. 2017).

    A bool mask says what takes part, one of floats is added; a row that nothing takes part in is 0. ``enable_gqa``:
    several heads of the query share one of key and value.
    """
    if dropout_p != 0 and not c.training:
        c.refuse("dropout_p", dropout_p, "0: random numbers are not supported")
    if enable_gqa:
        heads = c.shape(query)[-3]
        key, value = (repeated_heads(c, t, heads) for t in (key, value))
    scores = attention_scores(c, query, key, attn_mask, is_causal, scale)
    weights = c.dropout(c.add("softmax", scores, axis=-1), dropout_p)
    result = c.add("matmul", weights, value)
    return result if attn_mask is None else zero_where_none(c, result, attn_mask)


def attention_scores(
    c: TorchContext, query: Ref, key: Ref, attn_mask: Ref | None, is_causal: bool, scale: float | None
) -> Ref:
    """``scale * Q K' + mask``, -inf where a key takes no part."""
    factor = 1 / math.sqrt(c.shape(query)[-1]) if scale is None else scale
    scores = c.add("matmul", c.add("mul", query, c.scalar(factor, query)), key, transpose_b=True)
    allowed = attn_mask if attn_mask is not None and c.dtype(attn_mask) == "bool" else None
    if is_causal:
        allowed = _causal(c, *c.shape(scores)[-2:])
    if allowed is not None:
        scores = c.add("where", allowed, scores, c.scalar(-math.inf, scores))
    elif attn_mask is not None:
        scores = c.add("add", scores, c.cast(attn_mask, c.dtype(scores)))
    return scores


def zero_where_none(c: TorchContext, weights: Ref, mask: Ref) -> Ref:
    """``weights``, or what they weigh, with 0 in rows that nothing takes part in: the softmax of nothing is NaN."""
    bool_ = c.dtype(mask) == "bool"
    known = c.known(mask)
    if known is not None and (known.any(-1) if bool_ else known.max(-1, initial=-np.inf) > -np.inf).all():
        return weights
    top = c.add("reduce_max", mask, axes=(-1,), keepdims=True)
    some = top if bool_ else c.add("greater", top, c.scalar(-math.inf, top))
    return c.add("where", some, weights, c.scalar(0, weights))


def repeated_heads(c: TorchContext, x: Ref, heads: int) -> Ref:
    """Keys or values with each head repeated until there are ``heads``."""
    *lead, own, tokens, features = c.shape(x)
    if own == heads:
        return x
    spread = c.expand(c.reshape(x, (*lead, own, 1, tokens, features)), (*lead, own, heads // own, tokens, features))
    return c.reshape(spread, (*lead, heads, tokens, features))


def _causal(c: TorchContext, rows: int, columns: int) -> Ref:
    """Whether column j takes part in row i: up to the row's own number."""
    if not is_open(rows) and not is_open(columns):
        return c.constant(np.tri(rows, columns, dtype=bool))
    i, j = c.iota(rows), c.iota(columns)
    return c.add("less_equal", c.reshape(j, (1, columns)), c.reshape(i, (rows, 1)))


def _attention_of_cpu(
    c: TorchContext, query: Ref, key: Ref, value: Ref, dropout_p: float, is_causal: bool, attn_mask: Ref | None = None,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Attention, and the logarithm of the sums of its exponentials, which its gradient reads."""
    key, value = (repeated_heads(c, t, c.shape(query)[1]) for t in (key, value))
    result = _attention(c, query, key, value, attn_mask, dropout_p, is_causal, scale)
    scores = attention_scores(c, query, key, attn_mask, is_causal, scale)
    return [result, c.add("reduce_logsumexp", scores, axes=(c.rank(scores) - 1,), keepdims=False)]


TRANSLATORS: Mapping[str, Translator] = {
    "aten.matmul": _matmul, "aten.mm": _mm, "aten.bmm": _mm, "aten.dot": _dot, "aten.mv": _mv, "aten.linear": _linear,
    "aten.addmm": _addmm, "aten.baddbmm": _baddbmm, "aten.addmv": _addmv, "aten.outer": _outer,
    "aten._trilinear": _trilinear,
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention_of_cpu,
}  # fmt: skip

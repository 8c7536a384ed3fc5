"""Translators of ATen operators that compute gradients: vector-Jacobian products of translated ones, or formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from burnish.frontend.torch import indexing, window
from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.product import attention_scores, repeated_heads, zero_where_none
from burnish.frontend.torch.symbols import is_open
from burnish.graph.gradient import backpropagate

POOL_BACKWARD = "burnish::max_pool2d_backward"  # as aten's, but by the pool's input instead of its indices
MEAN, SUM = 1, 2  # reductions of losses


def _pulled_back(
    c: TorchContext, seed: Ref, wrt: Sequence[Ref], forward: Callable[[], Ref], like: str = ""
) -> list[Ref]:
    """The gradients by ``wrt`` of ``forward()`` times ``seed``; ``like``: the argument that is as its result."""
    result = c.result
    if like:
        c.result = c.raw[like]
    y = forward()
    c.result = result
    return [Ref(name) for name in backpropagate(c.builder, {y: c.reshape(seed, c.shape(y))}, wrt)]


def _unknown(c: TorchContext, shape: Sequence[int], like: Ref) -> Ref:
    """Placeholder value of a tensor that a linear operator is differentiated by: zeros, since it does not matter."""
    return c.expand(c.scalar(0, like), shape)


# --- products and windows ---------------------------------------------------------------------------------------------


def _convolution_backward(
    c: TorchContext,
    grad_output: Ref,
    input: Ref,
    weight: Ref,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Ref | None]:
    def forward() -> Ref:
        arguments = (stride, padding, dilation, transposed, output_padding, groups)
        return window.convolution(c, input, weight, None, *arguments)

    wanted = [t for t, asked in zip((input, weight), output_mask[:2], strict=True) if asked]
    found = iter(_pulled_back(c, grad_output, wanted, forward, "grad_output") if wanted else [])
    dx, dw = (next(found) if asked else None for asked in output_mask[:2])
    axes = tuple(d for d in range(c.rank(grad_output)) if d != c.rank(grad_output) - c.rank(weight) + 1)
    db = c.add("reduce_sum", grad_output, axes=axes, keepdims=False) if output_mask[2] else None
    return [dx, dw, db]


def _attention_backward(
    c: TorchContext, grad_out: Ref, query: Ref, key: Ref, value: Ref, out: Ref, logsumexp: Ref, dropout_p: float,
    is_causal: bool, attn_mask: Ref | None = None, scale: float | None = None,
) -> list[Ref]:  # fmt: skip
    """The gradient of attention from its result and the logarithm of its sums (Dao et al. 2022, §3.1)."""
    if dropout_p != 0:
        c.refuse("dropout_p", dropout_p, "0: random numbers are not supported")
    own_heads, heads = c.shape(key)[1], c.shape(query)[1]
    key, value = (repeated_heads(c, t, heads) for t in (key, value))
    factor = 1 / math.sqrt(c.shape(query)[-1]) if scale is None else scale
    scores = attention_scores(c, query, key, attn_mask, is_causal, scale)
    rows = c.reshape(c.cast(logsumexp, c.dtype(scores)), (*c.shape(logsumexp), 1))
    weights = c.add("exp", c.add("sub", scores, rows))
    if attn_mask is not None:
        weights = zero_where_none(c, weights, attn_mask)
    dv = c.add("matmul", weights, grad_out, transpose_a=True)
    dp = c.add("matmul", grad_out, value, transpose_b=True)
    own = c.add("reduce_sum", c.add("mul", grad_out, out), axes=(c.rank(out) - 1,), keepdims=True)
    ds = c.add("mul", c.add("mul", weights, c.add("sub", dp, own)), c.scalar(factor, weights))
    dk = c.add("matmul", ds, query, transpose_a=True)
    return [c.add("matmul", ds, key), *(_summed_heads(c, t, own_heads) for t in (dk, dv))]


def _summed_heads(c: TorchContext, x: Ref, heads: int) -> Ref:
    """Sum over query heads that share a key head (grouped-query attention)."""
    batch, all_heads, *rest = c.shape(x)
    if all_heads == heads:
        return x
    parted = c.reshape(x, (batch, heads, all_heads // heads, *rest))
    return c.add("reduce_sum", parted, axes=(2,), keepdims=False)


def _max_pool_backward(
    c: TorchContext,
    grad_output: Ref,
    x: Ref,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Ref:
    def forward() -> Ref:
        return window.max_pool(2, c, x, kernel_size, stride, padding, dilation, ceil_mode)

    return _pulled_back(c, grad_output, [x], forward, "grad_output")[0]


def _avg_pool_backward(
    rank: int, c: TorchContext, grad_output: Ref, x: Ref, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Ref:  # fmt: skip
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _pulled_back(c, grad_output, [x], lambda: window.avg_pool(rank, c, x, *arguments), "grad_output")[0]


def _adaptive_avg_pool_backward(rank: int, c: TorchContext, grad_output: Ref, x: Ref) -> Ref:
    def forward() -> Ref:
        return window.adaptive_avg_pool(rank, c, x, None)

    return _pulled_back(c, grad_output, [x], forward, "grad_output")[0]


# --- positions --------------------------------------------------------------------------------------------------------


def _embedding_backward(
    c: TorchContext, grad_output: Ref, indices: Ref, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Ref:
    if scale_grad_by_freq:
        c.refuse("scale_grad_by_freq", True, "False")
    table = _unknown(c, (num_weights, c.shape(grad_output)[-1]), grad_output)
    (found,) = _pulled_back(c, grad_output, [table], lambda: indexing.embedding(c, table, indices))
    if padding_idx < 0:
        return found
    others = c.add("not_equal", c.reshape(c.iota(num_weights), (num_weights, 1)), c.constant(padding_idx, "int64"))
    return c.add("where", others, found, c.scalar(0, found))


def _slice_backward(
    c: TorchContext, grad_output: Ref, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Ref:
    whole = _unknown(c, input_sizes, grad_output)
    axis = c.axis(whole, dim)
    extent = c.shape(grad_output)[axis]
    begin = start + input_sizes[axis] if not is_open(start) and start < 0 else start
    return _pulled_back(c, grad_output, [whole], lambda: c.slice(whole, axis, begin, extent, step))[0]


def _select_backward(c: TorchContext, grad_output: Ref, input_sizes: Sequence[int], dim: int, index: int) -> Ref:
    whole = _unknown(c, input_sizes, grad_output)
    axis = c.axis(whole, dim)
    place = index + input_sizes[axis] if not is_open(index) and index < 0 else index
    return _pulled_back(c, grad_output, [whole], lambda: c.slice(whole, axis, place, 1))[0]


def _index_put(
    c: TorchContext, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False, unsafe: bool = False
) -> Ref:
    """As that of inference; values that are added are the gradient of what reads at the indices."""
    if not accumulate:
        return indexing.index_put(c, x, indices, values, accumulate, unsafe)
    whole = _unknown(c, c.shape(x), x)
    y = indexing.index(c, whole, indices)
    found = backpropagate(c.builder, {y: c.expand(c.cast(values, c.dtype(x)), c.shape(y))}, [whole])
    return c.add("add", x, found[0])


def _scatter_add(c: TorchContext, x: Ref, dim: int, index: Ref, src: Ref) -> Ref:
    if c.shape(src) != c.shape(index):
        src = c.add("slice", src, starts=(0,) * c.rank(src), extents=c.shape(index))
    whole = _unknown(c, c.shape(x), x)
    (found,) = _pulled_back(c, src, [whole], lambda: indexing.gather(c, whole, dim, index))
    return c.add("add", x, found)


# --- losses -----------------------------------------------------------------------------------------------------------


def _classes(c: TorchContext, x: Ref, target: Ref, weight: Ref | None, ignore_index: int) -> tuple[Ref, Ref, Ref]:
    """Label mask, class and weight of each label, both 0 where it does not count. Refuses vectors."""
    if c.rank(x) < 2:
        c.refuse("input", f"{c.rank(x)} dimensions", "2 at least: [N, classes, …]")
    known = c.add("not_equal", target, c.constant(ignore_index, c.dtype(target)))
    place = c.add("where", known, target, c.scalar(0, target))
    if weight is None:
        return known, place, c.cast(known, c.dtype(x))
    own = c.reshape(c.add("gather", weight, c.flat(place), axis=0), c.shape(place))
    return known, place, c.add("where", known, own, c.scalar(0, own))


def _nll_loss(c: TorchContext, x: Ref, target: Ref, weight: Ref | None, reduction: int, ignore_index: int) -> list[Ref]:
    """The negative log likelihood of labels, and the sum of the weights of those that count."""
    known, place, factor = _classes(c, x, target, weight, ignore_index)
    shape = (c.shape(target)[0], 1, *c.shape(target)[1:])
    found = c.reshape(c.add("gather_elements", x, c.reshape(place, shape), axis=1), c.shape(target))
    lost = c.add("neg", found) if weight is None else c.add("neg", c.add("mul", found, factor))
    each = c.add("where", known, lost, c.scalar(0, x))
    count = c.add("reduce_sum", factor, keepdims=False)
    if reduction not in (MEAN, SUM):
        return [each, c.scalar(0, x)]
    total = c.add("reduce_sum", each, keepdims=False)
    return [c.add("div", total, count) if reduction == MEAN else total, count]


def _nll_loss_backward(
    c: TorchContext, grad_output: Ref, x: Ref, target: Ref, weight: Ref | None, reduction: int, ignore_index: int,
    total_weight: Ref,
) -> Ref:  # fmt: skip
    rows, classes, *rest = c.shape(x)
    known, _, factor = _classes(c, x, target, weight, ignore_index)
    label = c.reshape(target, (rows, 1, *rest))
    numbers = c.reshape(c.iota(classes, c.dtype(target)), (classes, *(1 for _ in rest)))
    own = c.add("logical_and", c.add("equal", label, numbers), c.reshape(known, (rows, 1, *rest)))
    slope = c.add("neg", c.add("div", grad_output, total_weight) if reduction == MEAN else grad_output)
    slope = slope if reduction in (MEAN, SUM) else c.reshape(slope, (rows, 1, *rest))
    slope = slope if weight is None else c.add("mul", slope, c.reshape(factor, (rows, 1, *rest)))
    return c.add("where", own, slope, c.scalar(0, x))


TRANSLATORS: Mapping[str, Translator] = {
    "aten.convolution_backward": _convolution_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "burnish.max_pool2d_backward": _max_pool_backward,
    **{f"aten.avg_pool{rank}d_backward": partial(_avg_pool_backward, rank) for rank in (2, 3)},
    **{f"aten._adaptive_avg_pool{rank}d_backward": partial(_adaptive_avg_pool_backward, rank) for rank in (2, 3)},
    "aten.embedding_dense_backward": _embedding_backward, "aten.slice_backward": _slice_backward,
    "aten.select_backward": _select_backward, "aten.index_put": _index_put, "aten._unsafe_index_put": _index_put,
    "aten.scatter_add": _scatter_add, "aten.nll_loss_forward": _nll_loss,
    "aten.nll_loss_backward": _nll_loss_backward, "aten.nll_loss2d_forward": _nll_loss,
    "aten.nll_loss2d_backward": _nll_loss_backward,
}  # fmt: skip

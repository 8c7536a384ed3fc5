"""Attention as one operator, of which a step of training keeps no scores: they are computed again, block by block."""

from __future__ import annotations

from math import inf, prod

import numpy as np

from burnish.loops.expr import FLOATS, Expr, cast, math, select, wrap
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.operator import Application, declare, differentiated, operator, require, require_input, wide
from burnish.ops.reduce import reduce_stage, row_index

BLOCK_BYTES = 256 << 20  # of the float32 scores of a block of rows, beside which its launches are few


def block_rows(lead: int, rows: int, keys: int) -> int:
    """Rows of queries of which the gradient computes the scores at a time."""
    fitting = max(BLOCK_BYTES // max(4 * lead * keys, 1), 1)
    if fitting >= rows:
        return rows
    return max((n for n in (16, 32, 64, 128, 256, 512, 1024) if n <= fitting), default=fitting)


def _gradient(a: Application) -> list[str | None]:
    """Scores and shares of a block of rows anew, then as in FlashAttention-2, algorithm 2 (Dao 2023), with the sums
    ``sum(p * dp)`` in the place of those of results: memory is linear in the rows.
    """
    (q, k, v), seed = a.inputs, a.seeds[0]
    assert seed is not None
    (shape, dtype), (keys_shape, _) = a.types[:2]
    *lead, rows, depth = shape
    keys, scale = keys_shape[-2], a.attrs["scale"]
    width = a.types[2][0][-1]
    step = block_rows(prod(lead), rows, keys)
    factor = a.emit.constant(scale, dtype="float32")

    def block(x: str, begin: int, count: int, columns: int) -> str:
        starts = (*(0 for _ in lead), begin, 0)
        return x if count == rows else a.add("slice", x, starts=starts, extents=(*lead, count, columns))

    def as_(x: str, to: str, found: str) -> str:
        return x if to == found else a.add("cast", x, to=to)

    parts: list[str] = []
    totals: list[str | None] = [None, None]  # of keys and values, float32
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        own, back = block(q, begin, count, depth), block(seed, begin, count, width)
        scores = a.add("mul", as_(a.add("matmul", own, k, transpose_b=True), "float32", dtype), factor)
        if a.attrs["causal"]:
            seen = a.emit.constant(np.tri(count, keys, begin, dtype=np.bool_), dtype="bool")
            scores = a.add("where", seen, scores, a.emit.constant(-inf, dtype="float32"))
        shares = a.add("softmax", scores)
        by_shares = as_(a.add("matmul", back, v, transpose_b=True), "float32", dtype)
        sums = a.add("reduce_sum", a.add("mul", shares, by_shares), axes=(len(shape) - 1,), keepdims=True)
        by_scores = a.add("mul", a.add("mul", shares, a.add("sub", by_shares, sums)), factor)
        narrow = as_(by_scores, dtype, "float32")
        if a.wanted[0]:
            parts.append(a.add("matmul", narrow, k))
        found = (
            a.add("matmul", narrow, own, transpose_a=True) if a.wanted[1] else None,
            a.add("matmul", as_(shares, dtype, "float32"), back, transpose_a=True) if a.wanted[2] else None,
        )
        for number, part in enumerate(found):
            if part is not None:
                term, before = as_(part, "float32", dtype), totals[number]
                totals[number] = term if before is None else a.add("add", before, term)
    whole = None
    if parts:
        whole = parts[0] if len(parts) == 1 else a.add("concat", *parts, axis=len(lead))
    return [whole, *(None if total is None else as_(total, dtype, "float32") for total in totals)]


@differentiated(_gradient)
@declare(layout_affinity=-4.0, weight_channel=-1)
@operator
def row_attention(
    name: str, query: Tensor, key: Tensor, value: Tensor, *, scale: float = 1.0, causal: bool = False
) -> Tensor:
    """``softmax(scale * Q K') V`` over [..., rows, depth], [..., keys, depth] and [..., keys, columns] of the same
    dimensions in front (Vaswani et al. 2017). ``causal``: row i sees the keys up to number i. Sums and shares are
    float32, the latter of halves rounded before they weigh.
    """
    require_input(query, "query", dtype=FLOATS)
    *lead, rows, depth = query.shape
    keys, columns = value.shape[-2:] if len(value.shape) > 1 else (0, 0)
    require_input(key, "key", shape=(*lead, keys, depth), dtype=(query.dtype,))
    require_input(value, "value", shape=(*lead, keys, columns), dtype=(query.dtype,))
    require(not causal or keys >= rows, "attribute 'causal'", f"{rows} rows of {keys} keys", "as many keys or more")
    dims = (*lead, rows, keys)

    def product(*i: Expr) -> Expr:
        d = reduce_axis(depth, "d")
        return sum_over(wide(query[(*i[:-1], d.var)]) * wide(key[(*i[:-2], i[-1], d.var)]), d)

    products = compute(dims, product, f"{name}.product")

    def score(*i: Expr) -> Expr:
        value_ = products[i] * wrap(scale, products.dtype)
        return select(i[-1] <= i[-2], value_, wrap(-inf, products.dtype)) if causal else value_

    scores, axes = compute(dims, score, f"{name}.score"), (len(lead) + 1,)
    top = reduce_stage(f"{name}.max", "max", dims, axes, lambda *i: scores[i])
    power = compute(dims, lambda *i: math("exp", scores[i] - top[row_index(i, axes)]), f"{name}.exp")
    total = reduce_stage(f"{name}.sum", "sum", dims, axes, lambda *i: power[i])
    inverse = compute(total.shape, lambda *i: 1.0 / total[i], f"{name}.inverse")

    def share(*i: Expr) -> Expr:
        return cast(query.dtype, power[i] * inverse[row_index(i, axes)])

    shares = compute(dims, share, f"{name}.share")

    def weighted(*i: Expr) -> Expr:
        t = reduce_axis(keys, "t")
        return sum_over(wide(shares[(*i[:-1], t.var)]) * wide(value[(*i[:-2], t.var, i[-1])]), t)

    if products.dtype == query.dtype:
        return compute((*lead, rows, columns), weighted, name)
    sums = compute((*lead, rows, columns), weighted, f"{name}.weighted")
    return compute((*lead, rows, columns), lambda *i: cast(query.dtype, sums[i]), name)


OPERATORS = (row_attention,)

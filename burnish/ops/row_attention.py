"""Attention as one operator, of which a step of training keeps the logarithm of each row's sum of exponentials alone:
its gradient computes scores again, block by block.

Source: Dao et al. 2022 (FlashAttention), algorithm 4; Dao 2023 (FlashAttention-2), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from burnish.loops.expr import FLOATS, Expr, all_of, cast, math, select, wrap
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.operator import (
    Application,
    Operator,
    Refused,
    Shape,
    Traits,
    declare,
    differentiated,
    internal,
    named_operator,
    operator,
    require,
    require_input,
    wide,
)
from burnish.ops.reduce import reduce_stage, row_index

BLOCK_BYTES = 256 << 20  # of the float32 scores of a block of rows, beside which its launches are few
BLOCKWISE = ("float16", "bfloat16")  # whose gradient is one operator for queries and one for keys and values
MOST_COLUMNS = 256  # of the operands of these
FEWEST_ROWS = 16  # of queries and of keys


def block_rows(lead: int, rows: int, keys: int) -> int:
    """Rows of queries of which the gradient computes the scores at a time."""
    fitting = max(BLOCK_BYTES // max(4 * lead * keys, 1), 1)
    if fitting >= rows:
        return rows
    return max((n for n in (16, 32, 64, 128, 256, 512, 1024) if n <= fitting), default=fitting)


def exchanged(rank: int) -> tuple[int, ...]:
    """The order of dimensions in which heads and rows, the third and second from the end, have changed places."""
    return (*range(rank - 3), rank - 2, rank - 3, rank - 1)


# --- gradients --------------------------------------------------------------------------------------------------------


def _gradient(a: Application) -> list[str | None]:
    """In halves, if no wider than tiles, and where it is ``tiled``, by :func:`row_attention_query_gradient` and
    :func:`row_attention_key_gradient`; else by products of blocks of rows, whose scores are in memory.
    """
    (q, k, v), (seed, logs_seed) = a.inputs, a.seeds
    (shape, dtype), (keys_shape, _), (values_shape, _) = a.types
    inside, rank = a.attrs["inside"], len(shape)
    if seed is None:
        own = (*shape[:-1], values_shape[-1])
        order = exchanged(rank) if inside else range(rank)
        seed = a.add("expand", a.emit.constant(0.0, dtype=dtype), shape=tuple(own[d] for d in order))
    wider = [_as(a, x, "float32", dtype) if dtype in BLOCKWISE else x for x in (seed, a.outputs[0])]
    sums = a.add("reduce_sum", a.add("mul", *wider), axes=(rank - 1,), keepdims=False)
    if logs_seed is not None:
        if inside:
            logs_seed = a.add("transpose", logs_seed, perm=(*range(rank - 3), rank - 2, rank - 3))
        sums = a.add("sub", sums, logs_seed)
    widths = (shape[-1], values_shape[-1])
    fits = max(widths) <= MOST_COLUMNS and min(shape[-2], keys_shape[-2]) >= FEWEST_ROWS
    attrs = dict(a.attrs)
    if not (attrs.pop("tiled") or (dtype in BLOCKWISE and fits)):
        return _by_blocks(a, seed, sums)
    operands = (q, k, v, seed, a.outputs[1], sums)
    found: list[str | None] = [None, None, None]
    if a.wanted[0]:
        found[0] = a.add("row_attention_query_gradient", *operands, **attrs)
    if a.wanted[1] or a.wanted[2]:
        found[1:] = a.emit.add_many("row_attention_key_gradient", *operands, **attrs)
    return [None if x is None else a.add("transpose", x, perm=exchanged(rank)) if inside else x for x in found]


def _as(a: Application, x: str, to: str, found: str) -> str:
    return x if to == found else a.add("cast", x, to=to)


def _by_blocks(a: Application, seed: str, sums: str) -> list[str | None]:
    """Gradients by products of blocks of rows with all keys: memory is linear in the rows."""
    q, k, v = a.inputs
    (shape, dtype), (keys_shape, _), (values_shape, _) = a.types
    *lead, rows, depth = shape
    keys, width, rank = keys_shape[-2], values_shape[-1], len(shape)
    accumulated = "float32" if dtype in BLOCKWISE else dtype
    if a.attrs["inside"]:
        seed = a.add("transpose", seed, perm=exchanged(rank))
        sums = a.add("transpose", sums, perm=(*range(rank - 3), rank - 2, rank - 3))
    group = shape[-3] // keys_shape[-3]
    k, v = (_repeated(a, x, t[0], group) for x, t in ((k, a.types[1]), (v, a.types[2])))
    logs, sums = (a.add("reshape", x, shape=(*lead, rows, 1)) for x in (a.outputs[1], sums))
    step = block_rows(prod(lead), rows, keys)
    factor = a.emit.constant(a.attrs["scale"], dtype=accumulated)

    def block(x: str, begin: int, count: int, columns: int) -> str:
        starts = (*(0 for _ in lead), begin, 0)
        return x if count == rows else a.add("slice", x, starts=starts, extents=(*lead, count, columns))

    parts: list[str] = []
    totals: list[str | None] = [None, None]  # of keys and values
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        own, back = block(q, begin, count, depth), block(seed, begin, count, width)
        scores = a.add("mul", _as(a, a.add("matmul", own, k, transpose_b=True), accumulated, dtype), factor)
        low, high = a.attrs["lower"], a.attrs["upper"]
        if low is not None or high is not None:
            low, high = (1 - rows - begin if low is None else low), (keys - 1 if high is None else high)
            scores = a.add("band", scores, lower=low + begin, upper=high + begin)
        shares = a.add("exp", a.add("sub", scores, block(logs, begin, count, 1)))
        by_shares = _as(a, a.add("matmul", back, v, transpose_b=True), accumulated, dtype)
        below = a.add("sub", by_shares, block(sums, begin, count, 1))
        narrow = _as(a, a.add("mul", a.add("mul", shares, below), factor), dtype, accumulated)
        if a.wanted[0]:
            parts.append(a.add("matmul", narrow, k))
        found = (
            a.add("matmul", narrow, own, transpose_a=True) if a.wanted[1] else None,
            a.add("matmul", _as(a, shares, dtype, accumulated), back, transpose_a=True) if a.wanted[2] else None,
        )
        for number, part in enumerate(found):
            if part is not None:
                term, before = _as(a, part, accumulated, dtype), totals[number]
                totals[number] = term if before is None else a.add("add", before, term)
    whole = None
    if parts:
        whole = parts[0] if len(parts) == 1 else a.add("concat", *parts, axis=len(lead))
    summed = (_shared(a, x, t[0], group) for x, t in zip(totals, a.types[1:], strict=True))
    return [whole, *(None if x is None else _as(a, x, dtype, accumulated) for x in summed)]


def _repeated(a: Application, x: str, shape: Shape, group: int) -> str:
    """Keys or values of heads that share them, for each of these."""
    if group == 1:
        return x
    *lead, heads, rows, columns = shape
    apart = a.add("reshape", x, shape=(*lead, heads, 1, rows, columns))
    whole = a.add("expand", apart, shape=(*lead, heads, group, rows, columns))
    return a.add("reshape", whole, shape=(*lead, heads * group, rows, columns))


def _shared(a: Application, x: str | None, shape: Shape, group: int) -> str | None:
    """The sum of the gradients of :func:`_repeated`."""
    if group == 1 or x is None:
        return x
    *lead, heads, rows, columns = shape
    apart = a.add("reshape", x, shape=(*lead, heads, group, rows, columns))
    return a.add("reduce_sum", apart, axes=(len(lead) + 1,), keepdims=False)


# --- definitions ------------------------------------------------------------------------------------------------------

Element = Callable[..., Expr]


class _Operands:
    """Queries [..., heads, rows, depth], keys and values of as many heads or of one for each ``group`` of these."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, inside: bool) -> None:
        require_input(query, "query", dtype=FLOATS)
        require(len(query.shape) > 2, "input 'query'", f"shape {list(query.shape)}", "3 dimensions or more")
        self.lead, (self.heads, self.rows, self.depth) = query.shape[:-3], query.shape[-3:]
        shared, self.keys, self.columns = value.shape[-3:] if len(value.shape) > 2 else (0, 0, 0)
        known = shared > 0 and self.heads % shared == 0
        require(known, "input 'value'", f"shape {list(value.shape)}", f"a divisor of {self.heads} heads")
        require_input(key, "key", shape=(*self.lead, shared, self.keys, self.depth), dtype=(query.dtype,))
        require_input(value, "value", shape=(*self.lead, shared, self.keys, self.columns), dtype=(query.dtype,))
        self.query, self.key, self.value, self.inside = query, key, value, inside
        self.shared, self.group = shared, self.heads // shared

    def of_keys(self, i: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index of the dimensions in front of rows, for keys."""
        return (*i[:-1], i[-1] // self.group if self.group > 1 else i[-1])

    def placed(self, heads: int, rows: int, columns: int) -> Shape:
        """Shape of rows of heads."""
        return (*self.lead, rows, heads, columns) if self.inside else (*self.lead, heads, rows, columns)

    def ordered(self, i: Sequence[Any]) -> tuple[Any, ...]:
        """An index of heads, rows and columns in the order of :meth:`placed`, and back."""
        return (*i[:-3], i[-2], i[-3], i[-1]) if self.inside else (*i,)

    def row(self, i: Sequence[Any]) -> tuple[Any, ...]:
        """An index of heads and rows in the order of :meth:`placed`."""
        return (*i[:-2], i[-1], i[-2]) if self.inside else (*i,)

    def product(self, name: str, left: Element, right: Tensor, depth: int) -> Tensor:
        """Products of rows and keys; ``left``: its element of heads, rows, depth."""

        def element(*i: Expr) -> Expr:
            d = reduce_axis(depth, "d")
            at = (*self.of_keys(i[:-2]), i[-1], d.var)
            return sum_over(wide(left(*i[:-1], d.var)) * wide(right[at]), d)

        return compute((*self.lead, self.heads, self.rows, self.keys), element, name)

    def weighed(self, name: str, weights: Tensor, right: Tensor, columns: int) -> Tensor:
        """Sums over the keys of rows of ``right``, by weights of rows and keys."""

        def element(*i: Expr) -> Expr:
            t = reduce_axis(self.keys, "t")
            return sum_over(wide(weights[(*i[:-1], t.var)]) * wide(right[(*self.of_keys(i[:-2]), t.var, i[-1])]), t)

        return compute((*self.lead, self.heads, self.rows, columns), element, name)

    def scores(self, name: str, scale: float, lower: int | None, upper: int | None) -> Tensor:
        """Scores, of which softmax is taken."""
        found = f"{lower} to {upper} for {self.rows} rows of {self.keys} keys"
        low, high = (1 - self.rows if lower is None else lower), (self.keys - 1 if upper is None else upper)
        known = high >= 0 and low <= high and low <= self.keys - self.rows
        require(known, "attributes 'lower' and 'upper'", found, "a key for every row")
        products = self.product(f"{name}.product", lambda *i: self.query[i], self.key, self.depth)

        def score(*i: Expr) -> Expr:
            scaled, (row, key) = products[i] * wrap(scale, products.dtype), i[-2:]
            within = [key <= row + high] * (high < self.keys - 1) + [row + low <= key] * (low > 1 - self.rows)
            return select(all_of(*within), scaled, wrap(float("-inf"), products.dtype)) if within else scaled

        return compute(products.shape, score, f"{name}.score")


@differentiated(_gradient)
@declare(layout_affinity=-4.0, weight_channel=-1)
@operator
def row_attention(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float = 1.0,
    lower: int | None = None,
    upper: int | None = None,
    inside: bool = False,
    tiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """``softmax(scale * Q K') V`` over [..., heads, rows, depth], [..., heads, keys, depth] and [..., heads, keys,
    columns] (Vaswani et al. 2017), and the logarithm of each row's sum of exponentials, [..., heads, rows].

    Row i sees key j where j - i is in ``lower`` to ``upper``; None: any. Several heads of queries, one after another,
    may share a head of keys and values. ``inside``: the result is [..., rows, heads, columns]. Sums and shares are
    float32, the latter of halves rounded before they weigh. ``tiled``: gradients of float32 and float64, as of halves,
    compute all scores again beside the sums that they weigh.
    """
    del tiled  # of the gradient alone
    x = _Operands(query, key, value, inside)
    scores, axes = x.scores(name, scale, lower, upper), (len(x.lead) + 2,)
    top = reduce_stage(f"{name}.max", "max", scores.shape, axes, lambda *i: scores[i])
    power = compute(scores.shape, lambda *i: math("exp", scores[i] - top[row_index(i, axes)]), f"{name}.exp")
    total = reduce_stage(f"{name}.sum", "sum", scores.shape, axes, lambda *i: power[i])
    inverse = compute(total.shape, lambda *i: 1.0 / total[i], f"{name}.inverse")

    def share(*i: Expr) -> Expr:
        return cast(query.dtype, power[i] * inverse[row_index(i, axes)])

    shares = compute(scores.shape, share, f"{name}.share")

    def logarithm(*i: Expr) -> Expr:
        at = (*i, wrap(0))
        return top[at] + math("log", total[at])

    logs = compute(scores.shape[:-1], logarithm, f"{name}.1")
    sums = x.weighed(f"{name}.weighted", shares, value, x.columns)
    shape = x.placed(x.heads, x.rows, x.columns)
    return compute(shape, lambda *i: cast(query.dtype, sums[x.ordered(i)]), f"{name}.0"), logs


class _Backward(_Operands):
    """As its base, with the adjoint of the result, logarithms of sums, and each row's sum of results by adjoints."""

    def __init__(self, name: str, tensors: Sequence[Tensor], inside: bool, scale: float, *band: int | None) -> None:
        query, key, value, self.seed, logs, sums = tensors
        super().__init__(query, key, value, inside)
        rows = (*self.lead, self.heads, self.rows)
        wide_ = "float32" if query.dtype in BLOCKWISE else query.dtype
        require_input(self.seed, "seed", shape=self.placed(self.heads, self.rows, self.columns), dtype=(query.dtype,))
        require_input(logs, "logs", shape=rows, dtype=(wide_,))
        require_input(sums, "sums", shape=self.row(rows), dtype=(wide_,))
        scores = self.scores(name, scale, *band)
        by_values = self.product(f"{name}.by_values", self.seed_element, value, self.columns)
        power = compute(scores.shape, lambda *i: math("exp", scores[i] - logs[i[:-1]]), f"{name}.exp")
        factor = wrap(scale, power.dtype)

        def slope(*i: Expr) -> Expr:
            return cast(query.dtype, power[i] * (by_values[i] - sums[self.row(i[:-1])]) * factor)

        self.slopes = compute(scores.shape, slope, f"{name}.slope")
        self.shares = compute(scores.shape, lambda *i: cast(query.dtype, power[i]), f"{name}.share")

    def seed_element(self, *i: Expr) -> Expr:
        """The element of the adjoint of heads, rows and columns."""
        return self.seed[self.ordered(i)]

    def of_rows(self, name: str, weights: Tensor, factor: Element, columns: int) -> Tensor:
        """Sums over all rows that see a key, of all heads that share it."""

        def element(*i: Expr) -> Expr:
            *lead, head, key, column = i
            g, r = reduce_axis(self.group, "g"), reduce_axis(self.rows, "r")
            own = head * self.group + g.var if self.group > 1 else head
            product = wide(weights[(*lead, own, r.var, key)]) * wide(factor(*lead, own, r.var, column))
            return sum_over(product, (g, r) if self.group > 1 else r)

        sums = compute((*self.lead, self.shared, self.keys, columns), element, f"{name}.sums")
        shape = self.placed(self.shared, self.keys, columns)
        return compute(shape, lambda *i: cast(self.query.dtype, sums[self.ordered(i)]), name)


def _query_gradient(name: str, x: _Backward) -> Tensor:
    found = x.weighed(f"{name}.sums", x.slopes, x.key, x.depth)
    shape = x.placed(x.heads, x.rows, x.depth)
    return compute(shape, lambda *i: cast(x.query.dtype, found[x.ordered(i)]), name)


def _key_gradient(name: str, x: _Backward) -> tuple[Tensor, Tensor]:
    keys = x.of_rows(f"{name}.0", x.slopes, lambda *i: x.query[i], x.depth)
    return keys, x.of_rows(f"{name}.1", x.shares, x.seed_element, x.columns)


def _backward(name: str, make: Callable[[str, _Backward], Tensor | tuple[Tensor, ...]], doc: str) -> Operator:
    def define(
        stage: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seed: Tensor,
        logs: Tensor,
        sums: Tensor,
        *,
        scale: float = 1.0,
        lower: int | None = None,
        upper: int | None = None,
        inside: bool = False,
    ) -> Tensor | tuple[Tensor, ...]:
        return make(stage, _Backward(stage, (query, key, value, seed, logs, sums), inside, scale, lower, upper))

    refused = Refused("it is the gradient of attention itself; allowed: gradients of the first order")
    return differentiated(refused)(named_operator(name, define, doc, Traits(layout_affinity=-4.0)))


row_attention_query_gradient = _backward(
    "row_attention_query_gradient",
    _query_gradient,
    """Gradient of :func:`row_attention` by its queries, [..., heads, rows, depth]: ``dS K``, of scores computed again.

    ``seed``: the adjoint of the result. ``logs``: the logarithms of sums. ``sums``: each row's sum of result by adjoint
    (less the adjoint of ``logs``), [..., heads, rows]. ``inside``: results, adjoints and ``sums`` have heads behind
    rows. Dao 2023, algorithm 2, lines 8 to 16.
    """,
)
row_attention_key_gradient = _backward(
    "row_attention_key_gradient",
    _key_gradient,
    """Gradients of :func:`row_attention` by its keys and its values: ``dS' Q`` and ``P' dO``. See
    :func:`row_attention_query_gradient`.
    """,
)

OPERATORS = (row_attention, *internal(row_attention_query_gradient, row_attention_key_gradient))

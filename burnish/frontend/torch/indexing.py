"""Translators of ATen operators that read or write at positions held in tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.symbols import is_open


def _integers(c: TorchContext, index: Ref, extent: int, lowest: int = 0) -> Ref:
    """Positions below ``extent`` as the operators take them; calls refuse others, as torch does."""
    if not is_open(extent):
        c.builder.limit(index, lowest, extent)
    return index if c.dtype(index) in ("int64", "int32") else c.cast(index, "int64")


def embedding(
    c: TorchContext,
    weight: Ref,
    indices: Ref,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Ref:
    """Rows of a table by their numbers. In training the row ``padding_idx`` gets no gradient."""
    numbers = _integers(c, indices, c.shape(weight)[0])
    rows = c.add("gather", weight, numbers, axis=0)
    if c.training and scale_grad_by_freq:
        rows = _by_frequency(c, rows, numbers, c.shape(weight)[0])
    if not c.training or padding_idx < 0:
        return rows
    padding = c.add("equal", c.reshape(numbers, (*c.shape(numbers), 1)), c.constant(padding_idx, c.dtype(numbers)))
    return c.add("where", padding, c.add("stop_gradient", rows), rows)


def _by_frequency(c: TorchContext, rows: Ref, numbers: Ref, extent: int) -> Ref:
    """Rows whose gradients are divided by how often their numbers occur."""
    flat = c.flat(numbers)
    ones = c.expand(c.scalar(1, rows), c.shape(flat))
    counts = c.add("scatter_elements", c.expand(c.scalar(0, rows), (extent,)), flat, ones, axis=0, reduction="add")
    count = c.reshape(c.add("gather", counts, flat, axis=0), (*c.shape(numbers), 1))
    fixed = c.add("stop_gradient", rows)
    return c.add("add", fixed, c.add("div", c.add("sub", rows, fixed), count))


def _index_select(c: TorchContext, x: Ref, dim: int, index: Ref) -> Ref:
    if not c.rank(x):
        return x
    return c.add("gather", x, c.flat(_integers(c, index, c.shape(x)[c.axis(x, dim)])), axis=c.axis(x, dim))


def gather(c: TorchContext, x: Ref, dim: int, index: Ref, sparse_grad: bool = False) -> Ref:
    """Elements along ``dim`` at the places in ``index``."""
    if not c.rank(x):
        return c.reshape(x, c.out_shape)
    return c.add("gather_elements", x, _integers(c, index, c.shape(x)[c.axis(x, dim)]), axis=c.axis(x, dim))


def index(c: TorchContext, x: Ref, indices: Sequence[Ref | None]) -> Ref:
    """``x[indices]``: positions broadcast together; their dimensions stand where the first one was if they are side by
    side, else in front.
    """
    indices = [part for index in indices for part in _as_positions(c, index)]
    used = [d for d, index in enumerate(indices) if index is not None]
    extents = [c.shape(x)[d] for d in used]
    taken = zip((i for i in indices if i is not None), extents, strict=True)
    given = [_integers(c, index, n, 0 if is_open(n) else -n) for index, n in taken]
    if len(used) == 1:
        return c.add("gather", x, given[0], axis=used[0])
    shape = _broadcast(c, given)
    adjacent = used == list(range(used[0], used[-1] + 1))
    separate = _separate(c, given, shape) if adjacent else None
    if separate is not None:
        return _one_by_one(c, x, used, given, separate, shape)
    rest = [d for d in range(c.rank(x)) if d not in used]
    moved = c.transpose(x, [*used, *rest])
    columns = [c.reshape(c.expand(index, shape), (*shape, 1)) for index in given]
    y = c.add("gather_nd", moved, c.concat([c.cast(t, "int64") for t in columns], len(shape)))
    if not adjacent or used[0] == 0:
        return y
    lead = range(len(shape), len(shape) + used[0])  # dimensions of x before the first index
    return c.transpose(y, [*lead, *range(len(shape)), *range(lead.stop, c.rank(y))])


def _as_positions(c: TorchContext, index: Ref | None) -> list[Ref | None]:
    """An index as positions: a mask that is known has some for each of its dimensions."""
    if index is None or c.dtype(index) != "bool":
        return [index]
    mask = c.known(index)
    if mask is None:
        c.refuse("indices", "a mask that is computed at run time", "positions: how many a mask holds depends on data")
    return [c.constant(positions, "int64") for positions in np.nonzero(mask)]


def _broadcast(c: TorchContext, tensors: Sequence[Ref]) -> tuple[int, ...]:
    rank = max(c.rank(t) for t in tensors)
    full = [(*(1,) * (rank - c.rank(t)), *c.shape(t)) for t in tensors]
    return tuple(next((s[d] for s in full if s[d] != 1), 1) for d in range(rank))


def _separate(c: TorchContext, given: Sequence[Ref], shape: Sequence[int]) -> list[int] | None:
    """The one dimension along which each index varies if these are different ones, in order; None otherwise.

    So are the rows and columns of an image that is resampled.
    """
    found = []
    for index in given:
        own = (*(1,) * (len(shape) - c.rank(index)), *c.shape(index))
        varying = [d for d, extent in enumerate(own) if extent != 1]
        if len(varying) > 1:
            return None
        found.append(varying[0] if varying else -1)
    return found if sorted(set(found)) == found and len(found) == len(shape) and -1 not in found else None


def _one_by_one(
    c: TorchContext, x: Ref, used: Sequence[int], given: Sequence[Ref], separate: Sequence[int], shape: Sequence[int]
) -> Ref:
    for axis, index, _ in zip(used, given, separate, strict=True):
        x = c.add("gather", x, c.flat(index), axis=axis)
    return x


# --- writes -----------------------------------------------------------------------------------------------------------

REDUCTIONS = {None: "none", "add": "add", "multiply": "mul", "sum": "add", "prod": "mul"}


def _written(c: TorchContext, x: Ref, values: Ref, places: np.ndarray) -> Ref:
    """``x`` with the elements of ``values``, in row-major order, at ``places`` of its flat form: the last one wins.

    One gather from both, joined, whose positions are known.
    """
    _require_numbers(c, x)
    shape = c.shape(x)
    source = np.arange(math.prod(shape), dtype=np.int64)
    source[places.reshape(-1)] = len(source) + np.arange(places.size)
    joined = c.concat([c.flat(x), c.flat(values)], 0)
    return c.reshape(c.add("gather", joined, c.constant(source), axis=0), shape)


def _require_numbers(c: TorchContext, x: Ref) -> None:
    if any(is_open(extent) for extent in c.shape(x)):
        c.refuse("shape", ", ".join(map(str, c.shape(x))), "numbers")


def _scatter(
    c: TorchContext, x: Ref, dim: int, index: Ref, src: Ref | None = None, value: float | None = None,
    reduce: str | None = None,
) -> Ref:  # fmt: skip
    """``x`` with values at positions along ``dim``."""
    shape = c.shape(index)
    if src is None:
        values = c.expand(c.operand(value, c.dtype(x)), shape)
    else:
        values = c.cast(src, c.dtype(x))
        values = values if c.shape(src) == shape else c.add("slice", values, starts=(0,) * c.rank(src), extents=shape)
    if not c.rank(x):
        x, index, values = (c.reshape(t, (1,)) for t in (x, index, values))
    found, axis = c.known(index), c.axis(x, dim)
    if found is None or reduce is not None:
        numbers = _integers(c, index, c.shape(x)[axis])
        y = c.add("scatter_elements", x, numbers, values, axis=axis, reduction=REDUCTIONS[reduce])
        return c.reshape(y, c.out_shape)
    where: list[np.ndarray] = list(np.indices(found.shape))
    where[axis] = found
    places = np.ravel_multi_index(tuple(where), c.shape(x)) if found.size else np.zeros(0, np.int64)
    return c.reshape(_written(c, x, values, places), c.out_shape)


def index_put(
    c: TorchContext, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False, unsafe: bool = False
) -> Ref:
    """``x`` with values at positions, as ``x[indices] = values`` leaves it; a mask that is computed selects."""
    values = c.cast(values, c.dtype(x))
    first = indices[0]
    if len(indices) == 1 and first is not None and c.dtype(first) == "bool" and c.known(first) is None:
        if math.prod(c.shape(values)) != 1:
            c.refuse("values", f"shape {list(c.shape(values))} where a mask is computed", "one element")
        mask = c.reshape(first, (*c.shape(first), *(1,) * (c.rank(x) - c.rank(first))))
        value = c.reshape(values, ())
        return c.add("where", mask, c.add("add", x, value) if accumulate else value, x)
    if accumulate or any(i is not None and c.known(i) is None for i in indices):
        return _put(c, x, indices, values, accumulate)
    _require_numbers(c, x)
    shape = c.shape(x)
    known = tuple(slice(None) if i is None else c.known(i) for i in indices)
    places = np.asarray(np.arange(math.prod(shape), dtype=np.int64).reshape(shape)[known])
    return _written(c, x, c.expand(values, places.shape), places)


def _put(c: TorchContext, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool) -> Ref:
    """:func:`index_put` at positions that are computed: dimensions that they index are moved to the front."""
    indices = [part for index in indices for part in _as_positions(c, index)]
    used = [d for d, index in enumerate(indices) if index is not None]
    rest = [d for d in range(c.rank(x)) if d not in used]
    extents = [c.shape(x)[d] for d in used]
    taken = zip((i for i in indices if i is not None), extents, strict=True)
    given = [_integers(c, index, n, 0 if is_open(n) else -n) for index, n in taken]
    shape = _broadcast(c, given)
    if len(used) == 1 and not accumulate and all(n == 1 for n in shape):
        whole = c.shape(x)
        kept = [n for d, n in enumerate(whole) if d != used[0]]
        values = c.expand(values, (*kept[: used[0]], *shape, *kept[used[0] :]))
        values = c.reshape(values, [1 if d == used[0] else n for d, n in enumerate(whole)])
        return c.add("put_slice", x, c.reshape(given[0], (1,)), values, axis=used[0])
    columns = [c.reshape(c.expand(c.cast(i, "int64"), shape), (*shape, 1)) for i in given]
    lead = used[0] if used == list(range(used[0], used[-1] + 1)) else 0  # where the dimensions of positions stand
    kept = [c.shape(x)[d] for d in rest]
    values = c.expand(values, (*kept[:lead], *shape, *kept[lead:]))
    places = range(lead, lead + len(shape))
    values = c.transpose(values, [*places, *(d for d in range(c.rank(values)) if d not in places)])
    moved = c.transpose(x, [*used, *rest])
    y = c.add("scatter_nd", moved, c.concat(columns, len(shape)), values, reduction="add" if accumulate else "none")
    return c.transpose(y, [[*used, *rest].index(d) for d in range(c.rank(x))])


def _diagonal_scatter(c: TorchContext, x: Ref, src: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Ref:
    _require_numbers(c, x)
    shape = c.shape(x)
    places = np.diagonal(np.arange(math.prod(shape)).reshape(shape), offset, dim1, dim2)
    return _written(c, x, c.cast(src, c.dtype(x)), places)


def _masked_scatter(c: TorchContext, x: Ref, mask: Ref, source: Ref) -> Ref:
    """Elements of ``source`` in order where the mask holds."""
    shape = c.out_shape
    chosen = c.expand(mask, shape)
    number = c.add("cumsum", c.cast(c.flat(chosen), "int64"), axis=0)
    last = c.constant(math.prod(c.shape(source)) - 1, "int64")
    place = c.add("maximum", c.add("sub", number, c.constant(1, "int64")), c.constant(0, "int64"))
    place = c.add("minimum", place, last)
    taken = c.add("gather", c.flat(c.cast(source, c.dtype(x))), place, axis=0)
    return c.add("where", chosen, c.reshape(taken, shape), c.expand(x, shape))


# --- bags, bins -------------------------------------------------------------------------------------------------------

SUM, MEAN, MAX = range(3)  # what is made of the rows of a bag


def _embedding_bag(
    c: TorchContext, weight: Ref, indices: Ref, offsets: Ref, scale_grad_by_freq: bool = False, mode: int = SUM,
    sparse: bool = False, per_sample_weights: Ref | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[Ref | None]:  # fmt: skip
    """Sums, means or maxima of the rows of a table that are in one bag; an empty bag is 0."""
    if c.training and scale_grad_by_freq:  # torch divides by counts of other rows
        c.refuse("scale_grad_by_freq", True, "False in training")
    rows = embedding(c, weight, indices)
    count, features = c.shape(rows)
    bags = c.out_shape[0]
    starts = c.slice(offsets, 0, 0, bags)
    numbers = c.iota(count, c.dtype(starts))
    begun = c.add("less_equal", c.reshape(starts, (1, bags)), c.reshape(numbers, (count, 1)))
    bag = c.add("sub", c.add("reduce_sum", c.cast(begun, "int64"), axes=(1,), keepdims=False), c.constant(1, "int64"))
    if per_sample_weights is not None:
        rows = c.add("mul", rows, c.reshape(per_sample_weights, (count, 1)))
    lowest = -math.inf if mode == MAX else 0.0
    counts = c.expand(c.scalar(1, rows), (count, 1))
    if padding_idx >= 0:
        taken = c.reshape(c.add("not_equal", indices, c.constant(padding_idx, c.dtype(indices))), (count, 1))
        rows, counts = c.add("where", taken, rows, c.scalar(lowest, rows)), c.cast(taken, c.dtype(rows))
    place = c.reshape(bag, (count, 1))
    blank = c.expand(c.scalar(lowest, rows), (bags, features))
    y = c.add("scatter_nd", blank, place, rows, reduction="max" if mode == MAX else "add")
    if mode == SUM:
        return [y, None, None, None]
    zero = c.expand(c.scalar(0, rows), (bags, 1))
    size = c.add("scatter_nd", zero, place, counts, reduction="add")
    if mode == MEAN:
        return [c.add("div", y, c.add("maximum", size, c.scalar(1, size))), None, None, None]
    return [c.add("where", c.add("greater", size, c.scalar(0, size)), y, c.scalar(0, y)), None, None, None]


def _place_in(c: TorchContext, x: Ref, borders: Ref, right: bool) -> Ref:
    """Bucket index: how many of the last dimension of ``borders`` lie before each element of ``x`` [..., 1]; NaN is
    last.
    """
    behind = c.add("greater" if right else "greater_equal", borders, x)
    before = c.cast(c.add("logical_not", behind), "int64")
    return c.cast(c.add("reduce_sum", before, axes=(c.rank(before) - 1,), keepdims=False), c.out_dtype)


def _bucketize(c: TorchContext, x: Any, boundaries: Ref, out_int32: bool = False, right: bool = False) -> Ref:
    dtype = c.common_dtype("x", "boundaries")
    value = c.operand(x, dtype)
    return _place_in(c, c.reshape(value, (*c.shape(value), 1)), c.cast(boundaries, dtype), right)


def _search_sorted(
    c: TorchContext,
    sorted_sequence: Ref,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Ref | None = None,
) -> Ref:
    dtype = c.common_dtype("sorted_sequence", "x")
    borders, value = c.cast(sorted_sequence, dtype), c.operand(x, dtype)
    if sorter is not None:
        borders = c.add("gather_elements", borders, sorter, axis=c.rank(borders) - 1)
    if c.rank(borders) > 1:
        borders = c.reshape(borders, (*c.shape(borders)[:-1], 1, c.shape(borders)[-1]))
    return _place_in(c, c.reshape(value, (*c.shape(value), 1)), borders, right or side == "right")


def _histogram(c: TorchContext, x: Ref, bins: int = 100, min: float = 0, max: float = 0) -> Ref:
    """Counts of elements in bins of one width between ``min`` and ``max``, those of ``x`` itself if these are equal."""
    flat = c.flat(x)
    one = c.scalar(1, x)
    if min == max:
        low, high = (c.add(f"reduce_{which}", flat, keepdims=False) for which in ("min", "max"))
        same = c.add("equal", low, high)
        low, high = (c.add("where", same, c.add(op, t, one), t) for op, t in (("sub", low), ("add", high)))
    else:
        low, high = c.scalar(min, x), c.scalar(max, x)
    within = c.add("logical_and", c.add("greater_equal", flat, low), c.add("less_equal", flat, high))
    share = c.add("div", c.add("mul", c.add("sub", flat, low), c.scalar(bins, x)), c.add("sub", high, low))
    share = c.add("where", within, share, c.scalar(0, x))
    place = c.add("minimum", c.cast(c.add("floor", share), "int64"), c.constant(bins - 1, "int64"))
    blank = c.expand(c.scalar(0, x), (bins,))
    return c.add("scatter_elements", blank, place, c.cast(within, c.dtype(x)), axis=0, reduction="add")


TRANSLATORS: Mapping[str, Translator] = {
    "aten.embedding": embedding, "aten.index_select": _index_select, "aten.gather": gather, "aten.index": index,
    "aten._unsafe_index": index, "aten.scatter": _scatter, "aten.index_put": index_put,
    "aten._unsafe_index_put": index_put, "aten.diagonal_scatter": _diagonal_scatter,
    "aten.masked_scatter": _masked_scatter, "aten._embedding_bag": _embedding_bag,
    "aten._embedding_bag_forward_only": _embedding_bag, "aten.bucketize": _bucketize,
    "aten.searchsorted": _search_sorted, "aten.histc": _histogram,
}  # fmt: skip

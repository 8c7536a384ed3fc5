"""Translators of ATen operators that read or write at positions held in tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from burnish.frontend.torch.context import Context, Ref, Translator
from burnish.frontend.torch.symbols import is_open


def _integers(c: Context, index: Ref, extent: int, lowest: int = 0) -> Ref:
    """Positions below ``extent`` as the operators take them; calls refuse others, as torch does."""
    if not is_open(extent):
        c.builder.limit(index, lowest, extent)
    return index if c.dtype(index) in ("int64", "int32") else c.cast(index, "int64")


def embedding(
    c: Context, weight: Ref, indices: Ref, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Ref:
    """Rows of a table by their numbers. In training the row ``padding_idx`` gets no gradient."""
    if c.training and scale_grad_by_freq:
        c.refuse("scale_grad_by_freq", True, "False in training")
    numbers = _integers(c, indices, c.shape(weight)[0])
    rows = c.add("gather", weight, numbers, axis=0)
    if not c.training or padding_idx < 0:
        return rows
    padding = c.add("equal", c.reshape(numbers, (*c.shape(numbers), 1)), c.constant(padding_idx, c.dtype(numbers)))
    return c.add("where", padding, c.add("stop_gradient", rows), rows)


def _index_select(c: Context, x: Ref, dim: int, index: Ref) -> Ref:
    if not c.rank(x):
        return x
    return c.add("gather", x, c.flat(_integers(c, index, c.shape(x)[c.axis(x, dim)])), axis=c.axis(x, dim))


def gather(c: Context, x: Ref, dim: int, index: Ref, sparse_grad: bool = False) -> Ref:
    """Elements along ``dim`` at the places in ``index``."""
    if not c.rank(x):
        return c.reshape(x, c.out_shape)
    return c.add("gather_elements", x, _integers(c, index, c.shape(x)[c.axis(x, dim)]), axis=c.axis(x, dim))


def index(c: Context, x: Ref, indices: Sequence[Ref | None]) -> Ref:
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


def _as_positions(c: Context, index: Ref | None) -> list[Ref | None]:
    """An index as positions: a mask that is known has some for each of its dimensions."""
    if index is None or c.dtype(index) != "bool":
        return [index]
    mask = c.known(index)
    if mask is None:
        c.refuse("indices", "a mask that is computed at run time", "positions: how many a mask holds depends on data")
    return [c.constant(positions, "int64") for positions in np.nonzero(mask)]


def _broadcast(c: Context, tensors: Sequence[Ref]) -> tuple[int, ...]:
    rank = max(c.rank(t) for t in tensors)
    full = [(*(1,) * (rank - c.rank(t)), *c.shape(t)) for t in tensors]
    return tuple(next((s[d] for s in full if s[d] != 1), 1) for d in range(rank))


def _separate(c: Context, given: Sequence[Ref], shape: Sequence[int]) -> list[int] | None:
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
    c: Context, x: Ref, used: Sequence[int], given: Sequence[Ref], separate: Sequence[int], shape: Sequence[int]
) -> Ref:
    for axis, index, _ in zip(used, given, separate, strict=True):
        x = c.add("gather", x, c.flat(index), axis=axis)
    return x


# --- writes at positions that are known -------------------------------------------------------------------------------


def _positions(c: Context, index: Ref, what: str) -> np.ndarray:
    found = c.known(index)
    if found is None:
        c.refuse(what, "positions computed at run time", "positions that are known statically")
    return found


def _written(c: Context, x: Ref, values: Ref, places: np.ndarray) -> Ref:
    """``x`` with the elements of ``values``, in row-major order, at ``places`` of its flat form: the last one wins.

    One gather from both, joined, whose positions are known.
    """
    shape = c.shape(x)
    if any(is_open(extent) for extent in shape):
        c.refuse("shape", ", ".join(map(str, shape)), "numbers")
    source = np.arange(math.prod(shape), dtype=np.int64)
    source[places.reshape(-1)] = len(source) + np.arange(places.size)
    joined = c.concat([c.flat(x), c.flat(values)], 0)
    return c.reshape(c.add("gather", joined, c.constant(source), axis=0), shape)


def _scatter(c: Context, x: Ref, dim: int, index: Ref, src: Ref | None = None, value: float | None = None) -> Ref:
    """``x`` with values at positions along ``dim``."""
    found, axis, shape = _positions(c, index, "index"), c.axis(x, dim), c.shape(x)
    where: list[np.ndarray] = list(np.indices(found.shape))
    where[axis] = found
    places = np.ravel_multi_index(tuple(where), shape) if found.size else np.zeros(0, np.int64)
    if src is None:
        values = c.expand(c.operand(value, c.dtype(x)), found.shape)
    else:
        starts = (0,) * c.rank(src)
        values = c.add("slice", c.cast(src, c.dtype(x)), starts=starts, extents=found.shape)
    return _written(c, x, values, places)


def index_put(
    c: Context, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False, unsafe: bool = False
) -> Ref:
    """``x`` with values at positions, as ``x[indices] = values`` leaves it; a mask that is computed selects."""
    if accumulate:
        c.refuse("accumulate", True, "False")
    values = c.cast(values, c.dtype(x))
    first = indices[0]
    if len(indices) == 1 and first is not None and c.dtype(first) == "bool" and c.known(first) is None:
        if math.prod(c.shape(values)) != 1:
            c.refuse("values", f"shape {list(c.shape(values))} where a mask is computed", "one element")
        mask = c.reshape(first, (*c.shape(first), *(1,) * (c.rank(x) - c.rank(first))))
        return c.add("where", mask, c.reshape(values, ()), x)
    shape = c.shape(x)
    if any(is_open(extent) for extent in shape):
        c.refuse("shape", ", ".join(map(str, shape)), "numbers")
    known = tuple(slice(None) if i is None else _positions(c, i, "indices") for i in indices)
    places = np.asarray(np.arange(math.prod(shape), dtype=np.int64).reshape(shape)[known])
    return _written(c, x, c.expand(values, places.shape), places)


TRANSLATORS: Mapping[str, Translator] = {
    "aten.embedding": embedding, "aten.index_select": _index_select, "aten.gather": gather, "aten.index": index,
    "aten._unsafe_index": index, "aten.scatter": _scatter, "aten.index_put": index_put,
    "aten._unsafe_index_put": index_put,
}  # fmt: skip

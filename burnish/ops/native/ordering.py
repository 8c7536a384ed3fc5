"""Sorting and top-k along an axis as loops: a merge sort, and a heap of the best so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from burnish.loops.sizes import greatest, hinted
from burnish.ops.operator import NativeCall, TensorType, normal_axis

SORTABLE = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
MOST = 1 << 20  # elements of a row that is sorted by a kernel: it has positions in scratch memory


def _comes_first(a: Any, b: Any, descending: int) -> bool:
    """Whether ``a`` is in front of ``b``, which was before it: strictly, so that equal ones keep their order.

    NaN counts as the greatest.
    """
    if descending:
        return a > b or (a != a and b == b)
    return a < b or (b != b and a == a)


def _sort_rows(x: Any, values: Any, order: Any, spare: Any, descending: int, begin: int, end: int) -> None:
    """Merge sort of the positions of each row of ``x`` [outer, extent, inner], from runs of 1, 2, 4, ..."""
    extent, inner = x.shape[1], x.shape[2]
    for row in range(begin, end):
        o, i = row // inner, row % inner
        for k in range(extent):
            spare[0, k] = k
        source, width = 0, 1
        while width < extent:
            for low in range(0, extent, 2 * width):
                middle, high = min(low + width, extent), min(low + 2 * width, extent)
                left, right = low, middle
                for to in range(low, high):
                    takes_right = left >= middle
                    if not takes_right and right < high:
                        a, b = x[o, spare[source, right], i], x[o, spare[source, left], i]
                        takes_right = _comes_first(a, b, descending)
                    if takes_right:
                        spare[1 - source, to] = spare[source, right]
                        right += 1
                    else:
                        spare[1 - source, to] = spare[source, left]
                        left += 1
            source, width = 1 - source, 2 * width
        for k in range(extent):
            order[o, k, i] = spare[source, k]
            values[o, k, i] = x[o, spare[source, k], i]


def _top_rows(x: Any, values: Any, order: Any, best: Any, descending: int, in_order: int, begin: int, end: int) -> None:
    """The first ``k`` of each row of ``x`` [outer, extent, inner]: a heap whose root is the last of the best so far."""
    extent, inner, k = x.shape[1], x.shape[2], values.shape[1]
    for row in range(begin, end):
        o, i = row // inner, row % inner
        for p in range(k):  # a heap of the first k: each sifted up
            at = p
            best[at] = p
            while at > 0:
                above = (at - 1) // 2
                if not _is_behind(x, o, i, best[at], best[above], descending):
                    break
                best[at], best[above] = best[above], best[at]
                at = above
        for p in range(k, extent):
            if k > 0 and _comes_first(x[o, p, i], x[o, best[0], i], descending):
                best[0] = p
                _sift_down(x, best, o, i, k, descending)
        if in_order:
            for left in range(k - 1, 0, -1):  # heap sort: the last of them to the end
                best[0], best[left] = best[left], best[0]
                _sift_down(x, best, o, i, left, descending)
        else:
            _sort_positions(best, k)
        for p in range(k):
            order[o, p, i] = best[p]
            values[o, p, i] = x[o, best[p], i]


def _is_behind(x: Any, o: int, i: int, a: int, b: int, descending: int) -> bool:
    """Whether position ``a`` of a row is behind position ``b`` in the order of the result."""
    if _comes_first(x[o, b, i], x[o, a, i], descending):
        return True
    return a > b and not _comes_first(x[o, a, i], x[o, b, i], descending)


def _sift_down(x: Any, best: Any, o: int, i: int, count: int, descending: int) -> None:
    at = 0
    while 2 * at + 1 < count:
        below = 2 * at + 1
        if below + 1 < count and _is_behind(x, o, i, best[below + 1], best[below], descending):
            below += 1
        if not _is_behind(x, o, i, best[below], best[at], descending):
            break
        best[at], best[below] = best[below], best[at]
        at = below


def _sort_positions(best: Any, count: int) -> None:
    """Heap sort of the first ``count`` numbers."""
    for step in range(count + count // 2 - 1):
        # First a heap, from the last that has others below it; then the greatest goes to the end, again and again.
        at = count // 2 - 1 - step
        size = count
        if at < 0:
            size, at = count + at, 0
            best[0], best[size] = best[size], best[0]
        while 2 * at + 1 < size:
            below = 2 * at + 1
            if below + 1 < size and best[below + 1] > best[below]:
                below += 1
            if best[below] <= best[at]:
                break
            best[at], best[below] = best[below], best[at]
            at = below


def _rows(types: Sequence[TensorType], axis: int) -> list[TensorType]:
    """Tensors as [outer, extent, inner] around an axis."""
    return [((prod(s[:axis]), s[axis], prod(s[axis + 1 :])), dtype) for s, dtype in types]


def sort_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``sort``."""
    ((shape, dtype),) = inputs
    axis = normal_axis(attrs["axis"], len(shape)) if shape else 0
    if dtype not in SORTABLE or not shape or greatest(shape[axis]) > MOST:
        return None
    views = _rows([*inputs, *outputs], axis)
    (outer, extent, inner), _ = views[0]
    return NativeCall(
        _sort_rows, tuple(views), (int(attrs["descending"]),), outer * inner,
        hinted(prod(shape)) * max(hinted(extent), 2).bit_length(), (((2, extent), "int64"),),
    )  # fmt: skip


def top_k_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``top_k``."""
    ((shape, dtype),) = inputs
    axis = normal_axis(attrs["axis"], len(shape)) if shape else 0
    if dtype not in SORTABLE or not shape or greatest(attrs["k"]) > MOST:
        return None
    views = _rows([*inputs, *outputs], axis)
    (outer, _, inner), _ = views[0]
    return NativeCall(
        _top_rows, tuple(views), (int(attrs["largest"]), int(attrs["sorted"])), outer * inner, hinted(prod(shape)),
        (((max(attrs["k"], 1),), "int64"),),
    )  # fmt: skip

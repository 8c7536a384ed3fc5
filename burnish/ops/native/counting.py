"""Operators whose results' extent depends on values, as loops: nonzero, compress, unique, non-max suppression.

They see each result as one of the greatest extent, of which they fill the beginning, and the extent itself last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from burnish.loops.expr import ITEM_BYTES
from burnish.loops.sizes import greatest, is_size
from burnish.ops.native.ordering import SORTABLE
from burnish.ops.operator import NativeCall, TensorType, normal_axis

MOST = 1 << 22  # elements that are sorted by a kernel: it has positions in scratch memory
MOST_RANK = 6
RUN = 8  # elements that are sorted by insertion
BLOCK = 16  # boxes that another one is compared with before it is asked whether one covers it


def _nonzero(
    x: Any, out: Any, count: Any, mask: int, n1: int, n2: int, n3: int, n4: int, n5: int, rank: int, begin: int,
    end: int,
) -> None:  # fmt: skip
    """Positions of the elements of a flat array that have bits of ``mask``; ``n1`` …: its extents but the first."""
    found = 0
    for i in range(x.shape[0]):
        found += (x[i] & mask) != 0
    at = 0
    for i in range(x.shape[0]):
        if (x[i] & mask) != 0:
            rest = i
            for k in range(rank - 1, 0, -1):
                extent = n1 if k == 1 else n2 if k == 2 else n3 if k == 3 else n4 if k == 4 else n5
                above = rest // extent
                out[k * found + at] = rest - above * extent
                rest = above
            out[at] = rest
            at += 1
    count[0] = found


def nonzero_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``nonzero``."""
    ((shape, dtype),), (found, index), count = inputs, outputs[0], outputs[1]
    if len(shape) > MOST_RANK:
        return None
    bits = 8 * ITEM_BYTES[dtype]
    mask = (1 << (bits - 1)) - 1 if dtype.startswith(("float", "bfloat")) else -1
    views = (((prod(shape),), f"int{bits}"), ((greatest(prod(found)),), index), ((1,), count[1]))
    extents = (*shape[1:], *[1] * (MOST_RANK - 1))[: MOST_RANK - 1]
    return NativeCall(_nonzero, views, (mask, *extents, max(len(shape), 1)))


def _compress(x: Any, condition: Any, out: Any, count: Any, begin: int, end: int) -> None:
    """[outer, extent, inner] along the middle, to rows."""
    row, extent = 0, min(x.shape[1], condition.shape[0])
    for o in range(x.shape[0]):
        for k in range(extent):
            if condition[k] != 0:
                for i in range(x.shape[2]):
                    out[row, i] = x[o, k, i]
                row += 1
    if x.shape[0] != 1:
        row = 0
        for k in range(extent):
            row += condition[k] != 0
    count[0] = row


def compress_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``compress``."""
    (shape, dtype), (condition, _) = inputs
    own = f"uint{8 * ITEM_BYTES[dtype]}"
    if attrs["axis"] is None:
        lines: tuple[int, ...] = (1, prod(shape), 1)
    else:
        axis = normal_axis(attrs["axis"], len(shape))
        lines = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    rows = (greatest(lines[0] * attrs["count"]), lines[2])
    views = ((lines, own), (condition, "uint8"), (rows, own), ((1,), outputs[1][1]))
    return NativeCall(_compress, views)


def _before(x: Any, a: int, b: int) -> int:
    """1 if slice ``a`` of ``x`` [outer, extent, inner] is in front of slice ``b``, -1 if it is behind, 0 if they are
    equal. NaN is the greatest.
    """
    for o in range(x.shape[0]):
        for i in range(x.shape[2]):
            u, v = x[o, a, i], x[o, b, i]
            if u < v or (v != v and u == u):
                return 1
            if v < u or (u != u and v == v):
                return -1
    return 0


def _as_met(first: Any, which: Any, numbers: Any, order: Any, source: int, found: int, extent: int) -> None:
    """Numbers groups as they are met: the new number of each is in one row of ``order``, its count in the other."""
    for g in range(found):
        order[source, g] = numbers[g]
        order[1 - source, g] = -1
    met = 0
    for k in range(extent):
        g = which[k]
        if order[1 - source, g] < 0:
            order[1 - source, g] = met
            first[met], numbers[met] = k, order[source, g]
            met += 1
        which[k] = order[1 - source, g]


def _unique(
    x: Any, values: Any, first: Any, which: Any, numbers: Any, count: Any, order: Any, in_order: int, begin: int,
    end: int,
) -> None:  # fmt: skip
    """Distinct slices of ``x`` [outer, extent, inner] along the middle, by a merge sort of their positions."""
    outer, extent, inner = x.shape
    for k in range(extent):
        order[0, k] = k
    source, width = 0, 1
    while width < extent:
        for low in range(0, extent, 2 * width):
            middle, high = min(low + width, extent), min(low + 2 * width, extent)
            left, right = low, middle
            for to in range(low, high):
                takes_right = left >= middle
                if not takes_right and right < high:
                    takes_right = _before(x, order[source, right], order[source, left]) > 0
                if takes_right:
                    order[1 - source, to] = order[source, right]
                    right += 1
                else:
                    order[1 - source, to] = order[source, left]
                    left += 1
        source, width = 1 - source, 2 * width
    found = 0
    for k in range(extent):  # the sorted groups
        own = order[source, k]
        if k == 0 or _before(x, order[source, k - 1], own) != 0:
            first[found] = own
            numbers[found] = 0
            found += 1
        which[own] = found - 1
        numbers[found - 1] += 1
    if not in_order:
        _as_met(first, which, numbers, order, source, found, extent)
    at = 0
    for o in range(outer):
        for g in range(found):
            for i in range(inner):
                values[at] = x[o, first[g], i]
                at += 1
    count[0] = found


def _unique_elements(
    x: Any, values: Any, first: Any, which: Any, numbers: Any, count: Any, order: Any, keys: Any, in_order: int,
    begin: int, end: int,
) -> None:  # fmt: skip
    """Unique elements, as :func:`_unique` finds rows: sorted together with their positions."""
    extent = x.shape[1]
    for low in range(0, extent, RUN):  # runs, by insertion
        for k in range(low, min(low + RUN, extent)):
            key, at = x[0, k, 0], k
            while at > low and (key < keys[0, at - 1] or (keys[0, at - 1] != keys[0, at - 1] and key == key)):
                keys[0, at], order[0, at] = keys[0, at - 1], order[0, at - 1]
                at -= 1
            keys[0, at], order[0, at] = key, k
    source, width = 0, RUN
    while width < extent:
        for low in range(0, extent, 2 * width):
            middle, high = min(low + width, extent), min(low + 2 * width, extent)
            left, right = low, middle
            for to in range(low, high):
                takes_right = left >= middle
                if not takes_right and right < high:
                    a, b = keys[source, left], keys[source, right]
                    takes_right = b < a or (a != a and b == b)
                if takes_right:
                    keys[1 - source, to], order[1 - source, to] = keys[source, right], order[source, right]
                    right += 1
                else:
                    keys[1 - source, to], order[1 - source, to] = keys[source, left], order[source, left]
                    left += 1
        source, width = 1 - source, 2 * width
    found = 0
    for k in range(extent):
        own = order[source, k]
        new = k == 0
        if not new:
            a, b = keys[source, k - 1], keys[source, k]
            new = a != b and (a == a or b == b)
        if new:
            first[found], numbers[found] = own, 0
            found += 1
        which[own] = found - 1
        numbers[found - 1] += 1
    if not in_order:
        _as_met(first, which, numbers, order, source, found, extent)
    for g in range(found):
        values[g] = x[0, first[g], 0]
    count[0] = found


def unique_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``unique``."""
    ((shape, dtype),) = inputs
    if attrs["axis"] is None:
        lines: tuple[int, ...] = (1, prod(shape), 1)
    else:
        axis = normal_axis(attrs["axis"], len(shape))
        lines = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    if dtype not in SORTABLE or greatest(lines[1]) > MOST:
        return None
    flat = [((greatest(prod(found)),), kind) for found, kind in outputs]
    scratch: tuple[TensorType, ...] = (((2, lines[1]), "int64"),)
    function = _unique
    if lines[0] == lines[2] == 1:
        function, scratch = _unique_elements, (*scratch, ((2, lines[1]), dtype))  # type: ignore[assignment]
    return NativeCall(function, ((lines, dtype), *flat), (int(attrs["sorted"]),), 1, 1, scratch)


# --- non-max suppression ----------------------------------------------------------------------------------------------


def _better(scores: Any, batch: int, number: int, a: int, b: int) -> bool:
    """Whether box ``a`` comes before box ``b``: by its score, then by its place; NaN comes last."""
    u, v = scores[batch, number, a], scores[batch, number, b]
    if u == v or (u != u and v != v):
        return a < b
    return u > v or (v != v and u == u)


def _sink(heap: Any, scores: Any, batch: int, number: int, at: int, count: int) -> None:
    while 2 * at + 1 < count:
        below = 2 * at + 1
        if below + 1 < count and _better(scores, batch, number, heap[below + 1], heap[below]):
            below += 1
        if not _better(scores, batch, number, heap[below], heap[at]):
            break
        heap[at], heap[below] = heap[below], heap[at]
        at = below


def _suppress(
    boxes: Any, scores: Any, most: Any, overlap: Any, least: Any, out: Any, count: Any, heap: Any, kept: Any,
    center: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Non-maximum suppression by batch and class, best box first, against the boxes kept: ``kept`` [5, n], corners and
    areas.
    """
    found, limit = 0, min(most[0], kept.shape[1])
    share = float(overlap[0])
    for batch in range(scores.shape[0]):
        for number in range(scores.shape[1]):
            size = 0
            for box in range(scores.shape[2]):
                value = scores[batch, number, box]
                if least.shape[0] == 0 or value > least[0]:
                    heap[size] = box
                    size += 1
            # A heap, not a sorted list: mostly few boxes are kept, and only those looked at until then are put in
            # order.
            for at in range(size // 2 - 1, -1, -1):
                _sink(heap, scores, batch, number, at, size)
            own = 0
            while size > 0 and own < limit:
                box = heap[0]
                size -= 1
                heap[0] = heap[size]
                _sink(heap, scores, batch, number, 0, size)
                a, b = float(boxes[batch, box, 0]), float(boxes[batch, box, 1])
                c, d = float(boxes[batch, box, 2]), float(boxes[batch, box, 3])
                if center:
                    c, d = c / 2, d / 2
                    a, b, c, d = a - c, b - d, a + c, b + d
                else:
                    a, b, c, d = min(a, c), min(b, d), max(a, c), max(b, d)
                area, free = (c - a) * (d - b), True
                for k in range(own):
                    high = min(c, kept[2, k]) - max(a, kept[0, k])
                    wide = min(d, kept[3, k]) - max(b, kept[1, k])
                    # The ratio of intersection and union against `share`, multiplied out: no division, and NaN
                    # suppresses.
                    if high > 0 and wide > 0:
                        common = high * wide
                        if not common <= share * (area + kept[4, k] - common):
                            free = False
                            break
                    # Boxes apart have overlap 0, which is above a negative share.
                    elif share < 0 and not share * (area + kept[4, k]) >= 0.0:
                        free = False
                        break
                if free:
                    kept[0, own], kept[1, own], kept[2, own], kept[3, own], kept[4, own] = a, b, c, d, area
                    out[found, 0], out[found, 1], out[found, 2] = batch, number, box
                    own += 1
                    found += 1
    count[0] = found


def non_max_suppression_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``non_max_suppression``."""
    boxes, scores = inputs[:2]
    n = boxes[0][1]
    if {boxes[1], scores[1]} - {"float32", "float64"} or is_size(n):
        return None
    views = (*inputs, ((greatest(outputs[0][0][0]), 3), outputs[0][1]), ((1,), outputs[1][1]))
    scratch = (((n,), "int64"), ((5, min(n, attrs["most"])), "float64"))
    return NativeCall(_suppress, views, (int(attrs["center"]),), 1, 1, scratch)

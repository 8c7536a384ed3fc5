"""Lookups in tables of ordered keys as loops: a binary search of each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from burnish.loops.sizes import hinted
from burnish.ops.native.ordering import SORTABLE
from burnish.ops.operator import NativeCall, TensorType


def lower_bound(keys: Any, low: int, high: int, value: Any) -> int:
    """Binary search: the first place of ``keys[low:high]``, which ascend, that is not less; ``high`` if none is."""
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < value:
            low = middle + 1
        else:
            high = middle
    return int(low)


def _lookup(x: Any, keys: Any, out: Any, begin: int, end: int) -> None:
    """Chunks of a flat array; NaN is found where the last key is NaN."""
    count = keys.shape[0]
    for chunk in range(begin, end):
        for i in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, x.shape[0])):
            value = x[i]
            low = lower_bound(keys, 0, count, value) if value == value else count - 1
            found = low < count and (keys[low] == value or (value != value and keys[low] != keys[low]))
            out[i] = low if found else -1


CHUNK = 1 << 8  # elements that a thread looks for at a time


def find_keys_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``find_keys``."""
    (shape, dtype), (keys, _) = inputs
    if dtype not in SORTABLE:
        return None
    flat = prod(shape)
    views = (((flat,), dtype), inputs[1], ((flat,), outputs[0][1]))
    return NativeCall(_lookup, views, (), (flat + CHUNK - 1) // CHUNK, hinted(flat) * hinted(keys[0]).bit_length())

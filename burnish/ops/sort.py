"""Opaque operators that order elements, or find them in an order: sort, top-k, binary search."""

from __future__ import annotations

import numpy as np

from burnish.loops.sizes import least
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.native.ordering import sort_call, top_k_call
from burnish.ops.native.tables import find_keys_call
from burnish.ops.operator import Application, Composed, differentiated, normal_axis, opaque, require, require_input

_INDEX = "int64"  # dtype of positions


def _ordered(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Positions along ``axis`` in order of the values, equal ones in order of position; NaN counts as the greatest."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    # The order of the mirrored array, from its end: so that equal values keep theirs.
    mirrored = np.argsort(np.flip(x, axis), axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(mirrored, axis)


def _sort(x: np.ndarray, axis: int, descending: bool) -> tuple[np.ndarray, np.ndarray]:
    order = _ordered(x, axis, descending)
    return np.take_along_axis(x, order, axis), order


def _values(a: Application) -> list[str | None]:
    """The values, read at the positions that they come from."""
    return [a.add("gather_elements", a.inputs[0], a.outputs[1], axis=a.attrs["axis"]), None]


@differentiated(Composed(_values))
@opaque(_sort, sort_call)
def sort(name: str, x: Tensor, *, axis: int = -1, descending: bool = False) -> tuple[Tensor, ...]:
    """Values in order along ``axis``, and the positions (int64) that they come from; equal ones keep their order.

    NaN counts as the greatest value.
    """
    normal_axis(axis, len(x.shape))
    return placeholder(x.shape, x.dtype, f"{name}.0"), placeholder(x.shape, _INDEX, f"{name}.1")


def _top_k(x: np.ndarray, k: int, axis: int, largest: bool, sorted: bool) -> tuple[np.ndarray, np.ndarray]:
    order = np.take(_ordered(x, axis, largest), np.arange(k), axis)
    if not sorted:
        order = np.sort(order, axis)
    return np.take_along_axis(x, order, axis), order


@differentiated(Composed(_values))
@opaque(_top_k, top_k_call)
def top_k(
    name: str, x: Tensor, *, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, ...]:
    """The ``k`` largest or smallest values along ``axis``, and the positions (int64) that they come from.

    ``sorted``: from the largest (smallest) on; else in order of position. Of equal values the first are taken. NaN
    counts as the greatest value.
    """
    dim = normal_axis(axis, len(x.shape))
    extent = x.shape[dim]
    require(0 <= k <= least(extent), "attribute 'k'", k, f"0 to {extent}, the extent of axis {axis}")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    return placeholder(shape, x.dtype, f"{name}.0"), placeholder(shape, _INDEX, f"{name}.1")


def _find_keys(x: np.ndarray, keys: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(keys, x), max(len(keys) - 1, 0))
    found = keys[place] if len(keys) else np.zeros(x.shape, x.dtype)
    same = (found == x) | ((found != found) & (x != x))
    return np.where(same & (len(keys) > 0), place, -1).astype(np.int64)


@differentiated("none")
@opaque(_find_keys, find_keys_call)
def find_keys(name: str, x: Tensor, keys: Tensor) -> Tensor:
    """The position (int64) of every element of ``x`` among ``keys`` [K], which are different and in order, NaN last; -1
    for what is none of them.
    """
    require_input(keys, "keys", 1, dtype=(x.dtype,))
    return placeholder(x.shape, _INDEX, name)


OPERATORS = (sort, top_k, find_keys)

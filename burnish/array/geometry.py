"""Geometry of views: shape, strides and offset in the memory of what they are views of, by NumPy's own rules."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import as_strided

from burnish.array.types import ArrayType, array_type, dtype_name
from burnish.errors import InputError


class ViewGeometry:
    """View geometry: shape and strides, and the bytes from the beginning of what it is a view of.

    ``permutation``: its dimensions in the order in which they lie in memory, where that is without gaps; else None.
    """

    __slots__ = ("offset", "permutation", "shape", "strides", "type")

    def __init__(self, view: np.ndarray, offset: int) -> None:
        self.shape, self.strides, self.offset = view.shape, view.strides, offset
        self.type = array_type(view.shape, dtype_name(view.dtype))
        order = range(view.ndim)
        if not view.flags.c_contiguous:
            order = sorted(order, key=lambda d: (-view.strides[d], d))  # type: ignore[assignment]
        dense = view.transpose(*order).flags.c_contiguous
        self.permutation: tuple[int, ...] | None = tuple(order) if dense else None

    @classmethod
    def of(cls, kind: ArrayType) -> ViewGeometry:
        """Geometry of a whole array."""
        strides = [kind.numpy.itemsize * math.prod(kind.shape[d + 1 :]) for d in range(len(kind.shape))]
        return cls(_without_memory(kind, kind.shape, tuple(strides)), 0)

    def changed(self, make: Callable[[np.ndarray], np.ndarray]) -> ViewGeometry:
        """Geometry of a view of this one: ``make`` makes the view of a NumPy array. Raises what that raises, and
        InputError.
        """
        whole = _without_memory(self.type, self.shape, self.strides)
        view = make(whole)
        begin, end = (a.__array_interface__["data"][0] for a in (whole, view))
        return ViewGeometry(view, self.offset + (end - begin if view.size else 0))

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in memory in their order, without gaps."""
        return self.permutation == tuple(range(len(self.shape)))


def _without_memory(kind: ArrayType, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """An array to take views of, but no elements."""
    return as_strided(np.empty(1, kind.numpy), shape, strides)


class NoView(Exception):  # noqa: N818 - no error: a copy has the shape
    """No view has the shape that is asked for."""


def reshaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A view of another shape. Raises InputError for another number of elements, NoView where it takes a copy."""
    known = math.prod(d for d in shape if d != -1)
    if -1 in shape and known:
        shape = tuple(array.size // known if d == -1 else d for d in shape)
    if any(d < 0 for d in shape) or math.prod(shape) != array.size:
        raise InputError(f"reshape: found shape {list(shape)}; allowed: one of {array.size} elements")
    view = array.view()
    try:
        view.shape = shape
    except AttributeError:
        raise NoView from None
    return view

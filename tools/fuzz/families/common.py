"""Draws shared by several families: partners to broadcast with, and values within a domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tools.fuzz.sketch import FLOATS, SIGNED, Sketch

Draw = Callable[[Sketch], None]


def broadcast_shape(s: Sketch, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts with ``shape``: extents made 1, leading ones left out, or extents of 1 made larger."""
    extents = [1 if s.chance(0.25) else e if e != 1 or s.chance(0.6) else s.choose((2, 3, 7, 16, 17)) for e in shape]
    if s.chance(0.3):
        extents = extents[s.between(0, len(extents)) :]
    elif len(extents) < 4 and s.chance(0.1):
        extents = [s.choose((1, 2, 3)), *extents]
    return tuple(extents)


def compatible(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes broadcast."""
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def partner(s: Sketch, x: str, fresh: float = 0.4, positive: bool = False) -> str:
    """A value of the dtype of ``x`` that broadcasts with it; ``positive``: it holds nothing that is not above 0."""
    shape, dtype = s.value(x).shape, s.kind(x)

    def fits(value: np.ndarray) -> bool:
        alike = str(value.dtype) == dtype and compatible(value.shape, shape)
        return alike and (not positive or bool((value > 0).all()))

    found = None if s.chance(fresh) else s.find(fits)
    if found is not None:
        return found
    wanted = shape if s.chance(0.5) else broadcast_shape(s, shape)
    if positive:
        return s.new(s.floats(wanted, dtype, 0.5, 3.0) if dtype in FLOATS else s.integers(wanted, dtype, 1, 9))
    return s.new(s.array(wanted, dtype))


def nonzero(s: Sketch, x: str) -> str:
    """A value without zeros that broadcasts with ``x``, of its dtype: new, or an existing one."""
    shape, dtype = s.value(x).shape, s.kind(x)
    found = s.find(lambda v: str(v.dtype) == dtype and compatible(v.shape, shape) and bool((np.abs(v) >= 1e-2).all()))
    if found is not None and s.chance(0.6):
        return found
    wanted = shape if s.chance(0.5) else broadcast_shape(s, shape)
    if dtype in FLOATS:
        array = s.floats(wanted, dtype, 0.3, 2.0)
    else:
        array = s.integers(wanted, dtype, 1, s.choose((2, 7, 100)))
    if dtype in (*FLOATS, *SIGNED) and s.chance(0.6):
        array = (array * s.random.choice([-1, 1], wanted)).astype(array.dtype)
    return s.new(array)


def within(s: Sketch, x: str, low: float, high: float) -> str:
    """``x`` if all of it lies between, or else clipped by nodes of the model."""
    value = s.value(x)
    if value.size == 0 or bool(((value >= low) & (value <= high)).all()):
        return x
    bounds = [s.constant(np.asarray(v, value.dtype)) for v in (low, high)]
    return s.add("Min", s.add("Max", x, bounds[0]), bounds[1])


def float_dtypes(s: Sketch, op: str) -> tuple[str, ...]:
    """The floats that ``op`` takes."""
    return s.types(op, 0, FLOATS)

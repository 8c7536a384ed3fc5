"""Opaque operators to and from narrow numbers: conversion to 8, 4 and 2 bits, and bits taken as another type."""

from __future__ import annotations

import numpy as np

from burnish.loops.expr import DTYPES, ITEM_BYTES, NARROW
from burnish.loops.numeric import ml_dtypes, numpy_dtype
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Composed, Refused, differentiated, internal, opaque, require

_EXPONENTS = "float8_e8m0fnu"  # powers of two, without a sign


def _convert(x: np.ndarray, to: str, saturate: bool, rounding: str) -> np.ndarray:
    """``x`` as dtype ``to``."""
    dtype = numpy_dtype(to)
    if to == _EXPONENTS:
        return _exponents(x.astype(np.float32), saturate, rounding)
    with np.errstate(over="ignore", invalid="ignore"):
        if to.startswith("float8") and saturate:
            limits = ml_dtypes.finfo(dtype)
            clipped = np.clip(x.astype(np.float32), float(limits.min), float(limits.max))  # NaN stays NaN
            return clipped.astype(dtype)
        if to in NARROW and x.dtype.kind in "biu" and not to.startswith("float"):
            return _wrapped(x.astype(np.int64), to)
        if x.dtype.name in NARROW and dtype.kind in "biu" and x.dtype.name.startswith("float"):
            return x.astype(np.float32).astype(dtype)
        return x.astype(dtype)


def _wrapped(x: np.ndarray, to: str) -> np.ndarray:
    """Integers modulo the width of a narrow integer type."""
    bits = int(to[-1])
    low = x & ((1 << bits) - 1)
    if to.startswith("int"):
        low = np.where(low >> (bits - 1), low - (1 << bits), low)
    return low.astype(np.int8).astype(numpy_dtype(to))


def _exponents(x: np.ndarray, saturate: bool, rounding: str) -> np.ndarray:
    """The exponents of float32 numbers, rounded up, down, or to nearest (ties up); signs are lost, NaN stays NaN."""
    bits = x.view(np.uint32)
    exponent, fraction = (bits >> 23 & 0xFF).astype(np.int64), bits & 0x7FFFFF
    special = exponent == 0xFF
    up = {"up": fraction > 0, "down": np.zeros_like(special), "nearest": _nearest_up(exponent, fraction)}[rounding]
    exponent = exponent + (up & ~special & ~(saturate & (exponent == 0xFE)))
    return np.where(special, 0xFF, exponent).astype(np.uint8).view(numpy_dtype(_EXPONENTS))


def _nearest_up(exponent: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    half = 1 << 22
    return (fraction > half) | ((fraction == half) & (exponent > 0))


@differentiated(Composed(lambda a: [a.add("cast", a.inputs[0], to=a.attrs["to"])]))  # between floats of 16 bits or more
@opaque(_convert)
def convert(name: str, x: Tensor, *, to: str, saturate: bool = True, rounding: str = "up") -> Tensor:
    """``x`` as dtype ``to``, which may be narrow, as may that of ``x``.

    ``saturate``: what is too large for a float of 8 bits becomes the greatest, else infinity or NaN; integers wrap.
    ``rounding``: up, down or nearest, of powers of two; other floats round to nearest, ties to even.
    """
    require(to in DTYPES or to in NARROW, "attribute 'to'", repr(to), ", ".join((*DTYPES, *NARROW)))
    require(rounding in ("up", "down", "nearest"), "attribute 'rounding'", rounding, "up, down, nearest")
    return placeholder(x.shape, to, name)


def _bitcast(x: np.ndarray, to: str) -> np.ndarray:
    return np.ascontiguousarray(x).view(numpy_dtype(to)).reshape(x.shape)


@differentiated(Refused("bits that are taken as another number do not move with it"))
@opaque(_bitcast)
def bitcast(name: str, x: Tensor, *, to: str) -> Tensor:
    """The bits of ``x`` taken as numbers of dtype ``to``, of the same width."""
    allowed = [d for d in (*DTYPES, *NARROW) if ITEM_BYTES[d] == ITEM_BYTES[x.dtype]]
    require(to in allowed, "attribute 'to'", f"{to} for an input of {x.dtype}", ", ".join(allowed))
    return placeholder(x.shape, to, name)


OPERATORS = (*internal(convert), bitcast)

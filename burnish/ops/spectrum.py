"""Opaque operators of whole lines and matrices: the discrete Fourier transform, running products, determinants."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.loops.expr import FLOATS
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.fourier import transform_parts
from burnish.ops.native.fourier import dft_call
from burnish.ops.native.lines import cumprod_call, determinant_call
from burnish.ops.operator import (
    NUMBERS,
    Application,
    Composed,
    accumulator_dtype,
    composed,
    differentiated,
    normal_axis,
    opaque,
    require,
    require_input,
)
from burnish.ops.terms import GraphTerm


def _dft(x: np.ndarray, axis: int, length: int, inverse: bool, onesided: bool) -> np.ndarray:
    work = np.complex128 if x.dtype == np.float64 else np.complex64
    complex_: Any = x[..., 0].astype(work)
    if x.shape[-1] == 2:
        complex_ = complex_ + work(1j) * x[..., 1]
    if inverse and onesided:
        return np.fft.irfft(complex_, length, axis)[..., None].astype(x.dtype)
    found = (np.fft.ifft if inverse else np.fft.fft)(complex_, length, axis)
    if onesided:
        found = np.take(found, np.arange(length // 2 + 1), axis)
    return np.stack([found.real, found.imag], -1).astype(x.dtype)


def _dft_gradient(a: Application) -> list[str | None]:
    """The conjugate transform of the adjoint, cut or filled to the input's extent."""
    seed, (shape, dtype), length = a.seeds[0], a.types[0], a.attrs["length"]
    assert seed is not None
    axis, inverse, onesided = normal_axis(a.attrs["axis"], len(shape)), a.attrs["inverse"], a.attrs["onesided"]
    extent = length
    if not inverse:  # a half of the adjoint is filled with zeros
        found = a.add("dft", seed, axis=axis, length=length, inverse=True)
        factor: np.ndarray = np.array(float(length))
    elif onesided:  # all elements but the first, and a last one of its own, stand for two
        found = a.add("dft", seed, axis=axis, length=length, onesided=True)
        extent = length // 2 + 1
        twice = np.full(extent, 2.0 / length)
        twice[0] = 1.0 / length
        if length % 2 == 0:
            twice[-1] = 1.0 / length
        factor = twice.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    else:
        found = a.add("dft", seed, axis=axis, length=length)
        factor = np.array(1.0 / length)
    found = a.add("mul", found, a.emit.constant(factor, dtype=dtype))
    rest = [0] * (2 * len(shape))
    rest[len(shape) + axis] = shape[axis] - extent
    rest[-1] = shape[-1] - 2  # of a real input, the real part
    return [a.add("pad", found, pads=tuple(rest)) if any(rest) else found]


@composed(transform_parts)
@differentiated(_dft_gradient)
@opaque(_dft, dft_call)
def dft(name: str, x: Tensor, *, axis: int, length: int, inverse: bool = False, onesided: bool = False) -> Tensor:
    """The discrete Fourier transform along ``axis`` of ``x`` [..., 1] (real) or [..., 2] (real and imaginary parts).

    The input is cut, or filled with zeros, to ``length``. ``onesided`` gives the first half of a real input's result,
    or, of the ``inverse``, takes that half and gives real numbers.
    """
    require_input(x, "x", dtype=FLOATS)
    ok = len(x.shape) > 1 and x.shape[-1] in (1, 2)
    require(ok, "input 'x'", f"shape {list(x.shape)}", "[..., 1] or [..., 2]")
    dim = normal_axis(axis, len(x.shape))
    require(dim < len(x.shape) - 1, "attribute 'axis'", axis, "another than the last one, of the parts")
    require(length > 0, "attribute 'length'", length, "1 or more")
    extent = length // 2 + 1 if onesided and not inverse else length
    parts = 1 if onesided and inverse else 2
    return placeholder((*x.shape[:dim], extent, *x.shape[dim + 1 : -1], parts), x.dtype, name)


def _cumprod(x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    lines = np.flip(x, axis) if reverse else x
    found = np.cumprod(lines, axis, dtype=np.float32 if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x.dtype)
    found = found.astype(x.dtype)
    if exclusive:
        found = np.concatenate([np.ones_like(np.take(found, [0], axis)), np.delete(found, -1, axis)], axis)
    return np.flip(found, axis) if reverse else found


def _cumprod_terms(a: Application) -> list[str]:
    """Products over distances that double (Hillis and Steele 1986), which no quotient by an element that is 0 needs."""
    (shape, dtype), reverse = a.types[0], a.attrs["reverse"]
    dim, work = normal_axis(a.attrs["axis"], len(shape)), accumulator_dtype(dtype)

    def moved(x: GraphTerm, by: int) -> GraphTerm:
        pads = [0] * (2 * len(shape))
        pads[dim], pads[len(shape) + dim] = (-by, by) if reverse else (by, -by)
        return x.apply("pad", pads=tuple(pads), value=1.0)

    found, by = GraphTerm.of(a, 0).cast(work), 1
    while by < shape[dim]:
        found, by = found * moved(found, by), 2 * by
    return [(moved(found, 1) if a.attrs["exclusive"] else found).cast(dtype).name]


@differentiated(Composed(_cumprod_terms))
@opaque(_cumprod, cumprod_call)
def cumprod(name: str, x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running product along ``axis``; ``exclusive`` leaves the element itself out, ``reverse`` runs from the end."""
    require_input(x, "x", dtype=NUMBERS)
    require(x.shape[normal_axis(axis, len(x.shape))] > 0, "input 'x'", f"shape {list(x.shape)}", "some elements")
    return placeholder(x.shape, x.dtype, name)


def _determinant(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)


def _determinant_gradient(a: Application) -> list[str | None]:
    """Gradient of the determinant: of each element its cofactor, the determinant without its row and column, of
    singular matrices too.
    """
    shape, dtype = a.types[0]
    seed, n = a.seeds[0], shape[-1]
    assert seed is not None
    lead = len(shape) - 2
    seed = a.add("reshape", seed, shape=(*shape[:-2], 1, 1))
    if n < 2:
        return [a.add("expand", seed, shape=shape)]
    others = np.array([[k for k in range(n) if k != i] for i in range(n)])
    index = a.emit.constant(others, dtype="int64")
    columns = a.add("gather", a.add("gather", a.inputs[0], index, axis=lead), index, axis=lead + 2)
    minors = a.add("transpose", columns, perm=(*range(lead), lead, lead + 2, lead + 1, lead + 3))
    signs = a.emit.constant((-1.0) ** np.add.outer(np.arange(n), np.arange(n)), dtype=dtype)
    return [a.add("mul", a.add("mul", a.add("determinant", minors), signs), seed)]


@differentiated(_determinant_gradient)
@opaque(_determinant, determinant_call)
def determinant(name: str, x: Tensor) -> Tensor:
    """The determinants of square matrices ``x`` [..., N, N]."""
    require_input(x, "x", dtype=FLOATS)
    ok = len(x.shape) > 1 and x.shape[-1] == x.shape[-2]
    require(ok, "input 'x'", f"shape {list(x.shape)}", "square matrices")
    return placeholder(x.shape[:-2], x.dtype, name)


OPERATORS = (dft, cumprod, determinant)

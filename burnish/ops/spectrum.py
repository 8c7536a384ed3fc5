"""Opaque operators of whole lines and matrices: the discrete Fourier transform, running products, determinants."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import normal_axis, opaque, require, require_float, require_number


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


@opaque(_dft)
def dft(name: str, x: Tensor, *, axis: int, length: int, inverse: bool = False, onesided: bool = False) -> Tensor:
    """The discrete Fourier transform along ``axis`` of ``x`` [..., 1] (real) or [..., 2] (real and imaginary parts).

    The input is cut, or filled with zeros, to ``length``. ``onesided`` gives the first half of a real input's result,
    or, of the ``inverse``, takes that half and gives real numbers.
    """
    require_float(x, "x")
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


@opaque(_cumprod)
def cumprod(name: str, x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running product along ``axis``; ``exclusive`` leaves the element itself out, ``reverse`` runs from the end."""
    require_number(x, "x")
    require(x.shape[normal_axis(axis, len(x.shape))] > 0, "input 'x'", f"shape {list(x.shape)}", "some elements")
    return placeholder(x.shape, x.dtype, name)


def _determinant(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)


@opaque(_determinant)
def determinant(name: str, x: Tensor) -> Tensor:
    """The determinants of square matrices ``x`` [..., N, N]."""
    require_float(x, "x")
    ok = len(x.shape) > 1 and x.shape[-1] == x.shape[-2]
    require(ok, "input 'x'", f"shape {list(x.shape)}", "square matrices")
    return placeholder(x.shape[:-2], x.dtype, name)


OPERATORS = (dft, cumprod, determinant)

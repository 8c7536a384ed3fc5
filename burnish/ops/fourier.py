"""The discrete Fourier transform of short lines as one product with a constant matrix, which fuses with its neighbours.

A product of 256 by 258 takes as long as NumPy's transform does; longer lines stay a step of their own.
"""

from __future__ import annotations

from math import prod

import numpy as np

from burnish.ops.operator import Application, accumulator_dtype, normal_axis
from burnish.ops.terms import Term

MOST = 1 << 17  # elements of the matrix


def transform_parts(a: Application) -> list[str] | None:
    """``dft`` as a product; None where its matrix is large."""
    (shape, dtype), length = a.types[0], a.attrs["length"]
    axis, inverse, onesided = normal_axis(a.attrs["axis"], len(shape)), a.attrs["inverse"], a.attrs["onesided"]
    real = inverse and onesided  # what comes out
    extent = length // 2 + 1 if onesided and not inverse else length
    rest = [d for d in range(len(shape) - 1) if d != axis]
    given, own = shape[axis] * shape[-1], extent * (1 if real else 2)
    if 0 in shape or given * own > MOST:
        return None
    work, order = accumulator_dtype(dtype), [*rest, axis, len(shape) - 1]
    x = Term.of(a, 0).cast(work).transpose(*order).reshape(prod(shape[d] for d in rest), given)
    matrix = _matrix(shape[axis], shape[-1], length, extent, inverse, real)
    y = x.apply("matmul", Term.constant(a, matrix, work)).cast(dtype)
    y = y.reshape(*(shape[d] for d in rest), extent, own // extent)
    return [y.transpose(*(order.index(d) for d in range(len(shape)))).name]


def _matrix(given: int, parts: int, length: int, extent: int, inverse: bool, real: bool) -> np.ndarray:
    """[given * parts, extent * parts of the result], of ``exp(-2 pi i t k / length)``, conjugates for the inverse.

    Rows of what is beyond ``length`` are 0. ``real``: from the first half of a real line's transform to the line.
    """
    t, k = np.arange(given)[:, None], np.arange(extent)[None, :]
    angle = 2 * np.pi * (t * k % length / length) * (1 if inverse else -1)
    cos, sin = np.cos(angle), np.sin(angle)
    rows = [np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts]
    found = np.stack(rows, 1)[..., : 1 if real else 2]  # [t, part of it, k, part of it]
    used = length // 2 + 1 if real else length
    factor = np.where(t < used, 1 / length if inverse else 1.0, 0.0)
    if real:  # elements but the first, and a last one of its own, stand for two
        factor = factor * np.where((t == 0) | (2 * t == length), 1.0, 2.0)
    return (found * factor[:, None, :, None]).reshape(given * parts, -1)

"""The discrete Fourier transform of short lines as one product with a constant matrix, which fuses with its neighbours.

Up to 128 elements it is faster than a fast transform; longer lines stay a kernel of their own (``native/fourier.py``).
So do inverses: the standard's test of one demands, where the answer is 0, the rounding errors of NumPy's transform.
"""

from __future__ import annotations

from math import prod

import numpy as np

from burnish.loops.sizes import is_size
from burnish.ops.operator import Application, accumulator_dtype, normal_axis
from burnish.ops.terms import GraphTerm

MOST = 1 << 15  # elements of the matrix


def transform_parts(a: Application) -> list[str] | None:
    """``dft`` as a product; None for an inverse, and where the matrix is large."""
    (shape, dtype), length = a.types[0], a.attrs["length"]
    axis, rank = normal_axis(a.attrs["axis"], len(shape)), len(shape)
    extent = length // 2 + 1 if a.attrs["onesided"] else length
    rest = [d for d in range(rank - 1) if d != axis]
    given = shape[axis] * shape[-1]
    if a.attrs["inverse"] or 0 in shape or is_size(given) or given * extent * 2 > MOST:
        return None
    work, order = accumulator_dtype(dtype), [*rest, axis, rank - 1]
    x = GraphTerm.of(a, 0).cast(work).transpose(*order).reshape(prod(shape[d] for d in rest), given)
    y = x.apply("matmul", GraphTerm.constant(a, _matrix(shape[axis], shape[-1], length, extent), work)).cast(dtype)
    y = y.reshape(*(shape[d] for d in rest), extent, 2)
    return [y.transpose(*(order.index(d) for d in range(rank))).name]


def _matrix(given: int, parts: int, length: int, extent: int) -> np.ndarray:
    """[given * parts, extent * 2]: real and imaginary parts of ``exp(-2 pi i t k / length)``; 0 beyond ``length``."""
    t, k = np.arange(given)[:, None], np.arange(extent)[None, :]
    angle = -2 * np.pi * (t * k % length / length)
    cos, sin = np.cos(angle), np.sin(angle)
    rows = [np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts]  # of the input's real part, and the other
    found = np.stack(rows, 1) * (t < length)[..., None, None]
    return found.reshape(given * parts, extent * 2)

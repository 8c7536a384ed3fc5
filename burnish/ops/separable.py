"""Operators that are linear along each dimension by itself, as products with their matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Application

Along = Callable[[Tensor, int], Tensor]  # the operator on a matrix [n, n], along its first dimension as along this one


def separable(a: Application, moved: Sequence[int], along: Along) -> str:
    """An operator's result as products of its matrix along each dimension that it moves, with its only input.

    A matrix is what the operator makes of the identity. A gradient is a product with a transposed matrix, then, where
    that which follows from the definition looks at all pairs of elements of all these dimensions together.
    """
    result, dtype = a.inputs[0], a.types[0][1]
    own = a.types[0][0]
    shape = list(own)
    for d in moved:
        x = placeholder((own[d], own[d]), "float64", "x")
        (matrix,) = evaluate([along(x, d)], {"x": np.eye(own[d])})
        factor = a.emit.constant(matrix, dtype=dtype)  # [size, extent]
        before, after = prod(shape[:d]), prod(shape[d + 1 :])
        shape[d] = len(matrix)
        if after == 1:
            flat = a.add("reshape", result, shape=(before, own[d]))
            product = a.add("matmul", flat, factor, transpose_b=True)
        else:
            flat = a.add("reshape", result, shape=(before, own[d], after))
            product = a.add("matmul", factor, flat)
        result = a.add("reshape", product, shape=tuple(shape))
    return result

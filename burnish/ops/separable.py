"""Gradients of operators that are linear along each dimension by itself: products with their matrices, transposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from burnish.loops.evaluate import evaluate
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Application

Along = Callable[[Tensor, int], Tensor]  # the operator on a matrix [n, n], along its first dimension as along this one


def separable_gradient(a: Application, moved: Sequence[int], sizes: Sequence[int], along: Along) -> str:
    """The adjoint, of extents ``sizes``, times the transposed matrix of the operator along each dimension it moves.

    A matrix is what the operator makes of the identity. What the definition gives looks at all pairs of elements of
    all these dimensions together.
    """
    result, shape = a.seeds[0], list(sizes)
    own, dtype = a.types[0]
    assert result is not None
    for d in moved:
        x = placeholder((own[d], own[d]), "float64", "x")
        (matrix,) = evaluate([along(x, d)], {"x": np.eye(own[d])})
        factor = a.emit.constant(matrix, dtype=dtype)  # [size, extent]
        before, after = prod(shape[:d]), prod(shape[d + 1 :])
        if after == 1:
            flat = a.add("reshape", result, shape=(before, shape[d]))
            product = a.add("matmul", flat, factor)
        else:
            flat = a.add("reshape", result, shape=(before, shape[d], after))
            product = a.add("matmul", a.emit.constant(matrix.T.copy(), dtype=dtype), flat)
        shape[d] = own[d]
        result = a.add("reshape", product, shape=tuple(shape))
    return result

"""Matrix products."""

from __future__ import annotations

from math import prod

from burnish.loops.expr import FLOATS, Expr, cast
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.operator import (
    DERIVED,
    NUMBERS,
    Application,
    Shape,
    accumulator_dtype,
    broadcast_shapes,
    declare,
    differentiated,
    operator,
    refuse,
    require,
    require_input,
    wide,
)


def _batch_load(t: Tensor, batch: tuple[Expr, ...], rest: tuple[Expr, ...]) -> Expr:
    """``t`` at matrix index ``rest`` and the batch index it broadcasts to."""
    own = len(t.shape) - len(rest)
    tail = batch[len(batch) - own :]
    return t[(*(0 if d == 1 else i for d, i in zip(t.shape, tail, strict=False)), *rest)]


def _gradient(a: Application) -> list[str | None]:
    """Two products again: with the transposed other factor, summed where an operand was broadcast."""
    (left, right), seed = a.inputs, a.seeds[0]
    (x, dtype), (y, other) = a.types
    assert seed is not None
    if min(len(x), len(y)) < 2 or dtype != other:
        return [DERIVED, DERIVED]
    ta, tb = a.attrs["transpose_a"], a.attrs["transpose_b"]
    dx = dy = None
    if a.wanted[0]:
        if ta:
            dx = a.add("matmul", right, seed, transpose_a=tb, transpose_b=True)
        else:
            dx = a.add("matmul", seed, right, transpose_b=not tb)
        dx = _summed(a, dx, x, y)
    if a.wanted[1] and len(x) > 2 and len(y) == 2 and not ta:  # rows of all batches are rows of one product
        rows = prod(x[:-1])
        flat, flat_seed = (a.add("reshape", t, shape=(rows, n)) for t, n in ((left, x[-1]), (seed, y[0 if tb else 1])))
        dy = _right(a, flat, flat_seed, ta, tb)
    elif a.wanted[1]:
        dy = _summed(a, _right(a, left, seed, ta, tb), y, x)
    return [dx, dy]


def _right(a: Application, left: str, seed: str, ta: bool, tb: bool) -> str:
    """The gradient of the right factor."""
    if tb:
        return a.add("matmul", seed, left, transpose_a=True, transpose_b=ta)
    return a.add("matmul", left, seed, transpose_a=not ta)


def _summed(a: Application, gradient: str, own: Shape, other: Shape) -> str:
    """A gradient summed over the batch dimensions along which the operand was broadcast with another shape."""
    rank = max(len(own), len(other))
    mine, theirs = ((1,) * (rank - len(shape)) + shape for shape in (own, other))
    axes = tuple(d for d in range(rank - 2) if mine[d] == 1 and theirs[d] != 1)
    summed = a.add("reduce_sum", gradient, axes=axes) if axes else gradient
    return a.add("reshape", summed, shape=own) if rank > len(own) else summed


@differentiated(_gradient)
@declare(layout_affinity=-4.0, weight_channel=-1)
@operator
def matmul(name: str, a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """``a`` [..., M, K] times ``b`` [..., K, N] with NumPy's broadcasting; a vector drops its M or N from the output.

    ``transpose_a`` / ``transpose_b`` swap the operand's last two dimensions. Reduction axis ``k``; 8-bit operands give
    int32; halves accumulate in float32 (stage ``name.sum``). A right factor of a float32 product may be stored as
    bfloat16 or float16.
    """
    for argument, t in (("a", a), ("b", b)):
        require(len(t.shape) > 0, f"input '{argument}'", "a scalar", "at least 1 dimension")
        require_input(t, argument, dtype=NUMBERS)
    accumulator = accumulator_dtype(a.dtype)
    stored = a.dtype == "float32" and b.dtype in ("bfloat16", "float16")  # a weight in half of the memory
    if accumulator_dtype(b.dtype) != accumulator or (a.dtype in FLOATS and b.dtype != a.dtype and not stored):
        refuse("input 'b'", f"dtype {b.dtype}", f"a dtype that multiplies with {a.dtype}")
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    depth = a.shape[-2] if transpose_a and rows else a.shape[-1]
    other = b.shape[-2] if columns and not transpose_b else b.shape[-1]
    require(other == depth, "input 'b'", f"shape {list(b.shape)}, inner extent {other}", f"inner extent {depth} of 'a'")
    lead = {"a": _lead(a), "b": _lead(b)}
    batch = broadcast_shapes(lead)
    shape = batch
    shape += (a.shape[-1 if transpose_a else -2],) if rows else ()
    shape += (b.shape[-2 if transpose_b else -1],) if columns else ()

    def element(*i: Expr) -> Expr:
        k = reduce_axis(depth, "k")
        outer, m, n = i[: len(batch)], i[len(batch) : len(batch) + rows], i[len(batch) + rows :]
        left = (k.var, *m) if transpose_a else (*m, k.var)
        right = (*n, k.var) if transpose_b else (k.var, *n)
        return sum_over(wide(_batch_load(a, outer, left)) * wide(_batch_load(b, outer, right)), k)

    result = a.dtype if a.dtype in FLOATS else accumulator
    if accumulator == result:
        return compute(shape, element, name)
    total = compute(shape, element, f"{name}.sum")
    return compute(shape, lambda *i: cast(result, total[i]), name)


def _lead(t: Tensor) -> Tensor:
    """A tensor with the batch dimensions of ``t``, for the broadcasting check."""
    return Tensor(t.buffer.with_(shape=t.shape[:-2]))


OPERATORS = (matmul,)

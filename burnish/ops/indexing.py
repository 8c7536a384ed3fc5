"""Operators that read at positions held in a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.loops.expr import INDEX, Expr, cast, equal, maximum, minimum, select
from burnish.loops.tensor import Tensor, compute
from burnish.ops.operator import (
    DERIVED,
    Application,
    Shape,
    differentiated,
    normal_axis,
    operator,
    require,
    require_input,
)

INDEX_DTYPES = ("int64", "int32")


def _position(value: Expr, extent: int) -> Expr:
    """A stored index as a position: negative ones count from the end."""
    value = cast(INDEX, value)
    return select(value < 0, value + extent, value)


def _inside(value: Expr, extent: int) -> Expr:
    """A stored index as a position that can be read: one out of range is the nearer end, for a kernel has no errors."""
    return minimum(maximum(_position(value, extent), 0), extent - 1)


def _require_elements(data: Tensor, dims: Sequence[int], shape: Shape) -> None:
    """Refuses to read elements of ``shape`` along dimensions that have none."""
    found = f"shape {list(data.shape)}, to be read at {list(shape)} positions"
    require(0 in shape or all(data.shape[d] for d in dims), "input 'data'", found, "an extent of 1 or more to index")


def _gather_elements_gradient(a: Application) -> list[str | None]:
    """Gradient of gather_elements: for one position a row, the adjoint there and else 0; for several, the sums there,
    derived from the definition.
    """
    seed = a.seeds[0]
    assert seed is not None
    (data, dtype), (at, _) = a.types
    axis = normal_axis(a.attrs["axis"], len(data))
    if at == (*data[:axis], 1, *data[axis + 1 :]) and 0 < data[axis] < 1 << 31:
        return [_at_one_position(a, seed, data, dtype, axis), None]
    return [DERIVED, None]


def _at_one_position(a: Application, seed: str, data: Shape, dtype: str, axis: int) -> str:
    """Scatter of the adjoint, in ``data``'s shape: at the one position along ``axis`` that was read, and else 0.

    Positions count as gather_elements reads them: negative ones from the end, those out of range are the nearer end.
    """

    def number(value: int) -> str:
        return a.emit.constant(value, dtype=a.types[1][1])

    last = data[axis] - 1
    from_end = a.add("add", a.inputs[1], number(data[axis]))
    given = a.add("where", a.add("less", a.inputs[1], number(0)), from_end, a.inputs[1])
    inside = a.add("minimum", a.add("maximum", given, number(0)), number(last))
    place = a.add("cast", inside, to="int32")  # as many lanes as the adjoint
    row = a.add("iota", a.emit.constant(0, dtype="int32"), extent=data[axis])
    row = a.add("reshape", row, shape=(data[axis], *(1,) * (len(data) - axis - 1)))
    return a.add("where", a.add("equal", row, place), seed, a.emit.constant(0.0, dtype=dtype))


@operator
def gather(name: str, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Slices of ``data`` along ``axis`` at ``indices`` (negative: from the end), whose dimensions replace that axis.

    An index out of range reads the nearer end of the axis. An embedding is a gather along axis 0.
    """
    require_input(indices, "indices", dtype=INDEX_DTYPES)
    dim, rank = normal_axis(axis, len(data.shape)), len(indices.shape)
    extent = data.shape[dim]

    def element(*i: Expr) -> Expr:
        at = _inside(indices[i[dim : dim + rank]], extent)
        return data[(*i[:dim], at, *i[dim + rank :])]

    shape = (*data.shape[:dim], *indices.shape, *data.shape[dim + 1 :])
    _require_elements(data, (dim,), shape)
    return compute(shape, element, name)


@differentiated(_gather_elements_gradient)
@operator
def gather_elements(name: str, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """``data`` at each position of ``indices``, with the index along ``axis`` replaced by the one stored there.

    A negative one counts from the end; one out of range reads the nearer end of the axis.
    """
    require_input(indices, "indices", len(data.shape), "like 'data'", dtype=INDEX_DTYPES)
    dim = normal_axis(axis, len(data.shape))
    ok = all(m <= n for d, (m, n) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != dim)
    found = f"shape {list(indices.shape)}"
    require(ok, "input 'indices'", found, f"extents within {list(data.shape)} but for axis {dim}")

    _require_elements(data, (dim,), indices.shape)

    def element(*i: Expr) -> Expr:
        return data[(*i[:dim], _inside(indices[i], data.shape[dim]), *i[dim + 1 :])]

    return compute(indices.shape, element, name)


@operator
def gather_nd(name: str, data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Slices of ``data`` at the index tuples along the last dimension of ``indices``; ``batch_dims`` leading dimensions
    are common to both. Negative indices count from the end; one out of range reads the nearer end of its axis.
    """
    require_input(indices, "indices", dtype=INDEX_DTYPES)
    require(len(indices.shape) > 0, "input 'indices'", "a scalar", "at least 1 dimension")
    depth, lead = indices.shape[-1], len(indices.shape) - 1
    ok = 0 <= batch_dims <= min(lead, len(data.shape)) and data.shape[:batch_dims] == indices.shape[:batch_dims]
    require(ok, "attribute 'batch_dims'", batch_dims, f"leading extents that {list(data.shape)} and indices share")
    fits = batch_dims + depth <= len(data.shape)
    require(fits, "input 'indices'", f"index tuples of {depth}", f"at most {len(data.shape) - batch_dims}")

    def element(*i: Expr) -> Expr:
        at = [_inside(indices[(*i[:lead], k)], data.shape[batch_dims + k]) for k in range(depth)]
        return data[(*i[:batch_dims], *at, *i[lead:])]

    shape = (*indices.shape[:-1], *data.shape[batch_dims + depth :])
    _require_elements(data, range(batch_dims, batch_dims + depth), shape)
    return compute(shape, element, name)


@operator
def one_hot(name: str, indices: Tensor, values: Tensor, *, depth: int, axis: int = -1) -> Tensor:
    """``values[1]`` where the position along the new dimension ``axis`` is the index, else ``values[0]``.

    A negative index counts from the end; one out of range is no position: all elements are ``values[0]``.
    """
    require_input(indices, "indices", dtype=INDEX_DTYPES)
    require_input(values, "values", shape=(2,))
    require(depth > 0, "attribute 'depth'", depth, "a positive integer")
    dim = normal_axis(axis, len(indices.shape) + 1)

    def element(*i: Expr) -> Expr:
        hit = equal(_position(indices[(*i[:dim], *i[dim + 1 :])], depth), i[dim])
        return select(hit, values[1], values[0])

    return compute((*indices.shape[:dim], depth, *indices.shape[dim:]), element, name)


@operator
def reverse_sequence(name: str, x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """``x`` with the first ``lengths`` [batch] elements along ``time_axis`` in reverse order, for every batch row."""
    require_input(lengths, "lengths", dtype=INDEX_DTYPES)
    batch, time = normal_axis(batch_axis, len(x.shape), "batch_axis"), normal_axis(time_axis, len(x.shape), "time_axis")
    require(batch != time, "attribute 'time_axis'", time_axis, "another axis than batch_axis")
    require_input(lengths, "lengths", shape=(x.shape[batch],))

    def element(*i: Expr) -> Expr:
        count = cast(INDEX, lengths[i[batch]])
        at = select(i[time] < count, minimum(maximum(count - 1 - i[time], 0), x.shape[time] - 1), i[time])
        return x[(*i[:time], at, *i[time + 1 :])]

    return compute(x.shape, element, name)


def _put_slice_gradient(a: Application) -> list[str | None]:
    """Gradient of put_slice: the adjoint with zeros in the place of the slice, and the slice of it."""
    seed, axis = a.seeds[0], a.attrs["axis"]
    assert seed is not None
    shape, dtype = a.types[2]
    zeros = a.add("expand", a.emit.constant(0.0, dtype=dtype), shape=shape) if a.wanted[0] else ""
    kept = a.add("put_slice", seed, a.inputs[1], zeros, axis=axis) if a.wanted[0] else None
    return [kept, None, a.add("gather", seed, a.inputs[1], axis=axis) if a.wanted[2] else None]


@differentiated(_put_slice_gradient)
@operator
def put_slice(name: str, data: Tensor, index: Tensor, values: Tensor, *, axis: int) -> Tensor:
    """``data`` with ``values`` in the place of its slice along ``axis`` at ``index`` [1] (negative: from the end).

    An index out of range writes the nearer end. A cache of keys or values is one whose slice is that of a token.
    """
    require_input(index, "index", shape=(1,), dtype=INDEX_DTYPES)
    dim = normal_axis(axis, len(data.shape))
    extent = data.shape[dim]
    require_input(values, "values", shape=(*data.shape[:dim], 1, *data.shape[dim + 1 :]), dtype=(data.dtype,))
    _require_elements(data, (dim,), values.shape)

    def element(*i: Expr) -> Expr:
        slice_ = values[(*i[:dim], 0, *i[dim + 1 :])]
        return select(equal(cast(INDEX, i[dim]), _inside(index[0], extent)), slice_, data[i])

    return compute(data.shape, element, name)


OPERATORS = (reverse_sequence, gather, put_slice, gather_elements, gather_nd, one_hot)

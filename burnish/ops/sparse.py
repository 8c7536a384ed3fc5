"""Aggregation over the neighbours of graph vertices: sums, means, maxima and attention over rows of a CSR matrix.

A graph's structure is two tensors, its edges by the vertex that they lead to: vertex ``v`` of V reads ``sources`` [E]
at the positions ``offsets[v]`` to below ``offsets[v + 1]`` (``offsets``: [V + 1]). Sources are rows of a tensor of U.
A gradient is the same operator over the edges by the vertex that they come from, ``offsets_t`` [U + 1] and
``sources_t`` [E]: optional inputs, without which every gradient sorts the edges anew.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from burnish.loops.expr import FLOATS, INDEX, Axis, Expr, Reduce, cast, equal, maximum, select, wrap
from burnish.loops.tensor import Tensor, compute, placeholder, reduce_axis, rows_axis
from burnish.loops.tensor import max as max_over
from burnish.loops.tensor import sum as sum_over
from burnish.ops.csr import transposed
from burnish.ops.operator import (
    Application,
    Composed,
    Refused,
    composed,
    differentiated,
    internal,
    opaque,
    operator,
    require,
    require_input,
    wide,
)

INDEX_DTYPES = ("int64", "int32")
REDUCTIONS = ("sum", "mean", "max")
Reduction = Callable[[Expr, Axis], Reduce]


def check_structure(offsets: Tensor, sources: Tensor) -> None:
    """Refuses what is no CSR matrix by its types."""
    for argument, t in (("offsets", offsets), ("sources", sources)):
        require_input(t, argument, 1, dtype=INDEX_DTYPES)
    require(offsets.shape[0] >= 1, "input 'offsets'", f"shape {list(offsets.shape)}", "one position more than vertices")


def check_blocks(count: int, offsets: Tensor, pointers: Tensor, places: Tensor, rows: int) -> None:
    """Refuses what are by their types no edges in order of blocks of ``rows`` of ``count`` sources."""
    require_input(offsets, "offsets", 1, dtype=INDEX_DTYPES)
    require_input(places, "places", dtype=("uint16",))
    require_input(pointers, "pointers", dtype=("int32",))
    require(0 < rows <= 1 << 16, "attribute 'rows'", rows, f"1 to {1 << 16}")
    require_input(pointers, "pointers", shape=(max(1, -(-count // rows)), offsets.shape[0]))


def check_transpose(rows: int, sources: Tensor, *transpose: Tensor | None) -> None:
    """Refuses a transpose of another size: all of its tensors or none, as many edges, a position more than ``rows``."""
    given = [t for t in transpose if t is not None]
    require(len(given) in (0, len(transpose)), "inputs", f"{len(given)} of the transpose's tensors", "all or none")
    for t, argument, shape in zip(given, ("offsets_t", "sources_t"), ((rows + 1,), sources.shape), strict=False):
        require_input(t, argument, shape=shape, dtype=INDEX_DTYPES)


def at(index: Tensor, position: Expr) -> Expr:
    """A stored vertex as a row."""
    return cast(INDEX, index[position])


def some(offsets: Tensor, v: Expr) -> Expr:
    """Whether an edge leads to ``v``."""
    return cast(INDEX, offsets[v + 1]) > cast(INDEX, offsets[v])


def over_edges(
    offsets: Tensor, sources: Tensor, v: Expr, term: Callable[[Expr, Expr], Expr], reduction: Reduction = sum_over
) -> Reduce:
    """The sum, or another reduction, over the edges to ``v`` of ``term(e, u)``, by an edge's position and source."""
    e = rows_axis(offsets, v, sources.shape[0])
    return reduction(term(e.var, at(sources, e.var)), e)


def normalized_over_edges(
    name: str, x: Tensor, offsets: Tensor, sources: Tensor, weight: Callable[[Expr, Expr, Expr, Expr], Expr]
) -> Tensor:
    """Weighted means [V, H, D] of the neighbours' rows of ``x`` [U, H, D] by ``weight(v, e, u, h)``, as attention is
    after its scores: an edge's weight counts by the sum of all to ``v``. 0 of a vertex without neighbours.
    """

    def total(v: Expr, h: Expr) -> Expr:
        return over_edges(offsets, sources, v, lambda e, u: weight(v, e, u, h))

    def value(v: Expr, h: Expr, d: Expr) -> Expr:
        return over_edges(offsets, sources, v, lambda e, u: weight(v, e, u, h) * x[u, h, d])

    shape = (offsets.shape[0] - 1, *x.shape[1:])
    totals, values = compute(shape[:2], total, f"{name}.total"), compute(shape, value, f"{name}.sum")

    def element(v: Expr, h: Expr, d: Expr) -> Expr:
        return select(some(offsets, v), values[v, h, d] / totals[v, h], wrap(0, x.dtype))

    return compute(shape, element, name)


def degree(offsets: Tensor, v: Expr, dtype: str) -> Expr:
    """The number of edges that lead to ``v``, but at least 1."""
    return cast(dtype, maximum(cast(INDEX, offsets[v + 1]) - cast(INDEX, offsets[v]), 1))


# --- sum, mean, max ---------------------------------------------------------------------------------------------------


def _aggregate_gradient(a: Application) -> list[str | None]:
    """Over the transpose: the adjoint, divided by the degree, or where a maximum is by how many neighbours are one."""
    seed = a.seeds[0]
    assert seed is not None
    structure = a.inputs[1:3]
    back, none = transposed(a, 1), [None] * (len(a.inputs) - 1)
    if a.attrs["reduction"] == "max":
        ties = a.add("aggregate_equal", a.outputs[0], a.inputs[0], *structure)
        one = a.emit.constant(1.0, dtype=a.types[0][1])
        share = a.add("div", seed, a.add("maximum", ties, one))
        return [a.add("aggregate_equal", a.inputs[0], a.outputs[0], *back, share), *none]
    if a.attrs["reduction"] == "mean":
        seed = a.add("div", seed, a.add("csr_degrees", structure[0], dtype=a.types[0][1]))
    return [a.add("aggregate", seed, *back, *structure), *none]


@differentiated(_aggregate_gradient)
@operator
def aggregate(
    name: str,
    x: Tensor,
    offsets: Tensor,
    sources: Tensor,
    offsets_t: Tensor | None = None,
    sources_t: Tensor | None = None,
    *,
    reduction: str = "sum",
) -> Tensor:
    """The sum, mean or maximum [V, F] of the rows of ``x`` [U, F] that are neighbours of each vertex; 0 of none.

    The structure is as the module says (CSR by the vertex an edge leads to). Edges may come in any order and repeat.
    """
    check_structure(offsets, sources)
    require_input(x, "x", 2, "[U, F]", dtype=FLOATS)
    require(reduction in REDUCTIONS, "attribute 'reduction'", reduction, ", ".join(REDUCTIONS))
    check_transpose(x.shape[0], sources, offsets_t, sources_t)
    shape, most = (offsets.shape[0] - 1, x.shape[1]), reduction == "max"

    def over(v: Expr, f: Expr) -> Expr:
        def row(e: Expr, u: Expr) -> Expr:
            return x[u, f] if most else wide(x[u, f])

        return over_edges(offsets, sources, v, row, max_over if most else sum_over)

    direct = reduction == "sum" and wide(wrap(0, x.dtype)).dtype == x.dtype
    total = compute(shape, over, name if direct else f"{name}.{reduction}")
    if direct:
        return total

    def finished(v: Expr, f: Expr) -> Expr:
        value = total[v, f]
        if reduction == "max":
            return select(some(offsets, v), value, wrap(0, x.dtype))
        return cast(x.dtype, value / degree(offsets, v, value.dtype) if reduction == "mean" else value)

    return compute(shape, finished, name)


@differentiated(Refused("it is a form of aggregate that the compiler chooses, of which the gradient is"))
@operator
def aggregate_blocks(
    name: str,
    x: Tensor,
    offsets: Tensor,
    pointers: Tensor,
    places: Tensor,
    weights: Tensor | None = None,
    *,
    rows: int,
    reduction: str = "sum",
) -> Tensor:
    """:data:`aggregate` with the edges in order of blocks of ``rows`` sources: vertex v reads those in block b at the
    rows ``b * rows + places[e]`` of ``x`` [U, F], for ``pointers[b, v] <= e < pointers[b, v + 1]``.

    ``pointers`` int32 [blocks, V + 1], ``places`` uint16 [E] (``csr_block_pointers``, ``csr_block_places``);
    ``offsets`` [V + 1] counts the edges of vertices. ``reduction``: sum or mean. ``weights`` [E], in the order of
    ``places`` (``csr_block_weights``): factors of the rows, as in :data:`aggregate_weighted`.
    """
    require_input(x, "x", 2, "[U, F]", dtype=FLOATS)
    check_blocks(x.shape[0], offsets, pointers, places, rows)
    require(reduction in ("sum", "mean"), "attribute 'reduction'", reduction, "sum, mean")
    shape, edges = (offsets.shape[0] - 1, x.shape[1]), places.shape[0]
    if weights is not None:
        require_input(weights, "weights", shape=places.shape, dtype=(x.dtype,))

    def over(v: Expr, f: Expr) -> Expr:
        b = reduce_axis(pointers.shape[0], "b")
        e = rows_axis(pointers, (b.var, v), edges)
        row = wide(x[b.var * rows + cast(INDEX, places[e.var]), f])
        return sum_over(row if weights is None else wide(weights[e.var]) * row, (b, e))

    total = compute(shape, over, f"{name}.sum")

    def finished(v: Expr, f: Expr) -> Expr:
        value = total[v, f]
        if reduction == "mean":
            return cast(x.dtype, value / degree(offsets, v, value.dtype))
        return cast(x.dtype, select(some(offsets, v), value, wrap(0, value.dtype)))

    return compute(shape, finished, name)


AGAIN = Refused("it is part of a gradient; that of a maximum is not differentiated again")


@differentiated(AGAIN)
@operator
def aggregate_equal(
    name: str,
    near: Tensor,
    far: Tensor,
    offsets: Tensor,
    sources: Tensor,
    values: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """For each element of ``near`` [V, F] the sum of ``values`` [U, F] of the neighbours whose ``far`` [U, F] is equal.

    With ``weights`` [E]: where the weight times ``near`` is equal, of the values times the weight.
    """
    check_structure(offsets, sources)
    for argument, t in (("near", near), ("far", far)):
        require_input(t, argument, 2, dtype=FLOATS)
    require_input(near, "near", shape=(offsets.shape[0] - 1, far.shape[1]))
    if values is not None:
        require_input(values, "values", shape=far.shape)
    if weights is not None:
        require_input(weights, "weights", shape=sources.shape, dtype=(near.dtype,))
    none = wrap(0, far.dtype)

    def element(v: Expr, f: Expr) -> Expr:
        def term(e: Expr, u: Expr) -> Expr:
            share = wrap(1, far.dtype) if values is None else values[u, f]
            if weights is None:
                return select(equal(near[v, f], far[u, f]), share, none)
            return select(equal(weights[e] * near[v, f], far[u, f]), weights[e] * share, none)

        return over_edges(offsets, sources, v, term)

    return compute(near.shape, element, name)


@differentiated("none")
@operator
def csr_degrees(name: str, offsets: Tensor, *, dtype: str = "float32") -> Tensor:
    """The number of edges that lead to each vertex [V, 1], but at least 1: what a mean divides by."""
    require_input(offsets, "offsets", 1, dtype=INDEX_DTYPES)
    require(dtype in FLOATS, "attribute 'dtype'", dtype, ", ".join(FLOATS))
    return compute((offsets.shape[0] - 1, 1), lambda v, one: degree(offsets, v, dtype), name)


# --- edge lists -------------------------------------------------------------------------------------------------------


def _by_segment(a: Application) -> list[str]:
    """The edges in order of their segment, then the rows of each."""
    extent = a.attrs["extent"]
    offsets = a.add("csr_offsets", a.inputs[1], extent=extent)
    order = a.add("csr_order", a.inputs[1], extent=extent)
    return [a.add("aggregate", a.inputs[0], offsets, order, reduction=a.attrs["reduction"])]


def _segment_reduce(values: np.ndarray, segments: np.ndarray, extent: int, reduction: str) -> np.ndarray:
    if len(segments) and not 0 <= segments.min() <= segments.max() < extent:
        raise IndexError(f"segments: found {segments.min()} to {segments.max()}; allowed: 0 to {extent - 1}")
    kind = np.maximum if reduction == "max" else np.add
    found = np.full((extent, values.shape[1]), -np.inf if reduction == "max" else 0, np.result_type(values, np.float32))
    kind.at(found, segments, values)
    counts = np.bincount(segments, minlength=extent)[:, None]
    found = np.where(counts == 0, 0, found / np.maximum(counts, 1) if reduction == "mean" else found)
    return found.astype(values.dtype)


@composed(_by_segment)
@differentiated(Composed(_by_segment))
@opaque(_segment_reduce)
def segment_reduce(name: str, values: Tensor, segments: Tensor, *, extent: int, reduction: str = "sum") -> Tensor:
    """The sum, mean or maximum [extent, F] of the rows of ``values`` [E, F] of each segment; 0 of none.

    ``segments`` [E]: the segment of each row, in any order: an edge list's targets (``scatter`` in other libraries).
    """
    require_input(values, "values", 2, "[E, F]", dtype=FLOATS)
    require_input(segments, "segments", shape=values.shape[:1], dtype=INDEX_DTYPES)
    require(reduction in REDUCTIONS, "attribute 'reduction'", reduction, ", ".join(REDUCTIONS))
    return placeholder((extent, values.shape[1]), values.dtype, name)


OPERATORS = (*internal(aggregate, aggregate_blocks, aggregate_equal, csr_degrees), segment_reduce)

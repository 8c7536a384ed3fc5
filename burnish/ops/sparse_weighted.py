"""Weighted aggregation over the neighbours of graph vertices: sums and maxima of rows times the weights of edges."""

from __future__ import annotations

from burnish.errors import ModelError
from burnish.loops.expr import FLOATS, Expr, equal, select, wrap
from burnish.loops.tensor import Tensor, compute, reduce_axis, rows_axis
from burnish.loops.tensor import max as max_over
from burnish.loops.tensor import sum as sum_over
from burnish.ops.csr import transposed, transposed_order
from burnish.ops.operator import Application, differentiated, internal, operator, require, require_input
from burnish.ops.sparse import AGAIN, INDEX_DTYPES, at, check_structure, check_transpose, some


@differentiated(AGAIN)
@operator
def aggregate_ties(name: str, near: Tensor, far: Tensor, weights: Tensor, offsets: Tensor, sources: Tensor) -> Tensor:
    """Tie counts of a weighted maximum: how many neighbours' elements of ``far`` [U, F], times the weight [E] of their
    edge, are equal to that of ``near`` [V, F].
    """
    check_structure(offsets, sources)
    require_input(near, "near", shape=(offsets.shape[0] - 1, far.shape[1]))
    require_input(weights, "weights", shape=sources.shape)

    def element(v: Expr, f: Expr) -> Expr:
        e = rows_axis(offsets, v, sources.shape[0])
        found = equal(weights[e.var] * far[at(sources, e.var), f], near[v, f])
        return sum_over(select(found, wrap(1, far.dtype), wrap(0, far.dtype)), e)

    return compute(near.shape, element, name)


def _weighted_gradient(a: Application) -> list[str | None]:
    """Gradient of weighted aggregation. By ``x``: over the transpose, with the weights in its order. By the weights: a
    dot product for every edge.

    Of a maximum, each over the elements that it is, in equal shares.
    """
    seed = a.seeds[0]
    assert seed is not None
    found: list[str | None] = [None] * len(a.inputs)
    most = a.attrs["reduction"] == "max"
    if most:
        ties = a.add("aggregate_ties", a.outputs[0], *a.inputs[:4])
        seed = a.add("div", seed, a.add("maximum", ties, a.emit.constant(1.0, dtype=a.types[0][1])))
    if a.wanted[0]:
        constant = len(a.inputs) > 6 and a.types[6][1] not in INDEX_DTYPES and not a.wanted[1]
        weights = a.inputs[6] if constant else a.add("gather", a.inputs[1], transposed_order(a, 2))
        back = transposed(a, 2)
        found[0] = (
            a.add("aggregate_equal", a.inputs[0], a.outputs[0], *back, seed, weights)
            if most
            else a.add("aggregate_weighted", seed, weights, *back, *a.inputs[2:4], a.inputs[1])
        )
    if a.wanted[1]:
        targets = a.add("csr_targets", a.inputs[2], extent=a.types[3][0][0])
        more = (a.inputs[1], a.outputs[0]) if most else ()
        found[1] = a.add("edge_dot", a.inputs[0], seed, a.inputs[3], targets, *more)
    return found


@differentiated(_weighted_gradient)
@operator
def aggregate_weighted(
    name: str,
    x: Tensor,
    weights: Tensor,
    offsets: Tensor,
    sources: Tensor,
    offsets_t: Tensor | None = None,
    sources_t: Tensor | None = None,
    edges_t: Tensor | None = None,
    *,
    reduction: str = "sum",
) -> Tensor:
    """The sum or maximum [V, F] of the neighbours' rows of ``x`` [U, F], each times the weight [E] of its edge; 0 of
    none.

    ``edges_t`` [E]: for each edge of the transpose its position among ``sources``; or its weight, of weights that no
    gradient is asked of, so that none has to be gathered.
    """
    check_structure(offsets, sources)
    require_input(x, "x", 2, "[U, F]", dtype=FLOATS)
    require_input(weights, "weights", shape=sources.shape, dtype=(x.dtype,))
    require(reduction in ("sum", "max"), "attribute 'reduction'", reduction, "sum, max")
    check_transpose(x.shape[0], sources, offsets_t, sources_t)
    if edges_t is not None:
        require_input(edges_t, "edges_t", shape=sources.shape, dtype=(*INDEX_DTYPES, x.dtype))
    shape, over = (offsets.shape[0] - 1, x.shape[1]), max_over if reduction == "max" else sum_over

    def element(v: Expr, f: Expr) -> Expr:
        e = rows_axis(offsets, v, sources.shape[0])
        return over(weights[e.var] * x[at(sources, e.var), f], e)

    if reduction == "sum":
        return compute(shape, element, name)
    most = compute(shape, element, f"{name}.max")
    return compute(shape, lambda v, f: select(some(offsets, v), most[v, f], wrap(0, x.dtype)), name)


def _edge_dot_gradient(a: Application) -> list[str | None]:
    """Gradient of edge_dot: of each side its edges in order of that side, weighted by the adjoint."""
    seed = a.seeds[0]
    assert seed is not None
    if len(a.inputs) > 4:
        raise ModelError("edge_dot: found weights, of the gradient of a maximum; allowed: differentiated once")
    found: list[str | None] = [None] * 4
    for side, other in ((0, 1), (1, 0)):
        if a.wanted[side]:
            own, rows = a.inputs[2 + side], a.types[side][0][0]
            offsets, order = a.add("csr_offsets", own, extent=rows), a.add("csr_order", own, extent=rows)
            weights, far = a.add("gather", seed, order), a.add("gather", a.inputs[2 + other], order)
            found[side] = a.add("aggregate_weighted", a.inputs[other], weights, offsets, far)
    return found


@differentiated(_edge_dot_gradient)
@operator
def edge_dot(
    name: str, x: Tensor, y: Tensor, sources: Tensor, targets: Tensor, weights: Tensor | None = None,
    most: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Edge-wise dot products (SDDMM): for every edge [E] that of its source's row of ``x`` [U, F] and its target's of
    ``y`` [V, F].

    With ``weights`` [E] and ``most`` [V, F]: over the features at which weight times ``x`` is that maximum.
    """
    require_input(x, "x", 2, "[U, F]", dtype=FLOATS)
    require_input(y, "y", dtype=(x.dtype,))
    require_input(y, "y", shape=(y.shape[0], x.shape[1]))
    for argument, t in (("sources", sources), ("targets", targets)):
        require_input(t, argument, dtype=INDEX_DTYPES)
    require_input(targets, "targets", shape=sources.shape)
    require((weights is None) == (most is None), "inputs", "weights or most", "both or none")
    if weights is not None and most is not None:
        require_input(weights, "weights", shape=sources.shape)
        require_input(most, "most", shape=y.shape)

    def element(e: Expr) -> Expr:
        f = reduce_axis(x.shape[1], "f")
        u, v = at(sources, e), at(targets, e)
        product = x[u, f.var] * y[v, f.var]
        if weights is not None and most is not None:
            product = select(equal(weights[e] * x[u, f.var], most[v, f.var]), product, wrap(0, x.dtype))
        return sum_over(product, f)

    return compute(sources.shape, element, name)


OPERATORS = internal(aggregate_ties, aggregate_weighted, edge_dot)

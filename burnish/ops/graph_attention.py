"""Attention over the neighbours of graph vertices (GAT): softmax over the edges to a vertex, with nothing kept by edge.

An edge's weight is ``exp(leaky_relu(left[u] + right[v]))``, over the sum of all that lead to ``v``. Where ``m`` is the
greatest of all ``left``, ``leaky_relu(m + right[v])`` bounds the exponents of ``v``: weights and their sum are plain
sums over edges. And as ``leaky_relu(t)`` is the greater of ``t`` and ``slope * t``, a weight is the greater of two
products, one factor of the source and one of the target each: no exponential is computed at an edge.
"""

from __future__ import annotations

from typing import Any

from burnish.loops.expr import FLOATS, INDEX, Expr, cast, math, maximum, select
from burnish.loops.tensor import Tensor, compute, reduce_axis, rows_axis
from burnish.loops.tensor import max as max_over
from burnish.loops.tensor import sum as sum_over
from burnish.ops.csr import transposed
from burnish.ops.operator import (
    Application,
    Refused,
    composed,
    differentiated,
    internal,
    operator,
    require,
    require_input,
)
from burnish.ops.sparse import check_blocks, check_structure, normalized_over_edges, over_edges
from burnish.ops.terms import GraphTerm

Factors = tuple[
    GraphTerm, GraphTerm
]  # of a weight, at one end of its edge: where the score is positive, and where it is not


def _factors(a: Application) -> tuple[Factors, Factors]:
    """Softmax factors of the sources [U, H] and of the targets [V, H], scaled so that the greater of their products is
    a weight up to 1.
    """
    slope = a.attrs["slope"]
    left, right = GraphTerm.of(a, 1), GraphTerm.of(a, 2)
    top = left.apply("reduce_max", axes=(0,), keepdims=True)
    below = left - top
    score = top + right
    bound = score.apply("leaky_relu", alpha=slope)
    sources = below.apply("exp"), (below * slope).apply("exp")
    return sources, ((score - bound).apply("exp"), (score * slope - bound).apply("exp"))


def _names(*factors: Factors) -> list[str]:
    return [t.name for pair in factors for t in pair]


def _totals(a: Application, sources: Factors, targets: Factors, *structure: str) -> GraphTerm:
    total = GraphTerm(a, a.add("attention_total", *_names(sources, targets), *structure), sources[0].dtype)
    return (total > 0.0).choose(total, 1.0)  # of a vertex without neighbours, whose sum is 0 as well


def _attention_terms(a: Application) -> list[str] | None:
    """The weights' factors, their sums, and the weighted sums."""
    if a.types[0][0][0] == 0:
        return None
    sources, targets = _factors(a)
    structure = a.inputs[3:5]
    total = _totals(a, sources, targets, *structure)
    (rows, heads), _ = a.types[2]
    value = GraphTerm(a, a.add("attention_sum", a.inputs[0], *_names(sources, targets), *structure), total.dtype)
    return [(value / total.reshape(rows, heads, 1)).name]


def _attention_gradient(a: Application) -> list[str | None]:
    """Attention gradient with weights w over the sum z recomputed, and D[v] = dO[v] . O[v] (as in attention's backward
    pass, Dao et al. 2022, algorithm 4): an edge's score has the gradient w/z (dO[v] . x[u] - D[v]), times the slope
    where it is below 0. Its sums over edges are dot products with sums over edges, of weights that the slope has
    multiplied.
    """
    seed = GraphTerm(a, a.seeds[0] or "", a.types[0][1])
    (rows, heads), _ = a.types[2]
    x, out = GraphTerm.of(a, 0), GraphTerm(a, a.outputs[0], a.types[0][1])
    structure, back = a.inputs[3:5], transposed(a, 3)
    sources, ends = _factors(a)
    total = _totals(a, sources, ends, *structure)
    targets = ends[0] / total, ends[1] / total

    def over_heads(t: GraphTerm) -> GraphTerm:
        return t.apply("reduce_sum", axes=(2,), keepdims=False)

    def summed(of: GraphTerm, ends: list[str], edges: tuple[str, ...] | list[str], **attrs: Any) -> GraphTerm:
        return GraphTerm(a, a.add("attention_sum", of.name, *ends, *edges, **attrs), of.dtype)

    ahead, behind, sloped = _names(sources, targets), _names(targets, sources), {"slope": a.attrs["slope"]}
    found: list[str | None] = [None] * len(a.inputs)
    share = over_heads(seed * out)
    if a.wanted[2]:
        weights = GraphTerm(a, a.add("attention_total", *ahead, *structure, **sloped), x.dtype)
        found[2] = (over_heads(seed * summed(x, ahead, structure, **sloped)) - share * weights).name
    if not a.wanted[1]:
        found[0] = summed(seed, behind, back).name
        return found
    count, _, size = a.types[0][0]
    two = summed(seed, behind, back, **sloped, both=True)  # reads the rows of the adjoint once for x and for left
    plain, steep = (two.part((count, 2, heads, size), 1, k).reshape(count, heads, size) for k in (0, 1))
    lost = summed(share.reshape(rows, heads, 1), behind, back, **sloped).reshape(count, heads)
    found[0], found[1] = plain.name, (over_heads(x * steep) - lost).name
    return found


@composed(_attention_terms)
@differentiated(_attention_gradient)
@operator
def attention(
    name: str,
    x: Tensor,
    left: Tensor,
    right: Tensor,
    offsets: Tensor,
    sources: Tensor,
    offsets_t: Tensor | None = None,
    sources_t: Tensor | None = None,
    *,
    slope: float = 0.2,
) -> Tensor:
    """Graph attention [V, H, D]: neighbours' rows of ``x`` [U, H, D] by the softmax over a vertex's edges of
    leaky_relu(left[u] + right[v]) (Velickovic et al. 2018, equations 3 to 6); 0 of a vertex without neighbours.

    ``left`` [U, H] scores sources, ``right`` [V, H] targets. Where a neighbourhood's ``left`` all lie more than 80
    below the greatest of all, its weights are lost to underflow.
    """
    check_structure(offsets, sources)
    require_input(x, "x", 3, "[U, H, D]", dtype=FLOATS)
    require_input(left, "left", shape=x.shape[:2])
    require_input(right, "right", shape=(offsets.shape[0] - 1, x.shape[1]))
    for argument, t in (("left", left), ("right", right)):
        require_input(t, argument, dtype=(x.dtype,))
    require(0 <= slope <= 1, "attribute 'slope'", slope, "0 to 1")
    count, heads, _ = x.shape

    def greatest(h: Expr) -> Expr:
        u = reduce_axis(count, "u")
        return max_over(left[u.var, h], u)

    top = compute((heads,), greatest, f"{name}.top")

    def leaky(t: Expr) -> Expr:
        return maximum(t, t * slope)

    def weight(v: Expr, e: Expr, u: Expr, h: Expr) -> Expr:
        return math("exp", leaky(left[u, h] + right[v, h]) - leaky(top[h] + right[v, h]))

    return normalized_over_edges(name, x, offsets, sources, weight)


def _check_factors(
    far: Tensor, far_slope: Tensor, near: Tensor, near_slope: Tensor, offsets: Tensor, slope: float
) -> None:
    require_input(far, "far", 2, "[U, H]", dtype=FLOATS)
    require_input(far_slope, "far_slope", shape=far.shape)
    require_input(near, "near", shape=(offsets.shape[0] - 1, far.shape[1]))
    require_input(near_slope, "near_slope", shape=near.shape)
    require(0 <= slope <= 1, "attribute 'slope'", slope, "0 to 1")


def _weight(up: Expr, down: Expr, slope: float, kind: Expr | None = None) -> Expr:
    """The greater of a weight's two products, that of a score below 0 times ``slope``; not where ``kind`` is 0."""
    plain = maximum(up, down)
    if slope == 1:
        return plain
    steep = select(up >= down, up, down * slope)
    return steep if kind is None else select(kind >= 1, steep, plain)


def _shape(offsets: Tensor, x: Tensor, both: bool) -> tuple[int, ...]:
    return (offsets.shape[0] - 1, *((2,) if both else ()), *x.shape[1:])


_INNER = Refused("it is a part of attention, of which the gradient is")


@differentiated(_INNER)
@operator
def attention_sum(
    name: str,
    x: Tensor,
    far: Tensor,
    far_slope: Tensor,
    near: Tensor,
    near_slope: Tensor,
    offsets: Tensor,
    sources: Tensor,
    *,
    slope: float = 1.0,
    both: bool = False,
) -> Tensor:
    """Sums [V, H, D] of the neighbours' rows of ``x`` [U, H, D] by the weight max(far[u] near[v], far_slope[u]
    near_slope[v]), factors [U, H] and [V, H]; where the second is the greater, times ``slope``.

    ``both``: [V, 2, H, D], the sums without the slope and with it.
    """
    check_structure(offsets, sources)
    require_input(x, "x", 3, "[U, H, D]")
    require_input(far, "far", shape=x.shape[:2])
    _check_factors(far, far_slope, near, near_slope, offsets, slope)

    def element(v: Expr, *rest: Expr) -> Expr:
        *kind, h, d = rest

        def term(e: Expr, u: Expr) -> Expr:
            return _weight(far[u, h] * near[v, h], far_slope[u, h] * near_slope[v, h], slope, *kind) * x[u, h, d]

        return over_edges(offsets, sources, v, term)

    return compute(_shape(offsets, x, both), element, name)


@differentiated(_INNER)
@operator
def attention_sum_blocks(
    name: str,
    x: Tensor,
    far: Tensor,
    far_slope: Tensor,
    near: Tensor,
    near_slope: Tensor,
    offsets: Tensor,
    pointers: Tensor,
    places: Tensor,
    *,
    rows: int,
    slope: float = 1.0,
    both: bool = False,
) -> Tensor:
    """:data:`attention_sum` with the edges in order of blocks of ``rows`` sources, as in ``aggregate_blocks``."""
    require_input(x, "x", 3, "[U, H, D]")
    require_input(far, "far", shape=x.shape[:2])
    _check_factors(far, far_slope, near, near_slope, offsets, slope)
    check_blocks(x.shape[0], offsets, pointers, places, rows)

    def element(v: Expr, *rest: Expr) -> Expr:
        *kind, h, d = rest
        b = reduce_axis(pointers.shape[0], "b")
        e = rows_axis(pointers, (b.var, v), places.shape[0])
        u = b.var * rows + cast(INDEX, places[e.var])
        weight = _weight(far[u, h] * near[v, h], far_slope[u, h] * near_slope[v, h], slope, *kind)
        return sum_over(weight * x[u, h, d], (b, e))

    return compute(_shape(offsets, x, both), element, name)


@differentiated(_INNER)
@operator
def attention_total(
    name: str,
    far: Tensor,
    far_slope: Tensor,
    near: Tensor,
    near_slope: Tensor,
    offsets: Tensor,
    sources: Tensor,
    *,
    slope: float = 1.0,
) -> Tensor:
    """Sums [V, H] of the weights of :data:`attention_sum`."""
    check_structure(offsets, sources)
    _check_factors(far, far_slope, near, near_slope, offsets, slope)

    def element(v: Expr, h: Expr) -> Expr:
        def term(e: Expr, u: Expr) -> Expr:
            return _weight(far[u, h] * near[v, h], far_slope[u, h] * near_slope[v, h], slope)

        return over_edges(offsets, sources, v, term)

    return compute(near.shape, element, name)


OPERATORS = internal(attention, attention_sum, attention_sum_blocks, attention_total)

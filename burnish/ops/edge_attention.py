"""Attention over the neighbours of graph vertices whose scores read a number of each edge (GAT with edge features).

An edge's weight is ``exp(leaky_relu(left[u] + right[v] + weights[e] * edge))`` over the sum of all that lead to ``v``.
Each vertex' greatest score is found first, by a pass that reads no rows; sums then are of numbers up to 1.
"""

from __future__ import annotations

from burnish.loops.expr import FLOATS, INDEX, Expr, cast, math, maximum, select, wrap
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import max as max_over
from burnish.loops.tensor import sum as sum_over
from burnish.ops.csr import transposed, transposed_order
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
from burnish.ops.sparse import INDEX_DTYPES, check_structure, check_transpose, normalized_over_edges, over_edges, some
from burnish.ops.terms import GraphTerm

_AT = 5  # the offsets among the inputs of attention_weighted


def _norm(a: Application) -> GraphTerm:
    """The logarithm of the sum over each vertex' edges, [V, H]: what weights are exponents below."""
    slope, names = a.attrs["slope"], a.inputs
    read = names[1:5] + names[_AT : _AT + 2]
    top = GraphTerm(a, a.add("attention_weighted_max", *read, slope=slope), a.types[0][1])
    total = GraphTerm(a, a.add("attention_weighted_total", *names[1:3], top.name, *read[2:], slope=slope), top.dtype)
    return top + (total > 0.0).choose(total, 1.0).apply("log")  # of a vertex without neighbours the sum is 0


def _weighted_terms(a: Application) -> list[str]:
    """The weighted sums, of weights that add up to 1."""
    x, left, right, *rest = a.inputs[: _AT + 2]
    return [a.add("attention_weighted_sum", x, left, right, _norm(a).name, *rest, slope=a.attrs["slope"])]


def _weighted_gradient(a: Application) -> list[str | None]:
    """As that of ``attention``: an edge's score has the gradient p (dO[v] . x[u] - D[v]), D[v] = dO[v] . O[v], times
    the slope where it is below 0; its sum over edges, times their weights, is that of ``edge``.
    """
    seed = GraphTerm(a, a.seeds[0] or "", a.types[0][1])
    (count, heads, _), (rows, _) = a.types[0][0], a.types[2][0]
    x, out, slope = GraphTerm.of(a, 0), GraphTerm(a, a.outputs[0], a.types[0][1]), a.attrs["slope"]
    _, left, right, edge, weights, *structure = a.inputs[: _AT + 2]
    norm = _norm(a)
    gradients: list[str | None] = [None] * len(a.inputs)

    def over_heads(t: GraphTerm) -> GraphTerm:
        return t.apply("reduce_sum", axes=(2,), keepdims=False)

    share = over_heads(seed * out)
    if a.wanted[0] or a.wanted[1]:
        given = len(a.inputs) > _AT + 4 and a.types[_AT + 4][1] not in INDEX_DTYPES and not a.wanted[4]
        back_weights = a.inputs[_AT + 4] if given else a.add("gather", weights, transposed_order(a, _AT))
        back = (right, left, norm.name, edge, back_weights, *transposed(a, _AT))

        def back_sum(of: GraphTerm, sloped: bool) -> GraphTerm:
            attrs = {"slope": slope, "sloped": sloped, "back": True}
            return GraphTerm(a, a.add("attention_weighted_sum", of.name, *back, **attrs), of.dtype)

        gradients[0] = back_sum(seed, False).name
        if a.wanted[1]:
            lost = back_sum(share.reshape(rows, heads, 1), True).reshape(count, heads)
            gradients[1] = (over_heads(x * back_sum(seed, True)) - lost).name
    ahead = (left, right, norm.name, edge, weights, *structure)

    def scored(times: bool) -> GraphTerm:
        attrs = {"slope": slope, "sloped": True, "times": times}
        mixed = GraphTerm(a, a.add("attention_weighted_sum", x.name, *ahead, **attrs), x.dtype)
        total = GraphTerm(a, a.add("attention_weighted_total", *ahead, **attrs), x.dtype)
        return over_heads(seed * mixed) - share * total

    if a.wanted[2]:
        gradients[2] = scored(False).name
    if a.wanted[3]:
        gradients[3] = scored(True).apply("reduce_sum", axes=(0,), keepdims=False).name
    if a.wanted[4]:
        targets = a.add("csr_targets", structure[0], extent=a.types[4][0][0])
        gradients[4] = a.add("attention_weighted_edges", x.name, seed.name, share.name, left, right, norm.name, edge,
                             weights, structure[1], targets, slope=slope)  # fmt: skip
    return gradients


@composed(_weighted_terms)
@differentiated(_weighted_gradient)
@operator
def attention_weighted(
    name: str,
    x: Tensor,
    left: Tensor,
    right: Tensor,
    edge: Tensor,
    weights: Tensor,
    offsets: Tensor,
    sources: Tensor,
    offsets_t: Tensor | None = None,
    sources_t: Tensor | None = None,
    edges_t: Tensor | None = None,
    *,
    slope: float = 0.2,
) -> Tensor:
    """Graph attention [V, H, D] as :data:`attention`, by scores leaky_relu(left[u] + right[v] + weights[e] * edge).

    ``weights`` [E]: a number of each edge; ``edge`` [H] what it counts in each head: PyG's ``GATConv(edge_dim=1)``.
    ``edges_t`` [E] as in :data:`aggregate_weighted`: the transpose's positions, or its weights, where these need no
    gradient. 0 of a vertex without neighbours.
    """
    _check(left, right, edge, weights, offsets, sources, slope)
    _check_rows(x, left)
    check_transpose(x.shape[0], sources, offsets_t, sources_t)
    if edges_t is not None:
        require_input(edges_t, "edges_t", shape=sources.shape, dtype=(*INDEX_DTYPES, x.dtype))

    top = _top(left, right, edge, weights, offsets, sources, slope, f"{name}.top")

    def part(v: Expr, e: Expr, u: Expr, h: Expr) -> Expr:
        return math("exp", _leaky(_raw(left, right, edge, weights, u, v, e, h), slope) - top[v, h])

    return normalized_over_edges(name, x, offsets, sources, part)


def _check(
    far: Tensor, near: Tensor, edge: Tensor, weights: Tensor, offsets: Tensor, sources: Tensor, slope: float
) -> None:
    check_structure(offsets, sources)
    require_input(far, "left", 2, "[U, H]", dtype=FLOATS)
    require_input(near, "right", shape=(offsets.shape[0] - 1, far.shape[1]))
    require_input(edge, "edge", shape=far.shape[1:])
    require_input(weights, "weights", shape=sources.shape)
    for argument, t in (("right", near), ("edge", edge), ("weights", weights)):
        require_input(t, argument, dtype=(far.dtype,))
    require(0 <= slope <= 1, "attribute 'slope'", slope, "0 to 1")


def _check_rows(x: Tensor, far: Tensor) -> None:
    require_input(x, "x", 3, "[U, H, D]")
    require_input(far, "left", shape=x.shape[:2])
    require_input(x, "x", dtype=(far.dtype,))


def _raw(far: Tensor, near: Tensor, edge: Tensor, weights: Tensor, u: Expr, v: Expr, e: Expr, h: Expr) -> Expr:
    return far[u, h] + near[v, h] + weights[e] * edge[h]


def _leaky(t: Expr, slope: float) -> Expr:
    return maximum(t, t * slope)


def _top(
    far: Tensor, near: Tensor, edge: Tensor, weights: Tensor, offsets: Tensor, sources: Tensor, slope: float, name: str
) -> Tensor:
    """The greatest score of each vertex [V, H]; of one without neighbours, that of no number."""

    def greatest(v: Expr, h: Expr) -> Expr:
        def score(e: Expr, u: Expr) -> Expr:
            return _leaky(_raw(far, near, edge, weights, u, v, e, h), slope)

        return over_edges(offsets, sources, v, score, max_over)

    return compute((offsets.shape[0] - 1, far.shape[1]), greatest, name)


_INNER = Refused("it is a part of attention_weighted, of which the gradient is")


@differentiated(_INNER)
@operator
def attention_weighted_max(
    name: str,
    left: Tensor,
    right: Tensor,
    edge: Tensor,
    weights: Tensor,
    offsets: Tensor,
    sources: Tensor,
    *,
    slope: float = 0.2,
) -> Tensor:
    """The greatest score [V, H] of the edges to each vertex in :data:`attention_weighted`; 0 without neighbours."""
    _check(left, right, edge, weights, offsets, sources, slope)
    top = _top(left, right, edge, weights, offsets, sources, slope, f"{name}.top")
    return compute(top.shape, lambda v, h: select(some(offsets, v), top[v, h], wrap(0, left.dtype)), name)


def _part(
    far: Tensor, near: Tensor, norm: Tensor, edge: Tensor, weights: Tensor, u: Expr, v: Expr, e: Expr, h: Expr,
    slope: float, sloped: bool, times: bool, back: bool,
) -> Expr:  # fmt: skip
    """Attention weight of an edge: exp(score - norm), with the slope and the edge's weight as factors if asked for."""
    raw = _raw(far, near, edge, weights, u, v, e, h)
    found = math("exp", _leaky(raw, slope) - (norm[u, h] if back else norm[v, h]))
    if sloped:
        found = select(raw >= 0, found, found * slope)
    return found * weights[e] if times else found


@differentiated(_INNER)
@operator
def attention_weighted_sum(
    name: str,
    x: Tensor,
    far: Tensor,
    near: Tensor,
    norm: Tensor,
    edge: Tensor,
    weights: Tensor,
    offsets: Tensor,
    sources: Tensor,
    *,
    slope: float = 0.2,
    sloped: bool = False,
    times: bool = False,
    back: bool = False,
) -> Tensor:
    """Sums [V, H, D] of the neighbours' rows of ``x`` [U, H, D] by exp(leaky_relu(far[u] + near[v] + weights[e] * edge)
    - norm[v]), or ``back``, norm[u]; ``sloped``: times the slope of the score, ``times``: times the edge's weight.
    """
    _check(far, near, edge, weights, offsets, sources, slope)
    _check_rows(x, far)
    require_input(norm, "norm", shape=far.shape if back else near.shape)

    def element(v: Expr, h: Expr, d: Expr) -> Expr:
        def term(e: Expr, u: Expr) -> Expr:
            return _part(far, near, norm, edge, weights, u, v, e, h, slope, sloped, times, back) * x[u, h, d]

        return over_edges(offsets, sources, v, term)

    return compute((offsets.shape[0] - 1, *x.shape[1:]), element, name)


@differentiated(_INNER)
@operator
def attention_weighted_total(
    name: str,
    far: Tensor,
    near: Tensor,
    norm: Tensor,
    edge: Tensor,
    weights: Tensor,
    offsets: Tensor,
    sources: Tensor,
    *,
    slope: float = 0.2,
    sloped: bool = False,
    times: bool = False,
) -> Tensor:
    """Sums [V, H] of the weights of :data:`attention_weighted_sum`."""
    _check(far, near, edge, weights, offsets, sources, slope)
    require_input(norm, "norm", shape=near.shape)

    def element(v: Expr, h: Expr) -> Expr:
        def term(e: Expr, u: Expr) -> Expr:
            return _part(far, near, norm, edge, weights, u, v, e, h, slope, sloped, times, False)

        return over_edges(offsets, sources, v, term)

    return compute(near.shape, element, name)


@differentiated(_INNER)
@operator
def attention_weighted_edges(
    name: str,
    x: Tensor,
    seed: Tensor,
    share: Tensor,
    far: Tensor,
    near: Tensor,
    norm: Tensor,
    edge: Tensor,
    weights: Tensor,
    sources: Tensor,
    targets: Tensor,
    *,
    slope: float = 0.2,
) -> Tensor:
    """The gradient [E] of :data:`attention_weighted` by the number of each edge, from ``sources`` and ``targets`` [E].

    ``seed`` [V, H, D] is that of its result, ``share`` [V, H] the dot product of both.
    """
    _check_rows(x, far)
    require_input(seed, "seed", shape=(near.shape[0], *x.shape[1:]))
    require_input(share, "share", shape=near.shape)
    require_input(norm, "norm", shape=near.shape)
    require_input(edge, "edge", shape=far.shape[1:])
    for argument, t in (("sources", sources), ("targets", targets)):
        require_input(t, argument, shape=weights.shape, dtype=INDEX_DTYPES)
    heads, size = x.shape[1:]

    def dot(e: Expr, h: Expr) -> Expr:
        d = reduce_axis(size, "d")
        return sum_over(seed[cast(INDEX, targets[e]), h, d.var] * x[cast(INDEX, sources[e]), h, d.var], d)

    dots = compute((weights.shape[0], heads), dot, f"{name}.dot")

    def element(e: Expr) -> Expr:
        h = reduce_axis(heads, "h")
        u, v = cast(INDEX, sources[e]), cast(INDEX, targets[e])
        part = _part(far, near, norm, edge, weights, u, v, e, h.var, slope, True, False, False)
        return sum_over(edge[h.var] * part * (dots[e, h.var] - share[v, h.var]), h)

    return compute(weights.shape, element, name)


OPERATORS = internal(
    attention_weighted,
    attention_weighted_max,
    attention_weighted_sum,
    attention_weighted_total,
    attention_weighted_edges,
)

"""Bounds of magnitudes: never below what a call finds, exact of constants, none of what may be anything."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

import numpy as np
import pytest

from burnish.graph import GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, Node
from burnish.graph.magnitudes import FARTHEST, Magnitudes, spectral_norm
from burnish.graph.rewrite import Rewrite, rewrite

RNG = np.random.default_rng(0)
ROWS, WIDE, HEADS = 5, 12, 3


def bounds(graph: Graph) -> Magnitudes:
    """The bounds of a graph as a pass sees it behind its last node."""
    seen: list[Rewrite] = []

    def rule(new: Rewrite, node: Node) -> None:
        seen.append(new)

    rewrite(graph, rule)
    return Magnitudes(seen[0])


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, "f4")


def written_out(b: GraphBuilder, x: str) -> str:
    """A normalization of operators."""
    centred = b.add("sub", x, b.add("reduce_mean", x, axes=(2,), keepdims=True))
    variance = b.add("reduce_mean", b.add("mul", centred, centred), axes=(-1,), keepdims=True)
    return b.add("div", centred, b.add("sqrt", b.add("add", variance, b.constant(1e-5, dtype="float32"))))


def layer(b: GraphBuilder, x: str) -> str:
    return b.add("layer_norm", x, b.constant(normal(WIDE)), b.constant(normal(WIDE)))


NORMALIZED: dict[str, Callable[[GraphBuilder, str], str]] = {
    "layer_norm": layer,
    "rms_norm": lambda b, x: b.add("rms_norm", x, b.constant(normal(WIDE))),
    "written out": written_out,
    "scaled": lambda b, x: b.add("mul", written_out(b, x), b.constant(normal(WIDE))),
}


@pytest.mark.parametrize("name", NORMALIZED)
def test_scores_behind_a_normalization_are_bounded(name: str) -> None:
    b = GraphBuilder()
    x = NORMALIZED[name](b, b.input("x", (2, ROWS, WIDE)))

    def heads(order: tuple[int, ...]) -> str:
        rows = b.add("add", b.add("matmul", x, b.constant(normal(WIDE, WIDE))), b.constant(normal(WIDE)))
        apart = b.add("reshape", rows, shape=(2, ROWS, HEADS, WIDE // HEADS))
        return b.add("transpose", apart, perm=order)

    q, k = heads((0, 2, 1, 3)), heads((0, 2, 3, 1))
    scores = b.add("mul", b.add("matmul", q, k), b.constant(0.5, dtype="float32"))
    graph = b.build(x, q, k, scores)
    known = bounds(graph)
    most = [known.row(graph.outputs[0]), known.row(q), known.row(k, -2), known.element(scores)]
    assert all(bound < 1e4 for bound in most)
    for size in (1e-2, 1.0, 1e3):
        found = list(evaluate(graph, {"x": size * normal(2, ROWS, WIDE) + size}).values())
        lengths = [
            np.linalg.norm(a.astype("f8"), axis=axis).max() for a, axis in zip(found, (-1, -1, -2), strict=False)
        ]
        for bound, value in zip(most, [*lengths, np.abs(found[3]).max()], strict=True):
            assert value <= 1.0001 * bound


def test_what_may_be_anything_has_no_bound() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, ROWS, WIDE))
    scores = b.add("matmul", x, x, transpose_b=True)
    square = b.add("reduce_mean", b.add("mul", x, x), axes=(1,), keepdims=True)
    other = b.add("div", x, b.add("sqrt", b.add("add", square, b.constant(1e-5, dtype="float32"))))
    known = bounds(b.build(scores, other))
    assert known.element(scores) == known.row(x) == known.row(other) == inf
    assert known.row(other, -2) == sqrt(ROWS)  # along which it is normalized


def test_bounds_of_constants_are_what_they_are() -> None:
    b = GraphBuilder()
    matrix = normal(WIDE, 6)
    table = b.constant(matrix, "table")
    low, half = b.add("tanh", b.input("x", (WIDE, 6))), b.constant(0.5, dtype="float32")
    known = bounds(b.build(b.add("add", b.add("mul", low, half), table)))
    assert known.element("table") == np.abs(matrix).max()
    np.testing.assert_allclose(known.row("table"), np.linalg.norm(matrix, axis=1).max(), rtol=1e-6)
    np.testing.assert_allclose(known.row("table", -2), np.linalg.norm(matrix, axis=0).max(), rtol=1e-6)
    np.testing.assert_allclose(
        known.row("table", -1, 2), np.linalg.norm(matrix.reshape(-1, 2), axis=1).max(), rtol=1e-6
    )


@pytest.mark.parametrize("form", ["layer_norm", "written out"])
def test_scales_are_bounded_with_the_weights_that_multiply_them(form: str) -> None:
    """Of trained networks few elements have large scales, and small weights."""
    scale, bias, matrix = np.ones(WIDE, "f4"), normal(WIDE), normal(WIDE, 8)
    scale[3], matrix[3] = 100.0, matrix[3] / 100
    b = GraphBuilder()
    x = b.input("x", (2, ROWS, WIDE))
    if form == "layer_norm":
        x = b.add("layer_norm", x, b.constant(scale), b.constant(bias))
    else:
        x = b.add("add", b.add("mul", written_out(b, x), b.constant(scale)), b.constant(bias))
    q = b.add("matmul", x, b.constant(matrix))
    whole = sqrt(WIDE) * np.linalg.norm(scale[:, None] * matrix, 2) + np.linalg.norm(bias @ matrix)
    np.testing.assert_allclose(bounds(b.build(q)).row(q), whole, rtol=1e-5)


@pytest.mark.parametrize("shape", [(40, 12), (3, 12)])
@pytest.mark.parametrize("width", [4, 12])
def test_spectral_norms_of_columns(shape: tuple[int, int], width: int) -> None:
    matrix = normal(*shape)
    parts = [matrix[:, i : i + width] for i in range(0, shape[1], width)]
    np.testing.assert_allclose(spectral_norm(matrix, width), max(np.linalg.norm(p, 2) for p in parts), rtol=1e-5)
    assert spectral_norm(np.full((2, 2), np.nan, "f4"), 2) == inf


def test_what_is_too_far_away_has_no_bound() -> None:
    b = GraphBuilder()
    near = b.add("tanh", b.input("x", (3,)))
    names = [near]
    for _ in range(FARTHEST + 5):
        names.append(b.add("add", names[-1], near))
    graph = b.build(names[-1])
    assert bounds(graph).element(names[-1]) == inf and bounds(graph).element(names[9]) == 10.0


def test_a_normalization_whose_divisor_may_be_0_has_no_bound() -> None:
    """The squares of small elements are 0, which are then infinite."""
    b = GraphBuilder()
    x = b.input("x", (2, WIDE))
    square = b.add("reduce_mean", b.add("mul", x, x), axes=(1,), keepdims=True)
    found = [
        b.add("rms_norm", x, epsilon=0.0),
        b.add("layer_norm", x, epsilon=1e-60),
        b.add("div", x, b.add("sqrt", square)),
        b.add("div", x, b.add("sqrt", b.add("add", square, b.constant(0.0, dtype="float32")))),
    ]
    graph = b.build(*found, *(b.add("matmul", y, b.constant(np.eye(WIDE, dtype="f4"))) for y in found))
    known = bounds(graph)
    assert [known.row(name) for name in graph.outputs] == [inf] * 8
    with np.errstate(all="ignore"):
        values = evaluate(graph, {"x": np.full((2, WIDE), 1e-30, "f4")})
    assert not np.isfinite(values[graph.outputs[0]]).any()


def test_what_overflows_its_dtype_has_no_bound() -> None:
    """Of halves a bound of 1e5 is infinite on the way, whatever it is scaled by behind that."""
    b = GraphBuilder()
    unit = b.add("tanh", b.input("x", (2, WIDE)))
    large = b.add("mul", unit, b.constant(1e5, dtype="float32"))
    halves = b.add("cast", large, to="float16")
    scaled = b.add("mul", halves, b.constant(np.float16(0.01)))
    known = bounds(b.build(large, scaled))
    assert known.element(large) == 1e5 and known.row(large) < 1e6
    assert known.element(scaled) == known.row(scaled) == inf


def test_bounds_of_tensors_without_the_dimension() -> None:
    """A learnt number as a tensor of one element, and of none."""
    b = GraphBuilder()
    one = b.add("tanh", b.input("x", (1,)))
    scale = b.add("reshape", one, shape=())
    product = b.add("mul", b.add("reshape", one, shape=(1, 1)), scale)
    known = bounds(b.build(product, b.add("transpose", scale, perm=())))
    assert known.row(product) == known.element(product) == 1.0 and known.row(scale) == inf


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_spectral_norms_of_small_and_large_matrices(size: float) -> None:
    """Whose squares are 0 and infinite in float32."""
    matrix = np.eye(3, 4, dtype="f4") * np.float32(size)
    np.testing.assert_allclose(spectral_norm(matrix, 4), size, rtol=1e-5)
    assert spectral_norm(np.zeros((3, 4), "f4"), 2) == 0.0 and spectral_norm(np.full((2, 2), inf), 2) == inf

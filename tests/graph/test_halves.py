"""Half-precision images in float32: what is converted, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

import burnish as bn
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.halves import widen_images
from burnish.graph.passes import optimize
from burnish.loops.numeric import numpy_dtype
from burnish.machines.target import target

MACHINE = target("x86-64-v3")


def images(dtype: str) -> Graph:
    """Two convolutions with what stands between them, and a product by a constant matrix behind them."""
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return random.uniform(-0.5, 0.5, shape).astype(np.float32)

    g = GraphBuilder()
    x = g.input("x", (1, 8, 10, 10), dtype)

    kind = numpy_dtype(dtype)
    first, bias, second, matrix = (
        g.constant(drawn(*shape).astype(kind)) for shape in ((16, 8, 3, 3), (16,), (4, 32, 1, 1), (4, 5))
    )
    y = g.add("relu", g.add("conv2d", x, first, bias, pads=(1, 1, 1, 1)))
    y = g.add("conv2d", g.add("concat", y, g.add("mul", y, y), axis=1), second)
    mean = g.add("reduce_mean", g.add("cast", g.add("round", y), to="float32"), axes=(2, 3))
    pooled = g.add("reduce_mean", y, axes=(2, 3), keepdims=False)
    return g.build(g.add("matmul", pooled, matrix), mean)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_images_are_float32_from_one_convolution_to_the_next(dtype: str) -> None:
    made = optimize(images(dtype), target=MACHINE)
    types = {n.op: made.types[n.outputs[0]].dtype for n in made.nodes if n.op in ("conv2d", "mul", "concat", "relu")}
    assert set(types.values()) == {"float32"}
    assert [made.types[n.inputs[0]].dtype for n in made.nodes if n.op in ("matmul", "round")] == [dtype] * 2
    assert {made.constants[n.inputs[1]].dtype for n in made.nodes if n.op == "conv2d"} == {np.dtype("float32")}


def test_exact_compilations_round_to_halves_in_between() -> None:
    made = optimize(images("float16"), exact=True, target=MACHINE)
    assert {made.types[n.outputs[0]].dtype for n in made.nodes if n.op in ("conv2d", "concat")} == {"float16"}


def test_products_alone_keep_their_halves() -> None:
    g = GraphBuilder()
    graph = g.build(g.add("matmul", g.input("x", (3, 8), "float16"), g.constant(np.ones((8, 4), np.float16))))
    assert widen_images(graph, MACHINE) is graph


def test_values_are_those_of_halves_and_less_rounded() -> None:
    graph = images("float16")
    x = np.random.default_rng(1).uniform(-1, 1, (1, 8, 10, 10)).astype(np.float16)
    precise = [*evaluate(graph, {"x": x}, "float64").values()]
    found = bn.compile(graph, rewrite=False)(x)
    np.testing.assert_allclose(np.asarray(found[0], np.float64), precise[0], atol=4e-3)
    np.testing.assert_allclose(found[1], precise[1], atol=0.05)

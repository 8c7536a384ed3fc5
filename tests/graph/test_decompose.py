"""Operators as other operators: the same values, in fewer passes."""

from __future__ import annotations

import numpy as np
import pytest

import burnish as bn
from burnish.graph.decompose import decompose
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder


def normalized(shape: tuple[int, ...]) -> Graph:
    b = GraphBuilder()
    names = b.input("x", shape), b.input("scale", shape[1:2]), b.input("bias", shape[1:2])
    y, mean, variance = b.add_many("batch_norm_training", *names, epsilon=1e-3)
    return b.build(b.add("relu", y), mean, variance)


@pytest.mark.parametrize("shape", [(4, 20, 6, 5), (1, 3, 7), (5, 16, 1, 1), (2, 33, 3, 2, 2)])
def test_parts_of_batch_normalization(shape: tuple[int, ...]) -> None:
    graph, rng = normalized(shape), np.random.default_rng(0)
    parts = decompose(graph)
    assert "batch_norm_training" not in {node.op for node in parts.nodes}
    feeds = {n: rng.normal(3, 2, graph.types[n].shape).astype("f4") for n in graph.inputs}
    wanted, found = evaluate(graph, feeds, "float64"), evaluate(parts, feeds, "float64")
    for before, after in zip(graph.outputs, parts.outputs, strict=True):
        np.testing.assert_allclose(found[after], wanted[before], rtol=1e-9, atol=1e-9)
    for threads in (1, 3):
        for got, name in zip(bn.compile(graph, threads=threads)(*feeds.values()), graph.outputs, strict=True):
            np.testing.assert_allclose(got, wanted[name], rtol=1e-4, atol=1e-4)


def test_rows_without_planes_are_left_as_they_are() -> None:
    graph = normalized((8, 5))
    assert decompose(graph).nodes == graph.nodes


def test_a_large_mean_costs_no_accuracy() -> None:
    """Deviations are taken from each plane's own mean."""
    graph, rng = normalized((4, 16, 16, 16)), np.random.default_rng(0)
    x = (rng.normal(size=(4, 16, 16, 16)) + 1000).astype("f4")
    ones = np.ones(16, "f4")
    variance = bn.compile(graph, threads=1)(x, ones, ones)[2]
    np.testing.assert_allclose(variance, x.astype("f8").var((0, 2, 3)), rtol=1e-3)

"""Micro-batches: graphs of a part of the batch compute that part, and what mixes samples is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.errors import PlanError
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.parallel.programs.micro import micro_graph
from tests.parallel.networks import NETWORKS


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_compute_the_parts_of_the_whole(name: str, count: int) -> None:
    graph = NETWORKS[name]()
    x = np.random.default_rng(0).normal(size=graph.types["x"].shape).astype(np.float32)
    part = micro_graph(graph, count)
    assert part.outputs == graph.outputs
    assert part.types["x"].shape[0] * count == len(x)
    found = [evaluate(part, {"x": own})[graph.outputs[0]] for own in np.split(x, count)]
    np.testing.assert_allclose(np.concatenate(found), evaluate(graph, {"x": x})[graph.outputs[0]], rtol=1e-5, atol=1e-6)


def single(op: str, *others: np.ndarray, **attrs: object) -> Graph:
    """One node over [4, 6], with constants."""
    b = GraphBuilder()
    x = b.input("x", (4, 6))
    return b.build(b.add(op, x, *(b.constant(value) for value in others), name="y", **attrs))  # type: ignore[arg-type]


def test_attributes_of_the_whole_batch_become_those_of_a_part() -> None:
    assert micro_graph(single("reshape", shape=(4, 2, 3)), 2).nodes[0].attrs["shape"] == (2, 2, 3)
    assert micro_graph(single("reshape", shape=(8, 3)), 2).types["y"].shape == (4, 3)
    assert micro_graph(single("slice", starts=(0, 2), extents=(4, 2)), 4).nodes[0].attrs["extents"] == (1, 2)


def test_rows_of_a_constant_are_cut_where_they_are_equal() -> None:
    equal = micro_graph(single("add", np.full((4, 6), 0.5, np.float32)), 2)
    assert equal.types[equal.nodes[0].inputs[1]].shape == (2, 6)
    with pytest.raises(PlanError, match=r"node 'y' \(add\) mixes the samples"):
        micro_graph(single("add", np.arange(24, dtype=np.float32).reshape(4, 6)), 2)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (single("reduce_mean", axes=(0,), keepdims=True), r"node 'y' \(reduce_mean\) mixes the samples of a batch"),
        (single("softmax", axis=0), r"node 'y' \(softmax\) mixes the samples of a batch"),
        (single("matmul", np.eye(6, dtype=np.float32)), None),
        (single("slice", starts=(1, 0), extents=(2, 6)), r"node 'y' \(slice\) mixes the samples"),
    ],
)
def test_what_mixes_samples_is_refused_by_name(graph: Graph, words: str | None) -> None:
    if words is None:
        assert micro_graph(graph, 2).types["y"].shape == (2, 6)
        return
    with pytest.raises(PlanError, match=words):
        micro_graph(graph, 2)


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(PlanError, match=r"input 'x': 4 samples in 3 micro-batches; allowed: a number that divides"):
        micro_graph(single("relu"), 3)
    with pytest.raises(PlanError, match="0 micro-batches; allowed: 1 or more"):
        micro_graph(single("relu"), 0)

"""Bundles: maps that wait for each other in nothing are one launch, and states are overwritten after all have read."""

from __future__ import annotations

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.pipeline.plan import plan_kernels
from burnish.simulators.gpu.emulator import emulated
from tests.marks import slow

GPU = target("cuda:sm_90a")


def layers(depth: int = 3) -> Graph:
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.input("x", (4, 8))
    for number in range(depth):
        w = b.constant(rng.standard_normal((8, 8), "f4") / 3, f"w{number}")
        x = b.add("tanh", b.add("add", b.add("matmul", x, w), b.constant(np.zeros(8, "f4"), f"b{number}")))
    return b.build(x)


@pytest.mark.parametrize("precision", slow([None, "float16"], "float16"))
def test_updates_of_all_parameters_are_few_launches(precision: str | None) -> None:
    recipe = bn.Train("mse", bn.AdamW(0.01), precision=precision, clip_norm=1.0)
    there, here = (bn.compile(layers(), train=recipe, target=t) for t in (emulated(GPU), "cpu"))
    kinds = [row["template"] for row in there.info["kernels"]]
    assert 3 <= kinds.count("bundle") <= 9
    assert len(there.executable.calls) <= len(there.executable.steps) <= len(here.executable.steps) - 18
    x, label = (np.random.default_rng(n).standard_normal((4, 8), "f4") for n in (1, 2))
    for _ in range(3):
        np.testing.assert_allclose(there(x, label), here(x, label), rtol=1e-5 if precision is None else 1e-3)
    for name in here.state:
        np.testing.assert_allclose(there.state[name], here.state[name], rtol=1e-4, atol=1e-5)


def test_a_state_is_overwritten_where_nothing_reads_it_later() -> None:
    """Both states become sums of what they were: one waits for the other, which goes along with what is left."""
    b = GraphBuilder()
    x = b.input("x", (8,))
    one, two = (b.state(name, np.full(8, value, "f4")) for name, value in (("one", 1), ("two", 2)))
    b.update(one, b.add("add", one, two))
    b.update(two, b.add("mul", two, x))
    graph = b.build(b.add("sub", one, two))
    module = bn.compile(graph, target=emulated(GPU))
    for scale in (3, 5):
        before = dict(module.state)
        np.testing.assert_array_equal(module(np.full(8, scale, "f4")), before["one"] - before["two"])
        np.testing.assert_array_equal(module.state["one"], before["one"] + before["two"])
        np.testing.assert_array_equal(module.state["two"], before["two"] * scale)


def test_what_needs_another_is_in_a_later_bundle() -> None:
    graph = layers()
    made = plan_kernels(graph, GPU, False)
    done = {*graph.inputs, *graph.constants}
    for group in made.groups:
        assert done.issuperset(group.inputs), "groups are in topological order"
        done.update(group.outputs)

"""Views in front of convolutions and products: right, and by the templates that these have without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.driver.compilation import compile_kernels
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.measure.accuracy import scaled_error

RANDOM = np.random.default_rng(5)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


View = Callable[[GraphBuilder], str]
VIEWS: dict[str, View] = {
    "channels last": lambda g: g.add("transpose", g.input("x", (1, 14, 14, 32)), perm=(0, 3, 1, 2)),
    "half of the channels": lambda g: g.add(
        "slice", g.input("x", (1, 64, 14, 14)), starts=(0, 0, 0, 0), extents=(1, 32, 14, 14)
    ),
    "every other column": lambda g: g.add(
        "slice", g.input("x", (1, 32, 14, 28)), starts=(0, 0, 0, 0), extents=(1, 32, 14, 14), steps=(1, 1, 1, 2)
    ),
    "rows and columns exchanged": lambda g: g.add("transpose", g.input("x", (1, 32, 14, 14)), perm=(0, 1, 3, 2)),
}
WINDOWS = {
    "3x3": ((32, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "strided": ((32, 32, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
}


def convolution_behind(view: View, window: str) -> Graph:
    g = GraphBuilder()
    shape, attrs = WINDOWS[window]
    y = g.add("conv2d", view(g), g.constant(array(*shape)), **attrs)  # type: ignore[arg-type]
    return g.build(g.add("relu", y))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_convolution_behind_a_view_has_a_template_of_its_own(view: str, window: str, tmp_path: Path) -> None:
    graph = convolution_behind(VIEWS[view], window)
    for machine in ("x86-64-v4", "x86-64-v3"):
        made = compile_kernels(graph, target(machine), cache_dir=tmp_path)
        anchored = [stage.kernel.template for stage in made.stages if stage.task.anchor() is not None]
        assert anchored and "generic" not in anchored, machine
    module = bn.compile(graph, cache_dir=tmp_path)
    assert module.slow == {}
    feeds = {name: array(*graph.types[name].shape) for name in graph.inputs}
    (expected,) = evaluate(graph, feeds).values()
    assert scaled_error(module(*feeds.values()), expected) < 1e-4


def test_a_product_before_views_has_a_template_of_its_own(tmp_path: Path) -> None:
    g = GraphBuilder()
    y = g.add("matmul", g.input("x", (26, 128)), g.constant(array(128, 130)))
    y = g.add("transpose", g.add("reshape", g.add("relu", y), shape=(26, 65, 2)), perm=(2, 1, 0))
    graph = g.build(g.add("exp", y))
    made = compile_kernels(graph, target("x86-64-v4"), cache_dir=tmp_path)
    assert {stage.kernel.template for stage in made.stages if stage.task.anchor() is not None} == {"matmul"}
    feeds = {"x": array(26, 128) / 30}
    (expected,) = evaluate(graph, feeds).values()
    assert scaled_error(bn.compile(graph, cache_dir=tmp_path)(*feeds.values()), expected) < 1e-4


def test_a_contraction_without_a_template_is_named_by_repr_and_profile(tmp_path: Path) -> None:
    g = GraphBuilder()
    x, w = g.input("x", (1, 16, 20, 20), "float64"), g.constant(array(16, 16, 3, 3).astype(np.float64))
    module = bn.compile(g.build(g.add("conv2d_transpose", x, w, strides=(2, 2))), cache_dir=tmp_path)
    ((kernel, why),) = module.slow.items()
    assert why.startswith("the general schedule of a contraction, about ")
    assert f"slow: {kernel}: {why}" in repr(module)
    rows = module.profile(array(1, 16, 20, 20).astype(np.float64), repeat=1)
    assert {row.kernel: row.slow for row in rows if row.slow} == module.slow
    module.save(tmp_path / "m.bn")
    assert bn.load(tmp_path / "m.bn").slow == module.slow


BEHIND: dict[str, Callable[[GraphBuilder, str], str]] = {
    "parts of a column exchanged": lambda g, y: g.add(
        "transpose", g.add("reshape", y, shape=(26, 2, 51)), perm=(2, 0, 1)
    ),
    "the other way round": lambda g, y: g.add("transpose", y, perm=(1, 0)),
    "every third column": lambda g, y: g.add("slice", y, starts=(0, 0), extents=(26, 34), steps=(1, 3)),
    "rows in two halves, with a relu": lambda g, y: g.add(
        "relu", g.add("transpose", g.add("reshape", y, shape=(13, 2, 102)), perm=(1, 2, 0))
    ),
}


@pytest.mark.parametrize("view", BEHIND)
def test_a_product_in_front_of_views_has_a_template_of_its_own(view: str, tmp_path: Path) -> None:
    g = GraphBuilder()
    graph = g.build(BEHIND[view](g, g.add("matmul", g.input("x", (26, 400)), g.constant(array(400, 102)))))
    for machine in ("x86-64-v4", "x86-64-v3"):
        made = compile_kernels(graph, target(machine), cache_dir=tmp_path)
        anchored = [stage.kernel.template for stage in made.stages if stage.task.anchor() is not None]
        assert anchored and "generic" not in anchored, machine
    x = array(26, 400)
    (expected,) = evaluate(graph, {"x": x}).values()
    assert scaled_error(bn.compile(graph, cache_dir=tmp_path)(x), expected) < 1e-4

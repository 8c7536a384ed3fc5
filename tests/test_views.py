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
from burnish.kernels.templates import first_match
from burnish.loops.program import For, walk_stmt
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


def conv(channels: int, depth: int, columns: int) -> tuple[Graph, str]:
    """A 1x1 convolution of an image that is stored channels last, and the template that it takes."""
    g = GraphBuilder()
    x = g.add("transpose", g.input("x", (1, columns, columns, depth)), perm=(0, 3, 1, 2))
    graph = g.build(g.add("conv2d", x, g.constant(array(channels, depth, 1, 1))))
    made = compile_kernels(graph, target("x86-64-v4"))
    return graph, next(stage.kernel.template for stage in made.stages if stage.task.anchor() is not None)


@pytest.mark.parametrize(("channels", "depth", "columns"), [(256, 192, 40), (256, 768, 20), (384, 96, 56), (8, 16, 57)])
def test_no_vectors_of_columns_are_read_where_channels_are_stored_last(
    channels: int, depth: int, columns: int, tmp_path: Path
) -> None:
    graph, template = conv(channels, depth, columns)
    assert template == "direct_conv2d"
    x = array(1, columns, columns, depth)
    (expected,) = evaluate(graph, {"x": x}).values()
    assert scaled_error(bn.compile(graph, cache_dir=tmp_path)(x), expected) < 1e-4


NORMALIZED: dict[str, View] = {
    "transposed": lambda g: g.add("transpose", g.input("x", (2, 48, 20)), perm=(0, 2, 1)),
    "joined": lambda g: g.add("concat", g.input("x", (2, 20, 16)), g.input("z", (2, 20, 32)), axis=2),
    "joined and transposed": lambda g: g.add(
        "transpose", g.add("concat", g.input("x", (2, 16, 20)), g.input("z", (2, 32, 20)), axis=1), perm=(0, 2, 1)
    ),
}


@pytest.mark.parametrize("view", NORMALIZED)
@pytest.mark.parametrize("op", ["layer_norm", "softmax"])
def test_rows_that_lie_apart_are_copied_before_they_are_normalized(view: str, op: str, tmp_path: Path) -> None:
    g = GraphBuilder()
    graph = g.build(g.add(op, NORMALIZED[view](g)))
    made = compile_kernels(graph, target("x86-64-v4"), cache_dir=tmp_path)
    assert [len(stage.task.stages()) > 2 for stage in made.stages] == [False, True], "a copy, and rows"
    feeds = {name: array(*graph.types[name].shape) for name in graph.inputs}
    (expected,) = evaluate(graph, feeds).values()
    assert scaled_error(bn.compile(graph, cache_dir=tmp_path)(*feeds.values()), expected) < 1e-4


def test_channels_in_blocks_are_summed_in_vectors(tmp_path: Path) -> None:
    """A normalization over channels between convolutions: no scalar loop goes over a block's channels."""
    g = GraphBuilder()
    x = g.add("conv2d", g.input("x", (1, 16, 9, 9)), g.constant(array(48, 16, 1, 1)))
    y = g.add("layer_norm", x, g.constant(array(48)), g.constant(array(48)), axis=1, trailing=2)
    graph = g.build(g.add("conv2d", y, g.constant(array(16, 48, 3, 3)), pads=(1, 1, 1, 1)))
    made = compile_kernels(graph, target("x86-64-v4"), cache_dir=tmp_path)
    (rows,) = (stage for stage in made.stages if len(stage.task.stages()) > 3)
    assert not all(layout.plain for layout in rows.task.layouts.values()), "blocks"
    match = first_match(rows.task, target("x86-64-v4"))
    loops = [s for s in walk_stmt(match.apply(match.space.default).program.body) if isinstance(s, For)]
    blocks = [loop for loop in loops if loop.extent == 16]
    assert blocks and all(loop.kind == "vectorize" for loop in blocks)
    feeds = {"x": array(1, 16, 9, 9)}
    (expected,) = evaluate(graph, feeds).values()
    assert scaled_error(bn.compile(graph, cache_dir=tmp_path)(*feeds.values()), expected) < 1e-4


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

"""A group on its own: canonical names, and the pixels of pointwise convolutions in one row."""

import numpy as np

import burnish as bn
from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.graph.fuse import Group, fuse
from burnish.graph.outline import isolate
from burnish.graph.verify import verify
from burnish.loops.layout import layout

RANDOM = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def block(kernel: int, prefix: str, stride: int = 1) -> tuple[Graph, Group]:
    """relu(conv(x, w) * 0.5 + b), all its names starting with ``prefix``."""
    g = GraphBuilder()
    x = g.input(f"{prefix}x", (2, 4, 6, 5))
    w = g.constant(array(8, 4, kernel, kernel), f"{prefix}w")
    pad = kernel // 2
    y = g.add("conv2d", x, w, strides=(stride, stride), pads=(pad, pad, pad, pad))
    y = g.add("mul", y, g.constant(np.float32(0.5)))
    y = g.add("relu", g.add("add", y, g.constant(array(8, 1, 1), f"{prefix}b")))
    graph = g.build(y)
    (group,) = fuse(graph)
    return graph, group


def test_golden() -> None:
    alone, own, names = isolate(*block(3, "layer1."))
    assert (
        str(alone)
        == """\
graph(p0: float32[2, 4, 6, 5], p1: float32[8, 4, 3, 3], p2: float32[8, 1, 1]) -> (t3):
  const c0: float32[] = 0.5
  t0 = conv2d(p0, p1, pads=(1, 1, 1, 1), strides=(1, 1)) : float32[2, 8, 6, 5]
  t1 = mul(t0, c0) : float32[2, 8, 6, 5]
  t2 = add(t1, p2) : float32[2, 8, 6, 5]
  t3 = relu(t2) : float32[2, 8, 6, 5]
"""
    )
    assert str(own) == "t3 = [conv2d] mul add relu (p0, p1, p2)"
    assert own.anchor is own.nodes[0]
    assert (names["p0"], names["p1"], names["p2"]) == ("layer1.x", "layer1.w", "layer1.b")


def test_equal_kernels_of_different_layers_are_equal_text() -> None:
    first, second = (isolate(*block(3, prefix))[0] for prefix in ("layer1.", "layer2."))
    assert str(first) == str(second)


def test_the_group_alone_computes_the_same() -> None:
    for kernel, stride in ((3, 1), (1, 2), (1, 1)):
        graph, group = block(kernel, "a", stride)
        alone, _, names = isolate(graph, group)
        verify(alone)
        feeds = {"ax": array(2, 4, 6, 5)}
        values = {**feeds, **graph.constants}
        own = {n: values[names[n]].reshape(alone.types[n].shape) for n in alone.inputs}
        expected = evaluate(graph, feeds)[graph.outputs[0]]
        found = evaluate(alone, own)[alone.outputs[0]]
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_pixels_of_a_pointwise_convolution_become_one_row() -> None:
    alone, _, _ = isolate(*block(1, "a"))
    assert alone.types["p0"].shape == (2, 4, 1, 30)
    assert alone.types["p1"].shape == (8, 4, 1, 1)
    assert alone.types["p2"].shape == (8, 1, 1)
    assert {alone.types[n].shape for n in ("t0", "t1", "t2", "t3")} == {(2, 8, 1, 30)}


def test_strides_and_windows_keep_their_pixels() -> None:
    for kernel, stride in ((3, 1), (1, 2)):
        assert isolate(*block(kernel, "a", stride))[0].types["p0"].shape == (2, 4, 6, 5)


def test_an_operand_that_varies_along_rows_keeps_its_pixels() -> None:
    g = GraphBuilder()
    y = g.add("conv2d", g.input("x", (1, 4, 6, 5)), g.constant(array(8, 4, 1, 1)))
    graph = g.build(g.add("add", y, g.constant(array(5))))
    (group,) = fuse(graph)
    alone, _, _ = isolate(graph, group)
    assert alone.types["p0"].shape == (1, 4, 6, 5)
    verify(alone)


def test_pixels_keep_their_rows_where_an_operator_knows_its_shape() -> None:
    g = GraphBuilder()
    x, dy = g.input("x", (2, 4, 6, 5)), g.input("dy", (2, 8, 6, 5))
    y = g.add("conv2d", x, g.constant(array(8, 4, 1, 1)))
    own = {"operator": "relu", "attributes": (), "types": (((2, 8, 6, 5), "float32"),), "wrt": 0, "seeded": (0,)}
    graph = g.build(g.add("adjoint", dy, y, reads=(1, 2), **own))
    (group,) = fuse(graph)
    alone = isolate(graph, group)[0]
    verify(alone)
    assert alone.types[alone.outputs[0]].shape == (2, 8, 6, 5)


def test_pixels_keep_their_rows_where_a_mask_knows_them() -> None:
    g = GraphBuilder()
    y = g.add("conv2d", g.input("x", (1, 4, 6, 5)), g.constant(array(8, 4, 1, 1)))
    graph = g.build(g.add("trilu", y))
    group = Group(graph.nodes, ("x", *graph.constants), graph.outputs, graph.nodes[0])
    assert isolate(graph, group)[0].types["p0"].shape == (1, 4, 6, 5)
    x = array(1, 4, 6, 5)
    module = bn.compile(graph, threads=1, rewrite=False)
    np.testing.assert_allclose(module(x), evaluate(graph, {"x": x})[graph.outputs[0]], rtol=1e-5, atol=1e-5)


def test_a_copy_keeps_rows_apart_that_its_layout_pads() -> None:
    g = GraphBuilder()
    graph = g.build(g.add("identity", g.input("x", (1, 2, 3, 5)), name="y"))
    group = Group(graph.nodes, graph.inputs, graph.outputs)
    shapes = {tag: isolate(graph, group, {"y": layout(tag)})[0].types["t0"].shape for tag in ("ABCD4b", "ABDC16d")}
    assert shapes == {"ABCD4b": (1, 2, 1, 15), "ABDC16d": (1, 2, 3, 5)}


def column(op: str, **attrs: object) -> tuple[Graph, Group]:
    """relu(window(x)) of images of one column."""
    g = GraphBuilder()
    x = g.input("x", (2, 4, 9, 1))
    own = [g.constant(array(8, 4, 3, 1), "w")] if op == "conv2d" else []
    y = g.add(op, x, *own, strides=(2, 1), pads=(1, 0, 2, 0), **attrs)
    graph = g.build(g.add("relu", y))
    (group,) = fuse(graph)
    return graph, group


def test_windows_of_one_column_are_those_of_one_row() -> None:
    for op, attrs in (("conv2d", {}), ("max_pool2d", {"kernel": (3, 1)}), ("avg_pool2d", {"kernel": (3, 1)})):
        graph, group = column(op, **attrs)
        alone, own, names = isolate(graph, group)
        verify(alone)
        assert alone.types["p0"].shape == (2, 4, 1, 9)
        assert alone.types[alone.outputs[0]].shape[2] == 1
        assert own.anchor in own.nodes == alone.nodes
        assert own.anchor.attrs["strides"] == (1, 2)
        assert own.anchor.attrs["pads"] == (0, 1, 0, 2)
        feeds = {"x": array(2, 4, 9, 1)}
        values = {**feeds, **graph.constants}
        given = {n: values[names[n]].reshape(alone.types[n].shape) for n in alone.inputs}
        expected = evaluate(graph, feeds)[graph.outputs[0]]
        found = evaluate(alone, given)[alone.outputs[0]]
        np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-6)


def test_windows_of_several_columns_keep_their_rows() -> None:
    g = GraphBuilder()
    y = g.add("max_pool2d", g.input("x", (2, 4, 9, 2)), kernel=(3, 2), strides=(1, 1), pads=(0, 0, 0, 0))
    graph = g.build(y)
    (group,) = fuse(graph)
    assert isolate(graph, group)[0].types["p0"].shape == (2, 4, 9, 2)

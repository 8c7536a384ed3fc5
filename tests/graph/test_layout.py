"""Which values of a network are stored in blocks of channels."""

from dataclasses import replace

import numpy as np
import pytest

import burnish as bn
from burnish.driver.compilation import compile_kernels
from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.graph.fuse import fuse
from burnish.graph.gradient import gradients
from burnish.graph.layout import blocked, choose_layouts, separate_outputs
from burnish.graph.verify import verify
from burnish.machines.target import target
from burnish.pipeline.kernel import outline
from burnish.pipeline.plan import plan_kernels

RANDOM = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def convolution(g: GraphBuilder, x: str, channels: int) -> str:
    weight = g.constant(array(channels, g.types[x].shape[1], 3, 3))
    return g.add("relu", g.add("conv2d", x, weight, pads=(1, 1, 1, 1)))


def network() -> tuple[Graph, dict[str, str]]:
    """conv, conv, pool, then a classifier: and the names of what lies between."""
    g = GraphBuilder()
    names = {"input": g.input("x", (1, 16, 8, 8))}
    names["first"] = convolution(g, names["input"], 32)
    names["second"] = convolution(g, names["first"], 32)
    names["pooled"] = g.add("max_pool2d", names["second"], kernel=(2, 2), strides=(2, 2))
    names["flat"] = g.add("reshape", names["pooled"], shape=(1, 512))
    names["scores"] = g.add("matmul", names["flat"], g.constant(array(512, 10)))
    return g.build(names["scores"]), names


def test_activations_between_convolutions_are_blocked() -> None:
    graph, names = network()
    layouts = choose_layouts(graph, fuse(graph), 16)
    assert {n for n in names if names[n] in layouts} >= {"first", "second"}
    assert {str(layout) for layout in layouts.values()} == {"ABCD16b"}
    assert not {names["input"], names["flat"], names["scores"]} & set(layouts), (
        "rows: the user's, or not of four dimensions"
    )
    assert not set(graph.constants) & set(layouts), "templates choose the layouts of constants"


def test_a_weight_gradient_reads_an_adjoint_that_comes_from_outside_in_blocks() -> None:
    """Its kernel does: in rows it would be the scalar loops of its definition. A copy is made where it is an input."""
    g = GraphBuilder()
    x, w = g.input("x", (2, 16, 8, 8)), g.constant(array(32, 16, 3, 3), "w")
    graph = gradients(g.build(g.add("conv2d", x, w, pads=(1, 1, 1, 1), name="y")), "y", ["w"])
    last = next(node for node in graph.nodes if node.outputs[0] == graph.outputs[-1])
    found = next(node for node in graph.nodes if node.outputs == last.inputs)
    alone = GraphBuilder()
    alone.input("x", (2, 16, 8, 8))
    alone.input("y.seed", (2, 32, 8, 8))
    (made,) = alone.add_many(found.op, *found.inputs, names=["dw"], **found.attrs)
    plan = compile_kernels(alone.build(made), target("cpu"), make=outline)
    stage = next(s for s in plan.stages if made in s.group.outputs)
    assert stage.kernel.template == "weight_gradient"
    assert plan.layouts["y.seed.blocked"] == blocked(target("cpu").lanes)


def test_channels_that_fill_no_more_than_half_a_block_stay_in_rows() -> None:
    g = GraphBuilder()
    x = convolution(g, g.input("x", (1, 16, 8, 8)), 8)
    y = convolution(g, x, 9)
    graph = g.build(convolution(g, y, 32))
    layouts = choose_layouts(graph, fuse(graph), 16)
    assert x not in layouts
    assert y in layouts
    assert x in choose_layouts(graph, fuse(graph), 8)


def test_element_wise_groups_follow_their_neighbours() -> None:
    """A sum of two blocked values that is read by a convolution is blocked with them."""
    g = GraphBuilder()
    a = convolution(g, g.input("x", (1, 16, 6, 6)), 32)
    b, c = convolution(g, a, 32), convolution(g, a, 32)
    total = g.add("mul", b, c)
    graph = g.build(convolution(g, total, 32))
    layouts = choose_layouts(graph, fuse(graph), 16)
    assert {a, b, c, total} - set(layouts) <= {b, c}, "b or c may be fused away"
    assert total in layouts


def test_products_and_softmax_keep_rows() -> None:
    g = GraphBuilder()
    x = g.input("x", (2, 16, 8, 8))
    y = g.add("softmax", g.add("matmul", x, g.constant(array(8, 8))), axis=-1)
    graph = g.build(g.add("matmul", y, g.constant(array(8, 8))))
    assert choose_layouts(graph, fuse(graph), 16) == {}


def test_values_whose_channels_are_last_keep_rows_around_a_convolution_between_transposes() -> None:
    """As in MambaOut: a part of a product's columns is convolved, and joined with the others."""
    g = GraphBuilder()
    x = g.add("matmul", g.input("x", (1, 20, 20, 32)), g.constant(array(32, 96)))
    part = g.add("slice", x, starts=(0, 0, 0, 48), extents=(1, 20, 20, 48))
    image = g.add("transpose", part, perm=(0, 3, 1, 2))
    image = g.add("conv2d", image, g.constant(array(48, 1, 3, 3)), pads=(1, 1, 1, 1), groups=48)
    rest = g.add("slice", x, starts=(0, 0, 0, 0), extents=(1, 20, 20, 48))
    joined = g.add("concat", rest, g.add("transpose", image, perm=(0, 2, 3, 1)), axis=3)
    graph = g.build(g.add("relu", g.add("matmul", joined, g.constant(array(96, 32)))))
    layouts = choose_layouts(graph, fuse(graph), 16)
    assert image in layouts, "channels are second there"
    assert {x, joined}.isdisjoint(layouts)
    feeds = {"x": array(1, 20, 20, 32)}
    (expected,) = evaluate(graph, feeds).values()
    np.testing.assert_allclose(bn.compile(graph)(feeds["x"]), expected, rtol=1e-3, atol=1e-3)


def test_a_join_of_images_in_blocks_that_is_an_output_is_joined_in_blocks_and_copied() -> None:
    g = GraphBuilder()
    x = g.input("x", (1, 16, 8, 8))
    joined = g.add("concat", *(convolution(g, x, 16) for _ in range(3)), axis=1)
    graph = g.build(joined)
    tried, groups = separate_outputs(graph, fuse(graph), 16)
    layouts = choose_layouts(tried, groups, 16)
    assert str(groups[-1]) == f"{joined} = identity ({joined}.blocked)"
    assert f"{joined}.blocked" in layouts and joined not in layouts
    feeds = {"x": array(1, 16, 8, 8)}
    (expected,) = evaluate(graph, feeds).values()
    np.testing.assert_allclose(bn.compile(graph)(feeds["x"]), expected, rtol=1e-3, atol=1e-3)
    large = g.build(g.add("resize", convolution(g, x, 16), sizes=(1, 16, 80, 80), mode="linear"))
    assert all(node.op != "identity" for node in separate_outputs(large, fuse(large), 16)[0].nodes)


def test_joins_and_means_without_windows_near_keep_rows() -> None:
    g = GraphBuilder()
    x, y = (g.add("exp", g.input(name, (1, 32, 8, 8))) for name in "xy")
    joined = g.add("concat", x, y, axis=3)
    graph = g.build(g.add("reduce_mean", g.add("relu", joined), axes=(1, 2)))
    assert choose_layouts(graph, fuse(graph), 16) == {}


@pytest.mark.parametrize(
    ("tiles", "ops"),
    [
        ({"amx-bf16", "amx-tile"}, ["split_conv2d", "relu"]),
        (set(), ["identity", "winograd_conv2d", "relu", "identity"]),
    ],
)
def test_matrix_tiles_read_and_write_rows_where_a_network_begins_and_ends(tiles: set[str], ops: list[str]) -> None:
    machine = target("x86-64-v4")
    g = GraphBuilder()
    graph = g.build(convolution(g, g.input("x", (1, 64, 28, 28)), 64))
    made = plan_kernels(graph, replace(machine, features=machine.features | tiles), False)
    assert [node.op for node in made.graph.nodes] == ops


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_layout_of_a_vector_length(lanes: int) -> None:
    assert str(blocked(lanes)) == f"ABCD{lanes}b"
    assert blocked(lanes).block(1) == lanes


def test_the_network_is_a_network() -> None:
    graph, _ = network()
    verify(graph)
    assert evaluate(graph, {"x": array(1, 16, 8, 8)})[graph.outputs[0]].shape == (1, 10)


def test_an_output_that_is_read_again_is_read_in_blocks() -> None:
    machine = replace(target("x86-64-v4"), features=target("x86-64-v4").features - {"amx-bf16", "amx-tile"})
    g = GraphBuilder()
    first = convolution(g, g.input("x", (1, 32, 8, 8)), 32)
    graph = g.build(first, convolution(g, first, 32))
    made = plan_kernels(graph, machine, True)
    verify(made.graph)
    copies = [group for group in made.groups if group.outputs == (first,)]
    assert [node.op for group in copies for node in group.nodes] == ["identity"]
    assert f"{first}.blocked" in made.layouts
    assert any(f"{first}.blocked" in group.inputs and group.anchor for group in made.groups)


def test_an_output_that_nothing_reads_in_blocks_has_no_copy() -> None:
    g = GraphBuilder()
    x = g.add("relu", g.input("x", (1, 32, 8, 8)))
    graph = g.build(x, g.add("reshape", x, shape=(32, 64)))
    made = plan_kernels(graph, target("x86-64-v4"), False)
    assert not any("blocked" in name for name in made.graph.types)

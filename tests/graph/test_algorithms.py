"""The choice between direct, Winograd and split convolutions and products, and that a choice changes no answer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from burnish.graph import Graph, GraphBuilder, Node
from burnish.graph.algorithms import SURELY, alternatives, choose_algorithms, fastest
from burnish.graph.costs import KERNEL, copy_seconds
from burnish.graph.estimates import ConvSizes, Estimate, estimates, label_of, split_rows
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import gradients
from burnish.graph.graph_file import graph_from, graph_parts
from burnish.graph.rewrite import renamed_tensors
from burnish.graph.verify import verify
from burnish.machines.target import Target, target

AVX512 = target("x86-64-v4")
TILES = replace(AVX512, features=AVX512.features | {"amx-bf16", "amx-tile"})


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def convolutions(channels: int, outputs: int, size: int, kernel: int = 3, **attrs: object) -> Graph:
    """relu, then one convolution; ``channels`` inputs."""
    g = GraphBuilder()
    x = g.add("relu", g.input("x", (1, channels, size, size)))
    groups = int(attrs.get("groups", 1))  # type: ignore[call-overload]
    w = g.constant(array(outputs, channels // groups, kernel, kernel), "w")
    return g.build(g.add("conv2d", x, w, pads=(kernel // 2,) * 4, **attrs))  # type: ignore[arg-type]


def chosen(graph: Graph, machine: Target, exact: bool = False) -> list[str]:
    """The operators after the choice, which must be a valid graph that computes the same."""
    after = choose_algorithms(graph, machine, exact)
    verify(after)
    feeds = {n: array(*graph.types[n].shape) for n in graph.inputs}
    expected, found = (evaluate(g, feeds)[g.outputs[0]] for g in (graph, after))
    np.testing.assert_allclose(found, expected, atol=2e-5 * abs(expected).max())
    return [node.op for node in after.nodes]


def test_wide_layers_take_winograd() -> None:
    assert chosen(convolutions(64, 64, 56), AVX512) == ["relu", "winograd_conv2d"]
    after = choose_algorithms(convolutions(64, 64, 56), AVX512, exact=False)
    node = after.nodes[-1]
    assert node.attrs == {"m": 4, "pads": (1, 1, 1, 1), "strides": (1, 1)}
    assert after.types[node.inputs[1]].shape == (6, 6, 64, 64), "the weight, transformed at compile time"
    assert "w" not in after.constants


def test_strided_layers_take_winograd_where_its_weights_stay_in_the_cache() -> None:
    assert chosen(convolutions(64, 128, 56, strides=(2, 2)), AVX512) == ["relu", "winograd_conv2d"]
    node = choose_algorithms(convolutions(64, 128, 56, strides=(2, 2)), AVX512, exact=False).nodes[-1]
    assert node.attrs == {"m": 2, "pads": (1, 1, 1, 1), "strides": (2, 2)}
    assert chosen(convolutions(128, 256, 28, strides=(2, 2)), AVX512) == ["relu", "conv2d"]
    assert chosen(convolutions(32, 96, 27, kernel=5), AVX512) == ["relu", "winograd_conv2d"]


def test_groups_of_whole_blocks_take_winograd() -> None:
    graph = convolutions(64, 128, 28, groups=2)
    assert chosen(graph, AVX512) == ["relu", "winograd_conv2d"]
    after = choose_algorithms(graph, AVX512, exact=False)
    assert after.nodes[-1].attrs == {"m": 4, "pads": (1, 1, 1, 1), "strides": (1, 1), "groups": 2}
    assert after.types[after.nodes[-1].inputs[1]].shape == (6, 6, 128, 32)


def test_windows_that_winograd_has_no_tiles_for() -> None:
    """Rows of a window, windows smaller than their stride, and tiles that would be too large."""
    base = ConvSizes(1, 64, 64, (3, 3), (1, 1), (56, 56), (56, 56))

    def sizes(**changes: tuple[int, int]) -> list[object]:
        found = estimates(replace(base, **changes), (1, 1, 1, 1), AVX512)
        return [e.attrs["m"] for e in found if e.op == "winograd_conv2d"]

    assert sizes() == [2, 4]
    assert sizes(kernel=(1, 7)) == sizes(strides=(4, 4)) == sizes(kernel=(11, 11)) == []
    assert sizes(kernel=(5, 5), strides=(2, 2)) == [2]


@pytest.mark.parametrize(
    "graph",
    [
        convolutions(96, 256, 8, kernel=5),
        convolutions(32, 32, 9, strides=(2, 2)),
        convolutions(32, 32, 9, dilations=(2, 2)),
        convolutions(24, 32, 9, groups=2),
        convolutions(20, 32, 9),
        convolutions(32, 8, 9),
    ],
    ids=[
        "5x5 of many weights",
        "small strided",
        "dilation",
        "groups that end within a block",
        "channels that fill no block",
        "few outputs",
    ],
)
def test_what_winograd_cannot_do_stays_direct(graph: Graph) -> None:
    assert chosen(graph, AVX512) == ["relu", "conv2d"]


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride", "points"),
    [(3, 112, 7, 2, 7), (8, 28, 5, 1, 8), (64, 28, 5, 1, 8)],
    ids=["stem", "5x5", "wide"],
)
def test_wide_windows_take_the_polyphase_algorithm(
    channels: int, size: int, kernel: int, stride: int, points: int
) -> None:
    graph = convolutions(channels, 64, size, kernel, strides=(stride, stride))
    assert chosen(graph, AVX512) == ["relu", "polyphase_conv2d"]
    after = choose_algorithms(graph, AVX512, exact=False)
    node = after.nodes[-1]
    assert after.types[node.inputs[1]].shape == (points, kernel, channels, stride, 64)


def test_strided_winograd_by_vectors_that_are_multiplied_in_halves() -> None:
    """Eight images of layer C7: faster than direct on Zen 4, where all points of a tile are in registers."""
    sizes = ConvSizes(8, 128, 256, (3, 3), (2, 2), (28, 28), (14, 14))
    halved = replace(target("x86-64-v4", threads=2), cpu="znver4")
    assert halved.vector_bytes > halved.multiply_bytes
    found = {label_of(e): e.seconds for e in estimates(sizes, (1, 1, 1, 1), halved)}
    assert found["winograd_conv2d m=2"] < SURELY * found["conv2d"]


@pytest.mark.parametrize("machine", [AVX512, TILES], ids=["vectors", "tiles"])
def test_exact_forbids_other_rounding(machine: Target) -> None:
    graph = convolutions(64, 64, 12)
    assert choose_algorithms(graph, machine, exact=True) is graph


def test_matrix_tiles_take_convolutions_and_products() -> None:
    assert chosen(convolutions(64, 64, 14), TILES) == ["relu", "split_conv2d"]
    assert chosen(convolutions(64, 64, 28, strides=(2, 2)), TILES) == ["relu", "split_conv2d"]


def test_matrix_tiles_take_large_images_of_few_channels() -> None:
    found = estimates(ConvSizes(1, 32, 64, (3, 3), (1, 1), (147, 147), (147, 147)), (1, 1, 1, 1), TILES)
    assert min(found, key=lambda e: e.seconds).op == "split_conv2d"


def product(rows: int, depth: int, columns: int) -> Graph:
    g = GraphBuilder()
    return g.build(g.add("matmul", g.input("x", (rows, depth)), g.constant(array(depth, columns))))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (product(128, 64, 48), "split_matmul"),
        (product(9, 64, 48), "split_matmul"),
        (product(8, 64, 48), "matmul"),
        (product(128, 31, 48), "matmul"),
        (product(128, 64, 15), "matmul"),
    ],
)
def test_products_need_enough_rows_depth_and_columns(graph: Graph, expected: str) -> None:
    assert chosen(graph, TILES) == [expected]
    assert chosen(graph, AVX512) == ["matmul"]


def test_a_product_of_two_activations_stays() -> None:
    g = GraphBuilder()
    graph = g.build(g.add("matmul", g.input("x", (64, 64)), g.input("y", (64, 64))))
    assert chosen(graph, TILES) == ["matmul"]


def test_a_weight_that_two_layers_share_is_transformed_once() -> None:
    g = GraphBuilder()
    x, w = g.add("relu", g.input("x", (1, 64, 16, 16))), g.constant(array(64, 64, 3, 3), "w")
    y = g.add("conv2d", g.add("conv2d", x, w, pads=(1, 1, 1, 1)), w, pads=(1, 1, 1, 1))
    after = choose_algorithms(g.build(y), AVX512, exact=False)
    first, second = (n.inputs[1] for n in after.nodes[1:])
    assert first == second
    assert len(after.constants) == 1


def test_weights_that_are_trained_take_no_algorithm_that_rounds_more() -> None:
    def tiles(graph: Graph) -> set[tuple[str, object]]:
        return {(e.op, e.attrs.get("m")) for e in alternatives(graph, graph.nodes[0], AVX512)}

    def layer(kind: str) -> Graph:
        g, value = GraphBuilder(), array(64, 64, 3, 3)
        weight = {"constant": g.constant, "input": lambda v: g.input("w", v.shape), "state": lambda v: g.state("w", v)}[
            kind
        ](value)
        return g.build(g.add("conv2d", g.input("x", (1, 64, 56, 56)), weight, pads=(1, 1, 1, 1)))

    step = gradients(layer("input"), layer("input").outputs[0], ["w"])
    given = graph_from(*graph_parts(renamed_tensors(step, {name: f"a.{name}" for name in step.types})))
    assert tiles(layer("constant")) == tiles(layer("input"))
    assert step.trained and given.trained
    for trained in (layer("state"), step, given):
        assert tiles(layer("constant")) - tiles(trained) == {("winograd_conv2d", 4)}


def test_an_algorithm_is_taken_if_it_is_surely_faster() -> None:
    """Estimates err: one that is predicted to take 0.9 of the direct time, or a microsecond less, is not taken."""
    graph = convolutions(64, 64, 14)

    def taken(direct: float, other: float) -> str:
        found = [Estimate("conv2d", {}, direct), Estimate("winograd_conv2d", {"m": 2}, other)]
        return fastest(graph, graph.nodes[1], found).op

    assert taken(1e-3, 0.8e-3) == taken(20e-6, 15e-6) == "winograd_conv2d"
    assert taken(1e-3, 0.9e-3) == taken(4e-6, 3e-6) == taken(1e-3, 2e-3) == "conv2d"


def test_estimates_count_the_conversions_of_rows() -> None:
    """A graph's own input and output are row-major: what wants blocks converts them; between other nodes nothing is."""
    g = GraphBuilder()
    weight = g.constant(array(64, 64, 3, 3))
    x = g.input("x", (1, 64, 28, 28))
    alone = g.build(g.add("relu", g.add("conv2d", x, weight, pads=(1, 1, 1, 1))))
    g = GraphBuilder()
    weight, pads = g.constant(array(64, 64, 3, 3)), (1, 1, 1, 1)
    inner = g.add("conv2d", g.add("conv2d", g.input("x", (1, 64, 28, 28)), weight, pads=pads), weight, pads=pads)
    between = g.build(g.add("conv2d", inner, weight, pads=pads))
    images = 2 * (KERNEL + copy_seconds(4 * 64 * 28 * 28, 4 * 64 * 28 * 28, AVX512))
    for op, more in (("winograd_conv2d", images), ("conv2d", 0.0)):
        apart, within = (
            next(e.seconds for e in alternatives(graph, graph.nodes[number], AVX512) if e.op == op)
            for graph, number in ((alone, 0), (between, 1))
        )
        assert apart - within == pytest.approx(more)


@pytest.mark.parametrize(("size", "outputs"), [(7, 64), (13, 48), (14, 65), (28, 128)])
def test_direct_estimates_follow_register_tiles(size: int, outputs: int) -> None:
    """Cycles of whole and last tiles; ragged channels take more for each that is there."""

    def each(w: ConvSizes) -> float:
        return next(e.seconds for e in estimates(w, (1, 1, 1, 1), AVX512) if e.op == "conv2d") / w.flops

    w = ConvSizes(1, 64, outputs, (3, 3), (1, 1), (size, size), (size, size))
    assert each(w) > 0.9 / AVX512.flops
    assert each(replace(w, outputs=outputs - outputs % 16)) <= each(w) * (1 + 1e-9)


@pytest.mark.parametrize(("m", "most"), [(2, 1.5), (4, 4.0)])
def test_how_much_further_off_tiles_are(m: int, most: float) -> None:
    """What ``Estimate.steady`` says, of the same convolution in float32 beside float64."""
    g, x, w = GraphBuilder(), array(1, 64, 16, 16), array(32, 64, 3, 3)
    y = g.add("conv2d", g.input("x", x.shape), g.constant(w), pads=(1, 1, 1, 1))
    graph = g.build(y)
    (exact,) = evaluate(graph, {"x": x}, "float64").values()
    errors = []
    for op in ("conv2d", "winograd_conv2d"):
        found = alternatives(graph, graph.nodes[0], AVX512)
        own = next(e for e in found if e.op == op and e.attrs.get("m") in (None, m))
        (value,) = evaluate(choose_algorithms(graph, AVX512, False, lambda *_, own=own: own), {"x": x}).values()
        errors.append(float(np.sqrt(np.mean((value - exact) ** 2))))
    assert errors[1] < most * errors[0]
    assert own.steady == (m == 2) == (errors[1] < 1.5 * errors[0])


def test_estimates_follow_the_work() -> None:
    """Twice the channels cost about twice the direct time; Winograd has fewer multiplications for more transforms."""
    w = ConvSizes(1, 64, 64, (3, 3), (1, 1), (56, 56), (56, 56))
    wide = replace(w, channels=128)
    by_op = {(e.op, e.attrs.get("m")): e.seconds for e in estimates(w, (1, 1, 1, 1), AVX512)}
    fast = {(op, m) for op in ("winograd_conv2d", "polyphase_conv2d") for m in (2, 4)}
    assert set(by_op) == {("conv2d", None), *fast}
    assert by_op["winograd_conv2d", 4] < by_op["winograd_conv2d", 2] < by_op["conv2d", None]
    direct = next(e for e in estimates(wide, (1, 1, 1, 1), AVX512) if e.op == "conv2d")
    assert direct.seconds == pytest.approx(2 * by_op["conv2d", None], rel=0.1)
    assert w.flops == 2 * 9 * 64 * 64 * 56 * 56


def test_rows_of_a_window_outside_of_the_image_are_no_work() -> None:
    """Of 5 rows with a window of 7, 23 of 35 are inside."""
    w = ConvSizes(1, 512, 512, (7, 7), (1, 1), (5, 5), (5, 5))
    padded, inside = (estimates(w, (pad,) * 4, AVX512)[0].seconds for pad in (3, 0))
    assert padded / inside == pytest.approx(23 / 35 / (15 / 35), rel=0.05)


@pytest.mark.parametrize(("out_h", "pitch", "groups"), [(56, 58, 2), (14, 16, 8), (7, 9, 16), (1, 3, 1), (112, 115, 1)])
def test_blocks_of_rows_cover_the_output(out_h: int, pitch: int, groups: int) -> None:
    rows, pixels = split_rows(out_h, pitch, groups, TILES)
    assert 1 <= rows <= out_h
    assert pixels >= out_h * pitch
    assert pixels % 32 == 0
    assert rows == 1 or rows * pitch <= 1024


def given_weights(channels: int, outputs: int, size: int, batch: int = 1, readers: int = 1) -> Graph:
    """3x3 convolutions by a weight that is an input, between element-wise nodes."""
    g = GraphBuilder()
    w = g.input("w", (outputs, channels, 3, 3))
    found = [
        g.add("relu", g.add("conv2d", g.add("relu", g.input(f"x{n}", (batch, channels, size, size))), w, pads=(1,) * 4))
        for n in range(readers)
    ]
    return g.build(*found)


@pytest.mark.parametrize(("channels", "size"), [(128, 28), (256, 14), (512, 7)])
def test_a_weight_of_few_tiles_is_transformed_within(channels: int, size: int) -> None:
    graph = given_weights(channels, channels, size)
    after = choose_algorithms(graph, AVX512, exact=False)
    assert [node.op for node in after.nodes] == ["relu", "winograd_conv2d", "relu"]
    assert after.nodes[1].attrs["transforms_weight"] and after.nodes[1].inputs[1] == "w"


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14)])
def test_a_weight_of_many_tiles_is_not_transformed_within(channels: int, size: int) -> None:
    """Every vector of outputs would read all tiles, which are far behind the second cache."""
    after = choose_algorithms(given_weights(channels, channels, size, batch=16), AVX512, exact=False)
    assert [node.op for node in after.nodes] == ["relu", "winograd_weight", "winograd_conv2d", "relu"]


@pytest.mark.parametrize("m", [2, 4])
def test_a_weight_transformed_within_changes_no_answer(m: int) -> None:
    def decide(graph: Graph, node: Node, found: Sequence[Estimate]) -> Estimate:
        return next(e for e in found if e.attrs.get("m") == m and e.attrs.get("transforms_weight"))

    graph = given_weights(64, 32, 9)
    after = choose_algorithms(graph, AVX512, False, decide)
    verify(after)
    feeds = {name: array(*graph.types[name].shape) for name in graph.inputs}
    expected, found = (evaluate(g, feeds)[g.outputs[0]] for g in (graph, after))
    np.testing.assert_allclose(found, expected, atol=2e-5 * abs(expected).max())


def test_a_weight_that_is_constant_or_of_ragged_channels_is_not_transformed_within() -> None:
    def within(graph: Graph) -> bool:
        found = alternatives(graph, graph.nodes[1], AVX512)
        assert any(e.op == "winograd_conv2d" for e in found)
        return any(e.attrs.get("transforms_weight") for e in found)

    assert within(given_weights(64, 64, 14))
    assert not within(given_weights(64, 65, 14))
    assert not within(convolutions(64, 64, 14))


def test_readers_of_a_weight_share_the_time_to_pack_it() -> None:
    one, many = (given_weights(256, 256, 14, readers=n) for n in (1, 8))

    def seconds(graph: Graph, within: bool) -> float:
        found = alternatives(graph, graph.nodes[1], AVX512)
        own = [e for e in found if e.attrs.get("m") == 4 and bool(e.attrs.get("transforms_weight")) == within]
        return own[0].seconds

    assert seconds(one, True) == seconds(many, True)
    weight = copy_seconds(4 * 9 * 256**2, 4 * 36 * 256**2, AVX512)
    assert seconds(one, False) - seconds(many, False) == pytest.approx(weight * 7 / 8)

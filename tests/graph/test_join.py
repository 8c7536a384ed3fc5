"""Which concatenations need no code."""

import numpy as np

import burnish as bn
from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.graph.fuse import fuse
from burnish.graph.join import find_pieces
from burnish.graph.layout import blocked

BLOCKED = blocked(16)


def pieces(graph: Graph, *names: str) -> dict[str, tuple[str, int]]:
    """The pieces where ``names`` (and nothing else) are stored in blocks."""
    return find_pieces(graph, fuse(graph), dict.fromkeys(names, BLOCKED))


def images(g: GraphBuilder, *channels: int) -> list[str]:
    """Computed images of 2 x 3 pixels."""
    return [g.add("softmax", g.input(f"x{i}", (1, c, 2, 3)), name=f"y{i}") for i, c in enumerate(channels)]


def test_computed_parts_lie_one_after_the_other() -> None:
    g = GraphBuilder()
    g.add("concat", *images(g, 3, 5, 2), axis=1, name="z")
    assert pieces(g.build("z")) == {"y0": ("z", 0), "y1": ("z", 3 * 24), "y2": ("z", 8 * 24)}


def test_only_the_last_part_may_end_inside_a_block() -> None:
    g = GraphBuilder()
    g.add("concat", *images(g, 32, 20), axis=1, name="z")
    graph = g.build("z")
    assert pieces(graph, "y0", "y1", "z") == {"y0": ("z", 0), "y1": ("z", 32 * 24)}
    assert pieces(graph, "y0", "z") == {}, "different layouts"
    g = GraphBuilder()
    g.add("concat", *images(g, 20, 32), axis=1, name="z")
    assert pieces(g.build("z"), "y0", "y1", "z") == {}


def test_a_concatenation_may_be_a_part_but_each_tensor_only_of_one() -> None:
    g = GraphBuilder()
    a, b, c = images(g, 2, 3, 4)
    ab = g.add("concat", a, b, axis=1, name="ab")
    abc = g.add("concat", ab, c, axis=1, name="abc")
    ca = g.add("concat", c, a, axis=1, name="ca")
    found = pieces(g.build(g.add("softmax", ab), abc, ca))
    assert found == {"y0": ("ab", 0), "y1": ("ab", 48), "ab": ("abc", 0), "y2": ("abc", 5 * 24)}


def test_what_must_be_copied() -> None:
    g = GraphBuilder()
    (y,) = images(g, 4)
    flat = g.add("reshape", y, shape=(1, 4, 6), name="flat")
    whole = [
        g.add("concat", y, y, axis=1),  # twice in one
        g.add("concat", flat, g.add("softmax", flat), axis=1),  # a view
        g.add("concat", y, g.input("raw", (1, 4, 2, 3)), axis=1),  # the caller's memory
        g.add("concat", y, g.constant(np.ones((1, 1, 2, 3), np.float32)), axis=1),  # parameters
        g.add("concat", y, g.add("log_softmax", y), axis=3),  # not contiguous in the whole
    ]
    mine = g.add("softmax", y)
    whole += [g.add("concat", mine, g.add("log_softmax", y), axis=1), mine]  # a result of the graph
    assert pieces(g.build(*whole)) == {}


def test_compiled_joins_run_no_kernel() -> None:
    random = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.input("x", (1, 16, 9, 9))

    def convolution(source: str, channels: int) -> str:
        weight = random.standard_normal((channels, g.types[source].shape[1], 3, 3), dtype=np.float32) / 12
        return g.add("relu", g.add("conv2d", source, g.constant(weight), pads=(1, 1, 1, 1)))

    first = convolution(x, 32)
    for _ in range(3):
        first = g.add("concat", first, convolution(first, 16), axis=1)
    g.add("max_pool2d", first, kernel=(2, 2), name="y")
    graph = g.build("y")
    feed = random.standard_normal((1, 16, 9, 9), dtype=np.float32)
    module = bn.compile(graph, exact=True)
    assert not any("= concat" in row["group"] for row in module.executable.info["kernels"])
    np.testing.assert_allclose(module(feed), evaluate(graph, {"x": feed})["y"], rtol=1e-4, atol=1e-5)

"""Which concatenations and slices need no code."""

import numpy as np

import burnish as bn
from burnish.graph import Graph, GraphBuilder
from burnish.graph.evaluate import evaluate
from burnish.graph.fuse import fuse
from burnish.graph.join import find_pieces, find_views
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


def test_parts_lie_at_multiples_of_what_a_machine_moves_at_once() -> None:
    g = GraphBuilder()
    g.add("concat", *images(g, 2, 4, 2), axis=1, name="z")
    graph = g.build("z")
    assert find_pieces(graph, fuse(graph), {}, 16) == {"y0": ("z", 0), "y1": ("z", 48), "y2": ("z", 144)}
    assert find_pieces(graph, fuse(graph), {}, 32) == {}
    g = GraphBuilder()
    (y,) = images(g, 8)
    slices = [g.add("slice", y, starts=(0, c, 0, 0), extents=(1, 2, 2, 3), name=f"s{c}") for c in (1, 2)]
    cut = g.build(*(g.add("softmax", name) for name in slices))
    assert find_views(cut, fuse(cut), {}, {}, 16) == {"s2": (y, 48)}


def views(graph: Graph, *names: str) -> dict[str, tuple[str, int]]:
    """The slices that are read where they lie, where ``names`` are stored in blocks."""
    layouts = dict.fromkeys(names, BLOCKED)
    groups = fuse(graph, 16 if names else 1)
    return find_views(graph, groups, layouts, find_pieces(graph, groups, layouts))


def test_a_slice_of_one_run_of_memory_is_read_where_it_lies() -> None:
    g = GraphBuilder()
    (y,) = images(g, 7)
    rows = g.add("reshape", y, shape=(7, 6))
    inner = g.add("slice", y, starts=(0, 2, 1, 0), extents=(1, 1, 1, 3), name="inner")
    found = views(g.build(
        g.add("softmax", g.add("slice", y, starts=(0, 2, 0, 0), extents=(1, 4, 2, 3), name="channels")),
        g.add("softmax", inner),
        g.add("softmax", g.add("slice", rows, starts=(1, 0), extents=(6, 3), name="columns")),
        g.add("slice", y, starts=(0, 1, 0, 0), extents=(1, 4, 2, 3), name="result"),
    ))  # fmt: skip
    assert found == {"channels": (y, 2 * 24), "inner": (y, 2 * 24 + 12)}


def test_images_of_fewer_channels_than_a_block_are_padded_and_not_read_in_their_middle() -> None:
    g = GraphBuilder()
    y = g.add("softmax", g.input("x", (8, 9, 2, 3)), name="y")
    graph = g.build(*[
        g.add("softmax", g.add("slice", y, starts=(s, c, 0, 0), extents=(e, w, 2, 3), name=n))
        for n, s, e, c, w in [("first", 0, 5, 0, 9), ("last", 7, 1, 0, 9), ("channels", 7, 1, 3, 2)]
    ])  # fmt: skip
    assert views(graph) == {"first": (y, 0), "last": (y, 7 * 9 * 24), "channels": (y, (7 * 9 + 3) * 24)}
    assert views(graph, y, "first", "last", "channels") == {}


def test_channels_in_blocks_are_read_where_they_lie_if_they_begin_one() -> None:
    g = GraphBuilder()
    (y,) = images(g, 80)
    cuts = {"a": (0, 20), "b": (32, 16), "c": (40, 20), "d": (64, 8)}
    parts = [g.add("slice", y, starts=(0, s, 0, 0), extents=(1, e, 2, 3), name=n) for n, (s, e) in cuts.items()]
    graph = g.build(*[g.add("softmax", part) for part in parts])
    assert views(graph, y, "a", "b", "c") == {"a": (y, 0), "b": (y, 32 * 24)}
    assert views(graph, y, "a") == {"a": (y, 0)}, "b is stored in rows"


def test_parts_of_a_join_are_copied_into_it() -> None:
    g = GraphBuilder()
    y, z = images(g, 40, 48)
    y = g.add("softmax", y)
    part = g.add("slice", y, starts=(0, 0, 0, 0), extents=(1, 32, 2, 3), name="part")
    big = g.add("concat", part, z, axis=1, name="whole")
    g2 = g.build(g.add("softmax", big), g.add("relu", part))
    assert views(g2) == {"part": (y, 0)}, "a small join is one kernel"


def test_compiled_parts_run_no_kernel() -> None:
    random = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.input("x", (1, 32, 9, 9))

    def convolution(source: str, channels: int, size: int) -> str:
        weight = random.standard_normal((channels, g.types[source].shape[1], size, size), dtype=np.float32) / 12
        return g.add("conv2d", source, g.constant(weight), pads=(size // 2,) * 4)

    whole = g.add("relu", convolution(x, 112, 1))
    a, b, c = (
        g.add("slice", whole, starts=(0, s, 0, 0), extents=(1, e, 9, 9)) for s, e in ((0, 32), (32, 48), (80, 32))
    )
    pooled = g.add("avg_pool2d", c, kernel=(3, 3), pads=(1, 1, 1, 1))
    joined = g.add("concat", a, g.add("relu", convolution(b, 64, 3)), pooled, axis=1)
    g.add("max_pool2d", g.add("relu", joined), kernel=(2, 2), name="y")
    graph = g.build("y")
    feed = random.standard_normal((1, 32, 9, 9), dtype=np.float32)
    module = bn.compile(graph, exact=True, rewrite=False)
    kernels = [row["group"].split(" = ")[1].split(" (")[0] for row in module.executable.info["kernels"]]
    assert kernels.count("slice") == 1, "the part that the join takes as it is"
    assert not any("concat" in kernel or "slice " in kernel for kernel in kernels)
    np.testing.assert_allclose(module(feed), evaluate(graph, {"x": feed})["y"], rtol=1e-4, atol=1e-5)

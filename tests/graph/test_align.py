"""Parts of a convolution's channels are moved to the beginning of blocks, and stay what they are."""

import numpy as np

from burnish.graph import Graph, GraphBuilder
from burnish.graph.align import align_parts
from burnish.graph.evaluate import evaluate

RANDOM = np.random.default_rng(0)


def whole_numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Small ones, whose sums are exact in any order."""
    return RANDOM.integers(-8, 8, shape).astype(np.float32)


def merged(cuts: list[tuple[int, int]], whole: bool = False) -> Graph:
    """relu(x * w + b) of 100 channels, of which slices are read."""
    g = GraphBuilder()
    weight, bias = (g.constant(whole_numbers(s)) for s in ((100, 8, 1, 1), (100, 1, 1)))
    x = g.add("conv2d", g.input("x", (1, 8, 3, 4)), weight)
    y = g.add("mul", g.add("relu", g.add("add", x, bias)), g.constant(np.float32(0.5)))
    parts = [g.add("slice", y, starts=(0, s, 0, 0), extents=(1, e, 3, 4)) for s, e in cuts]
    return g.build(*parts, *([g.add("neg", y)] if whole else []))


def starts(graph: Graph) -> list[int]:
    return [node.attrs["starts"][1] for node in graph.nodes if node.op == "slice"]


def test_parts_begin_blocks() -> None:
    graph = merged([(0, 44), (44, 40), (90, 10)])
    found = align_parts(graph, 16)
    assert starts(found) == [0, 48, 96]
    assert {found.types[n.outputs[0]].shape[1] for n in found.nodes if n.op != "slice"} == {106}
    feeds = {"x": whole_numbers((1, 8, 3, 4))}
    for name, expected in evaluate(graph, feeds).items():
        np.testing.assert_array_equal(evaluate(found, feeds)[name], expected)


def test_what_stays_as_it_is() -> None:
    for graph in (
        merged([(0, 48), (48, 52)]),  # all begin a block
        merged([(0, 44), (40, 60)]),  # two share channels
        merged([(0, 44), (44, 56)], whole=True),  # something reads all channels
        merged([(i, 1) for i in range(0, 100, 4)]),  # four times the channels
    ):
        assert align_parts(graph, 16) is graph

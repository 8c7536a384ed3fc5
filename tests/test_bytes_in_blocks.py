"""Bytes of quantized images: rounded as the standard says, in channel blocks whose words lie in place."""

import numpy as np
import pytest

import burnish as bn
from burnish.graph.fuse import fuse
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.layout import choose_layouts
from burnish.machines.target import host

TOP = 2.0**31


@pytest.mark.parametrize("dtype, zero", [("uint8", 0), ("uint8", 3), ("uint8", 255), ("int8", 0), ("int8", -128)])
@pytest.mark.parametrize("count", [1, 15, 64])
def test_bytes_are_the_nearest_with_ties_to_even(dtype: str, zero: int, count: int) -> None:
    """Also of what lies beyond, of infinity, and of NaN, which is the least byte."""
    random = np.random.default_rng(0)
    near = np.concatenate([np.arange(-140, 400) + 0.5, np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, -0.0, TOP])])
    x = np.concatenate([near, random.standard_normal(count * 20) * 200]).astype(np.float32)
    x = random.permutation(x)[: len(x) // count * count].reshape(-1, count)
    g = GraphBuilder()
    whole = g.add("round", g.input("x", x.shape))
    if dtype == "int8":
        least = g.constant(np.float32(-TOP))
        whole = g.add("where", g.add("greater", whole, least), whole, least)
    found = bn.compile(
        g.build(g.add("cast", g.add("add", whole, g.constant(np.float32(zero))), to=dtype)), rewrite=False
    )(x)
    info = np.iinfo(dtype)
    expected = np.where(np.isnan(x), info.min, np.clip(np.rint(x.astype(np.float64)) + zero, info.min, info.max))
    if dtype == "uint8" or zero == 0:
        np.testing.assert_array_equal(found, expected.astype(dtype))
    else:  # the guard of NaN is in front of the zero point
        np.testing.assert_array_equal(found[~np.isnan(x)], expected[~np.isnan(x)].astype(dtype))


def residual(channels: int, batch: int) -> tuple[Graph, dict[str, np.ndarray], np.ndarray]:
    """Bytes, a product of them over windows, and both together as bytes again; and its value."""
    random = np.random.default_rng(channels)
    g, shape = GraphBuilder(), (batch, channels, 7, 9)
    weight = random.integers(-9, 9, (channels, channels, 3, 3)).astype(np.int8)
    x = g.input("x", shape, "uint8")
    first = g.add("conv2d", x, g.constant(weight), pads=(1, 1, 1, 1))
    mask = g.constant(np.int32(127))
    image = g.add("cast", g.add("bitwise_and", first, mask), to="uint8")
    for _ in range(2):
        second = g.add("conv2d", image, g.constant(weight), pads=(1, 1, 1, 1))
        total = g.add("add", second, g.add("cast", image, to="int32"))
        image = g.add("cast", g.add("bitwise_and", total, mask), to="uint8")
    out = g.build(image)
    value = random.integers(0, 255, shape).astype(np.uint8)

    def convolved(a: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(a, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3))
        return np.einsum("ncyxhw,ochw->noyx", windows.astype(np.int64), weight.astype(np.int64))

    inner = convolved(value) & 127
    for _ in range(2):
        inner = (convolved(inner) + inner) & 127
    return out, {"x": value}, inner.astype(np.uint8)


@pytest.mark.parametrize("channels", [16, 24, 32, 40])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_residual_of_bytes_is_not_overwritten_while_its_words_are_read(channels: int, batch: int) -> None:
    graph, feeds, expected = residual(channels, batch)
    found = bn.compile(graph, threads=1, rewrite=False)(**feeds)
    np.testing.assert_array_equal(found, expected)


def test_words_of_whole_blocks_lie_where_the_bytes_do() -> None:
    lanes = 16
    g = GraphBuilder()
    x = g.input("x", (1, 32, 5, 5), "uint8")
    words = np.ones((32, 8, 1, 1), np.int32)
    first = g.add("byte_conv2d", g.add("byte_words", x, axis=1), g.constant(words))
    image = g.add("cast", first, to="uint8", node="image")
    packed = g.add("byte_words", image, axis=1, node="words")
    graph = g.build(g.add("cast", g.add("byte_conv2d", packed, g.constant(words)), to="float32"))
    layouts = choose_layouts(graph, fuse(graph, lanes), lanes, ("float32", "uint8"))
    assert str(layouts[image]) == "ABCD16b" and str(layouts[packed]) == "ABCD4b"
    assert packed not in choose_layouts(graph, fuse(graph, lanes), lanes)
    if host().has(host().machine.dialect.dots_bytes) and host().lanes == lanes:
        made = bn.compile(residual(32, 1)[0], threads=1, rewrite=False)
        assert sum(call.label.startswith("map") for call in made.executable.steps) == 1  # of the input alone

"""Windows over row-major images against the definitions, on uneven widths, between forbidden pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.layout import separate_inputs
from burnish.kernels.cpu.pool import POOL
from burnish.kernels.cpu.window_rows import DEPTHWISE_ROWS, POOL_ROWS
from burnish.kernels.task import KernelTask
from burnish.kernels.template import Template
from burnish.loops.expr import maximum
from burnish.loops.tensor import compute, placeholder
from burnish.machines.target import host, target
from burnish.ops import OPERATORS

BLOCKED = f"ABCD{host().lanes}b"


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "pad"),
    [
        ((1, 5, 9, 32), 3, 1, 1),
        ((2, 3, 8, 56), 3, 1, 1),
        ((1, 4, 7, 17), 3, 1, 1),
        ((1, 4, 14, 14), 3, 2, 1),
        ((1, 3, 11, 37), 5, 2, 2),
        ((1, 2, 6, 7), 3, 1, 0),
        ((1, 3, 8, 28), 3, 1, 1),
        ((1, 3, 14, 56), 3, 2, 1),
        ((1, 2, 4, 112), 3, 2, 1),
    ],
)
def test_rows_agree_with_the_definition(
    check: Callable[..., object], shape: tuple[int, ...], kernel: int, stride: int, pad: int, edge: str
) -> None:
    x, bias = placeholder(shape, name="x"), placeholder((shape[1], 1, 1), name="b")
    w = placeholder((shape[1], 1, kernel, kernel), name="w")
    attrs = {"groups": shape[1], "strides": (stride, stride), "pads": (pad,) * 4}
    (y,) = OPERATORS["conv2d"].define("y", [x, w], attrs)
    out = compute(y.shape, lambda n, c, i, j: maximum(y[n, c, i, j] + bias[c, 0, 0], 0.0), "out")
    check(DEPTHWISE_ROWS, "conv2d", [out], ["w", "b"], edge=edge)


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads"),
    [
        ((2, 5, 46, 2), (7, 1), (2, 2), (3, 0, 3, 0)),
        ((1, 3, 45, 2), (2, 2), (2, 1), (0, 0, 0, 0)),
        ((1, 4, 33, 7), (3, 7), (1, 1), (1, 0, 1, 0)),
        ((2, 3, 40, 1), (3, 1), (2, 1), (1, 0, 1, 0)),
    ],
)
def test_one_column_of_windows_is_computed_along_the_rows(
    check: Callable[..., object],
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, ...],
    dtype: str,
    edge: str,
) -> None:
    x = placeholder(shape, dtype, "x")
    (y,) = OPERATORS["max_pool2d"].define("y", [x], {"kernel": kernel, "strides": strides, "pads": pads})
    assert y.shape[3] == 1
    check(POOL_ROWS, "max_pool2d", [y], edge=edge)
    if dtype == "float32":
        w = placeholder((shape[1], 1, *kernel), name="w")
        attrs = {"groups": shape[1], "strides": strides, "pads": pads}
        (y,) = OPERATORS["conv2d"].define("y", [x, w], attrs)
        check(DEPTHWISE_ROWS, "conv2d", [y], ["w"], edge=edge)


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((1, 5, 9, 32), {"kernel": (3, 3), "pads": (1, 1, 1, 1)}),
        ((2, 3, 8, 37), {"kernel": (2, 2), "strides": (2, 2)}),
        ((1, 11, 14, 28), {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((1, 2, 9, 23), {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True}),
        ((1, 3, 7, 7), {"kernel": (5, 3), "strides": (1, 2), "pads": (2, 1, 2, 1)}),
        ((1, 2, 4, 112), {"kernel": (3, 3), "strides": (2, 2), "pads": (0, 0, 1, 1)}),
    ],
)
def test_pooling_of_rows(
    check: Callable[..., object], op: str, shape: tuple[int, ...], attrs: dict[str, Any], edge: str
) -> None:
    (y,) = OPERATORS[op].define("y", [placeholder(shape, name="x")], attrs)
    out = compute(y.shape, lambda n, c, i, j: maximum(y[n, c, i, j], 0.0), "out")
    check(POOL_ROWS, op, [out], [], edge=edge)
    check(POOL_ROWS, op, [y], [], edge=edge)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("avg_pool2d", "float64"),
        ("avg_pool2d", "float16"),
        ("max_pool2d", "float64"),
        ("max_pool2d", "float16"),
        ("max_pool2d", "int64"),
    ],
)
def test_pooling_of_every_type(check: Callable[..., object], op: str, dtype: str) -> None:
    """Rows of a few columns, of whole vectors and of neither."""
    for width in (2, 16, 37):
        attrs = {"kernel": (3, 2), "pads": (1, 0, 1, 1), "strides": (2, 1)}
        (y,) = OPERATORS[op].define("y", [placeholder((2, 3, 7, width), dtype, "x")], attrs)
        check(POOL_ROWS, op, [y], [], rtol={"float64": 1e-14, "float16": 1e-3}.get(dtype, 2e-6))


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(("template", "reads", "writes"), [
    (POOL_ROWS, {}, {"out", "r"}), (POOL_ROWS, {}, {"r"}), (POOL, {"x"}, set()), (POOL, {"x"}, {"r"}),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 33, 9, 7), (2, 16, 6, 21)])
def test_pools_read_one_layout_and_write_another(
    check: Callable[..., object], template: Template[Any], reads: set[str], writes: set[str], shape: tuple[int, ...],
    op: str,
) -> None:  # fmt: skip
    """Row-major and in channel blocks, with an epilogue that reads an image in either."""
    (y,) = OPERATORS[op].define("y", [placeholder(shape, name="x")], {"kernel": (3, 3), "pads": (1, 1, 1, 1)})
    other = placeholder(y.shape, name="r")
    out = compute(y.shape, lambda n, c, i, j: maximum(y[n, c, i, j] + other[n, c, i, j], 0.0), "out")
    check(template, op, [out], layouts=dict.fromkeys({*reads, *writes}, BLOCKED))


def test_a_pool_between_layouts_has_a_template() -> None:
    """As the first layer before a convolution, and as the last one behind it."""
    g = GraphBuilder()
    w = g.constant(np.ones((32, 32, 3, 3), np.float32))
    first = g.add("max_pool2d", g.input("x", (1, 32, 20, 20)), kernel=(3, 3), strides=(1, 1))
    convolved = g.add("conv2d", first, w, pads=(1, 1, 1, 1))
    last = g.add("avg_pool2d", convolved, kernel=(2, 2), strides=(2, 2))
    module = bn.compile(g.build(last), threads=1, rewrite=False)
    own = [row["template"] for row in module.info["kernels"] if "pool" in row["kernel"]]
    assert own == ["pool_rows", "pool2d"]


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
@pytest.mark.parametrize("vector", [5, 16])
def test_every_tile(check: Callable[..., object], rows: int, vector: int) -> None:
    """Tiles that divide neither the rows nor the columns."""
    x, w = placeholder((1, 3, 9, 22), name="x"), placeholder((3, 1, 3, 3), name="w")
    (out,) = OPERATORS["conv2d"].define("out", [x, w], {"groups": 3, "strides": (1, 1), "pads": (1, 1, 1, 1)})
    check(DEPTHWISE_ROWS, "conv2d", [out], ["w"], choice={"rows": rows, "vector": vector})


@pytest.mark.parametrize("machine", ["x86-64-v4", "x86-64-v3", "aarch64-cortex-a53"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("width", [4, 7, 14, 28, 37, 56, 112])
def test_default_tiles_leave_registers(machine: str, stride: int, width: int) -> None:
    """Eight accumulators at most, in vectors of at most two registers that leave none of the last part's unused."""
    there, size = target(machine), width * stride
    x, w = placeholder((1, 3, size, size), name="x"), placeholder((3, 1, 3, 3), name="w")
    (out,) = OPERATORS["conv2d"].define("out", [x, w], {"groups": 3, "strides": (stride,) * 2, "pads": (1, 1, 1, 1)})
    choice = DEPTHWISE_ROWS.on(KernelTask("kernel", (x, w), (out,), "conv2d", {}, frozenset("w")), there).space.default
    vector, rows = int(choice["vector"]), int(choice["rows"])
    registers = -(-vector // there.lanes)
    assert registers <= 2
    assert rows * registers <= 8
    full, rest = divmod(width, vector)
    if (stride, width, there.vector_bytes) == (1, 56, 64):
        assert vector == 8  # half vectors, few of which straddle cache lines
    else:
        assert full * registers - (-rest // there.lanes) == -(-width // there.lanes)


def test_half_vectors_are_for_small_windows() -> None:
    x = placeholder((1, 3, 56, 56), name="x")
    for size, vector in ((5, 8), (7, 28)):
        w, pad = placeholder((3, 1, size, size), name="w"), size // 2
        (out,) = OPERATORS["conv2d"].define("out", [x, w], {"groups": 3, "pads": (pad,) * 4})
        task = KernelTask("kernel", (x, w), (out,), "conv2d", {}, frozenset("w"))
        assert DEPTHWISE_ROWS.on(task, target("x86-64-v4")).space.default["vector"] == vector


def layers_of(groups: int, count: int) -> Graph:
    """A convolution with ReLU from input to output, and dense ones behind it."""
    g = GraphBuilder()
    x = g.input("x", (1, 32, 8, 8))
    w = g.constant(np.ones((32, 32 // groups, 3, 3), np.float32))
    y = g.add("relu", g.add("conv2d", x, w, groups=groups, pads=(1, 1, 1, 1)))
    for _ in range(count - 1):
        y = g.add("conv2d", y, g.constant(np.ones((32, 32, 1, 1), np.float32)))
    return g.build(y)


@pytest.mark.parametrize(("groups", "layers", "copied"), [(32, 1, False), (32, 2, True), (1, 1, False), (1, 2, False)])
def test_direct_and_lone_depthwise_layers_read_rows(groups: int, layers: int, copied: bool) -> None:
    graph = separate_inputs(layers_of(groups, layers), 16)
    assert any(node.op == "identity" for node in graph.nodes) == copied

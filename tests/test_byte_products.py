"""Products and convolutions of bytes: exact, by words of four and by float32 sums, at sizes that leave tails."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import burnish as bn
from burnish.graph.byte_products import multiply_bytes
from burnish.graph.evaluate import evaluate_node
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.expr import BYTE_DOT
from burnish.loops.numeric import FUNCTIONS
from burnish.machines.target import Target, host, target

Arrays = Mapping[str, np.ndarray]
ORDER = ["a", "b", "p", "q", "x", "w", "z", "zw"]  # of a node's inputs
SIZES = ((1, 1, 1), (5, 7, 33), (17, 100, 16), (33, 64, 65))
WINDOWS = ((3, 5, 3, 1, 1), (16, 32, 3, 2, 1), (8, 16, 1, 1, 1), (8, 8, 3, 1, 8), (16, 32, 3, 1, 2))
WITHOUT = target("x86-64-v3")  # multiplies no bytes


def drawn(dtype: str, *shape: int) -> np.ndarray:
    """Integers of the whole range."""
    info = np.iinfo(dtype)
    return np.random.default_rng(sum(shape)).integers(info.min, info.max, shape, dtype, endpoint=True)


def values_of(graph: Graph, feeds: Arrays) -> list[np.ndarray]:
    """The outputs of a graph by the definitions of its nodes."""
    known = {**graph.constants, **feeds}
    for node in graph.nodes:
        known.update(zip(node.outputs, evaluate_node(node, [known[n] for n in node.inputs]), strict=True))
    return [known[name] for name in graph.outputs]


def compiled(op: str, feeds: Arrays, constants: Arrays, **attrs: object) -> np.ndarray:
    """What a model of one node computes in int32, natively."""
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [helper.make_node(op, sorted({**feeds, **constants}, key=ORDER.index), ["y"], **attrs)], "one",
        [helper.make_tensor_value_info(k, kind(v.dtype), v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items() if k not in feeds],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return np.asarray(bn.compile(proto, rewrite=False)(**feeds))


@pytest.mark.parametrize("right", ["uint8", "int8"])
@pytest.mark.parametrize("left", ["uint8", "int8"])
def test_products_are_exact(left: str, right: str) -> None:
    for rows, depth, columns in SIZES:
        a, b = drawn(left, rows, depth), drawn(right, depth, columns)
        wanted = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - 5)
        zeros = {"p": np.array(3, left), "q": np.array(5, right)}
        found = compiled("MatMulInteger", {"a": a}, {"b": b, **zeros})
        np.testing.assert_array_equal(found, wanted, err_msg=f"{rows} {depth} {columns}")
    np.testing.assert_array_equal(compiled("MatMulInteger", {"a": a, "b": b}, zeros), wanted)


def convolved(x: np.ndarray, w: np.ndarray, stride: int, pad: int, groups: int) -> np.ndarray:
    """A convolution of int64 arrays."""
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    parts = zip(np.split(seen, groups, 1), np.split(w, groups, 0), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", *part) for part in parts], 1)


@pytest.mark.parametrize("known", [True, False], ids=["zero point known", "at the call"])
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_convolutions_are_exact(dtype: str, zero: int, known: bool) -> None:
    """Of few channels and of many, strided, grouped, depthwise."""
    for c, o, k, stride, groups in WINDOWS:
        x, w, pad = drawn(dtype, 2, c, 9, 10), drawn("int8", o, c // groups, k, k), k // 2
        wanted = convolved(x.astype(np.int64) - zero, w.astype(np.int64), stride, pad, groups)
        point = {"z": np.array(zero, dtype)}
        feeds, constants = ({"x": x}, {"w": w}) if known else ({"x": x, "z": point["z"]}, {"w": w})
        found = compiled(
            "ConvInteger", feeds, {**constants, **point}, pads=[pad] * 4, strides=[stride] * 2, group=groups
        )
        np.testing.assert_array_equal(found, wanted, err_msg=f"{c} {o} {k} {stride} {groups}")


@pytest.mark.parametrize("points", [0, 120, 255, "each channel"])
@pytest.mark.parametrize("zero", [0, 7])
def test_weights_beyond_signed_bytes_are_bytes_and_the_sum_of_the_window(zero: int, points: int | str) -> None:
    """Of uint8 weights whose difference from their zero point no byte holds."""
    for stride, pad, k in ((1, 1, 3), (2, 0, 3), (1, 0, 1)):
        x, w = drawn("uint8", 1, 12, 9, 10), drawn("uint8", 20, 12, k, k)
        w.reshape(20, -1)[:, :2] = 0, 255
        point = np.arange(20, dtype=np.uint8) * 13 if isinstance(points, str) else np.array(points, np.uint8)
        own = w.astype(np.int64) - point.astype(np.int64).reshape(-1, 1, 1, 1)
        wanted = convolved(np.pad(x.astype(np.int64) - zero, [(0, 0)] * 2 + [(pad, pad)] * 2), own, stride, 0, 1)
        constants = {"w": w, "z": np.array(zero, np.uint8), "zw": point}
        found = compiled("ConvInteger", {"x": x}, constants, pads=[pad] * 4, strides=[stride] * 2)
        np.testing.assert_array_equal(found, wanted, err_msg=f"{stride} {pad} {k}")


def test_dot_products_of_bytes_take_unsigned_and_signed_ones() -> None:
    x = np.array([0x04030201, -1], np.int32)
    y = np.array([0x7F80FF01, -1], np.int32)  # 1, -1, -128, 127; four times 255 * -1
    assert FUNCTIONS[BYTE_DOT](x, y).tolist() == [1 - 2 - 3 * 128 + 4 * 127, 4 * -255]


@pytest.mark.parametrize("right", ["uint8", "int8"])
@pytest.mark.parametrize("left", ["uint8", "int8"])
def test_both_ways_equal_the_definition(left: str, right: str) -> None:
    b = GraphBuilder()
    b.input("a", (5, 9), left)
    w = b.constant(drawn(right, 9, 7))
    b.input("x", (1, 6, 5, 5), left)
    k = b.constant(drawn(right, 4, 6, 3, 3))
    graph = b.build(b.add("matmul", "a", w), b.add("conv2d", "x", k, pads=(1, 0, 1, 2), strides=(2, 1)))
    feeds = {"a": drawn(left, 5, 9), "x": drawn(left, 1, 6, 5, 5)}
    wanted = values_of(graph, feeds)
    words = host().has("avx512vnni")
    for machine in (host(), WITHOUT):
        made = multiply_bytes(graph, machine)
        assert any(n.op == "byte_matmul" for n in made.nodes) == (words and machine is not WITHOUT)
        for found, value in zip(values_of(made, feeds), wanted, strict=True):
            np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(("channels", "outputs", "groups"), [(12, 12, 12), (16, 24, 2), (12, 8, 4)])
def test_groups_by_weights_beyond_signed_bytes_are_exact(channels: int, outputs: int, groups: int) -> None:
    """Images, and signals."""
    x, w = drawn("uint8", 1, channels, 1, 21), drawn("uint8", outputs, channels // groups, 1, 3)
    w.reshape(outputs, -1)[:, :2] = 0, 255
    wanted = convolved(np.pad(x.astype(np.int64) - 7, [(0, 0)] * 3 + [(1, 1)]), w.astype(np.int64) - 120, 1, 0, groups)
    zeros = {"z": np.array(7, np.uint8), "zw": np.array(120, np.uint8)}
    found = compiled("ConvInteger", {"x": x}, {"w": w, **zeros}, pads=[0, 1, 0, 1], group=groups)
    np.testing.assert_array_equal(found, wanted)
    found = compiled("ConvInteger", {"x": x[:, :, 0]}, {"w": w[:, :, 0], **zeros}, pads=[1, 1], group=groups)
    np.testing.assert_array_equal(found, wanted[:, :, 0])


@pytest.mark.parametrize("machine", [target("cascadelake"), WITHOUT], ids=["words", "floats"])
def test_a_weight_that_several_nodes_read_is_made_ready_once(machine: Target) -> None:
    """As that of a recurrent layer, by each of its steps: copies would not stay in a cache."""
    b = GraphBuilder()
    w, k = b.constant(drawn("uint8", 8, 6)), b.constant(drawn("int8", 4, 4, 3, 3))
    products = [b.add("matmul", b.input(f"a{i}", (1, 8), "int8"), w) for i in range(3)]
    windows = [b.add("conv2d", b.input(f"x{i}", (1, 4, 5, 5), "int8"), k) for i in range(3)]
    graph = b.build(*products, *windows)
    made, alone = (multiply_bytes(g, machine) for g in (graph, b.build(products[0], windows[0])))
    large = [sorted(v.shape for v in g.constants.values() if v.size > 1) for g in (made, alone)]
    assert large[0] == large[1]

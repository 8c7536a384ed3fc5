"""Whole models of integer and gather operators at sizes that leave tails, among operators that move elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import burnish as bn
from burnish.loops.expr import INTS
from tests.marks import slow_except

SIZES = (1, 3, 15, 16, 17, 31, 33, 100)
Arrays = dict[str, np.ndarray]


class Net:
    """A model under construction beside its value: nodes are added to both."""

    def __init__(self, **feeds: np.ndarray) -> None:
        self.feeds, self.values = feeds, dict(feeds)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: Arrays = {}

    def add(self, op: str, inputs: list[str | np.ndarray], value: np.ndarray, **attrs: object) -> str:
        names = []
        for given in inputs:
            if not isinstance(given, str):
                self.constants[f"c{len(self.constants)}"] = given
            names.append(given if isinstance(given, str) else f"c{len(self.constants) - 1}")
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [out], **attrs))
        self.values[out] = value
        return out

    def check(self, *outputs: str) -> None:
        """Compiles the model and compares what it computes, exactly."""
        kind = helper.np_dtype_to_tensor_dtype
        graph = helper.make_graph(
            self.nodes, "net",
            [helper.make_tensor_value_info(k, kind(v.dtype), v.shape) for k, v in self.feeds.items()],
            [helper.make_tensor_value_info(k, kind(self.values[k].dtype), self.values[k].shape) for k in outputs],
            [numpy_helper.from_array(v, k) for k, v in self.constants.items()],
        )  # fmt: skip
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        found = bn.compile(proto, rewrite=False)(**self.feeds)
        for name, array in zip(outputs, found if len(outputs) > 1 else [found], strict=True):
            np.testing.assert_array_equal(np.asarray(array), self.values[name], err_msg=str(graph))

    # --- what moves elements: along the last axis ---

    def doubled(self, x: str) -> str:
        return self.add("Concat", [x, x], np.concatenate([self.values[x]] * 2, -1), axis=-1)

    def padded(self, x: str) -> str:
        v = self.values[x]
        widths = [(0, 0)] * (v.ndim - 1) + [(1, 2)]
        pads = np.array([w for side in zip(*widths, strict=True) for w in side], np.int64)
        return self.add("Pad", [x, pads, np.array(0, v.dtype)], np.pad(v, widths))

    def sliced(self, x: str) -> str:
        v = self.values[x]
        at = [np.array([n], np.int64) for n in (-1, -v.shape[-1] - 1, -1, -1)]  # from the last one back
        return self.add("Slice", [x, *at], v[..., ::-1])

    def chosen(self, x: str) -> str:
        v = self.values[x]
        test = self.add("Greater", [x, np.array(1, v.dtype)], v > 1)
        return self.add("Where", [test, x, np.array(3, v.dtype)], np.where(v > 1, v, np.array(3, v.dtype)))


MOVES: list[Callable[[Net, str], str]] = [lambda net, x: x, Net.doubled, Net.padded, Net.sliced, Net.chosen]
NAMES = ["plain", "Concat", "Pad", "Slice", "Where"]


def truncated(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quotient towards zero and remainder as ONNX defines Div and Mod(fmod=1), of Python's integers; 0 by 0."""
    x, y = a.astype(object), b.astype(object)
    y = np.where(y == 0, 1, y)
    q = np.where((x < 0) == (y < 0), abs(x) // abs(y), -(abs(x) // abs(y)))
    r = x - q * y
    q, r = (np.where(b == 0, 0, v) for v in (q, r))
    bits = a.dtype.itemsize * 8
    wrapped = np.array([n % (1 << bits) for n in q.ravel()], dtype=f"uint{bits}").view(a.dtype).reshape(q.shape)
    return wrapped, r.astype(a.dtype)


def operands(n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the whole range, divided by small ones, by zero, and by -1."""
    info, rng = np.iinfo(dtype), np.random.default_rng(n)
    a = rng.integers(info.min, info.max, (2, n), dtype, endpoint=True)
    b = rng.integers(max(info.min, -3), 4, (2, n)).astype(dtype)
    a[:, 0], b[0, 0] = info.min, -1 if info.min else 0
    return a, b


def divide(net: Net, a: str, b: str) -> list[str]:
    """Div, and Mod in both its forms, of two tensors of the net."""
    x, y = net.values[a], net.values[b]
    quotient, rest = truncated(x, y)
    with np.errstate(all="ignore"):
        floor = np.remainder(x, y)
    return [net.add("Div", [a, b], quotient), net.add("Mod", [a, b], floor), net.add("Mod", [a, b], rest, fmod=1)]


@pytest.mark.parametrize("n", slow_except(SIZES, 1, 17, 100))
@pytest.mark.parametrize("dtype", INTS)
def test_division(dtype: str, n: int) -> None:
    a, b = operands(n, dtype)
    net = Net(a=a, b=b, row=b[0])
    net.check(*divide(net, "a", "b"), *divide(net, "a", "row"))


@pytest.mark.parametrize("n", slow_except([3, 17, 33], 17))
@pytest.mark.parametrize("behind", MOVES, ids=NAMES)
@pytest.mark.parametrize("front", MOVES[1:], ids=NAMES[1:])
def test_division_among_what_moves_elements(front: Callable, behind: Callable, n: int) -> None:
    a, b = operands(n, "int32" if n == 17 else "int8")
    net = Net(a=a, b=b)
    net.check(*(behind(net, y) for y in divide(net, front(net, "a"), front(net, "b"))))


def near(i: np.ndarray, extent: int) -> np.ndarray:
    """Indices as gathers take them: negative ones from the end, those out of range as the nearer end."""
    return np.clip(np.where(i < 0, i + extent, i), 0, extent - 1)


def gathers(net: Net, x: str, rows: str, columns: str, each: str) -> list[str]:
    v = net.values[x]
    i, j, k = (net.values[name] for name in (rows, columns, each))
    return [
        net.add("Gather", [x, rows], v[near(i, v.shape[0])], axis=0),
        net.add("Gather", [x, columns], v[:, near(j, v.shape[1])], axis=1),
        net.add("GatherElements", [x, each], np.take_along_axis(v, near(k, v.shape[0]), 0), axis=0),
        net.add("GatherElements", [x, each], np.take_along_axis(v, near(k, v.shape[1]), 1), axis=1),
    ]


def table(n: int, dtype: str) -> Arrays:
    """A matrix, and indices into it of which some are negative, and some far outside."""
    rng = np.random.default_rng(n)
    wide = (rng.integers(0, 5, (7, n)) + rng.integers(-1, 2, (7, n)) * 7).astype(dtype)
    return {
        "x": rng.integers(0, 9, (7, n)).astype("float32"), "rows": rng.integers(-9, 9, 5).astype(dtype),
        "columns": rng.integers(-2 * n, 2 * n, n + 3).astype(dtype), "each": wide,
    }  # fmt: skip


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gathers(dtype: str, n: int) -> None:
    net = Net(**table(n, dtype))
    outputs = gathers(net, "x", "rows", "columns", "each")
    pairs = np.random.default_rng(0).integers(-9, 9, (n, 2)).astype("int64")
    net.feeds["pairs"] = net.values["pairs"] = pairs
    value = net.values["x"][near(pairs[:, 0], 7), near(pairs[:, 1], n)]
    net.check(*outputs, net.add("GatherND", ["x", "pairs"], value))


@pytest.mark.parametrize("n", slow_except([3, 17, 33], 17))
@pytest.mark.parametrize("behind", MOVES, ids=NAMES)
@pytest.mark.parametrize("front", MOVES, ids=NAMES)
def test_gathers_among_what_moves_elements(front: Callable, behind: Callable, n: int) -> None:
    """What is gathered and the indices of each element are both moved; so is the result, and then divided by."""
    net = Net(**table(n, "int64"))
    moved = gathers(net, front(net, "x"), "rows", "columns", front(net, "each"))
    net.check(*(behind(net, y) for y in moved))


@pytest.mark.parametrize("n", [3, 17])
def test_gathers_at_indices_whose_computation_wraps_around(n: int) -> None:
    rng = np.random.default_rng(n)
    u = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    net = Net(x=rng.integers(0, 9, 7).astype("float32"), u=u)
    wide = net.add("Cast", ["u"], u.astype("int64"), to=onnx.TensorProto.INT64)
    large = net.add("Mul", [wide, np.array(1 << 40)], u.astype("int64") * (1 << 40))
    assert (net.values[large] < 0).any()
    net.check(net.add("Gather", ["x", large], net.values["x"][near(net.values[large], 7)], axis=0))


@pytest.mark.parametrize("n", [5, 16, 33])
def test_a_mean_over_the_padded_gather_of_a_transpose_joined_with_itself(n: int) -> None:
    net = Net(**table(n, "int64"))
    x = net.values["x"]
    t = net.add("Transpose", ["x"], x.T, perm=[1, 0])
    g = net.add("Gather", [t, np.array([0, -2, 3, -5])], x.T[[0, -2, 3, -5]], axis=0)
    p = net.add("Pad", [g, np.array([2, 0, 2, 0])], np.pad(net.values[g], ((2, 2), (0, 0))))
    c = net.add("Concat", [p, p], np.concatenate([net.values[p]] * 2, 1), axis=1)
    net.check(net.add("ReduceMean", [c, np.array([0])], net.values[c].mean(0), keepdims=0))


@pytest.mark.parametrize("channels", [3, 13, 17])
@pytest.mark.parametrize("width", [13, 63])
def test_response_normalization_of_pooled_channels_broadcast_to_lanes(channels: int, width: int) -> None:
    """Loops of several lengths in one basic block: of the channels, and of vectors of them."""
    rng = np.random.default_rng(channels)
    x = rng.integers(-3, 9, (1, channels, 4, 5)).astype("float32")
    net = Net(x=x, b=rng.integers(0, 9, (width,)).astype("float32"))
    top = x.max((2, 3), keepdims=True)
    squares = np.pad(top**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    pooled = net.add("GlobalMaxPool", ["x"], top)
    scaled = net.add("LRN", [pooled], top / (1 + total), size=3, alpha=3.0, beta=1.0)
    y = net.add("Add", [scaled, "b"], net.values[scaled] + net.values["b"])
    net.values[y] = np.round(net.values[y] * 64).astype("float32")
    z = net.add("Mul", [y, np.array(64, "float32")], net.values[y])
    net.check(net.add("Round", [z], net.values[y]))


@pytest.mark.parametrize("n", [1, 10, 33])
def test_conditions_on_sums_that_wrap_around(n: int) -> None:
    """``x + 1 > x`` fails at the largest number, and ``x + 1 < 7`` holds there: neither says anything of ``x``."""
    edges = [2**63 - 1, -(2**63), 5, 6, 7, 0, -3, 2**63 - 2, 3, 2**62]
    x = np.resize(np.array(edges, np.int64), n)
    net = Net(x=x)
    more = net.add("Add", ["x", np.int64(1)], x + 1)
    a = net.add("Greater", [more, "x"], x + 1 > x)
    b = net.add("Greater", ["x", np.int64(5)], x > 5)
    c = net.add("Less", [more, np.int64(7)], x + 1 < 7)
    d = net.add("Less", ["x", np.int64(7)], x < 7)
    both = net.add("And", [b, a], (x > 5) & (x + 1 > x))
    either = net.add("And", [c, d], (x + 1 < 7) & (x < 7))
    net.check(both, either, net.add("Where", [either, more, "x"], np.where((x + 1 < 7) & (x < 7), x + 1, x)))

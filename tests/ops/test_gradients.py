"""The gradient of every operator against central differences, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from burnish.errors import ModelError, UnsupportedOperator
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import gradients
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.verify import verify
from burnish.measure.accuracy import scaled_error
from burnish.ops import OPERATORS, operator_named
from burnish.ops.adjoint import application
from burnish.ops.operator import Composed, Operator, Refused

STEP = 1e-6
RANDOM = np.random.default_rng(7)


@dataclass(frozen=True)
class Case:
    op: str
    arrays: Sequence[np.ndarray]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, a.shape)) for a in self.arrays)
        return f"{self.op}-{shapes}" + "".join(f"-{k}={v}" for k, v in self.attrs.items()).replace(" ", "")


def words(text: str) -> list[str]:
    return text.split()


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape)


def positive(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.5, 3.0, size=shape)


def inner(*shape: int) -> np.ndarray:
    return RANDOM.uniform(-0.9, 0.9, size=shape)


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    return RANDOM.integers(low, high, size=shape).astype(dtype)


def case(op: str, *arrays: np.ndarray, **attrs: Any) -> Case:
    return Case(op, arrays, attrs)


UNARY = words(
    "identity relu abs neg sign exp expm1 sqrt_ rsqrt_ log_ log1p_ reciprocal tanh erf sin cos floor ceil round "
    "sigmoid softplus softsign silu hard_swish mish sinh cosh selu leaky_relu elu celu thresholded_relu hard_sigmoid "
    "gelu atan asinh"
)
POOLS: Sequence[Mapping[str, Any]] = (
    {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"kernel": (2, 3), "strides": (1, 3), "dilations": (2, 1)},
    {"kernel": (3, 2), "strides": (2, 2), "ceil_mode": True},
    {"kernel": (2, 2), "strides": (2, 2)},
    {"kernel": (9, 9), "pads": (4, 4, 4, 4)},
)
CONVOLUTIONS: Sequence[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = (
    ((2, 3, 7, 6), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 3, 8, 7), (4, 3, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 3, 9, 10), (5, 3, 3, 2), {"strides": (2, 3), "pads": (1, 0, 2, 1), "dilations": (3, 2)}),
    ((2, 4, 7, 6), (6, 2, 3, 3), {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "groups": 2}),
    ((2, 4, 6, 6), (8, 1, 3, 3), {"pads": (1, 1, 1, 1), "groups": 4}),
    ((1, 4, 7, 7), (3, 4, 1, 1), {"strides": (2, 2)}),
)
TRANSPOSED: Sequence[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = (
    ((2, 3, 4, 5), (3, 4, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 0)}),
    ((1, 4, 4, 3), (4, 2, 3, 2), {"strides": (2, 1), "dilations": (1, 2), "groups": 2}),
    ((1, 3, 1, 1), (3, 4, 4, 4), {}),
    ((1, 2, 3, 3), (2, 17, 3, 3), {"strides": (2, 2), "pads": (0, 1, 1, 0)}),
)
REDUCTIONS = words("sum prod max min mean l1 l2 sumsq logsumexp")


def cases() -> list[Case]:
    found = [case(op.rstrip("_"), positive(3, 5) if op.endswith("_") else normal(3, 5)) for op in UNARY]
    found += [case(op, inner(4, 3)) for op in ("asin", "acos", "atanh")] + [case("acosh", 1.2 + positive(7))]
    found += [case("gelu", normal(6), approximate="tanh"), case("celu", normal(6), alpha=0.7)]
    found += [case("clip", normal(9), min=-0.5, max=0.7), case("cast", normal(3), to="float64")]
    found += [case("cast", normal(3), to="int64")]
    found.append(case("add_term", normal(3, 4), normal(3, 4)))
    for op in ("add", "sub", "mul", "maximum", "minimum", "prelu", "logaddexp"):
        found += [
            case(op, normal(3, 4), normal(4)),
            case(op, normal(2, 1, 3), normal(4, 1)),
            case(op, normal(), normal(3)),
        ]
    found += [case("div", normal(3, 4), positive(4)), case("floor_div", normal(3, 4), positive(4))]
    found += [case("pow", positive(3, 4), normal(1)), case("pow", positive(5), np.array([2.0]))]
    found.append(case("logaddexp", normal(3, 4), normal(3, 1), base=2.0))
    found += [case("mod", normal(3, 4), positive(4)), case("mod", normal(3, 4), normal(3, 1), truncate=True)]
    found += [
        case("block_dequantize", integers(0, 16, 8, 3, dtype="uint8"), normal(2, 3), normal(2, 3), bits=4, block=4)
    ]
    found += [case("where", RANDOM.random((3, 1)) < 0.5, normal(3, 4), normal(4))]
    for a, b, attrs in (
        ((3, 4), (4, 5), {}), ((4, 3), (4, 5), {"transpose_a": True}), ((3, 4), (5, 4), {"transpose_b": True}),
        ((4, 3), (5, 4), {"transpose_a": True, "transpose_b": True}), ((2, 3, 4), (4, 5), {}),
        ((2, 3, 4), (5, 4), {"transpose_b": True}), ((2, 4, 3), (4, 5), {"transpose_a": True}),
        ((2, 1, 3, 4), (3, 4, 5), {}), ((3, 4), (2, 2, 4, 5), {}), ((4,), (4, 5), {}), ((2, 3, 4), (4,), {}),
        ((4,), (4,), {}), ((2, 1, 4, 3), (1, 3, 5, 4), {"transpose_a": True, "transpose_b": True}),
    ):  # fmt: skip
        found.append(case("matmul", normal(*a), normal(*b), **attrs))
    for x, w, given in CONVOLUTIONS:
        found += [
            case("conv2d", normal(*x), normal(*w), normal(w[0]), **given),
            case("conv2d", normal(*x), normal(*w), **given),
        ]
    for x, w, given in TRANSPOSED:
        bias = normal(w[1] * given.get("groups", 1))
        found.append(case("conv2d_transpose", normal(*x), normal(*w), bias, **given))
    found += [case("transposed_weight", normal(3, 4, 3, 3), strides=(2, 2))]
    found += [case("banded_conv2d", normal(1, 6, 5, 5), normal(6, 4, 3, 3), outputs=2, depth=2, block=4)]
    for given in POOLS:
        found.append(case("max_pool2d", normal(2, 2, 7, 8), **given))
        found += [case("avg_pool2d", normal(2, 2, 7, 8), **given, count_include_pad=c) for c in (False, True)]
    for kind in REDUCTIONS:
        found += [case(f"reduce_{kind}", normal(3, 4, 5), axes=(0, 2), keepdims=k) for k in (False, True)]
        found.append(case(f"reduce_{kind}", normal(3, 4)))
    found += [case("reduce_prod", np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0]]), axes=(1,))]
    for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
        found.append(case("cumsum", normal(3, 7), axis=1, exclusive=exclusive, reverse=reverse))
    found.append(case("cumsum", normal(100, 2), axis=0))
    found += [case(op, normal(2, 70), axis=1) for op in ("cummax", "cummin", "logcumsumexp")]
    found.append(case("logcumsumexp", 40 * normal(3, 5), axis=0, reverse=True))
    found += [case("erfc", normal(9)), case("erfc_slope", normal(9))]
    found += [case("erfinv", inner(9)), case("lgamma", positive(9)), case("digamma", normal(9) - 1.5)]
    found.append(case("lgamma", np.array([-3.3, -0.2, 0.3, 1.0, 2.0, 7.9, 8.1, 30.0])))
    square = normal(2, 4, 4)
    found += [case("solve", square, normal(2, 4, 3)), case("log_determinant", square)]
    ends = np.array([2, 2, 6])
    found.append(case("grouped_matmul", normal(7, 3), normal(3, 3, 4), ends))
    found.append(case("grouped_outer", normal(7, 3), normal(7, 4), ends))
    found += [case(op, normal(3, 4, 5), axis=axis) for op in ("softmax", "log_softmax") for axis in (-1, 1)]
    found += [case("layer_norm", normal(2, 3, 4), normal(3, 4), normal(3, 4), axis=1), case("layer_norm", normal(3, 6))]
    found += [
        case("rms_norm", normal(3, 6), normal(6)),
        case("group_norm", normal(2, 6, 3), normal(6), normal(6), groups=2),
    ]
    found += [case("instance_norm", normal(2, 3, 4, 2), normal(3), normal(3))]
    found += [case("batch_norm", normal(2, 3, 4), normal(3), normal(3), normal(3), positive(3))]
    found += [case("batch_norm_training", normal(4, 3, 2, 5), normal(3), normal(3))]
    found += [case("plane_moments", normal(2, 3, 4, 2)), case("plane_moments", normal(2, 3))]
    found += [case("plane_products", normal(2, 3, 4), normal(2, 3, 4), normal(3))]
    found += [case("lrn", normal(2, 6, 3), size=3, alpha=0.3), case("lrn", normal(1, 5, 2), size=4, beta=0.6)]
    found += [case("reshape", normal(4, 6), shape=s) for s in ((2, 2, 3, 2), (24,), (3, 8), (8, -1))]
    found += [case("transpose", normal(2, 3, 4), perm=(2, 0, 1)), case("expand", normal(3, 1), shape=(2, 3, 4))]
    found += [case("slice", normal(5, 9), starts=(1, 8), extents=(2, 4), steps=(2, -2))]
    found += [
        case("concat", normal(2, 3), normal(2, 1), normal(2, 4), axis=1),
        case("copied_concat", normal(2, 3), normal(1, 3), axis=0),
        case("tile", normal(2, 3), repeats=(2, 3)),
    ]
    found += [case("pad", normal(4, 5), pads=(1, 2, 0, 3), mode=mode) for mode in ("constant", "reflect", "edge")]
    found += [case("pad", normal(4, 5), pads=(-1, 0, 2, -2)), case("iota", normal(), extent=4, step=2.0)]
    for mode in ("DCR", "CRD"):
        found += [case("depth_to_space", normal(1, 8, 2, 3), block=2, mode=mode)]
        found += [case("space_to_depth", normal(1, 2, 4, 6), block=2, mode=mode)]
    found += [case("trilu", normal(4, 5), upper=u, diagonal=1) for u in (False, True)]
    found += [
        case("gather", normal(5, 3, 2), integers(-5, 8, 2, 3), axis=0),
        case("gather", normal(2, 5, 3), integers(0, 5, 4), axis=1),
    ]
    found += [case("gather", normal(2, 5), np.array(3), axis=1)]
    found += [case("gather_elements", normal(4, 3), integers(-3, 3, 2, 5), axis=1)]
    found += [
        case("gather_nd", normal(3, 4, 2), integers(0, 3, 5, 2)),
        case("gather_nd", normal(2, 4, 3), integers(0, 4, 2, 5, 1), batch_dims=1),
    ]
    found += [case("one_hot", integers(0, 4, 3), normal(2), depth=4)]
    found += [case("reverse_sequence", normal(5, 3), integers(1, 6, 3))]
    found.append(case("resize", normal(1, 2, 4, 3), sizes=(1, 2, 7, 3), mode="linear", coordinates="align_corners"))
    for mode in ("nearest", "linear"):
        found.append(case("resize", normal(2, 3, 2), sizes=(2, 9, 4), mode=mode))
        found += [
            case("resize", normal(1, 2, 4, 3), sizes=(1, 2, 8, 5), mode=mode),
            case("resize", normal(6), sizes=(3,), mode=mode),
        ]
    found += [case("lstm_cell", normal(2, 12), normal(2, 3), normal(2, 3), normal(4, 3, 3))]
    for before in (False, True):
        found.append(
            case("gru_cell", normal(2, 9), normal(2, 3), normal(3, 3, 3), normal(9), linear_before_reset=before)
        )
    found += [case("winograd_conv2d", normal(1, 2, 6, 6), normal(4, 4, 3, 2), m=2)]
    found += [
        case("winograd_weight", normal(3, 2, 3, 3), m=2),
        case("banded_weight", normal(6, 2, 3, 3), groups=3, block=4),
    ]
    found += [case("sort", normal(3, 5), axis=1, descending=True), case("top_k", normal(3, 6), k=2)]
    found += [case("scatter_elements", normal(4, 3), integers(0, 4, 2, 3), normal(2, 3), axis=0, reduction="add")]
    found += [case("scatter_nd", normal(4, 3), integers(0, 4, 6, 1), normal(6, 3), reduction="add")]
    return found


def scattered() -> list[Case]:
    """Scatters in which several updates meet, and zeros among factors."""
    found = []
    for reduction in ("none", "mul", "max", "min"):
        found.append(
            case("scatter_elements", normal(4, 3), integers(-3, 3, 5, 2), normal(5, 2), axis=0, reduction=reduction)
        )
        found.append(case("scatter_nd", normal(4, 3, 2), integers(0, 2, 6, 2), normal(6, 2), reduction=reduction))
    data, updates = normal(3, 2), normal(5, 2)
    data[0, 0] = updates[1, 0] = updates[2, 1] = updates[3, 1] = 0.0
    at = np.array([[0, 1], [0, 1], [1, 2], [1, 2], [1, 0]])
    found.append(case("scatter_elements", data, at, updates, axis=0, reduction="mul"))
    found.append(case("scatter_nd", normal(3), np.zeros((2, 0), np.int64), normal(2, 3)))
    for start, circular in (([1, 0, 3], False), ([3, -2, 5], False), ([3, 4, 0], True)):
        found.append(
            case("scatter_rows", normal(3, 2, 5, 2), normal(3, 2, 3, 2), np.array(start), axis=2, circular=circular)
        )
    found.append(case("scatter_rows", normal(2, 3), normal(2, 3), np.array([0, 1]), axis=1))
    found.append(
        case("fold_windows", normal(2, 12, 9), size=(5, 6), block=(2, 3), strides=(2, 1), pads=(1, 0, 0, 1),
             dilations=(1, 2))
    )  # fmt: skip
    place = np.array([[[0, 5], [5, 3]], [[1, 2], [7, 10]]])
    found.append(case("max_unpool", normal(2, 2, 2)[:, :, :], place, size=(5,)))
    found += [case("convert", normal(3), to="float64"), case("dropout", normal(5, 7), np.array(3), rate=0.4, stream=2)]
    return found


def sampled() -> list[Case]:
    """Images read between their elements, at places that are differentiated too."""
    found = []
    for mode, padding, corners in (
        ("linear", "zeros", False), ("linear", "border", True), ("linear", "reflection", False),
        ("cubic", "zeros", True), ("cubic", "border", False),
        ("cubic", "reflection", True), ("nearest", "zeros", False),
    ):  # fmt: skip
        found.append(
            case("grid_sample", normal(2, 3, 4, 5), RANDOM.uniform(-1.6, 1.6, (2, 3, 2, 2)), mode=mode, padding=padding,
                 align_corners=corners)
        )  # fmt: skip
    found.append(case("grid_sample", normal(1, 2, 3, 2, 4), RANDOM.uniform(-1.1, 1.1, (1, 2, 2, 1, 3))))
    found.append(case("grid_sample", normal(2, 1, 6), RANDOM.uniform(-1.1, 1.1, (2, 5, 1)), mode="cubic"))
    rois = np.array([[0.3, 1.2, 5.4, 4.7], [1.7, 0.1, 3.3, 6.2], [-3.2, 2.3, 2.6, 9.4]])
    for mode, half in (("avg", True), ("avg", False), ("max", True)):
        found.append(
            case("roi_align", normal(2, 3, 6, 7), rois, np.array([1, 0, 1]), size=(2, 3), mode=mode, sampling_ratio=2,
                 spatial_scale=0.7, half_pixel=half)
        )  # fmt: skip
    found.append(case("region_samples", normal(2, 3, 6, 7), rois, np.array([1, 0, 1]), size=(3, 2), sampling_ratio=1))
    for groups, mask in ((1, False), (2, True)):
        taps = groups * 6
        given = [normal(2, 4, 5, 6), normal(2, 2 * taps, 3, 5), *([normal(2, taps, 3, 5)] if mask else [])]
        found.append(
            case("deformed_columns", *given, kernel=(2, 3), strides=(2, 1), pads=(1, 0, 0, 1), offset_groups=groups)
        )
    return found


def spectral() -> list[Case]:
    """Whole lines and matrices."""
    found = []
    for extent, length in ((6, 6), (5, 8), (9, 6), (7, 7)):
        found += [case("dft", normal(2, extent, 2), axis=1, length=length, inverse=i) for i in (False, True)]
        found.append(case("dft", normal(2, extent, 1), axis=1, length=length, onesided=True))
        found.append(case("dft", normal(extent, 3, 2), axis=0, length=length, inverse=True, onesided=True))
    for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
        found.append(case("cumprod", normal(3, 7), axis=1, exclusive=exclusive, reverse=reverse))
    found.append(case("cumprod", np.array([[2.0, 0.0, 3.0, 0.0, 1.0]]), axis=1))
    singular = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, 1.0, -1.0]])
    found += [case("determinant", normal(*shape)) for shape in ((1, 1), (2, 2), (2, 4, 4))]
    found.append(case("determinant", singular))
    return found


def scan_case(body: GraphBuilder, results: Sequence[str], *arrays: np.ndarray, **attrs: Any) -> Case:
    nodes = tuple((n.op, n.inputs, n.outputs, tuple(sorted(n.attrs.items()))) for n in body.nodes)
    return case("scan", *arrays, body=(nodes, tuple(results)), **attrs)


def recurrences() -> list[Case]:
    """Rounds forwards and backwards; with states of which nothing, the last, or all are read; without states."""
    b = GraphBuilder()
    h, x, w, r = (b.input(f"{i}", s, "float64") for i, s in enumerate(((2, 3), (2, 4), (4, 3), (3, 3))))
    new = b.add("tanh", b.add("add", b.add("matmul", x, w), b.add("matmul", h, r)))
    given = (normal(2, 3), normal(5, 2, 4), normal(4, 3), normal(3, 3))
    found = [
        scan_case(b, [new], *given, states=1, sequences=1, every=every, reverse=reverse)
        for every in ((), (0,)) for reverse in (False, True)
    ]  # fmt: skip
    b = GraphBuilder()
    shapes = ((2, 3), (2, 3), (2, 12), (2, 1), (4, 3, 3))
    h, c, x, live, r = (b.input(f"{i}", s, "bool" if i == 3 else "float64") for i, s in enumerate(shapes))
    new = b.add_many("lstm_cell", x, h, c, r)
    h, c, shown = b.add("where", live, new[0], h), b.add("where", live, new[1], c), b.add("mul", new[0], new[0])
    given = (normal(2, 3), normal(2, 3), normal(4, 2, 12), RANDOM.random((4, 2, 1)) < 0.6, normal(4, 3, 3) / 2)
    found.append(scan_case(b, [h, c, shown], *given, states=2, sequences=2, every=(2,)))
    b = GraphBuilder()
    h, x, r, bias, scale = (
        b.input(f"{i}", s, "float64") for i, s in enumerate(((2, 3), (2, 9), (3, 3, 3), (9,), (3,)))
    )
    new = b.add("gru_cell", x, b.add("mul", h, b.add("exp", scale)), r, bias)
    given = (normal(2, 3), normal(6, 2, 9), normal(3, 3, 3) / 2, normal(9), normal(3) / 4)
    found.append(scan_case(b, [new], *given, states=1, sequences=1, every=(0,), reverse=True))
    b = GraphBuilder()
    x, y, w = (b.input(f"{i}", (2, 3), "float64") for i in range(3))
    found.append(
        scan_case(b, [b.add("mul", b.add("sin", x), b.add("add", y, w))], normal(4, 2, 3), normal(4, 2, 3),
                  normal(2, 3), states=0, sequences=2, every=(0,))
    )  # fmt: skip
    b = GraphBuilder()  # an integer that counts rounds, and a state that is handed on
    n, h, g, x = b.input("0", (), "int64"), *(b.input(f"{i}", (3,), "float64") for i in (1, 2, 3))
    count = b.add("add", n, b.input("4", (), "int64"))
    moved = b.add("add", b.add("mul", g, b.add("cast", count, to="float64")), x)
    found.append(
        scan_case(b, [count, moved, b.add("identity", h)], np.array(0), normal(3), normal(3), normal(4, 3), np.array(1),
                  states=3, sequences=1, every=())
    )  # fmt: skip
    return found


CASES = [*cases(), *scattered(), *sampled(), *spectral()]
SCANS = recurrences()
CASES += SCANS
# Nothing of these is differentiable: of integers, bools or strings, to such, or of no tensor.
INTEGER = set(
    words(
        "isnan logical_not isinf equal not_equal less less_equal greater greater_equal logical_and logical_or "
        "logical_xor bitwise_and bitwise_or bitwise_xor shift_left shift_right argmax argmin shape_of count_ngrams "
        "max_pool_indices stop_gradient random_uniform random_normal multinomial byte_words byte_matmul byte_conv2d "
        "bit_words bit_matmul bit_conv2d low_bit_conv2d low_bit_matmul "
        "find_keys true_interval"
    )
)
# The gradient of a symmetric matrix is taken as symmetric, which no single element's difference shows.
# In steps of training: tests/gpu/test_decode.py, test_attention_steps.py.
ELSEWHERE = set(words("put_slice row_attention row_attention_query_gradient row_attention_key_gradient"))
SYMMETRIC = {"cholesky"}  # of which tests/frontend/torch has the gradient
# Forms that the compiler chooses, of operators that are here: of parts of halves, or with infinities.
CHOSEN = set(
    words(
        "polyphase_conv2d split_conv2d split_stem split_matmul polyphase_weight split_weight_parts split_stem_parts "
        "split_matrix_parts band interval block_matmul"
    )
)
# Reductions over loaded extents, and what their structures are made by: in test_sparse.py.
SPARSE = set(
    words(
        "aggregate_blocks attention_sum_blocks csr_block_pointers csr_block_places csr_block_weights csr_transposed "
        "aggregate aggregate_equal aggregate_weighted edge_dot csr_degrees csr_offsets csr_order csr_targets "
        "segment_reduce attention attention_sum attention_total aggregate_ties attention_weighted "
        "attention_weighted_max attention_weighted_sum attention_weighted_total attention_weighted_edges"
    )
)
REFUSED = {
    "bitcast": "bits", "tree_ensemble": "burnish.boost", "coupled_probabilities": "an iteration that ends",
    "output_part": "after differentiation", "partial_sums": "after differentiation",
    "branch": "control flow", "loop": "control flow",
    **dict.fromkeys(("compress", "non_max_suppression", "nonzero", "unique"), "results whose number depends on values"),
}  # fmt: skip


def graph_of(case: Case) -> tuple[Graph, dict[str, np.ndarray], list[str]]:
    """The operator alone, what it is fed, and the outputs that are numbers with fractions."""
    builder = GraphBuilder()
    feeds = {f"in{i}": a for i, a in enumerate(case.arrays)}
    for name, a in feeds.items():
        builder.input(name, a.shape, str(a.dtype))
    outputs = builder.add_many(case.op, *feeds, **case.attrs)
    return builder.build(*outputs), feeds, [name for name in outputs if builder.types[name].dtype == "float64"]


def directional(graph: Graph, of: Sequence[str], feeds: Mapping[str, np.ndarray], wrt: Sequence[str]) -> None:
    """Every gradient along a random direction, against the difference of the values to both sides."""
    rng = np.random.default_rng(3)
    backward = gradients(graph, of, wrt)
    verify(backward)
    seeds = {name: rng.normal(size=backward.types[name].shape) for name in backward.inputs if name not in feeds}
    found = evaluate(backward, {**feeds, **seeds}, "float64")

    def value(given: Mapping[str, np.ndarray]) -> float:
        results = evaluate(graph, given, "float64")
        return float(sum((results[name] * seeds.get(f"{name}.seed", 1.0)).sum() for name in of))

    for name, gradient in zip(wrt, backward.outputs[-len(wrt) :], strict=True):
        assert found[gradient].shape == feeds[name].shape
        direction = rng.normal(size=feeds[name].shape)
        ahead, behind = ({**feeds, name: feeds[name] + s * STEP * direction} for s in (1, -1))
        wanted = (value(ahead) - value(behind)) / (2 * STEP)
        assert abs((found[gradient] * direction).sum() - wanted) <= 1e-6 * max(1.0, abs(wanted)), name


CUBIC = {c for c in map(str, CASES) if c.startswith("grid_sample-2x3x4x5-") and "mode=cubic" in c}


def marked(cases: Sequence[Case]) -> list[Any]:
    """Cases as parameters; images of cubic samples are slow."""
    return [pytest.param(c, marks=pytest.mark.slow) if str(c) in CUBIC else c for c in cases]


@pytest.mark.parametrize("case", marked(CASES), ids=str)
def test_gradients_equal_differences(case: Case) -> None:
    graph, feeds, of = graph_of(case)
    wrt = [name for name, a in feeds.items() if a.dtype == np.float64]
    if of:
        directional(graph, of, feeds, wrt)
    else:
        with pytest.raises(ModelError, match="integer; allowed: floating-point"):
            gradients(graph, graph.outputs, wrt)


def has_rule(op: Operator) -> bool:
    return callable(op.gradient) or isinstance(op.gradient, Composed)


def test_few_operators_have_a_rule_of_their_own() -> None:
    """One rule, or one with several arguments, may serve several; the gradients of all others follow from definitions,
    or from compositions. What is opaque has no definition.
    """
    rules = [op.gradient for name, op in OPERATORS.items() if op.extern is None and name not in SPARSE]
    assert len({rule.__code__ for rule in rules if callable(rule)}) <= 15


RULED = [c for c in CASES if has_rule(OPERATORS[c.op]) and OPERATORS[c.op].extern is None]


@pytest.mark.parametrize("case", marked(RULED), ids=str)
def test_a_rule_gives_what_the_definition_does(case: Case) -> None:
    graph, feeds, of = graph_of(case)
    wrt = [name for name, a in feeds.items() if a.dtype == np.float64]
    ruled = gradients(graph, of, wrt)
    rng = np.random.default_rng(4)
    seeds = {f"{name}.seed": rng.normal(size=graph.types[name].shape) for name in of}
    given = {**feeds, **{name: seed for name, seed in seeds.items() if name in ruled.inputs}}
    values = evaluate(ruled, given)
    node = graph.nodes[0]
    types = [(a.shape, str(a.dtype)) for a in feeds.values()]
    for name, gradient in zip(wrt, ruled.outputs[-len(wrt) :], strict=True):
        number = [*feeds].index(name)
        derived, attrs = application(
            operator_named, case.op, case.attrs, types, number, tuple(range(len(node.outputs)))
        )
        if not derived.reads:  # 0 everywhere
            assert not values[gradient].any(), name
            continue
        b = GraphBuilder.of(graph)
        adjoints = [b.input(f"{o}.seed", graph.types[o].shape, "float64") for o in node.outputs]
        operands = [*node.inputs, *node.outputs, *adjoints]
        own = b.build(b.add("adjoint", *[operands[i] for i in derived.reads], **attrs))
        ones = {f"{o}.seed": seeds[f"{o}.seed"] if f"{o}.seed" in given else np.ones(graph.types[o].shape) for o in of}
        wanted = evaluate(own, {**feeds, **ones})[own.outputs[0]]
        assert scaled_error([values[gradient]], [wanted]) < 1e-9, name


SECOND = [
    c
    for c in CASES
    if c.op in ("tanh", "gelu", "mul", "matmul", "conv2d", "softmax", "layer_norm", "gather", "lstm_cell", "cumprod")
] + SCANS[:1]


@pytest.mark.parametrize("case", SECOND, ids=str)
def test_second_derivatives_equal_differences(case: Case) -> None:
    """Of the sum of the squared gradients by all inputs."""
    graph, feeds, of = graph_of(case)
    wrt = [name for name, a in feeds.items() if a.dtype == np.float64]
    rng = np.random.default_rng(5)
    first = gradients(graph, of, wrt)
    seeds = {name: rng.normal(size=first.types[name].shape) for name in first.inputs if name not in feeds}
    builder = GraphBuilder.of(first)
    squares = [builder.add("reduce_sumsq", name, keepdims=False) for name in first.outputs[-len(wrt) :]]
    directional(builder.build(*squares), squares, {**feeds, **seeds}, wrt)


def test_every_operator_has_a_gradient_or_is_refused() -> None:
    tested = {case.op for case in CASES} | {"adjoint"}  # the adjoint by the second derivatives
    assert not tested & (INTEGER | REFUSED.keys() | CHOSEN | SPARSE | SYMMETRIC | ELSEWHERE)
    assert tested | INTEGER | REFUSED.keys() | CHOSEN | SPARSE | SYMMETRIC | ELSEWHERE == set(OPERATORS)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_has_no_gradient_says_why(name: str) -> None:
    gradient = OPERATORS[name].gradient
    assert isinstance(gradient, Refused) and REFUSED[name] in gradient.reason


def test_refusals_name_node_and_operator() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 3, 3), "float64")
    graph = b.build(b.add("coupled_probabilities", x, node="Svm_7", name="p"), b.add("argmax", x))
    with pytest.raises(UnsupportedOperator, match=r"gradient of node 'Svm_7' \(coupled_probabilities\): an iteration"):
        gradients(graph, "p", ["x"])
    with pytest.raises(ModelError, match=r"argument 'of': found 'argmax', int64.*integer; allowed: floating-point"):
        gradients(graph, "argmax", ["x"])
    with pytest.raises(ModelError, match="argument 'wrt': found no tensor 'w'; allowed: x"):
        gradients(graph, "p", ["w"])


def test_a_region_of_as_many_places_as_it_is_large_is_refused() -> None:
    b = GraphBuilder()
    x, rois, batch = b.input("x", (1, 2, 6, 6)), b.input("rois", (3, 4)), b.input("batch", (3,), "int64")
    graph = b.build(b.add("roi_align", x, rois, batch, size=(2, 2)))
    with pytest.raises(UnsupportedOperator, match="attribute 'sampling_ratio': found 0; allowed: 1 or more"):
        gradients(graph, "roi_align", ["x"])


def test_rounds_of_a_body_without_a_gradient_are_refused() -> None:
    b = GraphBuilder()
    turned = b.add("identity", b.add("coupled_probabilities", b.input("0", (2, 3, 3), "float64")))
    given = scan_case(b, [turned], normal(4, 2, 3, 3), states=0, sequences=1, every=(0,))
    graph, _, of = graph_of(given)
    with pytest.raises(
        UnsupportedOperator, match=r"gradient of node 'scan' \(scan\): .*coupled_probabilities.*iteration"
    ):
        gradients(graph, of, ["in0"])


def test_rounds_keep_what_their_gradient_reads_and_nothing_of_shared_operands() -> None:
    graph, _, of = graph_of(SCANS[0])
    backward = gradients(graph, of, ["in3"])
    forward = next(node for node in backward.nodes if node.op == "scan")
    kept = [backward.types[name].shape for name in forward.outputs[1:]]
    assert sorted(kept) == [(5, 2, 3), (5, 2, 3)]  # the state before each round, and tanh behind it; no weight


def reads(op: str, **attrs: Any) -> set[str]:
    """Which of x, y and the adjoint of y a gradient is computed from."""
    b = GraphBuilder()
    graph = gradients(b.build(b.add(op, b.input("x", (4,)), name="y", **attrs)), "y", ["x"])
    needed = set(graph.outputs[1:])
    for node in reversed(graph.nodes):
        if node.outputs[0] in needed and node.outputs[0] != "y":
            needed |= set(node.inputs)
    return needed & {"x", "y", "y.seed"}


@pytest.mark.parametrize("op", ["relu", "exp", "tanh", "sigmoid", "sqrt", "softmax"])
def test_dependencies_are_as_few_as_can_be(op: str) -> None:
    assert reads(op) == {"y", "y.seed"}
    assert reads("neg") == {"y.seed"} and reads("sin") == {"x", "y.seed"}


def test_slopes_at_corners_and_where_a_branch_is_not_finite() -> None:
    def slope(op: str, x: list[float]) -> list[float]:
        b = GraphBuilder()
        graph = gradients(b.build(b.add(op, b.input("x", (len(x),), "float64"), name="y")), "y", ["x"])
        found = evaluate(graph, {"x": np.array(x), "y.seed": np.ones(len(x))})
        return [float(v) for v in found[graph.outputs[1]]]

    assert slope("relu", [0.0, -0.0, 1.0]) == [0.0, 0.0, 1.0]
    assert slope("softplus", [0.0]) == [0.5] and slope("sign", [0.0, 3.0]) == [0.0, 0.0]
    assert slope("atan", [0.0]) == [1.0]  # -1 / x is a branch that is not taken there
    assert slope("sinh", [0.0]) == [1.0] and slope("cosh", [0.0]) == [0.0]


def test_a_tensor_that_is_read_several_times_or_not_at_all() -> None:
    b = GraphBuilder()
    x, w, unused = b.input("x", (3,), "float64"), b.input("w", (3,), "float64"), b.input("u", (2,), "float64")
    y = b.add("add", b.add("mul", x, x), b.add("mul", x, w))
    graph = gradients(b.build(b.add("reduce_sum", y, name="y")), "y", [x, unused])
    found = evaluate(graph, {"x": np.array([1.0, 2.0, 3.0]), "w": np.array([5.0, 6.0, 7.0]), "u": np.ones(2)})
    assert found[graph.outputs[1]].tolist() == [7.0, 10.0, 13.0] and found[graph.outputs[2]].tolist() == [0.0, 0.0]

"""Export to ONNX: every operator comes back with the same values, and onnxruntime computes the same from the file."""

import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks import models
from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx import from_onnx, to_onnx
from burnish.frontend.onnx.export import OPSET
from burnish.frontend.onnx.export import model as export_model
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.loops.sizes import dim
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error
from burnish.ops import OPERATORS
from tests.frontend.test_onnx_operators import CASES as ONNX_CASES
from tests.frontend.test_onnx_operators import Case, build

ALGORITHMS = {
    "banded_conv2d", "winograd_conv2d", "polyphase_conv2d", "split_conv2d", "split_stem", "split_matmul",
    "banded_weight", "winograd_weight", "polyphase_weight", "split_weight_parts", "split_stem_parts",
    "byte_words", "byte_matmul", "byte_conv2d", "bit_words", "bit_matmul", "bit_conv2d", "block_dequantize",
    "block_matmul",
    "split_matrix_parts", "transposed_weight",
}  # fmt: skip
# Opaque operators, and definitions that the standard has in other terms, which are refused by name.
NOT_EXPORTED = {
    "aggregate_blocks", "attention_sum_blocks",
    "csr_block_places", "csr_block_pointers", "csr_block_weights", "csr_transposed",
    "adjoint", "aggregate", "aggregate_equal", "aggregate_weighted", "attention", "attention_sum", "attention_total",
    "aggregate_ties", "attention_weighted", "attention_weighted_edges", "attention_weighted_max",
    "attention_weighted_sum", "attention_weighted_total",
    "csr_degrees", "csr_offsets", "csr_order", "csr_targets", "edge_dot", "segment_reduce",
    "put_slice", "row_attention", "row_attention_key_gradient", "row_attention_query_gradient",
    "band", "batch_norm_training", "bitcast", "branch", "convert", "count_ngrams", "coupled_probabilities", "cumprod",
    "deformed_columns", "determinant", "dft", "dropout", "fold_windows", "grid_sample", "iota", "loop",
    "max_pool_indices", "max_unpool", "multinomial",
    "add_term", "copied_concat",
    "output_part", "partial_sums", "plane_moments", "plane_products", "random_normal", "random_uniform",
    "region_samples", "reverse_sequence", "low_bit_conv2d", "low_bit_matmul",
    "roi_align", "scan", "scatter_elements", "scatter_nd", "scatter_rows", "shape_of", "shift_left", "shift_right",
    "tree_ensemble", "cholesky", "compress", "cummax", "cummin", "digamma", "erfc_slope", "erfinv", "find_keys",
    "grouped_matmul", "grouped_outer", "interval", "lgamma", "log_determinant", "logcumsumexp", "non_max_suppression",
    "nonzero", "solve", "true_interval", "unique",
}  # fmt: skip
Inputs = tuple[np.ndarray, ...]


def floats(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "float32") -> np.ndarray:
    seed = zlib.crc32(repr((shape, low, high)).encode())
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def ints(*shape: int, low: int = 0, high: int = 3, dtype: str = "int64") -> np.ndarray:
    return np.random.default_rng(zlib.crc32(repr((shape, low, high)).encode())).integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    return ints(*shape, high=2).astype(bool)


def graph_of(op: str, inputs: Inputs, attrs: Mapping[str, Any]) -> tuple[Graph, dict[str, np.ndarray]]:
    """One node whose inputs are all fed, and the feeds."""
    builder = GraphBuilder()
    feeds = {f"x{i}": array for i, array in enumerate(inputs)}
    for name, array in feeds.items():
        builder.input(name, array.shape, str(array.dtype))
    return builder.build(*builder.add_many(op, *feeds, **attrs)), feeds


def check(graph: Graph, feeds: Mapping[str, np.ndarray], peer: bool = True, tolerance: float = 2e-5) -> None:
    """The exported model is valid, comes back as a graph with the same values, and onnxruntime agrees."""
    model = to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    assert [o.version for o in model.opset_import] == [OPSET]
    again = from_onnx(model)
    expected, found = evaluate(graph, feeds), evaluate(again, feeds)
    assert again.inputs == graph.inputs
    assert again.outputs == graph.outputs
    assert {name: again.types[name] for name in again.outputs} == {name: graph.types[name] for name in graph.outputs}
    results = [list(found.values())]
    if peer:
        results.append(peers.prepare("onnxruntime", model.SerializeToString(), threads=1)(dict(feeds)))
    for arrays in results:
        for name, array in zip(graph.outputs, arrays, strict=True):
            want = expected[name]
            assert array.shape == want.shape
            assert array.dtype == want.dtype
            if want.dtype.kind not in "biu":
                array, want = array.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(array, want, rtol=tolerance, atol=tolerance)


X = floats(2, 3, 4)
IMAGE = floats(1, 4, 7, 8)
POSITIVE = floats(2, 5, low=0.5, high=3.0)
FLOAT_UNARY = [
    "identity", "stop_gradient", "relu", "abs", "neg", "sign", "exp", "tanh", "erf", "sin", "cos", "floor", "ceil",
    "round", "isnan", "isinf", "sigmoid", "softplus", "softsign", "silu", "hard_swish", "mish", "selu", "sinh", "cosh",
    "expm1", "log1p", "erfc",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "minimum", "maximum", "less", "less_equal", "greater", "greater_equal", "equal"]
REDUCTIONS = [name for name in OPERATORS if name.startswith("reduce_")]
CASES: list[tuple[str, Inputs, dict[str, Any]]] = [
    *((op, (X,), {}) for op in FLOAT_UNARY),
    *((op, (POSITIVE,), {}) for op in ("log", "sqrt", "rsqrt", "reciprocal")),
    *((op, (X,), {}) for op in ("atan", "asinh")),
    *((op, (floats(2, 5, low=-0.9, high=0.9),), {}) for op in ("asin", "acos", "atanh")),
    ("acosh", (floats(2, 5, low=1.1, high=3.0),), {}),
    *((f"bitwise_{op}", (ints(2, 3, low=-9, high=9), ints(3, low=-9, high=9)), {}) for op in ("and", "or", "xor")),
    *((op, (X, floats(3, 1)), {}) for op in (*BINARY, "not_equal", "floor_div", "prelu")),
    *((op, (bools(2, 3), bools(3)), {}) for op in ("logical_and", "logical_or", "logical_xor", "equal", "not_equal")),
    *((op, (ints(2, 3, low=-9, high=9), np.array([2, -3, 5])), {}) for op in ("div", "floor_div", "mod", "mul")),
    ("logical_not", (bools(2, 3),), {}), ("pow", (POSITIVE, floats(5)), {}), ("prelu", (floats(3, 1), X), {}),
    ("mod", (X, floats(4, low=0.5, high=1.5)), {}), ("mod", (X, floats(4, low=0.5, high=1.5)), {"truncate": True}),
    ("mod", (ints(2, 3, low=-9, high=9), np.array([2, -3, 5])), {"truncate": True}),
    ("where", (bools(2, 1, 4), X, floats(1, 3, 1)), {}), ("logaddexp", (X, floats(3, 1)), {}),
    ("logaddexp", (np.float32([1, np.inf, -np.inf]), np.float32([1, np.inf, -np.inf])), {"base": 2.0}),
    ("leaky_relu", (X,), {"alpha": 0.3}), ("elu", (X,), {"alpha": 0.3}), ("celu", (X,), {"alpha": 2.0}),
    ("thresholded_relu", (X,), {"alpha": 0.5}), ("hard_sigmoid", (X,), {"alpha": 0.4, "beta": 0.3}),
    ("gelu", (X,), {}), ("gelu", (X,), {"approximate": "tanh"}), ("clip", (X,), {"min": -0.5}),
    ("clip", (X,), {"max": 1.0}), ("clip", (ints(2, 3, low=-5, high=5),), {"min": -2, "max": 2}), ("clip", (X,), {}),
    ("cast", (X,), {"to": "int32"}), ("cast", (bools(2, 3),), {"to": "float32"}), ("cast", (X,), {"to": "bool"}),
    # movement
    ("reshape", (X,), {"shape": (4, -1)}), ("reshape", (floats(1, 1),), {"shape": ()}),
    ("reshape", (floats(0, 3),), {"shape": (3, 0, 2)}), ("transpose", (X,), {}), ("expand", (X,), {"shape": (1, 4)}),
    ("transpose", (X,), {"perm": (1, 0, 2)}), ("expand", (floats(3, 1),), {"shape": (2, 1, 4)}),
    ("slice", (X,), {"starts": (0, 1, 2), "extents": (2, 2, 1)}),
    ("slice", (X,), {"starts": (1, 2, 3), "extents": (2, 2, 2), "steps": (-1, -2, -2)}),
    ("slice", (X,), {"starts": (0, 0, 0), "extents": (2, 3, 4)}),
    ("slice", (X,), {"starts": (0, 2, 0), "extents": (2, 0, 4)}),
    ("concat", (X, floats(2, 2, 4), X), {"axis": -2}), ("pad", (X,), {"pads": (0, 1, 2, 1, 0, 0), "value": 1.5}),
    ("pad", (X,), {"pads": (0, -1, 2, 1, 0, -1)}), ("pad", (X,), {"pads": (0, 1, 2, 0, 0, 1), "mode": "reflect"}),
    ("pad", (X,), {"pads": (0, 1, 2, 0, 0, 1), "mode": "edge"}), ("tile", (floats(2, 3),), {"repeats": (3, 2)}),
    ("depth_to_space", (floats(1, 8, 2, 3),), {"block": 2}),
    ("depth_to_space", (floats(1, 8, 2, 3),), {"block": 2, "mode": "CRD"}),
    ("space_to_depth", (floats(1, 2, 4, 6),), {"block": 2}),
    ("space_to_depth", (floats(1, 2, 4, 6),), {"block": 2, "mode": "CRD"}), ("trilu", (X,), {"diagonal": 1}),
    ("trilu", (X,), {"upper": False, "diagonal": -1}),
    ("gather", (floats(5, 3), ints(2, 2, low=-5, high=5)), {}), ("gather", (X, ints(2, dtype="int32")), {"axis": -2}),
    ("gather_elements", (floats(3, 3), ints(2, 3, low=-3)), {"axis": 0}),
    ("gather_elements", (floats(3, 3), ints(3, 2)), {"axis": -1}),
    ("gather_nd", (floats(3, 4, 2), ints(5, 2, dtype="int32")), {}),
    ("gather_nd", (floats(2, 4, 3), ints(2, 5, 1)), {"batch_dims": 1}),
    ("one_hot", (ints(2, 3, low=-4, high=4), np.float32([2, 5])), {"depth": 4}),
    ("one_hot", (ints(3, dtype="int32"), np.array([0, 1])), {"depth": 3, "axis": 0}),
    # products
    ("matmul", (X, floats(4, 5)), {}), ("matmul", (floats(4), floats(4, 3)), {}),
    ("matmul", (floats(4), floats(4)), {}),
    ("matmul", (floats(3, 2), floats(3, 4)), {"transpose_a": True}),
    ("matmul", (floats(2, 3), floats(4, 3)), {"transpose_b": True}),
    ("matmul", (floats(3, 2), floats(4, 3)), {"transpose_a": True, "transpose_b": True}),
    ("matmul", (floats(2, 1, 4, 3), floats(5, 2, 4)), {"transpose_a": True, "transpose_b": True}),
    ("matmul", (floats(4), floats(3, 4)), {"transpose_a": True, "transpose_b": True}),
    ("matmul", (ints(2, 3, dtype="int8"), ints(3, 4, dtype="int8")), {}),
    # windows
    ("conv2d", (IMAGE, floats(6, 2, 3, 2), floats(6)),
     {"strides": (2, 1), "pads": (1, 0, 2, 3), "dilations": (2, 1), "groups": 2}),
    ("conv2d_transpose", (floats(1, 4, 4, 5), floats(4, 3, 3, 2), floats(6)),
     {"strides": (2, 3), "pads": (1, 0, 0, 1), "output_padding": (1, 2), "dilations": (2, 1), "groups": 2}),
    ("max_pool2d", (IMAGE,), {"kernel": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 2)}),
    ("avg_pool2d", (IMAGE,), {"kernel": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1)}),
    ("avg_pool2d", (IMAGE,), {"kernel": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": True}),
    ("resize", (IMAGE,), {"sizes": (1, 4, 14, 16)}),
    ("resize", (IMAGE,), {"sizes": (1, 4, 14, 16), "coordinates": "asymmetric", "rounding": "floor"}),
    ("resize", (IMAGE,), {"sizes": (1, 4, 5, 3), "mode": "linear", "coordinates": "align_corners"}),
    ("resize", (IMAGE,), {"sizes": (1, 4, 4, 12), "scales": (1.0, 1.0, 0.6, 1.5), "mode": "linear",
                          "coordinates": "pytorch_half_pixel"}),
    # reductions and normalizations
    *((op, (floats(2, 3, 4, low=0.5),), attrs) for op in REDUCTIONS for attrs in (
        {}, {"axes": (-2, 0), "keepdims": False}, {"axes": ()},
    )),
    ("reduce_sum", (floats(),), {}), ("reduce_max", (bools(2, 3),), {"axes": (1,)}),
    ("sort", (X,), {}), ("sort", (ints(2, 9),), {"axis": 0, "descending": True}), ("top_k", (X,), {"k": 2}),
    ("top_k", (ints(2, 9),), {"k": 4, "axis": 1, "largest": False, "sorted": False}),
    ("argmax", (X,), {"axis": -2}), ("argmin", (X,), {"keepdims": False}),
    ("argmax", (ints(2, 9),), {"axis": 1, "last": True}), ("cumsum", (X,), {"axis": -2}),
    ("cumsum", (X,), {"axis": 1, "exclusive": True, "reverse": True}),
    ("softmax", (X,), {}), ("softmax", (X,), {"axis": 1}), ("log_softmax", (X,), {"axis": -3}),
    ("layer_norm", (X,), {}), ("layer_norm", (X,), {"axis": -2}), ("layer_norm", (X, floats(3, 4)), {"axis": 1}),
    ("layer_norm", (X, floats(4), floats(4, low=0)), {"epsilon": 0.1}),
    ("layer_norm", (X, floats(3)), {"axis": 1, "trailing": 1}), ("layer_norm", (X,), {"axis": 0, "trailing": 1}),
    ("rms_norm", (X, floats(3)), {"axis": 1, "trailing": 1}),
    ("rms_norm", (X,), {"axis": 1}), ("rms_norm", (X, floats(4)), {"epsilon": 0.1}),
    ("group_norm", (IMAGE, floats(4), floats(4, low=0)), {"groups": 2, "epsilon": 0.1}),
    ("group_norm", (floats(2, 6), floats(6), floats(6, low=0)), {"groups": 2}),
    ("instance_norm", (IMAGE, floats(4), floats(4, low=0)), {"epsilon": 0.1}),
    ("instance_norm", (floats(2, 4), floats(4), floats(4, low=0)), {}),
    ("batch_norm", (IMAGE, floats(4), floats(4, low=0), floats(4, high=1), floats(4, low=0.5)), {"epsilon": 0.1}),
    ("lrn", (floats(1, 7, 2, 3),), {"size": 3, "alpha": 0.2, "beta": 0.6, "bias": 2.0}),
    # recurrent cells
    ("lstm_cell", (floats(2, 20), floats(2, 5), floats(2, 5, low=-1), floats(4, 5, 5)), {}),
    *(("gru_cell", (floats(2, 15), floats(2, 5), floats(3, 5, 5), floats(15)), {"linear_before_reset": flag})
      for flag in (False, True)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_operator_round_trip(op: str, inputs: Inputs, attrs: dict[str, Any]) -> None:
    check(*graph_of(op, inputs, attrs))


def test_every_operator_but_the_algorithms_has_a_case() -> None:
    exported = set(export_model.EXPORTERS)
    assert set(OPERATORS) - {op for op, _, _ in CASES} == ALGORITHMS | NOT_EXPORTED == set(OPERATORS) - exported


@pytest.mark.parametrize("c", ONNX_CASES, ids=str)
def test_optimized_import_round_trip(c: Case) -> None:
    model, feeds = build(c)
    check(optimize(from_onnx(model)), feeds)


NARROW = [
    ("matmul", (floats(2, 3), floats(3, 4)), {}), ("sin", (X,), {}), ("celu", (X,), {}), ("softmax", (X,), {}),
    ("rms_norm", (X, floats(4)), {}), ("layer_norm", (X, floats(4)), {}), ("gelu", (X,), {}),
    ("cumsum", (X,), {"axis": 1}), ("max_pool2d", (IMAGE,), {"kernel": (2, 2)}),
    ("clip", (X,), {"min": -0.5, "max": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("op", "inputs", "attrs"), NARROW, ids=[case[0] for case in NARROW])
def test_other_float_dtypes(op: str, inputs: Inputs, attrs: dict[str, Any], dtype: str) -> None:
    """Through the importer only: onnxruntime lacks many of these kernels."""
    to = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    graph, feeds = graph_of(op, tuple(array.astype(to) for array in inputs), attrs)
    check(graph, feeds, peer=False, tolerance={"float16": 5e-3, "bfloat16": 4e-2, "float64": 1e-6}[dtype])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("op", ["relu", "abs", "reduce_sum", "max_pool2d", "cumsum", "pow"])
def test_integers(op: str, dtype: str) -> None:
    attrs = {"max_pool2d": {"kernel": (2, 2)}, "cumsum": {"axis": -1}}.get(op, {})
    x = ints(1, 2, 3, 4, high=5, dtype=dtype)
    check(*graph_of(op, (x, x) if op == "pow" else (x,), attrs), peer=False)


# --- attributes as hypothesis chooses them ----------------------------------------------------------------------------

small = st.integers(1, 3)
pad = st.integers(0, 2)


@settings(max_examples=40, deadline=None)
@given(
    groups=small, per_group=st.tuples(small, small), kernel=st.tuples(small, small), strides=st.tuples(small, small),
    pads=st.tuples(pad, pad, pad, pad), dilations=st.tuples(small, small), bias=st.booleans(),
)  # fmt: skip
def test_convolutions(groups, per_group, kernel, strides, pads, dilations, bias) -> None:
    depth, outputs = per_group
    x, b = floats(2, groups * depth, 9, 8), [floats(groups * outputs)] if bias else []
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    check(*graph_of("conv2d", (x, floats(groups * outputs, depth, *kernel), *b), attrs))
    grown = {**attrs, "output_padding": tuple(min(1, s - 1) for s in strides)}
    check(*graph_of("conv2d_transpose", (x, floats(groups * depth, outputs, *kernel), *b), grown))


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.tuples(small, small), strides=st.tuples(small, small), pads=st.tuples(pad, pad, pad, pad),
    dilations=st.tuples(small, small), ceil_mode=st.booleans(), count_include_pad=st.booleans(),
)  # fmt: skip
@example((2, 1), (2, 2), (0, 0, 0, 0), (1, 1), True, True)  # the mode adds a window in one dimension only
def test_pools(kernel, strides, pads, dilations, ceil_mode, count_include_pad) -> None:
    pads = tuple(min(p, k - 1) for p, k in zip(pads, kernel * 2, strict=True))  # onnxruntime's condition
    attrs = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations, "ceil_mode": ceil_mode}
    check(*graph_of("max_pool2d", (floats(2, 3, 9, 8),), attrs))
    attrs["count_include_pad"] = count_include_pad
    check(*graph_of("avg_pool2d", (floats(2, 3, 9, 8),), attrs))


@st.composite
def broadcast_pairs(draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast together, of different ranks."""
    shape = draw(st.lists(small, min_size=1, max_size=4))
    pair = [tuple(1 if draw(st.booleans()) else n for n in shape)[draw(st.integers(0, len(shape))) :] for _ in "ab"]
    return pair[0], pair[1]


@settings(max_examples=40, deadline=None)
@given(shapes=broadcast_pairs(), op=st.sampled_from([*BINARY, "not_equal", "floor_div", "prelu", "mod"]))
def test_broadcasting(shapes, op) -> None:
    a, b = shapes
    check(*graph_of(op, (floats(*a), floats(*b, low=0.5)), {}))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), rank=small, transposes=st.tuples(st.booleans(), st.booleans()))
def test_products(data, rank, transposes) -> None:
    lead = data.draw(st.lists(small, min_size=rank - 1, max_size=rank - 1))
    a, b = ([*(1 if data.draw(st.booleans()) else n for n in lead), *shape] for shape in ([2, 3], [3, 4]))
    a, b = (s[:-2] + s[-2:][::-1] if t else s for s, t in zip((a, b), transposes, strict=True))
    check(*graph_of("matmul", (floats(*a), floats(*b)), {"transpose_a": transposes[0], "transpose_b": transposes[1]}))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), shape=st.lists(small, min_size=1, max_size=4))
def test_views_and_reductions(data, shape) -> None:
    x, rank = floats(*shape), len(shape)
    perm = tuple(data.draw(st.permutations(range(rank))))
    check(*graph_of("transpose", (x,), {"perm": perm}))
    steps = tuple(data.draw(st.sampled_from([-2, -1, 1, 2])) for _ in shape)
    starts = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    most = [len(range(i, n, s) if s > 0 else range(i, -1, s)) for i, n, s in zip(starts, shape, steps, strict=True)]
    extents = tuple(data.draw(st.integers(0, m)) for m in most)
    check(*graph_of("slice", (x,), {"starts": starts, "extents": extents, "steps": steps}))
    axes = tuple(d - rank * data.draw(st.booleans()) for d in range(rank) if data.draw(st.booleans()))
    attrs = {"axes": axes, "keepdims": data.draw(st.booleans())}
    check(*graph_of(data.draw(st.sampled_from(REDUCTIONS)), (np.abs(x) + np.float32(0.1),), attrs))
    axis = data.draw(st.integers(-rank, rank - 1))
    check(*graph_of("concat", (x, x), {"axis": axis}))
    check(*graph_of(data.draw(st.sampled_from(["softmax", "argmax", "cumsum"])), (x,), {"axis": axis}))


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_constants_are_raw_and_equal_literals_are_shared() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (2, 3), "float32")
    weight = builder.constant(floats(4, 3).T, "weight")  # strided
    y = builder.add("matmul", x, weight)
    graph = builder.build(*(builder.add("reduce_sum", y, axes=(axis,)) for axis in (1, 1, 0)))
    model = to_onnx(graph)
    by_name = {tensor.name: tensor for tensor in model.graph.initializer}
    assert by_name["weight"].raw_data == floats(4, 3).T.tobytes()
    assert len(by_name) == 3  # the weight, [1] and [0]
    check(graph, {"x": floats(2, 3)})


def test_views_of_one_element_stay_small() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (1, 1000), "float32")
    weight = builder.constant(np.broadcast_to(np.float32(0.5), (1000, 1000)), "weight")
    graph = builder.build(builder.add("matmul", x, weight))
    assert to_onnx(graph).ByteSize() < 1000
    check(graph, {"x": floats(1, 1000)}, tolerance=1e-4)


def test_outputs_that_no_node_computes_are_copied() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (2,), "float32")
    c = builder.constant(np.float32([1, 2]), "c")
    model = to_onnx(builder.build(x, c, c))
    onnx.checker.check_model(model, full_check=True)
    outputs = peers.prepare("onnxruntime", model.SerializeToString(), threads=1)({"x": np.float32([3, 4])})
    assert [array.tolist() for array in outputs] == [[3, 4], [1, 2], [1, 2]]


def test_algorithms_are_refused_by_name() -> None:
    graph, _ = graph_of("banded_conv2d", (IMAGE, floats(4, 4, 3, 3)), {"outputs": 2, "depth": 2, "block": 4})
    with pytest.raises(UnsupportedOperator, match=r"ONNX has no operators for: banded_conv2d \(banded_conv2d\)"):
        to_onnx(graph)


def test_dtypes_that_onnx_lacks_are_refused_by_name() -> None:
    graph, _ = graph_of("conv2d", (ints(1, 2, 4, 4, dtype="int8"), ints(2, 2, 1, 1, dtype="int8")), {})
    with pytest.raises(UnsupportedOperator, match=r"node 'conv2d' \(conv2d\): input 'x': found dtype int8"):
        to_onnx(graph)
    graph, _ = graph_of("relu", (ints(2, dtype="uint64"),), {})
    with pytest.raises(UnsupportedOperator, match=r"\(relu\): ONNX operator Relu: found dtype uint64; allowed: "):
        to_onnx(graph)


def test_resize_whose_scales_contradict_its_sizes_is_refused() -> None:
    graph, _ = graph_of("resize", (IMAGE,), {"sizes": (1, 4, 9, 9), "scales": (1.0, 1.0, 2.0, 2.0)})
    with pytest.raises(UnsupportedOperator, match="scales from which the sizes follow"):
        to_onnx(graph)


def test_too_many_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = GraphBuilder()
    graph = builder.build(builder.add("add", builder.input("x", X.shape, "float32"), builder.constant(X)))
    monkeypatch.setattr(export_model, "LIMIT_BYTES", export_model.HEADROOM_BYTES + X.nbytes - 1)
    with pytest.raises(ModelError, match=f"to_onnx: constants: found {X.nbytes} bytes; allowed: less than 2 GB"):
        to_onnx(graph)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("dqn", "light_squeezenet") else pytest.mark.slow)
        for name in models.names()
    ],
)
def test_benchmark_model_optimized_and_exported(name: str) -> None:
    if name in models.EXPORTED:
        original = models.build(name).read_bytes()
    else:
        original = models.randomized(name).SerializeToString()
    model = to_onnx(optimize(from_onnx(original)))
    onnx.checker.check_model(model, full_check=True)
    inputs = models.inputs(name, seed=1)
    expected = peers.prepare("onnxruntime", original, threads=2)(inputs)
    found = peers.prepare("onnxruntime", model.SerializeToString(), threads=2)(inputs)
    assert scaled_error(found, expected) < 1e-5


def test_open_dimensions_are_exported_by_name_and_shapes_computed_from_inputs() -> None:
    b, n, m = GraphBuilder(), dim("n", 1, 8), dim("m", 2, 9)
    x = b.input("x", (n, m, 4), "float32")
    flat = b.add("reshape", x, shape=(n * m, 4))
    doubled = b.add("concat", flat, flat, axis=0)
    wide = b.add("expand", b.constant(np.arange(4, dtype="float32")), shape=(n, m + 1, 4))
    model = to_onnx(b.build(doubled, b.add("reshape", wide, shape=(n * (m + 1) * 4,))))
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["n", "m", 4]
    onnx.checker.check_model(model, full_check=True)
    run = peers.prepare("onnxruntime", model.SerializeToString(), threads=1)
    for shape in ((1, 2, 4), (3, 5, 4)):
        value = np.random.default_rng(0).standard_normal(shape).astype("float32")
        first, second = run({"x": value})
        assert np.array_equal(first, np.concatenate([value.reshape(-1, 4)] * 2))
        assert np.array_equal(second, np.tile(np.arange(4, dtype="float32"), shape[0] * (shape[1] + 1)))

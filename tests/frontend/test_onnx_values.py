"""Operators at their edges, by their definitions and compiled: NaN, infinities, least and greatest numbers, empty axes.

Expected are the standard's text, and onnxruntime and NumPy where they agree with it.
"""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import burnish as bn
from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx import from_onnx
from burnish.graph.evaluate import evaluate

INF, NAN = np.inf, np.nan
LEAST, GREATEST = -(2**63), 2**63 - 1
F32 = np.finfo(np.float32)


def f(*values: float, dtype: str = "float32") -> np.ndarray:
    return np.array(values, dtype)


def i(*values: int, dtype: str = "int64") -> np.ndarray:
    return np.array(values, dtype)


def scalar(value: float, dtype: str = "float32") -> np.ndarray:
    return np.array(value, dtype)


def single(
    op: str, *inputs: np.ndarray | None, opset: int = 18, known: tuple[int, ...] = (), **attrs: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and its feeds; inputs at the positions ``known`` are initializers."""
    names = ["" if a is None else f"x{n}" for n, a in enumerate(inputs)]
    feeds = {name: a for n, (name, a) in enumerate(zip(names, inputs, strict=True)) if a is not None and n not in known}
    constants = [numpy_helper.from_array(a, f"x{n}") for n, a in enumerate(inputs) if a is not None and n in known]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", infos, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), feeds


def check(want: np.ndarray, op: str, *inputs: np.ndarray | None, tolerance: float = 0.0, **options: Any) -> None:
    """Definition and compiled code give ``want``, with its dtype and shape."""
    proto, feeds = single(op, *inputs, **options)
    graph = from_onnx(proto)
    compiled = bn.compile(graph, threads=1, exact=True, rewrite=False)(**feeds)
    for got in (evaluate(graph, feeds)["y"], compiled):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=0)


# --- Clip -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_clip_makes_infinities_finite(dtype: str) -> None:
    """Bounds that are left out are the least and the greatest finite number; NaN stays."""
    x, info = f(INF, -INF, 1, NAN, dtype=dtype), np.finfo(dtype)
    check(f(info.max, info.min, 1, NAN, dtype=dtype), "Clip", x)
    check(f(info.max, -5, 1, NAN, dtype=dtype), "Clip", x, scalar(-5, dtype), known=(1,))
    check(f(5, info.min, 1, NAN, dtype=dtype), "Clip", x, None, scalar(5, dtype), known=(2,))
    check(f(info.max, info.min, 1, NAN, dtype=dtype), "Clip", x, scalar(info.min, dtype), scalar(info.max, dtype),
          known=(1, 2))  # fmt: skip
    check(x, "Clip", x, scalar(-INF, dtype), scalar(INF, dtype), known=(1, 2))


def test_clip_to_the_least_number_keeps_masked_rows_from_nan() -> None:
    x = np.full((2, 4), -INF, np.float32)
    proto, _ = single("Clip", x, scalar(F32.min), known=(1,))
    proto.graph.node[0].output[0] = "z"
    proto.graph.node.append(helper.make_node("Softmax", ["z"], ["y"]))
    np.testing.assert_array_equal(bn.compile(proto, threads=1, rewrite=False)(x), np.full((2, 4), 0.25, np.float32))


def test_clip_bounds_beyond_float32_and_beyond_floats() -> None:
    check(f(1e300, -1e200, dtype="float64"), "Clip", f(INF, -INF, dtype="float64"), scalar(-1e200, "float64"),
          scalar(1e300, "float64"), known=(1, 2))  # fmt: skip
    bound = 2**53 + 1
    check(i(bound, bound, 2**62), "Clip", i(5, LEAST, 2**62), np.array(bound), known=(1,))


@pytest.mark.parametrize("known", [(1, 2), (1,), (2,), ()])
def test_the_upper_bound_prevails(known: tuple[int, ...]) -> None:
    check(f(1.5, 1.5), "Clip", f(1, 3), scalar(2.5), scalar(1.5), known=known)


# --- Pow, Mod, Abs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "exponent", "want"),
    [
        (i(2, 3, 3037000499, 7), i(62, 39, 2, 22), i(2**62, 3**39, 3037000499**2, 7**22)),
        (i(2, 3, 30000, 7, dtype="int32"), i(30, 19, 2, 11), i(2**30, 3**19, 9 * 10**8, 7**11, dtype="int32")),
        (i(2, -2, 0, 1, -1, -1, 0), i(-1, -2, 0, -5, -5, -4, -1), i(0, 0, 1, 1, -1, 1, 0)),
        (i(2, -2, 9, 0, dtype="int32"), f(0.5, 2, 0.5, 0), i(1, 4, 3, 1, dtype="int32")),
        (f(2, -1, 9, 0, 0), i(3, 16777217, -2, 0, -1), f(8, -1, 1 / 81, 1, INF)),
        (f(2, 1.5), f(1.0000000001, 3, dtype="float64"), f(2, 3.375)),
        (f(2, 1.5, dtype="float64"), f(0.5, 3), f(2**0.5, 3.375, dtype="float64")),
        (f(2, 3, dtype="float16"), i(3, 2), f(8, 9, dtype="float16")),
    ],
)  # fmt: skip
def test_powers_of_mixed_types(base: np.ndarray, exponent: np.ndarray, want: np.ndarray) -> None:
    for known in ((), (1,)):
        check(want, "Pow", base, exponent, known=known, tolerance=3e-7 if want.dtype.kind == "f" else 0)


def test_remainders_of_large_quotients() -> None:
    x, y = f(1e20, -7.5, 5.5, -0.0, 5, -5, INF, 1), f(3, 2, -2, 3, INF, INF, 2, 0)
    check(f(2, -1.5, 1.5, -0.0, 5, -5, NAN, NAN), "Mod", x, y, fmod=1)
    check(f(2, 0.5, -0.5, 0, 5, INF, NAN, NAN), "Mod", x, y, opset=28)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_beyond_the_signed_range(dtype: str) -> None:
    x = np.array([0, 1, np.iinfo(dtype).max // 2 + 1, np.iinfo(dtype).max], dtype)
    check(x, "Abs", x)
    check(np.sign(x), "Sign", x)
    if dtype in ("uint32", "uint64"):
        check(x[1:2] + x[2:3], "ReduceL1", x[1:3], i(0), known=(1,))


# --- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_reductions_of_integers_are_cut_off_towards_zero(dtype: str) -> None:
    """As onnxruntime computes those of signed types; it has no unsigned ones."""
    x, large = i(0, 1, 1, dtype=dtype), i(3, 5, 7, 2**31 - 1, dtype=dtype)
    for op, small_one, large_one in (
        ("ReduceL2", 1, 2**31 - 1), ("ReduceLogSumExp", 1, 2**31 - 1), ("ReduceLogSum", 0, 21),
        ("ReduceSumSquare", 2, None), ("ReduceL1", 2, None), ("ReduceMean", 0, None), ("ReduceProd", 0, None),
    ):  # fmt: skip
        check(i(small_one, dtype=dtype), op, x, i(0), known=(1,))
        if large_one is not None:
            check(i(large_one, dtype=dtype), op, large, i(0), known=(1,))
    if dtype.startswith("int"):
        check(i(-2, dtype=dtype), "ReduceLogSumExp", i(-3, -4, -5, dtype=dtype), i(0), known=(1,))
        check(i(4, -7, dtype=dtype), "ReduceLogSumExp", i(4, -7, dtype=dtype), known=(1,), noop_with_empty_axes=1)


@pytest.mark.parametrize("axes", [None, np.zeros(0, np.int64)])
@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("ReduceSum", lambda x: x), ("ReduceMean", lambda x: x), ("ReduceMax", lambda x: x), ("ReduceMin", lambda x: x),
        ("ReduceProd", lambda x: x), ("ReduceL1", np.abs), ("ReduceL2", np.abs), ("ReduceSumSquare", np.square),
        ("ReduceLogSum", np.log), ("ReduceLogSumExp", lambda x: x),
    ],
)  # fmt: skip
def test_no_axes_may_mean_none(op: str, function: Any, axes: np.ndarray | None) -> None:
    """Then a composite reduction still computes its function: squares, absolute values, logarithms."""
    x = f(1e-30, 2.5, 1e30, INF) if op == "ReduceLogSum" else f(-1e30, 2.5, 1e-30, -INF)
    with np.errstate(all="ignore"):
        check(function(x), op, x, axes, known=(1,), noop_with_empty_axes=1, tolerance=3e-7)


def test_logsumexp_and_means_and_norms_at_the_edges() -> None:
    x = np.array([[INF, 1], [-INF, -INF], [-INF, 2], [INF, -INF], [NAN, 1]], np.float32)
    check(f(INF, -INF, 2, INF, NAN), "ReduceLogSumExp", x, i(1), known=(1,), keepdims=0, tolerance=1e-6)
    for dtype in ("int32", "int64"):
        check(np.array([-2], dtype), "ReduceMean", np.array([-7, 2], dtype), i(0), known=(1,))
    rows = np.array([[0, 0, 0], [3, 0, -4], [NAN, 0, 1]], np.float32)
    for p, norm in ((1, 7), (2, 5)):
        want = np.array([[0, 0, 0], [3 / norm, 0, -4 / norm], [NAN] * 3], np.float32)
        check(want, "LpNormalization", rows, p=p, axis=1, tolerance=1e-6)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("width", [1, 2, 5, 37, 64])
@pytest.mark.parametrize(("op", "function"), [("ArgMax", np.argmax), ("ArgMin", np.argmin)])
def test_arg_reductions_of_nan_and_infinities(op: str, function: Any, width: int, last: int) -> None:
    x = np.random.default_rng(width).integers(-3, 3, (6, width)).astype(np.float32)
    x[0, width // 2], x[1], x[2], x[3], x[4, -1] = NAN, -INF, INF, NAN, NAN
    want = function(x[:, ::-1] if last else x, 1)
    check(width - 1 - want if last else want, op, x, axis=1, keepdims=0, select_last_index=last)


def test_products_and_normalizations_of_other_dtypes() -> None:
    """Narrow integers stay narrow and wrap around; parameters of another float dtype than the data's."""
    a, b = (np.array(v, np.int8) for v in ([[100, 2], [3, 4]], [[5, 6], [7, 8]]))
    check(np.matmul(a, b), "Einsum", a, b, equation="ij,jk->ik")
    a, b = a.astype(np.int32), b.astype(np.int32)
    check(2 * np.matmul(a, b), "Gemm", a, b, alpha=2.0)
    x = np.linspace(-1, 1, 8).reshape(1, 2, 4)
    scale, bias, mean, variance = f(1, 2), f(0.5, 1), f(0.25, 0, dtype="float64"), f(1, 4, dtype="float64")
    want = (x - mean.reshape(2, 1)) / np.sqrt(variance + 1e-5).reshape(2, 1) * scale.reshape(2, 1) + bias.reshape(2, 1)
    check(want.astype(np.float16), "BatchNormalization", x.astype(np.float16), scale, bias, mean, variance,
          tolerance=2e-3)  # fmt: skip
    root = np.sqrt((x * x).mean(2, keepdims=True) + 1e-5)
    check((x / root).astype(np.float32), "RMSNormalization", x.astype(np.float16), np.ones(4, np.float32), opset=23,
          tolerance=2e-3)  # fmt: skip


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (1.0, 0.5)])
def test_fractions_of_integers_are_refused(alpha: float, beta: float) -> None:
    proto, _ = single("Gemm", np.ones((2, 2), np.int32), np.ones((2, 2), np.int32), alpha=alpha, beta=beta)
    with pytest.raises(UnsupportedOperator, match=r"'alpha' and 'beta': found .* for dtype int32; allowed: whole"):
        from_onnx(proto)


def test_lrn_over_more_channels_than_there_are() -> None:
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(1, 3, 2)
    for size in (7, 1 << 40):
        total = (x.astype(np.float64) ** 2).sum(1, keepdims=True)
        want = (x / (1 + 0.5 / size * total) ** 0.75).astype(np.float32)
        check(want, "LRN", x, size=size, alpha=0.5, tolerance=1e-6)


# --- movement ---------------------------------------------------------------------------------------------------------

SLICES = [  # start, end, step, positions of five
    (LEAST, GREATEST, 1, [0, 1, 2, 3, 4]), (GREATEST, LEAST, -1, [4, 3, 2, 1, 0]), (0, LEAST, 1, []),
    (LEAST, LEAST, -1, [0]), (-100, -200, -1, [0]), (-100, LEAST, -2, [0]), (3, LEAST, -2, [3, 1]),
    (GREATEST, GREATEST, 1, []), (GREATEST, 0, -1, [4, 3, 2, 1]), (-2, GREATEST, 2, [3]), (4, -6, -1, [4, 3, 2, 1, 0]),
    (-6, 4, 1, [0, 1, 2, 3]), (2, -5, -1, [2, 1]), (2, -6, -1, [2, 1, 0]), (0, GREATEST, GREATEST, [0]),
    (4, LEAST, LEAST, [4]), (4, 0, -GREATEST, [4]), (1, 1, 1, []), (3, 1, 1, []), (1, 3, -1, []), (5, 9, 3, []),
]  # fmt: skip


@pytest.mark.parametrize(("start", "end", "step", "positions"), SLICES)
def test_slices_clamp_as_the_standard_says(start: int, end: int, step: int, positions: list[int]) -> None:
    check(f(*positions), "Slice", f(0, 1, 2, 3, 4), i(start), i(end), i(0), i(step), known=(1, 2, 3, 4))


def test_slices_of_nothing() -> None:
    for start, end, step in ((0, 1, 1), (-1, -9, -1), (LEAST, GREATEST, 2)):
        arguments = (i(start), i(end), i(0), i(step))
        check(np.zeros((0, 2), np.float32), "Slice", np.zeros((0, 2), np.float32), *arguments, known=(1, 2, 3, 4))


def test_flags_are_padded_with_flags() -> None:
    check(np.array([True, True, False]), "Pad", np.array([True, False]), i(1, 0), np.array(True), known=(1, 2))


@pytest.mark.parametrize("value", [2**53 + 1, LEAST, GREATEST])
def test_pad_values_beyond_floats(value: int) -> None:
    check(i(value, 5), "Pad", i(5), i(1, 0), np.array(value), known=(1, 2))


def test_an_input_called_self() -> None:
    proto, _ = single("Relu", f(1, -1))
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "self"
    assert bn.compile(proto, threads=1, rewrite=False)(self=f(1, -1)).tolist() == [1, 0]


@pytest.mark.parametrize(("opset", "parameters"), [(18, 3), (20, 3), (21, 6)])
def test_group_normalization_of_every_opset(opset: int, parameters: int) -> None:
    """Before opset 21 a scale belongs to a group, then to a channel."""
    x = np.random.default_rng(0).standard_normal((2, 6, 3)).astype(np.float32)
    scale, bias = np.linspace(1, 2, parameters, dtype=np.float32), np.linspace(-1, 1, parameters, dtype=np.float32)
    rows = x.reshape(2, 3, -1).astype(np.float64)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    factor, shift = (np.repeat(p, 6 // parameters).reshape(1, 6, 1) for p in (scale, bias))
    want = (normal.reshape(x.shape) * factor + shift).astype(np.float32)
    check(want, "GroupNormalization", x, scale, bias, tolerance=1e-5, opset=opset, num_groups=3)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,j->i", [(3, 4), (1,)]), ("ij,j->i", [(3, 1), (4,)]), ("ij,ij->ij", [(1, 4), (3, 1)]),
        ("ij,ij->", [(1, 4), (3, 1)]), ("bij,bjk->bik", [(1, 2, 3), (4, 3, 5)]), ("i,i,i->i", [(1,), (3,), (1,)]),
        ("...ij,...jk->...ik", [(2, 1, 2, 3), (1, 4, 3, 5)]), ("ij,jk,kl->il", [(2, 3), (1, 4), (1, 5)]),
    ],
)  # fmt: skip
def test_einsum_stretches_extents_of_one(equation: str, shapes: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    operands = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    check(np.einsum(equation, *operands), "Einsum", *operands, tolerance=1e-5, equation=equation)


@pytest.mark.parametrize(
    ("op", "inputs", "want", "attrs"),
    [
        ("Gather", [f(0, 1, 2), i(9, -9, -1)], f(2, 0, 2), {}),
        ("Gather", [f(0, 1, 2), i(LEAST, GREATEST, 2**32 + 1)], f(0, 2, 2), {}),
        ("GatherElements", [f(0, 1, 2), i(9, -9, -1)], f(2, 0, 2), {}),
        ("GatherElements", [f(0, 1, 2), i(LEAST, GREATEST, -(2**32))], f(0, 2, 0), {}),
        ("GatherND", [f(0, 1, 2), i(9, -9, -1).reshape(3, 1)], f(2, 0, 2), {}),
        ("ScatterElements", [f(0, 1, 2), i(9, -9), f(5, 6)], f(6, 1, 5), {}),
        ("ScatterND", [f(0, 1, 2), i(9, -9).reshape(2, 1), f(5, 6)], f(6, 1, 5), {}),
        ("ScatterND", [f(0, 1, 2), i(2**32, LEAST).reshape(2, 1), f(5, 6)], f(6, 1, 5), {}),
        ("MaxUnpool", [f(5, 6).reshape(1, 1, 2), i(99, -5).reshape(1, 1, 2)], f(6, 0, 0, 5).reshape(1, 1, 4),
         {"kernel_shape": [2], "strides": [2]}),
        ("RoiAlign", [f(1, 1, 1, 1, 3, 3, 3, 3).reshape(2, 1, 2, 2), f(0, 0, 1, 1, 0, 0, 1, 1).reshape(2, 4), i(9, -9)],
         f(3, 1).reshape(2, 1, 1, 1), {}),
    ],
)  # fmt: skip
def test_indices_out_of_range_are_the_nearest_element_at_run_time_and_refused_before(
    op: str, inputs: list[np.ndarray], want: np.ndarray, attrs: dict[str, Any]
) -> None:
    check(want, op, *inputs, tolerance=1e-6, **attrs)
    position = 2 if op == "RoiAlign" else 1
    with pytest.raises(ModelError, match=rf"\({op}, opset 18\): input '.*': found -?\d+; allowed: "):
        from_onnx(single(op, *inputs, known=(position,), **attrs)[0])

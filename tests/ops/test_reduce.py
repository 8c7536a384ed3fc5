"""Reductions against ONNX's reference implementation and NumPy."""

import numpy as np
import pytest

from burnish.errors import ModelError
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS, infer
from burnish.ops.classify import flops
from burnish.ops.running import BLOCK

PAIRS = [
    ("reduce_sum", "ReduceSum"), ("reduce_mean", "ReduceMean"), ("reduce_max", "ReduceMax"),
    ("reduce_min", "ReduceMin"), ("reduce_prod", "ReduceProd"), ("reduce_l1", "ReduceL1"), ("reduce_l2", "ReduceL2"),
    ("reduce_sumsq", "ReduceSumSquare"), ("reduce_logsumexp", "ReduceLogSumExp"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "onnx_name"), PAIRS)
@pytest.mark.parametrize("axes", [None, (1,), (0, 2), (-1,)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reductions_match_onnx(name, onnx_name, axes, keepdims, apply, reference, normal):
    x = normal(3, 4, 5)
    chosen = None if axes is None else np.array(axes)
    expected = reference(onnx_name, x, chosen, keepdims=int(keepdims))[0]
    y = apply(name, x, axes=axes, keepdims=keepdims)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_integers_and_bool(apply, rng):
    x = rng.integers(-100, 100, (3, 40)).astype("int8")
    np.testing.assert_array_equal(apply("reduce_sum", x, axes=(1,))[0], x.sum(1, keepdims=True, dtype="int8"))
    np.testing.assert_array_equal(apply("reduce_max", x, axes=(1,))[0], x.max(1, keepdims=True))
    flags = np.array([[True, False], [False, False]])
    np.testing.assert_array_equal(apply("reduce_max", flags, axes=(1,), keepdims=False)[0], [True, False])


def test_half_precision_sums_in_float32(apply):
    assert apply("reduce_sum", np.ones(4096, "float16"))[0].item() == 4096
    assert apply("reduce_mean", np.full(4096, 3, "float16"), keepdims=False)[0] == 3


def test_no_axes_changes_nothing(apply, normal):
    x = normal(2, 3)
    np.testing.assert_array_equal(apply("reduce_sum", x, axes=())[0], x)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_arg_reductions_take_the_first_position(axis, keepdims, apply, rng):
    x = rng.integers(0, 3, (4, 5, 6)).astype("float32")
    for name, function in (("argmax", np.argmax), ("argmin", np.argmin)):
        y = apply(name, x, axis=axis, keepdims=keepdims)[0]
        np.testing.assert_array_equal(y, function(x, axis, keepdims=keepdims))
        assert y.dtype == np.int64


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
def test_arg_reductions_take_nan_for_the_extreme_and_find_infinities(name, last, apply):
    """As NumPy: the first NaN of a row; rows that are all infinite have an extreme like any other."""
    nan, inf = np.nan, np.inf
    x = np.array([[1, nan, 9, nan], [-inf] * 4, [inf] * 4, [nan] * 4, [3, -inf, inf, 2], [4, 4, 5, 5]], "float32")
    rows = x[:, ::-1] if last else x
    expected = getattr(np, name)(rows, 1)
    expected = 3 - expected if last else expected
    np.testing.assert_array_equal(apply(name, x, axis=1, keepdims=False, last=last)[0], expected)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "reduce_sum", "reduce_mean", "reduce_prod"])
def test_nan_makes_the_reduction_nan(name, apply, normal):
    x = normal(3, 20)
    x[0, 0], x[1, 19], x[2] = np.nan, np.nan, -np.inf
    function = getattr(np, name.removeprefix("reduce_"))
    np.testing.assert_array_equal(np.isnan(apply(name, x, axes=(1,))[0]), np.isnan(function(x, 1, keepdims=True)))


def test_logsumexp_of_infinities(apply):
    inf = np.inf
    x = np.array([[inf, 1], [-inf, -inf], [-inf, 2], [inf, -inf], [inf, inf], [np.nan, inf], [100, 100]], "float32")
    y = apply("reduce_logsumexp", x, axes=(1,), keepdims=False)[0]
    np.testing.assert_allclose(y, [inf, -inf, 2, inf, inf, np.nan, 100 + np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8"])
def test_means_of_integers_truncate(dtype, apply):
    x = np.array([[-7, 2], [7, 2], [-4, 4], [100, 101]], dtype)
    np.testing.assert_array_equal(apply("reduce_mean", x, axes=(1,), keepdims=False)[0], [-2, 4, 0, 100])


def test_l1_of_unsigned_integers(apply):
    x = np.array([200, 255, 1], "uint32")
    assert apply("reduce_l1", x, keepdims=False)[0] == 456


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum_matches_onnx(exclusive, reverse, apply, reference, normal):
    x = normal(3, 4)
    expected = reference("CumSum", x, np.array(1), exclusive=int(exclusive), reverse=int(reverse))[0]
    y = apply("cumsum", x, axis=1, exclusive=exclusive, reverse=reverse)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "dtype", "attrs", "words"),
    [
        ("reduce_sum", "float32", {"axes": (2,)}, ["reduce_sum 'y'", "'axes'", "2", "-2 to 1"]),
        ("reduce_sum", "float32", {"axes": (0, -2)}, ["'axes'", "once"]),
        ("reduce_mean", "bool", {}, ["reduce_mean", "'x'", "bool", "float32"]),
        ("argmax", "bool", {}, ["argmax", "'x'", "bool"]),
        ("cumsum", "float32", {"axis": 5}, ["cumsum", "'axis'", "5"]),
    ],
)
def test_refusals(name, dtype, attrs, words):
    with pytest.raises(ModelError, match=".*".join(words)):
        infer(name, [((2, 3), dtype)], attrs)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((65,), 0), ((2, 64), 1), ((70, 2), 0), ((2101,), 0), ((0, 3), 0), ((1, 2), 0)]
)
def test_long_running_sums_go_by_blocks(shape, axis, exclusive, reverse, apply, rng):
    x = rng.integers(-9, 9, shape).astype("int32")
    flipped = np.flip(x, axis) if reverse else x
    expected = np.cumsum(flipped, axis, dtype="int32") - (flipped if exclusive else 0)
    y = apply("cumsum", x, axis=axis, exclusive=exclusive, reverse=reverse)[0]
    np.testing.assert_array_equal(y, np.flip(expected, axis) if reverse else expected)


def test_a_running_sum_takes_few_additions_for_each_element():
    (y,) = OPERATORS["cumsum"].define("y", [placeholder((1 << 20,))], {"axis": 0})
    assert flops([y]) <= (3 * BLOCK) << 20

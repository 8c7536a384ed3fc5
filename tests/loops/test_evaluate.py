"""The oracle for tensor definitions."""

import ml_dtypes
import numpy as np
import pytest

from burnish.errors import InputError, VerificationError
from burnish.loops import evaluate as module
from burnish.loops.evaluate import evaluate
from burnish.loops.expr import all_of, any_of, cast, math, select
from burnish.loops.tensor import compute, max, placeholder, prod, reduce_axis, sum


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_affine_accesses_of_any_sign_and_step(rng):
    x = placeholder((9, 10))
    y = compute((3, 4), lambda i, j: x[8 - 2 * i, j * 2 + i + 1], "y")
    value = rng.standard_normal((9, 10))
    expected = [[value[8 - 2 * i, j * 2 + i + 1] for j in range(4)] for i in range(3)]
    np.testing.assert_array_equal(evaluate([y], {"x": value})[0], np.array(expected, "float32"))


def test_division_in_indices(rng):
    x = placeholder((3, 4))
    y = compute((12,), lambda i: x[i // 4, i % 4], "y")
    value = rng.standard_normal((3, 4)).astype("float32")
    np.testing.assert_array_equal(evaluate([y], {"x": value})[0], value.reshape(-1))


def test_loads_under_a_false_condition_are_not_executed(rng):
    x = placeholder((4,))
    value = rng.standard_normal(4).astype("float32")
    y = compute((6,), lambda i: select(all_of(i >= 1, i < 5), x[i - 1], 0.0), "y")
    np.testing.assert_array_equal(evaluate([y], {"x": value})[0], np.pad(value, 1))


def test_loads_that_the_first_operand_of_a_condition_forbids_are_not_executed(rng):
    x = placeholder((4,))
    value = rng.standard_normal(4).astype("float32")
    y = compute((6,), lambda i: select(all_of(i >= 1, i < 5, x[i - 1] > 0.0), 1.0, 0.0), "y")
    z = compute((6,), lambda i: select(any_of(i < 1, i >= 5, x[i - 1] > 0.0), 1.0, 0.0), "z")
    inside, outside = evaluate([y, z], {"x": value})
    np.testing.assert_array_equal(inside, np.pad(value > 0, 1))
    np.testing.assert_array_equal(outside, np.pad(value > 0, 1, constant_values=True))


def test_loads_out_of_bounds_are_refused(rng):
    x = placeholder((4,))
    wrong = compute((6,), lambda i: select(i >= 1, x[i - 1], 0.0), "y")
    with pytest.raises(VerificationError, match=r"x\[\(i - 1\)\]: index 4 in dimension 0 is outside 0 to 3"):
        evaluate([wrong], {"x": np.zeros(4, "float32")})


@pytest.mark.parametrize("block", [1, 7, 100, 1 << 23])
def test_blocks_of_any_size_give_the_same(block, rng, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    a, b = placeholder((5, 6), name="a"), placeholder((6, 7), name="b")
    k = reduce_axis(6, "k")
    product = compute((5, 7), lambda i, j: sum(a[i, k.var] * b[k.var, j], k), "product")
    shifted = compute((5, 7), lambda i, j: math("exp", product[i, j]) + 1.0, "shifted")
    j = reduce_axis(7, "j")
    top = compute((5,), lambda i: max(shifted[i, j.var], j), "top")
    x, y = rng.standard_normal((5, 6)), rng.standard_normal((6, 7))
    values = evaluate([shifted, top], {"a": x, "b": y}, dtype_override="float64")
    np.testing.assert_allclose(values[0], np.exp(x @ y) + 1)
    np.testing.assert_allclose(values[1], (np.exp(x @ y) + 1).max(1))


def test_products_with_batch_missing_and_lone_reduction_axes(rng):
    a, b = placeholder((2, 3, 4), name="a"), placeholder((2, 4, 5), name="b")
    k, m, r = reduce_axis(4, "k"), reduce_axis(5, "m"), reduce_axis(3, "r")
    y = compute((2, 3, 6), lambda n, i, e: sum(a[n, i, k.var] * b[n, k.var, m.var], (k, m, r)), "y")
    x, w = rng.standard_normal((2, 3, 4)).astype("float32"), rng.standard_normal((2, 4, 5)).astype("float32")
    expected = np.broadcast_to(3 * (x @ w).sum(2)[..., None], (2, 3, 6))
    np.testing.assert_allclose(evaluate([y], {"a": x, "b": w})[0], expected, rtol=1e-5)


def test_reductions_over_nothing_give_the_identity():
    x = placeholder((0, 3))
    k = reduce_axis(0, "k")
    feeds = {"x": np.zeros((0, 3), "float32")}
    for reduction, identity in ((sum, 0), (prod, 1), (max, -np.inf)):
        y = _over(reduction, x, k)
        np.testing.assert_array_equal(evaluate([y], feeds)[0], np.full(3, identity))


def _over(reduction, x, k):
    return compute((3,), lambda i: reduction(x[k.var, i], k), "y")


def test_scalars():
    x = placeholder(())
    y = compute((), lambda: x[()] * 2.0, "y")
    assert evaluate([y], {"x": np.float32(3)})[0] == np.float32(6)


def test_integer_semantics():
    x = placeholder((4,), "int8")
    values = {"x": np.array([-128, -7, 7, 127], "int8")}
    doubled = compute((4,), lambda i: x[i] + x[i], "doubled")
    floored = compute((4,), lambda i: x[i] // 4, "floored")
    rest = compute((4,), lambda i: x[i] % 4, "rest")
    unsigned = compute((4,), lambda i: cast("uint8", x[i]), "unsigned")
    result = evaluate([doubled, floored, rest, unsigned], values)
    np.testing.assert_array_equal(result[0], np.array([0, -14, 14, -2], "int8"))
    np.testing.assert_array_equal(result[1], [-32, -2, 1, 31])
    np.testing.assert_array_equal(result[2], [0, 1, 3, 3])
    np.testing.assert_array_equal(result[3], np.array([128, 249, 7, 127], "uint8"))


def test_float64_reference_keeps_integers():
    x = placeholder((2,), "float32")
    y = compute((2,), lambda i: cast("float32", cast("float16", x[i])) + 1.0, "y")
    z = compute((2,), lambda i: cast("int32", x[i]), "z")
    value = np.array([1.23456789, -2.7])
    real, whole = evaluate([y, z], {"x": value}, dtype_override="float64")
    np.testing.assert_array_equal(real, value + 1)
    assert whole.dtype == np.int32


def test_bfloat16():
    x = placeholder((2,), "bfloat16")
    y = compute((2,), lambda i: math("erf", x[i]), "y")
    value = np.array([0.5, -1.0], ml_dtypes.bfloat16)
    result = evaluate([y], {"x": value})[0]
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(result.astype("float64"), [0.5204999, -0.8427008], rtol=5e-3)


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "no array for input 'x'"),
        ({"x": np.zeros((3,), "int32")}, r"'x' is int32\[3\], expected int32\[2\]"),
        ({"x": np.zeros((2,), "int64")}, r"'x' is int64\[2\], expected int32\[2\]"),
    ],
)
def test_feeds_are_checked(feeds, words):
    x = placeholder((2,), "int32")
    with pytest.raises(InputError, match=words):
        evaluate([compute((2,), lambda i: x[i], "y")], feeds)


def test_names_must_be_unique():
    x = placeholder((2,))
    y = compute((2,), lambda i: x[i], "x")
    with pytest.raises(VerificationError, match=r"\['x'\]"):
        evaluate([y], {"x": np.zeros(2, "float32")})

"""Element-wise operators against ONNX's reference implementation and NumPy."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import ModelError
from burnish.loops.interpret import evaluate
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS, infer

INTEGER_TYPES = ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]
INTEGERS = [[-7, 2], [-7, -2], [7, 2], [7, -2], [6, 3], [0, 5], [-6, 3]]


@pytest.mark.parametrize(
    ("name", "onnx_name"),
    [
        ("identity", "Identity"), ("relu", "Relu"), ("abs", "Abs"), ("neg", "Neg"), ("sign", "Sign"), ("exp", "Exp"),
        ("reciprocal", "Reciprocal"), ("tanh", "Tanh"), ("erf", "Erf"), ("sin", "Sin"), ("cos", "Cos"),
        ("floor", "Floor"), ("ceil", "Ceil"), ("round", "Round"), ("sigmoid", "Sigmoid"), ("softplus", "Softplus"),
        ("softsign", "Softsign"), ("hard_swish", "HardSwish"), ("mish", "Mish"), ("selu", "Selu"), ("sinh", "Sinh"),
        ("cosh", "Cosh"),
    ],
)  # fmt: skip
def test_unary_matches_onnx(name, onnx_name, apply, reference, normal):
    x = np.concatenate([3 * normal(2, 20), [[-2.5, -1.5, -0.5, 0.5, 1.5] * 4]]).astype("float32")
    np.testing.assert_allclose(apply(name, x)[0], reference(onnx_name, x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_the_negative_of_zero_is_minus_zero(dtype, apply):
    numbers = np.array([0.0, -0.0, np.inf, np.nan]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert np.signbit(apply("neg", numbers)[0]).tolist()[:3] == [True, False, True]


@pytest.mark.parametrize(
    ("name", "function"), [("log", np.log), ("sqrt", np.sqrt), ("rsqrt", lambda x: 1 / np.sqrt(x))]
)
def test_unary_of_positive_numbers(name, function, apply, normal):
    x = np.abs(normal(3, 5)) + 0.1
    np.testing.assert_allclose(apply(name, x)[0], function(x), rtol=1e-6)


def test_silu_is_x_times_sigmoid(apply, normal):
    x = normal(3, 5)
    np.testing.assert_allclose(apply("silu", x)[0], x / (1 + np.exp(-x)), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "onnx_name", "attrs"),
    [
        ("leaky_relu", "LeakyRelu", {"alpha": 0.3}), ("elu", "Elu", {"alpha": 0.7}), ("celu", "Celu", {"alpha": 2.0}),
        ("thresholded_relu", "ThresholdedRelu", {"alpha": 0.4}), ("gelu", "Gelu", {"approximate": "none"}),
        ("hard_sigmoid", "HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("gelu", "Gelu", {"approximate": "tanh"}),
    ],
)  # fmt: skip
def test_parametrised_unary_matches_onnx(name, onnx_name, attrs, apply, reference, normal):
    x = 2 * normal(4, 9)
    np.testing.assert_allclose(apply(name, x, **attrs)[0], reference(onnx_name, x, **attrs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(None, None), (-0.5, None), (None, 0.5), (-0.5, 0.5)])
def test_clip(low, high, apply, normal):
    x = normal(30)
    expected = np.clip(x, -np.inf if low is None else low, np.inf if high is None else high)
    np.testing.assert_array_equal(apply("clip", x, min=low, max=high)[0], expected)


def test_logic_and_tests_for_special_values(apply):
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    np.testing.assert_array_equal(apply("logical_not", a)[0], ~a)
    np.testing.assert_array_equal(apply("logical_and", a, b)[0], a & b)
    np.testing.assert_array_equal(apply("logical_or", a, b)[0], a | b)
    np.testing.assert_array_equal(apply("logical_xor", a, b)[0], a ^ b)
    x = np.array([1.0, np.nan, np.inf, -np.inf], "float32")
    np.testing.assert_array_equal(apply("isnan", x)[0], np.isnan(x))
    np.testing.assert_array_equal(apply("isinf", x)[0], np.isinf(x))


@pytest.mark.parametrize(
    ("source", "to", "values", "expected"),
    [
        ("float32", "int32", [1.9, -1.9, 0.5], [1, -1, 0]),
        ("float32", "int8", [130.0, -129.0, 5.7], [127, -128, 5]),
        ("float32", "bool", [0.0, 0.5, -2.0], [False, True, True]),
        ("int32", "uint8", [300, -1, 7], [44, 255, 7]),
        ("bool", "float32", [True, False, True], [1.0, 0.0, 1.0]),
        ("float32", "float16", [1.0009765625, 70000.0, -2.0], [1.0009765625, np.inf, -2.0]),
        ("float32", "bfloat16", [1.00390625, 3.0, -2.0], [1.0, 3.0, -2.0]),
    ],
)
def test_cast(source, to, values, expected, apply):
    result = apply("cast", np.array(values, source), to=to)[0]
    np.testing.assert_array_equal(result.astype("float64"), np.array(expected, "float64"))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide), ("minimum", np.minimum),
        ("maximum", np.maximum), ("equal", np.equal), ("not_equal", np.not_equal), ("less", np.less),
        ("less_equal", np.less_equal), ("greater", np.greater), ("greater_equal", np.greater_equal),
        ("floor_div", np.floor_divide), ("mod", np.mod),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("left", "right"), [((2, 3, 4), (3, 1)), ((4,), (2, 3, 4)), ((2, 1), (1, 5)), ((), (3,))])
def test_binary_broadcasts_like_numpy(name, function, left, right, apply, rng):
    a = rng.integers(-4, 5, left).astype("float32")
    b = rng.integers(1, 5, right).astype("float32")
    np.testing.assert_allclose(apply(name, a, b)[0], function(a, b), rtol=1e-6)


def test_pow(apply, normal):
    a = np.abs(normal(3, 4)) + 0.1
    np.testing.assert_allclose(apply("pow", a, np.float32(1.5))[0], a**1.5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_powers_of_integers_are_exact(dtype, apply):
    """Beyond 2^53 too; a negative exponent gives what the quotient truncates to, and 0 of 0."""
    x = np.array([3, -2, 0, 0, 1, -1, -1, 2, 0, 7, -3], dtype)
    y = np.array([4, 3, 0, 5, -9, -9, -8, -1, -1, 11, 19], dtype)
    expected = [81, -8, 1, 0, 1, -1, 1, 0, 0, 7**11, -(3**19)]
    np.testing.assert_array_equal(apply("pow", x, y)[0], np.array(expected).astype(dtype))


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
def test_unsigned_integers_have_no_sign(dtype, apply):
    x = np.array([0, 1, 127, 128, 255, np.iinfo(dtype).max], dtype)
    np.testing.assert_array_equal(apply("abs", x)[0], x)
    np.testing.assert_array_equal(apply("sign", x)[0], np.sign(x))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_float_remainders_are_exact(dtype, apply):
    values = [0.0, -0.0, 3.0, -3.0, 5.3, -7.5, 1e-5, 60000.0, np.inf, -np.inf, np.nan]
    x, y = (v.ravel().astype(dtype) for v in np.meshgrid(values, values))
    x[0], y[0] = np.finfo(dtype).max, 0.7
    with np.errstate(all="ignore"):
        truncated, floored = np.fmod(x, y), np.mod(x, y)
    floored = np.where(np.isinf(y) & np.isfinite(x), np.where((x < 0) == (y < 0), x, np.where(x == 0, 0, y)), floored)
    np.testing.assert_array_equal(apply("mod", x, y, truncate=True)[0], truncated)
    np.testing.assert_array_equal(apply("mod", x, y)[0], floored.astype(dtype))


def test_integer_division_truncates_and_modulo_has_two_forms(apply):
    a, b = np.array(INTEGERS, "int32").T
    np.testing.assert_array_equal(apply("div", a, b)[0], [int(x / y) for x, y in INTEGERS])
    np.testing.assert_array_equal(apply("floor_div", a, b)[0], a // b)
    np.testing.assert_array_equal(apply("mod", a, b)[0], a % b)
    np.testing.assert_array_equal(apply("mod", a, b, truncate=True)[0], [int(math.fmod(x, y)) for x, y in INTEGERS])


@pytest.mark.parametrize("dtype", INTEGER_TYPES)
def test_integer_division_is_defined_by_zero_and_at_the_ends(dtype, apply):
    """x / 0 and x mod 0 are 0; the least number by -1 is itself, with remainder 0. All else is exact."""
    info = np.iinfo(dtype)
    ends = [n for n in (info.min, info.min + 1, -3, -1, 0, 1, 2, 7, info.max - 1, info.max) if n >= info.min]
    a, b = (grid.ravel().astype(dtype) for grid in np.meshgrid(np.array(ends, object), np.array(ends, object)))

    def expected(of):
        whole = [0 if y == 0 else of(x, y) for x, y in zip(a.astype(object), b.astype(object), strict=True)]
        return np.array([(n - info.min) % (info.max - info.min + 1) + info.min for n in whole], dtype)

    def truncated(x, y):
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)

    np.testing.assert_array_equal(apply("div", a, b)[0], expected(truncated))
    np.testing.assert_array_equal(apply("floor_div", a, b)[0], expected(lambda x, y: x // y))
    np.testing.assert_array_equal(apply("mod", a, b)[0], expected(lambda x, y: x % y))
    found = apply("mod", a, b, truncate=True)[0]
    np.testing.assert_array_equal(found, expected(lambda x, y: x - truncated(x, y) * y))


def test_float_modulo_truncated(apply):
    a, b = np.array(INTEGERS, "float32").T
    np.testing.assert_allclose(apply("mod", a, b, truncate=True)[0], np.fmod(a, b))


def test_narrow_integers_wrap_around(apply):
    a, b = np.array([127, -128, 100], "int8"), np.array([1, -1, 100], "int8")
    np.testing.assert_array_equal(apply("add", a, b)[0], [-128, 127, -56])


def test_prelu_and_where(apply, reference, normal):
    x, slope = normal(2, 3, 4), normal(3, 1)
    np.testing.assert_allclose(apply("prelu", x, slope)[0], reference("PRelu", x, slope)[0], rtol=1e-6)
    condition = normal(3, 1) > 0
    np.testing.assert_array_equal(apply("where", condition, x, slope)[0], np.where(condition, x, slope))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floating_point_types(dtype, apply, normal):
    x = normal(3, 5).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    expected = np.tanh(x.astype("float64") + x.astype("float64"))
    y = apply("tanh", apply("add", x, x)[0])[0]
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(y.astype("float64"), expected, atol=tolerance)


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=4), st.lists(st.sampled_from([1, 2, 3]), max_size=4))
@settings(max_examples=60, deadline=None)
def test_broadcast_shape_is_that_of_numpy(left, right):
    a, b = np.zeros(left, "float32"), np.ones(right, "float32")
    x, y = placeholder(a.shape, name="a"), placeholder(b.shape, name="b")
    try:
        expected = a + b
    except ValueError:
        with pytest.raises(ModelError, match="input 'b'"):
            OPERATORS["add"].define("y", [x, y])
    else:
        np.testing.assert_array_equal(evaluate(OPERATORS["add"].define("y", [x, y]), {"a": a, "b": b})[0], expected)


@pytest.mark.parametrize(
    ("name", "types", "attrs", "words"),
    [
        ("add", [((2,), "float32"), ((3,), "float32")], {}, ["add 'y'", "input 'b'", r"\[3\]", r"\[2\]"]),
        ("add", [((2,), "float32"), ((2,), "int64")], {}, ["input 'b'", "int64", "float32"]),
        ("exp", [((2,), "int32")], {}, ["exp", "input 'x'", "int32", "float32"]),
        ("where", [((2,), "float32")] * 3, {}, ["where", "'condition'", "float32", "bool"]),
        ("cast", [((2,), "float32")], {"to": "complex64"}, ["cast", "'to'", "complex64", "float32"]),
        ("cast", [((2,), "float32")], {}, ["cast", "'to'", "no default"]),
        ("clip", [((2,), "float32")], {"min": "low"}, ["clip", "'min'", "'low'", "Number"]),
        ("gelu", [((2,), "float32")], {"approximate": "erf"}, ["gelu", "'approximate'", "erf", "tanh"]),
        ("relu", [((2,), "float32")], {"alpha": 1.0}, ["relu", "'alpha'", "no attributes"]),
        ("relu", [((2,), "float32")] * 2, {}, ["relu", "2 tensors", "1"]),
    ],
)
def test_refusals_name_operator_argument_found_and_allowed(name, types, attrs, words):
    with pytest.raises(ModelError, match=".*".join(words)):
        infer(name, types, attrs)

"""Values of single builder operations, run on this machine; no library calls in any of them."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from burnish.codegen.builder import IRBuilder, IRValue, literal

NAN, INF = float("nan"), float("inf")
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
LANES = (1, 4, 16)


def numpy_type(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


# --- literals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (True, "bool", "true"),
        (1.0, "float32", "0x3FF0000000000000"),
        (0.1, "float32", "0x3FB99999A0000000"),
        (1e39, "float32", "0x7FF0000000000000"),
        (0.1, "float64", "0x3FB999999999999A"),
        (65504.0, "float16", "0xH7BFF"),
        (65519.0, "float16", "0xH7BFF"),
        (65520.0, "float16", "0xH7C00"),
        (-1e5, "float16", "0xHFC00"),
        (1e301, "float16", "0xH7C00"),
        (-INF, "float16", "0xHFC00"),
        (NAN, "float16", "0xH7E00"),
        (1.0, "bfloat16", str(0x3F80)),
        (1.00390625, "bfloat16", str(0x3F80)),  # a tie, to even
        (3.4e38, "bfloat16", str(0x7F80)),
        (-1e39, "bfloat16", str(0xFF80)),
        (NAN, "bfloat16", str(0x7FC0)),
        (-1, "int8", "-1"),
        (2**64 - 1, "uint64", "18446744073709551615"),
    ],
)
def test_literal(value: float, dtype: str, text: str) -> None:
    assert literal(value, dtype) == text


def test_largest_unsigned_constant_compiles(element_wise: Callable) -> None:
    f = element_wise(lambda b, x: b.binary("xor", x, b.const(2**64 - 1, "uint64")), ("uint64",), "uint64", 4)
    assert f(np.array([0, 5], np.uint64)).tolist() == [2**64 - 1, 2**64 - 6]


# --- minimum and maximum ----------------------------------------------------------------------------------------------

EDGES = [0.0, 1.0, -1.0, 2.5, -2.5, INF, -INF, NAN]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_minmax_propagates_nan_of_either_operand(op: str, dtype: str, lanes: int, element_wise: Callable) -> None:
    a, b = (v.ravel().astype(numpy_type(dtype)) for v in np.meshgrid(EDGES, EDGES))
    want = {"min": np.minimum, "max": np.maximum}[op](a.astype(np.float64), b.astype(np.float64))
    got = element_wise(lambda f, x, y: f.binary(op, x, y), (dtype, dtype), dtype, lanes)(a, b)
    np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("constant_first", [False, True])
@pytest.mark.parametrize("op", ["min", "max"])
def test_minmax_with_a_constant_propagates_nan(
    op: str, constant_first: bool, dtype: str, element_wise: Callable
) -> None:
    def build(f: IRBuilder, x: IRValue) -> IRValue:
        c = f.const(1.0, dtype)
        return f.binary(op, c, x) if constant_first else f.binary(op, x, c)

    x = np.array(EDGES).astype(numpy_type(dtype))
    got = element_wise(build, (dtype,), dtype, 4)(x)
    want = {"min": np.minimum, "max": np.maximum}[op](np.array(EDGES), 1.0)
    np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_minmax_of_integers_knows_the_sign(dtype: str, element_wise: Callable) -> None:
    info = np.iinfo(dtype)
    a, b = (v.ravel() for v in np.meshgrid(*[np.array([info.min, 0, 1, info.max], dtype)] * 2))
    for op, reference in (("min", np.minimum), ("max", np.maximum)):
        got = element_wise(lambda f, x, y, op=op: f.binary(op, x, y), (dtype, dtype), dtype, 4)(a, b)
        np.testing.assert_array_equal(got, reference(a, b))


def test_relu_is_one_instruction(assembly: Callable) -> None:
    def relu(b: IRBuilder, x: IRValue) -> IRValue:
        return b.binary("max", x, b.const(0.0, "float32"))

    text = assembly(relu, ("float32",), "float32", 16, "x86_64-unknown-linux-gnu", "x86-64-v4")
    assert text.count("vmaxps") == 1
    assert "vcmp" not in text


# --- comparisons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint8", "bool"])
def test_compare_matches_numpy(op: str, dtype: str, element_wise: Callable) -> None:
    values = (
        EDGES if dtype in FLOATS else [0, 1, 200, 255] if dtype == "uint8" else [0, 1] if dtype == "bool" else [-2, 7]
    )
    a, b = (v.ravel().astype(numpy_type("uint8" if dtype == "bool" else dtype)) for v in np.meshgrid(values, values))

    def build(f: IRBuilder, x: IRValue, y: IRValue) -> IRValue:
        return f.compare(op, f.cast(x, dtype), f.cast(y, dtype))

    stored = "uint8" if dtype == "bool" else dtype
    with np.errstate(invalid="ignore"):
        want = {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
    np.testing.assert_array_equal(element_wise(build, (stored, stored), "bool", 4)(a, b), want)


# --- casts ------------------------------------------------------------------------------------------------------------


def float_samples() -> np.ndarray:
    """Every exponent of float32, ties and near-ties of the two-byte formats, and the edges."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    half_ties = (bits & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    edges = np.array([0.0, -0.0, INF, -INF, NAN, 65504, 65519, 65520, 65536, 3.3895e38, 3.4e38, 1e-45], np.float32)
    return np.concatenate(
        [edges, *((b + d).view(np.float32) for b in (bits, ties, half_ties) for d in np.uint32([0, 1]))]
    )


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_float_cast_rounds_to_nearest_even(source: str, target: str, lanes: int, element_wise: Callable) -> None:
    with np.errstate(all="ignore"):
        x = float_samples().astype(numpy_type(source))
        want = x.astype(numpy_type(target))
    got = element_wise(lambda b, v: b.cast(v, target), (source,), target, 8)(x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
        sure = ~np.isnan(x.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(got[sure]), np.signbit(want[sure]))


def test_float64_to_two_bytes_rounds_once(element_wise: Callable) -> None:
    just_above_tie = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-40])
    got = element_wise(lambda b, v: b.cast(v, "float16"), ("float64",), "float16", 4)(just_above_tie)
    assert got.tolist() == [1 + 2.0**-10, 1.0, 1.0]
    just_above_tie = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 2.0**-8 - 2.0**-40])
    got = element_wise(lambda b, v: b.cast(v, "bfloat16"), ("float64",), "bfloat16", 4)(just_above_tie)
    assert got.astype(np.float64).tolist() == [1 + 2.0**-7, 1.0, 1.0]


@pytest.mark.parametrize("source", FLOATS)
def test_float_to_integer_truncates_and_saturates(source: str, element_wise: Callable) -> None:
    x = np.array([-1.9, -0.5, 0.5, 1.9, 100.0, 300.0, -300.0, INF, -INF, NAN]).astype(numpy_type(source))
    got = element_wise(lambda b, v: b.cast(v, "int8"), (source,), "int8", 4)(x)
    assert got.tolist() == [-1, 0, 0, 1, 100, 127, -128, 127, -128, 0]
    got = element_wise(lambda b, v: b.cast(v, "uint8"), (source,), "uint8", 4)(x)
    assert got.tolist() == [0, 0, 0, 1, 100, 255, 0, 255, 0, 0]


@pytest.mark.parametrize("saturates", [True, False])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
def test_float_to_integer_at_the_limits(
    source: str, target: str, saturates: bool, element_wise: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IRBuilder, "saturating_casts", saturates)
    info = np.iinfo(target)
    ends = [float(v) + d for v in (info.min, info.max, 0) for d in (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)]
    with np.errstate(over="ignore"):
        x = np.array([*ends, 1e30, -1e30, INF, -INF, NAN, NAN, *range(5)], source)
    found = element_wise(lambda b, v: b.cast(v, target), (source,), target, 8)(x)
    bounded = [min(max(v, -1e25), 1e25) if v == v else 0 for v in x.astype(float).tolist()]
    assert found.tolist() == [min(max(int(v), info.min), info.max) for v in bounded]


@pytest.mark.parametrize("source", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(
    "target", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "bfloat16", "bool"]
)
def test_integer_cast_matches_numpy(source: str, target: str, element_wise: Callable) -> None:
    info = np.iinfo(source)
    x = np.array([info.min, 0, 1, 77, info.max // 2, info.max], source)
    got = element_wise(lambda b, v: b.cast(v, target), (source,), target, 4)(x)
    np.testing.assert_array_equal(got, x.astype(numpy_type(target)))


@pytest.mark.parametrize("target", [*FLOATS, "int64", "uint8"])
def test_bool_casts_to_zero_and_one(target: str, element_wise: Callable) -> None:
    f = element_wise(lambda b, v: b.cast(b.cast(v, "bool"), target), ("float32",), target, 4)
    assert f(np.array([0, -0.0, 0.5, NAN], np.float32)).astype(np.float64).tolist() == [0, 0, 1, 1]


# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic_rounds_each_result(op: str, dtype: str, element_wise: Callable) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=200).astype(numpy_type(dtype)) for _ in range(2))
    want = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[op]
    got = element_wise(lambda f, x, y: f.binary(op, x, y), (dtype, dtype), dtype, 16)(a, b)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_operation_calls_a_library(dtype: str, library_calls: Callable) -> None:
    def build(b: IRBuilder, x: IRValue, y: IRValue) -> IRValue:
        total = b.fma(x, y, b.neg(x))
        for op in ("+", "-", "*", "/", "min", "max"):
            total = b.binary(op, total, y)
        for name in ("sqrt", "fabs", "floor", "ceil", "trunc", "roundeven"):
            total = b.unary(name, total)
        total = b.select(b.compare("<", total, y), total, x)
        for other in (*FLOATS, "int32", "uint8", "int64"):
            total = b.binary("+", total, b.cast(b.cast(total, other), dtype))
        return total

    for lanes in (1, 8):
        assert library_calls(build, (dtype, dtype), dtype, lanes) == []


def test_scalars_broadcast_to_vectors(element_wise: Callable) -> None:
    f = element_wise(lambda b, v: b.select(b.compare(">", v, b.const(0.0, "float32")), v, b.const(-1.0, "float32")),
                     ("float32",), "float32", 4)  # fmt: skip
    assert f(np.array([-3, 0, 2], np.float32)).tolist() == [-1, -1, 2]


def test_unequal_lanes_are_refused() -> None:
    b = IRBuilder()
    with pytest.raises(AssertionError, match="cannot broadcast 2 lanes to 4"):
        b.binary("+", IRValue("%a", "float32", 2), IRValue("%b", "float32", 4))

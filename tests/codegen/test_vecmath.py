"""Accuracy, special values and self-containedness of the element-wise functions, on this machine and for others."""

import math
import platform
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from burnish.codegen.angles import LARGE
from burnish.codegen.builder import IRBuilder, IRValue
from burnish.codegen.vecmath import BIT_MATH, MATH, ULP
from burnish.loops import expr
from burnish.loops.numeric import FUNCTIONS

NAN, INF = float("nan"), float("inf")
UNARY = [fn for fn, arguments in expr.MATH.items() if arguments == 1 and fn != "isnan"]
APPROXIMATED = [fn for fn in UNARY if ULP[fn, "float32"]]
FUSED = [
    True,
    pytest.param(False, marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="cannot turn it off")),
]

# Where a function does something: uniform samples are taken here, besides all exponents.
RANGES = {
    "exp": [(-104, 89), (-1, 1)], "expm1": [(-20, 89), (-1, 1), (-1e-3, 1e-3)], "log": [(0, 3), (0.5, 2)],
    "log1p": [(-1, 3), (-1e-3, 1e-3), (0, 1e5)], "sqrt": [(0, 4)], "rsqrt": [(0, 4)],
    "tanh": [(-10, 10), (-1, 1)], "erf": [(-5, 5), (-1, 1), (0.9, 2)], "sigmoid": [(-105, 20), (-10, 10)],
    "sin": [(-10, 10), (-1e5, 1e5), (-2 * LARGE, 2 * LARGE)],
    "cos": [(-10, 10), (-1e5, 1e5), (-2 * LARGE, 2 * LARGE)],
    "abs": [(-3, 3)], "floor": [(-3, 3)], "ceil": [(-3, 3)], "round": [(-3, 3)], "trunc": [(-3, 3)],
}  # fmt: skip


def reference(fn: str, x: np.ndarray) -> np.ndarray:
    """NumPy's float64 function."""
    functions = {
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "erf": np.vectorize(math.erf, otypes=[float]),
        "sigmoid": lambda v: np.where(v < 0, np.exp(v) / (1 + np.exp(v)), 1 / (1 + np.exp(-v))),
        "round": np.rint,
    }
    with np.errstate(all="ignore"):
        return functions.get(fn, getattr(np, fn, None))(x.astype(np.float64))


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Error in units of the last place of ``want`` (float64) in ``got``'s format; 0 for equal infinities and NaNs."""
    info = ml_dtypes.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype).astype(np.float64)
        exponent = np.maximum(np.frexp(want)[1] - 1, int(info.minexp))
        value = got.astype(np.float64)
        error = np.abs(value - want) / np.ldexp(1.0, exponent - int(info.nmant))
    special = ~np.isfinite(rounded) | ~np.isfinite(value)
    same = (value == rounded) | (np.isnan(value) & np.isnan(rounded))
    return np.where(special, np.where(same, 0.0, INF), error)


def any_bits(rng: np.random.Generator, count: int, dtype: str) -> np.ndarray:
    """Numbers of every exponent, with infinities and NaNs."""
    width = {"float32": np.uint32, "float64": np.uint64}[dtype]
    return rng.integers(0, np.iinfo(width).max, count, dtype=width, endpoint=True).view(dtype)


def samples(fn: str, dtype: str, count: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    parts = [any_bits(rng, count, dtype), *(rng.uniform(*bounds, count).astype(dtype) for bounds in RANGES[fn])]
    return np.concatenate(parts)


def test_every_function_of_the_expression_language_is_here() -> None:
    assert set(MATH) == set(expr.MATH)
    assert set(BIT_MATH) == set(expr.BIT_MATH)
    assert set(FUNCTIONS) == {*expr.MATH, *expr.BIT_MATH}
    assert set(ULP) == {(fn, dtype) for fn in expr.MATH if fn != "isnan" for dtype in expr.FLOATS}


# --- accuracy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("fn", UNARY)
def test_float32_accuracy(fn: str, lanes: int, fused: bool, element_wise: Callable) -> None:
    x = samples(fn, "float32", 40_000)
    got = element_wise(MATH[fn], ("float32",), "float32", lanes, fused)(x)
    error = ulps(got, reference(fn, x))
    worst = int(error.argmax())
    assert error[worst] <= ULP[fn, "float32"], f"{fn}({x[worst]!r}) = {got[worst]!r}"


def exact_ulps(got: float, want: Any) -> float:
    """Error of a float64 in units of the last place of the exact ``want``."""
    import mpmath

    if mpmath.isnan(want) or math.isnan(got):
        return 0.0 if mpmath.isnan(want) and math.isnan(got) else INF
    if abs(want) >= mpmath.mpf(2) ** 1024 or math.isinf(got):
        return 0.0 if got == math.copysign(INF, want) and abs(want) > 1.7976931348623157e308 else INF
    exponent = max(mpmath.frexp(want)[1] - 1, -1022) if want else -1022
    return float(abs(mpmath.mpf(got) - want) / mpmath.mpf(2) ** (exponent - 52))


@cache
def exact_values(fn: str) -> tuple[np.ndarray, list]:
    """Arguments and results to 60 digits."""
    import mpmath

    functions = {
        "log1p": lambda v: mpmath.log1p(v) if v > -1 else mpmath.mpf("-inf") if v == -1 else mpmath.nan,
        "log": lambda v: mpmath.log(v) if v > 0 else mpmath.mpf("-inf") if v == 0 else mpmath.nan,
        "sqrt": lambda v: mpmath.sqrt(v) if v >= 0 else mpmath.nan,
        "rsqrt": lambda v: 1 / mpmath.sqrt(v) if v > 0 else mpmath.nan,
        "sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)),
    }
    x = samples(fn, "float64", 600)
    x = x[np.isfinite(x) & (x != 0)]
    if fn in ("sin", "cos"):  # near the zeros the reduction cancels most
        with mpmath.workdps(400):
            far = [int(n) for n in np.exp2(np.random.default_rng(9).uniform(20, 62, 100))] + [
                3 << n for n in range(62, 1021)
            ]
            near = np.array([float(n * mpmath.pi / 2) for n in far])
        ends = [
            6381956970095103 * 2.0**-31,
            6381956970095103 * 2.0**797,
            LARGE,
            np.nextafter(LARGE, INF),
            1.7976931348623157e308,
        ]
        x = np.concatenate([x, np.arange(1, 400) * (math.pi / 2), near, np.nextafter(near, 0), ends])
    elif fn in ("exp", "expm1", "sigmoid", "tanh", "erf"):
        x = np.concatenate([np.clip(x, -800, 800), np.random.default_rng(8).uniform(-746, 710, 600)])
    with mpmath.workdps(400 if fn in ("sin", "cos") else 60):
        return x, [functions.get(fn, getattr(mpmath, fn, None))(mpmath.mpf(float(v))) for v in x]


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("fn", APPROXIMATED)
def test_float64_accuracy(fn: str, lanes: int, fused: bool, element_wise: Callable) -> None:
    import mpmath

    x, want = exact_values(fn)
    got = element_wise(MATH[fn], ("float64",), "float64", lanes, fused)(x)
    with mpmath.workdps(60):
        error = [exact_ulps(float(g), w) for g, w in zip(got, want, strict=True)]
    worst = int(np.argmax(error))
    assert error[worst] <= ULP[fn, "float64"], f"{fn}({x[worst]!r}) = {got[worst]!r}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fn", UNARY)
def test_two_byte_floats_on_every_value(fn: str, dtype: str, element_wise: Callable) -> None:
    x = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = x[~np.isnan(x.astype(np.float32))]  # see test_special_values
    got = element_wise(MATH[fn], (dtype,), dtype, 16)(x)
    error = ulps(got, reference(fn, x))
    worst = int(error.argmax())
    assert error[worst] <= ULP[fn, dtype], f"{fn}({x[worst]!r}) = {got[worst]!r}"


# --- special values ---------------------------------------------------------------------------------------------------

SPECIAL = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (-1000.0, -1.0), (INF, INF), (-INF, -1.0), (NAN, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-2.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (4.0, 2.0), (-1.0, NAN), (INF, INF), (NAN, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (4.0, 0.5), (-1.0, NAN), (INF, 0.0), (NAN, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (30.0, 1.0), (-30.0, -1.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (7.0, 1.0), (-7.0, -1.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "sigmoid": [(0.0, 0.5), (40.0, 1.0), (-800.0, 0.0), (INF, 1.0), (-INF, 0.0), (NAN, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "abs": [(-0.0, 0.0), (-2.0, 2.0), (-INF, INF), (NAN, NAN)],
    "floor": [(-0.5, -1.0), (0.5, 0.0), (-0.0, -0.0), (INF, INF), (NAN, NAN)],
    "ceil": [(-0.5, -0.0), (0.5, 1.0), (-INF, -INF), (NAN, NAN)],
    "round": [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0), (-1.5, -2.0), (NAN, NAN)],
    "trunc": [(-1.7, -1.0), (1.7, 1.0), (-0.5, -0.0), (INF, INF), (NAN, NAN)],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("fn", SPECIAL)
def test_special_values(fn: str, dtype: str, element_wise: Callable) -> None:
    stored = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x, want = (np.array(column).astype(stored) for column in zip(*SPECIAL[fn], strict=True))
    got = element_wise(MATH[fn], (dtype,), dtype, 4)(x).astype(np.float64)
    np.testing.assert_array_equal(got, want.astype(np.float64))
    sure = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got[sure]), np.signbit(want[sure]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_infinite_exponential_is_infinite_in_a_sum_too(dtype: str, element_wise: Callable) -> None:
    def build(b: IRBuilder, x: IRValue) -> IRValue:
        return b.binary("-", x, MATH["exp"](b, x))

    got = element_wise(build, (dtype,), dtype, 4)(np.array([INF, -INF, 1e6, 0.0], dtype))
    np.testing.assert_array_equal(got, np.array([NAN, -INF, -INF, -1.0], dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", UNARY)
def test_nan_of_any_payload_stays_nan(fn: str, dtype: str, element_wise: Callable) -> None:
    width, first = {"float32": (np.uint32, 0x7F800001), "float64": (np.uint64, 0x7FF0000000000001)}[dtype]
    payloads = np.array(
        [first, first + 1, first + 0x1FF, first + 0x7FF, first | (1 << (np.iinfo(width).bits - 1))], width
    )
    with np.errstate(invalid="ignore"):
        assert np.isnan(element_wise(MATH[fn], (dtype,), dtype, 8)(payloads.view(dtype))).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_isnan(dtype: str, element_wise: Callable) -> None:
    x = np.array([0.0, NAN, INF, -NAN, 1.0]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert element_wise(MATH["isnan"], (dtype,), "bool", 4)(x).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_abs_of_integers(dtype: str, element_wise: Callable) -> None:
    x = np.array([0, 1, 100, 255 if dtype == "uint8" else -100], dtype)
    np.testing.assert_array_equal(element_wise(MATH["abs"], (dtype,), dtype, 4)(x), np.abs(x))


@pytest.mark.parametrize(("fn", "low"), [("tanh", -1.0), ("erf", -1.0), ("sigmoid", 0.0)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_squashing_functions_stay_in_range(fn: str, low: float, dtype: str, element_wise: Callable) -> None:
    x = np.linspace(-40, 40, 800_001).astype(dtype)
    got = element_wise(MATH[fn], (dtype,), dtype, 16)(x)
    assert got.min() == low if low else 0 < got.min() < 1e-12
    assert got.max() == 1.0


# --- pow --------------------------------------------------------------------------------------------------------------

POW_EDGES = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, INF, -INF, NAN, 1e-40, -1e-40, 1e30, -1e30,
             16777217.0, 2.0**53 + 2, 2.0**53 - 1, 1 + 2.0**-20, 1e300, -1e300, 5e-324]  # fmt: skip


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pow_of_special_values_is_ieee(dtype: str, fused: bool, element_wise: Callable) -> None:
    with np.errstate(all="ignore"):
        x, y = (v.ravel() for v in np.meshgrid(*[np.array(POW_EDGES).astype(dtype)] * 2))
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    got = element_wise(MATH["pow"], (dtype, dtype), dtype, 8, fused)(x, y)
    error = ulps(got, want)
    assert error.max() <= ULP["pow", dtype] + 0.5, [(x[i], y[i], got[i], want[i]) for i in np.flatnonzero(error > 1.5)]
    sure = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[sure]), np.signbit(want[sure]))


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("lanes", [1, 16])
def test_float32_pow_accuracy(lanes: int, fused: bool, element_wise: Callable) -> None:
    rng = np.random.default_rng(5)
    x = np.exp(rng.uniform(-100, 88, 40_000)).astype(np.float32)
    with np.errstate(all="ignore"):
        y = (rng.uniform(-104, 89, x.size) / np.log(x.astype(np.float64))).astype(np.float32)
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    got = element_wise(MATH["pow"], ("float32", "float32"), "float32", lanes, fused)(x, y)
    assert ulps(got, want).max() <= ULP["pow", "float32"]


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("lanes", [1, 8])
def test_float64_pow_accuracy(lanes: int, fused: bool, element_wise: Callable) -> None:
    import mpmath

    rng = np.random.default_rng(6)
    near_one, wide = 1 + rng.uniform(-1e-3, 1e-3, 600), np.exp(rng.uniform(-744, 709, 600))
    x = np.concatenate([near_one, wide, rng.uniform(-20, 20, 600)])
    y = np.concatenate(
        [rng.uniform(-7e5, 7e5, 600), rng.uniform(-740, 709, 600) / np.log(wide), rng.integers(-60, 60, 600)]
    )
    got = element_wise(MATH["pow"], ("float64", "float64"), "float64", lanes, fused)(x, y)
    with mpmath.workdps(60):
        error = [
            exact_ulps(float(g), mpmath.mpf(float(a)) ** mpmath.mpf(float(b)))
            for g, a, b in zip(got, x, y, strict=True)
        ]
    worst = int(np.argmax(error))
    assert error[worst] <= ULP["pow", "float64"], f"pow({x[worst]!r}, {y[worst]!r}) = {got[worst]!r}"


# --- fmod, powers of integers -----------------------------------------------------------------------------------------

FMOD_EDGES = [0.0, -0.0, 1.0, -1.0, 5.3, -7.5, INF, -INF, NAN, 1e-40, -1e-40, 1e30, 16777217.0, 1e300, 5e-324, -2e-308]


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fmod_is_exact(dtype: str, fused: bool, element_wise: Callable) -> None:
    """Of numbers of all exponents, and of such of like size; C's function is exact."""
    rng = np.random.default_rng(9)
    edges = [v.ravel() for v in np.meshgrid(*[np.array(FMOD_EDGES)] * 2)]
    near = rng.uniform(-1e4, 1e4, 4000), rng.uniform(-10, 10, 4000)
    with np.errstate(all="ignore"):
        x, y = (
            np.concatenate([a.astype(dtype), b.astype(dtype), any_bits(rng, 20_000, dtype)])
            for a, b in zip(edges, near, strict=True)
        )
        want = np.fmod(x, y)
    got = element_wise(MATH["fmod"], (dtype, dtype), dtype, 8, fused)(x, y)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_powers_of_integers_wrap(dtype: str, element_wise: Callable) -> None:
    info = np.iinfo(dtype)
    numbers = [0, 1, 2, 3, 7, 39, 62, 63, 100, info.max, info.min, *([-1, -2, -3] if info.min else [])]
    x, y = (v.ravel() for v in np.meshgrid(np.array(numbers, dtype), np.array(numbers, dtype)))

    def power(a: int, n: int) -> int:
        if n < 0:
            return 0 if abs(a) != 1 else a if n % 2 else 1
        value = pow(a, n, 1 << info.bits)
        return value - (1 << info.bits) if info.min and value > info.max else value

    want = np.array([power(int(a), int(n)) for a, n in zip(x, y, strict=True)], dtype)
    np.testing.assert_array_equal(element_wise(MATH["pow"], (dtype, dtype), dtype, 8)(x, y), want)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(FUNCTIONS["pow"](x, y), want)
    for n in (0, 1, 2, 5, *((-1, -2) if info.min else ())):
        got = element_wise(lambda b, a, n=n: MATH["pow"](b, a, b.const(n, dtype)), (dtype,), dtype, 8)(x)
        np.testing.assert_array_equal(
            got,
            [power(int(a), n) % (1 << info.bits) for a in x]
            if not info.min
            else np.array([power(int(a), n) for a in x], dtype),
        )


# --- the code ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", expr.FLOATS)
@pytest.mark.parametrize("fn", MATH)
def test_code_calls_no_library(fn: str, dtype: str, library_calls: Callable) -> None:
    for lanes in (1, 16):
        output = "bool" if fn == "isnan" else dtype
        assert library_calls(MATH[fn], (dtype,) * expr.MATH[fn], output, lanes) == []


@pytest.mark.parametrize(("fn", "most"), [("exp", 18), ("sigmoid", 16), ("tanh", 16), ("erf", 17)])
def test_hot_functions_stay_short(fn: str, most: int, assembly: Callable) -> None:
    text = assembly(MATH[fn], ("float32",), "float32", 16, "x86_64-unknown-linux-gnu", "x86-64-v4")
    loop = text[text.index(".LBB0_1:") : text.index("jb\t.LBB0_1")]
    work = [line for line in loop.splitlines() if "%zmm" in line and "\tvmov" not in line]
    assert len(work) <= most, "\n".join(work)

"""Every operator of the ONNX front end, compiled and run alone, against its definition in float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import burnish as bn
from burnish.frontend.onnx import from_onnx
from burnish.graph.evaluate import evaluate
from burnish.graph.gradient import gradients
from burnish.graph.graph import GraphBuilder
from burnish.machines.target import target
from burnish.measure.accuracy import scaled_error
from burnish.runtime.module import Module
from burnish.simulators.emulator import CpuEmulator
from burnish.simulators.gpu.emulator import emulated
from tests.frontend.test_onnx_operators import CASES, Case, build


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_operator_matches_its_definition(case: Case) -> None:
    model, feeds = build(case)
    graph = from_onnx(model)
    found = bn.compile(graph, threads=2)(**feeds)
    found = found if isinstance(found, tuple) else (found,)
    expected = evaluate(graph, feeds, "float64")
    assert [str(array.dtype) for array in found] == [graph.types[name].dtype for name in graph.outputs]
    assert scaled_error(found, [expected[name] for name in graph.outputs]) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("machine", ["host", "aarch64-cortex-a53", "riscv64", "grid"])
def test_sine_and_cosine_of_angles_of_any_size(machine: str, dtype: str) -> None:
    """Machine code reads digits of 2 / pi from its own constants; 37 lanes leave a tail on every machine."""
    info, random = np.finfo(dtype), np.random.default_rng(0)
    x = np.ldexp(random.uniform(1, 2, 37), random.integers(info.minexp, info.maxexp, 37)).astype(dtype)
    x[:4] = np.inf, -info.max, info.max, info.smallest_subnormal
    b = GraphBuilder()
    b.input("x", x.shape, dtype)
    sine, cosine = b.add("sin", "x"), b.add("cos", "x")
    graph = b.build(sine, cosine, b.add("div", sine, cosine))
    if machine == "grid":
        found = bn.compile(graph, target=emulated(target("cuda:sm_80")))(x)
    elif machine == "host":
        found = bn.compile(graph, threads=1)(x)
    else:
        found = Module(bn.compile(graph, target=machine, threads=1).executable, 1, device=CpuEmulator())(x)
    for function, got in zip((math.sin, math.cos, math.tan), found, strict=True):
        want = np.array([math.nan, *(function(float(v)) for v in x[1:])])
        np.testing.assert_allclose(got, want, rtol=4 * info.eps)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("to", "zero"), [("uint8", 128), ("int8", -5), ("uint16", 7), ("int16", 3)])
def test_quantized_nan_is_the_least_number(to: str, zero: int, dtype: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e4, -1e4, 0.5, 1.5, -np.nan, 40000.0], dtype)
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])]
    given = [numpy_helper.from_array(np.array(1, dtype), "scale"), numpy_helper.from_array(np.array(zero, to), "zero")]
    types = (("x", dtype), ("y", to))
    x_info, y_info = (
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), [9]) for n, t in types
    )
    model = helper.make_model(helper.make_graph(nodes, "g", [x_info], [y_info], given))
    low, high = np.iinfo(to).min, np.iinfo(to).max
    want = np.clip(np.nan_to_num(np.rint(x.astype(float)), nan=-np.inf, posinf=1e9, neginf=-1e9) + zero, low, high)
    np.testing.assert_array_equal(bn.compile(model, threads=1)(x), want)


# --- digits -----------------------------------------------------------------------------------------------------------

Mpmath = Any
EXACT: dict[str, Callable[[Mpmath, Any], Any]] = {
    "softplus": lambda mp, x: mp.log1p(mp.exp(x)),
    "mish": lambda mp, x: x * mp.tanh(mp.log1p(mp.exp(x))),
    "elu": lambda mp, x: x if x > 0 else mp.expm1(x),
    "celu": lambda mp, x: x if x > 0 else mp.expm1(x),
    "selu": lambda mp, x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * mp.expm1(x)),
    "sinh": lambda mp, x: mp.sinh(x),
    "cosh": lambda mp, x: mp.cosh(x),
    "tanh": lambda mp, x: mp.tanh(x),
    "erf": lambda mp, x: mp.erf(x),
    "erfc": lambda mp, x: mp.erfc(x),
    "softsign": lambda mp, x: x / (1 + abs(x)),
    "sigmoid": lambda mp, x: 1 / (1 + mp.exp(-x)),
    "silu": lambda mp, x: x / (1 + mp.exp(-x)),
}


def map_of(op: str, x: np.ndarray, **attrs: Any) -> np.ndarray:
    """One element-wise operator, compiled and applied."""
    builder = GraphBuilder()
    builder.input("x", x.shape, str(x.dtype))
    return bn.compile(builder.build(builder.add(op, "x", **attrs)), threads=1, rewrite=False)(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", EXACT)
def test_no_digits_are_lost_at_any_exponent(op: str, dtype: str) -> None:
    import mpmath as mp

    rng, info = np.random.default_rng(2), np.finfo(dtype)
    least = -44.0 if dtype == "float32" else -320.0
    x = 10 ** np.concatenate([rng.uniform(least, 1.5, 90), rng.uniform(-9, 2, 90), rng.uniform(2, 30, 20)])
    x = np.concatenate([x, -x]).astype(dtype)
    got = map_of(op, x)
    with mp.workdps(40):
        for value, result in zip(x, got, strict=True):
            want = EXACT[op](mp, mp.mpf(float(value)))
            if abs(want) > float(info.max):
                assert np.isinf(result), (value, result)
            elif abs(want) > 1000 * float(info.tiny):
                ulp = mp.mpf(2) ** (int(mp.frexp(want)[1]) - 1 - info.nmant)
                assert abs(mp.mpf(float(result)) - want) <= 4 * ulp, (value, result, float(want))
            else:  # subnormal, in the end 0
                assert abs(mp.mpf(float(result)) - want) <= float(info.tiny) / 100, (value, result, float(want))


def within(got: np.ndarray, want: list[Any], ulps: float) -> None:
    """Whether numbers are so near to those of mpmath: in units of the last place, the least of which is subnormal."""
    import mpmath as mp

    info = np.finfo(got.dtype)
    for result, exact in zip(got, want, strict=True):
        place = max(int(mp.frexp(exact)[1]) - 1, info.minexp) if exact else info.minexp
        assert abs(mp.mpf(float(result)) - exact) <= ulps * mp.mpf(2) ** (place - info.nmant), (result, float(exact))


@pytest.mark.parametrize(("dtype", "last"), [("float32", 11.0), ("float64", 28.0)])
def test_erfc_and_its_slope_down_to_the_least_number(dtype: str, last: float) -> None:
    import mpmath as mp

    x = np.concatenate([np.linspace(0.2, last, 300), [0.84375, 1.25, 1 / 0.35, 0.0]]).astype(dtype)
    x = np.concatenate([x, np.nextafter(x, x.dtype.type(0)), -x])
    b = GraphBuilder()
    graph = gradients(b.build(b.add("erfc", b.input("x", x.shape, dtype), name="y")), "y", ["x"])
    value, slope = bn.compile(graph, threads=1)(x, np.ones_like(x))
    with mp.workdps(60):
        given = [mp.mpf(float(v)) for v in x]
        within(value, [mp.erfc(v) for v in given], 4)
        within(slope, [-2 / mp.sqrt(mp.pi) * mp.exp(-v * v) for v in given], 4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lgamma_around_its_zeros_and_from_there_on(dtype: str) -> None:
    import mpmath as mp

    near = 10.0 ** -np.arange(1, 16 if dtype == "float64" else 7)
    x = np.concatenate([1 + near, 1 - near, 2 + near, 2 - near, [1, 2, 1.5, 2.5, 8, 7.999], np.linspace(0.5, 20, 100)])
    x = np.concatenate([x, 10 ** np.linspace(-30, 30, 61)]).astype(dtype)
    with mp.workdps(60):
        within(map_of("lgamma", x), [mp.loggamma(mp.mpf(float(v))) for v in x], 4)


@pytest.mark.parametrize(
    ("op", "at_infinity", "at_minus_infinity"),
    [
        ("softplus", np.inf, 0.0), ("elu", np.inf, -1.0), ("celu", np.inf, -1.0), ("sinh", np.inf, -np.inf),
        ("cosh", np.inf, np.inf), ("erfc", 0.0, 2.0), ("sigmoid", 1.0, 0.0), ("tanh", 1.0, -1.0), ("erf", 1.0, -1.0),
        ("selu", np.inf, -1.7580993408473766),
    ],
)  # fmt: skip
def test_zeros_infinities_and_nan(op: str, at_infinity: float, at_minus_infinity: float) -> None:
    y = map_of(op, np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32))
    np.testing.assert_allclose(y[:3], [at_infinity, at_minus_infinity, np.nan], rtol=1e-6)
    if op not in ("softplus", "cosh", "sigmoid", "erfc"):
        assert not y[3:].any()
        assert (np.signbit(y[3:]) == [False, True]).all() or op == "celu"


@pytest.mark.parametrize("value", [0.0, -0.0])
@pytest.mark.parametrize(
    ("shape", "pads"), [((64, 64), (1, 0, 0, 0)), ((5, 33), (0, 1, 1, 2)), ((9,), (1, 2))], ids=str
)
def test_padding_has_the_sign_of_its_zero(shape: tuple[int, ...], pads: tuple[int, ...], value: float) -> None:
    padded = map_of("pad", np.ones(shape, "float32"), pads=pads, value=value)
    assert (np.signbit(padded[padded == 0]) == np.signbit(value)).all()

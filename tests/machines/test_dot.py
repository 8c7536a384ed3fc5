"""Dot products on lanes (VNNI, BF16): scheduled by their declaration, run where the CPU has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from burnish.codegen.llvm import emit
from burnish.codegen.objects import compile_ir
from burnish.loops.expr import cast
from burnish.loops.interpret import run_program
from burnish.loops.tensor import compute, create_program, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.machines.intrinsics import TensorIntrinsic, reference
from burnish.machines.target import host, target
from burnish.machines.x86.dot import DOT_BF16_F32, DOT_U8S8_I32
from burnish.schedule.schedule import Schedule

ROWS, COLUMNS, DEPTH = 3, 32, 24
CASES = {
    "bytes": (DOT_U8S8_I32, "uint8", "int8", "int32", "avx512vnni", "vpdpbusd"),
    "bfloat16": (DOT_BF16_F32, "bfloat16", "bfloat16", "float32", "avx512bf16", "vdpbf16ps"),
}
EACH = pytest.mark.parametrize("case", CASES)


def product(intrinsic: TensorIntrinsic, a: str, b: str, accumulator: str) -> Schedule:
    """``y[m, n] = sum over k of x[m, k] w[n, k]``, the weight in blocks as the instruction reads it."""
    x, w = placeholder((ROWS, DEPTH), a, name="x"), placeholder((COLUMNS, DEPTH), b, name="w")
    k = reduce_axis(DEPTH, "k")
    y = compute(
        (ROWS, COLUMNS),
        lambda m, n: sum_over(cast(accumulator, x[m, k.var]) * cast(accumulator, w[n, k.var]), (k,)),
        "y",
    )
    s = Schedule(create_program("kernel", [x, w], [y]))
    (width,) = intrinsic.operands[1].shape
    s.transform_layout("w", f"AB16a{width}b")
    m, n, depth = s.loops("y")
    over, lane = s.split(n, 16)
    deep, inner = s.split(depth, width)
    s.reorder(m, over, deep, lane, inner)
    s.tensorize(lane, intrinsic)
    return s


def operands(case: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Arrays with the extremes of their types, the weight in blocks, and the exact product."""
    rng, (intrinsic, *_) = np.random.default_rng(0), CASES[case]
    width = intrinsic.operands[1].shape[0]
    if case == "bytes":
        x, w = rng.integers(0, 256, (ROWS, DEPTH)), rng.integers(-128, 128, (COLUMNS, DEPTH))
        x[0], w[0], w[1] = 255, -128, 127
        x, w = x.astype("uint8"), w.astype("int8")
        expected = x.astype("int32") @ w.astype("int32").T
    else:  # small integers: sums of their products are exact in float32
        x, w = (rng.integers(-8, 9, s).astype(ml_dtypes.bfloat16) for s in ((ROWS, DEPTH), (COLUMNS, DEPTH)))
        expected = x.astype("float32") @ w.astype("float32").T
    blocks = w.reshape(COLUMNS // 16, 16, DEPTH // width, width).transpose(0, 2, 1, 3)
    return {"x": x, "w": np.ascontiguousarray(blocks)}, expected


@EACH
def test_the_declaration_computes_the_product(case: str) -> None:
    intrinsic, *types = CASES[case][:4]
    arrays, expected = operands(case)
    found = run_program(product(intrinsic, *types).program, arrays, {intrinsic.name: reference(intrinsic)})["y"]
    np.testing.assert_array_equal(found, expected)


@EACH
@pytest.mark.parametrize("edge", ["start", "end"])
def test_the_instruction_computes_what_is_declared(native: Callable[..., dict], case: str, edge: str) -> None:
    intrinsic, *types, feature, _ = CASES[case]
    if not host().has(feature):
        pytest.skip(f"this machine has no {feature}")
    arrays, expected = operands(case)
    np.testing.assert_array_equal(native(product(intrinsic, *types).program, arrays, edge=edge)["y"], expected)


@EACH
def test_code_is_the_instruction(case: str) -> None:
    """The object of a CPU that has it holds the instruction, whatever this machine is."""
    intrinsic, *types, feature, mnemonic = CASES[case]
    plain = target("x86-64-v4")
    cpu = replace(plain, features=plain.features | {feature})
    text = emit(product(intrinsic, *types).program, cpu).text
    assert mnemonic.removeprefix("v") in text
    assert compile_ir(text, cpu)[:4] == b"\x7fELF"


def test_bfloat16_products_of_any_size_are_near_those_of_float64(native: Callable[..., dict]) -> None:
    """The instruction rounds every sum to float32 and takes subnormal numbers for zero."""
    if not host().has("avx512bf16"):
        pytest.skip("this machine has no avx512bf16")
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((ROWS, DEPTH), (COLUMNS, DEPTH)))
    blocks = np.ascontiguousarray(w.reshape(2, 16, DEPTH // 2, 2).transpose(0, 2, 1, 3))
    s = product(DOT_BF16_F32, "bfloat16", "bfloat16", "float32")
    exact = x.astype("float64") @ w.astype("float64").T
    np.testing.assert_allclose(native(s.program, {"x": x, "w": blocks})["y"], exact, rtol=1e-5, atol=1e-5)

"""Exponential of a difference by the special function unit: ``ex2.approx``, with an error of some 2^-21 of itself.

Beside a softmax's greatest score x - m is at most 0, and what is far below it counts little; the conversion to base 2
adds |x - m| 2^-24. ``math`` functions elsewhere keep their own bounds (``codegen/vecmath.py``).

Source: PTX ISA, "ex2".
"""

from __future__ import annotations

from burnish.loops.expr import Buffer, Const, Expr, Load, Var, math
from burnish.loops.program import Intrinsic, Store
from burnish.machines.emitter import CodeEmitter, IntrinsicCode, pointer_to
from burnish.machines.intrinsics import TensorIntrinsic, declare

_LOG2E = "0x3FF7154760000000"  # 1.44269502, a float32 as LLVM writes it
LN2 = 0.6931471805599453


def _code(binary: bool) -> IntrinsicCode:
    def code(f: CodeEmitter, s: Intrinsic) -> None:
        d, x, m = s.operands
        left, right = (f.result(f"load float, ptr {pointer_to(f, operand)}", "float32").text for operand in (x, m))
        below = f.result(f"fsub float {left}, {right}", "float32").text
        scaled = below if binary else f.result(f"fmul float {below}, {_LOG2E}", "float32").text
        f.declare("gpu.exp2", "float", ["float"])
        power = f.result(f"call float @gpu.exp2(float {scaled})", "float32").text
        f.emit(f"store float {power}, ptr {pointer_to(f, d)}")

    return code


def _declared(binary: bool) -> TensorIntrinsic:
    d, x, m = (Buffer(name, (1,), "float32") for name in "dxm")
    i = (Var("i"),)
    below: Expr = Load(x, i) - Load(m, (Const(0),))
    body = Store(d, i, math("exp", below * LN2 if binary else below))
    return declare(f"exp{'2' if binary else ''}_of_difference", (d, x, m), [("i", 1)], body, code=_code(binary))


EXP_DIFFERENCE, EXP2_DIFFERENCE = _declared(False), _declared(True)
"""``d = exp(x - m)`` of single elements, and ``2 ^ (x - m)``."""

EXP_PRELUDE = """declare float @llvm.nvvm.ex2.approx.ftz.f(float)
define internal float @gpu.exp2(float %x) alwaysinline {
  %power = call float @llvm.nvvm.ex2.approx.ftz.f(float %x)
  ret float %power
}"""
"""LLVM IR of exponentials on a GPU."""

"""Arithmetic in one floating format over a :class:`IRBuilder`: numbers are constants, pairs have twice the digits."""

from __future__ import annotations

from burnish.codegen.builder import IRBuilder, IRValue, mangle
from burnish.codegen.coefficients import FORMATS, Polynomial, Rational

Real = IRValue | float
Pair = tuple[IRValue, IRValue]  # an unevaluated sum: a number and a small correction


class Arithmetic:
    """Operations in ``dtype`` ("float32" or "float64"). Python numbers become constants of that format."""

    def __init__(self, builder: IRBuilder, dtype: str) -> None:
        self.builder = builder
        self.format = FORMATS[dtype]

    def real(self, x: Real) -> IRValue:
        """A number as a constant of the format; a value unchanged."""
        return x if isinstance(x, IRValue) else self.builder.const(x, self.format.dtype)

    def add(self, x: Real, y: Real) -> IRValue:
        """``x + y``, rounded once."""
        return self.builder.binary("+", self.real(x), self.real(y))

    def sub(self, x: Real, y: Real) -> IRValue:
        """``x - y``, rounded once."""
        return self.builder.binary("-", self.real(x), self.real(y))

    def mul(self, x: Real, y: Real) -> IRValue:
        """``x * y``, rounded once."""
        return self.builder.binary("*", self.real(x), self.real(y))

    def div(self, x: Real, y: Real) -> IRValue:
        """``x / y``, rounded once."""
        return self.builder.binary("/", self.real(x), self.real(y))

    def fma(self, x: Real, y: Real, z: Real) -> IRValue:
        """``x * y + z``, fused where the target has the instruction."""
        return self.builder.fma(self.real(x), self.real(y), self.real(z))

    def clamp(self, x: IRValue, low: float, high: float) -> IRValue:
        """``x`` within [low, high]; NaN stays."""
        return self.builder.binary("min", self.builder.binary("max", x, self.real(low)), self.real(high))

    def test(self, op: str, x: Real, y: Real) -> IRValue:
        """Comparison ``x op y`` of lanes, as bool; false for NaN, but for ``!=``."""
        return self.builder.compare(op, self.real(x), self.real(y))

    def where(self, cond: IRValue, x: Real, y: Real) -> IRValue:
        """Lanes of ``x`` where ``cond`` holds, else those of ``y``."""
        return self.builder.select(cond, self.real(x), self.real(y))

    def with_sign(self, x: IRValue, sign: IRValue) -> IRValue:
        """``|x|`` with the sign of ``sign``."""
        name = f"llvm.copysign.{mangle(x.dtype, x.lanes)}"
        return self.builder.intrinsic(name, x.dtype, x.lanes, (x, sign))

    def polynomial(self, x: IRValue, coefficients: Polynomial) -> IRValue:
        """By Horner's rule; ``coefficients`` from the lowest power."""
        value: Real = coefficients[-1]
        for c in coefficients[-2::-1]:
            value = self.fma(value, x, c)
        return self.real(value)

    def rational(self, x: IRValue, ratio: Rational) -> Pair:
        """Numerator and denominator."""
        return self.polynomial(x, ratio[0]), self.polynomial(x, ratio[1])

    # --- the bits -----------------------------------------------------------------------------------------------------

    def bits(self, x: IRValue) -> IRValue:
        """Bit patterns of floats, as integers of the same width."""
        return self.builder.bitcast(x, self.format.integer)

    def from_bits(self, i: IRValue) -> IRValue:
        """Floats of these bit patterns."""
        return self.builder.bitcast(i, self.format.dtype)

    def integer(self, op: str, i: IRValue, j: IRValue | int) -> IRValue:
        """An operation of :meth:`IRBuilder.binary` on bit patterns."""
        other = j if isinstance(j, IRValue) else self.builder.const(j, self.format.integer)
        return self.builder.binary(op, i, other)

    def to_exponent(self, i: IRValue) -> IRValue:
        """Low bits moved to where the exponent is: 2^n from n + bias, modulo the width."""
        return self.integer("shl", i, self.format.mantissa)

    # --- exact: each sum or product as a Pair, on targets with and without a fused multiply-add -----------------------

    def exactly(self, op: str, x: Real, y: Real) -> IRValue:
        """``fadd``, ``fsub`` or ``fmul`` rounded once, never contracted with a neighbour."""
        x, y = self.builder.match(self.real(x), self.real(y))
        return self.builder.result(f"{op} {x.type} {x.text}, {y.text}", x.dtype, x.lanes)

    def quick_sum(self, x: IRValue, y: IRValue) -> Pair:
        """x + y where |x| >= |y| or x = 0 (Dekker)."""
        s = self.exactly("fadd", x, y)
        return s, self.exactly("fsub", y, self.exactly("fsub", s, x))

    def two_sum(self, x: IRValue, y: IRValue) -> Pair:
        """x + y (Knuth)."""
        s = self.exactly("fadd", x, y)
        t = self.exactly("fsub", s, x)
        rest = self.exactly("fsub", x, self.exactly("fsub", s, t))
        return s, self.exactly("fadd", rest, self.exactly("fsub", y, t))

    def halves(self, x: IRValue) -> Pair:
        """x as two numbers of half its digits."""
        low = (1 << (self.format.mantissa + 2) // 2) - 1
        high = self.from_bits(self.integer("and", self.bits(x), (1 << self.format.bits) - 1 - low))
        return high, self.exactly("fsub", x, high)

    def two_product(self, x: IRValue, y: IRValue) -> Pair:
        """x * y (Dekker)."""
        p = self.exactly("fmul", x, y)
        (xh, xl), (yh, yl) = self.halves(x), self.halves(y)
        rest = self.sub(self.mul(xh, yh), p)
        return p, self.fma(xl, yl, self.fma(xl, yh, self.fma(xh, yl, rest)))

    def pair_product(self, x: Pair, y: Pair) -> Pair:
        """x * y to about twice the digits."""
        p, e = self.two_product(x[0], y[0])
        return p, self.fma(x[0], y[1], self.fma(x[1], y[0], e))

"""Exact remainder (C's fmod) of floats and powers of integers as straight-line IR, for any number of lanes."""

from __future__ import annotations

from burnish.codegen.arithmetic import Arithmetic, Pair
from burnish.codegen.builder import IRBuilder, IRValue
from burnish.loops.expr import ITEM_BYTES

INFINITY, NAN = float("inf"), float("nan")
EXACT = 53  # bits of a float64


def normalize(m: Arithmetic, x: IRValue) -> Pair:
    """A positive x = 2^-shift y with y normal, as y and ``shift`` (a float)."""
    shift = m.format.mantissa + 1
    small = m.test("<", x, m.format.tiny)
    return m.where(small, m.mul(x, 2.0**shift), x), m.where(small, float(shift), 0.0)


# --- fmod -------------------------------------------------------------------------------------------------------------


def fmod(b: IRBuilder, x: IRValue, y: IRValue) -> IRValue:
    """x - trunc(x / y) y without rounding, however large the quotient; it has the sign of x (IEEE 754, C99 7.12.10.1).

    With x = p 2^i and y = q 2^j, p and q integers, it is (p 2^(i - j) mod q) 2^j; the power of two by repeated squaring
    modulo q. float32 is computed in float64, where all products are exact; float64 with products in two parts.
    """
    d = Arithmetic(b, "float64")
    if x.dtype == "float32":
        wide_x, wide_y = (b.cast(b.unary("fabs", v), "float64") for v in (x, y))
        value = b.cast(_fmod_magnitude(d, wide_x, wide_y, digits=24), "float32")
    else:
        value = _fmod_magnitude(d, b.unary("fabs", x), b.unary("fabs", y), digits=EXACT)
    m = Arithmetic(b, x.dtype)
    p, q = b.unary("fabs", x), b.unary("fabs", y)
    defined = b.binary("and", m.test("<", p, INFINITY), m.test(">", q, 0.0))
    return m.where(defined, m.where(m.test("<", p, q), x, m.with_sign(value, x)), NAN)


def _fmod_magnitude(d: Arithmetic, x: IRValue, y: IRValue, digits: int) -> IRValue:
    """fmod of finite x >= y > 0, numbers of ``digits`` bits held in float64; anything for others."""
    (p, i), (q, j) = _integer_parts(d, x, digits), _integer_parts(d, y, digits)
    squarings = 4 if digits < EXACT else 6
    n = d.bits(d.add(d.clamp(d.sub(i, j), 0.0, 4095.0), d.format.magic))
    n = d.integer("and", n, 4095)
    power = d.from_bits(d.to_exponent(d.integer("+", d.integer("lshr", n, squarings), d.format.bias)))
    power = _centred(d, power, q)
    for bit in reversed(range(squarings)):
        power = _product(d, power, power, q, digits)
        doubled = d.builder.compare("!=", d.integer("and", n, 1 << bit), d.builder.const(0, d.format.integer))
        power = d.where(doubled, _centred(d, d.add(power, power), q), power)
    p = _centred(d, d.where(d.test(">=", p, q), d.sub(p, q), p), q)  # p < 2 q: both have all their bits
    rest = _product(d, p, power, q, digits)
    rest = d.where(d.test("<", rest, 0.0), d.add(rest, q), rest)
    half = d.builder.unary("floor", d.mul(j, 0.5))  # 2^j itself may not be a normal number
    return d.mul(d.mul(rest, _power_of_two(d, half)), _power_of_two(d, d.sub(j, half)))


def _integer_parts(d: Arithmetic, x: IRValue, digits: int) -> Pair:
    """A positive finite x = p 2^i with 2^(digits - 1) <= p < 2^digits, as p and i (a float)."""
    normal, shift = normalize(d, x)
    bits = d.bits(normal)
    f = d.format
    mantissa = d.integer("and", bits, (1 << f.mantissa) - 1)
    p = d.from_bits(d.integer("or", mantissa, (f.bias + digits - 1) << f.mantissa))
    exponent = d.sub(d.from_bits(d.integer("or", d.integer("lshr", bits, f.mantissa), _MAGIC_BITS)), 2.0**f.mantissa)
    return p, d.sub(d.sub(exponent, float(f.bias + digits - 1)), shift)


_MAGIC_BITS = (1023 + 52) << 52  # of the float64 2^52, whose low bits count units


def _power_of_two(d: Arithmetic, n: IRValue) -> IRValue:
    """2^n for an integer n (a float) of which it is a normal number."""
    return d.from_bits(d.to_exponent(d.bits(d.add(n, d.format.magic + d.format.bias))))


def _centred(d: Arithmetic, x: IRValue, q: IRValue) -> IRValue:
    """x with q added or taken away once where it lies outside -q/2 to q/2."""
    half = d.mul(q, 0.5)
    x = d.where(d.test(">", x, half), d.sub(x, q), x)
    return d.where(d.test("<", x, d.builder.neg(half)), d.add(x, q), x)


def _product(d: Arithmetic, x: IRValue, y: IRValue, q: IRValue, digits: int) -> IRValue:
    """x y modulo q, within -q/2 to q/2 as x and y are; all are integers."""
    if digits < EXACT:  # the product is exact
        product = d.mul(x, y)
        quotient = d.builder.unary("roundeven", d.div(product, q))
        return _centred(d, d.sub(product, d.mul(quotient, q)), q)
    high, low = d.two_product(x, y)
    quotient = d.builder.unary("roundeven", d.div(high, q))
    taken, taken_low = d.two_product(quotient, q)
    return _centred(d, d.add(_centred(d, d.exactly("fsub", high, taken), q), d.exactly("fsub", low, taken_low)), q)


# --- powers of integers -----------------------------------------------------------------------------------------------


def integer_power(b: IRBuilder, x: IRValue, y: IRValue) -> IRValue:
    """x^y modulo the width, by squaring; 0^0 is 1. A negative y gives what 1 / x^-y truncates to, and 0 for x = 0."""
    signed = not x.dtype.startswith("u")
    one, zero = b.const(1, x.dtype), b.const(0, x.dtype)
    result, square = b.splat(one, x.lanes), x
    bits = ITEM_BYTES[x.dtype] * 8 - signed
    if y.const is not None:
        bits = max(int(y.const), 0).bit_length()
    for bit in range(bits):
        if bit:
            square = b.binary("*", square, square)
        if y.const is None:
            present = b.compare("!=", b.binary("and", y, b.const(1 << bit, x.dtype)), zero)
            result = b.select(present, b.binary("*", result, square), result)
        elif int(y.const) >> bit & 1:
            result = b.binary("*", result, square)
    if not signed or (y.const is not None and y.const >= 0):
        return result
    odd = b.compare("!=", b.binary("and", y, one), zero)
    unit = b.binary("or", b.compare("==", x, one), b.compare("==", x, b.const(-1, x.dtype)))
    inverse = b.select(unit, b.select(odd, x, b.binary("*", x, x)), zero)
    return b.select(b.compare("<", y, zero), inverse, result)

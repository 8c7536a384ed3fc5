"""Element-wise functions as straight-line IR: no calls, no tables in memory, the same for any number of lanes.

Targets need rounding instructions (x86: SSE4.1) and, for float16, conversions (x86: F16C). A fused multiply-add is used
where there is one and never relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from burnish.codegen import coefficients as data
from burnish.codegen.angles import reduce_angle
from burnish.codegen.arithmetic import Arithmetic, Pair
from burnish.codegen.builder import IRBuilder, IRValue
from burnish.codegen.remainder import fmod, integer_power, normalize
from burnish.loops.expr import BIT_COUNTS, BYTE_DOT, FLOATS, ITEM_BYTES

INFINITY, NAN = float("inf"), float("nan")

# --- exp, expm1, sigmoid ----------------------------------------------------------------------------------------------


def _exp_parts(m: Arithmetic, x: IRValue, offset: int, sign: int = 1, low: IRValue | None = None) -> Pair:
    """e^(sign x) = p 2^n as p and an integer whose low bits are n + ``offset``; ``low`` is added to the reduced x."""
    f = m.format
    magic = f.magic + offset
    shifted = m.fma(x, sign * data.LOG2E, magic)
    n = m.sub(shifted, magic)
    r = m.fma(n, -sign * f.ln2[1], m.fma(n, -sign * f.ln2[0], x))
    if low is not None:
        r = m.add(r, low)
    return m.polynomial(r, tuple(c * sign**i for i, c in enumerate(f.exp))), m.bits(shifted)


def _exp_normal(m: Arithmetic, x: IRValue) -> IRValue:
    """e^x where the result is certain to be normal."""
    p, n = _exp_parts(m, x, m.format.bias)
    return m.mul(p, m.from_bits(m.to_exponent(n)))


def _exp(m: Arithmetic, x: IRValue, low: IRValue | None = None) -> IRValue:
    """2^n is applied in two factors, so that one rounding makes the denormals and one overflow the infinity.

    The last product is not contracted into a sum behind it, which would take infinity for the finite p 2^n.
    """
    p, n = _exp_parts(m, m.clamp(x, *m.format.exp_range), 2 * m.format.bias, low=low)
    first = m.to_exponent(m.integer("lshr", n, 1))
    second = m.integer("-", m.to_exponent(n), first)
    return m.exactly("fmul", m.mul(p, m.from_bits(first)), m.from_bits(second))


def _expm1(m: Arithmetic, x: IRValue) -> IRValue:
    """e^x - 1 = 2^n (e^r - 1) + (2^n - 1), which loses no digits near 0; halved until the end, as 2^n may overflow."""
    f = m.format
    low = {"float32": -80.0, "float64": -700.0}[f.dtype]  # the result is -1 long before
    bounded = m.clamp(x, low, f.exp_range[1])
    shifted = m.fma(bounded, data.LOG2E, f.magic + f.bias - 1)
    n = m.sub(shifted, f.magic + f.bias - 1)
    r = m.fma(n, -f.ln2[1], m.fma(n, -f.ln2[0], bounded))
    p = m.fma(m.mul(r, r), m.polynomial(r, f.exp[2:]), r)
    half = m.from_bits(m.to_exponent(m.bits(shifted)))  # 2^(n - 1)
    scaled = m.fma(half, p, m.sub(half, 0.5))
    value = m.where(m.test("==", n, 0.0), p, m.add(scaled, scaled))
    return m.with_sign(value, x)


def _sigmoid(m: Arithmetic, x: IRValue) -> IRValue:
    """1 / (1 + e^-x) with both terms scaled by a power of two that keeps e^-x finite wherever the result is not 0."""
    scale = (m.format.bias + 1) // 2
    p, n = _exp_parts(m, m.clamp(x, m.format.exp_range[0], 40.0), m.format.bias - scale, sign=-1)
    w = m.mul(p, m.from_bits(m.to_exponent(n)))
    return m.div(2.0**-scale, m.add(w, 2.0**-scale))


# --- log, log1p -------------------------------------------------------------------------------------------------------


def _split(m: Arithmetic, x: IRValue) -> Pair:
    """A positive normal x = 2^e q with sqrt(1/2) <= q < sqrt(2), as e (a float) and q."""
    f = m.format
    root_half = {"float32": 0x3F3504F3, "float64": 0x3FE6A09E667F3BCD}[f.dtype]
    signed = f"int{f.bits}"
    bits = m.bits(x)
    biased = m.builder.bitcast(m.integer("-", bits, root_half), signed)
    e = m.builder.binary("ashr", biased, m.builder.const(f.mantissa, signed))
    q = m.from_bits(m.integer("-", bits, m.to_exponent(m.builder.bitcast(e, f.integer))))
    return m.builder.cast(e, f.dtype), q


def _log_sum(m: Arithmetic, e: IRValue, f: IRValue) -> IRValue:
    """e log(2) + log(1 + f), as fdlibm has it: log(1 + f) = f - (f^2/2 - s (f^2/2 + R(s^2))), s = f / (2 + f)."""
    s = m.div(f, m.add(f, 2.0))
    z = m.mul(s, s)
    r = m.mul(z, m.polynomial(z, m.format.log))
    half = m.mul(m.mul(f, 0.5), f)
    rest = m.fma(s, m.add(half, r), m.mul(e, m.format.ln2[1]))
    return m.fma(e, m.format.ln2[0], m.sub(f, m.sub(half, rest)))


def _log_edges(m: Arithmetic, value: IRValue, x: IRValue, pole: float) -> IRValue:
    """``value`` where x lies between the pole of a logarithm and infinity; elsewhere -inf, NaN, or x itself."""
    edge = m.where(m.test("==", x, pole), -INFINITY, m.where(m.test("<", x, pole), NAN, x))
    inside = m.builder.binary("and", m.test(">", x, pole), m.test("<", x, INFINITY))
    return m.where(inside, value, edge)


def _log(m: Arithmetic, x: IRValue) -> IRValue:
    normal, shift = normalize(m, x)
    e, q = _split(m, normal)
    return _log_edges(m, _log_sum(m, m.sub(e, shift), m.sub(q, 1.0)), x, 0.0)


def _log1p(m: Arithmetic, x: IRValue) -> IRValue:
    """log(1 + x): the sum's rounding error goes into f = (1 + x) / 2^e - 1, which is x itself where e is 0."""
    one, rest = m.two_sum(m.real(1.0), x)
    e, q = _split(m, one)
    few = m.builder.binary("min", e, m.real(m.format.bias - 1.0))  # from there on the error does not count
    bits = m.bits(m.sub(m.format.magic + m.format.bias, few))
    f = m.fma(rest, m.from_bits(m.to_exponent(bits)), m.sub(q, 1.0))
    return m.with_sign(_log_edges(m, _log_sum(m, e, f), x, -1.0), x)


# --- tanh, erf --------------------------------------------------------------------------------------------------------


def _odd_rational(m: Arithmetic, x: IRValue, ratio: data.Rational, one: float) -> IRValue:
    """x P(x^2) / Q(x^2), which has reached 1 at x = ``one`` and is held there: from ``one`` on it is x / one."""
    z = m.builder.binary("min", m.mul(x, x), m.real(one * one))
    p, q = m.rational(z, ratio)
    return m.clamp(m.div(m.mul(x, p), q), -1.0, 1.0)


def _tanh(m: Arithmetic, x: IRValue) -> IRValue:
    if m.format.dtype == "float32":
        return _odd_rational(m, x, data.TANH32, data.TANH32_ONE)
    a = m.builder.binary("min", m.builder.unary("fabs", x), m.real(22.0))  # tanh 22 rounds to 1
    small = m.test("<", a, data.TANH64_SMALL)
    z = m.mul(a, a)
    p, q = m.rational(z, data.TANH64)
    above = m.add(_exp_normal(m, m.add(a, a)), 1.0)
    ratio = m.div(m.where(small, m.mul(m.mul(a, z), p), -2.0), m.where(small, q, above))  # one division serves both
    return m.with_sign(m.add(m.where(small, a, 1.0), ratio), x)


def _erf(m: Arithmetic, x: IRValue) -> IRValue:
    if m.format.dtype == "float32":
        return _odd_rational(m, x, data.ERF32, data.ERF32_ONE)
    a = m.builder.binary("min", m.builder.unary("fabs", x), m.real(data.ERF64_ONE))
    small = m.test("<", a, 1.0)
    z = m.mul(a, a)
    p, q = m.rational(z, data.ERF64)
    above, below = m.rational(a, data.ERFCX64)
    tail = m.builder.neg(m.mul(_exp_normal(m, m.builder.neg(z)), above))
    ratio = m.div(m.where(small, m.mul(a, p), tail), m.where(small, q, below))
    return m.with_sign(m.add(m.where(small, a, 1.0), ratio), x)


# --- sin, cos ---------------------------------------------------------------------------------------------------------


def _sine(m: Arithmetic, x: IRValue, quarters: int) -> IRValue:
    """sin(x + quarters pi/2)."""
    r, n = reduce_angle(m, x)
    if quarters:
        n = m.integer("+", n, quarters)
    z = m.mul(r, r)
    sin = m.fma(m.mul(r, z), m.polynomial(z, m.format.sin), r)
    cos = m.fma(z, m.fma(z, m.polynomial(z, m.format.cos), -0.5), 1.0)
    odd = m.builder.cast(m.integer("and", n, 1), "bool")
    sign = m.integer("shl", m.integer("and", n, 2), m.format.bits - 2)
    value = m.from_bits(m.integer("xor", m.bits(m.where(odd, cos, sin)), sign))
    return value if quarters else m.where(m.test("==", x, 0.0), x, value)  # -0 stays


# --- pow --------------------------------------------------------------------------------------------------------------


def _log_pair(m: Arithmetic, x: IRValue) -> Pair:
    """log of a positive finite x to about 68 bits."""
    normal, shift = normalize(m, x)
    e, q = _split(m, normal)
    e = m.sub(e, shift)
    f = m.exactly("fsub", q, 1.0)
    below = m.exactly("fadd", q, 1.0)
    below_rest = m.exactly("fsub", q, m.exactly("fsub", below, 1.0))
    inverse = m.div(1.0, below)
    s = m.exactly("fmul", f, inverse)
    product, product_rest = m.two_product(s, below)
    remainder = m.sub(m.sub(m.exactly("fsub", f, product), product_rest), m.mul(s, below_rest))
    ratio = (s, m.mul(remainder, inverse))  # (q - 1) / (q + 1)
    square = m.pair_product(ratio, ratio)
    tail = m.exactly("fmul", square[0], m.polynomial(square[0], data.LOG_TAIL64))
    third, third_rest = m.quick_sum(m.real(data.TWO_THIRDS[0]), tail)
    series = m.pair_product(m.pair_product((third, m.add(third_rest, data.TWO_THIRDS[1])), square), ratio)
    doubled = (m.add(s, s), m.add(ratio[1], ratio[1]))
    high, rest = m.two_sum(m.exactly("fmul", e, m.format.ln2[0]), doubled[0])
    high, more = m.quick_sum(high, series[0])
    low = m.add(m.add(rest, more), m.add(doubled[1], m.fma(e, m.format.ln2[1], series[1])))
    return m.quick_sum(high, low)


def _pow_magnitude(m: Arithmetic, a: IRValue, y: IRValue) -> IRValue:
    """a^y for a positive finite a: float32 through float64, float64 through pairs."""
    far = 2.0**66  # a further exponent gives 0, 1 or infinity just the same, and its products would overflow
    y = m.clamp(y, -far, far)
    if m.format.dtype == "float64":
        log, log_low = _log_pair(m, a)
        product, rest = m.two_product(y, log)
        low = m.clamp(m.fma(y, log_low, rest), -(2.0**-40), 2.0**-40)  # holds where the product overflows exp
        return _exp(m, product, low=low)
    d = Arithmetic(m.builder, "float64")
    e, q = _split(d, m.builder.cast(a, "float64"))
    log = _log_sum(d, e, d.sub(q, 1.0))
    value = _exp_normal(d, d.clamp(d.mul(m.builder.cast(y, "float64"), log), -110.0, 90.0))
    return m.builder.cast(value, "float32")


def _pow(b: IRBuilder, x: IRValue, y: IRValue) -> IRValue:
    """IEEE 754 pow with its special cases; of integers exactly, modulo their width."""
    if x.dtype not in FLOATS:
        return integer_power(b, x, y)
    m = Arithmetic(b, x.dtype)
    a = b.unary("fabs", x)
    either, both = (lambda p, q: b.binary("or", p, q)), (lambda p, q: b.binary("and", p, q))
    zero, negative_y = m.test("==", a, 0.0), m.test("<", y, 0.0)
    edge = m.where(b.binary("xor", zero, negative_y), 0.0, INFINITY)
    value = m.where(either(zero, m.test("==", a, INFINITY)), edge, _pow_magnitude(m, a, y))
    half = m.mul(y, 0.5)
    whole = m.test("==", b.unary("trunc", y), y)
    odd = both(whole, m.test("!=", b.unary("trunc", half), half))
    value = m.where(odd, m.with_sign(value, x), value)
    rootless = both(both(m.test("<", x, 0.0), m.test(">", x, -INFINITY)), b.not_(whole))
    unknown = either(m.test("!=", x, x), m.test("!=", y, y))
    value = m.where(either(rootless, unknown), NAN, value)
    return m.where(either(m.test("==", y, 0.0), m.test("==", x, 1.0)), 1.0, value)


# --- the table --------------------------------------------------------------------------------------------------------


def _abs(b: IRBuilder, x: IRValue) -> IRValue:
    if x.dtype in FLOATS:
        return b.unary("fabs", x)
    return b.select(b.compare("<", x, b.const(0, x.dtype)), b.neg(x), x)


def _in_float32(b: IRBuilder, function: Callable[..., IRValue], *args: IRValue) -> IRValue:
    """Two-byte floats through float32: its error disappears in the last rounding."""
    if args[0].dtype not in ("float16", "bfloat16"):
        return function(b, *args)
    return b.cast(function(b, *(b.cast(a, "float32") for a in args)), args[0].dtype)


def _wide(function: Callable[..., IRValue]) -> Callable[..., IRValue]:
    return lambda b, *args: _in_float32(b, function, *args)


def _of(function: Callable[[Arithmetic, IRValue], IRValue]) -> Callable[..., IRValue]:
    return _wide(lambda b, x: function(Arithmetic(b, x.dtype), x))


def _rounding(name: str) -> Callable[..., IRValue]:
    return _wide(lambda b, x: b.unary(name, x))


MATH: Mapping[str, Callable[..., IRValue]] = {  # burnish.loops.expr.MATH: name -> f(builder, value, ...)
    "exp": _of(_exp),
    "expm1": _of(_expm1),
    "log": _of(_log),
    "log1p": _of(_log1p),
    "sqrt": _rounding("sqrt"),
    "rsqrt": _of(lambda m, x: m.div(1.0, m.builder.unary("sqrt", x))),
    "tanh": _of(_tanh),
    "erf": _of(_erf),
    "sigmoid": _of(_sigmoid),
    "sin": _of(lambda m, x: _sine(m, x, 0)),
    "cos": _of(lambda m, x: _sine(m, x, 1)),
    "abs": _abs,
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "round": _rounding("roundeven"),
    "trunc": _rounding("trunc"),
    "isnan": lambda b, x: b.compare("!=", x, x),
    "pow": _wide(_pow),
    "fmod": _wide(fmod),
}


def _shift(op: str) -> Callable[..., IRValue]:
    """A shift by as many bits as the second operand says; all bits go, or are the sign's, where that is too many."""

    def shifted(b: IRBuilder, x: IRValue, y: IRValue) -> IRValue:
        signed = not x.dtype.startswith("u")
        bits = 8 * ITEM_BYTES[x.dtype]
        inside = b.compare("<", y, b.const(bits, x.dtype))
        if signed:
            inside = b.binary("and", inside, b.compare(">=", y, b.const(0, x.dtype)))
        amount = b.binary("and", y, b.const(bits - 1, x.dtype))
        beyond = b.binary("ashr", x, b.const(bits - 1, x.dtype)) if signed and op == "shr" else b.const(0, x.dtype)
        instruction = "shl" if op == "shl" else "ashr" if signed else "lshr"
        return b.select(inside, b.binary(instruction, x, amount), beyond)

    return shifted


BIT_MATH: Mapping[str, Callable[..., IRValue]] = {  # burnish.loops.expr.BIT_MATH, of integers
    "bitand": lambda b, x, y: b.binary("and", x, y),
    "bitor": lambda b, x, y: b.binary("or", x, y),
    "bitxor": lambda b, x, y: b.binary("xor", x, y),
    BYTE_DOT: lambda b, x, y: b.byte_dot(x, y, b.const(0, "int32")),
    BIT_COUNTS: lambda b, x, y: b.bit_counts(x, y, b.const(0, "int32")),
    "shl": _shift("shl"),
    "shr": _shift("shr"),
}
_APPROXIMATED = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos", "pow")
_BOUNDS: Mapping[str, tuple[float, ...]] = {  # of these functions, without fused multiply-add; of all others: 0
    "float32": (1.25, 2.5, 1.0, 1.5, 0.5, 1.5, 6.25, 6.75, 2.5, 1.6, 1.6, 0.51),
    "float64": (1.25, 2.5, 1.0, 1.5, 0.5, 1.5, 1.5, 1.5, 2.5, 2.5, 2.5, 1.5),
    "float16": (0.51,) * len(_APPROXIMATED),
    "bfloat16": (0.51,) * len(_APPROXIMATED),
}
ULP: Mapping[tuple[str, str], float] = {  # (function, dtype) -> greatest error in units of the last place
    (fn, dtype): dict(zip(_APPROXIMATED, bounds, strict=True)).get(fn, 0.0)
    for dtype, bounds in _BOUNDS.items()
    for fn in MATH
    if fn != "isnan"
}

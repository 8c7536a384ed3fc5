"""Argument reduction of sine and cosine: Cody and Waite's for most angles, Payne and Hanek's for large ones.

A large angle x = M 2^e needs the digits of 2 / pi around 2^-e: M times a window of 192 of them, modulo 4, is the
quadrant and what is left of it. Integers of one lane at a time do that, in a block that is entered where a vector holds
such an angle.
"""

from __future__ import annotations

from itertools import pairwise

from burnish.codegen import coefficients as data
from burnish.codegen.arithmetic import Arithmetic, Pair
from burnish.codegen.builder import IRBuilder, IRValue

LARGE = 2.0**22  # beyond this |x| products of the parts of pi/2 are no longer exact
_WORD = 64
_NAME, _DIGITS = "burnish.large_angle", "burnish.two_over_pi"
_RESULT = "{ double, i64 }"


def reduce_angle(m: Arithmetic, x: IRValue) -> Pair:
    """x = n pi/2 + r as r within about pi/4 and the bits of n modulo 4, both of x's width; NaN for infinite x."""
    r, n = m.builder.once(("angle", x.text), lambda: _reduced(m, x))
    return r, n


def _reduced(m: Arithmetic, x: IRValue) -> Pair:
    b = m.builder
    d = Arithmetic(b, "float64")
    wide = b.cast(x, "float64")
    shifted = d.fma(wide, data.TWO_OVER_PI, d.format.magic)
    n = d.sub(shifted, d.format.magic)
    r = wide
    for part in data.HALF_PI[: m.format.half_pi_parts]:
        r = d.fma(n, -part, r)
    r, quadrant = _where_large(b, m.test(">", b.unary("fabs", x), LARGE), wide, (r, d.bits(shifted)))
    return b.cast(r, m.format.dtype), b.cast(quadrant, m.format.integer)


def _where_large(b: IRBuilder, large: IRValue, x: IRValue, usual: Pair) -> Pair:
    """``usual``, but for the lanes that are ``large``; a branch passes by what these need where there are none."""
    b.define(_DIGITS, f"@{_DIGITS} = private unnamed_addr constant [{len(data.TWO_OVER_PI_WORDS)} x i64] "
                      f"[{', '.join(f'i64 {w}' for w in data.TWO_OVER_PI_WORDS)}]")  # fmt: skip
    b.define(_NAME, _function(b))
    large = b.frozen(large)  # no branch may depend on a lane that nobody has written
    some = large
    if large.lanes > 1:
        name = f"llvm.vector.reduce.or.v{large.lanes}i1"
        b.declare(name, "i1", [large.type])
        some = b.result(f"call i1 @{name}({large.type} {large.text})", "bool")
    test, lane, done = (b.fresh(part) for part in ("angles", "lane", "reduced"))
    b.emit(f"br label %{test}")
    b.label(test)
    b.emit(f'br i1 {some.text}, label %{lane}, label %{done}, !prof !{{!"branch_weights", i32 1, i32 2000}}')
    b.label(lane)
    parts: list[IRValue] = list(usual)
    if x.lanes == 1:
        pair = b.result(f"call {_RESULT} @{_NAME}(double {x.text})", "float64").text
        parts = [b.result(f"extractvalue {_RESULT} {pair}, {i}", v.dtype) for i, v in enumerate(usual)]
        b.emit(f"br label %{done}")
    else:
        at, after = b.fresh("at"), b.fresh("after")
        b.emit(f"%{at} = phi i64 [ 0, %{test} ], [ %{after}, %{lane} ]")
        names = [b.fresh("angle") for _ in usual]
        before = [b.result(f"phi {v.type} [ {v.text}, %{test} ], [ %{name}, %{lane} ]", v.dtype, v.lanes)
                  for v, name in zip(usual, names, strict=True)]  # fmt: skip
        this = b.result(f"extractelement {large.type} {large.text}, i64 %{at}", "bool")
        one = b.result(f"extractelement {x.type} {x.text}, i64 %{at}", "float64")
        one = b.select(this, one, b.const(LARGE, "float64"))
        pair = b.result(f"call {_RESULT} @{_NAME}(double {one.text})", "float64").text
        for i, (old, name) in enumerate(zip(before, names, strict=True)):
            scalar = IRValue("", old.dtype).type
            new = b.result(f"extractvalue {_RESULT} {pair}, {i}", old.dtype)
            kept = b.result(f"extractelement {old.type} {old.text}, i64 %{at}", old.dtype)
            chosen = b.select(this, new, kept)
            b.emit(f"%{name} = insertelement {old.type} {old.text}, {scalar} {chosen.text}, i64 %{at}")
            parts[i] = IRValue(f"%{name}", old.dtype, old.lanes)
        b.emit(f"%{after} = add nuw nsw i64 %{at}, 1")
        more = b.result(f"icmp ult i64 %{after}, {x.lanes}", "bool")
        b.emit(f"br i1 {more.text}, label %{lane}, label %{done}")
    b.label(done)
    r, n = (b.result(f"phi {v.type} [ {v.text}, %{test} ], [ {new.text}, %{lane} ]", v.dtype, v.lanes)
            for v, new in zip(usual, parts, strict=True))  # fmt: skip
    return r, n


def _function(outer: IRBuilder) -> str:
    """The reduction of one angle of magnitude 1 or more, as a function of the module; NaN for an infinite one."""
    b = IRBuilder()
    b.declarations = outer.declarations
    r, n = _large(Arithmetic(b, "float64"), IRValue("%x", "float64"))
    b.emit(f"%pair = insertvalue {_RESULT} poison, double {r.text}, 0")
    b.emit(f"%both = insertvalue {_RESULT} %pair, i64 {n.text}, 1")
    b.emit(f"ret {_RESULT} %both")
    return "\n".join([f"define internal {_RESULT} @{_NAME}(double %x) noinline nounwind {{", *b.lines, "}"])


def _large(d: Arithmetic, x: IRValue) -> Pair:
    f = d.format
    bits = d.bits(x)
    exponent = d.integer("and", d.integer("lshr", bits, f.mantissa), 2 * f.bias + 1)
    mantissa = d.integer("or", d.integer("and", bits, (1 << f.mantissa) - 1), 1 << f.mantissa)
    # x = mantissa 2^e. A digit of 2^-i counts for mantissa 2^(e - i): the first that is no multiple of 4 is i = e - 1,
    # and the words begin with 64 zeros, for an e that is negative
    first = d.integer("+", exponent, _WORD - 2 - f.bias - f.mantissa)
    window = _window(d.builder, d.integer("lshr", first, 6), d.integer("and", first, _WORD - 1))
    high, middle, low = _product(d, mantissa, window)
    quadrant = d.integer("lshr", high, 62)
    rest = [_shifted(d, high, middle, 2), _shifted(d, middle, low, 2), d.integer("shl", low, 2)]
    up = d.integer("lshr", rest[0], _WORD - 1)  # half a quadrant or more: less than nothing of the next
    quadrant = d.integer("+", quadrant, up)
    flip = d.integer("-", d.builder.const(0, f.integer), up)
    high, middle, low = (d.integer("xor", word, flip) for word in rest)
    sign = d.integer("xor", d.integer("shl", up, _WORD - 1), d.integer("and", bits, 1 << (_WORD - 1)))
    below = d.integer("-", d.builder.const(0, f.integer), d.integer("lshr", bits, _WORD - 1))
    quadrant = d.integer("-", d.integer("xor", quadrant, below), below)
    # The fraction of a quadrant as two floats: 53 bits, and the 64 that follow
    cut = _WORD - f.mantissa - 1
    top = d.builder.cast(d.integer("lshr", high, cut), "float64")
    after = d.builder.cast(_shifted(d, high, middle, f.mantissa + 1), "float64")
    fraction = d.mul(top, 2.0 ** (cut - _WORD)), d.mul(after, 2.0 ** (cut - 2 * _WORD))
    r, rest_of_r = d.pair_product(fraction, (d.real(data.HALF_PI_PAIR[0]), d.real(data.HALF_PI_PAIR[1])))
    r = d.from_bits(d.integer("xor", d.bits(d.add(r, rest_of_r)), sign))
    return d.add(r, d.sub(x, x)), quadrant  # infinity less infinity is NaN


def _shifted(d: Arithmetic, high: IRValue, low: IRValue, count: int) -> IRValue:
    """The upper word of two that are shifted to the left."""
    return d.integer("or", d.integer("shl", high, count), d.integer("lshr", low, _WORD - count))


def _window(b: IRBuilder, word: IRValue, bit: IRValue) -> list[IRValue]:
    """192 digits of 2 / pi from a bit of a word on, in three words."""
    found = []
    for i in range(4):
        index = b.binary("+", word, b.const(i, "uint64"))
        at = b.result(f"getelementptr i64, ptr @{_DIGITS}, i64 {index.text}", "uint64")
        found.append(b.result(f"load i64, ptr {at.text}, align 8", "uint64"))
    return [b.intrinsic("llvm.fshl.i64", "uint64", 1, (high, low, bit)) for high, low in pairwise(found)]


def _product(d: Arithmetic, x: IRValue, words: list[IRValue]) -> list[IRValue]:
    """x times a number of three words, modulo 2^192, in halves of words, whose products are exact on every machine."""
    half = _WORD // 2
    mask = (1 << half) - 1
    halves = [
        part for word in reversed(words) for part in (d.integer("and", word, mask), d.integer("lshr", word, half))
    ]
    factors = d.integer("and", x, mask), d.integer("lshr", x, half)
    columns: list[list[IRValue]] = [[] for _ in halves]
    for i, a in enumerate(factors):
        for j, w in enumerate(halves[: len(halves) - i]):
            product = d.integer("*", a, w)
            columns[i + j].append(d.integer("and", product, mask))
            if i + j + 1 < len(columns):
                columns[i + j + 1].append(d.integer("lshr", product, half))
    carry = d.builder.const(0, d.format.integer)
    digits = []
    for column in columns:
        for term in column:
            carry = d.integer("+", carry, term)
        digits.append(d.integer("and", carry, mask))
        carry = d.integer("lshr", carry, half)
    pairs = list(zip(digits[::2], digits[1::2], strict=True))
    return [d.integer("or", low, d.integer("shl", high, half)) for low, high in reversed(pairs)]

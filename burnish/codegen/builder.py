"""A small text builder for LLVM IR: typed scalar and vector values, straight-line operations, constant folding.

``IRValue`` is an operand: its text, element dtype, and lanes (1 = scalar). Operations broadcast scalars to vectors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from burnish.loops.expr import FLOATS, ITEM_BYTES
from burnish.loops.reduction import identity

LLVM_TYPE = {  # a bfloat16 is carried as its bits: few targets have arithmetic for it, and LLVM would call libraries
    "float64": "double", "float32": "float", "float16": "half", "bfloat16": "i16", "bool": "i1",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_SUFFIX = {"float64": "f64", "float32": "f32", "float16": "f16", "bool": "i1"}


class IRValue(NamedTuple):
    """An IR operand. ``const`` holds the Python number of a literal."""

    text: str
    dtype: str
    lanes: int = 1
    const: int | float | None = None

    @property
    def type(self) -> str:
        """LLVM spelling of its type."""
        return vector_type(self.dtype, self.lanes)


@cache
def vector_type(dtype: str, lanes: int) -> str:
    """LLVM spelling of a scalar (lanes 1) or vector type."""
    scalar = LLVM_TYPE[dtype]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def mangle(dtype: str, lanes: int) -> str:
    """The suffix of an overloaded intrinsic, such as ``v16f32``."""
    scalar = _SUFFIX.get(dtype) or f"i{ITEM_BYTES[dtype] * 8}"
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


def literal(value: int | float, dtype: str) -> str:
    """LLVM spelling of a scalar constant."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype == "float32":
        return f"0x{struct.unpack('<Q', struct.pack('<d', struct.unpack('<f', _f32(value))[0]))[0]:016X}"
    if dtype == "float64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    if dtype == "float16":
        return f"0xH{_float16_bits(value):04X}"
    if dtype == "bfloat16":
        return str(_bfloat16_bits(value))
    return str(int(value))


def _f32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _float16_bits(value: float) -> int:
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def _bfloat16_bits(value: float) -> int:
    bits = struct.unpack("<I", _f32(value))[0]
    if value != value:
        return 0x7FC0
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@lru_cache(maxsize=1 << 12)
def _constant(written: str, value: int | float, dtype: str) -> IRValue:
    """A literal; ``written`` tells equal numbers apart that are not the same, such as 0.0 and -0.0."""
    return IRValue(literal(value, dtype), dtype, 1, value)


class IRBuilder:
    """Appends instructions to ``lines``; ``declare`` collects the intrinsics used."""

    native_bfloat16 = False  # the target converts float32 to bfloat16 itself
    saturating_casts = True  # the target's own conversions of vectors to integers saturate
    byte_dots: Mapping[int, str] = {}  # by lanes: intrinsics that add dot products of four bytes
    low_byte_dots: Mapping[int, tuple[str, ...]] = {}  # the same of unsigned bytes below 128: one intrinsic or two
    element_bytes = 0  # of a vector, an element of which multiplies all lanes of another; 0: it is broadcast
    masks = False  # the target loads and stores some lanes of a vector as fast as all

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.count = 0
        self.block = "entry"  # the basic block in work

    def fresh(self, prefix: str = "v") -> str:
        """A name that no other value or block of the function has, without its ``%``."""
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, text: str) -> None:
        """Adds an instruction that has no result, such as a store or a branch."""
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        """Starts a basic block."""
        self.lines.append(f"{name}:")
        self.block = name

    def once(self, key: tuple[object, ...], make: Callable[[], tuple[IRValue, ...]]) -> tuple[IRValue, ...]:
        """Common subexpression: ``make()``, which a builder that tracks available values makes once a ``key``."""
        return make()

    def result(self, text: str, dtype: str, lanes: int = 1) -> IRValue:
        """Emits ``%fresh = text``."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {text}")
        return IRValue(name, dtype, lanes)

    # --- constants and shape ------------------------------------------------------------------------------------------

    def const(self, value: int | float, dtype: str) -> IRValue:
        """Constant of a Python number, scalar."""
        return _constant(repr(value), value, dtype)

    def splat(self, v: IRValue, lanes: int) -> IRValue:
        """A scalar broadcast to ``lanes``; a vector of that many lanes unchanged."""
        if v.lanes == lanes:
            return v
        if v.lanes != 1:
            raise AssertionError(f"cannot broadcast {v.lanes} lanes to {lanes}")
        if v.const is not None:
            return IRValue(f"splat ({v.type} {v.text})", v.dtype, lanes, v.const)
        vt = vector_type(v.dtype, lanes)
        one = self.result(f"insertelement {vt} poison, {v.type} {v.text}, i64 0", v.dtype, lanes)
        return self.result(
            f"shufflevector {vt} {one.text}, {vt} poison, <{lanes} x i32> zeroinitializer", v.dtype, lanes
        )

    def match(self, *values: IRValue) -> tuple[IRValue, ...]:
        """Values with as many lanes as the widest of them: scalars are broadcast."""
        lanes = max([v.lanes for v in values])
        return tuple([v if v.lanes == lanes else self.splat(v, lanes) for v in values])

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def binary(self, op: str, a: IRValue, b: IRValue) -> IRValue:
        """``op``: + - * / min max and or xor shl lshr ashr, sdiv/udiv/srem/urem by their LLVM names."""
        a, b = self.match(a, b)
        if a.dtype == "bfloat16":
            return self._through_float32(lambda x, y: self.binary(op, x, y), a, b)
        kind = "f" if a.dtype in FLOATS else "u" if a.dtype.startswith("u") or a.dtype == "bool" else "s"
        if op in ("min", "max"):
            return self._minmax(op, a, b, kind)
        word = {
            "+": {"f": "fadd contract"}.get(kind, "add"), "-": {"f": "fsub contract"}.get(kind, "sub"),
            "*": {"f": "fmul contract"}.get(kind, "mul"), "/": {"f": "fdiv", "s": "sdiv", "u": "udiv"}[kind],
        }.get(op, op)  # fmt: skip
        return self.result(f"{word} {a.type} {a.text}, {b.text}", a.dtype, a.lanes)

    def difference(self, a: IRValue, b: IRValue) -> IRValue:
        """``a - b`` of floats, never contracted with a product that an operand is."""
        a, b = self.match(a, b)
        if a.dtype == "bfloat16":
            return self._through_float32(self.difference, a, b)
        return self.result(f"fsub {a.type} {a.text}, {b.text}", a.dtype, a.lanes)

    def floor_divide(self, op: str, a: IRValue, b: IRValue) -> IRValue:
        """Division and remainder rounding towards minus infinity, as Python and NumPy define them.

        Of integers both are 0 where the divisor is 0; the least number by -1 is itself, with remainder 0. So no lane
        traps, whatever it holds: those that are switched off are computed too.
        """
        if a.dtype in FLOATS:
            q = self.unary("floor", self.binary("/", a, b))
            return q if op == "//" else self.binary("-", a, self.binary("*", q, b))
        a, b = self._divisible(a, b)
        if a.dtype.startswith("u"):
            return self.binary("udiv" if op == "//" else "urem", a, b)
        zero = self.const(0, a.dtype)
        r = self.binary("srem", a, b)
        off = self.binary("and", self.compare("!=", r, zero), self.compare("<", self.binary("xor", r, b), zero))
        if op == "%":
            return self.select(off, self.binary("+", r, b), r)
        q = self.binary("sdiv", a, b)
        return self.select(off, self.binary("-", q, self.const(1, a.dtype)), q)

    def _divisible(self, a: IRValue, b: IRValue) -> tuple[IRValue, IRValue]:
        """Integers with the quotient and the remainder of ``a`` by ``b``, of which the second divides without a trap.

        To LLVM division is undefined by zero, where it overflows, and by what is undefined itself, such as a register
        that nobody has written yet in a lane that is switched off: ``freeze`` makes that some number.
        """
        if b.const is not None and b.const not in (0, -1):
            return a, b
        a, b = self.match(self.frozen(a), self.frozen(b))
        by_zero = traps = self.compare("==", b, self.const(0, b.dtype))
        if not b.dtype.startswith("u"):
            least = self.compare("==", a, self.const(identity("max", a.dtype).value, a.dtype))
            minus = self.compare("==", b, self.const(-1, b.dtype))
            traps = self.binary("or", by_zero, self.binary("and", least, minus))
        return self.select(by_zero, self.const(0, a.dtype), a), self.select(traps, self.const(1, b.dtype), b)

    def frozen(self, v: IRValue) -> IRValue:
        """``v`` where it is defined, elsewhere some number."""
        return v if v.const is not None else self.result(f"freeze {v.type} {v.text}", v.dtype, v.lanes)

    def _through_float32(self, operation: Callable[..., IRValue], *args: IRValue) -> IRValue:
        """A bfloat16 operation in float32."""
        return self.cast(operation(*(self.cast(a, "float32") for a in args)), "bfloat16")

    def _minmax(self, op: str, a: IRValue, b: IRValue, kind: str) -> IRValue:
        """Floating min and max propagate NaN from either operand, as NumPy and ONNX do."""
        if kind != "f":
            return self.intrinsic(f"llvm.{kind}{op}.{mangle(a.dtype, a.lanes)}", a.dtype, a.lanes, (a, b))
        name = f"llvm.{op}imum.{mangle(a.dtype, a.lanes)}"  # without `nsz` x86 would spend three more on the sign of 0
        return self.intrinsic(name, a.dtype, a.lanes, (a, b), "nsz")

    def compare(self, op: str, a: IRValue, b: IRValue, unordered: bool = False) -> IRValue:
        """A bool; floating comparisons are false on NaN (``!=`` is true), unless ``unordered``."""
        a, b = self.match(a, b)
        if a.dtype == "bfloat16":
            a, b = self.cast(a, "float32"), self.cast(b, "float32")
        if a.dtype in FLOATS:
            order = "u" if unordered or op == "!=" else "o"
            word = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}[op]
            return self.result(f"fcmp {order}{word} {a.type} {a.text}, {b.text}", "bool", a.lanes)
        sign = "u" if a.dtype.startswith("u") or a.dtype == "bool" else "s"
        word = {"==": "eq", "!=": "ne", "<": f"{sign}lt", "<=": f"{sign}le", ">": f"{sign}gt", ">=": f"{sign}ge"}[op]
        return self.result(f"icmp {word} {a.type} {a.text}, {b.text}", "bool", a.lanes)

    def select(self, cond: IRValue, a: IRValue, b: IRValue) -> IRValue:
        """``a`` where ``cond`` (bool) holds, else ``b``, lane by lane; scalars are broadcast."""
        if cond.lanes == 1:
            a, b = self.match(a, b)
        else:
            cond, a, b = self.match(cond, a, b)
        return self.result(f"select {cond.type} {cond.text}, {a.type} {a.text}, {b.type} {b.text}", a.dtype, a.lanes)

    def fma(self, a: IRValue, b: IRValue, c: IRValue) -> IRValue:
        """``a * b + c``, fused where the target has the instruction."""
        a, b, c = self.match(a, b, c)
        if a.dtype == "bfloat16":
            return self._through_float32(self.fma, a, b, c)
        return self.intrinsic(f"llvm.fmuladd.{mangle(a.dtype, a.lanes)}", a.dtype, a.lanes, (a, b, c))

    def byte_dot(self, a: IRValue, b: IRValue, c: IRValue, low: bool = False) -> IRValue:
        """int32 ``c`` plus the dot product of the four unsigned bytes of ``a`` and the four signed ones of ``b``.

        ``low``: those of ``a`` are below 128.
        """
        a, b, c = self.match(a, b, c)
        names: tuple[str, ...] = (self.byte_dots[a.lanes],) if a.lanes in self.byte_dots else ()
        if low and not names:
            names = self.low_byte_dots.get(a.lanes, ())
        if names:
            words = vector_type("int8", 4 * a.lanes)
            operands = [IRValue(self.result(f"bitcast {v.type} {v.text} to {words}", "int8").text, "int8", 4 * a.lanes)
                        for v in (a, b)]  # fmt: skip
            if len(names) == 1:
                return self.intrinsic(names[0], "int32", a.lanes, (c, *operands))
            pairs = self.intrinsic(names[0], "int16", 2 * a.lanes, operands)
            ones = self.splat(self.const(1, "int16"), 2 * a.lanes)
            return self.binary("+", c, self.intrinsic(names[1], "int32", a.lanes, (pairs, ones)))
        for byte in range(4):
            left = self.binary("and", self.binary("lshr", a, self.const(8 * byte, "int32")), self.const(255, "int32"))
            raised = self.binary("shl", b, self.const(24 - 8 * byte, "int32"))
            right = self.binary("ashr", raised, self.const(24, "int32"))
            c = self.binary("+", c, self.binary("*", left, right))
        return c

    def bit_counts(self, a: IRValue, b: IRValue, c: IRValue) -> IRValue:
        """int32 ``c`` plus, in either half of it, the number of bits that both halves of ``a`` and ``b`` have.

        Halves are lanes of their own, which carry nothing to each other: a machine may add to them what it counted.
        """
        a, b, c = self.match(a, b, c)
        both, halves = self.binary("and", a, b), 2 * a.lanes
        kind = vector_type("int16", halves)
        bits, old = (
            IRValue(self.result(f"bitcast {v.type} {v.text} to {kind}", "int16", halves).text, "int16", halves)
            for v in (both, c)
        )
        counts = self.intrinsic(f"llvm.ctpop.{mangle('int16', halves)}", "int16", halves, (bits,))
        total = self.binary("+", old, counts)
        return self.result(f"bitcast {total.type} {total.text} to {c.type}", "int32", c.lanes)

    def neg(self, a: IRValue) -> IRValue:
        """``-a``: of floats the sign bit flipped, also that of zero and NaN."""
        if a.dtype == "bfloat16":
            return self.result(
                f"xor {a.type} {a.text}, {self.splat(self.const(-0.0, a.dtype), a.lanes).text}", a.dtype, a.lanes
            )
        if a.dtype in FLOATS:
            return self.result(f"fneg {a.type} {a.text}", a.dtype, a.lanes)
        return self.binary("-", self.const(0, a.dtype), a)

    def not_(self, a: IRValue) -> IRValue:
        """Logical negation of a bool."""
        return self.binary("xor", a, self.const(1, a.dtype))

    def intrinsic(self, name: str, dtype: str, lanes: int, args: Sequence[IRValue], flags: str = "") -> IRValue:
        """A call of an LLVM intrinsic, declared once; ``flags`` are fast-math flags."""
        rtype = vector_type(dtype, lanes)
        if name not in self.declarations:
            self.declare(name, rtype, [a.type for a in args])
        operands = ", ".join([f"{a.type} {a.text}" for a in args])
        return self.result(f"call {flags and flags + ' '}{rtype} @{name}({operands})", dtype, lanes)

    def unary(self, name: str, a: IRValue) -> IRValue:
        """``llvm.<name>`` of one float operand: sqrt, fabs, floor, ceil, trunc, roundeven ..."""
        if a.dtype == "bfloat16":
            return self._through_float32(lambda x: self.unary(name, x), a)
        return self.intrinsic(f"llvm.{name}.{mangle(a.dtype, a.lanes)}", a.dtype, a.lanes, (a,))

    def declare(self, name: str, rtype: str, types: Sequence[str]) -> None:
        """Adds the declaration of an external function or intrinsic, once for each name."""
        self.declarations.setdefault(name, f"declare {rtype} @{name}({', '.join(types)})")

    def define(self, name: str, text: str) -> None:
        """Adds a definition to the module, once a name."""
        self.declarations.setdefault(name, text)

    # --- conversions --------------------------------------------------------------------------------------------------

    def bitcast(self, a: IRValue, dtype: str) -> IRValue:
        """Same bits, other element type of the same width."""
        return self.result(f"bitcast {a.type} {a.text} to {vector_type(dtype, a.lanes)}", dtype, a.lanes)

    def cast(self, a: IRValue, dtype: str) -> IRValue:
        """Value conversion: float to integer truncates towards zero (saturating), to bool is ``!= 0``."""
        if a.dtype == dtype:
            return a
        to = vector_type(dtype, a.lanes)
        if dtype == "bool":
            return self.compare("!=", a, self.const(0, a.dtype))
        source_float, target_float = a.dtype in FLOATS, dtype in FLOATS
        unsigned = a.dtype.startswith("u") or a.dtype == "bool"
        if source_float and target_float:
            if ITEM_BYTES[dtype] == 2 and a.dtype != "float32":  # libraries would be called for these
                return self.cast(self._narrow(a) if a.dtype == "float64" else self.cast(a, "float32"), dtype)
            if dtype == "bfloat16":
                return self._round_bfloat16(a)
            if a.dtype == "bfloat16":
                high = self.binary("shl", self.cast(self.bitcast(a, "uint16"), "uint32"), self.const(16, "uint32"))
                return self.cast(self.bitcast(high, "float32"), dtype)
            word = "fptrunc" if ITEM_BYTES[a.dtype] > ITEM_BYTES[dtype] else "fpext"
        elif source_float:
            if a.dtype == "bfloat16":
                return self.cast(self.cast(a, "float32"), dtype)
            return self._to_integer(a, dtype)
        elif dtype == "bfloat16":
            return self.cast(self.cast(a, "float32"), dtype)
        elif target_float:
            word = "uitofp" if unsigned else "sitofp"
        else:
            narrow = ITEM_BYTES[dtype] if a.dtype != "bool" else 9
            if a.dtype != "bool" and narrow == ITEM_BYTES[a.dtype]:
                return IRValue(a.text, dtype, a.lanes)
            word = "trunc" if narrow < ITEM_BYTES[a.dtype] else "zext" if unsigned else "sext"
        return self.result(f"{word} {a.type} {a.text} to {to}", dtype, a.lanes)

    def _to_integer(self, a: IRValue, dtype: str) -> IRValue:
        """Float to integer towards zero: the nearest integer of ``dtype`` where it has none, 0 for NaN."""
        sign = "u" if dtype.startswith("u") else "s"
        if a.lanes == 1 or self.saturating_casts:
            name = f"llvm.fpto{sign}i.sat.{mangle(dtype, a.lanes)}.{mangle(a.dtype, a.lanes)}"
            return self.intrinsic(name, dtype, a.lanes, (a,))
        if a.dtype == "float16":
            a = self.cast(a, "float32")
        float_type = np.dtype(a.dtype).type
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        exact = int(float_type(high)) == high
        most = float_type(high) if exact else np.nextafter(float_type(high), float_type(0))
        kept = self.select(self.compare(">", a, self.const(low, a.dtype)), a, self.const(low, a.dtype))
        limit = self.const(float(most), a.dtype)
        kept = self.select(self.compare("<", kept, limit), kept, limit)
        wide = dtype if ITEM_BYTES[dtype] >= 4 else "int32"
        word = "fptoui" if wide.startswith("u") else "fptosi"
        found = self.result(f"{word} {kept.type} {kept.text} to {vector_type(wide, a.lanes)}", wide, a.lanes)
        if not exact:
            over = self.compare(">=", a, self.const(float(high) + 1.0, a.dtype))
            found = self.select(over, self.const(high, wide), found)
        if low:
            found = self.select(self.compare("!=", a, a), self.const(0, wide), found)
        return self.cast(found, dtype)

    def quantized(self, a: IRValue, zero: int, dtype: str) -> IRValue:
        """The bytes nearest to vectors of float32 plus ``zero``, ties to even, saturated; the least one for NaN."""
        info = np.iinfo(dtype)
        low, high = (self.const(float(int(limit) - zero), a.dtype) for limit in (info.min, info.max))
        kept = self.select(self.compare(">", a, low), a, low)
        kept = self.select(self.compare("<", kept, high), kept, high)
        name = f"llvm.lrint.{mangle('int32', a.lanes)}.{mangle(a.dtype, a.lanes)}"
        whole = self.intrinsic(name, "int32", a.lanes, (kept,))
        return self.cast(self.binary("+", whole, self.const(zero, "int32")) if zero else whole, dtype)

    def _narrow(self, a: IRValue) -> IRValue:
        """float64 to float32 rounding to odd, so that one more rounding gives the nearest 2-byte float."""
        bits = self.bitcast(a, "int64")
        low = (1 << 29) - 1  # the bits that float32 has not
        inexact = self.compare("!=", self.binary("and", bits, self.const(low, "int64")), self.const(0, "int64"))
        odd = self.select(inexact, self.const(low + 1, "int64"), self.const(0, "int64"))
        kept = self.binary("or", self.binary("and", bits, self.const(~low, "int64")), odd)
        exact = self.bitcast(kept, "float64")
        return self.result(
            f"fptrunc {exact.type} {exact.text} to {vector_type('float32', a.lanes)}", "float32", a.lanes
        )

    def _round_bfloat16(self, a: IRValue) -> IRValue:
        """float32 to bfloat16, to nearest even."""
        if self.native_bfloat16:
            narrow = f"<{a.lanes} x bfloat>" if a.lanes > 1 else "bfloat"
            rounded = self.result(f"fptrunc {a.type} {a.text} to {narrow}", "float32", a.lanes)
            return self.result(
                f"bitcast {narrow} {rounded.text} to {vector_type('bfloat16', a.lanes)}", "bfloat16", a.lanes
            )
        bits = self.bitcast(a, "uint32")
        high = self.binary("lshr", bits, self.const(16, "uint32"))
        half = self.binary("+", self.binary("and", high, self.const(1, "uint32")), self.const(0x7FFF, "uint32"))
        rounded = self.binary("lshr", self.binary("+", bits, half), self.const(16, "uint32"))
        quiet = self.binary("or", high, self.const(0x40, "uint32"))
        chosen = self.select(self.compare("!=", a, a), quiet, rounded)
        return self.bitcast(self.cast(chosen, "uint16"), "bfloat16")

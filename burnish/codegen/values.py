"""Expression values: scalars where they do not depend on the lane, vectors where they do."""

from __future__ import annotations

from math import copysign

from burnish.codegen.builder import IRValue, mangle, vector_type
from burnish.codegen.padding import Padding
from burnish.codegen.vecmath import BIT_MATH, MATH
from burnish.errors import ScheduleError
from burnish.loops.expr import (
    COMPARISONS,
    FLOATS,
    INDEX,
    LOGICAL,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
    Var,
)
from burnish.loops.reduction import identity
from burnish.loops.sizes import SymbolicSize
from burnish.loops.traverse import index_only, loads, repeated


def quantum_of(e: Cast) -> tuple[Expr, int] | None:
    """``x`` and ``zero``, where ``e`` is the byte nearest to ``x`` plus ``zero``, saturated, the least one for NaN.

    Limits of ``x`` beyond those of the byte are left out.
    """
    if e.dtype not in ("uint8", "int8") or e.value.dtype != "float32":
        return None
    low, high = (0, 255) if e.dtype == "uint8" else (-128, 127)
    inner, total, zero = e.value, e.value, 0.0
    if isinstance(total, Binary) and total.op == "+" and isinstance(total.b, Const):
        inner, zero = total.a, float(total.b.value)
    guarded = isinstance(inner, Select) and _is_guard(inner)
    inner = inner.a if isinstance(inner, Select) and guarded else inner
    if not isinstance(inner, Call) or inner.fn != "round" or zero != int(zero) or not low <= zero <= high:
        return None
    if low and not guarded:  # a cast makes 0 of NaN
        return None
    x = inner.args[0]
    while isinstance(x, Binary) and x.op in ("min", "max"):
        limit, rest = (x.a, x.b) if isinstance(x.a, Const) else (x.b, x.a)
        if not isinstance(limit, Const):
            break
        reached = round(float(limit.value)) + zero
        if not (reached >= high if x.op == "min" else reached <= low):
            break
        x = rest
    return x, int(zero)


def _is_guard(e: Select) -> bool:
    """Whether a choice is ``x if x > least else least``, with a number below all bytes."""
    test, least = e.cond, e.b
    if not isinstance(test, Binary) or test.op not in (">", "<") or not isinstance(least, Const):
        return False
    pair = (test.a, test.b) if test.op == ">" else (test.b, test.a)
    return pair == (e.a, e.b) and float(least.value) <= -(2.0**31)


def _negated(e: Expr) -> Expr | None:
    """``x``, where ``e`` is -x of a float."""
    match e:
        case Binary("-", Const(zero, _), x) if zero == 0 and copysign(1, zero) < 0:
            return x
    return None


class ValueEmitter(Padding):
    """Adds the evaluation of expressions."""

    def whole_value(self, e: Expr) -> IRValue:
        """The value of an expression that is part of no other, in which what occurs repeatedly is computed once."""
        self.made = {} if repeated(e) else None
        v = self.value(e)
        self.made = None
        return v

    def value(self, e: Expr) -> IRValue:
        """The value of ``e`` under the guards of the moment.

        One that was made under fewer guards holds under more.
        """
        if self.made is None or not e.children:
            return self._value(e)
        guards = frozenset(guard.text for guard in self.guards)
        made = self.made.setdefault(e, [])
        for under, v in made:
            if under <= guards:
                return v
        made.append((guards, self._value(e)))
        return made[-1][1]

    def _value(self, e: Expr) -> IRValue:
        match e:
            case Const(number, dtype):
                return self.const(number, dtype)
            case Load():
                return self.read(e)
            case Binary(op, _, _) if op in LOGICAL or op in COMPARISONS:
                return self._condition_value(e)
            case Var() | SymbolicSize():
                return self._index_value(e)
            case Binary() if e.dtype == INDEX and not e.buffers:
                return self._index_value(e)
            case Binary(op, a, b):
                return self._arithmetic(op, a, b)
            case Not(a):
                return self.not_(self.value(a))
            case Select():
                chosen = self.resolver.chosen(e)
                return self._select_value(chosen) if isinstance(chosen, Select) else self.value(chosen)
            case Cast(dtype, inner):
                quantum = None if self.saturating_casts else quantum_of(e)
                if quantum is not None and (x := self.value(quantum[0])).lanes > 1:
                    return self.quantized(x, quantum[1], dtype)
                return self.cast(self.value(inner), dtype)
            case Call(fn, args):
                return self._call(fn, tuple(self.value(a) for a in args))
        raise ScheduleError(f"expression {e}: {type(e).__name__} has no code here")

    def _call(self, fn: str, args: tuple[IRValue, ...]) -> IRValue:
        lanes = max(a.lanes for a in args)
        return (MATH.get(fn) or BIT_MATH[fn])(self, *(self.splat(a, lanes) for a in args))

    def _arithmetic(self, op: str, a: Expr, b: Expr) -> IRValue:
        """Arithmetic of two values. A sum with a product is one fused multiply-add, which a difference never is: what
        equals its other operand, computed once more, must leave exactly 0.
        """
        if op in "+-" and a.dtype in FLOATS:
            for x, y in ((a, b), (b, a)) if op == "+" else ():
                if (negated := _negated(y)) is not None:
                    return self.difference(self.value(x), self.value(negated))
            if op == "-":
                return self.difference(self.value(a), self.value(b))
            for x, y in ((a, b), (b, a)):
                if isinstance(x, Binary) and x.op == "*":
                    return self.fma(*self._factors(x.a, x.b), self.value(y))
        left, right = self.value(a), self.value(b)
        if op in ("//", "%"):
            return self.floor_divide(op, left, right)
        return self.binary(op, left, right)

    def _factors(self, a: Expr, b: Expr) -> tuple[IRValue, IRValue]:
        """The factors of a product that is added; of a negative constant its absolute value, times the negated other
        factor: multiply-adds negate for nothing, and a register holds the one constant of +c and -c.
        """
        if isinstance(b, Const) and float(b.value) < 0 and b.dtype != "bfloat16":
            return self.neg(self.value(a)), self.value(Const(-b.value, b.dtype))
        return self.value(a), self.value(b)

    # --- indices and conditions as values -----------------------------------------------------------------------------

    def _index_value(self, e: Expr) -> IRValue:
        """An int64 expression as data: hoisted where uniform, built from the lane numbers otherwise."""
        resolved = self.resolver.expr(e)
        if isinstance(resolved, Const):
            return self.const(resolved.value, INDEX)
        vector = self.resolver.vector
        if vector is None or vector[0] not in resolved.variables:
            return IRValue(self.index(resolved), INDEX)
        if isinstance(resolved, Var):
            steps = ", ".join(f"i64 {lane}" for lane in range(vector[1]))
            return IRValue(f"<{steps}>", INDEX, vector[1])
        match resolved:
            case Cast(_, inner):
                return self.cast(self.value(inner), INDEX)
            case Select(cond, yes, no):
                return self.select(self.value(cond), self._index_value(yes), self._index_value(no))
        if not isinstance(resolved, Binary):
            raise ScheduleError(f"index expression {resolved} depends on vectorized loop '{vector[0]}'")
        a, b = self._index_value(resolved.a), self._index_value(resolved.b)
        if resolved.op in ("//", "%"):
            return self.floor_divide(resolved.op, a, b)
        return self.binary(resolved.op, a, b)

    def _condition_value(self, e: Binary) -> IRValue:
        if index_only(e):
            resolved = self.resolver.expr(e)
            if isinstance(resolved, Const):
                return self.const(resolved.value, "bool")
            hoisted = self.condition(resolved)
            if hoisted is not None:
                return IRValue(hoisted, "bool")
            assert isinstance(resolved, Binary)
            if resolved.buffers:  # what it loads depends on the guards of the moment, and on what was stored
                return self._compared(resolved)
            key = ("condition", resolved, self.resolver.vector)
            if key not in self.local:
                self.local[key] = self._compared(resolved)
            return self.local[key]
        return self._compared(e)

    def _compared(self, e: Binary) -> IRValue:
        a = self.value(e.a)
        if e.op not in LOGICAL:
            return self.compare(e.op, a, self.value(e.b))
        both = e.op == "and"
        if a.const is not None:
            return self.value(e.b) if bool(a.const) == both else a
        b = self._under(a if both else self.not_(a), e.b)  # the second one may be loaded only where the first allows
        if b.const is not None:
            return a if bool(b.const) == both else b
        if not e.b.buffers:
            return self.binary(e.op, a, b)
        return self.select(a, b, self.const(0, "bool")) if both else self.select(a, self.const(1, "bool"), b)

    def _select_value(self, e: Select) -> IRValue:
        test, a, b = self.value(e.cond), e.a, e.b
        if test.const is not None:
            return self.value(a if test.const else b)
        zero = isinstance(b, Const) and b.value == 0 and copysign(1, b.value) > 0 and test.lanes == 1
        if isinstance(a, Load) and zero and self.memory[a.buffer.name].slots is None and not self.resolver.safe(a):
            self.guards.append(test)
            read = self.read(a)  # guarded, it reads zero where the condition fails; one made before may not be
            self.guards.pop()
            return read
        taken = self._under(test, a)
        other = self._under(self.not_(test), b) if not self._safe(b) else self.value(b)
        return self.select(test, taken, other)

    def _safe(self, e: Expr) -> bool:
        return all(self.resolver.safe(x) for x in loads(e))

    def _under(self, guard: IRValue, e: Expr) -> IRValue:
        """The value of ``e`` where only lanes with ``guard`` may touch memory."""
        if self._safe(e):
            return self.value(e)
        self.guards.append(guard)
        v = self.value(e)
        self.guards.pop()
        return v

    # --- reductions ---------------------------------------------------------------------------------------------------

    def horizontal(self, kind: str, v: IRValue) -> IRValue:
        """The reduction of a vector's lanes; lanes that are masked off count as the identity."""
        if v.dtype == "bfloat16":  # held as integers: reduced in float32
            return self.cast(self.horizontal(kind, self.cast(v, "float32")), "bfloat16")
        neutral = self.const(identity(kind, v.dtype).value, v.dtype)
        mask = self.mask()
        if mask is not None:
            v = self.select(mask, v, neutral)
        suffix = mangle(v.dtype, v.lanes)
        if v.dtype in FLOATS and kind in ("sum", "prod"):
            name = f"llvm.vector.reduce.{'fadd' if kind == 'sum' else 'fmul'}.{suffix}"
            scalar = vector_type(v.dtype, 1)
            self.declare(name, scalar, [scalar, v.type])
            return self.result(f"call reassoc {scalar} @{name}({scalar} {neutral.text}, {v.type} {v.text})", v.dtype)
        if v.dtype in FLOATS:
            return self._fold_halves(kind, v)
        sign = "u" if v.dtype.startswith("u") or v.dtype == "bool" else "s"
        word = {"sum": "add", "prod": "mul"}.get(kind, f"{sign}{kind}")
        return self.intrinsic(f"llvm.vector.reduce.{word}.{suffix}", v.dtype, 1, (v,))

    def _fold_halves(self, kind: str, v: IRValue) -> IRValue:
        """Combines a vector's halves until one lane is left: LLVM expands its own extremes of vectors lane by lane."""
        rest: list[IRValue] = []
        while v.lanes > 1:
            half = v.lanes // 2
            if v.lanes % 2:
                rest.append(self._lanes(v, 2 * half, 1))
            v = self.binary(kind, self._lanes(v, 0, half), self._lanes(v, half, half))
        for lane in rest:
            v = self.binary(kind, v, lane)
        return v

    def _lanes(self, v: IRValue, start: int, count: int) -> IRValue:
        """``count`` lanes of a vector from ``start`` on."""
        if count == 1:
            return self.result(f"extractelement {v.type} {v.text}, i64 {start}", v.dtype)
        picked = ", ".join(f"i32 {start + i}" for i in range(count))
        return self.result(
            f"shufflevector {v.type} {v.text}, {v.type} poison, <{count} x i32> <{picked}>", v.dtype, count
        )

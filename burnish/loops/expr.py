"""Index expressions: the scalar language of definitions and loop programs.

Grammar (every form is an immutable dataclass, interned: equal expressions are one object; ``str`` prints it)::

    expr   ::= Const(value, dtype) | Literal(value, dtype) | Var(name) | Binary(op, a, b) | Not(a) | Select(cond, a, b)
             | Cast(dtype, value) | Call(fn, args) | Load(buffer, indices) | Reduce(kind, body, axes)
             | Size(terms, constant)                            (see sizes.py: known when a kernel is called)
    axis   ::= Axis(var, extent)                                (an integer, a Size, or Loaded: see loaded.py)
    op     ::= + - * / // % min max == != < <= > >= and or       (// and % round towards minus infinity; of integers
                                                                    x // 0 = x % 0 = 0, and least // -1 = least)
    fn     ::= a name in MATH or BIT_MATH                           (element-wise functions)
    kind   ::= sum | prod | max | min                               (Reduce occurs in definitions only)
    buffer ::= Buffer(name, shape, dtype, scope)                (an extent is an integer or a Size, annotated as one)

Loop variables and indices are int64, and never overflow; integers that are computed from loaded ones wrap. A ``Load``
under a false ``Select`` condition is never executed, nor one in the second operand of ``and`` or ``or`` which the first
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256

from burnish.errors import ScheduleError
from burnish.loops.hashcons import Interned, Rebuilt, immutable, union

INDEX = "int64"
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
DTYPES = (*FLOATS, *INTS, "bool")
SHARED = "shared"  # the scope that all threads of a block see
PRIVATE = "thread"  # the scope of which each thread of a block holds the part that its index names
SWIZZLED = "swizzled"  # as shared; pieces of 16 bytes are exchanged within rows of 128, which only addresses know of
BLOCK_SCOPES = (SHARED, SWIZZLED)
SCOPES = ("global", *BLOCK_SCOPES, "local", "register")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
LOGICAL = ("and", "or")
_TESTS = frozenset((*COMPARISONS, *LOGICAL))
ARITHMETIC = ("+", "-", "*", "/", "//", "%", "min", "max")
MATH: Mapping[str, int] = {  # function -> number of arguments
    "exp": 1, "expm1": 1, "log": 1, "log1p": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1, "erf": 1, "sigmoid": 1, "sin": 1,
    "cos": 1, "abs": 1, "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "isnan": 1, "pow": 2, "fmod": 2,
}  # fmt: skip
BYTE_DOT = "byte_dot"
BIT_COUNTS = "bit_counts"
WORD_PRODUCTS = (BYTE_DOT, BIT_COUNTS)
BIT_MATH: Mapping[str, int] = {
    "bitand": 2, "bitor": 2, "bitxor": 2, "shl": 2, "shr": 2, BYTE_DOT: 2, BIT_COUNTS: 2,
}  # fmt: skip
"""The functions of integers' bits, likewise. A shift by the width or more, or by less than 0, gives 0, or -1 where
``shr`` keeps the sign of a number below 0. ``byte_dot``, of int32: the dot product of the four unsigned bytes of its
first argument and the four signed bytes of its second, the lowest first. ``bit_counts``, of int32: how many bits both
have, in the lower 16 of the result of their lower 16, in the upper of the upper. Both are 0 where either word is."""
# Dtypes of tensors that only opaque operators read and write, an element a byte: no expression computes with them.
NARROW_FLOATS = (
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
NARROW_INTS = ("int4", "uint4", "int2", "uint2")
NARROW = (*NARROW_FLOATS, *NARROW_INTS)
ALIGNMENT = 64  # bytes: where buffers begin: a cache line, and the widest vector
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1, **dict.fromkeys(NARROW, 1),
}  # fmt: skip
REDUCTIONS = ("sum", "prod", "max", "min")
MOST_TEXT = 1 << 16  # characters of a sub-expression that is printed: one that is used twice doubles them


@immutable(eq=False, weakref_slot=True)
class Buffer(Rebuilt, metaclass=Interned):
    """A dense row-major array. ``scope``: global memory, shared (a GPU block), local (a thread's scratch), register."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    scope: str = "global"

    def __str__(self) -> str:
        scope = "" if self.scope == "global" else f" @{self.scope}"
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]{scope}"

    @property
    def size(self) -> int:
        """Number of elements, where extents are sizes the greatest."""
        total = 1
        for extent in self.shape:
            total *= getattr(extent, "high", extent)
        return total

    @property
    def nbytes(self) -> int:
        """Bytes of the dense array, where extents are sizes of the greatest."""
        return self.size * ITEM_BYTES[self.dtype]

    def with_(self, **changes: object) -> Buffer:
        """A copy with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]


class Expr(Rebuilt, metaclass=Interned):
    """Base of all expressions; carries the operators. ``a == b`` compares structure: use :func:`equal` for the test.

    Every expression knows from its creation on its element type, its direct sub-expressions in order, the names of the
    variables in it, the names of the buffers it loads from, and whether it is symbolic: has sizes in it.
    """

    __slots__ = ("__weakref__", "buffers", "children", "dtype", "symbolic", "variables")

    dtype: str
    children: tuple[Expr, ...]
    variables: frozenset[str]
    buffers: frozenset[str]
    symbolic: bool

    def __str__(self) -> str:
        """The expression as text, each sub-expression formatted once; a digest stands for one beyond ``MOST_TEXT``.

        Different expressions have different texts, which kernels are kept by.
        """
        text: dict[Expr, str] = {}
        stack: list[Expr] = [self]
        while stack:
            top = stack[-1]
            missing = [child for child in top.children if child not in text]
            stack.extend(missing)
            if not missing:
                stack.pop()
                whole = top._format(*[text[child] for child in top.children])
                text[top] = whole if len(whole) <= MOST_TEXT else f"...{sha256(whole.encode()).hexdigest()[:32]}"
        return text[self]

    __repr__ = __str__

    def _format(self, *parts: str) -> str:
        """The text of this expression from that of its sub-expressions."""
        raise NotImplementedError

    def _is(self, dtype: str, *children: Expr) -> None:
        """States the element type and the sub-expressions."""
        self.dtype = dtype
        self.children = children
        self.variables = union([c.variables for c in children])
        self.buffers = union([c.buffers for c in children])
        self.symbolic = True in [c.symbolic for c in children]

    def __add__(self, other: Value) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: Value) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: Value) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: Value) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: Value) -> Expr:
        return binary("*", self, other)

    def __rmul__(self, other: Value) -> Expr:
        return binary("*", other, self)

    def __truediv__(self, other: Value) -> Expr:
        return binary("/", self, other)

    def __rtruediv__(self, other: Value) -> Expr:
        return binary("/", other, self)

    def __floordiv__(self, other: Value) -> Expr:
        return binary("//", self, other)

    def __rfloordiv__(self, other: Value) -> Expr:
        return binary("//", other, self)

    def __mod__(self, other: Value) -> Expr:
        return binary("%", self, other)

    def __rmod__(self, other: Value) -> Expr:
        return binary("%", other, self)

    def __neg__(self) -> Expr:
        return binary("-", Const(0 if self.dtype in INTS else -0.0, self.dtype), self)  # 0.0 - 0.0 is no -0.0

    def __lt__(self, other: Value) -> Expr:
        return binary("<", self, other)

    def __le__(self, other: Value) -> Expr:
        return binary("<=", self, other)

    def __gt__(self, other: Value) -> Expr:
        return binary(">", self, other)

    def __ge__(self, other: Value) -> Expr:
        return binary(">=", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a symbolic expression has no truth value; use select, all_of or any_of")


Value = Expr | int | float | bool


@immutable(eq=False, repr=False)
class Const(Expr):
    """Constant: a number of dtype ``type``."""

    value: int | float | bool
    type: str = INDEX

    def __post_init__(self) -> None:
        self._is(self.type)

    def _format(self, *parts: str) -> str:
        return str(self.value)


@immutable(eq=False, repr=False)
class Literal(Const):
    """Literal constant, an entry of a matrix in a definition: a product with its zeros is no term, even of NaN.

    Any other constant is data: zero times infinity is NaN.
    """

    def __post_init__(self) -> None:
        self._is(self.type)


@immutable(eq=False, repr=False)
class Var(Expr):
    """Index variable: a loop's or a definition's axis."""

    name: str

    def __post_init__(self) -> None:
        self._is(INDEX)
        self.variables = frozenset((self.name,))

    def _format(self, *parts: str) -> str:
        return self.name


@immutable(eq=False, repr=False)
class Binary(Expr):
    """``a op b``, of one dtype: bool if ``op`` compares, else that of the operands."""

    op: str
    a: Expr
    b: Expr

    def __post_init__(self) -> None:
        self._is("bool" if self.op in _TESTS else self.a.dtype, self.a, self.b)

    def _format(self, *parts: str) -> str:
        a, b = parts
        return f"{self.op}({a}, {b})" if self.op in ("min", "max") else f"({a} {self.op} {b})"


@immutable(eq=False, repr=False)
class Not(Expr):
    """Logical negation of a bool."""

    a: Expr

    def __post_init__(self) -> None:
        self._is("bool", self.a)

    def _format(self, *parts: str) -> str:
        return f"not {parts[0]}"


@immutable(eq=False, repr=False)
class Select(Expr):
    """``a`` if ``cond`` (bool), else ``b``; a load in the other is not executed."""

    cond: Expr
    a: Expr
    b: Expr

    def __post_init__(self) -> None:
        self._is(self.a.dtype, self.cond, self.a, self.b)

    def _format(self, *parts: str) -> str:
        cond, a, b = parts
        return f"({a} if {cond} else {b})"


@immutable(eq=False, repr=False)
class Cast(Expr):
    """``value`` as dtype ``type``: floats are rounded, or truncated to integers, which wrap around."""

    type: str
    value: Expr

    def __post_init__(self) -> None:
        self._is(self.type, self.value)

    def _format(self, *parts: str) -> str:
        return f"{self.type}({parts[0]})"


@immutable(eq=False, repr=False)
class Call(Expr):
    """Element-wise function ``fn`` of ``args``, of the dtype of the first; ``isnan`` gives bool."""

    fn: str
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        self._is("bool" if self.fn == "isnan" else self.args[0].dtype, *self.args)

    def _format(self, *parts: str) -> str:
        return f"{self.fn}({', '.join(parts)})"


@immutable(eq=False, repr=False)
class Load(Expr):
    """Element of a buffer: one index for each of its dimensions, from 0."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    def __post_init__(self) -> None:
        self._is(self.buffer.dtype, *self.indices)
        self.buffers = self.buffers | {self.buffer.name}

    def _format(self, *parts: str) -> str:
        return f"{self.buffer.name}[{', '.join(parts)}]"


@immutable()
class Axis:
    """A reduction axis: a variable over ``range(extent)``, or between two positions in memory (``loaded.py``)."""

    var: Var
    extent: int

    @property
    def ends(self) -> tuple[Expr, ...]:
        """The two expressions that a loaded extent lies between; none of a number or a size."""
        begin, end = getattr(self.extent, "begin", None), getattr(self.extent, "end", None)
        return () if begin is None or end is None else (begin, end)

    def between(self, ends: Iterator[Expr]) -> Axis:
        """The axis with the next two of ``ends`` in place of its own, if it has any."""
        mapped = getattr(self.extent, "mapped", None)
        return self if mapped is None else Axis(self.var, mapped(lambda _: next(ends)))


@immutable(eq=False, repr=False)
class Reduce(Expr):
    """Reduction of ``body`` by ``kind`` (:data:`REDUCTIONS`) over all points of ``axes``, in any order."""

    kind: str
    body: Expr
    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        ends = [end for axis in self.axes for end in axis.ends]
        self._is(self.body.dtype, self.body, *ends)

    def _format(self, *parts: str) -> str:
        return f"{self.kind}({parts[0]}, over=({', '.join(f'{a.var}<{a.extent}' for a in self.axes)}))"


# --- construction -----------------------------------------------------------------------------------------------------


def wrap(value: Value, dtype: str = INDEX) -> Expr:
    """A Python number as a constant of ``dtype``; an expression unchanged."""
    if isinstance(value, Expr):
        return value
    if dtype == "bool":
        return Const(bool(value), dtype)
    return Const(float(value) if dtype in FLOATS else int(value), dtype)


def binary(op: str, a: Value, b: Value) -> Expr:
    """``a op b``: a number takes the other operand's dtype; index arithmetic on constants folds at once."""
    if not isinstance(a, Expr):
        a = wrap(a, b.dtype if isinstance(b, Expr) else INDEX)
    if not isinstance(b, Expr):
        b = wrap(b, a.dtype)
    if a.dtype != b.dtype:
        raise ScheduleError(f"operator '{op}': operands have dtypes {a.dtype} and {b.dtype}; cast one explicitly")
    if a.dtype == INDEX and op in ("+", "-", "*", "//", "%"):
        return _index_arithmetic(op, a, b)
    return Binary(op, a, b)


def wrapped(value: int, dtype: str) -> int:
    """An integer modulo the width of an integer dtype, as the hardware has it."""
    bits = 8 * ITEM_BYTES[dtype]
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.startswith("int") and value >> (bits - 1) else value


_FOLD: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "//": lambda x, y: x // y if y else 0,
    "%": lambda x, y: x % y if y else 0,
}  # fmt: skip


def _index_arithmetic(op: str, a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(wrapped(_FOLD[op](int(a.value), int(b.value)), INDEX), INDEX)
    if isinstance(b, Const):
        if (op in ("+", "-") and b.value == 0) or (op in ("*", "//") and b.value == 1):
            return a
        if (op == "*" and b.value == 0) or (op == "%" and b.value == 1):
            return Const(0, INDEX)
    if isinstance(a, Const):
        if (op == "+" and a.value == 0) or (op == "*" and a.value == 1):
            return b
        if op in ("*", "//", "%") and a.value == 0:
            return a
    return Binary(op, a, b)


def minimum(a: Value, b: Value) -> Expr:
    """The lesser of two; NaN if either is."""
    return binary("min", a, b)


def maximum(a: Value, b: Value) -> Expr:
    """The greater of two; NaN if either is."""
    return binary("max", a, b)


def equal(a: Value, b: Value) -> Expr:
    """``a == b`` as bool, for which Python's operator, which compares nodes, cannot be used."""
    return binary("==", a, b)


def select(cond: Value, a: Value, b: Value) -> Expr:
    """``a`` where ``cond`` holds, else ``b``; loads in the branch not taken are not executed."""
    if not isinstance(a, Expr):
        a = wrap(a, b.dtype if isinstance(b, Expr) else INDEX)
    b = wrap(b, a.dtype)
    if a.dtype != b.dtype:
        raise ScheduleError(f"select: branches have dtypes {a.dtype} and {b.dtype}; cast one explicitly")
    return Select(wrap(cond, "bool"), a, b)


def all_of(*conds: Value) -> Expr:
    """Conjunction; true when empty."""
    result: Expr | None = None
    for cond in conds:
        result = wrap(cond, "bool") if result is None else Binary("and", result, wrap(cond, "bool"))
    return result if result is not None else Const(True, "bool")


def any_of(*conds: Value) -> Expr:
    """Disjunction; false when empty."""
    result: Expr | None = None
    for cond in conds:
        result = wrap(cond, "bool") if result is None else Binary("or", result, wrap(cond, "bool"))
    return result if result is not None else Const(False, "bool")


def cast(dtype: str, value: Expr) -> Expr:
    """``value`` converted to ``dtype``; float to integer truncates towards zero."""
    if dtype not in DTYPES:
        raise ScheduleError(f"cast: unknown dtype {dtype!r}; allowed: {', '.join(DTYPES)}")
    return value if value.dtype == dtype else Cast(dtype, value)


def arity(fn: str) -> int | None:
    """The number of arguments of a function; None if there is none of this name."""
    return MATH.get(fn, BIT_MATH.get(fn))


def math(fn: str, *args: Expr) -> Expr:
    """Element-wise function ``fn`` (a key of :data:`MATH` or :data:`BIT_MATH`)."""
    if arity(fn) != len(args):
        known = ", ".join((*MATH, *BIT_MATH))
        raise ScheduleError(f"math: no function {fn!r} of {len(args)} arguments; known: {known}")
    return Call(fn, args)

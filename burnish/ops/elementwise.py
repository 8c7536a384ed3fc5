"""Element-wise operators: each output element depends on one element of every (broadcast) input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log

from burnish.loops.expr import (
    DTYPES,
    FLOATS,
    INTS,
    Expr,
    Not,
    all_of,
    any_of,
    equal,
    math,
    maximum,
    minimum,
    select,
    wrap,
)
from burnish.loops.expr import cast as cast_expr
from burnish.loops.reduction import identity
from burnish.loops.tensor import Tensor, compute
from burnish.ops.operator import (
    NUMBERS,
    Application,
    Composed,
    Gradient,
    Number,
    Operator,
    Rule,
    Traits,
    broadcast_load,
    broadcast_shapes,
    declare,
    differentiated,
    internal,
    named_operator,
    operator,
    require,
    require_input,
)

SQRT_HALF = 0.7071067811865476
EULER = 2.718281828459045
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017


def _map(name: str, x: Tensor, fn: Callable[[Expr], Expr]) -> Tensor:
    return compute(x.shape, lambda *i: fn(x[i]), name)


# --- one input, no attributes -----------------------------------------------------------------------------------------


def sigmoid_expr(x: Expr) -> Expr:
    """The logistic function."""
    return math("sigmoid", x)


def absolute(x: Expr) -> Expr:
    """The absolute value of a float or an integer."""
    if x.dtype.startswith("uint"):
        return x
    return math("abs", x) if x.dtype in FLOATS else maximum(x, -x)


def _softplus(x: Expr) -> Expr:
    return maximum(x, 0) + math("log1p", math("exp", -math("abs", x)))  # log(1 + e^x) without overflow


def _sign(x: Expr) -> Expr:
    if x.dtype.startswith("uint"):
        return minimum(x, 1)
    return select(x > 0, wrap(1, x.dtype), select(x < 0, wrap(-1, x.dtype), x))  # 0 and NaN stay what they are


def _hard_swish(x: Expr) -> Expr:
    return x * minimum(maximum(x / 6.0 + 0.5, 0), 1)


def _selu(x: Expr) -> Expr:
    return SELU_SCALE * select(x > 0, x, SELU_ALPHA * math("expm1", x))


def _mish(x: Expr) -> Expr:
    """x tanh(log(1 + e^x)) = x w / (w + 2) with w = e^x (e^x + 2); the quotient has reached 1 at x = 20."""
    power = math("exp", minimum(x, 20.0))
    w = power * (power + 2.0)
    return x * (w / (w + 2.0))


def _halved_power(x: Expr) -> Expr:
    """e^|x| / 2 by the square of e^(|x| / 2): the power itself may overflow where the half does not."""
    root = math("exp", 0.5 * math("abs", x))
    return (0.5 * root) * root


def _sinh(x: Expr) -> Expr:
    """(t + t / (t + 1)) / 2 with t = e^|x| - 1, which loses no digits near 0; e^|x| / 2 where that is all."""
    near = math("expm1", minimum(math("abs", x), 20.0))
    value = select(math("abs", x) < 20.0, 0.5 * (near + near / (near + 1.0)), _halved_power(x))
    return select(x > 0, value, select(x < 0, -value, x))  # 0 and NaN stay what they are


def _cosh(x: Expr) -> Expr:
    half = _halved_power(x)
    return half + 0.25 / half


_UNARY: Mapping[str, tuple[tuple[str, ...], Callable[[Expr], Expr]]] = {  # name -> dtypes, element
    "identity": (DTYPES, lambda x: x),
    "stop_gradient": (DTYPES, lambda x: x),
    "relu": (NUMBERS, lambda x: maximum(x, 0)),
    "abs": (NUMBERS, absolute),
    "neg": (NUMBERS, lambda x: -x),
    "sign": (NUMBERS, _sign),
    "exp": (FLOATS, lambda x: math("exp", x)),
    "log": (FLOATS, lambda x: math("log", x)),
    "expm1": (FLOATS, lambda x: math("expm1", x)),
    "log1p": (FLOATS, lambda x: math("log1p", x)),
    "sqrt": (FLOATS, lambda x: math("sqrt", x)),
    "rsqrt": (FLOATS, lambda x: math("rsqrt", x)),
    "reciprocal": (FLOATS, lambda x: 1.0 / x),
    "tanh": (FLOATS, lambda x: math("tanh", x)),
    "erf": (FLOATS, lambda x: math("erf", x)),
    "sin": (FLOATS, lambda x: math("sin", x)),
    "cos": (FLOATS, lambda x: math("cos", x)),
    "floor": (FLOATS, lambda x: math("floor", x)),
    "ceil": (FLOATS, lambda x: math("ceil", x)),
    "round": (FLOATS, lambda x: math("round", x)),
    "isnan": (FLOATS, lambda x: math("isnan", x)),
    "sigmoid": (FLOATS, sigmoid_expr),
    "softplus": (FLOATS, _softplus),
    "softsign": (FLOATS, lambda x: x / (1.0 + math("abs", x))),
    "silu": (FLOATS, lambda x: x * sigmoid_expr(x)),
    "hard_swish": (FLOATS, _hard_swish),
    "mish": (FLOATS, _mish),
    "sinh": (FLOATS, _sinh),
    "cosh": (FLOATS, _cosh),
    "selu": (FLOATS, _selu),
    "logical_not": (("bool",), Not),
}


FINITE = {"add", "sub", "mul", "relu", "sigmoid", "tanh", "maximum", "minimum"}  # of zeros, and finite operands


def times(op: str) -> Rule:
    """``dy * op(x)``, where the definition has a corner, or parts that are infinite, which the function has not."""
    return lambda a: [a.add("mul", str(a.seeds[0]), a.add(op, a.inputs[0]))]


_GRADIENTS: Mapping[str, Gradient] = {
    "softplus": times("sigmoid"), "sinh": times("cosh"), "cosh": times("sinh"), "sign": "none",
    "stop_gradient": "none",
}  # fmt: skip


def _unary(name: str, dtypes: tuple[str, ...], fn: Callable[[Expr], Expr]) -> Operator:
    def define(stage: str, x: Tensor) -> Tensor:
        require_input(x, "x", dtype=dtypes)
        return _map(stage, x, fn)

    text = f"Element-wise {name.replace('_', ' ')}."
    op = named_operator(name, define, text, Traits(finite=name in FINITE))
    return differentiated(_GRADIENTS.get(name, "derived"))(op)


UNARY = tuple(_unary(name, dtypes, fn) for name, (dtypes, fn) in _UNARY.items())


# --- one input, with attributes ---------------------------------------------------------------------------------------


@operator
def leaky_relu(name: str, x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """``x`` where positive, else ``alpha * x``."""
    require_input(x, "x", dtype=FLOATS)
    return _map(name, x, lambda e: select(e > 0, e, alpha * e))


@operator
def elu(name: str, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """``x`` where positive, else ``alpha * (exp(x) - 1)``."""
    require_input(x, "x", dtype=FLOATS)
    return _map(name, x, lambda e: select(e > 0, e, alpha * math("expm1", e)))


@operator
def celu(name: str, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""
    require_input(x, "x", dtype=FLOATS)
    require(alpha != 0, "attribute 'alpha'", alpha, "a number other than 0")
    return _map(name, x, lambda e: select(e > 0, e, alpha * math("expm1", e / alpha)))


@operator
def thresholded_relu(name: str, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """``x`` where greater than ``alpha``, else 0."""
    require_input(x, "x", dtype=FLOATS)
    return _map(name, x, lambda e: select(e > alpha, e, 0.0))


@operator
def hard_sigmoid(name: str, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """``alpha * x + beta`` clipped to [0, 1]."""
    require_input(x, "x", dtype=FLOATS)
    return _map(name, x, lambda e: minimum(maximum(alpha * e + beta, 0), 1))


@operator
def gelu(name: str, x: Tensor, *, approximate: str = "none") -> Tensor:
    """``x * Phi(x)``, by erf ("none") or by tanh ("tanh"). Source: Hendrycks and Gimpel 2016."""
    require_input(x, "x", dtype=FLOATS)
    require(approximate in ("none", "tanh"), "attribute 'approximate'", approximate, "none, tanh")

    def element(e: Expr) -> Expr:
        if approximate == "tanh":
            return 0.5 * e * (1.0 + math("tanh", 0.7978845608028654 * (e + 0.044715 * (e * e * e))))
        return 0.5 * e * (1.0 + math("erf", e * SQRT_HALF))

    return _map(name, x, element)


@declare(finite=True)
@operator
def clip(name: str, x: Tensor, *, min: Number | None = None, max: Number | None = None, strict: bool = False) -> Tensor:
    """``x`` limited to [min, max]; a missing bound does not limit. At a bound the slope is 1, ``strict`` 0."""
    require_input(x, "x", dtype=NUMBERS)

    def limited(bound: Number | None, e: Expr, extreme: Callable[..., Expr]) -> Expr:
        if bound is None:
            return e
        return extreme(e, bound) if strict else extreme(wrap(bound, e.dtype), e)

    def element(e: Expr) -> Expr:
        return limited(max, limited(min, e, maximum), minimum)

    return _map(name, x, element)


@differentiated(lambda a: [a.add("cast", str(a.seeds[0]), to=a.types[0][1])])
@operator
def cast(name: str, x: Tensor, *, to: str) -> Tensor:
    """``x`` converted to dtype ``to``: float to integer truncates, number to bool tests for non-zero."""
    require(to in DTYPES, "attribute 'to'", repr(to), ", ".join(DTYPES))
    return _map(name, x, lambda e: cast_expr(to, e))


# --- two inputs -------------------------------------------------------------------------------------------------------


def truncated_quotient(a: Expr, b: Expr) -> Expr:
    """The quotient of integers rounded towards zero."""
    floor = a // b
    if a.dtype.startswith("uint"):
        return floor
    return select(all_of(_unequal(a % b, wrap(0, a.dtype)), _differ(a < 0, b < 0)), floor + 1, floor)


def _truncated_remainder(a: Expr, b: Expr) -> Expr:
    rest = a % b
    if a.dtype.startswith("uint"):
        return rest
    return select(all_of(_unequal(rest, wrap(0, a.dtype)), _differ(a < 0, b < 0)), rest - b, rest)


def _unequal(a: Expr, b: Expr) -> Expr:
    return Not(equal(a, b))


def _differ(a: Expr, b: Expr) -> Expr:
    a, b = wrap(a, "bool"), wrap(b, "bool")  # a comparison of open sizes may be a number already
    return any_of(all_of(a, Not(b)), all_of(Not(a), b))


def _divide(a: Expr, b: Expr) -> Expr:
    return a / b if a.dtype in FLOATS else truncated_quotient(a, b)


def _floor_divide(a: Expr, b: Expr) -> Expr:
    return math("floor", a / b) if a.dtype in FLOATS else a // b


_BINARY: Mapping[str, tuple[tuple[str, ...], Callable[[Expr, Expr], Expr]]] = {  # name -> dtypes, element
    "add": (NUMBERS, lambda a, b: a + b),
    "sub": (NUMBERS, lambda a, b: a - b),
    "mul": (NUMBERS, lambda a, b: a * b),
    "div": (NUMBERS, _divide),
    "floor_div": (NUMBERS, _floor_divide),
    "pow": (NUMBERS, lambda a, b: math("pow", a, b)),
    "minimum": (NUMBERS, minimum),
    "maximum": (NUMBERS, maximum),
    "equal": (DTYPES, equal),
    "not_equal": (DTYPES, _unequal),
    "less": (NUMBERS, lambda a, b: a < b),
    "less_equal": (NUMBERS, lambda a, b: a <= b),
    "greater": (NUMBERS, lambda a, b: a > b),
    "greater_equal": (NUMBERS, lambda a, b: a >= b),
    "logical_and": (("bool",), all_of),
    "logical_or": (("bool",), any_of),
    "logical_xor": (("bool",), _differ),
    "bitwise_and": (INTS, lambda a, b: math("bitand", a, b)),
    "bitwise_or": (INTS, lambda a, b: math("bitor", a, b)),
    "bitwise_xor": (INTS, lambda a, b: math("bitxor", a, b)),
    "shift_left": (INTS, lambda a, b: math("shl", a, b)),
    "shift_right": (INTS, lambda a, b: math("shr", a, b)),
    "prelu": (FLOATS, lambda x, slope: select(x > 0, x, slope * x)),
}


def _broadcast(name: str, a: Tensor, b: Tensor, dtypes: tuple[str, ...], fn: Callable[[Expr, Expr], Expr]) -> Tensor:
    require_input(a, "a", dtype=dtypes)
    require_input(b, "b", dtype=(a.dtype,))
    shape = broadcast_shapes({"a": a, "b": b})
    return compute(shape, lambda *i: fn(broadcast_load(a, i), broadcast_load(b, i)), name)


def _binary(name: str, dtypes: tuple[str, ...], fn: Callable[[Expr, Expr], Expr]) -> Operator:
    def define(stage: str, a: Tensor, b: Tensor) -> Tensor:
        return _broadcast(stage, a, b, dtypes, fn)

    text = f"Element-wise {name.replace('_', ' ')} with broadcasting."
    return named_operator(name, define, text, Traits(finite=name in FINITE))


BINARY = tuple(_binary(name, dtypes, fn) for name, (dtypes, fn) in _BINARY.items())


def _quotient(a: Application) -> list[str | None] | None:
    """``x - y * floor(x / y)``, whose quotient has no slope: the definition's has none where nothing is left."""
    (x, y), dtype = a.inputs, a.types[0][1]
    if a.attrs["truncate"]:
        return None
    whole = a.add("round", a.add("div", a.add("sub", x, a.outputs[0]), y))
    by_zero = a.add("equal", y, a.emit.constant(0.0, dtype=dtype))
    quotient = a.add("stop_gradient", a.add("where", by_zero, a.add("div", x, y), whole))
    return [a.add("sub", x, a.add("mul", y, quotient))]


@differentiated(Composed(_quotient))
@operator
def mod(name: str, a: Tensor, b: Tensor, *, truncate: bool = False) -> Tensor:
    """Remainder with the sign of ``b`` (floor division), or of ``a`` with ``truncate`` (C's fmod); exact.

    Of integers it is 0 by 0, and where the least number is divided by -1.
    """

    def floored(x: Expr, y: Expr) -> Expr:
        rest = math("fmod", x, y)
        zero = select(y < 0, wrap(-0.0, x.dtype), wrap(0.0, x.dtype))
        return select(equal(rest, 0.0), zero, select(_differ(rest < 0, y < 0), rest + y, rest))

    def element(x: Expr, y: Expr) -> Expr:
        if x.dtype in FLOATS:
            return math("fmod", x, y) if truncate else floored(x, y)
        return _truncated_remainder(x, y) if truncate else x % y

    return _broadcast(name, a, b, NUMBERS, element)


@declare(accumulates=True)
@operator
def add_term(name: str, total: Tensor, term: Tensor) -> Tensor:
    """``total + term``, of one shape: the next total of a sum whose terms come one after the other."""
    require_input(total, "total", dtype=NUMBERS)
    require_input(term, "term", shape=total.shape, dtype=(total.dtype,))
    return compute(total.shape, lambda *i: total[i] + term[i], name)


@operator
def logaddexp(name: str, a: Tensor, b: Tensor, *, base: float = EULER) -> Tensor:
    """``log(base^a + base^b)`` to the ``base``, by the greater one: of equal ones, infinite too, each has half of the
    slope.
    """
    require(base > 1, "attribute 'base'", base, "a number above 1")
    unit = log(base)

    def element(x: Expr, y: Expr) -> Expr:
        apart = -math("abs", select(equal(x, y), 0.0, x - y))  # infinite ones have no difference
        more = math("log1p", math("exp", apart if unit == 1 else apart * unit))
        return maximum(x, y) + (more if unit == 1 else more * (1 / unit))

    return _broadcast(name, a, b, FLOATS, element)


@operator
def where(name: str, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where the bool ``condition`` holds, else ``b``; all three broadcast."""
    require_input(condition, "condition", dtype=("bool",))
    require_input(b, "b", dtype=(a.dtype,))
    shape = broadcast_shapes({"condition": condition, "a": a, "b": b})

    def element(*i: Expr) -> Expr:
        return select(broadcast_load(condition, i), broadcast_load(a, i), broadcast_load(b, i))

    return compute(shape, element, name)


@operator
def isinf(name: str, x: Tensor) -> Tensor:
    """Whether ``x`` is infinite, of either sign."""
    require_input(x, "x", dtype=FLOATS)
    return _map(name, x, lambda e: equal(math("abs", e), identity("min", e.dtype)))


OPERATORS = (
    *UNARY, leaky_relu, elu, celu, thresholded_relu, hard_sigmoid, gelu, clip, cast, isinf, *BINARY, mod, logaddexp,
    where, *internal(add_term),
)  # fmt: skip

"""Types of terms with symbolic sizes: what a proof is checked against.

A word's type follows from those of its arguments, and with it *obligations*: what must hold for the word to mean
anything (windows that fit, parts that lie inside). They are sizes that must be ≥ 0, or divisors that must divide.

What is element-wise by its definition has no rule here. The others do, because definitions do not give such types:
evaluated on the sizes of rules, with every comparison that is left open taken as true (or as false where that is
refused), on up to 12 uses of each word in axioms and substitutions, they type products, joins, transposes, ``softmax``
and ``grow`` alike, in 30 times the time; of 36 convolutions and pools 1, since names for strides and groups leave the
ends of windows without a value; of 12 parts none, whose bounds are asked for from both sides; of 12 reshapes 8; and
nothing of words that stand for constants, which are arrays. Leading dimensions, of any number, they know as one.
``tests/rewrite/test_types.py`` holds both against each other at numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, reduce
from math import prod

from numpy import broadcast_shapes

from burnish.errors import BurnishError, RuleError
from burnish.loops.sizes import Dim, exact_quotient, size_of, unbounded
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS
from burnish.ops.classify import elementwise_inputs, fusion_class
from burnish.ops.operator import Operator
from burnish.rewrite.language.sizes import (
    is_extent,
    names_of,
    number_of,
    quotient,
    size_text,
    terms_of,
)
from burnish.rewrite.language.terms import Apply, RewriteRule, Term, TermVariable, Type, Value, substitute_sizes

Obligation = tuple[str, int, int]  # ("<=", a, b): a ≤ b; ("divides", a, b): b is a multiple of a
_WINDOW: Mapping[str, Value] = {"strides": (1,) * 2, "pads": (0,) * 4, "dilations": (1,) * 2}
DEFAULTS: Mapping[str, Mapping[str, Value]] = {  # of attributes that may be left out
    "matmul": {"transpose_a": False, "transpose_b": False},
    "softmax": {"axis": -1},
    "conv2d": {**_WINDOW, "groups": 1},
    "max_pool2d": {**_WINDOW, "ceil_mode": False},
    "avg_pool2d": {**_WINDOW, "ceil_mode": False, "count_include_pad": False},
}
_PROBES = {  # by the number of operands: shapes that tell whether an operator maps and broadcasts any
    1: (((3,),), ((2, 3),)),
    2: (((2, 3), (2, 3)), ((3,), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3))),
}


# --- one word ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 14)
def type_word(
    word: str, args: tuple[Type, ...], attrs: tuple[tuple[str, Value], ...]
) -> tuple[Type, tuple[Obligation, ...]]:
    """The type of a word applied to arguments of these types, and its obligations. Raises RuleError if it has none."""
    try:
        found, obligations = _type_word(word, args, dict(attrs))
        for obligation in obligations:
            _refuse_false(obligation)
        return found, obligations
    except RuleError as error:
        raise RuleError(f"{word}({', '.join(map(str, args))}): {error}") from None
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise RuleError(f"{word}({', '.join(map(str, args))}) has no type: {error}") from None


def _type_word(word: str, args: tuple[Type, ...], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    if word in _RULES_OF:
        return _RULES_OF[word](args, {**DEFAULTS.get(word, {}), **attrs})
    if not is_map(word, len(args)):
        known = ", ".join(sorted(_RULES_OF))
        raise RuleError(f"'{word}' has no symbolic type; those that have: {known}, and element-wise operators")
    return reduce(_broadcast, args), ()


@cache
def is_map(word: str, operands: int) -> bool:
    """Whether an operator's definition is element-wise on ``operands`` float32 inputs, broadcast as NumPy does."""
    operator = OPERATORS.get(word)
    if operator is None or operator.extern is not None:
        return False
    return bool(_PROBES.get(operands)) and all(_maps(operator, shapes) for shapes in _PROBES[operands])


def _maps(operator: Operator, shapes: tuple[tuple[int, ...], ...]) -> bool:
    try:
        outputs = operator.define("y", [placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)])
    except BurnishError:
        return False
    whole = len(outputs) == 1 and outputs[0].dtype == "float32" and outputs[0].shape == broadcast_shapes(*shapes)
    return whole and fusion_class(outputs) == "injective" and len(elementwise_inputs(outputs)) == len(shapes)


def _refuse_false(obligation: Obligation) -> None:
    """Raises RuleError for an obligation that no sizes meet: a part outside, a window that never fits."""
    relation, a, b = obligation
    if relation == "<=" and (number_of(b - a) or 0) < 0:
        raise RuleError(f"{size_text(a)} is to be at most {size_text(b)}")
    if relation == "divides" and number_of(a) and number_of(b) is not None and b % a:
        raise RuleError(f"{size_text(b)} is to be a multiple of {size_text(a)}")


def _broadcast(x: Type, y: Type) -> Type:
    """The type of both, broadcast as NumPy does: equal from the end, or the number 1, or absent."""
    long, short = (x, y) if (len(x.dims), x.lead or "") >= (len(y.dims), y.lead or "") else (y, x)
    if short.lead not in (None, long.lead) or (short.lead and len(short.dims) != len(long.dims)):
        raise RuleError("leading dimensions differ")
    offset = len(long.dims) - len(short.dims)
    dims = list(long.dims)
    for i, d in enumerate(short.dims, offset):
        if dims[i] == 1:
            dims[i] = d
        elif d not in (1, dims[i]):
            raise RuleError(f"extents {size_text(dims[i])} and {size_text(d)}")
    return Type(tuple(dims), long.lead)


def _rank(x: Type, rank: int) -> None:
    if x.lead or len(x.dims) != rank:
        raise RuleError(f"a tensor of {rank} dimensions is allowed")


def _product(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    if len(args[0].dims) == 1 and args[0].lead is None and attrs["transpose_a"] is False:
        row, must = _product((Type((1, *args[0].dims)), args[1]), attrs)
        return Type((*row.dims[:-2], row.dims[-1]), row.lead), must
    (x, y) = (_swapped(t) if attrs[f"transpose_{k}"] else t for t, k in zip(args, "ab", strict=True))
    if x.dims[-1] != y.dims[-2] or min(len(x.dims), len(y.dims)) < 2:
        raise RuleError("inner extents differ")
    batch = _broadcast(Type(x.dims[:-2], x.lead), Type(y.dims[:-2], y.lead))
    return Type((*batch.dims, x.dims[-2], y.dims[-1]), batch.lead), ()


def _swapped(x: Type) -> Type:
    return Type((*x.dims[:-2], x.dims[-1], x.dims[-2]), x.lead)


def _windows(x: Type, kernel: Sequence[int], attrs: dict[str, Value]) -> tuple[list[int], list[Obligation]]:
    """Window counts by dimension, and the obligations under which there are any."""
    strides, pads, dilations = (_sizes(attrs[key]) for key in ("strides", "pads", "dilations"))
    extents, must = list[int](), list[Obligation]()
    for d in (0, 1):
        free = x.dims[2 + d] + pads[d] + pads[2 + d] - dilations[d] * (kernel[d] - 1) - 1
        must += [("<=", 0, free), ("<=", 1, strides[d]), ("<=", 1, dilations[d]), ("<=", 1, kernel[d])]
        extents.append(quotient(free, strides[d]) + 1)
    return extents, must


def _convolution(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    x, weight, *bias = args
    _rank(x, 4)
    _rank(weight, 4)
    groups = _size(attrs["groups"])
    outputs = weight.dims[0]
    if weight.dims[1] * groups != x.dims[1] or any(b != Type((outputs,)) for b in bias):
        raise RuleError(f"channels do not fit with groups {size_text(groups)}")
    extents, must = _windows(x, weight.dims[2:], attrs)
    return Type((x.dims[0], outputs, *extents)), (*must, ("<=", 1, groups), ("divides", groups, outputs))


def _pool(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    (x,) = args
    _rank(x, 4)
    if attrs["ceil_mode"] is not False:
        raise RuleError("ceil_mode has no symbolic type")
    extents, must = _windows(x, _sizes(attrs["kernel"]), attrs)
    return Type((*x.dims[:2], *extents)), tuple(must)


def _concat(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    axis = _axis(args[0], attrs)
    for x in args[1:]:
        if x.lead != args[0].lead or _without(x, axis) != _without(args[0], axis):
            raise RuleError(f"shapes differ in more than axis {axis}")
    dims = list(args[0].dims)
    dims[axis] = sum(x.dims[axis] for x in args)
    return Type(tuple(dims), args[0].lead), ()


def _part(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    (x,) = args
    axis, start, extent = _axis(x, attrs), _size(attrs["start"]), _size(attrs["extent"])
    dims = list(x.dims)
    inside: tuple[Obligation, ...] = (("<=", start + extent, dims[axis]), ("<=", 0, start), ("<=", 1, extent))
    dims[axis] = extent
    return Type(tuple(dims), x.lead), inside


def _grow(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    (x,) = args
    top, left, bottom, right = _sizes(attrs["pads"])
    dims = (*x.dims[:-2], x.dims[-2] + top + bottom, x.dims[-1] + left + right)
    return Type(dims, x.lead), tuple(("<=", 1, d) for d in dims[-2:])


def _block_diagonal(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    (x,) = args
    _rank(x, 4)
    groups, merged = _size(attrs["groups"]), _size(attrs["merged"])
    outputs, depth, *kernel = x.dims
    must = (("<=", 1, groups), ("<=", 1, merged), ("divides", groups * merged, outputs))
    return Type((outputs, merged * depth, *kernel)), must


def _swap(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    (x,) = args
    return _swapped(x), ()


def _softmax(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    (x,) = args
    _axis(x, attrs)
    return x, ()


def _reshape(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    (x,) = args
    shape = _sizes(attrs["shape"])
    if x.lead or prod(x.dims) != prod(shape):
        raise RuleError(f"a shape of as many elements is allowed, not [{', '.join(map(size_text, shape))}]")
    return Type(shape), tuple(("<=", 1, d) for d in shape)


def _transpose(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    (x,) = args
    perm = [number_of(p) for p in _sizes(attrs["perm"])]
    if x.lead or sorted(p for p in perm if p is not None) != list(range(len(x.dims))):
        raise RuleError("perm is no permutation of the dimensions")
    return Type(tuple(x.dims[p] for p in perm if p is not None)), ()


def _constant(shape: Sequence[int]) -> tuple[Type, tuple[Obligation, ...]]:
    return Type(tuple(shape)), tuple(("<=", 1, d) for d in shape)


def _dirac(args: Sequence[Type], attrs: dict[str, Value]) -> tuple[Type, tuple[Obligation, ...]]:
    channels, groups = _size(attrs["channels"]), _size(attrs["groups"])
    kernel, at = _sizes(attrs["kernel"]), _sizes(attrs["at"])
    depth = exact_quotient(channels, groups)
    if depth is None:
        raise RuleError(f"{size_text(groups)} groups of {size_text(channels)} channels")
    inside = [o for k, a in zip(kernel, at, strict=True) for o in (("<=", 0, a), ("<=", a + 1, k))]
    return Type((channels, depth, *kernel)), (("<=", 1, groups), ("<=", 1, channels), *inside)


_RULES_OF = {
    "matmul": _product, "conv2d": _convolution, "max_pool2d": _pool, "avg_pool2d": _pool, "concat": _concat,
    "part": _part, "grow": _grow, "swap": _swap, "reshape": _reshape, "transpose": _transpose, "dirac": _dirac,
    "softmax": _softmax, "block_diagonal": _block_diagonal,
    "eye": lambda _, attrs: _constant((_size(attrs["size"]),) * 2),
    "box": lambda _, attrs: _constant((_size(attrs["channels"]), 1, *_sizes(attrs["kernel"]))),
    "full": lambda _, attrs: _constant(_sizes(attrs["shape"])),
}  # fmt: skip


def _size(value: Value) -> int:
    if not is_extent(value):
        raise RuleError(f"{value} is no size")
    return value


def _sizes(value: Value) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        raise RuleError(f"{value} is no tuple of sizes")
    return value


def _axis(x: Type, attrs: dict[str, Value]) -> int:
    """A dimension that is known, counted from the end."""
    axis = number_of(_size(attrs["axis"]))
    if axis is None or not -len(x.dims) <= axis < (0 if x.lead else len(x.dims)):
        raise RuleError(f"axis {size_text(_size(attrs['axis']))} is not among the dimensions")
    return axis if axis < 0 else axis - len(x.dims)


def _without(x: Type, axis: int) -> list[int]:
    return [d for i, d in enumerate(x.dims, -len(x.dims)) if i != axis]


# --- terms ------------------------------------------------------------------------------------------------------------


class Typing:
    """Types of terms over variables of given types, and all obligations met."""

    def __init__(self, types: Mapping[str, Type]) -> None:
        self.types: dict[Term, Type] = {TermVariable(name): t for name, t in types.items()}
        self.obligations: dict[Obligation, None] = {}

    def type_of(self, term: Term) -> Type:
        """The type of a term. Raises RuleError if it has none."""
        if term not in self.types:
            if isinstance(term, TermVariable):
                raise RuleError(f"variable '{term}' has no type")
            self.types[term], must = type_word(term.word, tuple(map(self.type_of, term.args)), term.attrs)
            self.obligations.update(dict.fromkeys(must))
        return self.types[term]

    def canonical(self, term: Term) -> Term:
        """The term with its attributes written one way: axes counted from the end, defaults filled in."""
        if isinstance(term, TermVariable):
            return term
        args = tuple(map(self.canonical, term.args))
        return Apply(term.word, args, canonical_attributes(term.word, [self.type_of(a) for a in args], term.attrs))


def canonical_attributes(
    word: str, args: Sequence[Type], attrs: tuple[tuple[str, Value], ...]
) -> tuple[tuple[str, Value], ...]:
    """Attributes written one way. Raises RuleError for an axis that is not among the dimensions."""
    kept = {**DEFAULTS.get(word, {}), **dict(attrs)}
    if "axis" in kept and args:
        kept["axis"] = _axis(args[0], kept)
    return tuple(sorted(kept.items()))


def brief(term: Term) -> Term:
    """The term without attributes that have their default values: as one writes it."""
    if isinstance(term, TermVariable):
        return term
    defaults = DEFAULTS.get(term.word, {})
    attrs = tuple((key, value) for key, value in term.attrs if defaults.get(key) != value)
    return Apply(term.word, tuple(map(brief, term.args)), attrs)


def type_rule(rule: RewriteRule) -> Typing:
    """Types of both sides. Raises RuleError naming the rule if they have none, or unequal ones."""
    typing = Typing(rule.types)
    for number, (left, right) in enumerate(zip(rule.left, rule.right, strict=True)):
        try:
            a, b = typing.type_of(left), typing.type_of(right)
        except RuleError as error:
            raise RuleError(f"'{rule.name}' does not type: {error}") from None
        if a != b:
            raise RuleError(f"'{rule.name}' does not type: output {number} is {a} on the left, {b} on the right")
    return typing


def canonical_rule(rule: RewriteRule) -> RewriteRule:
    """The rule with its equations between sizes solved and its attributes written one way. Errors as type_rule."""
    declared = {n for t in rule.types.values() for n in names_of(*t.dims)}
    for condition in rule.conditions:
        difference = condition.left - condition.right
        single = ((m[0], f) for m, f in terms_of(difference) if len(m) == 1 and abs(f) == 1)
        factors = {atom.name: f for atom, f in single if isinstance(atom, Dim)}
        alone = sorted(factors, key=declared.__contains__)
        name = next((each for each in alone if _once(each, difference)), None)
        if condition.relation == "==" and name is not None:
            value = (difference - unbounded(name) * factors[name]) * -factors[name]
            rule = substitute_sizes(rule, {name: value})
            rest = tuple(c for c in rule.conditions if c.left != c.right or c.relation != "==")
            return canonical_rule(RewriteRule(rule.name, rule.types, rule.left, rule.right, rest, rule.kind))
    typing = type_rule(rule)
    left, right = (tuple(map(typing.canonical, terms)) for terms in (rule.left, rule.right))
    return RewriteRule(rule.name, rule.types, left, right, rule.conditions, rule.kind)


def _once(name: str, size: int) -> bool:
    return sum(name in names_of(size_of({m: f})) for m, f in terms_of(size)) == 1

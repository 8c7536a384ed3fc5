"""Walks over expressions: each distinct sub-expression is met, and rebuilt, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from burnish.loops.expr import (
    COMPARISONS,
    INDEX,
    LOGICAL,
    Binary,
    Call,
    Cast,
    Expr,
    Load,
    Not,
    Reduce,
    Select,
    Var,
    binary,
)


def rebuild(e: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """``e`` with ``fn`` applied to each direct sub-expression; ``e`` itself when nothing changed."""
    old = e.children
    if not old:
        return e
    new = tuple([fn(child) for child in old])
    if new == old:
        return e
    match e:
        case Binary(op, _, _):
            return binary(op, *new)
        case Select():
            return Select(*new)
        case Cast(dtype, _):
            return Cast(dtype, new[0])
        case Not():
            return Not(new[0])
        case Call(name, _):
            return Call(name, new)
        case Load(buffer, _):
            return Load(buffer, new)
        case Reduce(kind, _, axes):
            ends = iter(new[1:])
            return Reduce(kind, new[0], tuple([axis.between(ends) for axis in axes]))
    raise AssertionError(e)


def walk(e: Expr) -> Iterable[Expr]:
    """``e`` and all its sub-expressions, outermost first, each once: an expression is a graph, not a tree."""
    stack, seen = [e], {e}
    while stack:
        top = stack.pop()
        yield top
        fresh = [child for child in dict.fromkeys(top.children) if child not in seen]
        seen.update(fresh)
        stack.extend(fresh)


def transform(e: Expr, fn: Callable[[Expr], Expr], where: Callable[[Expr], bool] = lambda _: True) -> Expr:
    """``e`` rebuilt from the leaves up: ``fn`` of every sub-expression, its own ones transformed, each met once.

    ``where`` says what can change: an expression for which it does not hold is left as it is.
    """
    done: dict[Expr, Expr] = {}

    def visit(old: Expr) -> Expr:
        if not where(old):
            return old
        new = done.get(old)
        if new is None:
            new = done[old] = fn(rebuild(old, visit))
        return new

    return visit(e)


@lru_cache(maxsize=1 << 12)
def repeated(e: Expr) -> frozenset[Expr]:
    """The sub-expressions that occur in ``e`` more than once, leaves aside."""
    met: set[Expr] = set()
    twice: set[Expr] = set()
    for parent in walk(e):
        for child in parent.children:
            (twice if child in met else met).add(child)
    return frozenset(x for x in twice if x.children)


@lru_cache(maxsize=1 << 12)
def depth(e: Expr) -> int:
    """Expressions on the longest way from ``e`` down to a leaf, the leaf not counted."""
    return 1 + max(map(depth, e.children)) if e.children else 0


def substitute(e: Expr, values: Mapping[str, Expr]) -> Expr:
    """``e`` with variables replaced by name."""
    if isinstance(e, Var):
        return values.get(e.name, e)
    names = e.variables
    if names.isdisjoint(values):
        return e
    return _substituted(e, tuple([(name, values[name]) for name in names if name in values]))


@lru_cache(maxsize=1 << 15)
def _substituted(e: Expr, replaced: tuple[tuple[str, Expr], ...]) -> Expr:
    """Memoised because the same few are asked for again: by every copy of a loop, and every candidate of a tuner."""
    values = dict(replaced)
    return rebuild(e, lambda child: substitute(child, values))


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions of ``e``, in order."""
    return e.children


def free_vars(e: Expr) -> frozenset[str]:
    """Names of the variables occurring in ``e``."""
    return e.variables


def loads(e: Expr) -> tuple[Load, ...]:
    """All loads in ``e``, outermost first."""
    return _loads(e) if e.buffers else ()


@lru_cache(maxsize=1 << 12)
def _loads(e: Expr) -> tuple[Load, ...]:
    return tuple([x for x in walk(e) if isinstance(x, Load)])


def index_only(cond: Expr) -> bool:
    """Whether a condition compares int64 expressions only."""
    if isinstance(cond, Binary) and cond.op in LOGICAL:
        return index_only(cond.a) and index_only(cond.b)
    return isinstance(cond, Binary) and cond.op in COMPARISONS and cond.a.dtype == INDEX


def conjuncts(cond: Expr) -> list[Expr]:
    """The operands of nested ``and``."""
    if isinstance(cond, Binary) and cond.op == "and":
        return conjuncts(cond.a) + conjuncts(cond.b)
    return [cond]

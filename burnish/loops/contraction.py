"""Contractions: stages that sum products of two factors, as matrix products, convolutions and maps by literals do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from burnish.loops.expr import BIT_COUNTS, Axis, Call, Cast, Expr, Literal, Load, Reduce, Select, Var
from burnish.loops.loaded import is_loaded
from burnish.loops.onepoint import padding
from burnish.loops.reduction import factors_of
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import free_vars, loads, substitute


@dataclass(frozen=True)
class Contraction:
    """Sum of products over ``reduced`` axes: a ``stage``, and the two ``factors`` of what it sums, in their order.

    ``words``: the factors are words of bytes or bits, and a product is the sum of theirs.
    """

    stage: Tensor
    factors: tuple[Expr, Expr]
    reduced: tuple[Axis, ...]
    words: bool

    @property
    def depth(self) -> int:
        """Length of the reduction: products summed for each element."""
        return prod(axis.extent for axis in self.reduced)

    @property
    def counted(self) -> bool:
        """Whether the factors are words of bits, and a product the counts of those that both have."""
        body = self.stage.body
        return isinstance(body, Reduce) and isinstance(body.body, Call) and body.body.fn == BIT_COUNTS

    @property
    def in_lanes(self) -> bool:
        """Whether it sums float32 numbers, or products of words, which are as wide."""
        return self.stage.dtype == ("int32" if self.words else "float32")

    @property
    def operands(self) -> tuple[Load | None, Load | None]:
        """The loads that the factors are, but for one conversion from the type they are stored in; None of others."""
        a, b = (f.value if isinstance(f, Cast) else f for f in self.factors)
        return (a if isinstance(a, Load) else None), (b if isinstance(b, Load) else None)

    @property
    def loads(self) -> tuple[Load, Load] | None:
        """Loads of the factors, padded or not, if each has one."""
        a, b = map(loads, self.factors)
        return (a[0], b[0]) if len(a) == len(b) == 1 else None

    @property
    def literal(self) -> Expr | None:
        """The factor that is entries of a matrix of literals, as in the transforms of Winograd's algorithm."""
        constant = (f for f in self.factors if not f.buffers)
        return next((f for f in constant if all(isinstance(e, Literal) for e in _leaves(f))), None)


def _uncast(e: Expr) -> Expr:
    return _uncast(e.value) if isinstance(e, Cast) else e


def _leaves(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Select):
        yield from _leaves(e.a)
        yield from _leaves(e.b)
    else:
        yield e


def contraction(t: Tensor | None) -> Contraction | None:
    """The contraction that a stage is; None of others, and of sums whose length is loaded."""
    if t is None or not isinstance(t.body, Reduce) or t.body.kind != "sum":
        return None
    factors = factors_of(t.body.body)
    if factors is None or any(is_loaded(axis.extent) for axis in t.body.axes):
        return None
    return Contraction(t, factors, t.body.axes, isinstance(t.body.body, Call))


def partial_sums(t: Tensor, count: int, name: str) -> Tensor | None:
    """The stage ``name`` whose first dimension is ``count`` parts of the longest axis that ``t`` sums over, and that
    sums over each; None where that is no multiple of ``count``.
    """
    body = t.body
    assert isinstance(body, Reduce)
    longest = max(body.axes, key=lambda a: a.extent)
    if longest.extent % count:
        return None
    part, inner = Var(f"{t.name}.part"), Axis(longest.var, longest.extent // count)
    moved = substitute(body.body, {longest.var.name: part * inner.extent + longest.var})
    axes = tuple(inner if a is longest else a for a in body.axes)
    buffer = t.buffer.with_(name=name, shape=(count, *t.shape))
    return Tensor(buffer, (part, *t.axes), Reduce(body.kind, moved, axes), t.inputs)


def is_sum_of_products(t: Tensor) -> bool:
    """Whether ``t`` sums products of what is computed of two different tensors."""
    found = contraction(t)
    sources = [{x.buffer.name for x in loads(f)} for f in found.factors] if found else []
    return all(sources) and len({*map(frozenset, sources)}) == 2


def is_contraction(t: Tensor) -> bool:
    """Whether ``t`` sums products of two different loads, each indexed by a reduction axis.

    Stricter than what templates take for an anchor: operands may not be computed within the sum, but for zeros by a
    condition.
    """
    found = contraction(t)
    if found is None:
        return False
    names = {axis.var.name for axis in found.reduced}
    a, b = (_uncast(padding(f, "sum")[0]) for f in found.factors)
    return a != b and all(isinstance(f, Load) and bool(free_vars(f) & names) for f in (a, b))


def literal_factor(t: Tensor) -> Expr | None:
    """The matrix of literals by which ``t`` multiplies another tensor; None of other stages."""
    found = contraction(t)
    return found.literal if found else None

"""Properties derived from a definition: fusion class, element-wise inputs, work, traffic, roles of output axes.

Source of the classes: thesis-chen section 4.2, operator fusion (injective, reduction, complex-out-fusable, opaque).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from burnish.loops.contraction import contraction, is_contraction, literal_factor
from burnish.loops.expr import (
    ARITHMETIC,
    COMPARISONS,
    FLOATS,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
)
from burnish.loops.loaded import is_loaded
from burnish.loops.onepoint import scattered_axes
from burnish.loops.sizes import greatest
from burnish.loops.tensor import Tensor, stages
from burnish.loops.traverse import free_vars, loads, substitute, transform, walk
from burnish.ops.reads import Access, accesses

CLASSES = ("injective", "reduction", "complex", "opaque")


def fusion_class(outputs: Sequence[Tensor]) -> str:
    """``injective`` without reductions; ``complex`` if a sum of products of two tensors is all it reduces (maps by
    literal matrices aside), or it sums products of words of bytes, of whatever it made them; else ``reduction``;
    ``opaque`` for several outputs that share one, and for sums whose terms go to positions that data choose.
    """
    reductions = [t for t in stages(outputs) if isinstance(t.body, Reduce)]
    if not reductions:
        return "injective"
    if len(outputs) > 1 or any(scattered_axes(t) for t in reductions):
        return "opaque"
    products = [is_contraction(t) for t in reductions if literal_factor(t) is None]
    words = any(found.words for t in reductions if (found := contraction(t)) is not None)
    return "complex" if words or products == [True] else "reduction"


_ROUNDING = ("floor", "ceil", "round", "trunc", "sign", "fmod")  # functions that jump


def has_steps(outputs: Sequence[Tensor]) -> bool:
    """Whether a change of an input by a rounding error can change an output by much more: it is rounded to a multiple
    of something, made an integer, divided with a remainder, or compared. Of what has no definition nothing is known.
    """
    bodies = [t.body for t in stages(outputs) if t.body is not None]
    return not bodies or any(_is_step(e) for body in bodies for e in walk(body))


def _is_step(e: Expr) -> bool:
    match e:
        case Call(fn, _):
            return fn in _ROUNDING
        case Cast(dtype, value):
            return value.dtype in FLOATS and dtype not in FLOATS
        case Binary(op, a, _):
            return a.dtype in FLOATS and (op in ("//", "%") or op in COMPARISONS)
    return False


# --- inlined expressions ----------------------------------------------------------------------------------------------


def inlined(output: Tensor) -> Expr:
    """The body of an injective ``output`` as one expression over placeholders."""
    producers = {t.name: t for t in stages([output])}

    def expand(e: Expr) -> Expr:
        t = producers[e.buffer.name] if isinstance(e, Load) else None
        if not isinstance(e, Load) or t is None or t.body is None:
            return e
        inner = substitute(t.body, dict(zip((v.name for v in t.axes), e.indices, strict=True)))
        return transform(inner, expand, _reads_anything)

    assert output.body is not None
    return transform(output.body, expand, _reads_anything)


def _reads_anything(e: Expr) -> bool:
    return bool(e.buffers)


def is_view(outputs: Sequence[Tensor]) -> bool:
    """Pure data movement: each output element is one input element, whose place does not depend on data."""
    if fusion_class(outputs) != "injective":
        return False
    return all(isinstance(e, Load) and len(loads(e)) == 1 for e in map(inlined, outputs))


def elementwise_inputs(outputs: Sequence[Tensor]) -> frozenset[str]:
    """Names of the inputs that are read at the output's own index only, up to broadcasting.

    That is: the last dimensions of the index are the last output axes, or 0 where the input's extent is 1.
    """
    read: dict[str, bool] = {}
    for output in outputs:
        for access in accesses(output):
            own = _reads_own_index(access, output)
            read[access.source.name] = read.get(access.source.name, True) and own
    return frozenset(name for name, own in read.items() if own)


def _reads_own_index(access: Access, output: Tensor) -> bool:
    rank = len(access.indices)
    if rank > len(output.axes):
        return False
    tail = output.axes[len(output.axes) - rank :]
    pairs = zip(access.indices, tail, access.source.shape, strict=True)
    return all(i == v or (extent == 1 and isinstance(i, Const)) for i, v, extent in pairs)


def is_elementwise(outputs: Sequence[Tensor]) -> bool:
    """Injective, and every input is read at the output's own index, at least one of them in full.

    What an element is does not depend on where it stands: a triangle's mask is not element-wise.
    """
    if fusion_class(outputs) != "injective":
        return False
    inputs = {t.name: t for t in stages(outputs) if t.body is None}
    own = elementwise_inputs(outputs)
    full = any(inputs[n].shape == outputs[0].shape for n in own)
    return own == inputs.keys() and full and not any(map(value_variables, outputs))


def value_variables(output: Tensor) -> frozenset[str]:
    """Axes that an injective output names outside the indices of what it reads: those of a triangle's mask."""
    value = transform(inlined(output), lambda e: Const(0, e.dtype) if isinstance(e, Load) else e)
    return frozenset(value.variables)


# --- work and traffic -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def flops_and_traffic(outputs: tuple[Tensor, ...]) -> tuple[int, int]:
    """:func:`flops` and :func:`traffic`, remembered by the tensors, which equal layers share."""
    return int(flops(outputs)), int(traffic(outputs))


def flops(outputs: Sequence[Tensor]) -> int:
    """Arithmetic operations on values: a function call is one, a multiply-add two, index arithmetic none.

    So is a dot product of words, added to a sum; what unpacks a word, once for many sums, is none.
    """
    total = 0
    for t in stages(outputs):
        if isinstance(t.body, Reduce):
            points = prod(t.shape) * prod(_length(a.extent) for a in t.body.axes)
            found = contraction(t)
            total += points * (2 if found is not None and found.words else _operations(t.body.body) + 1)
        elif t.body is not None:
            total += prod(t.shape) * _operations(t.body)
    return total


def _length(extent: int) -> int:
    """The number of iterations; of a loop that memory bounds, about."""
    return extent.hint if is_loaded(extent) else extent


def _operations(e: Expr) -> int:
    match e:
        case Load():
            return 0
        case Select(_, a, b):
            return max(_operations(a), _operations(b))
        case Binary(op, a, b):
            return (op in ARITHMETIC) + _operations(a) + _operations(b)
        case Call(_, args):
            return 1 + sum(_operations(a) for a in args)
        case Cast(_, value):
            return _operations(value)
    return 0


def traffic(outputs: Sequence[Tensor]) -> int:
    """Least bytes moved: every output once, and of every input once what is read (at most all of it)."""
    total = sum(t.buffer.nbytes for t in outputs)
    touched: dict[str, int] = {}
    sources: dict[str, Tensor] = {}
    for output in outputs:
        extents = _extents(output)
        for access in accesses(output):
            points = prod(greatest(extents[v]) for v in set().union(*(free_vars(i) for i in access.indices), set()))
            name = access.source.name
            sources[name] = access.source
            touched[name] = min(touched.get(name, 0) + points, access.source.buffer.size)
    for name, elements in touched.items():
        buffer = sources[name].buffer
        total += elements * buffer.nbytes // max(buffer.size, 1)
    return total


def _extents(output: Tensor) -> dict[str, int]:
    """Extents of the variables that :func:`accesses` speaks of."""
    extents = {v.name: n for v, n in zip(output.axes, output.shape, strict=True)}
    for t in stages([output]):
        if isinstance(t.body, Reduce):
            extents.update({f"{t.name}.{a.var.name}": a.extent for a in t.body.axes})
    return extents


# --- axes -------------------------------------------------------------------------------------------------------------


def axis_inputs(output: Tensor) -> tuple[frozenset[str], ...]:
    """Inputs whose elements each axis of ``output`` selects."""
    found = accesses(output)
    return tuple(
        frozenset(a.source.name for a in found if any(v.name in free_vars(i) for i in a.indices)) for v in output.axes
    )

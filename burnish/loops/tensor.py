"""Tensor expressions: ``placeholder``, ``compute``, ``reduce_axis``, and the naive loop program they denote.

Source: thesis-chen section 4.3.1 (the tensor expression language).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType

from burnish.errors import ScheduleError
from burnish.loops.expr import (
    DTYPES,
    FLOATS,
    INDEX,
    NARROW,
    REDUCTIONS,
    Axis,
    Binary,
    Buffer,
    Expr,
    Load,
    Reduce,
    Select,
    Value,
    Var,
    any_of,
    cast,
    equal,
    math,
    select,
    wrap,
)
from burnish.loops.loaded import LoadedExtent, is_loaded
from burnish.loops.program import Alloc, For, LoopProgram, Stmt, Store, seq
from burnish.loops.reduction import identity
from burnish.loops.sizes import extent_of, greatest, least
from burnish.loops.traverse import substitute, transform, walk

HALVES = ("float16", "bfloat16")
_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_reads: ContextVar[list[Tensor] | None] = ContextVar("reads", default=None)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A placeholder (``body`` is None) or one stage ``buffer[axes] = body``. Indexing it yields a load."""

    buffer: Buffer
    axes: tuple[Var, ...] = ()
    body: Expr | None = None
    inputs: tuple[Tensor, ...] = ()

    @property
    def name(self) -> str:
        """Name of its buffer."""
        return self.buffer.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""
        return self.buffer.shape

    @property
    def dtype(self) -> str:
        """Dtype of its elements."""
        return self.buffer.dtype

    def __getitem__(self, indices: Value | tuple[Value, ...]) -> Load:
        indices = indices if isinstance(indices, tuple) else (indices,)
        if len(indices) != len(self.shape):
            raise ScheduleError(f"tensor '{self.name}' has {len(self.shape)} dimensions, indexed with {len(indices)}")
        reads = _reads.get()
        if reads is not None and self not in reads:
            reads.append(self)
        return Load(self.buffer, tuple(wrap(i) for i in indices))

    def __str__(self) -> str:
        if self.body is None:
            return str(self.buffer)
        return f"{self.buffer}; {self.name}[{', '.join(map(str, self.axes))}] = {self.body}"


@contextmanager
def _recording() -> Iterator[list[Tensor]]:
    reads: list[Tensor] = []
    token = _reads.set(reads)
    try:
        yield reads
    finally:
        _reads.reset(token)


def placeholder(shape: Sequence[int], dtype: str = "float32", name: str = "x") -> Tensor:
    """An input tensor."""
    if dtype not in DTYPES and dtype not in NARROW:
        raise ScheduleError(f"placeholder '{name}': unknown dtype {dtype!r}; allowed: {', '.join(DTYPES)}")
    return Tensor(Buffer(name, _shape(shape, name), dtype))


def compute(shape: Sequence[int], fn: Callable[..., Value], name: str = "y", dtype: str = "float32") -> Tensor:
    """The tensor whose element at ``(i, j, ...)`` is ``fn(i, j, ...)``; axes take the names of ``fn``'s parameters.

    ``fn`` may return a :class:`Reduce` (from :func:`sum` and its kin) as the whole body, not inside another expression.
    ``dtype`` is used only where the body is a bare Python number. Sums and products of halves are float32 until they
    are complete: a stage ``name.wide`` holds them.
    """
    extents = _shape(shape, name)
    axes = tuple(Var(n) for n in _parameter_names(fn, len(extents)))
    with _recording() as reads:
        body = wrap(fn(*axes), dtype)
    nested = body.body if isinstance(body, Reduce) else body
    if any(isinstance(e, Reduce) for e in walk(nested)):
        raise ScheduleError(f"compute '{name}': a reduction must be the whole body; put the rest in a second stage")
    if isinstance(body, Reduce) and body.kind in ("sum", "prod") and body.dtype in HALVES:
        total = Reduce(body.kind, _widened(body.body), body.axes)
        kept = Tensor(Buffer(f"{name}.wide", extents, total.dtype), axes, total, tuple(reads))
        return Tensor(Buffer(name, extents, body.dtype), axes, cast(body.dtype, kept[axes]), (kept,))
    return Tensor(Buffer(name, extents, body.dtype), axes, body, tuple(reads))


def _widened(e: Expr) -> Expr:
    """A half as float32: a product of halves is that of its factors, which float32 holds exactly."""
    match e:
        case Binary("*", a, b):
            return _widened(a) * _widened(b)
        case Select(condition, a, b):
            return select(condition, _widened(a), _widened(b))
    return cast("float32", e)


def reduce_axis(extent: int, name: str = "k") -> Axis:
    """A variable to reduce over ``range(extent)``."""
    if least(extent) < 0:
        raise ScheduleError(f"reduce_axis '{name}': extent {extent} is negative")
    return Axis(Var(name), extent)


def rows_axis(offsets: Tensor, index: Value | tuple[Value, ...], most: int, name: str = "e") -> Axis:
    """A variable to reduce over the positions ``offsets[..., i]`` to below ``offsets[..., i + 1]`` of ``most``.

    ``index``: the indices of the row's begin, of which the last is ``i`` (a row of a CSR matrix).
    """
    index = index if isinstance(index, tuple) else (index,)
    begin, end = offsets[index], offsets[(*index[:-1], index[-1] + 1)]
    mean = greatest(most) // (offsets.buffer.size or 1) + 1
    extent = LoadedExtent(cast(INDEX, begin), cast(INDEX, end), most, mean)
    return Axis(Var(name), extent)  # type: ignore[arg-type]


def _reduction(kind: str) -> Callable[[Expr, Axis | Sequence[Axis]], Reduce]:
    def reduction(body: Expr, axis: Axis | Sequence[Axis]) -> Reduce:
        return Reduce(kind, body, (axis,) if isinstance(axis, Axis) else tuple(axis))

    reduction.__name__ = reduction.__qualname__ = kind
    reduction.__doc__ = f"The {kind} of ``body`` over one axis or several."
    return reduction


sum, prod, max, min = (_reduction(kind) for kind in REDUCTIONS)


def argreduce(x: Tensor, dim: int, kind: str, name: str, last: bool = False) -> Tensor:
    """The first (or ``last``) position along ``dim`` where ``x`` is extreme (``kind``: max or min), or NaN if any is.

    int64, ``dim`` kept as 1. First the extreme value, then the least index that attains it: two ordinary reductions
    instead of one over pairs.
    """
    kept = tuple(1 if i == dim else d for i, d in enumerate(x.shape))
    otherwise = wrap(0 if last else x.shape[dim] - 1)

    def best_of(*index: Expr) -> Expr:
        k = reduce_axis(x.shape[dim], "k")
        return Reduce(kind, x[(*index[:dim], k.var, *index[dim + 1 :])], (k,))

    best = compute(kept, best_of, f"{name}.{kind}")

    def first_of(*index: Expr) -> Expr:
        k = reduce_axis(x.shape[dim], "k")
        value = x[(*index[:dim], k.var, *index[dim + 1 :])]
        found = equal(value, best[index])
        if value.dtype in FLOATS:  # a NaN makes the extreme value one, which equals nothing
            found = any_of(found, math("isnan", value))
        return Reduce("max" if last else "min", select(found, k.var, otherwise), (k,))

    return compute(kept, first_of, name)


def _shape(shape: Sequence[int], name: str) -> tuple[int, ...]:
    extents = tuple(extent_of(d) for d in shape)
    if any(least(d) < 0 for d in extents):
        raise ScheduleError(f"tensor '{name}': shape {extents} has a negative extent")
    return extents


def _parameter_names(fn: Callable[..., Value], rank: int) -> list[str]:
    code = fn.__code__ if isinstance(fn, FunctionType) else None
    if code is not None and code.co_argcount == rank and not code.co_kwonlyargcount and not code.co_flags & _VARIADIC:
        return list(code.co_varnames[:rank])  # a signature takes longer than all the rest of a definition
    if code is not None and not code.co_argcount and code.co_flags & inspect.CO_VARARGS:
        return [f"i{d}" for d in range(rank)]
    parameters = inspect.signature(fn).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return [f"i{d}" for d in range(rank)]
    if len(parameters) != rank:
        raise ScheduleError(f"compute: the shape has {rank} dimensions, the function takes {len(parameters)} indices")
    return [p.name for p in parameters]


# --- from definitions to a loop program -------------------------------------------------------------------------------


def stages(outputs: Sequence[Tensor]) -> list[Tensor]:
    """All tensors reachable from ``outputs``, producers first, placeholders included."""
    order: list[Tensor] = []
    done: set[int] = set()
    stack = [(t, False) for t in reversed(outputs)]
    while stack:
        t, expanded = stack.pop()
        if id(t) in done:
            continue
        if expanded:
            done.add(id(t))
            order.append(t)
        else:
            stack.append((t, True))
            stack.extend((i, False) for i in reversed(t.inputs))
    return order


def create_program(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> LoopProgram:
    """The naive loop program of ``outputs``: one nest a stage, in data-flow order, intermediates allocated in front.

    Loops are named ``stage.axis``. A reduction is two nests: ``stage.init.axis`` stores the identity, ``stage.axis``
    combines. Stage names must be unique: a name is how a schedule addresses a stage.
    """
    order = stages(outputs)
    missing = [t.name for t in order if t.body is None and t not in inputs]
    if missing:
        raise ScheduleError(f"program '{name}': inputs {missing} are read but not listed")
    defined = [t for t in order if t not in inputs]
    names = [t.name for t in (*inputs, *defined)]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise ScheduleError(f"program '{name}': several stages are named {repeated}; stage names must be unique")
    body: Stmt = seq(*(_nest(t) for t in defined))
    for t in reversed(defined):
        if t not in outputs:
            body = Alloc(t.buffer, body)
    return LoopProgram(name, tuple(t.buffer for t in (*inputs, *outputs)), body)


def _nest(t: Tensor) -> Stmt:
    body = t.body
    if body is None:
        raise ScheduleError(f"tensor '{t.name}' is a placeholder and has no loop nest")
    if not isinstance(body, Reduce):
        return _loops(t, f"{t.name}.", (), body, None)
    init = _loops(t, f"{t.name}.init.", (), identity(body.kind, t.dtype), None)
    return seq(init, _loops(t, f"{t.name}.", body.axes, body.body, body.kind))


def _loops(t: Tensor, prefix: str, axes: tuple[Axis, ...], value: Expr, reduce: str | None) -> Stmt:
    """``for`` every axis of ``t`` and then every reduction axis: ``t[axes] (reduce)= value``."""
    spatial = list(zip((v.name for v in t.axes), t.shape, strict=True))
    extents = spatial + [(a.var.name, a.extent) for a in axes]
    renamed = {n: Var(prefix + n) for n, _ in extents}
    indices = tuple(renamed[n] for n, _ in spatial)
    nest: Stmt = Store(t.buffer, indices, substitute(value, dict(renamed)), reduce)
    for n, extent in reversed(extents):
        own = extent.mapped(lambda e: substitute(e, dict(renamed))) if is_loaded(extent) else extent
        nest = For(renamed[n].name, own, "serial", nest)  # type: ignore[arg-type]
    return nest


def expanded(e: Expr, stages: Mapping[str, Tensor]) -> Expr:
    """``e`` with every load of one of ``stages`` replaced by what that computes there."""

    def inlined(part: Expr) -> Expr:
        if not isinstance(part, Load) or part.buffer.name not in stages:
            return part
        stage = stages[part.buffer.name]
        assert stage.body is not None
        values = {axis.name: index for axis, index in zip(stage.axes, part.indices, strict=True)}
        return expanded(substitute(stage.body, values), stages)

    return transform(e, inlined, lambda part: not part.buffers.isdisjoint(stages))

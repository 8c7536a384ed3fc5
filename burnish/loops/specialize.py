"""Symbolic programs and definitions at given values of their dimensions: static ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from burnish.loops.expr import INDEX, Axis, Buffer, Cast, Const, Expr, Load, Reduce, wrap
from burnish.loops.loaded import LoadedExtent, is_loaded
from burnish.loops.program import Alloc, For, LoopProgram, Stmt, map_access, map_exprs, rebuild_stmt, walk_stmt
from burnish.loops.sizes import Dim, SymbolicSize, dims_of, valued
from burnish.loops.tensor import Tensor, stages
from burnish.loops.traverse import transform, walk

Sizes = Mapping[str, int]  # dimension -> value


def buffer_at(buffer: Buffer, sizes: Sizes) -> Buffer:
    """A buffer of a static shape."""
    return buffer.with_(shape=tuple(valued(extent, sizes) for extent in buffer.shape))


def extent_at(extent: int, sizes: Sizes) -> int:
    """An extent as a number; a loaded one with its bound as one."""
    if not is_loaded(extent):
        return valued(extent, sizes)
    own = extent.mapped(lambda e: expr_at(e, sizes))
    found: Any = LoadedExtent(own.begin, own.end, valued(own.most, sizes), own.mean)
    return found


def expr_at(e: Expr, sizes: Sizes) -> Expr:
    """An expression with sizes as numbers, loads from static buffers, and reductions over static extents."""

    def bound(x: Expr) -> Expr:
        match x:
            case SymbolicSize():
                return wrap(x.value(sizes))
            case Cast(dtype, Const(number, type)) if type == INDEX:
                return wrap(number, dtype)
            case Load(buffer, indices):
                return Load(buffer_at(buffer, sizes), indices)
            case Reduce(kind, body, axes):
                return Reduce(kind, body, tuple(Axis(a.var, extent_at(a.extent, sizes)) for a in axes))
        return x

    return transform(e, bound)


def tensors_at(outputs: Sequence[Tensor], sizes: Sizes) -> dict[str, Tensor]:
    """Every tensor that ``outputs`` are made of, static, by name."""
    made: dict[str, Tensor] = {}
    for t in stages(outputs):
        body = None if t.body is None else expr_at(t.body, sizes)
        inputs = tuple(made[i.name] for i in t.inputs)
        made[t.name] = replace(t, buffer=buffer_at(t.buffer, sizes), body=body, inputs=inputs)
    return made


def program_at(program: LoopProgram, sizes: Sizes) -> LoopProgram:
    """A loop program with every extent a number."""
    body = _loops_at(program.body, sizes)
    for buffer in program.params:
        body = map_access(body, buffer.name, lambda own, indices: (buffer_at(own, sizes), indices))
    body = map_exprs(body, lambda e: expr_at(e, sizes))
    return LoopProgram(program.name, tuple(buffer_at(b, sizes) for b in program.params), body)


def _loops_at(s: Stmt, sizes: Sizes) -> Stmt:
    s = rebuild_stmt(s, lambda inner: _loops_at(inner, sizes))
    if isinstance(s, For):
        return For(s.var, extent_at(s.extent, sizes), s.kind, s.body)
    if isinstance(s, Alloc):
        new = buffer_at(s.buffer, sizes)
        return Alloc(new, map_access(s.body, new.name, lambda _, indices: (new, indices)))
    return s


def dims_of_tensors(tensors: Sequence[Tensor]) -> tuple[Dim, ...]:
    """The dimensions of tensors, in order of their names: those in what they are made of, shapes and values."""
    extents = [extent for t in stages(tensors) for extent in t.shape]
    extents += [size for t in stages(tensors) if t.body is not None for size in _sizes_in(t.body)]
    return tuple(sorted(dims_of(extents), key=lambda d: d.name))


def dims_of_program(program: LoopProgram) -> tuple[Dim, ...]:
    """The dimensions in the shapes of a program's parameters, the extents of its loops and its expressions, in order
    of their names.
    """
    extents: list[Any] = [extent for buffer in program.params for extent in buffer.shape]
    extents += [s.extent for s in walk_stmt(program.body) if isinstance(s, For)]

    def note(e: Expr) -> Expr:
        extents.extend(_sizes_in(e))
        return e

    map_exprs(program.body, note)
    return tuple(sorted(dims_of(extents), key=lambda d: d.name))


def _sizes_in(e: Expr) -> list[Any]:
    """The sizes in an expression."""
    return [x for x in walk(e) if isinstance(x, SymbolicSize)] if e.symbolic else []

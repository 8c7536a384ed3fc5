"""Loop nests of many candidates at once, as arrays: what a cost model sees of a schedule, without making the schedule.

Grammar::

    nest      ::= Nest(levels, touches)        of n candidates; every level is a loop that each of them has
    level     ::= Level(axis, extent, step, annotation)          outermost first; extent 1 where a candidate has it not
    touch     ::= elements and stride of each access             of the statement inside
    statement ::= Statement(axes, accesses)                      what the nest is around: a stage of the definition
    access    ::= Access(buffer, indices, layout)
    index     ::= sum of coefficient * (linear // divisor % modulus)          linear: a linear form of the axes

A template says only how the axes of its main stage are cut and ordered. What a loop touches follows from the index
expressions of the definition. Sizes are integers or arrays [n] of integers.

Source: AutoTVM (Chen et al. 2018), appendix A.2, table 2: the quantities that describe a loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from burnish.base.jit import njit
from burnish.kernels.task import KernelTask
from burnish.loops.expr import Binary, Buffer, Const, Expr, Load, Reduce, Var
from burnish.loops.layout import Layout, row_major
from burnish.loops.linear import to_linear
from burnish.loops.simplify import simplify
from burnish.loops.sizes import hinted
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import free_vars, loads, substitute

ANNOTATIONS = ("serial", "parallel", "unroll", "vectorize")
READS = 2  # accesses beside the store that a nest describes

Size = int | np.ndarray
Knobs = Mapping[str, np.ndarray]  # knob -> the choice of every candidate [n]


class LoopKind:
    """Loop annotations as numbers, which are places in ``ANNOTATIONS``: plain ones, as arrays of them are made."""

    SERIAL, PARALLEL, UNROLL, VECTORIZE = range(4)


class NestLevel(NamedTuple):
    """A loop: ``extent`` iterations, each of which advances ``axis`` of the statement by ``step``."""

    axis: int
    extent: Size
    step: Size = 1
    annotation: Size = LoopKind.SERIAL


@dataclass(frozen=True)
class CandidateNests:
    """The loops of n candidates: arrays [levels, n] of float64, [accesses, levels, n] where accesses differ.

    ``buffers``: the stored one, then those of at most two loads. ``elements[x, k]``: distinct elements of buffer x that
    the loops from level k inwards touch; one level more than there are, for the statement alone. ``stride``: elements
    between the positions of two iterations, 0 for loops of one. ``reduction`` [levels]: whether a level reduces.
    ``points``: iterations of the definition, of which padding makes more. ``registers``: the tiles of sums that
    a matrix unit can hold; 0 where sums are vectors, in the registers that the target has.
    """

    axes: tuple[int, ...]
    extent: np.ndarray
    annotation: np.ndarray
    reduction: np.ndarray
    buffers: tuple[Buffer, ...]
    elements: np.ndarray
    stride: np.ndarray
    points: int
    registers: int = 0


@dataclass(frozen=True)
class Arrangement:
    """Where a buffer's elements lie: physical parts from the outermost, each (dimension, block; 0: its outer part).

    Like :class:`burnish.loops.layout.Layout`, with blocks and extents that differ between candidates. ``held``: of some
    dimensions, the elements that are there at a time; those that follow are where the first ones were.
    """

    shape: tuple[Size, ...]
    parts: tuple[tuple[int, Size], ...]
    held: tuple[tuple[int, Size], ...] = ()

    @staticmethod
    def of(layout: Layout, shape: tuple[Size, ...]) -> Arrangement:
        """The arrangement of a tensor of ``shape`` in a layout that all candidates share."""
        return Arrangement(shape, tuple((p.dim, p.block) for p in layout.parts))

    def strides(self) -> list[list[tuple[Size, Size]]]:
        """Strides of each dimension: (elements that a step of a part spans, its distance), innermost part first."""
        spans: list[Size] = [1] * len(self.shape)
        found: list[list[tuple[Size, Size]]] = [[] for _ in self.shape]
        distance: Size = 1
        for dim, block in reversed(self.parts):
            span = spans[dim]
            found[dim].append((span, distance))
            outer = isinstance(block, int) and block == 0
            extent = -(-self.shape[dim] // span) if outer else block
            spans[dim] = span * extent
            distance = distance * extent
        for dim, size in self.held:
            found[dim].append((size, 0))
        return found


@dataclass(frozen=True)
class IndexTerm:
    """``coefficient * (linear // divisor % modulus)``, ``linear`` having a coefficient for every axis; modulus 0: none.

    ``known`` is false for what has another form, such as an index that is loaded: it may be anything.
    """

    coefficient: int
    linear: tuple[int, ...]
    divisor: int = 1
    modulus: int = 0
    known: bool = True


@dataclass(frozen=True)
class NestAccess:
    """``indices``: for every dimension of the buffer its terms. ``layout``: where the task keeps the elements."""

    buffer: Buffer
    indices: tuple[tuple[IndexTerm, ...], ...]
    layout: Layout


@dataclass(frozen=True)
class Statement:
    """The innermost statement: extents of its axes, the first ``spatial`` of which index what is stored."""

    extents: tuple[int, ...]
    spatial: int
    accesses: tuple[NestAccess, ...]

    def nest(
        self, levels: Sequence[NestLevel], count: int, arrangements: Mapping[str, Arrangement] | None = None
    ) -> CandidateNests:
        """The nest of ``count`` candidates; ``arrangements``: of buffers that do not lie as the task says."""
        places = {**self._places, **{name: a.strides() for name, a in (arrangements or {}).items()}}
        parts = [part for a in self.accesses for dim in places[a.buffer.name] for part in dim]
        first_part = _starts([len(dim) for a in self.accesses for dim in places[a.buffer.name]])
        axes = tuple(level.axis for level in levels)
        extent, step, annotation, span, distance = _stacked(
            [level.extent for level in levels], [level.step for level in levels],
            [level.annotation for level in levels], [span for span, _ in parts], [distance for _, distance in parts],
            count=count,
        )  # fmt: skip
        elements = np.ones((len(self.accesses), len(levels) + 1, count))
        stride = np.zeros((len(self.accesses), len(levels), count))
        dims, *tables = self._tables
        scratch = np.empty((2, len(self.extents), count)), np.empty((len(dims), count)), np.empty((4, count))
        _touch(
            extent, step, np.array(axes), np.array(self.extents), dims, tuple(tables), (first_part, span, distance),
            elements, stride, scratch,
        )  # fmt: skip
        reduction = np.array([axis >= self.spatial for axis in axes])
        buffers = tuple(a.buffer for a in self.accesses)
        return CandidateNests(axes, extent, annotation, reduction, buffers, elements, stride, prod(self.extents))

    @cached_property
    def _places(self) -> dict[str, list[list[tuple[Size, Size]]]]:
        return {a.buffer.name: Arrangement.of(a.layout, a.buffer.shape).strides() for a in self.accesses}

    @cached_property
    def _tables(self) -> tuple[np.ndarray, ...]:
        """Flat tables of all accesses: dimensions, terms, coefficients of these; each with where its owner's begin.

        Axes are listed for every term, dimension, and access; dimensions for every access and axis.
        """
        dims = [(terms, extent) for a in self.accesses for terms, extent in zip(a.indices, a.buffer.shape, strict=True)]
        first_dim = _starts([len(a.indices) for a in self.accesses])
        terms = [t for own, _ in dims for t in own]
        numbers = [(t.coefficient, t.divisor, t.modulus, t.known) for t in terms]
        forms = [[(axis, c) for axis, c in enumerate(t.linear) if c] for t in terms]
        axes = [sorted({axis for t in own for axis, c in enumerate(t.linear) if c}) for own, _ in dims]
        together = [sorted(set().union(*axes[a:b])) for a, b in pairwise(first_dim)]
        moved = [
            [d for d in range(a, b) if axis in axes[d]]
            for a, b in pairwise(first_dim)
            for axis in range(len(self.extents))
        ]
        return (
            np.array([extent for _, extent in dims], np.int64), first_dim,
            np.array(numbers, np.int64).reshape(-1, 4), _starts([len(own) for own, _ in dims]),
            np.array([pair for form in forms for pair in form], np.int64).reshape(-1, 2),
            _starts([len(form) for form in forms]),
            *_lists(axes), *_lists(together), *_lists(moved),
        )  # fmt: skip


def _starts(lengths: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *lengths])


def _lists(values: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists end to end, and where each begins."""
    return np.array([v for own in values for v in own], np.int64), _starts([len(own) for own in values])


def _stacked(*lists: Sequence[Size], count: int) -> list[np.ndarray]:
    """Each list as a table [values, count] of float64: a value for every candidate, or one that all share."""
    rows = np.empty((sum(map(len, lists)), count))
    for row, value in enumerate(chain.from_iterable(lists)):
        rows[row] = value
    return [rows[first:end] for first, end in pairwise(_starts([len(own) for own in lists]).tolist())]


# --- what a level touches ---------------------------------------------------------------------------------------------

_kernel = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)


@_kernel
def _touch(extent, step, axes, extents, dim_extents, tables, strides, elements, stride, rooms):  # type: ignore[no-untyped-def]
    """Fills ``elements`` and ``stride``: level by level outwards, how far each axis has moved, and each index with it.

    An index takes no more values than lie between its first and last, and than its axes have together. Loops over
    candidates are innermost, so that they become vectors. ``tables``: those of :class:`Statement` behind the extents.
    ``strides``: of dimensions in memory, (where those of each begin, spans, distances). ``rooms``: work space: of every
    axis its last value inside, from 0, and how many it takes; values of each index; four rows.
    """
    first_dim, terms, first_term, form, first_form, dim_axes, first_dim_axis = tables[:7]
    all_axes, first_axis, moved, first_moved = tables[7:]
    first_part, span, distance = strides
    moves, sizes, scratch = rooms
    levels, count = extent.shape
    reach, values = moves[0], moves[1]
    # One access after another, each from the innermost level outwards: a level multiplies what those inside touch. The
    # closed forms are bounds, not counts: counting would take as long as the nest.
    for x in range(len(first_dim) - 1):
        for a in range(len(extents)):
            for i in range(count):
                reach[a, i] = 0.0
                values[a, i] = 1.0
        for d in range(first_dim[x], first_dim[x + 1]):
            for i in range(count):
                sizes[d, i] = 1.0
        for k in range(levels - 1, -1, -1):
            a = axes[k]
            begin, end = first_moved[x * len(extents) + a], first_moved[x * len(extents) + a + 1]
            # The level's axis moves no index of this access: the same elements are touched again, which is its reuse.
            if begin == end:
                for i in range(count):
                    elements[x, k, i] = elements[x, k + 1, i]
                continue
            for i in range(count):
                reach[a, i] = min(reach[a, i] + step[k, i] * (extent[k, i] - 1.0), extents[a] - 1.0)
                values[a, i] = min(values[a, i] * extent[k, i], float(extents[a]))
            for m in range(begin, end):
                d = moved[m]
                spread, together = scratch[2], scratch[3]
                first, last = first_term[d], first_term[d + 1]
                _move(terms, first, last, form, first_form, reach, a, step[k], scratch, dim_extents[d])
                _product(values, dim_axes, first_dim_axis[d], first_dim_axis[d + 1], together)
                for i in range(count):
                    sizes[d, i] = min(spread[i] + 1.0, together[i], float(dim_extents[d]))
                _carry(stride[x, k], extent[k], scratch[1], span, distance, first_part[d], first_part[d + 1])
            # Two bounds, of which the smaller counts: combinations of the axes' values, and of the dimensions' indices.
            _product(values, all_axes, first_axis[x], first_axis[x + 1], elements[x, k])
            together = scratch[3]
            for i in range(count):
                together[i] = 1.0
            for d in range(first_dim[x], first_dim[x + 1]):
                for i in range(count):
                    together[i] *= sizes[d, i]
            for i in range(count):
                elements[x, k, i] = min(elements[x, k, i], together[i])


@_kernel
def _move(terms, begin, end, form, first_form, reach, axis, step, scratch, unknown):  # type: ignore[no-untyped-def]
    """An index inside, its last minus first value (``scratch[2]``), and how far it moves with ``axis`` (``[1]``)."""
    wide, advance, spread, far = scratch[0], scratch[1], scratch[2], scratch[3]
    count = len(wide)
    for i in range(count):
        spread[i] = 0.0
        advance[i] = 0.0
    for t in range(begin, end):
        coefficient, divisor, modulus = float(terms[t, 0]), float(terms[t, 1]), float(terms[t, 2])
        for i in range(count):
            wide[i] = 0.0
            far[i] = 0.0
        for f in range(first_form[t], first_form[t + 1]):
            a, c = form[f, 0], float(form[f, 1])
            own = c if a == axis else 0.0
            for i in range(count):
                wide[i] += abs(c) * reach[a, i]
                far[i] += own * step[i]
        if divisor != 1.0:
            for i in range(count):
                wide[i] = np.floor(wide[i] / divisor)
                far[i] = np.floor(far[i] / divisor)
        if modulus:
            for i in range(count):
                wide[i] = min(wide[i], modulus - 1.0)
                far[i] -= np.floor(far[i] / modulus) * modulus
        if terms[t, 3]:
            for i in range(count):
                spread[i] += abs(coefficient) * wide[i]
                advance[i] += coefficient * far[i]
        else:
            for i in range(count):
                spread[i] += unknown


@_kernel
def _product(values, axes, begin, end, total):  # type: ignore[no-untyped-def]
    for i in range(len(total)):
        total[i] = 1.0
    for place in range(begin, end):
        a = axes[place]
        for i in range(len(total)):
            total[i] *= values[a, i]


@_kernel
def _carry(stride, extent, advance, span, distance, begin, end):  # type: ignore[no-untyped-def]
    """Adds the elements between positions ``advance`` apart in a dimension: the part that spans no more carries it."""
    for i in range(len(advance)):
        far = abs(advance[i])
        carried = far * distance[begin, i]
        for p in range(begin + 1, end):
            carried = far / span[p, i] * distance[p, i] if far >= span[p, i] else carried
        stride[i] += carried if extent[i] > 1.0 else 0.0


# --- from a definition to its statement -------------------------------------------------------------------------------


def main_stage(task: KernelTask) -> Tensor:
    """The stage a nest is about: the contraction, else what has the most iterations, a reduction rather than a map."""
    return task.anchor() or max(task.stages(), key=lambda t: (prod(_extents(t)), isinstance(t.body, Reduce)))


def _extents(t: Tensor) -> tuple[int, ...]:
    return (*t.shape, *(hinted(a.extent) for a in t.body.axes)) if isinstance(t.body, Reduce) else t.shape


def statement(task: KernelTask, stage: Tensor, kept: Collection[str] = ()) -> Statement:
    """The statement of ``stage`` with its store and its two largest loads, constants last.

    Element-wise producers are read through, as schedules inline them, but for those in ``kept``.
    """
    assert stage.body is not None
    reduced = stage.body.axes if isinstance(stage.body, Reduce) else ()
    names = (*(v.name for v in stage.axes), *(a.var.name for a in reduced))
    ranges = dict(zip(names, _extents(stage), strict=True))
    body = stage.body.body if isinstance(stage.body, Reduce) else stage.body
    tensors = {t.name: t for t in task.stages() if not isinstance(t.body, Reduce) and t.name not in kept}
    found = {x.buffer.name: x for x in reversed(_reads(body, tensors))}
    largest = sorted(found.values(), key=lambda x: -x.buffer.size)[:READS]
    reads = sorted(largest, key=lambda x: x.buffer.name in task.constants)
    accesses = [Load(stage.buffer, tuple(stage.axes)), *reads]
    return Statement(_extents(stage), len(stage.axes), tuple(_access(x, task, ranges) for x in accesses))


def _reads(e: Expr, inlined: Mapping[str, Tensor]) -> list[Load]:
    """The loads of ``e``, those of inlined stages replaced by what they load."""
    found: list[Load] = []
    for load in loads(e):
        t = inlined.get(load.buffer.name)
        if t is None or t.body is None:
            found.append(load)
        else:
            found += _reads(substitute(t.body, {v.name: i for v, i in zip(t.axes, load.indices, strict=True)}), inlined)
    return found


def _access(load: Load, task: KernelTask, ranges: Mapping[str, int]) -> NestAccess:
    indices = [to_linear(simplify(index, ranges))[0] for index in load.indices]
    terms = tuple(tuple(_term(atom, c, list(ranges)) for atom, c in index.items()) for index in indices)
    # What is stored in registers or scratch ends up in an output of the same shape, if there is one.
    outputs = [t.name for t in task.outputs if t.shape == load.buffer.shape]
    name = load.buffer.name if load.buffer.name not in {t.name for t in task.stages()} else next(iter(outputs), "")
    return NestAccess(load.buffer, terms, task.layouts.get(name) or row_major(len(load.buffer.shape)))


def _term(atom: Expr, coefficient: int, axes: Sequence[str]) -> IndexTerm:
    inside, divisor, modulus = atom, 1, 0
    match atom:
        case Binary("%", Binary("//", a, Const(c, _)), Const(m, _)):
            inside, divisor, modulus = a, int(c), int(m)
        case Binary("//", a, Const(c, _)):
            inside, divisor = a, int(c)
        case Binary("%", a, Const(m, _)):
            inside, modulus = a, int(m)
    form = to_linear(inside)[0]
    if all(isinstance(v, Var) for v in form):
        by_name = {v.name: c for v, c in form.items() if isinstance(v, Var)}
        return IndexTerm(coefficient, tuple(by_name.get(name, 0) for name in axes), divisor, modulus)
    used = free_vars(atom)
    return IndexTerm(coefficient, tuple(int(name in used) for name in axes), known=False)

"""Copies of boxes of tensors as one instruction (TMA): a nest that copies a tile to shared memory, zero beyond edges.

Source: PTX ISA, "Tensors" (tiled mode: bounding boxes, out-of-boundary access, 128-byte swizzling).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from burnish.errors import ScheduleError
from burnish.loops.boxes import extents_text
from burnish.loops.expr import ITEM_BYTES, SWIZZLED, Binary, Const, Expr, Load, Select
from burnish.loops.linear import to_linear
from burnish.loops.program import COPY_TENSOR, For, Intrinsic, LoopProgram, Stmt, Store
from burnish.loops.simplify import simplify
from burnish.loops.sizes import is_size
from burnish.loops.traverse import conjuncts, substitute
from burnish.schedule.nest import find_loop, replace_site

ROW_BYTES = 128  # of a box, and of a row of swizzled memory
MOST_DIMENSIONS = 5
MOST_EXTENT = 256  # of a box in each dimension
MOST_POSITIONS = 1 << 31  # of a tensor in each dimension, which positions of 32 bits reach
STRIDE_BYTES = 16  # of which distances between rows of a tensor are multiples

Ranges = dict[str, int]
View = list[tuple[Expr, int]]  # index and extent of each dimension


def copy_tensor(program: LoopProgram, loop: str) -> LoopProgram:
    """Makes the nest at ``loop`` one copy of a box of a tensor that goes on while others do (``cp.async.bulk.tensor``).

    Its elements may be read after ``wait_arrivals`` (see ``pipeline``). The nest copies rows of 128 bytes, as they are,
    and writes zeros where an index is beyond the tensor, and nowhere else::

    for c.i in 4:
      for c.j in 32:
        c[c.i, c.j] = a[c.i, c.j]

    copy_tensor(c[0, 0], a[0, 0], box=4x32)
    """
    site = find_loop(program, loop, "copy_tensor")
    nest: Stmt = site.loop
    while isinstance(nest, For):
        nest = nest.body
    if not isinstance(nest, Store) or nest.buffer.scope != SWIZZLED:
        raise ScheduleError(f"copy_tensor: loop '{loop}' is no nest of one store to a buffer of scope '{SWIZZLED}'")
    return replace_site(program, site, tensor_box(site.loop, dict(site.ranges)).intrinsic())


@dataclass(frozen=True)
class TensorBox:
    """The box of a tensor that a nest copies: ``target`` and ``source`` where it begins, its extents by dimension.

    The buffer of ``source`` is a view of the tensor: some of its dimensions as one, or one as two.
    """

    target: Load
    source: Load
    box: tuple[int, ...]

    def intrinsic(self) -> Intrinsic:
        """The copy."""
        return Intrinsic(COPY_TENSOR, (self.target, self.source), (("box", extents_text(self.box)),))


def tensor_box(nest: For, ranges: Ranges) -> TensorBox:
    """The box that a nest copies; ``ranges``: of loops around it. Raises ScheduleError for what is no such copy."""
    loops, body = _loops(nest)
    value: Expr = body.value
    conds: tuple[Expr, ...] = ()
    if isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == 0:
        conds, value = tuple(conjuncts(value.cond)), value.a
    if body.reduce or not isinstance(value, Load) or value.dtype != body.buffer.dtype:
        raise _refused(nest, f"'{body}' computes or converts")
    if any(is_size(n) or not isinstance(n, int) for n in value.buffer.shape):
        raise _refused(nest, f"buffer '{value.buffer.name}' has an open dimension")
    known = {**ranges, **loops}
    view = _view(nest, value, conds, TensorRanges(loops, known))
    box, steps = list[int](), dict[str, int]()
    for d, (index, _) in enumerate(view):
        moving = {atom: c for atom, c in to_linear(index)[0].items() if atom.variables & {*loops}}
        if len(moving) > 1 or any(str(atom) not in loops or c != 1 for atom, c in moving.items()):
            raise _refused(nest, f"index {index} of '{value.buffer.name}' is no position plus one loop")
        name = next((str(atom) for atom in moving), "")
        if name in steps:
            raise _refused(nest, f"loop '{name}' moves along two dimensions")
        if name:
            steps[name] = d
        box.append(loops.get(name, 1))
    again = next((name for name, n in loops.items() if n > 1 and name not in steps), None)
    if again is not None:
        raise _refused(nest, f"loop '{again}' copies the same elements again")
    _check(nest, body, [n for _, n in view], box, steps, known)
    first: dict[str, Expr] = {name: Const(0) for name in loops}
    target, source = (
        tuple(simplify(substitute(i, first), ranges) for i in indices)
        for indices in (body.indices, [index for index, _ in view])
    )
    shown = value.buffer.with_(shape=tuple(n for _, n in view))
    return TensorBox(Load(body.buffer, target), Load(shown, source), tuple(box))


def _loops(nest: For) -> tuple[Ranges, Store]:
    """The loops of a nest of one store, and that."""
    loops: Ranges = {}
    body: Stmt = nest
    while isinstance(body, For):
        if is_size(body.extent) or not isinstance(body.extent, int):
            raise _refused(nest, f"loop '{body.var}' has an open extent")
        loops[body.var] = body.extent
        body = body.body
    assert isinstance(body, Store)
    return loops, body


def _refused(nest: For, why: str) -> ScheduleError:
    return ScheduleError(f"copy_tensor: loop '{nest.var}' does not copy a box of a tensor: {why}")


@dataclass(frozen=True)
class TensorRanges:
    """Ranges of the ``loops`` of a nest, and of ``every`` loop that is known."""

    loops: Ranges
    every: Ranges

    def moves(self, index: Expr) -> bool:
        """Whether an index is another one in other iterations of the nest."""
        return not index.variables.isdisjoint(self.loops)


def _view(nest: For, access: Load, conds: Sequence[Expr], ranges: TensorRanges) -> View:
    """The dimensions of a tensor as its map has them: as one where their indices are quotient and remainder of one
    position, as two where a condition is about the remainder alone, and as one where the nest moves along neither.
    """
    view = _merged(access, ranges)
    bounded = set[int]()
    for cond in conds:
        at = _edge_of(cond, view, ranges)
        divided = None if at is not None else _divided(cond, view, ranges)
        if divided is not None:
            at, parts = divided
            view[at : at + 1] = parts
            bounded = {d + (d > at) for d in bounded}
            at += 1
        if at is None:
            raise _refused(nest, f"'{cond}' is not where an index is in '{access.buffer.name}'")
        bounded.add(at)
    joined: View = []
    for d, (index, extent) in enumerate(view):
        if d and not bounded & {d - 1, d} and not ranges.moves(index) and not ranges.moves(joined[-1][0]):
            before, outer = joined[-1]
            joined[-1] = simplify(before * extent + index, ranges.every), outer * extent
        else:
            joined.append((index, extent))
    return joined


def _merged(access: Load, ranges: TensorRanges) -> View:
    """The dimensions of a buffer, as one where their indices are quotient and remainder of one position."""
    view = [(simplify(i, ranges.every), n) for i, n in zip(access.indices, access.buffer.shape, strict=True)]
    d = 0
    while d + 1 < len(view):
        (index, extent), (inner, n) = view[d : d + 2]
        if _is_linear(index, ranges) and _is_linear(inner, ranges):
            d += 1
            continue
        view[d : d + 2] = [(simplify(index * n + inner, ranges.every), extent * n)]
        d = max(d - 1, 0)
    return view


def _is_linear(index: Expr, ranges: TensorRanges) -> bool:
    return all(str(atom) in ranges.loops for atom in to_linear(index)[0] if atom.variables & {*ranges.loops})


def _divided(cond: Expr, view: View, ranges: TensorRanges) -> tuple[int, View] | None:
    """A dimension of which a condition bounds a part of the index, as two: the parts' number, and the place in one,
    where each box begins.
    """
    if not isinstance(cond, Binary) or cond.op != "<":
        return None
    bounded, const = _form(cond.a - cond.b, ranges.every)
    for d, (index, extent) in enumerate(view):
        terms, begin = to_linear(index)
        inner = {atom: c for atom, c in terms.items() if bounded.get(str(atom)) == c}
        outer, size = {atom: c for atom, c in terms.items() if atom not in inner}, begin - const
        if not outer or len(inner) != len(bounded) or size < 1 or begin < 0 or extent % size:
            continue
        still = {str(atom): c for atom, c in inner.items() if str(atom) not in ranges.loops}
        known = all(c > 0 for c in inner.values()) and ranges.every.keys() >= still.keys()
        if any(c % size for c in outer.values()) or not known:
            continue
        if begin + sum(c * (ranges.every[name] - 1) for name, c in still.items()) < size:
            number = simplify(_sum({atom: c // size for atom, c in outer.items()}), ranges.every)
            return d, [(number, extent // size), (_sum(inner, begin), size)]
    return None


def _sum(terms: Mapping[Expr, int], const: int = 0) -> Expr:
    total: Expr = Const(const)
    for atom, c in terms.items():
        total = total + atom * c
    return simplify(total)


def _check(nest: For, s: Store, view: Sequence[int], box: Sequence[int], steps: Ranges, known: Ranges) -> None:
    """Raises ScheduleError for a box that the hardware does not copy, or not to where the nest writes."""
    size = ITEM_BYTES[s.buffer.dtype]
    if len(view) > MOST_DIMENSIONS or max(view) > MOST_POSITIONS:
        shape = extents_text(view)
        raise _refused(nest, f"a tensor of {shape}; allowed: {MOST_DIMENSIONS} dimensions of {MOST_POSITIONS}")
    if box[-1] * size != ROW_BYTES or max(box) > MOST_EXTENT:
        shape = extents_text(box)
        raise _refused(nest, f"a box of {shape}; allowed: rows of {ROW_BYTES} bytes, {MOST_EXTENT} along a dimension")
    if len(view) > 1 and view[-1] * size % STRIDE_BYTES:
        raise _refused(nest, f"rows of {view[-1]} {s.buffer.dtype}; allowed: multiples of {STRIDE_BYTES} bytes")
    flat: Expr = Const(0)
    for index, extent in zip(s.indices, s.buffer.shape, strict=True):
        flat = flat * extent + index
    found = _form(flat, known)[0]
    inner = 1
    for name, d in sorted(steps.items(), key=lambda item: -item[1]):
        if box[d] > 1 and found.get(name) != inner:
            raise _refused(nest, f"'{s.buffer.name}' does not get its elements in their order")
        inner *= box[d]


def _edge_of(cond: Expr, view: View, ranges: TensorRanges) -> int | None:
    """The dimension of which a condition says that its index is below the extent, or not negative; None: of none."""
    if not isinstance(cond, Binary) or cond.op not in ("<", ">="):
        return None
    found = _form(cond.a - cond.b, ranges.every)
    for d, (index, n) in enumerate(view):
        if found in _in_units(_form(index - (n if cond.op == "<" else 0), ranges.every), ranges.every):
            return d
    return None


Form = tuple[Ranges, int]


def _in_units(form: Form, ranges: Ranges) -> Iterator[Form]:
    """Forms that are negative exactly where one is: itself, and of what is inside of a unit, only the unit's number."""
    terms, const = form
    for unit in {1, *map(abs, terms.values())}:
        inside = {name: c for name, c in terms.items() if c % unit}
        reach = sum(c * (ranges.get(name, unit + 1) - 1) for name, c in inside.items())
        if const % unit == 0 and reach < unit and all(c > 0 for c in inside.values()):
            yield {name: c // unit for name, c in terms.items() if name not in inside}, const // unit


def _form(e: Expr, ranges: Ranges) -> Form:
    terms, const = to_linear(simplify(e, ranges))
    return {str(atom): c for atom, c in terms.items() if c}, const

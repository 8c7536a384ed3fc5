"""Copies of boxes of tensors as one instruction (TMA): a nest that copies a tile to shared memory, zero beyond edges.

Source: PTX ISA, "Tensors" (tiled mode: bounding boxes, out-of-boundary access, 128-byte swizzling).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from burnish.errors import ScheduleError
from burnish.loops.boxes import extents_text, view_indices
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
STRIDE_BYTES = 16  # of which distances between rows of a tensor are multiples

Ranges = dict[str, int]


def copy_tensor(program: LoopProgram, loop: str) -> LoopProgram:
    """Makes the nest at ``loop`` one copy of a box of a tensor that goes on while others do (``cp.async.bulk.tensor``).

    Its elements may be read after ``wait_arrivals`` (see ``pipeline``). The nest copies rows of 128 bytes, as they are,
    and writes zeros where an index is beyond the tensor, and nowhere else::

    for c.i in 4:
      for c.j in 32:
        c[c.i, c.j] = a[c.i, c.j]

    copy_tensor(c[0, 0], a[0, 0], view=4x32, box=4x32)
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

    ``view``: the tensor's extents, where dimensions next to each other may be one.
    """

    target: Load
    source: Load
    view: tuple[int, ...]
    box: tuple[int, ...]

    def intrinsic(self) -> Intrinsic:
        """The copy."""
        attrs = (("view", extents_text(self.view)), ("box", extents_text(self.box)))
        return Intrinsic(COPY_TENSOR, (self.target, self.source), attrs)


def tensor_box(nest: For, ranges: Ranges) -> TensorBox:
    """The box that a nest copies; ``ranges``: of loops around it. Raises ScheduleError for what is no such copy."""
    loops: Ranges = {}
    body: Stmt = nest
    while isinstance(body, For):
        if is_size(body.extent) or not isinstance(body.extent, int):
            raise _refused(nest, f"loop '{body.var}' has an open extent")
        loops[body.var] = body.extent
        body = body.body
    assert isinstance(body, Store)
    value: Expr = body.value
    cond: tuple[Expr, ...] = ()
    if isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == 0:
        cond, value = tuple(conjuncts(value.cond)), value.a
    if body.reduce or not isinstance(value, Load) or value.dtype != body.buffer.dtype:
        raise _refused(nest, f"'{body}' computes or converts")
    if any(is_size(n) or not isinstance(n, int) for n in value.buffer.shape):
        raise _refused(nest, f"buffer '{value.buffer.name}' has an open dimension")
    known = {**ranges, **loops}
    source, view = value, _merged(value, loops, known)
    box, steps = list[int](), dict[str, int]()
    indices = [simplify(i, known) for i in view_indices(source, view)]
    for d, index in enumerate(indices):
        moving = {atom: c for atom, c in to_linear(index)[0].items() if atom.variables & {*loops}}
        if len(moving) > 1 or any(str(atom) not in loops or c != 1 for atom, c in moving.items()):
            raise _refused(nest, f"index {index} of '{source.buffer.name}' is no position plus one loop")
        name = next((str(atom) for atom in moving), "")
        if name in steps:
            raise _refused(nest, f"loop '{name}' moves along two dimensions")
        if name:
            steps[name] = d
        box.append(loops.get(name, 1))
    _check(nest, body, view, box, steps, known)
    for part in cond:
        if not _is_edge(part, indices, view, known):
            raise _refused(nest, f"'{part}' is not where an index is in '{source.buffer.name}'")
    first: dict[str, Expr] = {name: Const(0) for name in loops}
    begin = [
        Load(access.buffer, tuple(simplify(substitute(i, first), ranges) for i in access.indices))
        for access in (Load(body.buffer, body.indices), source)
    ]
    return TensorBox(begin[0], begin[1], view, tuple(box))


def _refused(nest: For, why: str) -> ScheduleError:
    return ScheduleError(f"copy_tensor: loop '{nest.var}' does not copy a box of a tensor: {why}")


def _merged(access: Load, loops: Ranges, ranges: Ranges) -> tuple[int, ...]:
    """The extents of a buffer, dimensions as one whose indices are quotient and remainder of one position."""
    shape = list(access.buffer.shape)
    index = [simplify(i, ranges) for i in access.indices]
    d = 0
    while d + 1 < len(index):
        if _is_linear(index[d], loops) and _is_linear(index[d + 1], loops):
            d += 1
            continue
        index[d : d + 2] = [simplify(index[d] * shape[d + 1] + index[d + 1], ranges)]
        shape[d : d + 2] = [shape[d] * shape[d + 1]]
        d = max(d - 1, 0)
    return tuple(shape)


def _is_linear(index: Expr, loops: Ranges) -> bool:
    return all(str(atom) in loops for atom in to_linear(index)[0] if atom.variables & {*loops})


def _check(nest: For, s: Store, view: Sequence[int], box: Sequence[int], steps: Ranges, known: Ranges) -> None:
    """Raises ScheduleError for a box that the hardware does not copy, or not to where the nest writes."""
    size = ITEM_BYTES[s.buffer.dtype]
    if box[-1] * size != ROW_BYTES or len(view) > MOST_DIMENSIONS or max(box) > MOST_EXTENT:
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


def _is_edge(cond: Expr, indices: Sequence[Expr], view: Sequence[int], ranges: Ranges) -> bool:
    """Whether a condition says that an index is below the extent of its dimension, or not negative."""
    if not isinstance(cond, Binary) or cond.op not in ("<", ">="):
        return False
    found = _form(cond.a - cond.b, ranges)
    return any(
        found in _in_units(_form(index - (n if cond.op == "<" else 0), ranges), ranges)
        for index, n in zip(indices, view, strict=True)
    )


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

"""A part of any operator: a box of one output, or of the sum that it is, from the boxes of its inputs that it reads.

Everything follows from the operator's definition: what a part reads of its inputs (a convolution's halo among it) by
interval analysis of its index expressions, and what it computes by shifting these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from burnish.errors import ModelError, UnsupportedOperator
from burnish.loops.expr import Axis, Const, Expr, Load, Reduce, Select, wrap
from burnish.loops.simplify import simplify
from burnish.loops.tensor import Tensor, placeholder, stages
from burnish.loops.traverse import index_only, loads, substitute, transform
from burnish.ops.operator import (
    Nested,
    Operator,
    Refused,
    TensorType,
    differentiated,
    named_operator,
    require,
    require_input,
)
from burnish.ops.reads import Find, boxes_between, defined, stage_boxes

Box = tuple[tuple[int, int], ...]
"""For every dimension the first index, and the one behind the last."""


@dataclass(frozen=True)
class Reads:
    """Input regions of a part: of every input a box, None of those that it does not read.

    ``plain``: the operator itself, with the same attributes, computes the part from these boxes.
    """

    boxes: tuple[Box | None, ...]
    plain: bool


@dataclass(frozen=True)
class SumAxes:
    """The axes of the sum that an output is: extents, in the order of its definition; none if it is no sum."""

    extents: tuple[int, ...]


def whole(shape: Sequence[int]) -> Box:
    """The box of all elements."""
    return tuple((0, n) for n in shape)


def extents_of(box: Box) -> tuple[int, ...]:
    """The shape of a box."""
    return tuple(stop - start for start, stop in box)


@lru_cache(maxsize=1 << 14)
def part_reads(
    find: Find, name: str, attributes: Nested, types: tuple[TensorType, ...], output: int, box: Box, reduced: Box
) -> Reads:
    """Input regions of the part ``box`` of an output of operator ``name``; of the sum only ``reduced``, unless that is
    ().
    """
    tensor = defined(find, name, attributes, types)[output]
    boxes = _boxes(tensor, box, reduced)
    found = tuple(boxes.get(f"x{i}") for i in range(len(types)))
    shapes = [(extents_of(own) if own else shape, dtype) for own, (shape, dtype) in zip(found, types, strict=True)]
    given = [placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(shapes)]
    own = _restricted(tensor, box, reduced, boxes, {t.name: t for t in given})
    return Reads(found, None not in found and _is_plain(find(name), attributes, given, output, own))


def is_part(
    find: Find,
    name: str,
    attributes: tuple[Nested, Nested],
    types: tuple[TensorType, ...],
    output: int,
    parts: tuple[Box, Box],
    given: Sequence[Box],
) -> bool:
    """Whether the second of two parts of an output is that output of the operator itself, applied to boxes ``given`` of
    its inputs. ``attributes``: those of the whole, and those with which it is applied to the boxes.

    What both parts read alike of an inner stage is all of it in the definition that is compared.
    """
    tensor = defined(find, name, attributes[0], types)[output]
    first, boxes = (_boxes(tensor, box, ()) for box in parts)
    for t in stages([tensor]):
        if t.name in boxes and t is not tensor:
            both = zip(first[t.name], boxes[t.name], t.shape, strict=True)
            boxes[t.name] = tuple((0, extent) if a == b else b for a, b, extent in both)
    boxes |= {f"x{i}": own for i, own in enumerate(given)}
    box = parts[1]
    inputs = [placeholder(extents_of(own), t[1], f"x{i}") for i, (own, t) in enumerate(zip(given, types, strict=True))]
    own = _restricted(tensor, box, (), boxes, {t.name: t for t in inputs}, None)
    try:
        outputs = find(name).define("y", inputs, dict(attributes[1]))
    except (ModelError, UnsupportedOperator):
        return False
    if len(outputs) <= output:
        return False
    plain, shifted = stages([outputs[output]]), stages([own])
    return len(plain) == len(shifted) and all(
        a.buffer is b.buffer and a.axes == b.axes and _canonical(a) is _canonical(b)
        for a, b in zip(plain, shifted, strict=True)
    )


def _canonical(t: Tensor) -> Expr | None:
    """The definition of a stage in canonical form."""
    body = t.body
    if body is None:
        return None
    ranges = {v.name: extent for v, extent in zip(t.axes, t.shape, strict=True)}
    if not isinstance(body, Reduce):
        return simplify(body, ranges)
    return Reduce(body.kind, simplify(body.body, ranges | {a.var.name: a.extent for a in body.axes}), body.axes)


def sum_of(output: Tensor) -> SumAxes:
    """The sum that an output is."""
    body = output.body
    return SumAxes(tuple(a.extent for a in body.axes) if isinstance(body, Reduce) and body.kind == "sum" else ())


def part_of(find: Find) -> Operator:
    """The operator ``part`` over the operators that ``find`` knows by name."""

    def part(
        name: str,
        *given: Tensor,
        operator: str,
        attributes: Nested,
        types: Nested,
        output: int,
        box: Nested,
        reduced: Nested = (),
    ) -> Tensor:
        """Elements ``box`` (a first index and one behind the last for every dimension) of output number ``output`` of
        ``operator`` with ``attributes``, applied to ``types``; with ``reduced``, of its sum only these terms.

        ``given`` are the boxes of the inputs that it reads, in the order of the inputs.
        """
        tensor = defined(find, operator, attributes, types)[output]
        boxes = _boxes(tensor, box, reduced)
        read = [i for i in range(len(types)) if f"x{i}" in boxes]
        require(len(given) == len(read), "inputs", f"{len(given)} tensors", f"{len(read)}, those that are read")
        for t, i in zip(given, read, strict=True):
            require_input(t, str(i), shape=extents_of(boxes[f"x{i}"]), dtype=(types[i][1],))
        by = {f"x{i}": t for t, i in zip(given, read, strict=True)}
        return _restricted(tensor, box, reduced, boxes, by, name)

    made = differentiated(Refused("a part of an operator, which is made after differentiation"))
    return made(named_operator("output_part", part))


def joined(a: Box, b: Box) -> Box:
    """The smallest box around two."""
    return tuple((min(p, r), max(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))


# --- what a part reads ------------------------------------------------------------------------------------------------


def _boxes(output: Tensor, box: Box, reduced: Box) -> dict[str, Box]:
    """By name, the box that is needed of every stage and placeholder."""
    low, high = (np.array([span[end] for span in box], np.int64).reshape(-1, 1) for end in (0, 1))
    terms = [(np.array([start]), np.array([stop])) for start, stop in reduced]
    found = stage_boxes(output, boxes_between(low, high), terms)
    return {n: tuple(zip(own.low[:, 0].tolist(), own.high[:, 0].tolist(), strict=True)) for n, own in found.items()}


def _shifted(t: Tensor, box: Box, reduced: Box) -> tuple[Expr, dict[str, int]]:
    """The body of a stage as its part has it, whose axes count from 0, and their extents."""
    body = t.body
    assert body is not None
    moved: dict[str, Expr] = {v.name: v + start for v, (start, _) in zip(t.axes, box, strict=True) if start}
    ranges = {v.name: stop - start for v, (start, stop) in zip(t.axes, box, strict=True)}
    if not isinstance(body, Reduce):
        return substitute(body, moved), ranges
    terms = reduced or tuple((0, a.extent) for a in body.axes)
    moved |= {a.var.name: a.var + start for a, (start, _) in zip(body.axes, terms, strict=True) if start}
    ranges |= {a.var.name: stop - start for a, (start, stop) in zip(body.axes, terms, strict=True)}
    axes = tuple(Axis(a.var, stop - start) for a, (start, stop) in zip(body.axes, terms, strict=True))
    return Reduce(body.kind, substitute(body.body, moved), axes), ranges


# --- what a part computes ---------------------------------------------------------------------------------------------


def _restricted(
    output: Tensor,
    box: Box,
    reduced: Box,
    boxes: Mapping[str, Box],
    given: Mapping[str, Tensor],
    name: str | None = "y",
) -> Tensor:
    """The stages that the part needs, each of its box; the last is called ``name``, inner ones begin with it; None: all
    keep their names.
    """
    made: dict[str, Tensor] = dict(given)
    for t in stages([output]):
        if t.body is None or t.name not in boxes:
            continue
        own = box if t is output else boxes[t.name]
        body, ranges = _shifted(t, own, reduced if t is output else ())
        inputs: dict[str, Tensor] = {}

        def read(e: Expr, ranges: Mapping[str, int] = ranges, inputs: dict[str, Tensor] = inputs) -> Expr:
            if isinstance(e, Load):
                source = made[e.buffer.name]
                inputs[source.name] = source
                starts = (start for start, _ in boxes[e.buffer.name])
                return source[tuple(_from(i, start, ranges) for i, start in zip(e.indices, starts, strict=True))]
            if isinstance(e, Select) and index_only(e.cond):
                known = simplify(e.cond, ranges)
                if isinstance(known, Const):
                    return e.a if known.value else e.b
            return e

        new = transform(body, read)
        read_now = {load.buffer.name for load in loads(new)}
        kept = tuple(source for source in inputs.values() if source.name in read_now)
        called = t.name if name is None else name if t is output else f"{name}{t.name[1:]}"
        buffer = t.buffer.with_(name=called, shape=extents_of(own))
        made[t.name] = Tensor(buffer, t.axes, new, kept)
    return made[output.name]


def _from(index: Expr, start: int, ranges: Mapping[str, int]) -> Expr:
    """An index that counts from ``start``."""
    return simplify(index - wrap(start), ranges) if start else index


def _is_plain(operator: Operator, attributes: Nested, given: Sequence[Tensor], output: int, own: Tensor) -> bool:
    """Whether an operator applied to boxes of its inputs has just the definition of the part."""
    try:
        outputs = operator.define("y", given, dict(attributes))
    except (ModelError, UnsupportedOperator):
        return False
    if len(outputs) != 1 or output:
        return False
    plain, parts = stages(outputs), stages([own])
    return len(plain) == len(parts) and all(
        a.buffer is b.buffer and a.body is b.body and a.axes == b.axes for a, b in zip(plain, parts, strict=True)
    )


def attributes_of(operator: Operator, attrs: Mapping[str, Any]) -> Nested:
    """An operator's attributes other than their defaults, as pairs."""
    complete = operator.complete(attrs)
    return tuple(sorted((key, value) for key, value in complete.items() if value != operator.attrs[key]))

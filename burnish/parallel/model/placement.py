"""Tensor placement: boxes of elements on devices, each the value itself or one term of the sum that it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from burnish.errors import PlanError
from burnish.ops.part import Box, extents_of


@dataclass(frozen=True)
class TensorSplit:
    """Split of the computation of one tensor: ``degrees`` equal parts a dimension, ``terms`` a summed axis.

    ``devices``: one for each task, row-major over dimensions and then the axes of the sum that it is, if it is one.
    """

    degrees: tuple[int, ...]
    devices: tuple[int, ...]
    terms: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises PlanError if there is not one device for each task."""
        tasks = prod(self.degrees) * prod(self.terms)
        if min((*self.degrees, *self.terms, 1)) < 1 or len(self.devices) != tasks or min(self.devices) < 0:
            raise PlanError(
                f"split {list(self.degrees)} with terms {list(self.terms)} has devices {list(self.devices)}; "
                f"allowed: degrees from 1, and a device for each of {tasks} tasks"
            )


@dataclass(frozen=True)
class PartTask:
    """Part of a tensor computed on one device: the elements of ``box``; of their sum the terms ``reduced``, () for all.

    ``term`` numbers the parts of the sum.
    """

    device: int
    box: Box
    reduced: Box = ()
    term: int = 0


@dataclass(frozen=True)
class Placement:
    """The tasks that compute a tensor. ``terms``: how many parts its sum has. ``copies``: tasks may overlap, as each
    computes what its own device needs; else they are a grid, each element a task's of every term.
    """

    tasks: tuple[PartTask, ...]
    terms: int = 1
    copies: bool = False
    split: TensorSplit | None = None


def added_up(split: TensorSplit) -> TensorSplit:
    """The split of a tensor once the terms of its sum have been added up, each box where its first term was."""
    terms = prod(split.terms)
    return split if terms == 1 else TensorSplit(split.degrees, split.devices[::terms])


def even(extent: int, degree: int) -> tuple[tuple[int, int], ...]:
    """``range(extent)`` in ``degree`` parts as equal as can be: part k is from k * extent // degree on."""
    return tuple((k * extent // degree, (k + 1) * extent // degree) for k in range(degree))


def placed(split: TensorSplit, shape: Sequence[int], reduced: Sequence[int], name: str) -> Placement:
    """The tasks of a split of a tensor of ``shape``, which is a sum over axes of the extents ``reduced``.

    Raises PlanError, naming the tensor, for degrees that are not one a dimension, or larger than its extent.
    """
    terms = split.terms or (1,) * len(reduced)
    for what, degrees, extents in (("dimensions", split.degrees, shape), ("summed axes", terms, reduced)):
        fits = len(degrees) == len(extents) and all(1 <= d <= max(n, 1) for d, n in zip(degrees, extents, strict=True))
        if not fits:
            found = f"degrees {list(degrees)} for {what} {list(extents)}"
            raise PlanError(f"tensor '{name}': found {found}; allowed: one for each, from 1 to its extent")
    cut = any(d > 1 for d in terms)
    tasks = []
    devices = iter(split.devices)
    for box in grid(shape, split.degrees):
        for term, part in enumerate(grid(reduced, terms)):
            tasks.append(PartTask(next(devices), box, part if cut else (), term))
    return Placement(tuple(tasks), prod(terms), False, split)


def grid(shape: Sequence[int], degrees: Sequence[int]) -> Iterator[Box]:
    """Boxes of a tensor that is split into ``degrees`` parts by dimension, row-major."""
    return itertools.product(*(even(n, d) for n, d in zip(shape, degrees, strict=True)))


def split_of_boxes(shape: Sequence[int], boxes: Mapping[int, Box]) -> TensorSplit | None:
    """The split of a tensor of which each device has one box, if these are the parts of one, no element twice."""
    degrees = tuple(len({box[d] for box in boxes.values()}) for d in range(len(shape)))
    devices = {box: device for device, box in boxes.items()}
    parts = list(grid(shape, degrees)) if all(d <= max(n, 1) for d, n in zip(degrees, shape, strict=True)) else []
    if len(parts) != len(boxes) or {*parts} != {*devices}:
        return None
    return TensorSplit(degrees, tuple(devices[part] for part in parts))


def meet(a: Box, b: Box) -> Box | None:
    """The elements that two boxes share; None for none."""
    box = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return box if all(start < stop for start, stop in box) else None


def within(a: Box, b: Box) -> bool:
    """Whether all of ``a`` lies in ``b``."""
    return all(r <= p and q <= s for (p, q), (r, s) in zip(a, b, strict=True))


def inside(box: Box, of: Box) -> Box:
    """A box, counted from where another begins."""
    return tuple((start - low, stop - low) for (start, stop), (low, _) in zip(box, of, strict=True))


def size(box: Box) -> int:
    """Number of elements."""
    return prod(extents_of(box))

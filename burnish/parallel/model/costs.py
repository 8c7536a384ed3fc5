"""Costs of tasks: the work of each part of an operation, and the analytic roofline of a device.

A planner receives a :class:`Costs`; ``parallel.calibrate`` makes one of measured times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.loops.contraction import Contraction, contraction, is_contraction
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.tensor import stages
from burnish.loops.traverse import free_vars
from burnish.ops.classify import flops
from burnish.ops.reads import Interval, Ints, ReadMap, touched, volume
from burnish.parallel.model.machine import Processor
from burnish.parallel.model.operations import Operation
from burnish.parallel.model.values import reads_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ContractionColumns:
    """A contraction within a part, by columns: its operations, rows and batch (columns and depth follow)."""

    flops: Floats
    rows: Floats
    columns: Floats
    batch: Floats


@dataclass(frozen=True, eq=False)
class TaskWork:
    """Work of one task, a column for each way to split: operations, and bytes read, written, and held as parameters.

    ``sizes`` [axes, columns]: extents of the part; ``flops``: of what is no product; ``gradient``: whether the inputs
    have one.
    """

    sizes: Ints
    products: tuple[ContractionColumns, ...]
    flops: Floats
    read: Floats
    written: Floats
    parameters: Floats
    gradient: bool


class Costs(Protocol):
    """Seconds of tasks."""

    def seconds(self, op: Operation, work: TaskWork, device: Processor) -> tuple[Floats, Floats]:
        """Seconds of the forward and of the backward task of a part, for each column of ``work``."""


EFFICIENCY, HALF_ROWS = 0.7, 48.0  # of the peak that products reach, and rows with which they reach half of that
TILE, MANY = (64, 128), 8  # rows and columns of a thread block's tile; tiles a unit from where waves do not matter


@dataclass(frozen=True)
class Roofline:
    """Arithmetic and traffic go on together, whichever takes longer, after the launch of a kernel for each product.

    Products reach 70 % of the peak, less with few rows and where the last wave of tiles leaves units idle. The backward
    task takes twice the forward one: gradients of inputs and of parameters. A model of GPUs, not a measurement.
    """

    def seconds(self, op: Operation, work: TaskWork, device: Processor) -> tuple[Floats, Floats]:
        """See :class:`Costs`."""
        compute = work.flops / (device.flops * EFFICIENCY)
        for product in work.products:
            compute = compute + product.flops / (device.flops * _efficiency(product, device.units))
        traffic = (work.read + work.written) / device.bandwidth
        forward = device.launch * max(1, len(work.products)) + np.maximum(compute, traffic)
        return forward, forward * (2.0 if work.gradient and work.products else 1.0)


def _efficiency(product: ContractionColumns, units: int) -> Floats:
    tiles = np.ceil(product.rows / TILE[0]) * np.ceil(product.columns / TILE[1]) * product.batch
    waves = np.where(tiles > MANY * units, 1.0, tiles / (np.ceil(tiles / units) * units))
    return EFFICIENCY * waves * product.rows / (product.rows + HALF_ROWS)


# --- work -------------------------------------------------------------------------------------------------------------


def largest_parts(op: Operation, degrees: Sequence[Sequence[int]]) -> list[Interval]:
    """For each axis the interval of a largest part in the middle, a column for each row of degrees."""
    table = np.array(degrees, np.int64).reshape(len(degrees), len(op.axes))
    spans = []
    for i, axis in enumerate(op.axes):
        size = -(-axis.extent // table[:, i])
        low = np.minimum((table[:, i] // 2) * axis.extent // table[:, i], axis.extent - size)
        spans.append((low, low + size))
    return spans


def work(op: Operation, degrees: Sequence[Sequence[int]], gradient: bool = True) -> TaskWork:
    """The work of a largest part for each row of degrees. ``gradient``: whether its inputs come from operations."""
    spans = largest_parts(op, degrees)
    columns = len(degrees)
    regions = op.regions(spans)
    sizes = np.array([high - low for low, high in spans], np.int64).reshape(len(op.axes), columns)
    share = np.ones(columns)
    for axis, (low, high) in zip(op.axes, spans, strict=True):
        if axis.dim < 0:
            share = share * (high - low) / axis.extent
    products: list[ContractionColumns] = []
    rest = np.zeros(columns)
    for node in op.nodes:
        known = reads_of(node, [op.types[name] for name in node.inputs])
        parts = [(i, regions[name]) for i, name in enumerate(node.outputs) if name in regions]
        if not parts:
            continue
        number, region = max(parts, key=lambda p: float(volume(p[1]).max()))
        fraction = volume(region) / max(op.types[node.outputs[number]].size, 1)
        if node is op.nodes[-1]:
            fraction = fraction * share
        total, points = _flops(known)
        form = _product(known)
        if form is None or points == 0:
            rest = rest + total * fraction
            continue
        box = {name: region[0].high[d] - region[0].low[d] for d, name in enumerate(known.axes[number])}
        rows, batch = (_extents(box, names, columns) for names in form[:2])
        width = (
            points * fraction / (2.0 * np.maximum(rows * batch, 1) * form[2] * (share if node is op.nodes[-1] else 1))
        )
        products.append(ContractionColumns(points * fraction, rows, np.maximum(width, 1.0), batch))
        rest = rest + (total - points) * fraction
    nbytes = {name: ITEM_BYTES[op.types[name].dtype] for name in regions}
    made = {name for node in op.nodes for name in node.outputs}
    none = np.zeros(columns)
    read: Any = sum((touched(r) * nbytes[n] for n, r in regions.items() if n not in made), none)
    held: Any = sum((volume(regions[n]) * nbytes[n] for n in op.parameters if n in regions), none)
    written: Any = sum((volume(regions[n]) * nbytes[n] for n in op.outputs), none)
    return TaskWork(sizes, tuple(products), rest, read, written, held, gradient)


def _extents(box: dict[str, Ints], names: Sequence[str], columns: int) -> Floats:
    return np.asarray(prod((box[name] for name in names), start=np.ones(columns)), np.float64)


@lru_cache(maxsize=4096)
def _flops(known: ReadMap) -> tuple[int, int]:
    """Operations of a node, and those of its contractions."""
    if known.opaque:
        return 0, 0
    points = sum(2 * prod(c.stage.shape) * c.depth for c in _contractions(known))
    return max(flops(known.outputs), points), points


@lru_cache(maxsize=4096)
def _product(known: ReadMap) -> tuple[tuple[str, ...], tuple[str, ...], int] | None:
    """Contraction axes: output axes that index its first operand alone (rows), both operands (batch), and its depth."""
    found = next(_contractions(known), None)
    if found is None:
        return None
    summed = {f"{found.stage.name}.{a.var.name}" for a in found.reduced}
    by_operand: dict[int, set[str]] = {}
    for read in known.accesses:
        names = set[str]().union(*(free_vars(index) for index in read.indices))
        if names & summed:
            by_operand.setdefault(read.operand, set()).update(names)
    if len(by_operand) != 2:
        return None
    first, second = (by_operand[i] for i in sorted(by_operand))
    axes = known.axes[0]
    rows = tuple(a for a in axes if a in first and a not in second)
    return rows, tuple(a for a in axes if a in first and a in second), found.depth


def _contractions(known: ReadMap) -> Iterator[Contraction]:
    return (c for t in stages(known.outputs) if is_contraction(t) and (c := contraction(t)) is not None)

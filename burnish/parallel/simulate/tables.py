"""Tables for the compiled simulator: partitions of tensors and what parts of two operations share, by degrees.

An edge's tensor is split along the producer's axes; what a consumer's part needs of each is an interval that at most
one of the consumer's axes moves. So the parts that share elements with a part form a range along every axis,
and no list of tasks or transfers is ever built (section 3.4's task graph, kept implicit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.loops.expr import FLOATS, ITEM_BYTES
from burnish.ops.reads import Ints, Region, hull, touched, volume
from burnish.parallel.model.operations import MAX_AXES, Operation, OperationGraph
from burnish.parallel.model.strategy import part


@dataclass(frozen=True, eq=False)
class EdgeTables:
    """Overlap tables of edges. ``axes`` [edges, 15]: for each of the producer's axes the class of the dimension (-1:
    not split by it) and the consumer's axis that moves it (-1: none), for each of the consumer's the producer's that it
    moves. ``nbytes`` [edges, 2]: bytes an element of the split part forward and backward.

    By class, level of degree and part: ``part`` [.., 0] what a producer's part holds, [.., 1] what a consumer's needs;
    ``reach`` [class, 0 or 1, producer's level, consumer's level, part, 2]: the range of the consumer's parts that share
    elements with a producer's, and of the producer's with a consumer's; ``covered``: whether every part has one.
    """

    axes: NDArray[np.int64]
    nbytes: NDArray[np.float64]
    part: NDArray[np.int32]
    reach: NDArray[np.int16]
    covered: NDArray[np.bool_]


class _Needs:
    """Input intervals that parts of operations need, by the class of the operation, a table an axis."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.levels = levels
        self.known: dict[str, list[tuple[Ints, Ints]]] = {}

    def of(self, op: Operation) -> list[tuple[Ints, Ints]]:
        """Intervals of each input (in the order of ``op.inputs``): low and high [1 + axes, dimensions, levels, parts].

        Row 0: for the whole result; row 1 + m: for a part along axis m and everything else whole.
        """
        if op.signature not in self.known:
            self.known[op.signature] = self._tables(op)
        return self.known[op.signature]

    def _tables(self, op: Operation) -> list[tuple[Ints, Ints]]:
        most = max(self.levels)
        columns = [(m, a, k) for m in range(len(op.axes)) for a, d in enumerate(self.levels) for k in range(d)]
        columns = [(m, a, k) for m, a, k in columns if self.levels[a] <= op.axes[m].extent]
        spans = op.full(1 + len(columns))
        for c, (m, a, k) in enumerate(columns, 1):
            spans[m][0][c], spans[m][1][c] = part(op.axes[m].extent, self.levels[a], k)
        regions = op.regions(spans)
        tables = []
        for name in op.inputs:
            box = hull(regions[name]) if name in regions else None
            rank = len(op.types[name].shape)
            low = np.zeros((1 + len(op.axes), rank, len(self.levels), most), np.int64)
            high = np.zeros_like(low)
            if box is not None:
                low[:], high[:] = box.low[None, :, 0, None, None], box.high[None, :, 0, None, None]
                for c, (m, a, k) in enumerate(columns, 1):
                    low[1 + m, :, a, k], high[1 + m, :, a, k] = box.low[:, c], box.high[:, c]
            tables.append((low, high))
        return tables


def edge_tables(model: OperationGraph, levels: Sequence[int]) -> EdgeTables:
    """The tables of all edges of a model for these degrees."""
    needs = _Needs(levels)
    edges = model.edges
    cls = np.full((len(edges), MAX_AXES), -1, np.int64)
    drive, moved = cls.copy(), cls.copy()
    nbytes = np.zeros((len(edges), 2))
    classes: dict[tuple[int, int, bytes, bytes], int] = {}
    for e, edge in enumerate(edges):
        producer, consumer = model.operations[edge.producer], model.operations[edge.consumer]
        low, high = needs.of(consumer)[consumer.inputs.index(edge.tensor)]
        kind = producer.types[edge.tensor]
        drivers = _drivers(consumer, low, high)
        elements = 1.0
        for d, extent in enumerate(kind.shape):
            axis = next((i for i, a in enumerate(producer.axes) if a.dim == d), None)
            if axis is None:
                elements *= float(high[0, d, 0, 0] - low[0, d, 0, 0])
                continue
            m = drivers.get(d, -1)
            parts = consumer.axes[m].extent if m >= 0 else 1
            table = (low[1 + m, d].copy(), high[1 + m, d].copy())
            key = (extent, parts, table[0].tobytes(), table[1].tobytes())
            cls[e, axis] = classes.setdefault(key, len(classes))
            drive[e, axis] = m
            if m >= 0:
                moved[e, m] = axis
        size = ITEM_BYTES[kind.dtype] * elements
        nbytes[e] = size, size if kind.dtype in FLOATS else 0.0
    return EdgeTables(np.hstack([cls, drive, moved]), nbytes, *_classes(list(classes), levels))


def _drivers(consumer: Operation, low: Ints, high: Ints) -> dict[int, int]:
    """Dimension of the tensor -> the one consumer axis that moves what is needed of it; an axis moves one dimension."""
    found: list[tuple[float, int, int]] = []
    for m in range(len(consumer.axes)):
        for d in range(low.shape[1]):
            shrunk = (high[1 + m, d] - low[1 + m, d]).sum() / max((high[0, d] - low[0, d]).sum(), 1)
            if (low[1 + m, d] != low[0, d]).any() or (high[1 + m, d] != high[0, d]).any():
                found.append((float(shrunk), d, m))
    drivers: dict[int, int] = {}
    for _, d, m in sorted(found):
        if d not in drivers and m not in drivers.values():
            drivers[d] = m
    return drivers


def _classes(
    keys: Sequence[tuple[int, int, bytes, bytes]], levels: Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.int16], NDArray[np.bool_]]:
    count, rows, most = max(len(keys), 1), len(levels), max(levels)
    parts_of = np.zeros((count, 2, rows, most, 2), np.int32)
    reach = np.zeros((count, 2, rows, rows, most, 2), np.int16)
    own, need, ahead, back = parts_of[:, 0], parts_of[:, 1], reach[:, 0], reach[:, 1]
    covered = np.zeros((count, rows, rows, 2), np.bool_)
    for c, (extent, parts, low, high) in enumerate(keys):
        need[c, :, :, 0] = np.frombuffer(low, np.int64).reshape(rows, most)
        need[c, :, :, 1] = np.frombuffer(high, np.int64).reshape(rows, most)
        for a, degree in enumerate(levels):
            if degree <= extent:
                own[c, a, :degree] = [part(extent, degree, k) for k in range(degree)]
        for a, da in enumerate(levels):
            for b, db in enumerate(levels):
                if da <= extent and db <= parts:
                    _ranges(own[c, a, :da], need[c, b, :db], ahead[c, a, b], back[c, a, b], covered[c, a, b])
    return parts_of, reach, covered


def _ranges(
    own: NDArray[np.int32],
    need: NDArray[np.int32],
    ahead: NDArray[np.int16],
    back: NDArray[np.int16],
    covered: NDArray[np.bool_],
) -> None:
    """Fills the ranges of parts that share elements.

    Where those of a part are not consecutive (a tensor joined with itself), the parts between count as sharing nothing,
    seen from both ends.
    """
    linked = (need[None, :, 0] < own[:, None, 1]) & (need[None, :, 1] > own[:, None, 0])
    covered[:] = linked.any(axis=1).all(), linked.any(axis=0).all()
    while True:
        filled = _between(_between(linked).T).T
        if (filled == linked).all():
            break
        linked = filled
    for table, some in ((ahead, linked), (back, linked.T)):
        any_of = some.any(axis=1)
        table[: len(some), 0] = np.where(any_of, some.argmax(axis=1), 0)
        table[: len(some), 1] = np.where(any_of, some.shape[1] - some[:, ::-1].argmax(axis=1), 0)


def _between(linked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Marks in each row what lies between marks."""
    from_left = np.logical_or.accumulate(linked, axis=1)
    return from_left & np.logical_or.accumulate(linked[:, ::-1], axis=1)[:, ::-1]


# --- parameters -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WeightTables:
    """Groups of parameters that are read by the same operations and split alike: ``nbytes`` of each, of which
    ``sparse`` those of rows that a step touches; ``pointer`` into ``members`` [members, 3]: operations, and which of
    their axes split it, -1 for none.
    """

    names: tuple[tuple[str, ...], ...]
    nbytes: NDArray[np.float64]
    sparse: NDArray[np.float64]
    pointer: NDArray[np.int64]
    members: NDArray[np.int64]


def weight_tables(model: OperationGraph) -> WeightTables:
    """The groups of parameters of a model."""
    by_class: dict[str, list[tuple[dict[int, int], float]]] = {}
    found: dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], list[tuple[str, float, float]]] = {}
    for name, readers in model.readers.items():
        driven = []
        for i in readers:
            op = model.operations[i]
            if op.signature not in by_class:
                by_class[op.signature] = _split_dims(op)
            driven.append(by_class[op.signature][op.parameters.index(name)])
        dims = sorted({d for axes, _ in driven for d in axes})[:2]
        axes = tuple(
            (own.get(dims[0], -1) if dims else -1, own.get(dims[1], -1) if len(dims) > 1 else -1) for own, _ in driven
        )
        size = float(model.graph.types[name].nbytes)
        reached = min(size, sum(count for _, count in driven) * ITEM_BYTES[model.graph.types[name].dtype])
        found.setdefault((readers, axes), []).append((name, size, reached))
    pointer = np.cumsum([0, *(len(readers) for readers, _ in found)]).astype(np.int64)
    rows = [(i, *own) for readers, axes in found for i, own in zip(readers, axes, strict=True)]
    return WeightTables(
        tuple(tuple(name for name, _, _ in group) for group in found.values()),
        np.array([sum(size for _, size, _ in group) for group in found.values()]),
        np.array([sum(reached for _, _, reached in group) for group in found.values()]),
        pointer,
        np.array(rows, np.int64).reshape(-1, 3),
    )


def _split_dims(op: Operation) -> list[tuple[dict[int, int], float]]:
    """For each parameter: its dimension -> the axis that splits it, and how many of its elements are read at most."""
    spans = op.full(1 + len(op.axes))
    for m, axis in enumerate(op.axes):
        spans[m][1][1 + m] = axis.extent // 2
    regions = op.regions(spans)
    found = []
    for name in op.parameters:
        axes: dict[int, int] = {}
        if name not in regions:
            found.append((axes, 0.0))
            continue
        held = volume(regions[name])
        for m in range(len(op.axes)):
            if held[1 + m] == held[0]:
                continue
            lengths = [sum(box.high[d] - box.low[d] for box in regions[name]) for d in range(box_rank(regions[name]))]
            for d, length in enumerate(lengths):
                if length[1 + m] != length[0] and d not in axes:
                    axes[d] = m
                    break
        found.append((axes, float(touched(regions[name])[0])))
    return found


def box_rank(region: Region) -> int:
    """Dimensions of a region's boxes."""
    return int(region[0].low.shape[0])

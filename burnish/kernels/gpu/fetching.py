"""Tiles of a product's factors in shared memory: by rows of 128 bytes, fetched in pieces of up to 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from burnish.errors import ScheduleError
from burnish.kernels.gpu.forms import ContractionForm, Depth, FusedAxes, moves_fastest, narrow, padded
from burnish.kernels.gpu.nests import bind_threads, fuse_all, nest, stored, var
from burnish.loops.expr import ITEM_BYTES, SWIZZLED, Buffer, Expr, Load
from burnish.loops.program import For, Stmt
from burnish.loops.traverse import loads, substitute
from burnish.schedule.schedule import Schedule
from burnish.schedule.tensor_copy import tensor_box

PIECE = 16  # bytes that one instruction copies at most
LEAST = 4  # and at least
EXCHANGED = 8  # lines of 128 bytes, after which their pieces are in the same places again


def vector_of(factor: Expr, axes: Depth | FusedAxes) -> int:
    """Number of neighbours along the last axis that one copy may take: their rows begin at multiples of its bytes."""
    inner = (axes.inner if isinstance(axes, Depth) else axes).axes
    found = list(loads(factor))
    if not inner or len(found) != 1 or found[0].indices[-1] != inner[-1].var:
        return 1
    (access,) = found
    others = [i for i in access.indices[:-1] if inner[-1].var.name in i.variables]
    count = PIECE // ITEM_BYTES[access.dtype]
    while count > 1 and (others or access.buffer.shape[-1] % count or inner[-1].extent % count):
        count //= 2
    return count if count * ITEM_BYTES[access.dtype] >= LEAST else 1


def pitch(extent: int, item: int) -> int:
    """Elements of a row in shared memory: an odd number of pieces, so that neighbours are in other banks."""
    piece = PIECE // item
    return -(-extent // piece) // 2 * 2 * piece + piece


@dataclass(frozen=True)
class SharedTile:
    """Tiles of one factor in shared memory, of ``count`` rows along ``group``, and ``depth.block`` of the depth.

    By depth: [batch, tile, depth, row, depth inside]. By ``columns``, panels of as many as fit into 128 bytes: [batch,
    tile, depth, panel, depth inside, column]. Rows have 128 bytes, and panels as many rows as these have elements, of
    which a shorter block of the depth, or fewer columns, leave the last ones alone.
    """

    name: str
    factor: Expr
    group: FusedAxes
    outer: str
    tiles: int
    count: int
    depth: Depth
    batch: FusedAxes
    columns: bool = False
    boxes: bool = False  # fetched as boxes of a tensor

    @property
    def row(self) -> int:
        """Elements of a row in shared memory."""
        return self.buffer.shape[-1]

    @property
    def buffer(self) -> Buffer:
        """All tiles, of which a block has a few at a time."""
        dtype = narrow(self.factor).dtype
        row = 128 // ITEM_BYTES[dtype]
        inside = (-(-self.count // row), row, row) if self.columns else (self.count, row)
        return Buffer(self.name, (self.batch.extent, self.tiles, self.depth.blocks, *inside), dtype)

    @property
    def vector(self) -> int:
        """Elements of a copy."""
        if self.boxes:
            return self.row
        return vector_of(narrow(self.factor), self.group if self.columns else self.depth)

    def at(self, b: Expr, o: Expr, ko: Expr, panel: Expr, i: Expr, ki: Expr) -> Load:
        """The element of row or column ``i`` of a panel, at ``ki`` in a block of the depth; rows are one panel."""
        inside = (panel, ki, i) if self.columns else (panel * self.row + i, ki)
        return Load(self.buffer, (b, o, ko, *inside))

    @property
    def _loops(self) -> list[tuple[str, int]]:
        """The loops over the pieces of a tile: of one line in shared memory after another.

        Of lines that are not whole eight are filled side by side: their pieces are exchanged by the lines' numbers, so
        that these are in different banks.
        """
        lines, inside = (
            (self.depth.block, min(self.count, self.row)) if self.columns else (self.count, self.depth.block)
        )
        pieces = ("piece", inside // self.vector)
        panels = [("panel", -(-self.count // self.row))] if self.columns else []
        if self.boxes:
            return [*panels, ("line", lines), pieces]
        if not self.columns and moves_fastest(self.factor, (self.depth, self.group)) == 1:
            return [pieces, ("line", lines)]
        if inside < self.row:
            return [("line", lines // EXCHANGED), *panels, pieces, ("next", EXCHANGED)]
        return [("line", lines), *panels, pieces]

    def stage(self) -> Stmt:
        """The nest that fetches all tiles."""
        stage, count, loops = self.name, self.vector, self._loops
        b, o, ko = (var(stage, n) for n in ("b", self.outer, "ko"))
        line: Expr = var(stage, "line")
        if loops[-1][0] == "next":
            line = line * EXCHANGED + var(stage, "next")
        inner = var(stage, "piece") * count + var(stage, "v")
        inside: Expr
        index: tuple[Expr, ...]
        if self.columns:
            panel = var(stage, "panel")
            place, inside, index = o * self.count + panel * self.row + inner, line, (panel, line, inner)
        else:
            place, inside, index = o * self.count + line, inner, (line, inner)
        values, deep = self.depth.at(ko, inside)
        cond = None if self.group.extent % self.count == 0 else place < self.group.extent
        values = {**values, **self.group.at(place), **self.batch.at(b)}
        value = padded(substitute(narrow(self.factor), values), cond, deep)
        outer = [("b", self.batch.extent), (self.outer, self.tiles), ("ko", self.depth.blocks)]
        return nest(stage, [*outer, *loops, ("v", count)], stored(self.buffer, (b, o, ko, *index), value))

    @property
    def is_box(self) -> bool:
        """Whether it can be fetched as boxes of a tensor."""
        nest, ranges = replace(self, boxes=True).stage(), dict[str, int]()
        while isinstance(nest, For) and nest.var != f"{self.name}.line":
            ranges[nest.var], nest = nest.extent, nest.body
        try:
            return isinstance(nest, For) and bool(tensor_box(nest, ranges).box)
        except ScheduleError:
            return False

    def schedule(self, s: Schedule, loop: str, block: tuple[int, int, int]) -> None:
        """Fetches a tile at ``loop`` by all threads of a block."""
        s.set_scope(self.name, SWIZZLED)
        s.compute_at(self.name, loop)
        if self.boxes:
            if self.columns:
                s.unroll(f"{self.name}.panel")
            s.copy_tensor(f"{self.name}.line")
            return
        *whole, v = s.loops(self.name)[-1 - len(self._loops) :]
        nbytes = s.extent(v) * ITEM_BYTES[self.buffer.dtype]
        bind_threads(s, fuse_all(s, whole), block, unrolled=16 if nbytes == PIECE else 8)
        if nbytes >= LEAST:
            s.copy_async(v)


def factor_tiles(
    form: ContractionForm, name: str, sizes: Sequence[tuple[int, int]], depth: Depth, columns: bool, boxes: bool = False
) -> list[SharedTile]:
    """The tiles of both factors: (their number, rows of one) of each; ``columns``: of the right one by columns;
    ``boxes``: those that can be are fetched as boxes of tensors.
    """
    (mo, m), (no, n) = sizes
    found = [
        SharedTile(f"{name}.left", form.left, form.rows, "mo", mo, m, depth, form.batch),
        SharedTile(f"{name}.right", form.right, form.columns, "no", no, n, depth, form.batch, columns),
    ]
    return [replace(tile, boxes=boxes and tile.is_box) for tile in found]


def by_columns(form: ContractionForm, depth: Depth) -> bool:
    """Whether the right factor's columns lie next to each other, and may be copied as they are."""
    return moves_fastest(form.right, (depth, form.columns)) == 1 and vector_of(narrow(form.right), form.columns) > 1

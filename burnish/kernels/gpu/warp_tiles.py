"""Tiles of tensor cores in attention kernels: loops over what each thread of a warp holds."""

from __future__ import annotations

from burnish.kernels.gpu.attention_blocks import CopyingBlocks
from burnish.kernels.gpu.attention_form import AttentionAxes
from burnish.kernels.task import KernelTask
from burnish.loops.expr import Expr
from burnish.loops.program import For, Stmt, seq
from burnish.machines.nvptx.mma import SIDE, row_elements
from burnish.machines.nvptx.warp import QUAD

ROWS_OF_QUADS = 8  # of a warp: groups of four threads
PART = 8  # columns of which four threads hold two each


class WarpTiles(CopyingBlocks):
    """Blocks whose warps hold ``tiles`` of 16 rows. Thread 4 g + t of warp w holds of a tile, of scores or of sums, the
    elements [j, h, e] of row g + 8 h and column 8 j + 2 t + e.

    Buffers of threads: scores and sums [w, g, t, tile, j, h, e], and what is rounded to halves [w, g, tile, n, t, j, h,
    e] of columns 16 n + 8 j + 2 t + e; numbers of a row [w, g, tile, h].
    """

    def __init__(self, task: KernelTask, form: AttentionAxes, warps: int, tiles: int, keys: int, dtype: str) -> None:
        super().__init__(task, form, warps * tiles * SIDE, keys)
        self.dtype, self.panel = dtype, row_elements(dtype)
        self.warps, self.tiles, self.key_tiles = warps, tiles, keys // SIDE
        self.w, self.g, self.t = (self.var(n) for n in ("warp", "g", "t"))
        self.tile, self.h = self.var("tile"), self.var("h")

    def tile_shape(self, tiles: int, count: int) -> tuple[int, int, int]:
        """Shape of ``count`` rows in shared memory: (panels, rows, elements of a panel)."""
        return -(-tiles * SIDE // self.panel), count, self.panel

    # --- loops --------------------------------------------------------------------------------------------------------

    def of_rows(self, *stmts: Stmt) -> Stmt:
        """For each row of each warp; the four threads that hold it do the same."""
        rows = self.each("tile", self.tiles, self.each("h", 2, *stmts))
        return For(self.w.name, self.warps, "threadIdx.z", For(self.g.name, ROWS_OF_QUADS, "threadIdx.y", rows))

    def of_threads(self, *stmts: Stmt) -> Stmt:
        """For each thread."""
        inner = For(self.t.name, QUAD, "threadIdx.x", seq(*stmts))
        return For(self.w.name, self.warps, "threadIdx.z", For(self.g.name, ROWS_OF_QUADS, "threadIdx.y", inner))

    def fragment(self, name: str, tiles: int, body: Stmt, last: str = "unroll") -> Stmt:
        """For each of a thread's elements of tiles next to each other: variables ``name``.n, j, e, and ``h``."""
        body = For(f"{self.name}.{name}.e", 2, last, body)
        body = For(self.h.name, 2, "unroll", body)
        for part, extent in (("j", 2), ("n", tiles)):
            body = For(f"{self.name}.{name}.{part}", extent, "unroll", body)
        return self.each("tile", self.tiles, body)

    def at(self, name: str) -> tuple[Expr, ...]:
        """The place of an element of :meth:`fragment` among those of its thread."""
        n, j, e = (self.var(f"{name}.{part}") for part in "nje")
        return (self.tile, n * (SIDE // PART) + j, self.h, e)

    def column(self, name: str) -> Expr:
        """The column of an element of :meth:`fragment`."""
        n, j, e = (self.var(f"{name}.{part}") for part in "nje")
        return n * SIDE + j * 8 + self.t * 2 + e

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * ROWS_OF_QUADS * QUAD

    @property
    def thread(self) -> Expr:
        """The number of a thread in its block."""
        return (self.w * ROWS_OF_QUADS + self.g) * QUAD + self.t

    @property
    def own(self) -> tuple[Expr, ...]:
        """A thread."""
        return self.w, self.g, self.t

    @property
    def row_index(self) -> tuple[Expr, ...]:
        """A row of a warp."""
        return self.w, self.g, self.tile, self.h

    @property
    def row(self) -> Expr:
        """The number of a row in its block."""
        return (self.w * self.tiles + self.tile) * SIDE + self.g + self.h * 8

    # --- products -----------------------------------------------------------------------------------------------------

    def product(self, name: str, tiles: int, store: Stmt, reduced: list[tuple[str, int]]) -> Stmt:
        """A nest that becomes an instruction for each tile of the warp; ``reduced``: its own loops of the depth."""
        loops = [*((f"{name}.{part}", 2) for part in "j"), ("h", 2), (f"{name}.e", 2), *reduced]
        for loop, extent in reversed(loops):
            store = For(self.var(loop).name, extent, "serial", store)
        return For(self.var(f"{name}.n").name, tiles, "unroll", store)

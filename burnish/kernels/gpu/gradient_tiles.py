"""Gradient of attention as loops over what each thread of a warp holds of tiles on tensor cores, before it is
scheduled.
"""

from __future__ import annotations

from burnish.kernels.gpu.attention_gradient_form import AttentionGradient, PairProduct, WeightedSum
from burnish.kernels.gpu.gradient_blocks import GradientBlocks
from burnish.kernels.gpu.warp_tiles import PART, ROWS_OF_QUADS, WarpTiles
from burnish.kernels.task import KernelTask
from burnish.loops.expr import SWIZZLED, Buffer, Const, Expr, Load, cast
from burnish.loops.program import For, Intrinsic, Stmt, Store, seq
from burnish.machines.nvptx.exponential import EXP_DIFFERENCE
from burnish.machines.nvptx.mma import FRAGMENT, SIDE, depth_of
from burnish.machines.nvptx.warp import QUAD


class GradientTiles(WarpTiles, GradientBlocks):
    """The program of one launch by warps; see both of its bases. ``parts``: blocks that share the columns of the sums,
    each with the products of its own.

    Buffers of threads: ``held`` of both products and ``sums`` [w, g, t, tile, j, h, e], and the ``weights`` of each sum
    in the operands' type [w, g, tile, n, t, j, h, e].
    """

    def __init__(
        self, task: KernelTask, form: AttentionGradient, warps: int, tiles: int, keys: int, parts: int
    ) -> None:
        super().__init__(task, form, warps, tiles, keys, form.products[0].left.dtype)
        self.form, self.splits = form, parts
        self.steps = form.outer.extent * self.per
        self.deep = [tiles_of(p.depth.extent, parts) for p in form.products]
        own = (self.warps, ROWS_OF_QUADS, QUAD, self.tiles)
        self.own_rows = [
            self.buffer(f"own{n}", self.tile_shape(deep, self.block_rows), SWIZZLED, self.dtype)
            for n, deep in enumerate(self.deep)
        ]
        self.other_rows = [
            Buffer(f"{self.name}.other{n}", self.tile_shape(deep, self.block_keys), self.dtype, SWIZZLED)
            for n, deep in enumerate(self.deep)
        ]
        self.held = [self.buffer(f"held{n}", (*own, keys // PART, 2, 2), FRAGMENT.name) for n in range(len(self.deep))]
        halves = (self.warps, ROWS_OF_QUADS, self.tiles, self.key_tiles, QUAD, 2, 2, 2)
        self.weights = [self.buffer(f"weights{n}", halves, dtype=self.dtype) for n in range(len(form.sums))]
        self.sums = [
            self.buffer(f"sums{n}", (*own, self.wide(s) // PART, 2, 2), FRAGMENT.name) for n, s in enumerate(form.sums)
        ]
        self.row_shape = (self.warps, ROWS_OF_QUADS, self.tiles, 2)

    def wide(self, s: WeightedSum) -> int:
        """Columns of a sum that a block computes, of whole tiles."""
        return self.deep[s.source] * SIDE // self.splits

    def scores(self, name: str, body: Stmt) -> Stmt:
        """See the base."""
        return self.fragment(name, self.key_tiles, body)

    def score_at(self, name: str) -> tuple[tuple[Expr, ...], Expr]:
        """See the base."""
        return (*self.own, *self.at(name)), self.column(name)

    def columns(self, name: str, s: WeightedSum, body: Stmt, whole: bool = False) -> Stmt:
        """See the base."""
        return self.fragment(name, self.wide(s) // SIDE, body, "vectorize" if whole else "unroll")

    def column_at(self, name: str, s: WeightedSum) -> tuple[tuple[Expr, ...], Expr]:
        """See the base."""
        return self.score_at(name)

    def fetched_rows(self, name: str, buffer: Buffer, p: PairProduct, own: bool) -> Stmt:
        """See the base."""
        factor, rows = (p.left, self.rows_of_queries) if own else (p.right, self.rows_of_keys)
        return self.fetched(name, buffer, factor, p.depth, rows)

    def power(self, held: Load, below: Load) -> Stmt:
        """See the base; by the special function unit."""
        return Intrinsic(EXP_DIFFERENCE.name, (held, held, below))

    def multiplied(self, n: int) -> Stmt:
        """The elements of a product."""
        name = f"product{n}"
        ks, k, core = self.var(f"{name}.ks"), self.var(f"{name}.k"), depth_of(self.dtype)
        panel, inside = ks // (self.panel // core), ks % (self.panel // core) * core + k
        left = Load(self.own_rows[n], (panel, self.row, inside))
        right = Load(self.other_rows[n], (panel, self.column(name), inside))
        product = cast("float32", left) * cast("float32", right)
        store = Store(self.held[n], (*self.own, *self.at(name)), product, "sum")
        nest = self.product(name, self.key_tiles, store, [(f"{name}.k", core)])
        deep = -(-self.form.products[n].depth.extent // core)
        multiplied = For(ks.name, deep, "unroll", self.each("tile", self.tiles, nest))
        return self.of_threads(self.cleared(n, f"none{n}"), multiplied)

    def weighed(self, n: int) -> Stmt:
        """Weights in the operands' type, and the products of these with rows that both products have been made of."""
        s, name, last = self.form.sums[n], f"sum{n}", f"half{n}"
        j, e, tile = (self.var(f"{last}.{part}") for part in "jen")
        place = (self.w, self.g, self.tile, tile, self.t, j, self.h, e)
        half = Store(self.weights[n], place, cast(self.dtype, self.known(s.weight, last)))
        halves = self.fragment(last, self.key_tiles, half, "vectorize")
        ks, p, t, q = (self.var(f"{name}.{part}") for part in ("ks", "p", "t", "q"))
        column, j, e = (self.var(f"{name}.{part}") for part in "nje")
        per, rows = self.panel // SIDE, self.other_rows[s.source]
        left = Load(self.weights[n], (self.w, self.g, self.tile, ks, t, p, self.h, q))
        inside = column % per * SIDE + j * 8 + self.t * 2 + e
        first = self.split * (self.wide(s) // self.panel) if self.splits > 1 else Const(0)
        right = Load(rows, (first + column // per, ks * SIDE + p * 8 + t * 2 + q, inside))
        product = cast("float32", left) * cast("float32", right)
        store = Store(self.sums[n], (*self.own, *self.at(name)), product, "sum")
        inner = [(f"{name}.p", 2), (f"{name}.t", QUAD), (f"{name}.q", 2)]
        nest = self.product(name, self.wide(s) // SIDE, store, inner)
        summed = For(ks.name, self.key_tiles, "unroll", self.each("tile", self.tiles, nest))
        return seq(self.of_threads(halves), self.of_threads(summed))


def tiles_of(extent: int, parts: int) -> int:
    """Tiles along a depth, of which several ``parts`` have whole panels of 64 columns each."""
    tiles = -(-extent // SIDE)
    return tiles if parts == 1 else -(-tiles // (4 * parts)) * 4 * parts

"""Gradient of attention as loops over what each thread of a warp holds of tiles on tensor cores, before it is
scheduled.
"""

from __future__ import annotations

from math import inf

from burnish.kernels.gpu.attention_blocks import padded_with
from burnish.kernels.gpu.attention_form import hides, widened
from burnish.kernels.gpu.attention_gradient_form import AttentionGradient, WeightedSum, with_parts
from burnish.kernels.gpu.fetching import vector_of
from burnish.kernels.gpu.forms import padded
from burnish.kernels.gpu.warp_tiles import PART, ROWS_OF_QUADS, WarpTiles
from burnish.kernels.task import KernelTask
from burnish.loops.expr import SHARED, SWIZZLED, Buffer, Const, Expr, Load, Var, all_of, cast
from burnish.loops.program import Alloc, For, If, Intrinsic, Stmt, Store, seq
from burnish.loops.simplify import simplify
from burnish.loops.traverse import loads, substitute, transform
from burnish.machines.nvptx.exponential import EXP_DIFFERENCE
from burnish.machines.nvptx.mma import FRAGMENT, SIDE, depth_of
from burnish.machines.nvptx.warp import QUAD


class GradientTiles(WarpTiles):
    """The program of one launch: a block has rows, and goes through blocks of keys that some of them see, or has keys
    and goes through rows. ``parts``: blocks that share the columns of the sums, each with the products of its own.

    Buffers of threads: ``held`` of both products and ``sums`` [w, g, t, tile, j, h, e], and the ``weights`` of each sum
    in the operands' type [w, g, tile, n, t, j, h, e].
    """

    def __init__(
        self, task: KernelTask, form: AttentionGradient, warps: int, tiles: int, keys: int, parts: int
    ) -> None:
        super().__init__(task, form, warps, tiles, keys, form.products[0].left.dtype)
        self.form, self.splits = form, parts
        self.per = -(-form.keys.extent // keys)
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
            self.buffer(f"sums{n}", (*own, self.wide(s) * SIDE // PART, 2, 2), FRAGMENT.name)
            for n, s in enumerate(form.sums)
        ]
        keys_alone = {a.var.name for a in (*form.keys.axes, *form.outer.axes)}
        self.of_keys = {x: not x.variables.isdisjoint(keys_alone) for x in form.numbers}
        self.numbers = {
            x: Buffer(f"{self.name}.number{n}", (keys,), x.dtype, SHARED)
            if self.of_keys[x]
            else self.buffer(f"number{n}", (self.warps, ROWS_OF_QUADS, self.tiles, 2), dtype=x.dtype)
            for n, x in enumerate(form.numbers)
        }

    def wide(self, s: WeightedSum) -> int:
        """Tiles of a sum's columns that a block computes."""
        return self.deep[s.source] // self.splits

    # --- places -------------------------------------------------------------------------------------------------------

    def values_at(self, row: Expr | None = None, key: Expr | None = None, **others: Expr) -> dict[str, Expr]:
        """The values of axes; those outside of keys are of the step."""
        found = super().values_at(row, key, **others)
        if key is not None:
            found.update(self.form.outer.at(self.step // self.per))
        return found

    def key_at(self, j: Expr) -> tuple[Expr, list[Expr]]:
        """The number of a key of the block of keys, and the condition that there is such."""
        extent = self.form.keys.extent
        block = self.step % self.per if self.form.outer.extent > 1 else self.step
        place = block * self.block_keys + j
        return place, [place < extent] if extent % self.block_keys else []

    @property
    def first_row(self) -> Expr:
        """First row of the block. Those that see most keys begin first."""
        ends = {**self.form.rows.at(Const(0)), **self.form.keys.at(Const(self.form.keys.extent - 1))}
        last = hides(substitute(self.form.score, ends), {})
        return super().first_row if last is not None and simplify(last) == Const(False) else self.m * self.block_rows

    # --- the launch ---------------------------------------------------------------------------------------------------

    def body(self) -> Stmt:
        """All of it."""
        form, zero = self.form, Const(0.0, "float32")
        begin = [
            self.fetched(f"own{n}", self.own_rows[n], p.left, p.depth, self.rows_of_queries)
            for n, p in enumerate(form.products)
        ]
        begin += [self.number_of_rows(x) for x in form.numbers if not self.of_keys[x]]
        begin += [
            self.of_threads(
                self.fragment(f"clear{n}", self.wide(s), Store(b, (*self.own, *self.at(f"clear{n}")), zero))
            )
            for n, (s, b) in enumerate(zip(form.sums, self.sums, strict=True))
        ]
        fetches = [
            self.fetched(f"other{n}", self.other_rows[n], p.right, p.depth, self.rows_of_keys)
            for n, p in enumerate(form.products)
        ]
        fetches += [self.number_of_keys(x) for x in form.numbers if self.of_keys[x]]
        early = [n for n, s in enumerate(form.sums) if form.products[1].element not in loads(s.weight)]
        late = [n for n in range(len(form.sums)) if n not in early]
        work = seq(
            self.multiplied(0), self.powers(), *(self.weighed(n) for n in early),
            self.multiplied(1), *(self.weighed(n) for n in late),
        )  # fmt: skip
        there = self.seen
        step = seq(*(If(there, s) if there is not None else s for s in (*fetches, work)))
        own = [*self.other_rows, *(b for x, b in self.numbers.items() if self.of_keys[x])]
        for buffer in reversed(own):
            step = Alloc(buffer, step)
        steps = For(self.step.name, self.steps, "serial", step)
        return self.launch(seq(*begin, steps, *(self.output(n) for n in range(len(form.sums)))))

    def number_of_rows(self, x: Load) -> Stmt:
        """A number of each of the block's rows, in registers."""
        values, there = self.rows_of_queries(self.row)
        return self.of_rows(Store(self.numbers[x], self.row_index, padded(substitute(x, values), *there)))

    def number_of_keys(self, x: Load) -> Stmt:
        """Numbers of a block of keys, in shared memory."""
        buffer, name = self.numbers[x], self.numbers[x].name
        vector = vector_of(x, self.form.keys)
        lane, turn = Var(f"{name}.lane"), Var(f"{name}.turn")
        threads, pieces = self.warps * ROWS_OF_QUADS * QUAD, self.block_keys // vector
        linear = (self.w * ROWS_OF_QUADS + self.g) * QUAD + self.t
        turns = -(-pieces // threads)
        piece = turn * threads + linear
        at = piece * vector + lane
        values, there = self.rows_of_keys(at)
        s: Stmt = For(lane.name, vector, "serial", Store(buffer, (at,), padded(substitute(x, values), *there)))
        if turns * threads != pieces:
            s = If(piece < pieces, s)
        return self.of_threads(For(turn.name, turns, "unroll", s))

    def multiplied(self, n: int) -> Stmt:
        """The elements of a product."""
        name, zero = f"product{n}", Const(0.0, "float32")
        clear = self.fragment(f"none{n}", self.key_tiles, Store(self.held[n], (*self.own, *self.at(f"none{n}")), zero))
        ks, k, core = self.var(f"{name}.ks"), self.var(f"{name}.k"), depth_of(self.dtype)
        panel, inside = ks // (self.panel // core), ks % (self.panel // core) * core + k
        left = Load(self.own_rows[n], (panel, self.row, inside))
        right = Load(self.other_rows[n], (panel, self.column(name), inside))
        product = cast("float32", left) * cast("float32", right)
        store = Store(self.held[n], (*self.own, *self.at(name)), product, "sum")
        nest = self.product(name, self.key_tiles, store, [(f"{name}.k", core)])
        deep = -(-self.form.products[n].depth.extent // core)
        return self.of_threads(clear, For(ks.name, deep, "unroll", self.each("tile", self.tiles, nest)))

    def known(self, e: Expr, name: str) -> Expr:
        """An expression of an element of both products, of which the first is the exponential already."""
        form, column = self.form, self.column(name)
        held: dict[Expr, Expr] = {form.power: Load(self.held[0], (*self.own, *self.at(name)))}
        for p, buffer in zip(form.products, self.held, strict=True):
            held[p.element] = Load(buffer, (*self.own, *self.at(name)))
        for x, buffer in self.numbers.items():
            held[x] = Load(buffer, (column,) if self.of_keys[x] else self.row_index)
        values = self.values_at(row=self.first_row + self.row, key=self.key_at(column)[0])
        return substitute(with_parts(e, held), values)

    def powers(self) -> Stmt:
        """Exponentials of the scores, in the place of these."""
        name, form = "seen", self.form
        there = self.key_at(self.column(name))[1]
        row = self.first_row + self.row
        if self.count % self.block_rows:
            there = [*there, row < self.count]
        held = Load(self.held[0], (*self.own, *self.at(name)))
        score = self.known(widened(form.score, form.products[0].element), name)
        below = self.known(form.below, name)
        assert isinstance(below, Load)
        return self.of_threads(
            self.fragment(name, self.key_tiles, seq(
                Store(held.buffer, held.indices, padded_with(score, Const(-inf, "float32"), there)),
                Intrinsic(EXP_DIFFERENCE.name, (held, held, below)),
            ))
        )  # fmt: skip

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
        first = self.split * (self.wide(s) // per) if self.splits > 1 else Const(0)
        right = Load(rows, (first + column // per, ks * SIDE + p * 8 + t * 2 + q, inside))
        product = cast("float32", left) * cast("float32", right)
        store = Store(self.sums[n], (*self.own, *self.at(name)), product, "sum")
        nest = self.product(name, self.wide(s), store, [(f"{name}.p", 2), (f"{name}.t", QUAD), (f"{name}.q", 2)])
        summed = For(ks.name, self.key_tiles, "unroll", self.each("tile", self.tiles, nest))
        return seq(self.of_threads(halves), self.of_threads(summed))

    def output(self, n: int) -> Stmt:
        """The elements of an output, of rows and columns that there are."""
        s, name = self.form.sums[n], f"out{n}"
        row, column = self.first_row + self.row, self.column(name)
        if self.splits > 1:
            column = self.split * (self.wide(s) * SIDE) + column
        values = {**s.batch.at(self.b), **s.rows.at(row), **s.columns.at(column)}
        held = Load(self.sums[n], (*self.own, *self.at(name)))
        value = substitute(transform(s.result, lambda e: cast(e.dtype, held) if e == s.sums else e), values)
        index = tuple(values.get(axis.name, Const(0)) for axis in s.output.axes)
        store: Stmt = Store(s.output.buffer, index, value)
        extent = s.columns.extent
        there = [
            *self.inside(row, self.count, self.block_rows),
            *self.inside(column, extent, self.wide(s) * self.splits * SIDE),
        ]
        if there:
            store = If(all_of(*there), store)
        return self.of_threads(self.fragment(name, self.wide(s), store, "unroll" if extent % SIDE else "vectorize"))


def tiles_of(extent: int, parts: int) -> int:
    """Tiles along a depth, of which several ``parts`` have whole panels of 64 columns each."""
    tiles = -(-extent // SIDE)
    return tiles if parts == 1 else -(-tiles // (4 * parts)) * 4 * parts

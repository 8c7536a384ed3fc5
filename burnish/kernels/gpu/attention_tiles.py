"""Attention as loops over what each thread of a warp holds of tiles on tensor cores, before it is scheduled."""

from __future__ import annotations

from math import inf

from burnish.kernels.gpu.attention_blocks import LOWEST, padded_with, stored, stored_number
from burnish.kernels.gpu.attention_form import Attention, widened
from burnish.kernels.gpu.fetching import vector_of
from burnish.kernels.gpu.forms import moves_fastest, narrow
from burnish.kernels.gpu.warp_tiles import PART, ROWS_OF_QUADS, WarpTiles
from burnish.kernels.task import KernelTask
from burnish.loops.expr import SWIZZLED, Binary, Buffer, Const, Expr, Load, Select, all_of, cast, maximum, select
from burnish.loops.program import Alloc, For, If, Intrinsic, Stmt, Store, seq
from burnish.loops.traverse import substitute, transform
from burnish.machines.intrinsics import TensorIntrinsic
from burnish.machines.nvptx.exponential import EXP2_DIFFERENCE, EXP_DIFFERENCE, LN2
from burnish.machines.nvptx.mma import FRAGMENT, HALVES, SIDE, depth_of
from burnish.machines.nvptx.warp import QUAD, QUAD_REDUCE


class AttentionTiles(WarpTiles):
    """The program of one attention; see its base for what a thread holds.

    Buffers of threads: ``scores``, ``sums``, and the exponentials in the operands' type, ``powers``; numbers of a row,
    and what the four threads of a row have of it [w, g, tile, h, t].
    """

    column_unit = SIDE  # of the output, that an instruction computes at least

    def __init__(self, task: KernelTask, form: Attention, warps: int, tiles: int, keys: int) -> None:
        super().__init__(task, form, warps, tiles, keys, narrow(form.query).dtype)
        self.form = form
        depth, columns = form.sizes[3:]
        self.deep, self.wide = -(-depth // SIDE), -(-columns // self.column_unit) * self.column_unit // SIDE  # tiles
        per_row = (self.warps, ROWS_OF_QUADS, self.tiles, 2)
        own = (*per_row[:2], QUAD, tiles)
        self.scores = self.buffer("scores", (*own, keys // PART, 2, 2), FRAGMENT.name)
        self.powers = self.buffer("powers", (*per_row[:3], self.key_tiles, QUAD, 2, 2, 2), dtype=self.dtype)
        self.sums = self.buffer("sums", (*own, self.wide * SIDE // PART, 2, 2), FRAGMENT.name)
        self.top, self.new, self.grown, self.whole = (
            self.buffer(name, per_row) for name in ("top", "new", "grown", "whole")
        )
        self.part, self.total = (self.buffer(name, (*per_row, QUAD)) for name in ("part", "total"))
        self.score, self.power = _in_base_2(widened(form.score, form.product), form.product)
        self.query = self.query_buffer()
        self.by_keys = keys_across(form)

    def query_buffer(self) -> Buffer:
        """Where the block's queries are kept."""
        return self.buffer("query", self.tile_shape(self.deep, self.block_rows), SWIZZLED, self.dtype)

    def queries(self) -> Stmt:
        """Fills it."""
        return self.fetched("query", self.query, self.form.query, self.form.depth, self.rows_of_queries)

    # --- the launch ---------------------------------------------------------------------------------------------------

    def body(self) -> Stmt:
        """All of it."""
        low, zero = Const(LOWEST, "float32"), Const(0.0, "float32")
        begin = seq(
            self.queries(),
            self.of_rows(Store(self.top, self.row_index, low)),
            self.of_threads(
                self.each("tile", self.tiles, self.each("h", 2, Store(self.total, (*self.row_index, self.t), zero))),
                self.fragment("clear", self.wide, Store(self.sums, (*self.own, *self.at("clear")), zero)),
            ),
        )
        shape = self.tile_shape(self.deep, self.block_keys)
        if self.by_keys:
            shape = self.tile_shape(self.key_tiles, self.deep * SIDE)
        key = Buffer(f"{self.name}.keys", shape, self.dtype, SWIZZLED)
        value = Buffer(f"{self.name}.values", self.tile_shape(self.wide, self.block_keys), self.dtype, SWIZZLED)
        work = seq(self.scored(key), self.softmax(), self.weighed(value))
        there = self.seen
        fetches = [
            self.fetched_by_keys(key)
            if self.by_keys
            else self.fetched("key", key, self.form.key, self.form.depth, self.rows_of_keys),
            self.fetched("value", value, self.form.value, self.form.columns, self.rows_of_keys),
        ]
        step = seq(*(If(there, s) if there is not None else s for s in (*fetches, work)))
        steps = For(self.step.name, self.steps, "serial", Alloc(key, Alloc(value, step)))
        summed = self.of_rows(Store(self.whole, self.row_index, zero), self.together("sum", self.whole, self.total))
        return self.launch(seq(begin, steps, summed, self.output(), *self.number()))

    def fetched_by_keys(self, buffer: Buffer) -> Stmt:
        """Keys, of which those next to each other in memory go into a row."""
        depth = self.form.depth

        def rows(r: Expr) -> tuple[dict[str, Expr], list[Expr]]:
            return {**self.values_at(), **depth.at(r)}, self.inside(r, depth.extent, self.deep * SIDE)

        return self.fetched("key", buffer, self.form.key, self.form.keys, rows, self.key_at)

    def together(self, kind: str, number: Buffer, part: Buffer) -> Stmt:
        """A number of each row, combined with what its threads hold."""
        operands = (Load(number, self.row_index), Load(part, (*self.row_index, Const(0))))
        return Intrinsic(QUAD_REDUCE[kind, "float32"].name, operands)

    def scored(self, key: Buffer) -> Stmt:
        """Products of queries and keys."""
        clear = self.fragment(
            "none", self.key_tiles, Store(self.scores, (*self.own, *self.at("none")), Const(0.0, "float32"))
        )
        ks, k, core = self.var("score.ks"), self.var("score.k"), depth_of(self.dtype)
        panel, inside = ks // (self.panel // core), ks % (self.panel // core) * core + k
        left, right = Load(self.query, (panel, self.row, inside)), Load(key, (panel, self.column("score"), inside))
        if self.by_keys:
            n, j, e = (self.var(f"score.{name}") for name in "nje")
            per = self.panel // SIDE
            right = Load(key, (n // per, ks * SIDE + k, n % per * SIDE + j * 8 + self.t * 2 + e))
        product = cast("float32", left) * cast("float32", right)
        store = Store(self.scores, (*self.own, *self.at("score")), product, "sum")
        nest = self.product("score", self.key_tiles, store, [("score.k", core)])
        deep = self.deep * SIDE // core
        return self.of_threads(clear, For(ks.name, deep, "unroll", self.each("tile", self.tiles, nest)))

    def softmax(self) -> Stmt:
        """Exponentials of the scores, in halves, and what was summed before in relation to the new greatest score."""
        low = Const(-inf, "float32")
        place, there = self.key_at(self.column("seen"))
        row = self.first_row + self.row
        if self.count % self.block_rows:  # of rows that do not exist nothing may be read: a mask, for one
            there = [*there, row < self.count]
        index = (*self.own, *self.at("seen"))
        score = substitute(self.score, self.values_at(row=row, key=place))
        name, held = self.form.product.buffer.name, Load(self.scores, index)
        score = transform(score, lambda e: held if isinstance(e, Load) and e.buffer.name == name else e)
        part = (*self.row_index, self.t)
        scored = self.fragment("seen", self.key_tiles, seq(
            Store(self.scores, index, padded_with(score, low, there)),
            Store(self.part, part, maximum(Load(self.part, part), Load(self.scores, index))),
        ))  # fmt: skip
        least = self.each("tile", self.tiles, self.each("h", 2, Store(self.part, part, low)))
        new, top = Load(self.new, self.row_index), Load(self.top, self.row_index)
        greatest = self.of_rows(
            Store(self.new, self.row_index, top),
            self.together("max", self.new, self.part),
            Intrinsic(self.power.name, (Load(self.grown, self.row_index), top, new)),
            Store(self.top, self.row_index, new),
        )
        index = (*self.own, *self.at("power"))
        grown = Load(self.grown, self.row_index)
        total = Store(self.total, part, Load(self.total, part) * grown)
        powers = self.fragment("power", self.key_tiles, seq(
            Intrinsic(self.power.name, (Load(self.scores, index), Load(self.scores, index), top)),
            Store(self.total, part, Load(self.scores, index), "sum"),
        ))  # fmt: skip
        n, j, e = (self.var(f"half.{name}") for name in "nje")
        held = Load(self.scores, (*self.own, *self.at("half")))
        half = Store(self.powers, (self.w, self.g, self.tile, n, self.t, j, self.h, e), cast(self.dtype, held))
        halves = self.fragment("half", self.key_tiles, half, "vectorize")
        index = (*self.own, *self.at("grow"))
        sums = self.fragment("grow", self.wide, Store(self.sums, index, Load(self.sums, index) * grown))
        each = self.each("tile", self.tiles, self.each("h", 2, total))
        return seq(self.of_threads(least, scored), greatest, self.of_threads(each, powers, halves, sums))

    def weighed(self, value: Buffer) -> Stmt:
        """Products of exponentials and values."""
        ks, p, t, q = (self.var(f"sum.{name}") for name in ("ks", "p", "t", "q"))
        n, j, e = (self.var(f"sum.{name}") for name in "nje")
        per = self.panel // SIDE
        left = Load(self.powers, (self.w, self.g, self.tile, ks, t, p, self.h, q))
        column = n % per * SIDE + j * 8 + self.t * 2 + e
        right = Load(value, (n // per, ks * SIDE + p * 8 + t * 2 + q, column))
        product = cast("float32", left) * cast("float32", right)
        store = Store(self.sums, (*self.own, *self.at("sum")), product, "sum")
        nest = self.product("sum", self.wide, store, [("sum.p", 2), ("sum.t", QUAD), ("sum.q", 2)])
        return self.of_threads(For(ks.name, self.key_tiles, "unroll", self.each("tile", self.tiles, nest)))

    def output(self) -> Stmt:
        """The output's elements, of rows and columns that there are."""
        row, column = self.first_row + self.row, self.column("out")
        sums, total = Load(self.sums, (*self.own, *self.at("out"))), Load(self.whole, self.row_index)
        s: Stmt = stored(self, self.form, row, column, sums, total)
        there = [
            *self.inside(row, self.count, self.block_rows),
            *self.inside(column, self.form.columns.extent, self.column_unit),
        ]
        even = self.form.columns.extent % self.column_unit == 0
        if not even:
            return self.of_threads(self.fragment("out", self.wide, If(all_of(*there), s)))
        nest = self.fragment("out", self.wide, If(all_of(*there), s) if there else s, "vectorize")
        return self.of_threads(nest)

    def number(self) -> list[Stmt]:
        """Stores the second result of each row, by the first of its four threads."""
        found = self.form.numbers
        if found is None:
            return []
        row, top = self.first_row + self.row, Load(self.top, self.row_index)
        whole = top * LN2 if self.power is EXP2_DIFFERENCE else top
        there = [self.t < 1, *self.inside(row, self.count, self.block_rows)]
        s: Stmt = If(all_of(*there), stored_number(self, found, row, whole, Load(self.whole, self.row_index)))
        return [self.of_threads(self.each("tile", self.tiles, self.each("h", 2, s)))]


def keys_across(form: Attention) -> bool:
    """Whether elements of the next keys are neighbours in memory: a row of halves in shared memory is of many keys."""
    return (
        narrow(form.key).dtype in HALVES
        and moves_fastest(form.key, (form.depth, form.keys)) == 1
        and vector_of(narrow(form.key), form.keys) > 1
    )


def _in_base_2(score: Expr, product: Load) -> tuple[Expr, TensorIntrinsic]:
    """Scores whose power of 2 is taken instead, where they are made of products and numbers alone: one multiplication
    is both the scale and the change of base. A mask that is read may hold the lowest float, which must stay finite.
    """
    if score.buffers - {product.buffer.name}:
        return score, EXP_DIFFERENCE
    return _scaled(score, 1.0 / LN2), EXP2_DIFFERENCE


def _scaled(e: Expr, factor: float) -> Expr:
    match e:
        case Select(cond, a, b):
            return select(cond, _scaled(a, factor), _scaled(b, factor))
        case Const(value):
            return Const(float(value) * factor, e.dtype)
        case Binary("*", a, Const() as b) | Binary("*", Const() as b, a):
            return a * _scaled(b, factor)
    return e * Const(factor, e.dtype)

"""Attention as one kernel: blocks of keys one after another, with running maxima and sums; scores stay in registers.

A block computes some rows of queries, each warp some of these. Of a block of keys a thread has its own keys' scores; a
warp finds the rows' greatest by shuffles, and what was summed before is scaled by how much that grew. Where queries are
few, as when one token is decoded, keys are split over blocks, and a second launch combines what these have found.

Source: Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022, algorithm 1, and Dao et al. 2023, section 3.1.
"""

from __future__ import annotations

from math import prod

from burnish.kernels.gpu.attention_blocks import LOWEST, padded_with, single, stored
from burnish.kernels.gpu.attention_form import Attention, attention
from burnish.kernels.gpu.attention_split import OwnBuffers, SplitAttention
from burnish.kernels.gpu.fetching import pitch
from burnish.kernels.gpu.forms import padded
from burnish.kernels.gpu.row_forms import program_of
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import SHARED, Buffer, Const, Expr, Load, Var, all_of, cast, math
from burnish.loops.program import MOST_BLOCKS, Alloc, For, If, Intrinsic, Stmt, Store, seq
from burnish.loops.traverse import substitute, transform
from burnish.machines.machine import Warps
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

WARPS = (1, 2, 4, 8)
ROWS = (1, 2, 4, 8)  # of a warp
SPLITS = (1, 2, 4, 8, 16, 32)  # of the keys, over blocks
UNROLL = 4  # elements along the depth of a product that are loaded at once
MOST_COLUMNS = 256
FEWEST_KEYS = 4  # blocks of keys that a split should have
MOST_SUMS = 64  # of one thread
# A model of a multiprocessor: warps that issue in a cycle, bytes of the second-level cache a cycle, and warps with
# which it waits little. From data sheets; not measured.
ISSUED, FETCHED, BUSY = 4, 24, 8


def _form(task: KernelTask, target: Target) -> Attention | None:
    """Attention in floats that a block's memory holds."""
    found = attention(task)
    if found is None or not target.machine.warps.reduce:
        return None
    batch, _, _, depth, columns = found.sizes
    fits = max(depth, columns) <= MOST_COLUMNS and batch <= MOST_BLOCKS["blockIdx.y"]
    floats = all("float" in e.dtype for e in (found.query, found.key, found.value))
    return found if fits and floats and _fitting(found, target) else None


def _fitting(form: Attention, target: Target) -> list[tuple[int, int]]:
    """Warps of a block and rows of a warp for which there is shared memory."""
    size = target.machine.warps.size
    few = [r for r in ROWS if r * -(-form.columns.extent // size) <= MOST_SUMS]
    return [(w, r) for w in WARPS for r in few if shared_bytes(form, size, w, r) <= target.shared_bytes]


def shared_bytes(form: Attention, size: int, warps: int, rows: int) -> int:
    """Bytes of shared memory of a block: queries, keys, values and exponentials, in float32."""
    _, _, _, depth, columns = form.sizes
    wide, block = -(-columns // size) * size, warps * rows
    return 4 * ((block + size) * pitch(depth, 4) + size * wide + block * size)


def _space(task: KernelTask, target: Target, form: Attention) -> ScheduleSpace:
    del task
    batch, rows, keys, depth, columns = form.sizes
    size = target.machine.warps.size

    def cycles(pair: tuple[int, int]) -> tuple[float, int]:
        """Modelled cycles of a multiprocessor, for a block of keys of each of its blocks; ties go to larger tiles."""
        warps, own = pair
        blocks = -(-batch * -(-rows // (warps * own)) // target.cores)
        resident = min(blocks, 32, 4 * target.shared_bytes // shared_bytes(form, size, warps, own))
        both, loads = depth + columns, (own + 4) * depth / UNROLL + size / UNROLL * (own + columns / size * UNROLL)
        slowest = max(warps * own * both / ISSUED, warps * loads, size * both * 4 / FETCHED)
        return blocks * slowest / min(1.0, max(resident, 1) * warps / BUSY), -warps * own

    few = [pair for pair in _fitting(form, target) if prod(pair) <= 1 << (rows - 1).bit_length()]
    warps, own = min(few, key=cycles)
    blocks, splits = batch * -(-rows // (warps * own)), 1
    enough = target.cores * max(1, BUSY // warps)
    while 2 * blocks * splits <= enough and keys >= 2 * splits * FEWEST_KEYS * size and splits < SPLITS[-1]:
        splits *= 2
    knobs = {"warps": WARPS, "rows": ROWS, "splits": SPLITS}
    return ScheduleSpace(knobs, {"warps": warps, "rows": own, "splits": splits})


def _schedule(task: KernelTask, target: Target, form: Attention, choice: Choice) -> Schedule:
    """``blocks(batch, rows, splits) -> blocks of keys -> [fetch] -> scores, exponentials, sums``."""
    own = target.machine.warps
    k = _Kernel(task, form, own, int(choice["warps"]), int(choice["rows"]), int(choice["splits"]))
    return Schedule(program_of(task, k.body()), intrinsics=own.reduce.values())


class _Kernel(SplitAttention):
    """The program of one attention."""

    def __init__(self, task: KernelTask, form: Attention, own: Warps, warps: int, rows: int, splits: int) -> None:
        super().__init__(task, form, own, warps, rows, splits)
        depth = form.depth.extent
        self.pitch, self.deep = pitch(depth, 4), -(-depth // UNROLL) * UNROLL

    def vector(self, lane: Var, to: Buffer, index: tuple[Expr, ...], value: Load) -> Stmt:
        """Vector copy of UNROLL elements of a row."""
        return For(lane.name, UNROLL, "vectorize", Store(to, index, value))

    # --- the first launch ---------------------------------------------------------------------------------------------

    def body(self) -> Stmt:
        """Both launches, or the only one."""
        f32 = (self.warps, self.own_rows, self.size)
        own = OwnBuffers(
            self.buffer("top", f32[:2]), self.buffer("total", f32), self.buffer("sums", (*f32, self.wide)),
            self.buffer("scores", f32), self.buffer("part", f32), self.buffer("new", f32[:2]),
            self.buffer("grown", f32[:2]), self.buffer("left", (*f32, UNROLL)),
            self.buffer("right", (self.warps, self.size, UNROLL)),
        )  # fmt: skip
        query = self.buffer("query", (self.block_rows, self.pitch), SHARED)
        key = self.buffer("key", (self.size, self.pitch), SHARED)
        value = self.buffer("value", (self.size, self.wide * self.size), SHARED)
        power = self.buffer("power", (self.block_rows, self.size), SHARED)
        keyed = self.keyed(own, query, key, value, power)
        steps = For(self.step.name, self.steps, "serial", keyed if self.seen is None else If(self.seen, keyed))
        begin = seq(self.fetched_queries(query), self.cleared(own))
        whole = self.buffer("whole", f32[:2])
        summed = self.of_warps(
            Store(whole, (self.w, self.i), Const(0.0, "float32")),
            self.together("sum", whole, own.total),
        )
        if self.splits == 1:
            return self.launch(seq(begin, steps, summed, self.output(own, whole)))
        found = [
            self.buffer(name, (self.splits, self.batch, self.count, *rest), "global")
            for name, rest in (("split_top", ()), ("split_total", ()), ("split_sums", (self.wide * self.size,)))
        ]
        stmt = seq(self.launch(seq(begin, steps, summed, self.kept(own, whole, found))), self.combined(found))
        for buffer in reversed(found):
            stmt = Alloc(buffer, stmt)
        return stmt

    def moved(self, name: str, buffer: Buffer, rows: int, width: int, value: Expr, row: Var, column: Var) -> Stmt:
        """A tile that all threads of the block copy, neighbours four elements of a row each."""
        threads = self.warps * self.size
        pieces = rows * width // UNROLL
        turn = self.var(f"{name}.turn")
        piece = (turn * self.warps + self.w) * self.size + self.x
        lane = self.var(f"{name}.lane")
        per_row = width // UNROLL
        values = {row.name: piece // per_row, column.name: piece % per_row * UNROLL + lane}
        index = (values[row.name], values[column.name])
        s: Stmt = For(lane.name, UNROLL, "vectorize", Store(buffer, index, substitute(value, values)))
        turns = -(-pieces // threads)
        if turns * threads != pieces:
            s = If(piece < pieces, s)
        return self.of_threads(For(turn.name, turns, "unroll" if turns <= 8 else "serial", s))

    def fetched_queries(self, query: Buffer) -> Stmt:
        """The block's rows of queries, as float32; zeros where there are none."""
        r, c = self.var("query.row"), self.var("query.depth")
        place = self.first_row + r
        e = substitute(self.form.query, self.values_at(row=place, depth=c))
        value = padded(single(e), *self.inside(place, self.count, self.block_rows), *self.within(c))
        return self.moved("query", query, self.block_rows, self.deep, value, r, c)

    def within(self, c: Expr) -> list[Expr]:
        """As :meth:`inside`, of the depth."""
        return self.inside(c, self.form.depth.extent, UNROLL)

    def cleared(self, own: OwnBuffers) -> Stmt:
        """Nothing is summed yet."""
        zero, index = Const(0.0, "float32"), (self.w, self.i, self.x)
        low = self.of_warps(Store(own.top, (self.w, self.i), Const(LOWEST, "float32")))
        sums = self.each("d", self.wide, Store(own.sums, (*index, self.d), zero))
        return seq(low, self.of_threads(self.each("i", self.own_rows, Store(own.total, index, zero), sums)))

    def together(self, kind: str, number: Buffer, part: Buffer) -> Stmt:
        """A number of each row, combined with what the threads of its warp hold."""
        operands = (Load(number, (self.w, self.i)), Load(part, (self.w, self.i, Const(0))))
        return Intrinsic(self.own.reduce[kind, "float32"].name, operands)

    def keyed(self, own: OwnBuffers, query: Buffer, key: Buffer, value: Buffer, power: Buffer) -> Stmt:
        """One block of keys."""
        j, c, d = self.var("key.j"), self.var("key.depth"), self.var("value.column")
        place, there = self.key_at(j)
        e = single(substitute(self.form.key, self.values_at(key=place, depth=c)))
        keys = self.moved("key", key, self.size, self.deep, padded(e, *there, *self.within(c)), j, c)
        v = self.var("value.j")
        place, there = self.key_at(v)
        e = single(substitute(self.form.value, self.values_at(key=place, column=d)))
        exists = self.inside(d, self.form.columns.extent, self.size)
        values = self.moved("value", value, self.size, self.wide * self.size, padded(e, *there, *exists), v, d)
        return seq(keys, values, self.scored(own, query, key), self.grown(own, power), self.weighed(own, value, power))

    def scored(self, own: OwnBuffers, query: Buffer, key: Buffer) -> Stmt:
        """The scores of each thread's key for the rows of its warp, and the greatest of them."""
        index, own_row = (self.w, self.i, self.x), self.row
        outer, inner = self.var("score.outer"), self.var("score.inner")
        c = outer * UNROLL + inner
        next_ = seq(
            self.each("i", self.own_rows, self.vector(inner, own.left, (*index, inner), Load(query, (own_row, c)))),
            self.vector(inner, own.right, (self.w, self.x, inner), Load(key, (self.x, c))),
        )
        factors = Load(own.left, (*index, inner)) * Load(own.right, (self.w, self.x, inner))
        rows = self.each("i", self.own_rows, Store(own.scores, index, factors, "sum"))
        loops = For(outer.name, self.deep // UNROLL, "serial", seq(next_, For(inner.name, UNROLL, "unroll", rows)))
        place, there = self.key_at(self.x)
        score = self.score(Load(own.scores, index), place)
        if self.count % self.block_rows:  # of rows that do not exist nothing may be read: a mask, for one
            there = [*there, self.whole_row < self.count]
        low = Const(float("-inf"), "float32")
        chosen = padded_with(score, low, there)
        after = self.each(
            "i", self.own_rows, Store(own.scores, index, chosen), Store(own.part, index, Load(own.scores, index))
        )
        zero = self.each("i", self.own_rows, Store(own.scores, index, Const(0.0, "float32")))
        top, new = (self.w, self.i), own.new
        return seq(
            self.of_threads(zero, loops, after),
            self.of_warps(Store(new, top, Load(own.top, top)), self.together("max", new, own.part)),
        )

    def score(self, product: Load, key: Expr) -> Expr:
        """Attention score, of which softmax is taken, at a row of the block and a key."""
        own = transform(self.form.score, lambda e: cast(e.dtype, product) if e == self.form.product else e)
        return single(substitute(own, self.values_at(row=self.whole_row, key=key)))

    def grown(self, own: OwnBuffers, power: Buffer) -> Stmt:
        """Exponentials, and what was summed before in relation to the new greatest score."""
        top, index = (self.w, self.i), (self.w, self.i, self.x)
        scale = math("exp", Load(own.top, top) - Load(own.new, top))
        factor = self.of_warps(Store(own.grown, top, scale), Store(own.top, top, Load(own.new, top)))
        e = math("exp", Load(own.scores, index) - Load(own.top, top))
        grown = Load(own.grown, top)
        each = self.each(
            "i",
            self.own_rows,
            Store(own.scores, index, e),
            Store(power, (self.row, self.x), Load(own.scores, index)),
            Store(own.total, index, Load(own.total, index) * grown + Load(own.scores, index)),
            self.each("d", self.wide, Store(own.sums, (*index, self.d), Load(own.sums, (*index, self.d)) * grown)),
        )
        return seq(factor, self.of_threads(each))

    def weighed(self, own: OwnBuffers, value: Buffer, power: Buffer) -> Stmt:
        """The sums of values by exponentials, of each thread's columns."""
        outer, inner = self.var("sum.outer"), self.var("sum.inner")
        j = outer * UNROLL + inner
        index = (self.w, self.i, self.x, self.d)
        held = (self.w, self.i, self.x, inner)
        next_ = self.each("i", self.own_rows, self.vector(inner, own.left, held, Load(power, (self.row, j))))
        product = Load(own.left, held) * Load(value, (j, self.d * self.size + self.x))
        rows = self.each("d", self.wide, self.each("i", self.own_rows, Store(own.sums, index, product, "sum")))
        steps = seq(next_, For(inner.name, UNROLL, "unroll", rows))
        return self.of_threads(For(outer.name, self.size // UNROLL, "serial", steps))

    # --- results ------------------------------------------------------------------------------------------------------

    def output(self, own: OwnBuffers, whole: Buffer) -> Stmt:
        """The output's elements, of rows and columns that there are."""
        column, place = self.d * self.size + self.x, (self.w, self.i)
        sums, total = Load(own.sums, (*place, self.x, self.d)), Load(whole, place)
        there = self.inside(self.whole_row, self.count, self.block_rows)
        exists = self.inside(column, self.form.columns.extent, self.size)
        s = stored(self, self.form, self.whole_row, column, sums, total)
        row = seq(self.each("d", self.wide, If(all_of(*exists), s) if exists else s),
                  *self.number(self.whole_row, Load(own.top, place), total))  # fmt: skip
        return self.of_threads(self.each("i", self.own_rows, If(all_of(*there), row) if there else row))


ATTENTION = Template("attention", _form, _space, _schedule, joins=True)

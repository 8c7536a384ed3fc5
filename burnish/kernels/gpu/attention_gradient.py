"""Gradient of attention without tensor cores: a launch for queries, and one for keys and values, as on tensor cores.

A block of 16 x 8 or 16 x 16 threads goes through blocks of keys (or of rows, for keys and values). Each thread computes
some rows' products with some keys, as a tile of sums in registers, of them exponentials and weights, which it stores in
shared memory, and then some rows' sums of some columns, as a tile, too. All numbers are float32. Nothing of the size of
all scores is in memory, and nothing is added by several blocks, so that the same bits come of every call.

Source: Dao 2023 (FlashAttention-2), algorithm 2, in two passes; register tiles: Volkov and Demmel 2008.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from burnish.kernels.gpu.attention import BUSY, UNROLL
from burnish.kernels.gpu.attention_form import HALF_FLOATS
from burnish.kernels.gpu.attention_gradient_form import (
    AttentionGradient,
    PairProduct,
    WeightedSum,
    attention_gradient,
)
from burnish.kernels.gpu.fetching import pitch
from burnish.kernels.gpu.forms import narrow
from burnish.kernels.gpu.gradient_blocks import GradientBlocks
from burnish.kernels.gpu.product import HELD, LARGEST, LOADS, MOST_UNROLLED, SHARE
from burnish.kernels.gpu.product_time import BEGIN, LATENCY, LAUNCH, fetch_seconds, flop_rate
from burnish.kernels.gpu.row_forms import program_of
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import ITEM_BYTES, SHARED, Buffer, Const, Expr, Load, cast, math
from burnish.loops.program import MOST_BLOCKS, For, Stmt, Store, seq
from burnish.machines.nvptx.occupancy import WARP, resident_blocks
from burnish.machines.nvptx.threads import SHARED_ALIGNMENT
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

DOWN = 16  # threads along the rows
ACROSS = (8, 16)  # and along keys and columns
ROWS = (1, 2, 4, 8)  # of a thread
KEYS = (2, 4, 8)  # of a thread
STAGES = (1, 2)  # blocks of keys in shared memory; 1: none ahead
MOST_COLUMNS = 128
FEWEST_ROWS = 16
MOST_REGISTERS = 237  # of a thread, estimated, with which none are spilled
EXPONENTIAL = 25.0  # multiply-adds that take as long as what is computed of a pair of products


def registers(form: AttentionGradient, across: int, rows: int, keys: int) -> int:
    """Registers of a thread, estimated."""
    own = [padded_columns(s.columns.extent, across) // across for s in form.sums]
    operands = UNROLL * max(rows + keys, rows + max(own) // UNROLL)
    return rows * (2 * keys + sum(own)) + operands + HELD


def shared_bytes(form: AttentionGradient, across: int, rows: int, keys: int, stages: int) -> int:
    """Bytes of shared memory of a block: its own rows, others of ``stages`` blocks, their numbers, and weights."""
    block, other = DOWN * rows, across * keys
    own = [row_elements(p, across) * ITEM_BYTES[narrow(p.left).dtype] for p in form.products]
    numbers = stages * len(form.numbers) * [4 * other]
    return sum(
        -(-n // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
        for n in (*(n * block for n in own), *(n * stages * other for n in own), *numbers, 4 * block * pitch(other, 4))
    )


def padded_columns(extent: int, across: int) -> int:
    """Columns with those beyond the last one, of which each thread has as many."""
    return -(-extent // across) * across


def column_vector(extent: int, across: int) -> int:
    """Neighbouring columns of a thread, which it loads at once."""
    return next(n for n in (UNROLL, 2, 1) if padded_columns(extent, across) % (across * n) == 0)


def row_elements(p: PairProduct, across: int) -> int:
    """Elements of a row of a product's factor in shared memory."""
    return pitch(max(-(-p.depth.extent // UNROLL) * UNROLL, padded_columns(p.depth.extent, across)),
                 ITEM_BYTES[narrow(p.left).dtype])  # fmt: skip


def _fitting(form: AttentionGradient, target: Target) -> list[tuple[int, int, int, int]]:
    """Threads across, rows and keys of a thread, and stages, for which there are registers and shared memory."""
    return [
        c
        for c in product(ACROSS, ROWS, KEYS, STAGES)
        if registers(form, *c[:3]) <= MOST_REGISTERS and shared_bytes(form, *c) <= target.shared_bytes
    ]


def _form(task: KernelTask, target: Target) -> AttentionGradient | None:
    """The gradient of attention of floats that a block's memory holds."""
    found = attention_gradient(task)
    if found is None:
        return None
    kinds = {narrow(e).dtype for p in found.products for e in (p.left, p.right)}
    widest = max(p.depth.extent for p in found.products)
    fits = widest <= MOST_COLUMNS and found.sizes[1] >= FEWEST_ROWS and found.sizes[0] <= MOST_BLOCKS["blockIdx.y"]
    known = len(kinds) == 1 and kinds <= {*HALF_FLOATS, "float32"}
    return found if fits and known and _fitting(found, target) else None


def _space(task: KernelTask, target: Target, form: AttentionGradient) -> ScheduleSpace:
    del task
    across, rows, keys, stages = _best(target, form)[1]
    knobs = {"across": ACROSS, "rows": ROWS, "keys": KEYS, "stages": STAGES}
    return ScheduleSpace(knobs, {"across": across, "rows": rows, "keys": keys, "stages": stages})


def _seconds(task: KernelTask, target: Target, form: AttentionGradient) -> float:
    del task
    return _best(target, form)[0]


def _best(target: Target, form: AttentionGradient) -> tuple[float, tuple[int, int, int, int]]:
    """The choice that is predicted to be fastest, after its seconds."""
    return min((predicted(form, target, c), c) for c in _fitting(form, target))


def predicted(form: AttentionGradient, target: Target, choice: tuple[int, int, int, int]) -> float:
    """Seconds of a launch in which no block of keys is hidden; see ``product_time.py``, of which the rates are."""
    across, rows, keys, stages = choice
    threads, block, other = DOWN * across, DOWN * rows, across * keys
    shared = shared_bytes(form, across, rows, keys, stages)
    blocks = -(-form.sizes[0] * -(-form.sizes[1] // block) // target.cores)
    most = max(resident_blocks(target.cpu, threads, registers(form, across, rows, keys), shared), 1)
    resident = min(most, blocks)
    work = rows * keys * EXPONENTIAL  # of a thread
    for p in form.products:
        work += p.depth.extent * (rows * keys + LOADS * (rows + keys))
    for s in form.sums:
        own = padded_columns(s.columns.extent, across) // across
        work += other * (rows * own + LOADS * (rows + own))
    rate = SHARE / LARGEST * flop_rate(target) * min(1.0, resident * threads / WARP / BUSY)
    fetched = other * sum(p.depth.extent * ITEM_BYTES[narrow(p.left).dtype] for p in form.products)
    copies = fetch_seconds(fetched, target) + LATENCY
    step = 2.0 * work * threads / rate
    step = max(step, copies) if stages > 1 or resident > 1 else step + copies
    return LAUNCH + BEGIN + blocks * form.outer.extent * -(-form.keys.extent // other) * step


def _schedule(task: KernelTask, target: Target, form: AttentionGradient, choice: Choice) -> Schedule:
    """``blocks(batch, rows) -> blocks of keys -> [fetch] -> products, exponentials, weights, sums``, then outputs."""
    del target
    k = ThreadGradient(task, form, int(choice["across"]), int(choice["rows"]), int(choice["keys"]))
    s = Schedule(program_of(task, k.body()))
    stages = int(choice["stages"]) if k.steps > 1 else 1
    others = [f"{k.name}.other{n}" for n in range(len(form.products))]
    others += [k.numbers[x].name for x, of_keys in k.of_keys.items() if of_keys]
    for name in others:
        (s.copy_async if stages > 1 else s.vectorize)(f"{name}.lane")
    for n in range(len(form.products)):
        s.vectorize(f"{k.name}.own{n}.lane")
    if stages > 1:
        s.pipeline(k.step.name, stages)
    return s


class ThreadGradient(GradientBlocks):
    """The program of one launch; see its base. Thread x, y has the block's rows 16 i + y and keys ``across`` n + x, and
    of a sum the columns (``across`` n + x) v + e, v of which are neighbours.

    Buffers of threads: ``held`` of both products [y, x, i, n], and ``sums`` [y, x, i, n, e]. Shared by all threads:
    ``weights`` of rows and keys.
    """

    def __init__(self, task: KernelTask, form: AttentionGradient, across: int, rows: int, keys: int) -> None:
        super().__init__(task, form, DOWN * rows, across * keys)
        self.form, self.across, self.own_keys, self.each_rows = form, across, keys, rows
        self.steps = form.outer.extent * self.per
        self.x, self.y, self.i = (self.var(name) for name in ("x", "y", "i"))
        self.row_shape = (DOWN, rows)
        own = (DOWN, across, rows)
        self.held = [self.buffer(f"held{n}", (*own, keys)) for n in range(len(form.products))]
        self.sums = [self.buffer(f"sums{n}", (*own, *self._parts(s))) for n, s in enumerate(form.sums)]
        rows_of = [(row_elements(p, across), narrow(p.left).dtype) for p in form.products]
        self.own_rows = [
            self.buffer(f"own{n}", (1, self.block_rows, wide), SHARED, dtype) for n, (wide, dtype) in enumerate(rows_of)
        ]
        self.other_rows = [
            Buffer(f"{self.name}.other{n}", (1, self.block_keys, wide), dtype, SHARED)
            for n, (wide, dtype) in enumerate(rows_of)
        ]
        self.weights = self.buffer("weights", (self.block_rows, pitch(self.block_keys, 4)), SHARED)
        most = max(keys, *(n for s in form.sums for n in self._parts(s)[:1]))
        self.left = self.buffer("left", (*own, UNROLL))
        self.right = self.buffer("right", (DOWN, across, most, UNROLL))

    # --- what a thread holds ------------------------------------------------------------------------------------------

    def _parts(self, s: WeightedSum) -> tuple[int, int]:
        """Groups of a thread's columns, and neighbours in each."""
        vector = column_vector(s.columns.extent, self.across)
        return self.wide(s) // (self.across * vector), vector

    @property
    def threads(self) -> int:
        """See the base."""
        return DOWN * self.across

    @property
    def thread(self) -> Expr:
        """See the base."""
        return self.y * self.across + self.x

    @property
    def row(self) -> Expr:
        """See the base."""
        return self.i * DOWN + self.y

    @property
    def row_index(self) -> tuple[Expr, ...]:
        """See the base."""
        return self.y, self.i

    @property
    def own(self) -> tuple[Expr, ...]:
        """A row of a thread."""
        return self.y, self.x, self.i

    def of_rows(self, *stmts: Stmt) -> Stmt:
        """See the base; threads next to each other do the same."""
        return For(self.y.name, DOWN, "threadIdx.y", self.each("i", self.each_rows, *stmts))

    def of_threads(self, *stmts: Stmt) -> Stmt:
        """See the base."""
        return For(self.y.name, DOWN, "threadIdx.y", For(self.x.name, self.across, "threadIdx.x", seq(*stmts)))

    def scores(self, name: str, body: Stmt) -> Stmt:
        """See the base."""
        return self.each("i", self.each_rows, self.each(f"{name}.n", self.own_keys, body))

    def score_at(self, name: str) -> tuple[tuple[Expr, ...], Expr]:
        """See the base."""
        n = self.var(f"{name}.n")
        return (*self.own, n), n * self.across + self.x

    def columns(self, name: str, s: WeightedSum, body: Stmt, whole: bool = False) -> Stmt:
        """See the base."""
        groups, vector = self._parts(s)
        body = For(self.var(f"{name}.e").name, vector, "vectorize" if whole and vector > 1 else "unroll", body)
        return self.each("i", self.each_rows, self.each(f"{name}.n", groups, body))

    def column_at(self, name: str, s: WeightedSum) -> tuple[tuple[Expr, ...], Expr]:
        """See the base."""
        n, e, vector = self.var(f"{name}.n"), self.var(f"{name}.e"), self._parts(s)[1]
        return (*self.own, n, e), (n * self.across + self.x) * vector + e

    def wide(self, s: WeightedSum) -> int:
        """See the base."""
        return padded_columns(s.columns.extent, self.across)

    # --- rows and products --------------------------------------------------------------------------------------------

    def fetched_rows(self, name: str, buffer: Buffer, p: PairProduct, own: bool) -> Stmt:
        """See the base; what is read beyond the last column is zero."""
        factor, rows = (p.left, self.rows_of_queries) if own else (p.right, self.rows_of_keys)
        width = max(-(-p.depth.extent // UNROLL) * UNROLL, padded_columns(p.depth.extent, self.across))
        return self.fetched(name, buffer, factor, p.depth, rows, width=width)

    def loaded(self, name: str, to: Buffer, place: tuple[Expr, ...], count: int, value: Load) -> Stmt:
        """Neighbours into registers at once; ``name``: the variable of their number."""
        kind = "vectorize" if count > 1 else "unroll"
        return For(self.var(name).name, count, kind, Store(to, (*place, self.var(name)), cast("float32", value)))

    def stepped(self, name: str, extent: int, products: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """Loop over UNROLL of a depth at a time; as many are written out as have MOST_UNROLLED ``products``."""
        outer, inner = self.var(f"{name}.outer"), self.var(f"{name}.inner")
        steps = extent // UNROLL
        several = next(n for n in (4, 2, 1) if steps % n == 0 and (n == 1 or n * products <= MOST_UNROLLED))
        first = (outer * several + inner if several > 1 else outer) * UNROLL
        written = For(inner.name, several, "unroll", body(first)) if several > 1 else body(first)
        return For(outer.name, steps // several, "serial", written)

    def multiplied(self, n: int) -> Stmt:
        """See the base."""
        name, rows, keys = f"product{n}", self.each_rows, self.own_keys
        (place, key), v, number = self.score_at(name), self.var(f"{name}.v"), self.var(f"{name}.n")
        right = (self.y, self.x, number)

        def step(first: Expr) -> Stmt:
            one, other = (
                Load(b, (Const(0), r, first + v)) for b, r in ((self.own_rows[n], self.row), (self.other_rows[n], key))
            )
            factors = Load(self.left, (*self.own, v)) * Load(self.right, (*right, v))
            return seq(
                self.each("i", rows, self.loaded(f"{name}.v", self.left, self.own, UNROLL, one)),
                self.each(f"{name}.n", keys, self.loaded(f"{name}.v", self.right, right, UNROLL, other)),
                self.each(f"{name}.v", UNROLL, self.scores(name, Store(self.held[n], place, factors, "sum"))),
            )

        deep = -(-self.form.products[n].depth.extent // UNROLL) * UNROLL
        return self.of_threads(self.cleared(n, f"none{n}"), self.stepped(name, deep, rows * keys * UNROLL, step))

    def power(self, held: Load, below: Load) -> Stmt:
        """See the base; as exact as elsewhere."""
        return Store(held.buffer, held.indices, math("exp", held - below))

    def weighed(self, n: int) -> Stmt:
        """See the base."""
        s, name, kept = self.form.sums[n], f"sum{n}", f"kept{n}"
        weight = Store(self.weights, (self.row, self.score_at(kept)[1]), self.known(s.weight, kept))
        (place, column), v, e = self.column_at(name, s), self.var(f"{name}.v"), self.var(f"{name}.e")
        right, (groups, vector) = (self.y, self.x, self.var(f"{name}.n")), self._parts(s)

        def step(first: Expr) -> Stmt:
            one = Load(self.weights, (self.row, first + v))
            other = Load(self.other_rows[s.source], (Const(0), first + v, column))
            factors = Load(self.left, (*self.own, v)) * Load(self.right, (*right, e))
            return seq(
                self.each("i", self.each_rows, self.loaded(f"{name}.v", self.left, self.own, UNROLL, one)),
                self.each(
                    f"{name}.v",
                    UNROLL,
                    self.each(f"{name}.n", groups, self.loaded(f"{name}.e", self.right, right, vector, other)),
                    self.columns(name, s, Store(self.sums[n], place, factors, "sum")),
                ),
            )

        summed = self.stepped(name, self.block_keys, self.each_rows * groups * vector * UNROLL, step)
        return seq(self.of_threads(self.scores(kept, weight)), self.of_threads(summed))


ATTENTION_GRADIENT = Template("attention_gradient", _form, _space, _schedule, seconds=_seconds)

"""Matrix products, batched products and convolutions for GPUs: tiles in shared memory, fetched by all threads of a
block.

A convolution is a product whose left or right matrix is never made: its elements are fetched from where they are in the
image (implicit product). A block computes a tile of the output, each thread some rows and columns of that, and its
accumulators are registers. Tiles are fetched some steps of the depth ahead.

Source: thesis-chen section 4.3.2, figure 4.7 (cooperative fetching).
"""

from __future__ import annotations

from itertools import product as product_of

from burnish.kernels.gpu.fetching import vector_of
from burnish.kernels.gpu.forms import ContractionForm, Depth, moves_fastest, narrow, padded, product
from burnish.kernels.gpu.nests import bind_blocks, bind_threads, block_order, fuse_all, nest, stored, var
from burnish.kernels.gpu.product_time import ProductSize, TileBlock, best, flop_rate, small_copies
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import ITEM_BYTES, Buffer, Const, Expr, Load, Var, all_of, cast
from burnish.loops.program import MOST_BLOCKS, Alloc, LoopProgram, Stmt, seq
from burnish.loops.reduction import identity
from burnish.loops.traverse import substitute, transform
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

SIDE = 16  # threads of a block in each direction
TILES = (16, 32, 64, 128)
DEPTHS = (8, 16, 32)
STAGES = (1, 2, 3, 4)  # tiles of each factor in shared memory; 1: none ahead
VECTOR = 4  # neighbouring rows and columns of a thread, read at once
ACROSS = (8, 16)  # threads of a warp next to each other, along the columns
MOST_UNROLLED = 256  # multiply-adds of a thread that are written out
PAD = 4  # elements between rows in shared memory beyond their own, so that columns are in different banks
FEWEST = 8  # rows and columns below which tiles are mostly empty
HELD = 45  # registers of a thread beside its sums and their operands
SHARE = 0.8  # of the declared rate, on an H100
LOADS = 1.5  # multiply-adds that take as long as the load of an operand of them
LARGEST = 64 / (64 + LOADS * 16)  # share of multiply-adds in the time of the largest tile, of 8 x 8 a thread
AHEAD = 0.93  # of the rate, with more than one tile ahead
LEAST = 0.1e-6  # seconds of a step
# What a block that is alone waits for an element of the depth: by its multiply-adds, and beside these.
WAITING, DELAY = 0.5, 6e-9


def _form(task: KernelTask, target: Target) -> ContractionForm | None:
    """A product of which both factors are read often enough to be worth sharing."""
    del target
    found = product(task)
    if found is None:
        return None
    batch, rows, columns, depth = found.sizes
    blocks = -(-rows // SIDE)
    worth = min(rows, columns) >= FEWEST and depth >= FEWEST
    return found if worth and max(batch, blocks) <= MOST_BLOCKS["blockIdx.y"] else None


def _space(task: KernelTask, target: Target, form: ContractionForm) -> ScheduleSpace:
    _, block = best(ProductSize.of(form, task, target), thread_blocks(form, target), target)
    widest = block.rows == block.columns == TILES[-1]
    default = {**dict(block.choice), "fetch": "shared", "across": ACROSS[0] if widest else SIDE}  # 2 % on an H100
    choices = {"tile_m": TILES, "tile_n": TILES, "depth": DEPTHS, "stages": STAGES, "fetch": ("shared", "global")}
    return ScheduleSpace({**choices, "across": ACROSS}, default)


def _seconds(task: KernelTask, target: Target, form: ContractionForm) -> float:
    return best(ProductSize.of(form, task, target), thread_blocks(form, target), target)[0]


def thread_blocks(form: ContractionForm, target: Target) -> list[TileBlock]:
    """Blocks of each tile: a warp of 2 x 16 threads reads two rows' elements, and its columns' once."""
    whole, found = SHARE * flop_rate(target), []
    item = max(ITEM_BYTES[narrow(e).dtype] for e in (form.left, form.right))
    depth = 8 if form.sizes[3] < 16 else 16
    for m, n, stages in product_of(TILES, TILES, STAGES[1:]):
        own_m, own_n = m // SIDE, n // SIDE
        own = own_m * own_n
        multiplied = own / (own + LOADS * (own_m + own_n)) / LARGEST
        rate = whole * multiplied * (AHEAD if stages > 2 else 1.0)
        registers, shared = own + own_m + own_n + HELD, stages * (m + n + 2 * PAD) * depth * item
        read, delay = 8 * depth * (32 * own_m + 64 * own_n), depth * (WAITING * 2 * m * n / rate + DELAY)
        choice = (("tile_m", m), ("tile_n", n), ("depth", depth), ("stages", stages))
        copies = small_copies(form, depth, (m, n))
        found.append(
            TileBlock(m, n, depth, stages - 1, SIDE * SIDE, registers, shared, read, rate, LEAST, delay, copies, choice)
        )
    return found


def _schedule(task: KernelTask, target: Target, form: ContractionForm, choice: Choice) -> Schedule:
    """``blocks(batch, m, n) -> threads(y, x) -> depth in blocks -> [fetch] -> depth -> own m -> own n``."""
    del target
    pad = PAD if choice["fetch"] == "shared" else 0
    t = Tiles(
        task,
        form,
        int(choice["tile_m"]),
        int(choice["tile_n"]),
        int(choice["depth"]),
        pad,
        int(choice.get("across", SIDE)),
    )
    s = Schedule(t.program())
    out, acc = form.output.name, t.acc.name
    b, mo, no, my, nx = (f"{out}.{name}" for name in ("b", "mo", "no", "my", "nx"))
    bind_blocks(s, block_order(s, b, mo, no) if form.is_plain else (b, mo, no))
    s.bind(my, "threadIdx.y")
    s.bind(nx, "threadIdx.x")
    s.compute_at(acc, nx)
    s.set_scope(acc, "register")
    for stage in (out, acc, f"{acc}.init"):
        for loop in ("mg", "mv", "ng"):
            s.unroll(f"{stage}.{loop}")
    whole = form.stores_runs and form.columns.extent % t.tile_n == 0 and t.vector_n > 1
    for stage in (out, acc, f"{acc}.init"):
        (s.vectorize if whole else s.unroll)(f"{stage}.nv")
    inner = min(MOST_UNROLLED // (t.own_m * t.own_n), t.depth.block)
    if t.depth.block > inner > 1:
        s.unroll(s.split(f"{acc}.ki", inner)[1])
    elif inner == t.depth.block:
        s.unroll(f"{acc}.ki")
    if choice["fetch"] == "global":
        s.compute_inline(t.left.name, t.right.name)
        return s
    ahead = int(choice.get("stages", 1)) > 1
    for stage in (t.left.name, t.right.name):
        s.set_scope(stage, "shared")
        s.compute_at(stage, f"{acc}.ko")
        *_, slow, fast = s.loops(stage)
        fast, v = s.split(fast, t.vector(stage))
        bind_threads(s, fuse_all(s, (slow, fast)), (SIDE, SIDE, 1), unrolled=8)
        (s.copy_async if ahead else s.vectorize if t.whole(stage) else s.unroll)(v)
    if ahead:
        s.pipeline(f"{acc}.ko", int(choice.get("stages", 1)))
    return s


class Tiles:
    """The program of a product in the coordinates of its tiles, before it is scheduled.

    Stages: ``left`` [b, mo, ko, ki, mi] and ``right`` [b, no, ko, ki, ni], padded with zeros to whole tiles, ``acc``
    [b, mo, no, my, nx, mg, mv, ng, nv], and the output. A thread has groups of four rows and columns, 64 apart, and its
    neighbours have neighbouring groups.
    """

    def __init__(
        self, task: KernelTask, form: ContractionForm, tile_m: int, tile_n: int, depth: int, pad: int, across: int
    ) -> None:
        self.task, self.form, self.tile_m, self.tile_n = task, form, tile_m, tile_n
        self.own_m, self.own_n, self.across = tile_m // SIDE, tile_n // SIDE, across
        self.vector_m, self.vector_n = min(VECTOR, self.own_m), min(VECTOR, self.own_n)
        self.depth: Depth = form.depth(depth)
        name, self.batch = form.anchor.name, form.batch.extent
        self.mo, self.no = -(-form.rows.extent // tile_m), -(-form.columns.extent // tile_n)
        block, ko = self.depth.block, self.depth.blocks
        self.left = Buffer(f"{name}.left", (self.batch, self.mo, ko, block, tile_m + pad), narrow(form.left).dtype)
        self.right = Buffer(f"{name}.right", (self.batch, self.no, ko, block, tile_n + pad), narrow(form.right).dtype)
        self.blocks = [("b", self.batch), ("mo", self.mo), ("no", self.no), ("my", SIDE), ("nx", SIDE)]
        self.own = [
            ("mg", self.own_m // self.vector_m), ("mv", self.vector_m),
            ("ng", self.own_n // self.vector_n), ("nv", self.vector_n),
        ]  # fmt: skip
        self.acc = Buffer(f"{name}.acc", tuple(n for _, n in (*self.blocks, *self.own)), form.anchor.dtype)

    def program(self) -> LoopProgram:
        """The naive loop program: always the same for equal tiles."""
        stages = seq(self._fetched("left"), self._fetched("right"), *self._sums(), self._output())
        body: Stmt = Alloc(self.left, Alloc(self.right, Alloc(self.acc, stages)))
        params = tuple(t.buffer for t in (*self.task.inputs, *self.task.outputs))
        return LoopProgram(self.task.name, params, body)

    def _fetched(self, side: str) -> Stmt:
        """One of the factors, tile after tile, in the order in which its elements are in memory."""
        left = side == "left"
        buffer = self.left if left else self.right
        stage, block = buffer.name, self.depth.block
        group, outer = (self.form.rows, "mo") if left else (self.form.columns, "no")
        count, tile = (self.mo, self.tile_m) if left else (self.no, self.tile_n)
        b, o, ko, ki, i = (var(stage, n) for n in ("b", outer, "ko", "ki", "i"))
        place = o * tile + i
        inside = None if group.extent % tile == 0 else place < group.extent
        values, deep = self.depth.at(ko, ki)
        values = {**values, **group.at(place), **self.form.batch.at(b)}
        value = padded(substitute(narrow(self.form.left if left else self.form.right), values), inside, deep)
        factor = self.form.left if left else self.form.right
        order = [("ki", block), ("i", tile)]
        if moves_fastest(factor, (self.depth, group)) == 0:
            order.reverse()
        loops = [("b", self.batch), (outer, count), ("ko", self.depth.blocks), *order]
        return nest(stage, loops, stored(buffer, (b, o, ko, ki, i), value))

    def vector(self, stage: str) -> int:
        """Elements of a stage that one copy takes: neighbours along the depth go to different rows."""
        left = stage == self.left.name
        factor, group = (self.form.left, self.form.rows) if left else (self.form.right, self.form.columns)
        along = moves_fastest(factor, (self.depth, group)) == 1
        return vector_of(narrow(factor), group) if along else 1

    def whole(self, stage: str) -> bool:
        """Whether no tile of a factor is cut off by the end of its rows or columns."""
        left = stage == self.left.name
        group, tile = (self.form.rows, self.tile_m) if left else (self.form.columns, self.tile_n)
        return group.extent % tile == 0

    def _place(self, stage: str) -> tuple[Expr, Expr]:
        """Row and column in the tile of the loops of a stage.

        A warp is 2 x 16 threads, or 4 x 8, which read from fewer places; not where indices of the output are quotients,
        of which it could not be shown that every thread has elements of its own.
        """
        my, nx, mg, mv, ng, nv = (var(stage, n) for n in ("my", "nx", "mg", "mv", "ng", "nv"))
        y: Expr = my
        x: Expr = nx
        if self.across < SIDE and self.form.is_plain:
            y, x = my // 4 * 4 + my % 2 * 2 + nx // 8, my // 2 % 2 * 8 + nx % 8
        row = (mg * SIDE + y) * self.vector_m + mv
        return row, (ng * SIDE + x) * self.vector_n + nv

    def _sums(self) -> tuple[Stmt, Stmt]:
        stage, dtype = self.acc.name, self.acc.dtype
        whole = [*self.blocks, *self.own]
        index = [var(stage, n, "init.") for n, _ in whole]
        init = nest(stage, whole, stored(self.acc, index, identity("sum", dtype)), "init.")
        index = [var(stage, n) for n, _ in whole]
        b, mo, no = index[:3]
        ko, ki = var(stage, "ko"), var(stage, "ki")
        row, column = self._place(stage)
        left: Expr = Load(self.left, (b, mo, ko, ki, row))
        right: Expr = Load(self.right, (b, no, ko, ki, column))
        left, right = cast(self.form.left.dtype, left), cast(self.form.right.dtype, right)
        loops = [*self.blocks, ("ko", self.depth.blocks), ("ki", self.depth.block), *self.own]
        return init, nest(stage, loops, stored(self.acc, index, left * right, "sum"))

    def _output(self) -> Stmt:
        form, stage = self.form, self.form.output.name
        whole = [*self.blocks, *self.own]
        index = [var(stage, name) for name, _ in whole]
        b, mo, no = index[:3]
        row, column = self._place(stage)
        m, n = mo * self.tile_m + row, no * self.tile_n + column
        store = output_store(form, Load(self.acc, tuple(index)), b, m, n, self.tile_m, self.tile_n)
        return nest(stage, whole, store)


def axes_of_one(form: ContractionForm) -> list[Var]:
    """Axes of the output, one for each of rows and columns of which there is one: indices there tell threads apart."""
    sides = sum(not group.axes for group in (form.rows, form.columns))
    return [axis for axis, n in zip(form.output.axes, form.output.shape, strict=True) if n == 1][:sides]


def output_store(
    form: ContractionForm, sum_: Load, b: Expr, m: Expr, n: Expr, tile_m: int, tile_n: int, first: Expr | None = None
) -> Stmt:
    """The output's element at a batch, a row and a column of the product, whose sum is in ``sum_``. ``first``: a column
    that there is wherever there is column ``n``.
    """
    values = {**form.batch.at(b), **form.rows.at(m), **form.columns.at(n)}
    conds = [
        place < group.extent
        for place, group, tile in ((m, form.rows, tile_m), (n if first is None else first, form.columns, tile_n))
        if group.extent % tile
    ]
    single = iter([place for place, group in ((m, form.rows), (n, form.columns)) if not group.axes])
    names = {axis.name: next(single) for axis in axes_of_one(form)}
    index = [names.get(axis.name, values.get(axis.name, Const(0))) for axis in form.output.axes]
    element = substitute(transform(form.value, lambda e: sum_ if e == form.sum_ else e), values)
    return stored(form.output.buffer, index, element, where=all_of(*conds) if conds else None)


PRODUCT = Template("shared_product", _form, _space, _schedule, seconds=_seconds)

"""Products on tensor cores: tiles in shared memory, fragments of them multiplied by warps, sums through shared memory.

Halves and bytes are multiplied exactly, and summed in float32 or int32. Products of float32 lose digits there (19 bits
of each factor count), and are such a kernel only where a search is asked for and rounding may change.
"""

from __future__ import annotations

from burnish.kernels.gpu.forms import Product, moves_fastest, narrow, padded, product
from burnish.kernels.gpu.nests import bind_blocks, bind_threads, fuse_all, nest, stored, var
from burnish.kernels.gpu.product import FEWEST, output_store
from burnish.kernels.task import Choice, Space, Task
from burnish.kernels.template import Template
from burnish.loops.expr import ITEM_BYTES, Buffer, Expr, Load, cast, identity
from burnish.loops.program import MOST_BLOCKS, Alloc, Program, Stmt, seq
from burnish.loops.traverse import substitute
from burnish.machines.nvptx.mma import COLUMNS, CORES, DOT, FRAGMENT, ROWS, STORE, WARP, ZERO, depth_of
from burnish.schedule.schedule import Schedule
from burnish.target import Target

TILES = (32, 64, 128)
WARPS = 2  # of a block in each direction
ROW_PAD = 16  # bytes between rows in shared memory, beyond their own: eight rows are then in different banks
SUM_PAD = 4  # elements, of the sums' rows
DEPTH_STEPS = (1, 2)  # instructions along the depth of a tile


def _form(task: Task, target: Target, floats: bool = False) -> Product | None:
    """A product whose stored factors are of one type that tensor cores multiply."""
    found = product(task)
    if found is None:
        return None
    left, right = narrow(found.left).dtype, narrow(found.right).dtype
    known = left == right and left in CORES and CORES[left][1] == found.anchor.dtype
    if not known or (left == "float32") != floats:
        return None
    intrinsics = target.machine.named_intrinsics
    if DOT[left].name not in intrinsics or not DOT[left].needs <= target.features:
        return None
    batch, rows, columns, depth = found.sizes
    worth = min(rows, columns, depth) >= FEWEST
    return found if worth and max(batch, -(-rows // TILES[0])) <= MOST_BLOCKS["blockIdx.y"] else None


def _space(task: Task, target: Target, form: Product) -> Space:
    del task
    batch, rows, columns, _ = form.sizes

    def seconds(tile: tuple[int, int]) -> float:
        m, n = tile
        blocks = batch * -(-rows // m) * -(-columns // n)
        return -(-blocks // target.cores) * (m * n + 16 * (m + n))

    tiles = [(m, n) for m in TILES for n in TILES if m * n <= 64 * 128]
    m, n = min(tiles, key=lambda tile: (seconds(tile), -tile[0] * tile[1]))
    return Space({"tile_m": TILES, "tile_n": TILES, "steps": DEPTH_STEPS}, {"tile_m": m, "tile_n": n, "steps": 2})


def _schedule(task: Task, target: Target, form: Product, choice: Choice) -> Schedule:
    """``blocks(batch, m, n) -> warps -> depth in blocks -> [fetch] -> instructions``, then the sums by all threads."""
    del target
    t = _Fragments(task, form, int(choice["tile_m"]), int(choice["tile_n"]), int(choice["steps"]))
    s = Schedule(t.program(), intrinsics=(*DOT.values(), *ZERO.values(), *STORE.values()), scopes=(FRAGMENT,))
    out, acc, sums = form.output.name, t.acc.name, t.sums.name
    block = (WARP, WARPS, WARPS)
    bind_blocks(s, [f"{out}.{name}" for name in ("b", "mo", "no")])
    s.set_scope(sums, "shared")
    s.compute_at(sums, f"{out}.no")
    bind_threads(s, fuse_all(s, (f"{out}.mi", f"{out}.ni")), block)
    s.bind(f"{sums}.wy", "threadIdx.z")
    s.bind(f"{sums}.wx", "threadIdx.y")
    s.compute_at(acc, f"{sums}.wx")
    s.set_scope(acc, FRAGMENT)
    for stage in (t.left.name, t.right.name):
        s.set_scope(stage, "shared")
        s.compute_at(stage, f"{acc}.ko")
        bind_threads(s, fuse_all(s, s.loops(stage)[-2:]), block, unrolled=8)
    for loop in ("mt", "nt"):
        for stage in (sums, acc, f"{acc}.init"):
            s.unroll(f"{stage}.{loop}")
    s.unroll(f"{acc}.ki")
    s.tensorize(f"{acc}.init.i", ZERO[t.acc.dtype])
    s.tensorize(f"{acc}.i", DOT[t.left.dtype])
    s.tensorize(f"{sums}.i", STORE[t.acc.dtype])
    return s


class _Fragments:
    """The program of a product in the coordinates of warps and instructions, before it is scheduled.

    Stages: ``left`` [b, mo, ko, mi, ki] and ``right`` [b, no, ko, ni, ki], ``acc`` [b, mo, no, wy, wx, mt, nt, i, j],
    ``sums`` [b, mo, no, mi, ni], and the output.
    """

    def __init__(self, task: Task, form: Product, tile_m: int, tile_n: int, steps: int) -> None:
        self.task, self.form, self.tile_m, self.tile_n, self.steps = task, form, tile_m, tile_n, steps
        dtype, name = narrow(form.left).dtype, form.anchor.name
        self.own_m, self.own_n = tile_m // WARPS // ROWS, tile_n // WARPS // COLUMNS
        self.core = depth_of(dtype)
        self.depth = form.depth(self.core * steps)
        self.batch, pad = form.batch.extent, ROW_PAD // ITEM_BYTES[dtype]
        self.mo, self.no = -(-form.rows.extent // tile_m), -(-form.columns.extent // tile_n)
        block, ko = self.depth.block, self.depth.blocks
        self.left = Buffer(f"{name}.left", (self.batch, self.mo, ko, tile_m, block + pad), dtype)
        self.right = Buffer(f"{name}.right", (self.batch, self.no, ko, tile_n, block + pad), dtype)
        tiles = (self.batch, self.mo, self.no, WARPS, WARPS, self.own_m, self.own_n, ROWS, COLUMNS)
        self.acc = Buffer(f"{name}.acc", tiles, form.anchor.dtype)
        self.sums = Buffer(f"{name}.sums", (self.batch, self.mo, self.no, tile_m, tile_n + SUM_PAD), form.anchor.dtype)
        self.blocks = [("b", self.batch), ("mo", self.mo), ("no", self.no)]
        self.warps = [*self.blocks, ("wy", WARPS), ("wx", WARPS)]
        self.tiles = [("mt", self.own_m), ("nt", self.own_n)]
        self.plane = [("i", ROWS), ("j", COLUMNS)]

    def program(self) -> Program:
        """The naive loop program."""
        stages = seq(self._fetched("left"), self._fetched("right"), *self._products(), self._summed(), self._output())
        body: Stmt = stages
        for buffer in (self.sums, self.acc, self.right, self.left):
            body = Alloc(buffer, body)
        return Program(self.task.name, tuple(t.buffer for t in (*self.task.inputs, *self.task.outputs)), body)

    def _fetched(self, side: str) -> Stmt:
        """One of the factors by rows along the depth."""
        left = side == "left"
        buffer = self.left if left else self.right
        stage = buffer.name
        group, outer = (self.form.rows, "mo") if left else (self.form.columns, "no")
        count, tile = (self.mo, self.tile_m) if left else (self.no, self.tile_n)
        b, o, ko, i, ki = (var(stage, n) for n in ("b", outer, "ko", "i", "ki"))
        place = o * tile + i
        inside = None if group.extent % tile == 0 else place < group.extent
        values, deep = self.depth.at(ko, ki)
        values = {**values, **group.at(place), **self.form.batch.at(b)}
        factor = self.form.left if left else self.form.right
        value = padded(substitute(narrow(factor), values), inside, deep)
        order = [("i", tile), ("ki", self.depth.block)]
        if moves_fastest(factor, (self.depth, group)) == 1:
            order.reverse()
        loops = [("b", self.batch), (outer, count), ("ko", self.depth.blocks), *order]
        return nest(stage, loops, stored(buffer, (b, o, ko, i, ki), value))

    def _products(self) -> tuple[Stmt, Stmt]:
        stage, wide = self.acc.name, self.acc.dtype
        whole = [*self.warps, *self.tiles, *self.plane]
        index = [var(stage, name, "init.") for name, _ in whole]
        init = nest(stage, whole, stored(self.acc, index, identity("sum", wide)), "init.")
        index = [var(stage, name) for name, _ in whole]
        b, mo, no, wy, wx, mt, nt, i, j = index
        ko, ki, k = (var(stage, n) for n in ("ko", "ki", "k"))
        row = wy * (self.tile_m // WARPS) + mt * ROWS + i
        column = wx * (self.tile_n // WARPS) + nt * COLUMNS + j
        left: Expr = Load(self.left, (b, mo, ko, row, ki * self.core + k))
        right: Expr = Load(self.right, (b, no, ko, column, ki * self.core + k))
        if left.dtype != wide:
            left, right = cast(wide, left), cast(wide, right)
        deep = [("ko", self.depth.blocks), ("ki", self.steps)]
        loops = [*self.warps, *deep, *self.tiles, *self.plane, ("k", self.core)]
        return init, nest(stage, loops, stored(self.acc, index, left * right, "sum"))

    def _summed(self) -> Stmt:
        stage = self.sums.name
        whole = [*self.warps, *self.tiles, *self.plane]
        index = [var(stage, name) for name, _ in whole]
        b, mo, no, wy, wx, mt, nt, i, j = index
        row = wy * (self.tile_m // WARPS) + mt * ROWS + i
        column = wx * (self.tile_n // WARPS) + nt * COLUMNS + j
        return nest(stage, whole, stored(self.sums, (b, mo, no, row, column), Load(self.acc, tuple(index))))

    def _output(self) -> Stmt:
        stage = self.form.output.name
        loops = [*self.blocks, ("mi", self.tile_m), ("ni", self.tile_n)]
        b, mo, no, mi, ni = (var(stage, name) for name, _ in loops)
        sum_ = Load(self.sums, (b, mo, no, mi, ni))
        m, n = mo * self.tile_m + mi, no * self.tile_n + ni
        return nest(stage, loops, output_store(self.form, sum_, b, m, n, self.tile_m, self.tile_n))


TENSOR_PRODUCT = Template("tensor_product", _form, _space, _schedule)
TF32_PRODUCT = Template(
    "tf32_product", lambda task, target: _form(task, target, floats=True), _space, _schedule, searched=True
)

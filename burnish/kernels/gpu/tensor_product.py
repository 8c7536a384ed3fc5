"""Products on tensor cores: tiles fetched ahead into shared memory, fragments multiplied by warps, sums in registers.

Halves and bytes are multiplied exactly, and summed in float32 or int32. Products of float32 lose digits there (19 bits
of each factor count), and are such a kernel only where the target's precision allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product as product_of

from burnish.kernels.gpu.fetching import by_columns, factor_tiles
from burnish.kernels.gpu.forms import ContractionForm, Depth, narrow, product
from burnish.kernels.gpu.nests import bind_blocks, block_order, fuse_all, nest, stored, var
from burnish.kernels.gpu.product import FEWEST, axes_of_one, output_store
from burnish.kernels.gpu.product_time import ProductSize, TileBlock, best, matrix_rate, small_copies
from burnish.kernels.gpu.vector_product import vector_form
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Buffer, Expr, Load, cast
from burnish.loops.program import Alloc, LoopProgram, Stmt, seq
from burnish.loops.reduction import identity
from burnish.machines.nvptx.mma import (
    CORES,
    DOT,
    DOT_COLUMNS,
    FRAGMENT,
    HALVES,
    ROW_BYTES,
    SIDE,
    WARP,
    depth_of,
    row_elements,
)
from burnish.machines.nvptx.wgmma import FEATURE as WGMMA
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

TILES_M, TILES_N = (16, 32, 64, 128), (16, 32, 64, 128, 256)
STAGES = (2, 3, 4, 6, 8)
PANEL = 64  # columns that a warp computes at a time, at most
HELD = 80  # registers of a thread beside its sums
MOST_REGISTERS = 1 << 16  # of a block
# Of the declared rate of tensor cores, what warps reach by themselves; beside instructions of four warps (an H200).
ALONE, BESIDE = 0.85, 0.48
LEAST = 0.4e-6  # seconds of a step of a whole row of 128 bytes; shorter ones take their share


def product_form(task: KernelTask, target: Target) -> ContractionForm | None:
    """A product whose stored factors are of one type that tensor cores multiply."""
    found = product(task)
    if found is None:
        return None
    left, right = narrow(found.left).dtype, narrow(found.right).dtype
    known = left == right and left in CORES and CORES[left][1] == found.anchor.dtype
    if not known or (left == "float32" and left not in target.rounded):
        return None
    intrinsics = target.machine.named_intrinsics
    if DOT[left].name not in intrinsics or not DOT[left].needs <= target.features:
        return None
    _, rows, columns, depth = found.sizes
    several = min(rows, columns) > 1 or bool(axes_of_one(found))
    few = left != "float32" and several and vector_form(found) is not None
    return found if few or min(rows, columns, depth) >= FEWEST else None


def best_tile(
    task: KernelTask, target: Target, form: ContractionForm, blocks: Iterable[TileBlock]
) -> tuple[float, Choice]:
    """Predicted seconds of the fastest of some blocks, and its knobs."""
    seconds, block = best(ProductSize.of(form, task, target), blocks, target)
    return seconds, dict(block.choice)


def tensor_blocks(form: ContractionForm, target: Target) -> list[TileBlock]:
    """Blocks of each tile, with every number of stages that there is memory for."""
    most = target.shared_bytes
    found = (_block(form, target, (m, n), stages) for m, n, stages in product_of(TILES_M, TILES_N, STAGES))
    return [b for b in found if b.shared <= most and b.threads * b.registers <= MOST_REGISTERS]


def _block(form: ContractionForm, target: Target, tile: tuple[int, int], stages: int) -> TileBlock:
    """Block of a tile. Columns that are stored as such are in shared memory whole panels of rows of 128 bytes."""
    (m, n), (deep, share), whole = tile, step_of(form), row_elements(narrow(form.left).dtype)
    (side_m, side_n), panel = warps_of(m, n), min(n, PANEL)
    own, warps = m // side_m, side_m * side_n
    stored_n = -(-n // whole) * whole if _columns(form) else n
    return TileBlock(
        m, n, deep, stages - 1, warps * WARP,
        min(own * panel // WARP + HELD, 255),
        stages * (m + stored_n) * ROW_BYTES,
        round(warps * (own + panel) * ROW_BYTES * share),
        matrix_rate(target) * (BESIDE if WGMMA in target.features else ALONE),
        LEAST * share,
        copies=share * small_copies(form, whole, tile),
        choice=(("tile_m", m), ("tile_n", n), ("stages", stages)),
    )  # fmt: skip


def _columns(form: ContractionForm) -> bool:
    """Whether the right factor is fetched by columns."""
    dtype = narrow(form.left).dtype
    return dtype in HALVES and by_columns(form, form.depth(row_elements(dtype), depth_of(dtype)))


def step_of(form: ContractionForm) -> tuple[int, float]:
    """Elements of the depth that a step goes through, and their share of a whole row in shared memory."""
    dtype = narrow(form.left).dtype
    whole = row_elements(dtype)
    deep = form.depth(whole, depth_of(dtype)).block
    return deep, deep / whole


def warps_of(m: int, n: int) -> tuple[int, int]:
    """Warps along the rows and the columns of a tile."""
    across = max(n // PANEL, 1)
    return (1 if m == SIDE else 4 if m == 128 and across == 1 else 2), across


def _space(task: KernelTask, target: Target, form: ContractionForm) -> ScheduleSpace:
    blocks = tensor_blocks(form, target)
    knobs = {"tile_m": TILES_M, "tile_n": TILES_N, "stages": STAGES}
    return going_on(ScheduleSpace(knobs, best_tile(task, target, form, blocks)[1]), task, target, form, blocks)


def going_on(
    space: ScheduleSpace, task: KernelTask, target: Target, form: ContractionForm, blocks: Iterable[TileBlock]
) -> ScheduleSpace:
    """A space with the choice of blocks that go over several tiles, where there are more than run at a time."""
    work = ProductSize.of(form, task, target)
    if all(work.tiles(block) <= block.at_once(target) for block in blocks):
        return space
    return ScheduleSpace({**space.knobs, "persistent": (0, 1)}, {**space.default, "persistent": 0})


def _seconds(task: KernelTask, target: Target, form: ContractionForm) -> float:
    return best_tile(task, target, form, tensor_blocks(form, target))[0]


def _schedule(task: KernelTask, target: Target, form: ContractionForm, choice: Choice) -> Schedule:
    """``blocks(batch, m, n) -> warps -> threads -> depth in blocks -> [fetch] -> instructions``, then the output."""
    m, n = tile = int(choice["tile_m"]), int(choice["tile_n"])
    t = Fragments(task, form, m, n)
    s = Schedule(t.program(), intrinsics=(*DOT.values(), *DOT_COLUMNS.values()), scopes=(FRAGMENT,))
    stages = min(int(choice["stages"]), target.shared_bytes // _block(form, target, tile, 1).shared)
    blocks = _block(form, target, tile, stages).at_once(target) if choice.get("persistent") else None
    out, acc, tiles = place_product(s, form, t, blocks)
    for loop in ("mt", "p", "nt"):
        for stage in (out, acc, f"{acc}.init"):
            s.unroll(f"{stage}.{loop}")
    s.unroll(f"{acc}.ks")
    finish_thread(s, out, acc, "jhe", in_pairs(form))
    s.tensorize(f"{acc}.j", (DOT_COLUMNS if t.columns else DOT)[t.left.buffer.dtype])
    pipeline_product(s, f"{acc}.ko", stages, None, tiles, blocks)
    return s


def place_product(
    s: Schedule, form: ContractionForm, t: Fragments, blocks: int | None = None
) -> tuple[str, str, Sequence[str]]:
    """Binds the output's loops to blocks and threads, with sums in fragments; the output's name and the sums'.

    Where there are more tiles than ``blocks``, also the loops over tiles, for :func:`pipeline_product`.
    """
    out, acc = form.output.name, t.acc.name
    loops: Sequence[str] = (f"{out}.b", f"{out}.mo", f"{out}.no")
    loops = block_order(s, *loops) if form.is_plain else loops
    tiles = loops if blocks is not None and form.batch.extent * t.mo * t.no > blocks else ()
    for loop in tiles:
        s.bind(loop, "blockIdx.x")
    if not tiles:
        bind_blocks(s, loops)
    for loop, thread in (("wy", "z"), ("wx", "y"), ("lane", "x")):
        s.bind(f"{out}.{loop}", f"threadIdx.{thread}")
    s.compute_at(acc, f"{out}.lane")
    s.set_scope(acc, FRAGMENT)
    for tile in (t.left, t.right):
        tile.schedule(s, f"{acc}.ko", (WARP, t.warps_n, t.warps_m))
    return out, acc, tiles


def pipeline_product(
    s: Schedule, loop: str, stages: int, behind: int | None, tiles: Sequence[str], blocks: int | None
) -> None:
    """Fetches steps of the depth ahead; with loops over ``tiles``, of which each of ``blocks`` goes over several, those
    of the next tile, too.
    """
    turn = s.stride(fuse_all(s, tiles), blocks)[1] if tiles and blocks is not None else None
    s.pipeline(loop, stages, behind, turn)


def finish_thread(s: Schedule, out: str, acc: str, own: str, even: bool) -> None:
    """Writes out what a thread computes of a tile's output: loops ``own``, the last of which is of two neighbours."""
    for loop in own:
        s.unroll(f"{acc}.init.{loop}")
        if loop == own[-1] and even:
            s.vectorize(f"{out}.{loop}")
        else:
            s.unroll(f"{out}.{loop}")


class Fragments:
    """The program of a product in the coordinates of warps, threads and instructions, before it is scheduled.

    Stages: ``left`` and ``right``, see :class:`Tile`, ``acc`` [b, mo, no, wy, wx, lane, mt, p, nt, j, h, e], and the
    output. Thread 4 g + t of a warp has rows g + 8 h and columns 8 j + 2 t + e of the tiles ``mt``, ``nt``.
    """

    def __init__(self, task: KernelTask, form: ContractionForm, tile_m: int, tile_n: int, boxes: bool = False) -> None:
        self.task, self.form, self.tile_m, self.tile_n = task, form, tile_m, tile_n
        dtype, name = narrow(form.left).dtype, form.anchor.name
        self.core, self.depth = depth_of(dtype), form.depth(row_elements(dtype), 0 if boxes else depth_of(dtype))
        self._divide()
        self.mo, self.no = -(-form.rows.extent // tile_m), -(-form.columns.extent // tile_n)
        self.columns = dtype in HALVES and by_columns(form, self.depth)
        sizes = [(self.mo, tile_m), (self.no, tile_n)]
        self.left, self.right = factor_tiles(form, name, sizes, self.depth, self.columns, boxes)
        self.blocks = [("b", form.batch.extent), ("mo", self.mo), ("no", self.no)]
        self.threads = [("wy", self.warps_m), ("wx", self.warps_n), ("lane", WARP)]
        whole = [*self.blocks, *self.threads, *self.tiles, *self.own]
        self.acc = Buffer(f"{name}.acc", tuple(n for _, n in whole), form.anchor.dtype)

    def _divide(self) -> None:
        """A tile among warps, and their parts among instructions."""
        self.warps_m, self.warps_n = warps_of(self.tile_m, self.tile_n)
        self.own_m = self.tile_m // self.warps_m
        self.tiles = [("mt", self.own_m // SIDE), ("p", 1), ("nt", min(self.tile_n, PANEL) // SIDE)]
        self.own = [("j", 2), ("h", 2), ("e", 2)]

    def place(self, stage: str) -> tuple[Expr, Expr, Expr]:
        """Row in the tile, and panel and column of it, of the loops of a stage."""
        wy, wx, lane, mt, p, nt, j, h, e = (var(stage, name) for name, _ in (*self.threads, *self.tiles, *self.own))
        return wy * self.own_m + mt * SIDE + lane // 4 + h * 8, wx + p, nt * SIDE + j * 8 + lane % 4 * 2 + e

    def loops(self, depth: Depth) -> list[tuple[str, int]]:
        """The loops of the sums."""
        deep = [("ko", depth.blocks), ("ks", depth.block // self.core)]
        return [*self.blocks, *self.threads, *deep, *self.tiles, *self.own, ("k", self.core)]

    def program(self) -> LoopProgram:
        """The naive loop program."""
        body: Stmt = seq(self.left.stage(), self.right.stage(), *sums(self), output(self))
        for buffer in (self.acc, self.right.buffer, self.left.buffer):
            body = Alloc(buffer, body)
        return LoopProgram(self.task.name, tuple(t.buffer for t in (*self.task.inputs, *self.task.outputs)), body)


def sums(t: Fragments) -> tuple[Stmt, Stmt]:
    """The sums' identity, and the nest that adds to them."""
    stage, wide = t.acc.name, t.acc.dtype
    whole = [*t.blocks, *t.threads, *t.tiles, *t.own]
    index = [var(stage, name, "init.") for name, _ in whole]
    init = nest(stage, whole, stored(t.acc, index, identity("sum", wide)), "init.")
    index = [var(stage, name) for name, _ in whole]
    b, mo, no, ko, ks, k = (var(stage, n) for n in ("b", "mo", "no", "ko", "ks", "k"))
    row, panel, column = t.place(stage)
    inside = ks * t.core + k
    left: Expr = t.left.at(b, mo, ko, row * 0, row, inside)
    right: Expr = t.right.at(b, no, ko, panel, column, inside)
    if not t.columns:
        right = Load(t.right.buffer, (b, no, ko, panel * PANEL + column, inside))
    if left.dtype != wide:
        left, right = cast(wide, left), cast(wide, right)
    return init, nest(stage, t.loops(t.depth), stored(t.acc, index, left * right, "sum"))


def output(t: Fragments) -> Stmt:
    """The nest of the output, of each thread what it has the sums of."""
    stage = t.form.output.name
    whole = [*t.blocks, *t.threads, *t.tiles, *t.own]
    index = [var(stage, name) for name, _ in whole]
    b, mo, no = index[:3]
    row, panel, column = t.place(stage)
    m, n = mo * t.tile_m + row, no * t.tile_n + panel * PANEL + column
    first = n - var(stage, "e") if in_pairs(t.form) else None
    return nest(stage, whole, output_store(t.form, Load(t.acc, tuple(index)), b, m, n, t.tile_m, t.tile_n, first))


def in_pairs(form: ContractionForm) -> bool:
    """Whether a thread's two neighbours in a row of the output exist both or not at all, and lie together."""
    return form.stores_runs and form.columns.axes[-1].extent % 2 == 0


TENSOR_PRODUCT = Template("tensor_product", product_form, _space, _schedule, seconds=_seconds)

"""Products on Hopper's tensor cores: four warps at a time multiply tiles of 64 x N that other copies are under way to.

As ``tensor_product``, by ``wgmma``: both operands are read from shared memory by the tensor cores themselves, and the
products of one block of the depth go on while the next ones are fetched.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnish.kernels.gpu.forms import ContractionForm, narrow
from burnish.kernels.gpu.nests import var
from burnish.kernels.gpu.product_time import TileBlock, matrix_rate, small_copies
from burnish.kernels.gpu.tensor_product import (
    Fragments,
    best_tile,
    finish_thread,
    going_on,
    in_pairs,
    pipeline_product,
    place_product,
    product_form,
    step_of,
)
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Expr
from burnish.machines.nvptx.mma import FRAGMENT, ROW_BYTES, WARP, row_elements
from burnish.machines.nvptx.wgmma import FEATURE, GROUP_WARPS, PANEL, ROWS, WGMMA, WGMMA_INTRINSICS
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

# Of 192 columns are those of which a product may have fewer in its last wave of blocks, or beyond its end.
SIDES = ((64, (64, 128, 192, 256)), (128, (64, 128, 192, 256)), (256, (64, 128)))
TILES = tuple((m, n) for m, columns in SIDES for n in columns)
STAGES = (3, 4, 6, 8)
# By copies of all threads, or boxes of tensors that one begins: registers of a thread beside its sums, as assembled.
FETCHES = {"threads": 34, "boxes": 26}
FETCH = "threads"  # unless measured otherwise: no GPU has executed boxes yet
STAGE_BYTES = 226 << 10  # of all stages, so that there is room for the mbarriers of boxes
MBARRIER_BYTES = 1 << 10  # in shared memory, of all stages
SHARE = 0.9  # of the declared rate of tensor cores, on an H200
LEAST = 0.4e-6  # seconds of a step of a whole row of 128 bytes; shorter ones take their share


def _form(task: KernelTask, target: Target) -> ContractionForm | None:
    return product_form(task, target) if FEATURE in target.features else None


def _space(task: KernelTask, target: Target, form: ContractionForm) -> ScheduleSpace:
    choices: dict[str, Sequence[int | str]] = {"tile": tuple(f"{m}x{n}" for m, n in TILES), "stages": STAGES}
    blocks = warpgroup_blocks(form, target)
    best = best_tile(task, target, form, blocks)[1]
    if _Groups(task, form, *TILES[0], boxes=True).fetches_boxes:
        choices["fetch"], best = tuple(FETCHES), {**best, "fetch": FETCH}
    return going_on(ScheduleSpace(choices, best), task, target, form, blocks)


def _seconds(task: KernelTask, target: Target, form: ContractionForm) -> float:
    return best_tile(task, target, form, warpgroup_blocks(form, target))[0]


def warpgroup_blocks(form: ContractionForm, target: Target, fetch: str = FETCH) -> list[TileBlock]:
    """Blocks of each tile, with every number of stages that there is memory for."""
    return [
        _block(form, target, (m, n), stages, fetch)
        for m, n in TILES
        for stages in STAGES
        if stages <= _most_stages((m, n))
    ]


def _block(form: ContractionForm, target: Target, tile: tuple[int, int], stages: int, fetch: str) -> TileBlock:
    """Block of a tile; its tensor cores read rows of the left operand for every 256 columns at most.

    ``fetch``: boxes leave a thread more registers, and take shared memory for what counts them; their steps are whole
    rows of 128 bytes, also where the depth would fill shorter ones. That a step of theirs has one barrier less, and
    fewer instructions, is no part of the prediction.
    """
    (m, n), boxes, whole = tile, fetch == "boxes", row_elements(narrow(form.left).dtype)
    deep, share = (whole, 1.0) if boxes else step_of(form)
    groups = min(2, m // ROWS)
    return TileBlock(
        m, n, deep, stages - 2, groups * GROUP_WARPS * WARP,
        m // groups * n // (GROUP_WARPS * WARP) + FETCHES[fetch],
        stages * (m + n) * ROW_BYTES + (MBARRIER_BYTES if boxes else 0),
        round(m // ROWS * (ROWS + n) * ROW_BYTES * share),
        SHARE * matrix_rate(target),
        LEAST * share,
        copies=0.0 if boxes else share * small_copies(form, whole, tile),
        choice=(("tile", f"{m}x{n}"), ("stages", stages)),
    )  # fmt: skip


def _most_stages(tile: tuple[int, int]) -> int:
    return STAGE_BYTES // (sum(tile) * ROW_BYTES)


def _schedule(task: KernelTask, target: Target, form: ContractionForm, choice: Choice) -> Schedule:
    """``blocks(batch, m, n) -> groups -> warps -> threads -> depth in blocks -> [fetch] -> instructions``.

    Persistent: ``blocks -> tiles -> groups -> ...``, where steps of the depth are counted on from tile to tile.
    """
    m, n = (int(side) for side in str(choice["tile"]).split("x"))
    stages, fetch = min(int(choice["stages"]), _most_stages((m, n))), str(choice.get("fetch", FETCH))
    blocks = _block(form, target, (m, n), stages, fetch).at_once(target) if choice.get("persistent") else None
    t = _Groups(task, form, m, n, boxes=fetch == "boxes")
    s = Schedule(t.program(), intrinsics=WGMMA_INTRINSICS, scopes=(FRAGMENT,))
    out, acc, tiles = place_product(s, form, t, blocks)
    for stage in (out, acc, f"{acc}.init"):
        s.unroll(f"{stage}.mt")
    s.unroll(f"{acc}.ks")
    s.unroll(f"{out}.p")
    s.unroll(f"{acc}.init.p")
    finish_thread(s, out, acc, "jhe", in_pairs(form))
    s.tensorize(f"{acc}.p", WGMMA[t.left.buffer.dtype, n, t.columns])
    pipeline_product(s, f"{acc}.ko", stages, 1, tiles, blocks)
    return s


class _Groups(Fragments):
    """As its base, for groups of four warps ``wx``, of which a block has up to two, ``wy``.

    ``acc`` [b, mo, no, wy, wx, lane, mt, p, j, h, e]: thread 4 g + t of warp w has rows 16 w + g + 8 h of tiles ``mt``
    of 64, and columns 8 j + 2 t + e of panels ``p`` of 64.
    """

    @property
    def fetches_boxes(self) -> bool:
        """Whether both factors can be fetched as boxes of tensors."""
        return self.left.boxes and self.right.boxes

    def _divide(self) -> None:
        self.warps_m, self.warps_n = min(2, self.tile_m // ROWS), GROUP_WARPS
        self.own_m = self.tile_m // self.warps_m
        self.tiles = [("mt", self.own_m // ROWS), ("p", self.tile_n // PANEL)]
        self.own = [("j", 8), ("h", 2), ("e", 2)]

    def place(self, stage: str) -> tuple[Expr, Expr, Expr]:
        """See the base."""
        wy, wx, lane, mt, p, j, h, e = (var(stage, name) for name, _ in (*self.threads, *self.tiles, *self.own))
        return wy * self.own_m + mt * ROWS + wx * 16 + lane // 4 + h * 8, p, j * 8 + lane % 4 * 2 + e


WARPGROUP_PRODUCT = Template("warpgroup_product", _form, _space, _schedule, seconds=_seconds)

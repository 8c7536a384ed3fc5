"""Gradient of attention on tensor cores (flash backward): a launch for queries, and one for keys and values.

A block of the first one has rows of queries and adjoints, and goes through blocks of keys and values; of the second one
keys and values, and goes through queries and adjoints. Both compute scores and exponentials again, from the logarithm
of each row's sum, and keep them in registers: nothing of the size of all scores is in memory, and nothing is added by
several blocks, so that the same bits come of every call.

Source: Dao et al. 2022 (FlashAttention), algorithm 4; Dao 2023 (FlashAttention-2), algorithm 2, in two passes.
"""

from __future__ import annotations

from burnish.kernels.gpu.attention_gradient_form import AttentionGradient, attention_gradient
from burnish.kernels.gpu.forms import narrow
from burnish.kernels.gpu.gradient_tiles import GradientTiles, tiles_of
from burnish.kernels.gpu.row_forms import program_of
from burnish.kernels.gpu.tensor_attention import MOST_COLUMNS, STAGES, TILES, WARPS, fitting, multiplies_held
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.program import MOST_BLOCKS
from burnish.machines.nvptx.exponential import EXP_DIFFERENCE
from burnish.machines.nvptx.mma import DOT, DOT_HELD, ROW_BYTES, SIDE, row_elements
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

KEYS = (16, 32, 64, 128)  # of a block
MOST_SUMS = 176  # registers of one thread for both products, weights as they are multiplied, and sums
WIDEST = 128  # columns of sums that a block has; wider ones are divided among blocks
DEFAULT_KEYS = 64
PLACES = 16  # registers of a thread for the places of what is of several heads


def parts_of(form: AttentionGradient) -> int:
    """Blocks that share the columns of sums."""
    return -(-max(s.columns.extent for s in form.sums) // WIDEST)


def type_of(form: AttentionGradient) -> str:
    """The element type of what is multiplied."""
    return narrow(form.products[0].left).dtype


def registers(form: AttentionGradient, tiles: int, keys: int) -> int:
    """Registers of a thread, with ``tiles`` of 16 rows of a warp."""
    parts = parts_of(form)
    sums = sum(tiles_of(s.columns.extent, parts) * SIDE // parts // 2 for s in form.sums)
    weights = keys * ITEM_BYTES[type_of(form)] // 8 * len(form.sums)
    return tiles * (keys + weights + sums) + PLACES * (form.outer.extent > 1)


def shared_bytes(form: AttentionGradient, warps: int, tiles: int, keys: int, stages: int) -> int:
    """Bytes of shared memory of a block: its own rows, and others of ``stages`` copies under way."""
    parts, row = parts_of(form), row_elements(type_of(form))
    rows = sum(-(-tiles_of(p.depth.extent, parts) * SIDE // row) * ROW_BYTES for p in form.products)
    return rows * (warps * tiles * SIDE + stages * keys) + stages * keys * 4 * len(form.numbers)


def _fitting(form: AttentionGradient, target: Target) -> list[tuple[int, int, int]]:
    def shared(warps: int, tiles: int, keys: int) -> int:
        return shared_bytes(form, warps, tiles, keys, STAGES[0])

    return fitting(target, KEYS, lambda tiles, keys: registers(form, tiles, keys) <= MOST_SUMS, shared)


def _form(task: KernelTask, target: Target) -> AttentionGradient | None:
    """The gradient of attention of what tensor cores multiply, with enough rows for a tile."""
    found = attention_gradient(task)
    if found is None or not multiplies_held(target, type_of(found)):
        return None
    kinds = {e.dtype for p in found.products for e in (p.left, p.right)}
    widest = max(p.depth.extent for p in found.products)
    fits = widest <= MOST_COLUMNS and found.sizes[0] <= MOST_BLOCKS["blockIdx.y"] and found.sizes[1] >= SIDE
    return found if fits and len(kinds) == 1 and _fitting(found, target) else None


def _space(task: KernelTask, target: Target, form: AttentionGradient) -> ScheduleSpace:
    del task
    batch, rows = form.sizes[:2]

    def cost(choice: tuple[int, int, int]) -> tuple[float, int]:
        """Rows that the multiprocessors compute one after another, of blocks whose others are fetched once for all."""
        warps, tiles, keys = choice
        block = warps * tiles * SIDE
        blocks = batch * parts_of(form) * -(-rows // block)
        waves = -(-blocks // target.cores)
        return waves * (block + keys) * (1.0 if keys >= 32 else 1.5), -block * keys

    allowed = [c for c in _fitting(form, target) if c[2] <= DEFAULT_KEYS and c[0] <= 4]
    warps, tiles, keys = min(allowed, key=cost)
    knobs = {"warps": WARPS, "tiles": TILES, "keys": KEYS, "stages": STAGES}
    return ScheduleSpace(knobs, {"warps": warps, "tiles": tiles, "keys": keys, "stages": 2})


def _schedule(task: KernelTask, target: Target, form: AttentionGradient, choice: Choice) -> Schedule:
    """``blocks(batch, rows) -> blocks of keys -> [fetch] -> products, exponentials, weights, sums``, then outputs."""
    del target
    k = GradientTiles(task, form, int(choice["warps"]), int(choice["tiles"]), int(choice["keys"]), parts_of(form))
    s = Schedule(program_of(task, k.body()), intrinsics=(DOT[k.dtype], DOT_HELD[k.dtype], EXP_DIFFERENCE))
    for n in range(len(form.products)):
        s.vectorize(f"{k.name}.own{n}.lane")
        s.copy_async(f"{k.name}.other{n}.lane")
        s.tensorize(f"{k.name}.product{n}.j", DOT[k.dtype])
    for x in form.numbers:
        if k.of_keys[x]:
            s.copy_async(f"{k.numbers[x].name}.lane")
    for n in range(len(form.sums)):
        s.tensorize(f"{k.name}.sum{n}.j", DOT_HELD[k.dtype])
    s.pipeline(k.step.name, min(int(choice["stages"]), k.steps + 1) if k.steps > 1 else 2)
    return s


TENSOR_ATTENTION_GRADIENT = Template("tensor_attention_gradient", _form, _space, _schedule)

"""Attention on tensor cores: scores, their softmax and the sums of values stay in the registers of a warp.

A block computes some rows of queries, each warp tiles of 16 of these. Of a block of keys, which is fetched while the
block before is computed with, the warp multiplies its queries with the keys, takes the exponentials, and multiplies
these with the values: what one product leaves in a thread's registers is where the next one reads its left operand.
Four neighbouring threads hold a row, whose greatest score they find by shuffles.

Source: Dao 2023 (FlashAttention-2), algorithm 1 and section 3.3; PTX ISA, "Matrix Fragments for mma.m16n8k16".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from burnish.kernels.gpu.attention_form import Attention, attention
from burnish.kernels.gpu.attention_tiles import AttentionTiles, keys_across
from burnish.kernels.gpu.forms import narrow
from burnish.kernels.gpu.row_forms import program_of
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.program import MOST_BLOCKS
from burnish.machines.nvptx.mma import DOT, DOT_COLUMNS, DOT_HELD, HALVES, SIDE, row_elements
from burnish.machines.nvptx.warp import QUAD_REDUCE
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

WARPS = (1, 2, 4, 8)
TILES = (1, 2)  # of 16 rows, of a warp
KEYS = (32, 64, 128)  # of a block
STAGES = (2, 3, 4)
FEWEST_ROWS = 16
MOST_COLUMNS = 256
MOST_SUMS = 192  # of one thread, of scores, of exponentials and of values
OVERHEAD = 48  # rows that a block takes as long for beside its own: fetching, and what happens once


def multiplies_held(target: Target, dtype: str) -> bool:
    """Whether the target's tensor cores multiply what is held in registers: halves, and float32 where it may be rounded
    to 19 bits.
    """
    known = target.machine.named_intrinsics.get(DOT_HELD[dtype].name) if dtype in DOT_HELD else None
    return known is not None and known.needs <= target.features and (dtype in HALVES or dtype in target.rounded)


def tensor_form(task: KernelTask, target: Target) -> Attention | None:
    """Attention of operands that tensor cores multiply, with enough rows for a tile."""
    found = attention(task)
    if found is None or not multiplies_held(target, narrow(found.query).dtype):
        return None
    batch, rows, _, depth, columns = found.sizes
    kinds = {narrow(e).dtype for e in (found.query, found.key, found.value)}
    fits = max(depth, columns) <= MOST_COLUMNS and batch <= MOST_BLOCKS["blockIdx.y"] and rows >= FEWEST_ROWS
    return found if fits and len(kinds) == 1 and _fitting(found, target) else None


def registers(form: Attention, tiles: int, keys: int) -> int:
    """Registers of a thread for scores, and sums of values, with ``tiles`` of 16 rows of a warp, and for scores in
    halves, or for operands of float32, of which each has a register.
    """
    whole = keys // 2 + -(-form.columns.extent // SIDE) * SIDE // 2
    return tiles * (whole + (keys if narrow(form.query).dtype in HALVES else whole) // 4)


def fitting(
    target: Target, keys: Iterable[int], allows: Callable[[int, int], bool], shared: Callable[[int, int, int], int]
) -> list[tuple[int, int, int]]:
    """Warps, tiles of a warp and keys of a block, of which ``allows(tiles, keys)``, that shared memory has room for."""
    every = product(WARPS, TILES, keys)
    return [(w, t, k) for w, t, k in every if allows(t, k) and shared(w, t, k) <= target.shared_bytes]


def _fitting(form: Attention, target: Target) -> list[tuple[int, int, int]]:
    def shared(warps: int, tiles: int, keys: int) -> int:
        return shared_bytes(form, warps, tiles, keys, STAGES[0])

    return fitting(target, KEYS, lambda tiles, keys: registers(form, tiles, keys) <= MOST_SUMS, shared)


def shared_bytes(form: Attention, warps: int, tiles: int, keys: int, stages: int) -> int:
    """Bytes of shared memory of a block: its queries, and keys and values of ``stages`` copies under way."""
    dtype = narrow(form.query).dtype
    row = row_elements(dtype)
    deep, wide = (-(-extent // row) * row for extent in form.sizes[3:])
    across = -(-keys // row) * row if keys_across(form) else keys
    return ITEM_BYTES[dtype] * (deep * warps * tiles * SIDE + stages * (across * deep + keys * wide))


def _space(task: KernelTask, target: Target, form: Attention) -> ScheduleSpace:
    del task
    batch, rows, keys, _, _ = form.sizes

    def cost(choice: tuple[int, int, int]) -> tuple[float, int]:
        """Rows that the multiprocessors compute one after another; more keys at a time cost fewer rounds."""
        warps, tiles, own = choice
        block = warps * tiles * SIDE
        blocks = batch * -(-rows // block)
        waste = -(-keys // own) * own / keys
        return -(-blocks // target.cores) * (block + OVERHEAD) * waste * (1.0 if tiles > 1 else 1.15), -own * warps

    allowed = [c for c in _fitting(form, target) if c[2] <= 64]
    warps, tiles, own = min(allowed, key=cost)
    knobs = {"warps": WARPS, "tiles": TILES, "keys": KEYS, "stages": STAGES}
    return ScheduleSpace(knobs, {"warps": warps, "tiles": tiles, "keys": own, "stages": 2})


def _schedule(task: KernelTask, target: Target, form: Attention, choice: Choice) -> Schedule:
    """``blocks(batch, rows) -> blocks of keys -> [fetch] -> product, exponentials, product``, then the output."""
    del target
    k = AttentionTiles(task, form, int(choice["warps"]), int(choice["tiles"]), int(choice["keys"]))
    dtype = narrow(form.query).dtype
    scored = (DOT_COLUMNS if k.by_keys else DOT)[dtype]
    intrinsics = (scored, DOT_HELD[dtype], k.power, *QUAD_REDUCE.values())
    s = Schedule(program_of(task, k.body()), intrinsics=intrinsics)
    for copied in ("key", "value"):
        s.copy_async(f"{k.name}.{copied}.lane")
    s.vectorize(f"{k.name}.query.lane")
    s.tensorize(f"{k.name}.score.j", scored)
    s.tensorize(f"{k.name}.sum.j", DOT_HELD[dtype])
    s.pipeline(k.step.name, min(int(choice["stages"]), k.steps + 1) if k.steps > 1 else 2)
    return s


TENSOR_ATTENTION = Template("tensor_attention", tensor_form, _space, _schedule, joins=True)

"""Attention on Hopper's tensor cores: four warps at a time multiply 64 rows of queries by ``wgmma``.

As ``tensor_attention``, but keys and values are read from shared memory by the tensor cores themselves. The products of
exponentials and values go on while the next block's scores are asked for.

Source: Shah et al. 2024 (FlashAttention-3), sections 3.1 and 3.2.
"""

from __future__ import annotations

from burnish.kernels.gpu.attention_form import Attention
from burnish.kernels.gpu.attention_tiles import PART, AttentionTiles
from burnish.kernels.gpu.row_forms import program_of
from burnish.kernels.gpu.tensor_attention import halves_form, registers, shared_bytes
from burnish.kernels.task import Choice, Space, Task
from burnish.kernels.template import Template
from burnish.loops.expr import Buffer, Const, Expr, Load, cast
from burnish.loops.program import COMMIT_PRODUCTS, START_PRODUCTS, WAIT_PRODUCTS, For, Intrinsic, Stmt, Store, seq
from burnish.machines.nvptx.exponential import EXP_DIFFERENCE
from burnish.machines.nvptx.mma import SIDE
from burnish.machines.nvptx.threads import SHARED_BYTES
from burnish.machines.nvptx.warp import QUAD, QUAD_REDUCE
from burnish.machines.nvptx.wgmma import FEATURE, GROUP_WARPS, PANEL, ROWS, WGMMA, WGMMA_HELD
from burnish.schedule.schedule import Schedule
from burnish.target import Target

GROUPS = (1, 2, 3)  # of four warps, of a block
KEYS = (64, 128)  # of a block
STAGES = (2, 3, 4)
MOST_REGISTERS = 200  # of one thread, of scores, of exponentials and of values
OVERHEAD = 32  # rows that a block takes as long for beside its own


def _form(task: Task, target: Target) -> Attention | None:
    found = halves_form(task, target) if FEATURE in target.features else None
    return found if found is not None and found.sizes[1] > ROWS // 2 and _fitting(found) else None


def _fitting(form: Attention) -> list[tuple[int, int]]:
    """Groups of a block and keys at a time for which there are registers and memory."""
    return [
        (g, k)
        for g in GROUPS
        for k in KEYS
        if registers(form, 1, k) <= MOST_REGISTERS
        and shared_bytes(form, g * GROUP_WARPS, 1, k, STAGES[0]) <= SHARED_BYTES
    ]


def _space(task: Task, target: Target, form: Attention) -> Space:
    del task
    batch, rows, keys, _, _ = form.sizes

    def cost(choice: tuple[int, int]) -> tuple[float, int]:
        """Rows that the multiprocessors compute one after another; more keys at a time cost fewer rounds."""
        groups, own = choice
        block = groups * ROWS
        waste = -(-keys // own) * own / keys
        return -(-batch * -(-rows // block) // target.cores) * (block + OVERHEAD) * waste, -own * groups

    groups, own = min(_fitting(form), key=cost)
    return Space({"groups": GROUPS, "keys": KEYS, "stages": STAGES}, {"groups": groups, "keys": own, "stages": 2})


def _schedule(task: Task, target: Target, form: Attention, choice: Choice) -> Schedule:
    """``blocks(batch, rows) -> blocks of keys -> [fetch] -> product, exponentials, product``, then the output."""
    del target
    keys = int(choice["keys"])
    k = _Groups(task, form, int(choice["groups"]) * GROUP_WARPS, 1, keys)
    product, held = WGMMA[k.dtype, keys, False], WGMMA_HELD[k.dtype]
    s = Schedule(program_of(task, k.body()), intrinsics=(product, held, EXP_DIFFERENCE, *QUAD_REDUCE.values()))
    for copied in ("key", "value"):
        s.copy_async(f"{k.name}.{copied}.lane")
    s.vectorize(f"{k.name}.query.lane")
    s.tensorize(f"{k.name}.score.p", product)
    s.tensorize(f"{k.name}.sum.j", held)
    s.pipeline(k.step.name, int(choice["stages"]), 1)
    return s


class _Groups(AttentionTiles):
    """As its base, by products of four warps, which go on until they are waited for."""

    column_unit = PANEL

    def scored(self, key: Buffer) -> Stmt:
        """Products of queries and keys: of a panel ``p`` of 64 keys eight times two of a thread's."""
        zero = Const(0.0, "float32")
        clear = self.fragment("none", self.key_tiles, Store(self.scores, (*self.own, *self.at("none")), zero))
        ks, p, j, e, k = (self.var(f"score.{name}") for name in ("ks", "p", "j", "e", "k"))
        panel, inside = ks // (self.panel // SIDE), ks % (self.panel // SIDE) * SIDE + k
        place = p * PANEL + j * PART + self.t * 2 + e
        left, right = Load(self.query, (panel, self.row, inside)), Load(key, (panel, place, inside))
        index = (*self.own, self.tile, p * (PANEL // PART) + j, self.h, e)
        store: Stmt = Store(self.scores, index, cast("float32", left) * cast("float32", right), "sum")
        loops = [(p, self.block_keys // PANEL), (j, PANEL // PART), (self.h, 2), (e, 2), (k, SIDE)]
        products = self.of_threads(self.steps_of(ks.name, self.deep, nested(loops, store)))
        wait = Intrinsic(WAIT_PRODUCTS, (), (("but", 0),))
        return seq(
            self.of_threads(clear), Intrinsic(START_PRODUCTS, ()), products, Intrinsic(COMMIT_PRODUCTS, ()), wait
        )

    def steps_of(self, name: str, count: int, body: Stmt) -> Stmt:
        """Instructions one after another along a depth."""
        return For(name, count, "unroll", self.each("tile", self.tiles, body))

    def weighed(self, value: Buffer) -> Stmt:
        """Products of exponentials and values, which nothing waits for yet."""
        ks, v, j, e, p, t, q = (self.var(f"sum.{name}") for name in ("ks", "v", "j", "e", "p", "t", "q"))
        left = Load(self.powers, (self.w, self.g, self.tile, ks, t, p, self.h, q))
        column: Expr = j * PART + self.t * 2 + e
        right = Load(value, (v, ks * SIDE + p * PART + t * 2 + q, column))
        index = (*self.own, self.tile, v * (PANEL // PART) + j, self.h, e)
        store: Stmt = Store(self.sums, index, cast("float32", left) * cast("float32", right), "sum")
        inner = nested([(j, PANEL // PART), (self.h, 2), (e, 2), (p, 2), (t, QUAD), (q, 2)], store)
        body = For(v.name, self.wide * SIDE // PANEL, "unroll", inner)
        return seq(Intrinsic(START_PRODUCTS, ()), self.of_threads(self.steps_of(ks.name, self.key_tiles, body)))


def nested(loops: list[tuple[Expr, int]], body: Stmt) -> Stmt:
    """Serial loops, outermost first."""
    for var, extent in reversed(loops):
        body = For(str(var), extent, "serial", body)
    return body


WARPGROUP_ATTENTION = Template("warpgroup_attention", _form, _space, _schedule, joins=True)

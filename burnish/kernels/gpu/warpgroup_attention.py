"""Attention on Hopper's tensor cores: four warps at a time multiply 64 rows of queries by ``wgmma``.

As ``tensor_attention``, but keys and values are read from shared memory by the tensor cores themselves. The products of
exponentials and values go on while the next block's scores are asked for.

Source: Shah et al. 2024 (FlashAttention-3), sections 3.1 and 3.2.
"""

from __future__ import annotations

from dataclasses import replace

from burnish.kernels.gpu.attention_form import Attention
from burnish.kernels.gpu.attention_tiles import AttentionTiles, keys_across
from burnish.kernels.gpu.forms import narrow, padded
from burnish.kernels.gpu.row_forms import program_of
from burnish.kernels.gpu.tensor_attention import registers, shared_bytes, tensor_form
from burnish.kernels.gpu.warp_tiles import PART, ROWS_OF_QUADS
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Buffer, Const, Expr, Load, cast
from burnish.loops.program import COMMIT_PRODUCTS, START_PRODUCTS, WAIT_PRODUCTS, For, Intrinsic, Stmt, Store, seq
from burnish.loops.traverse import substitute
from burnish.machines.nvptx.mma import HALVES, SIDE
from burnish.machines.nvptx.warp import QUAD, QUAD_REDUCE
from burnish.machines.nvptx.wgmma import FEATURE, GROUP_WARPS, PANEL, ROWS, WGMMA_HELD, WgmmaShape
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

GROUPS = (1, 2, 3)  # of four warps, of a block
KEYS = (64, 128)  # of a block
STAGES = (2, 3, 4)
MOST_REGISTERS = 200  # of one thread, of scores, of exponentials and of values
FEWEST_BLOCKS = 0.3  # a multiprocessor: with fewer of 64 rows, smaller ones keep more of them busy


def _form(task: KernelTask, target: Target) -> Attention | None:
    found = tensor_form(task, target) if FEATURE in target.features else None
    if found is None or narrow(found.query).dtype not in HALVES or registers(found, 1, KEYS[0]) > MOST_REGISTERS:
        return None
    if _bytes(found, KEYS[0], 2) > target.shared_bytes:
        return None
    return found if found.sizes[0] * -(-found.sizes[1] // ROWS) >= FEWEST_BLOCKS * target.cores else None


def _bytes(form: Attention, keys: int, stages: int) -> int:
    """Bytes of shared memory: of keys and values alone, since queries are in registers."""
    return shared_bytes(form, 0, 1, keys, stages)


def _space(task: KernelTask, target: Target, form: Attention) -> ScheduleSpace:
    """By default one group: of the choices for 512 to 4096 rows on an H100 within 8 % of the best."""
    del task
    stages = max(n for n in (2, 3) if _bytes(form, KEYS[0], n) <= target.shared_bytes)
    return ScheduleSpace(
        {"groups": GROUPS, "keys": KEYS[:1] if keys_across(form) else KEYS, "stages": STAGES},
        {"groups": 1, "keys": KEYS[0], "stages": stages},
    )


def _schedule(task: KernelTask, target: Target, form: Attention, choice: Choice) -> Schedule:
    """``blocks(batch, rows) -> blocks of keys -> [fetch] -> product, exponentials, product``, then the output."""
    del target
    keys = int(choice["keys"])
    k = _Groups(task, form, int(choice["groups"]) * GROUP_WARPS, 1, keys)
    shape = WgmmaShape(k.dtype, keys, columns=k.by_keys, held=True)
    first, product = WGMMA_HELD[replace(shape, first=True)], WGMMA_HELD[shape]
    held = WGMMA_HELD[WgmmaShape(k.dtype, PANEL, columns=True, held=True)]
    s = Schedule(program_of(task, k.body()), intrinsics=(first, product, held, k.power, *QUAD_REDUCE.values()))
    for copied in ("key", "value"):
        s.copy_async(f"{k.name}.{copied}.lane")
    s.tensorize(f"{k.name}.first.v", first)
    if k.deep > 1:
        s.tensorize(f"{k.name}.score.v", product)
    s.tensorize(f"{k.name}.sum.v", held)
    s.pipeline(k.step.name, int(choice["stages"]), 1)
    return s


class _Groups(AttentionTiles):
    """As its base, by products of four warps, which go on until they are waited for."""

    column_unit = PANEL

    def query_buffer(self) -> Buffer:
        """Queries in the threads' registers: [w, g, tile, n, t, p, h, q] of depth 16 n + 8 p + 2 t + q."""
        shape = (self.warps, ROWS_OF_QUADS, self.tiles, self.deep, QUAD, 2, 2, 2)
        return self.buffer("query", shape, dtype=self.dtype)

    def queries(self) -> Stmt:
        """Fills it, each thread its own."""
        n, p, q = (self.var(f"query.{name}") for name in "npq")
        values, there = self.rows_of_queries(self.row)
        deep, depth = n * SIDE + p * PART + self.t * 2 + q, self.form.depth
        there = [*there, *self.inside(deep, depth.extent, SIDE)]
        value = padded(substitute(narrow(self.form.query), {**values, **depth.at(deep)}), *there)
        index = (self.w, self.g, self.tile, n, self.t, p, self.h, q)
        body: Stmt = For(q.name, 2, "unroll" if depth.extent % SIDE else "vectorize", Store(self.query, index, value))
        for loop, extent in ((self.h, 2), (p, 2), (n, self.deep)):
            body = For(loop.name, extent, "unroll", body)
        return self.of_threads(self.each("tile", self.tiles, body))

    def held(self, name: str, buffer: Buffer, n: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        """Left operand in the registers of a quad's threads, and the loops p, t, q over columns of tile ``n``."""
        p, t, q = (self.var(f"{name}.{part}") for part in "ptq")
        return Load(buffer, (self.w, self.g, self.tile, n, t, p, self.h, q)), (p, t, q)

    def multiplied(self, name: str, sums: Buffer, left: Expr, right: Expr, panels: int) -> Stmt:
        """The nest of one instruction: panels v of 64 columns, j, h, e; then p, t, q of the depth."""
        store: Stmt = Store(sums, self.place(name), cast("float32", left) * cast("float32", right), "sum")
        return self.nested(name, [*_sums(panels), ("p", 2), ("t", QUAD), ("q", 2)], store)

    def place(self, name: str) -> tuple[Expr, ...]:
        """Index of an element of the nest ``name`` among the sums."""
        v, j, e = (self.var(f"{name}.{part}") for part in "vje")
        return (*self.own, self.tile, v * (PANEL // PART) + j, self.h, e)

    def nested(self, name: str, loops: list[tuple[str, int]], body: Stmt) -> Stmt:
        """Serial loops, outermost first."""
        for part, extent in reversed(loops):
            body = For(self.h.name if part == "h" else self.var(f"{name}.{part}").name, extent, "serial", body)
        return body

    def scored(self, key: Buffer) -> Stmt:
        """Products of queries and keys, which are waited for."""
        panels, later = self.block_keys // PANEL, self.var("score.later")

        def product(name: str, ks: Expr) -> Stmt:
            left, (p, t, q) = self.held(name, self.query, ks)
            v, j, e = (self.var(f"{name}.{part}") for part in "vje")
            inside = ks % (self.panel // SIDE) * SIDE + p * PART + t * 2 + q
            place = j * PART + self.t * 2 + e
            right = Load(key, (ks // (self.panel // SIDE), v * PANEL + place, inside))
            if self.by_keys:
                right = Load(key, (v, ks * SIDE + p * PART + t * 2 + q, place))
            return self.multiplied(name, self.scores, left, right, panels)

        zero = Store(self.scores, self.place("none"), Const(0.0, "float32"))
        begin = seq(self.nested("none", _sums(panels), zero), product("first", Const(0)))
        parts = [self.each("tile", self.tiles, begin)]
        if self.deep > 1:
            rest = self.each("tile", self.tiles, product("score", later + 1))
            parts.append(For(later.name, self.deep - 1, "unroll", rest))
        wait = Intrinsic(WAIT_PRODUCTS, (), (("but", 0),))
        return seq(Intrinsic(START_PRODUCTS, ()), self.of_threads(*parts), Intrinsic(COMMIT_PRODUCTS, ()), wait)

    def weighed(self, value: Buffer) -> Stmt:
        """Products of exponentials and values, which nothing waits for yet."""
        ks, panel, j, e = (self.var(f"sum.{name}") for name in ("ks", "panel", "j", "e"))
        left, (p, t, q) = self.held("sum", self.powers, ks)
        v = self.var("sum.v")
        right = Load(value, (panel + v, ks * SIDE + p * PART + t * 2 + q, j * PART + self.t * 2 + e))
        index = (*self.own, self.tile, (panel + v) * (PANEL // PART) + j, self.h, e)
        store: Stmt = Store(self.sums, index, cast("float32", left) * cast("float32", right), "sum")
        body = self.nested("sum", [*_sums(1), ("p", 2), ("t", QUAD), ("q", 2)], store)
        body = For(panel.name, self.wide * SIDE // PANEL, "unroll", self.each("tile", self.tiles, body))
        return seq(Intrinsic(START_PRODUCTS, ()), self.of_threads(For(ks.name, self.key_tiles, "unroll", body)))


def _sums(panels: int) -> list[tuple[str, int]]:
    """The loops of an instruction's sums."""
    return [("v", panels), ("j", PANEL // PART), ("h", 2), ("e", 2)]


WARPGROUP_ATTENTION = Template("warpgroup_attention", _form, _space, _schedule, joins=True)

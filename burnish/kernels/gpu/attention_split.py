"""Attention by warps whose threads have a key each, its keys split over blocks: what these find, and their combination.

Source: Dao et al. 2023 (Flash-Decoding): few queries, as when one token is decoded, leave no other work to divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.kernels.gpu.attention_blocks import LOWEST, AttentionBlocks, stored, stored_number
from burnish.kernels.gpu.attention_form import Attention
from burnish.kernels.task import KernelTask
from burnish.loops.expr import Buffer, Const, Expr, Load, all_of, math, maximum
from burnish.loops.program import For, If, Stmt, Store, seq
from burnish.machines.machine import Warps


@dataclass(frozen=True)
class OwnBuffers:
    """Buffers of the threads of a block."""

    top: Buffer  # the greatest score of each row
    total: Buffer  # the sums of exponentials of each thread's keys
    sums: Buffer  # of values, each thread's columns
    scores: Buffer
    part: Buffer
    new: Buffer
    grown: Buffer
    left: Buffer  # of a product, elements of each row that are next
    right: Buffer


class SplitAttention(AttentionBlocks):
    """A warp computes ``rows`` rows of queries; a thread has one key of a block, and each 32nd column of the values."""

    def __init__(self, task: KernelTask, form: Attention, own: Warps, warps: int, rows: int, splits: int) -> None:
        super().__init__(task, form, warps * rows, own.size, splits)
        self.form, self.own, self.size = form, own, own.size
        self.warps, self.own_rows, self.wide = warps, rows, -(-form.columns.extent // own.size)
        self.w, self.x, self.i, self.d = (self.var(n) for n in ("warp", "thread", "i", "d"))

    def of_warps(self, *stmts: Stmt) -> Stmt:
        """For each row of each warp; all of its threads do the same."""
        return For(self.w.name, self.warps, "threadIdx.y", self.each("i", self.own_rows, *stmts))

    def of_threads(self, *stmts: Stmt) -> Stmt:
        """For each thread."""
        return For(self.w.name, self.warps, "threadIdx.y", For(self.x.name, self.size, "threadIdx.x", seq(*stmts)))

    @property
    def row(self) -> Expr:
        """The number of a row in its block."""
        return self.w * self.own_rows + self.i

    @property
    def whole_row(self) -> Expr:
        """The number of a row of queries."""
        return self.first_row + self.row

    def kept(self, own: OwnBuffers, whole: Buffer, found: Sequence[Buffer]) -> Stmt:
        """Stores the partial maximum, total and sums of one split, for the second launch."""
        top, total, sums = found
        place = (self.split, self.b, self.whole_row)
        there = self.inside(self.whole_row, self.count, self.block_rows)
        row = seq(
            Store(top, place, Load(own.top, (self.w, self.i))), Store(total, place, Load(whole, (self.w, self.i)))
        )
        column = Store(sums, (*place, self.d * self.size + self.x), Load(own.sums, (self.w, self.i, self.x, self.d)))
        columns = self.each("d", self.wide, column)
        guarded = [If(all_of(*there), s) if there else s for s in (row, columns)]
        return seq(self.of_warps(guarded[0]), self.of_threads(self.each("i", self.own_rows, guarded[1])))

    def combined(self, found: Sequence[Buffer]) -> Stmt:
        """The second launch: a warp for a row, a thread for some of its columns."""
        top, total, sums = found
        most, whole = self.buffer("most", (1,)), self.buffer("all", (1,))
        own = self.buffer("mixed", (self.size, self.wide))
        row, at = self.var("row"), (Const(0),)
        other = self.var("other")
        place = (other, self.b, row)
        factor = math("exp", Load(top, place) - Load(most, at))
        each = Store(own, (self.x, self.d), Load(sums, (*place, self.d * self.size + self.x)) * factor, "sum")
        zero = Const(0.0, "float32")
        column = self.d * self.size + self.x
        there = self.inside(column, self.form.columns.extent, self.size)
        last = stored(self, self.form, row, column, Load(own, (self.x, self.d)), Load(whole, at))
        number = self.number(row, Load(most, at), Load(whole, at))
        body = seq(
            Store(most, at, Const(LOWEST, "float32")),
            For(other.name, self.splits, "unroll", Store(most, at, maximum(Load(most, at), Load(top, place)))),
            Store(whole, at, zero),
            For(other.name, self.splits, "unroll", Store(whole, at, Load(total, place) * factor, "sum")),
            For(self.x.name, self.size, "threadIdx.x", seq(
                self.each("d", self.wide, Store(own, (self.x, self.d), zero)),
                For(other.name, self.splits, "unroll", self.each("d", self.wide, each)),
                self.each("d", self.wide, If(all_of(*there), last) if there else last),
                *number,
            )),
        )  # fmt: skip
        body = self.allocated(body)
        return For(self.b.name, self.batch, "blockIdx.y", For(row.name, self.count, "blockIdx.x", body))

    def number(self, row: Expr, top: Expr, total: Expr) -> list[Stmt]:
        """Stores the second result of a row, by the first thread of a warp."""
        found = self.form.numbers
        return [] if found is None else [If(self.x < 1, stored_number(self, found, row, top, total))]

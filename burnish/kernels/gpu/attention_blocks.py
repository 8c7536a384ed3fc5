"""Base of attention kernels: loops, the values of axes, tiles that threads copy, stored results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

from burnish.kernels.gpu.attention_form import Attention, AttentionAxes, RowResult, hides
from burnish.kernels.gpu.fetching import vector_of
from burnish.kernels.gpu.forms import FusedAxes, narrow, padded
from burnish.kernels.task import KernelTask
from burnish.loops.expr import PRIVATE, Buffer, Const, Expr, Load, Var, all_of, cast, select
from burnish.loops.program import Alloc, For, If, Stmt, Store, seq
from burnish.loops.simplify import simplify
from burnish.loops.traverse import substitute, transform

LOWEST = -3.4028234663852886e38  # below every score but -inf, of which no two may be subtracted
Rows = Callable[[Expr], tuple[dict[str, Expr], list[Expr]]]
Places = Callable[[Expr], tuple[Expr, list[Expr]]]


class AttentionBlocks:
    """The program of one attention, in blocks of rows and of keys; subclasses say how a block is computed."""

    def __init__(
        self, task: KernelTask, form: AttentionAxes, block_rows: int, block_keys: int, splits: int = 1
    ) -> None:
        self.task, self.axes = task, form
        self.name = form.output.name
        self.block_rows, self.block_keys = block_rows, block_keys
        self.batch, self.count, self.keys = form.sizes[:3]
        blocks = -(-self.keys // block_keys)
        self.splits = min(splits, blocks)
        self.steps = -(-blocks // self.splits)
        self.b, self.m, self.split, self.step = (self.var(n) for n in ("b", "m", "split", "step"))
        self.buffers: list[Buffer] = []  # of the launch that is being made

    def var(self, name: str) -> Var:
        """The variable of a loop."""
        return Var(f"{self.name}.{name}")

    def buffer(self, name: str, shape: Sequence[int], scope: str = PRIVATE, dtype: str = "float32") -> Buffer:
        """A buffer of the launch."""
        made = Buffer(f"{self.name}.{name}", tuple(shape), dtype, scope)
        if scope != "global":
            self.buffers.append(made)
        return made

    def each(self, name: str, extent: int, *stmts: Stmt) -> Stmt:
        """A loop that is written out."""
        return For(self.var(name).name, extent, "unroll", seq(*stmts))

    def allocated(self, body: Stmt) -> Stmt:
        """The statement with the buffers that it is about, which are no longer those of the launch."""
        for buffer in reversed(self.buffers):
            body = Alloc(buffer, body)
        self.buffers.clear()
        return body

    def launch(self, body: Stmt) -> Stmt:
        """The loops over blocks."""
        body = For(self.split.name, self.splits, "blockIdx.z", self.allocated(body))
        body = For(self.m.name, -(-self.count // self.block_rows), "blockIdx.x", body)
        return For(self.b.name, self.batch, "blockIdx.y", body)

    def values_at(self, row: Expr | None = None, key: Expr | None = None, **others: Expr) -> dict[str, Expr]:
        """The values of axes."""
        form, found = self.axes, dict(self.axes.batch.at(self.b))
        groups: list[tuple[FusedAxes, Expr | None]] = [(form.rows, row), (form.keys, key)]
        groups += [(form.depth, others.get("depth")), (form.columns, others.get("column"))]
        for group, at in groups:
            if at is not None:
                found.update(group.at(at))
        for axis in form.divided:
            if axis.own.var.name in found:
                found[axis.axis.var.name] = axis.whole(*(found[part.var.name] for part in (axis.shared, axis.own)))
        return found

    def inside(self, place: Expr, extent: int, block: int) -> list[Expr]:
        """The condition that a place exists, if there are others."""
        return [place < extent] if extent % block else []

    def key_at(self, j: Expr) -> tuple[Expr, list[Expr]]:
        """The number of a key of the block of keys, and the condition that there is such."""
        place = (self.split * self.steps + self.step) * self.block_keys + j
        return place, [place < self.keys] if self.keys != self.splits * self.steps * self.block_keys else []

    @property
    def first_row(self) -> Expr:
        """First row of queries of the block. Those of the last rows, which see most keys, begin first."""
        return (-(-self.count // self.block_rows) - 1 - self.m) * self.block_rows

    @cached_property
    def seen(self) -> Expr | None:
        """Condition that a block of keys has a score that counts for one of the rows; None: always."""
        row, key = self.var("any.row"), self.var("any.key")
        values = self.values_at(row=self.first_row + row, key=self.key_at(key)[0])
        ranges = {row.name: self.block_rows, key.name: self.block_keys}
        return hides(substitute(self.axes.score, values), ranges)


class CopyingBlocks(AttentionBlocks, ABC):
    """Blocks of which all threads copy rows to shared memory; subclasses say which threads there are."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @property
    @abstractmethod
    def thread(self) -> Expr:
        """The number of a thread in its block."""

    @abstractmethod
    def of_threads(self, *stmts: Stmt) -> Stmt:
        """For each thread."""

    def rows_of_queries(self, r: Expr) -> tuple[dict[str, Expr], list[Expr]]:
        """The axes of a row of queries of the block, and the condition that there is such."""
        place = self.first_row + r
        return self.values_at(row=place), self.inside(place, self.count, self.block_rows)

    def rows_of_keys(self, r: Expr) -> tuple[dict[str, Expr], list[Expr]]:
        """As :meth:`rows_of_queries`, of keys."""
        place, there = self.key_at(r)
        return self.values_at(key=place), there

    def copied(self, name: str, pieces: int, copy: Callable[[Expr], Stmt]) -> Stmt:
        """``copy`` of each of some pieces, by all threads of the block: neighbours have neighbouring ones."""
        turn, turns = self.var(f"{name}.turn"), -(-pieces // self.threads)
        piece = turn * self.threads + self.thread
        s = copy(piece)
        if turns * self.threads != pieces:
            s = If(piece < pieces, s)
        return self.of_threads(For(turn.name, turns, "unroll" if turns <= 16 else "serial", s))

    def fetched(
        self,
        name: str,
        buffer: Buffer,
        factor: Expr,
        along: FusedAxes,
        rows: Rows,
        places: Places | None = None,
        width: int | None = None,
    ) -> Stmt:
        """Rows of a factor into shared memory, [panel, row, inside of it], of which ``width`` elements are written."""
        panels, count, row = buffer.shape
        width = row if width is None else width
        vector = vector_of(narrow(factor), along)
        while width % vector:
            vector //= 2
        lane, per_row = self.var(f"{name}.lane"), width // vector

        def copy(piece: Expr) -> Stmt:
            panel, r = piece // (per_row * count), piece // per_row % count
            inner = piece % per_row * vector + lane
            at = panel * width + inner
            values, there = rows(r)
            inside = [at < along.extent] if panels * width != along.extent else []
            place, exists = places(at) if places else (at, inside)
            value = padded(substitute(narrow(factor), {**values, **along.at(place)}), *there, *exists)
            return For(lane.name, vector, "serial", Store(buffer, (panel, r, inner), value))

        return self.copied(name, panels * count * width // vector, copy)

    def fetched_numbers(self, buffer: Buffer, number: Load, along: FusedAxes) -> Stmt:
        """A number of each of a block of keys into shared memory."""
        vector, name = vector_of(number, along), buffer.name.removeprefix(f"{self.name}.")
        while self.block_keys % vector:
            vector //= 2
        lane = self.var(f"{name}.lane")

        def copy(piece: Expr) -> Stmt:
            at = piece * vector + lane
            values, there = self.rows_of_keys(at)
            value = padded(substitute(number, values), *there)
            return For(lane.name, vector, "serial", Store(buffer, (at,), value))

        return self.copied(name, self.block_keys // vector, copy)


def stored(blocks: AttentionBlocks, form: Attention, row: Expr, column: Expr, sum_: Expr, total: Expr) -> Stmt:
    """One element of the output from a sum of values and one of exponentials."""
    known = {form.weighted: sum_, form.total: total}
    e = transform(form.result, lambda e: cast(e.dtype, known[e]) if e in known else e)
    values = blocks.values_at(row=row, column=column)
    index = [values.get(axis.name, Const(0)) for axis in form.output.axes]
    ranges = {v.name: n for v, n in zip(form.output.axes, form.output.shape, strict=True) if n == 1}
    return Store(form.output.buffer, tuple(index), simplify(substitute(e, values), ranges))


def stored_number(blocks: AttentionBlocks, found: RowResult, row: Expr, top: Expr, total: Expr) -> Stmt:
    """Row result next to the output, from a row's greatest score and its sum of exponentials."""
    known = {found.top: top, found.total: total}
    e = transform(found.value, lambda e: cast(e.dtype, known[e]) if e in known else e)
    values = blocks.values_at(row=row)
    index = tuple(substitute(i, values) for i in found.index)
    return Store(found.output.buffer, index, substitute(e, values))


def single(e: Expr) -> Expr:
    """As float32, in which all is computed."""
    return cast("float32", e)


def padded_with(e: Expr, other: Expr, conds: Sequence[Expr]) -> Expr:
    """``e`` where all conditions hold, else ``other``."""
    return select(all_of(*conds), e, other) if conds else e

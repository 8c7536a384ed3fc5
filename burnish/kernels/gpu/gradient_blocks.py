"""Gradient of attention in blocks: what is fetched, recomputed, weighed and summed, before it is scheduled."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from math import inf

from burnish.kernels.gpu.attention_blocks import CopyingBlocks, padded_with
from burnish.kernels.gpu.attention_form import hides, widened
from burnish.kernels.gpu.attention_gradient_form import AttentionGradient, PairProduct, WeightedSum, with_parts
from burnish.kernels.gpu.forms import padded
from burnish.loops.expr import SHARED, Buffer, Const, Expr, Load, all_of, cast
from burnish.loops.program import Alloc, For, If, Stmt, Store, seq
from burnish.loops.simplify import simplify
from burnish.loops.traverse import loads, substitute, transform


class GradientBlocks(CopyingBlocks):
    """The program of one launch: a block has rows, and goes through blocks of keys that some of them see, or has keys
    and goes through rows. Subclasses say what a thread holds: elements of both products in ``held``, of each sum in
    ``sums``; and how products are computed, of rows in shared memory: ``own_rows`` and ``other_rows`` of each product.

    ``row_shape``: of a number of each row, in registers.
    """

    form: AttentionGradient
    held: list[Buffer]
    sums: list[Buffer]
    own_rows: list[Buffer]
    other_rows: list[Buffer]
    row_shape: tuple[int, ...]

    # --- what a thread holds ------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def row(self) -> Expr:
        """The number of a row in its block."""

    @property
    @abstractmethod
    def row_index(self) -> tuple[Expr, ...]:
        """The place of a row's number."""

    @abstractmethod
    def of_rows(self, *stmts: Stmt) -> Stmt:
        """For each row of each thread."""

    @abstractmethod
    def scores(self, name: str, body: Stmt) -> Stmt:
        """For each of a thread's pairs of a row and a key."""

    @abstractmethod
    def score_at(self, name: str) -> tuple[tuple[Expr, ...], Expr]:
        """The place of a pair of :meth:`scores`, and its key in the block."""

    @abstractmethod
    def columns(self, name: str, s: WeightedSum, body: Stmt, whole: bool = False) -> Stmt:
        """For each of a thread's elements of a sum; ``whole``: neighbours may be stored at once."""

    @abstractmethod
    def column_at(self, name: str, s: WeightedSum) -> tuple[tuple[Expr, ...], Expr]:
        """The place of an element of :meth:`columns`, and its column in the block."""

    @abstractmethod
    def wide(self, s: WeightedSum) -> int:
        """Columns of a sum that a block computes, with those beyond the last one."""

    @abstractmethod
    def fetched_rows(self, name: str, buffer: Buffer, p: PairProduct, own: bool) -> Stmt:
        """Rows of a product's left factor, if these are the block's own, or of its right one."""

    @abstractmethod
    def multiplied(self, n: int) -> Stmt:
        """The elements of a product."""

    @abstractmethod
    def power(self, held: Load, below: Load) -> Stmt:
        """Exponential of a score less another number, in its place."""

    @abstractmethod
    def weighed(self, n: int) -> Stmt:
        """Weights, and the products of these with rows that both products have been made of."""

    # --- places -------------------------------------------------------------------------------------------------------

    @property
    def per(self) -> int:
        """Blocks of keys for each value of the axes outside of these."""
        return -(-self.form.keys.extent // self.block_keys)

    @cached_property
    def of_keys(self) -> dict[Load, bool]:
        """Whether a number is of each key; else it is of each row."""
        alone = {a.var.name for a in (*self.form.keys.axes, *self.form.outer.axes)}
        return {x: not x.variables.isdisjoint(alone) for x in self.form.numbers}

    @cached_property
    def numbers(self) -> dict[Load, Buffer]:
        """Where the numbers of a block of keys are, in shared memory, and those of rows, in registers."""
        return {
            x: Buffer(f"{self.name}.number{n}", (self.block_keys,), x.dtype, SHARED)
            if self.of_keys[x]
            else self.buffer(f"number{n}", self.row_shape, dtype=x.dtype)
            for n, x in enumerate(self.form.numbers)
        }

    def values_at(self, row: Expr | None = None, key: Expr | None = None, **others: Expr) -> dict[str, Expr]:
        """The values of axes; those outside of keys are of the step."""
        found = super().values_at(row, key, **others)
        if key is not None:
            found.update(self.form.outer.at(self.step // self.per))
        return found

    def key_at(self, j: Expr) -> tuple[Expr, list[Expr]]:
        """The number of a key of the block of keys, and the condition that there is such."""
        extent = self.form.keys.extent
        block = self.step % self.per if self.form.outer.extent > 1 else self.step
        place = block * self.block_keys + j
        return place, [place < extent] if extent % self.block_keys else []

    @property
    def first_row(self) -> Expr:
        """First row of the block. Those that see most keys begin first."""
        ends = {**self.form.rows.at(Const(0)), **self.form.keys.at(Const(self.form.keys.extent - 1))}
        last = hides(substitute(self.form.score, ends), {})
        return super().first_row if last is not None and simplify(last) == Const(False) else self.m * self.block_rows

    # --- the launch ---------------------------------------------------------------------------------------------------

    def body(self) -> Stmt:
        """All of it."""
        form, zero = self.form, Const(0.0, "float32")
        begin = [self.fetched_rows(f"own{n}", self.own_rows[n], p, True) for n, p in enumerate(form.products)]
        begin += [self.number_of_rows(x) for x in form.numbers if not self.of_keys[x]]
        for n, (s, buffer) in enumerate(zip(form.sums, self.sums, strict=True)):
            clear = Store(buffer, self.column_at(f"clear{n}", s)[0], zero)
            begin.append(self.of_threads(self.columns(f"clear{n}", s, clear)))
        fetches = [self.fetched_rows(f"other{n}", self.other_rows[n], p, False) for n, p in enumerate(form.products)]
        fetches += [self.fetched_numbers(b, x, form.keys) for x, b in self.numbers.items() if self.of_keys[x]]
        early = [n for n, s in enumerate(form.sums) if form.products[1].element not in loads(s.weight)]
        late = [n for n in range(len(form.sums)) if n not in early]
        work = seq(
            self.multiplied(0), self.powers(), *(self.weighed(n) for n in early),
            self.multiplied(1), *(self.weighed(n) for n in late),
        )  # fmt: skip
        there = self.seen
        step = seq(*(If(there, s) if there is not None else s for s in (*fetches, work)))
        own = [*self.other_rows, *(b for x, b in self.numbers.items() if self.of_keys[x])]
        for buffer in reversed(own):
            step = Alloc(buffer, step)
        steps = For(self.step.name, self.steps, "serial", step)
        return self.launch(seq(*begin, steps, *(self.output(n) for n in range(len(form.sums)))))

    def number_of_rows(self, x: Load) -> Stmt:
        """A number of each of the block's rows, in registers."""
        values, there = self.rows_of_queries(self.row)
        return self.of_rows(Store(self.numbers[x], self.row_index, padded(substitute(x, values), *there)))

    def cleared(self, n: int, name: str) -> Stmt:
        """Zeros in the place of a product's elements."""
        return self.scores(name, Store(self.held[n], self.score_at(name)[0], Const(0.0, "float32")))

    def known(self, e: Expr, name: str) -> Expr:
        """An expression of an element of both products, of which the first is the exponential already."""
        form, (place, key) = self.form, self.score_at(name)
        held: dict[Expr, Expr] = {form.power: Load(self.held[0], place)}
        for p, buffer in zip(form.products, self.held, strict=True):
            held[p.element] = Load(buffer, place)
        for x, buffer in self.numbers.items():
            held[x] = Load(buffer, (key,) if self.of_keys[x] else self.row_index)
        values = self.values_at(row=self.first_row + self.row, key=self.key_at(key)[0])
        return substitute(with_parts(e, held), values)

    def powers(self) -> Stmt:
        """Exponentials of the scores, in the place of these."""
        name, form = "seen", self.form
        place, key = self.score_at(name)
        there = self.key_at(key)[1]
        if self.count % self.block_rows:
            there = [*there, self.first_row + self.row < self.count]
        held = Load(self.held[0], place)
        score = self.known(widened(form.score, form.products[0].element), name)
        below = self.known(form.below, name)
        assert isinstance(below, Load)
        chosen = Store(held.buffer, held.indices, padded_with(score, Const(-inf, "float32"), there))
        return self.of_threads(self.scores(name, seq(chosen, self.power(held, below))))

    def output(self, n: int) -> Stmt:
        """The elements of an output, of rows and columns that there are."""
        s, name = self.form.sums[n], f"out{n}"
        place, column = self.column_at(name, s)
        row, wide = self.first_row + self.row, self.wide(s)
        if self.splits > 1:
            column = self.split * wide + column
        values = {**s.batch.at(self.b), **s.rows.at(row), **s.columns.at(column)}
        held = Load(self.sums[n], place)
        value = substitute(transform(s.result, lambda e: cast(e.dtype, held) if e == s.sums else e), values)
        index = tuple(values.get(axis.name, Const(0)) for axis in s.output.axes)
        store: Stmt = Store(s.output.buffer, index, value)
        inside = self.inside(column, s.columns.extent, wide * self.splits)
        there = [*self.inside(row, self.count, self.block_rows), *inside]
        if there:
            store = If(all_of(*there), store)
        return self.of_threads(self.columns(name, s, store, whole=not inside))

"""Softmax, normalizations, sums and extremes of rows: a warp or several for a row, which they read once.

Each thread holds its elements of the row in registers and combines them; the 32 of a warp combine theirs by shuffles,
and only where several warps share a row there is a barrier between what each has found and what all need. Rows that
registers do not hold are read again by every stage. Elements are moved by vectors of 16 bytes where memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.kernels.gpu.row_forms import ELEMENT, ROW, RowForm, RowStage, program_of, rows_of
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import ITEM_BYTES, PRIVATE, SHARED, Binary, Buffer, Const, Expr, Load, Var
from burnish.loops.program import MOST_BLOCKS, Alloc, For, If, Intrinsic, Stmt, Store, seq
from burnish.loops.reduction import identity
from burnish.loops.traverse import substitute, transform
from burnish.machines.machine import Warps
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

WARPS = (1, 2, 4, 8, 16, 32)  # of a row
BLOCK_ROWS = (1, 2, 4, 8)
MOST_WARPS = 32  # of a block
VECTOR_BYTES = 16
FEWEST = 32  # elements below which a warp would mostly wait
MOST_HELD = 32  # elements of one kind that a thread holds in registers, and twice as many of all kinds
STEPS = 4  # vectors of a row that a thread has by default; of many rows as many as registers hold
MANY = 16  # rows for each multiprocessor: one warp for each keeps them busy, and waits for no other


def _form(task: KernelTask, target: Target) -> RowForm | None:
    """Rows with a reduction long enough for a warp."""
    found = rows_of(task, target)
    if found is None or found.count > MOST_BLOCKS["blockIdx.x"]:
        return None
    reduced = [s for s in found.stages if s.kind is not None]
    known = all((s.kind, s.buffer.dtype) in target.machine.warps.reduce for s in reduced)
    worth = max(s.extent for s in reduced) >= FEWEST or len(found.results) > 1
    return found if known and worth else None


def vector_of(form: RowForm, extent: int) -> int:
    """Number of elements of a row that are moved at once."""
    accesses = form.accesses(extent)
    widest = max((ITEM_BYTES[x.dtype] for x in accesses), default=VECTOR_BYTES)
    vector = max(VECTOR_BYTES // widest, 1)
    runs = all(form.is_run(x, extent) and x.dtype != "bool" for x in accesses)
    return vector if runs and extent % vector == 0 else 1


def _space(task: KernelTask, target: Target, form: RowForm) -> ScheduleSpace:
    del task
    most = max(-(-n // vector_of(form, n)) for n in form.extents)
    held = max(STEPS, MOST_HELD // max(vector_of(form, n) for n in form.extents))
    steps = held if form.count >= MANY * target.cores else STEPS if form.count >= target.cores else 1
    each = target.machine.warps.size * steps
    warps = next((w for w in WARPS if w * each >= most), WARPS[-1])
    rows = max((r for r in BLOCK_ROWS if r * warps <= BLOCK_ROWS[-1] and form.count >= 2 * r * target.cores), default=1)
    return ScheduleSpace({"warps": WARPS, "rows": BLOCK_ROWS}, {"warps": warps, "rows": rows})


def _schedule(task: KernelTask, target: Target, form: RowForm, choice: Choice) -> Schedule:
    """``blocks(rows) -> rows of a block (z), warps of a row (y), threads (x): each stage``."""
    own, warps, rows = target.machine.warps, int(choice["warps"]), int(choice["rows"])
    block = RowBlock(task, form, own, warps, min(rows, MOST_WARPS // warps))
    return Schedule(program_of(task, block.body()), intrinsics=own.reduce.values())


@dataclass(frozen=True)
class Cut:
    """``extent`` elements of a row as ``steps`` x ``threads`` vectors; ``name`` begins the names of its loops.

    ``held``: a thread's part fits into registers.
    """

    extent: int
    vector: int
    threads: int
    name: str

    @property
    def vectors(self) -> int:
        """Number of vectors of the whole row."""
        return self.extent // self.vector

    @property
    def steps(self) -> int:
        """Vectors of one thread."""
        return -(-self.vectors // self.threads)

    @property
    def held(self) -> bool:
        """See the class."""
        return self.steps * self.vector <= MOST_HELD

    @property
    def step(self) -> Var:
        """The number of a thread's vector."""
        return Var(f"{self.name}.step")

    @property
    def lane(self) -> Expr:
        """The number of an element in its vector."""
        return Var(f"{self.name}.lane") if self.vector > 1 else Const(0)


class RowBlock:
    """The program of a block's rows."""

    def __init__(self, task: KernelTask, form: RowForm, own: Warps, warps: int, rows: int) -> None:
        self.own, self.size = own, own.size
        self.form, self.warps, self.rows, self.name = form, warps, rows, task.outputs[0].name
        self.cuts = {n: Cut(n, vector_of(form, n), warps * own.size, f"{self.name}.of{n}") for n in form.extents}
        self.buffers: list[Buffer] = []
        self.z, self.w, self.x = (Var(f"{self.name}.{n}") for n in ("row", "warp", "thread"))
        self.numbers: dict[str, Buffer] = {}
        self.elements: dict[str, Buffer] = {}
        self.loaded: dict[Load, Buffer] = {}
        self.values = {s.buffer.name: s.value for s in form.stages}
        whole = Var(f"{self.name}.block") * rows + self.z
        self.place: Expr = whole
        self.inside: Expr | None = None
        if form.count % rows:
            self.place, self.inside = Binary("min", whole, Const(form.count - 1)), whole < form.count

    def body(self, kind: str = "blockIdx.x") -> Stmt:
        """All stages of all rows; ``kind``: of the loop over blocks of rows."""
        stmts = [self.filled(cut, x) for cut in self.cuts.values() for x in self.chosen(cut)]
        for stage in self.form.stages:
            if stage is not self.form.stages[-1] or stage.kind is not None:
                stmts += self.computed(stage)
            if stage.buffer.name in self.form.results:
                stmts.append(self.stored(stage))
        body = seq(*stmts)
        for buffer in reversed(self.buffers):
            body = Alloc(buffer, body)
        return For(f"{self.name}.block", -(-self.form.count // self.rows), kind, body)

    def chosen(self, cut: Cut) -> list[Load]:
        """Loads that are made once and held in registers."""
        room = 2 * MOST_HELD // (cut.steps * cut.vector)
        return self.form.shared_loads(cut.extent)[:room] if cut.held else []

    def buffer(self, name: str, shape: Sequence[int], dtype: str, scope: str = PRIVATE) -> Buffer:
        """A new buffer of the block."""
        self.buffers.append(Buffer(f"{self.name}.{name}", tuple(shape), dtype, scope))
        return self.buffers[-1]

    # --- loops --------------------------------------------------------------------------------------------------------

    def of_rows(self, *stmts: Stmt) -> Stmt:
        """For each row of the block."""
        return For(self.z.name, self.rows, "threadIdx.z", seq(*stmts))

    def of_warps(self, *stmts: Stmt) -> Stmt:
        """For each warp of each row."""
        return self.of_rows(For(self.w.name, self.warps, "threadIdx.y", seq(*stmts)))

    def of_threads(self, *stmts: Stmt) -> Stmt:
        """For each thread of each warp."""
        return self.of_warps(For(self.x.name, self.size, "threadIdx.x", seq(*stmts)))

    def of_elements(self, cut: Cut, s: Stmt) -> Stmt:
        """For each element of one thread."""
        if cut.vector > 1:
            s = For(f"{cut.name}.lane", cut.vector, "vectorize", s)
        place = self.vector_at(cut)
        if cut.steps * cut.threads != cut.vectors:
            s = If(place < cut.vectors, s)
        return For(cut.step.name, cut.steps, "unroll" if cut.held else "serial", s)

    def vector_at(self, cut: Cut) -> Expr:
        """The number of a vector in its row."""
        return (cut.step * self.warps + self.w) * self.size + self.x

    def part(self, cut: Cut) -> tuple[Expr, ...]:
        """Where a thread's element is in what threads hold."""
        return (self.z, self.w, self.x, cut.step, cut.lane)

    def held(self, name: str, cut: Cut, dtype: str) -> Buffer:
        """A row of which each thread holds its elements."""
        return self.buffer(name, (self.rows, self.warps, self.size, cut.steps, cut.vector), dtype)

    def at(self, e: Expr, cut: Cut | None) -> Expr:
        """An expression of a row and an element at those of a thread, with what is held instead of what is loaded."""

        def moved(part: Expr) -> Expr:
            if not isinstance(part, Load):
                return part
            if part in self.loaded and cut is not None:
                return Load(self.loaded[part], self.part(cut))
            name = part.buffer.name
            if name in self.numbers:
                return Load(self.numbers[name], (self.z,))
            if name in self.elements and cut is not None:
                return Load(self.elements[name], self.part(cut))
            return transform(self.values[name], moved) if name in self.values else part

        found = transform(e, moved)
        values = {ROW.name: self.place}
        if cut is not None:
            values[ELEMENT.name] = self.vector_at(cut) * cut.vector + cut.lane
        return substitute(found, values)

    # --- stages -------------------------------------------------------------------------------------------------------

    def filled(self, cut: Cut, load: Load) -> Stmt:
        """Loads a row once."""
        value = self.at(load, cut)
        own = self.held(f"held{len(self.loaded)}", cut, load.dtype)
        self.loaded[load] = own
        return self.of_threads(self.of_elements(cut, Store(own, self.part(cut), value)))

    def computed(self, stage: RowStage) -> list[Stmt]:
        """A stage that others read."""
        name, dtype = stage.buffer.name, stage.buffer.dtype
        if stage.kind is not None:
            return self.reduced(stage, stage.kind)
        if stage.extent == 0:
            value = self.at(stage.value, None)
            self.numbers[name] = self.buffer(f"{name}.number", (self.rows,), dtype)
            return [self.of_rows(Store(self.numbers[name], (self.z,), value))]
        cut = self.cuts[stage.extent]
        if not cut.held:
            return []
        value = self.at(stage.value, cut)
        self.elements[name] = self.held(f"{name}.elements", cut, dtype)
        return [self.of_threads(self.of_elements(cut, Store(self.elements[name], self.part(cut), value)))]

    def reduced(self, stage: RowStage, kind: str) -> list[Stmt]:
        """One number of a row: by threads, by warps, by all warps of the row."""
        name, dtype, cut = stage.buffer.name, stage.buffer.dtype, self.cuts[stage.extent]
        neutral = identity(kind, dtype)
        part = self.buffer(f"{name}.part", (self.rows, self.warps, self.size), dtype)
        own = (self.z, self.w, self.x)
        value = self.at(stage.value, cut)
        summed = self.of_elements(cut, Store(part, own, value, kind))
        number = self.numbers[name] = self.buffer(f"{name}.number", (self.rows,), dtype)
        stmts = [self.of_threads(Store(part, own, neutral), summed)]
        of_warp, index = number, (self.z,)
        if self.warps > 1:
            of_warp = self.buffer(f"{name}.warp", (self.rows, self.warps), dtype)
            index = (self.z, self.w)  # type: ignore[assignment]
        together = Intrinsic(
            self.own.reduce[kind, dtype].name, (Load(of_warp, index), Load(part, (self.z, self.w, Const(0))))
        )
        stmts.append(self.of_warps(Store(of_warp, index, neutral), together))
        if self.warps > 1:
            shared = self.buffer(f"{name}.warps", (self.rows, self.warps), dtype, SHARED)
            stmts.append(self.of_warps(Store(shared, index, Load(of_warp, index))))
            other = Var(f"{name}.other")
            each = Store(number, (self.z,), Load(shared, (self.z, other)), kind)
            stmts.append(self.of_rows(Store(number, (self.z,), neutral), For(other.name, self.warps, "unroll", each)))
        return stmts

    def stored(self, stage: RowStage) -> Stmt:
        """A result, of rows that there are."""
        name, cut = stage.buffer.name, self.cuts[stage.extent] if stage.extent and stage.kind is None else None
        value = stage.value
        if name in self.numbers:
            value = Load(stage.buffer, (ROW,))
        elif name in self.elements:
            value = Load(stage.buffer, (ROW, ELEMENT))
        index = [self.at(i, cut) for i in self.form.results[name]]
        if cut is None:
            index = [substitute(i, {ELEMENT.name: Const(0)}) for i in index]
        s: Stmt = Store(stage.buffer, tuple(index), self.at(value, cut))
        if cut is not None:
            s = self.of_elements(cut, s)
        if self.inside is not None:
            s = If(self.inside, s)
        return self.of_threads(s) if cut is not None else self.of_rows(s)


ROWS = Template("rows", _form, _space, _schedule, joins=True)

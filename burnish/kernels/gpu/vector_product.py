"""Products of a matrix and a vector, or a few, for GPUs: every element of the matrix is read once, by neighbouring
threads next to each other in memory, and sums of parts of the depth are added up in shared memory.

Dense layers at batch 1 and the decoding of language models are these: bound by the bandwidth of memory. A
normalization of the vectors is computed by every block for itself (``row_front``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from burnish.kernels.gpu.forms import ContractionForm, FusedAxes, moves_fastest, narrow, padded, product
from burnish.kernels.gpu.nests import bind_blocks, nest, stored, var
from burnish.kernels.gpu.product import FEWEST, output_store
from burnish.kernels.gpu.product_time import BEGIN, LAUNCH, ProductSize
from burnish.kernels.gpu.row_front import RowFront, row_front
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Buffer, Expr, Load, cast
from burnish.loops.program import MOST_BLOCKS, Alloc, LoopProgram, Stmt, seq
from burnish.loops.reduction import identity
from burnish.loops.traverse import loads, substitute
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

THREADS = (128, 256, 512, 1024)
WIDTHS = (8, 16, 32, 64, 128)  # places of a block along the matrix's long side, or along the depth
OWNS = (4, 8, 16)  # elements of the depth that a thread reads before it adds up
SHORTEST = 64  # a depth that is worth being divided
REACHED = {2: 0.62, 4: 0.77}  # of the bandwidth of memory, by bytes of an element, on an H100
MULTIPLIED = 0.3  # of the rate of multiply-adds
MOST_FRONTS = 4  # blocks of a multiprocessor, up to which all of them compute what is in front at a time
MOST_SHARED = 8  # batches that read the same matrix, as heads that share keys do; more are a product of matrices


@dataclass(frozen=True)
class _Form:
    """A product whose ``long`` side is that of the matrix; of the ``short`` one there are few."""

    product: ContractionForm
    swapped: bool  # the matrix is the left factor
    deep: bool  # the matrix moves fastest along the depth
    front: RowFront | None = None  # what computes the vectors

    @property
    def long(self) -> FusedAxes:
        return self.product.rows if self.swapped else self.product.columns

    @property
    def short(self) -> FusedAxes:
        return self.product.columns if self.swapped else self.product.rows

    @property
    def matrix(self) -> Expr:
        return self.product.left if self.swapped else self.product.right

    @property
    def vectors(self) -> Expr:
        return self.product.right if self.swapped else self.product.left


def _form(task: KernelTask, target: Target) -> _Form | None:
    found = product(task)
    if found is not None:
        return vector_form(found)
    apart = row_front(task, target)
    found = None if apart is None else product(apart[1])
    form = None if found is None else vector_form(found)
    if apart is None or form is None:
        return None
    name = apart[0].rows.name
    whole = form.vectors.buffers == {name} and name not in form.matrix.buffers | form.product.value.buffers
    blocks = -(-form.long.extent // target.machine.warps.size)
    few = form.product.batch.extent == 1 and blocks <= MOST_FRONTS * target.cores
    return replace(form, front=apart[0]) if whole and few else None


def vector_form(found: ContractionForm) -> _Form | None:
    """Product with fewer than FEWEST rows or columns and a long depth; None of others."""
    batch, rows, columns, depth = found.sizes
    if min(rows, columns) >= FEWEST or depth < SHORTEST or batch > MOST_BLOCKS["blockIdx.y"]:
        return None
    swapped = rows > columns
    group, factor = (found.rows, found.left) if swapped else (found.columns, found.right)
    held = sum(prod(e.buffer.shape) for e in loads(factor))
    if batch * group.extent * depth > MOST_SHARED * held:
        return None
    return _Form(found, swapped, moves_fastest(factor, (found.depth(1), group)) == 0)


def _space(task: KernelTask, target: Target, form: _Form) -> ScheduleSpace:
    """Along the depth a warp reads 32 neighbours; along the long side the block is as wide as leaves no multiprocessor
    without one.
    """
    del task
    batch, depth = form.product.sizes[0], form.product.sizes[3]
    threads = 256 if depth < 1024 else 512
    if form.deep:
        width = 32 if depth < 2048 else 64
    else:
        fits = [w for w in WIDTHS[:4] if batch * -(-form.long.extent // w) >= target.cores]
        width = max(fits, default=WIDTHS[0])
    own = 4 if form.deep or depth < 1024 else 8
    widths: tuple[int, ...] = WIDTHS
    if form.front is not None:  # a warp along x
        widths, width = (target.machine.warps.size,), target.machine.warps.size
    return ScheduleSpace(
        {"threads": THREADS, "width": widths, "own": OWNS}, {"threads": threads, "width": width, "own": own}
    )


def _seconds(task: KernelTask, target: Target, form: _Form) -> float:
    """Predicted seconds: the matrix is read once."""
    work = ProductSize.of(form.product, task, target)
    memory = target.memory_bandwidth * REACHED.get(work.item, min(REACHED.values()))
    multiplied = 2.0 * work.batch * work.rows * work.columns * work.depth / (MULTIPLIED * target.flops)
    begin = BEGIN if form.front is None else 2 * BEGIN
    return LAUNCH + begin + max(work.factors / memory, multiplied)


def _schedule(task: KernelTask, target: Target, form: _Form, choice: Choice) -> Schedule:
    """``blocks(batch, long side) -> threads -> depth -> own depth -> short side``, then all sums."""
    width, threads = int(choice["width"]), int(choice["threads"])
    t = _Parts(task, form, width, max(threads // width, 1), int(choice["own"]))
    s = Schedule(t.program())
    out, acc, parts, sums = form.product.output.name, t.acc.name, t.parts.name, t.sums.name
    bind_blocks(s, (f"{out}.b", f"{out}.no"))
    lane, other = ("threadIdx.x", "threadIdx.y") if form.deep else ("threadIdx.y", "threadIdx.x")
    s.bind(f"{out}.n", other)
    s.compute_at(sums, f"{out}.n")
    s.set_scope(sums, "register")
    s.compute_at(parts, f"{out}.no")
    s.set_scope(parts, "shared")
    s.bind(f"{parts}.n", other)
    s.bind(f"{parts}.lane", lane)
    s.compute_at(acc, f"{parts}.lane")
    s.set_scope(acc, "register")
    for loop in (f"{out}.m", f"{sums}.m", f"{sums}.init.m", f"{parts}.m", f"{acc}.m", f"{acc}.init.m", f"{acc}.own"):
        s.unroll(loop)
    if form.front is None:
        return s
    whole = s.program
    body = form.front.before(whole.body, max(threads // width, 1))
    return Schedule(replace(whole, body=body), intrinsics=target.machine.warps.reduce.values())


class _Parts:
    """The program before it is scheduled: ``acc`` and ``parts`` [b, no, n, lane, m], ``sums`` [b, no, n, m]."""

    def __init__(self, task: KernelTask, form: _Form, width: int, others: int, each: int) -> None:
        self.task, self.form, self.each = task, form, each
        self.lanes, self.tile = (width, others) if form.deep else (others, width)
        own = form.product
        self.depth = own.depth(self.lanes * each)
        self.no = -(-form.long.extent // self.tile)
        name, dtype, batch, few = own.anchor.name, own.anchor.dtype, own.batch.extent, form.short.extent
        shape = (batch, self.no, self.tile, self.lanes, few)
        self.acc = Buffer(f"{name}.acc", shape, dtype)
        self.parts = Buffer(f"{name}.parts", shape, dtype)
        self.sums = Buffer(f"{name}.sums", (batch, self.no, self.tile, few), dtype)
        self.blocks = [("b", batch), ("no", self.no), ("n", self.tile)]
        self.few = [("m", few)]

    def program(self) -> LoopProgram:
        """The naive loop program."""
        body: Stmt = seq(*self._sums(), self._parts(), *self._added(), self._output())
        for buffer in (self.sums, self.parts, self.acc):
            body = Alloc(buffer, body)
        return LoopProgram(self.task.name, tuple(t.buffer for t in (*self.task.inputs, *self.task.outputs)), body)

    def _sums(self) -> tuple[Stmt, Stmt]:
        """Partial sums of a lane over the depth, ``each`` elements in every block of it: initialization and update."""
        form, stage = self.form, self.acc.name
        whole = [*self.blocks, ("lane", self.lanes), *self.few]
        index = [var(stage, name, "init.") for name, _ in whole]
        init = nest(stage, whole, stored(self.acc, index, identity("sum", self.acc.dtype)), "init.")
        b, no, n, lane, m = index = [var(stage, name) for name, _ in whole]
        ko, own = var(stage, "ko"), var(stage, "own")
        place = no * self.tile + n
        inside = None if form.long.extent % self.tile == 0 else place < form.long.extent
        values, deep = self.depth.at(ko, lane * self.each + own if form.deep else own * self.lanes + lane)
        values = {**values, **form.product.batch.at(b)}
        matrix = padded(substitute(narrow(form.matrix), {**values, **form.long.at(place)}), inside, deep)
        vectors = padded(substitute(narrow(form.vectors), {**values, **form.short.at(m)}), deep)
        value = cast(form.matrix.dtype, matrix) * cast(form.vectors.dtype, vectors)
        loops = [*self.blocks, ("lane", self.lanes), ("ko", self.depth.blocks), ("own", self.each), *self.few]
        return init, nest(stage, loops, stored(self.acc, index, value, "sum"))

    def _parts(self) -> Stmt:
        stage = self.parts.name
        whole = [*self.blocks, ("lane", self.lanes), *self.few]
        index = [var(stage, name) for name, _ in whole]
        return nest(stage, whole, stored(self.parts, index, Load(self.acc, tuple(index))))

    def _added(self) -> tuple[Stmt, Stmt]:
        stage, whole = self.sums.name, [*self.blocks, *self.few]
        index = [var(stage, name, "init.") for name, _ in whole]
        init = nest(stage, whole, stored(self.sums, index, identity("sum", self.sums.dtype)), "init.")
        b, no, n, m = index = [var(stage, name) for name, _ in whole]
        part = Load(self.parts, (b, no, n, var(stage, "lane"), m))
        return init, nest(stage, [*self.blocks, ("lane", self.lanes), *self.few], stored(self.sums, index, part, "sum"))

    def _output(self) -> Stmt:
        form, stage = self.form, self.form.product.output.name
        whole = [*self.blocks, *self.few]
        b, no, n, m = index = [var(stage, name) for name, _ in whole]
        sum_, place, few = Load(self.sums, tuple(index)), no * self.tile + n, form.short.extent
        row, column = (place, m) if form.swapped else (m, place)
        tiles = (self.tile, few) if form.swapped else (few, self.tile)
        return nest(stage, whole, output_store(form.product, sum_, b, row, column, *tiles))


VECTOR_PRODUCT = Template("vector_product", _form, _space, _schedule, joins=True, seconds=_seconds)

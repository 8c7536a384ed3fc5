"""Products whose depth is split over blocks, where their output is too small for all multiprocessors.

The first launch computes sums over parts of the depth, as a batch of products, by the template for these; the second
adds the parts up, with whatever is element-wise behind the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from burnish.errors import ScheduleError
from burnish.kernels.gpu.elements import ELEMENTS
from burnish.kernels.gpu.forms import ContractionForm, parts, product
from burnish.kernels.gpu.product import PRODUCT
from burnish.kernels.gpu.tensor_product import TENSOR_PRODUCT
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template, TemplateMatch
from burnish.loops.expr import Axis, Load, Reduce, Var
from burnish.loops.program import Alloc, LoopProgram, seq
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import substitute
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

SPLITS = (2, 4, 8, 16)
SHALLOW = 64  # elements of a part of the depth, below which its sums are mostly moved
# A model in cycles of a multiprocessor: multiply-adds a cycle, the share of them that a tile reaches by its side, bytes
# of all memory a cycle, and another launch. From data sheets; not measured.
MULTIPLY_ADDS, SHARES, BYTES, LAUNCH = 128, {16: 0.25, 32: 0.5, 64: 0.8}, 1900, 3000


@dataclass(frozen=True, eq=False)
class SplitProduct:
    """A product and its parts: ``matches`` are what schedules these, by the number of parts."""

    task: KernelTask
    target: Target
    form: ContractionForm
    best: int

    @cached_property
    def matches(self) -> Mapping[int, TemplateMatch]:
        """The products of parts."""
        found = {}
        for count in SPLITS:
            divided = split_task(self.task, self.form, count)
            if divided is None:
                continue
            first, _ = parts(divided, _launched(divided, self.form))
            match = TENSOR_PRODUCT.match(first, self.target) or PRODUCT.match(first, self.target)
            if match is not None:
                found[count] = match
        return found


def _form(task: KernelTask, target: Target) -> SplitProduct | None:
    """A deep product of few rows and columns."""
    found = product(task)
    if found is None or found.anchor.dtype not in ("float32", "int32"):
        return None
    best = min((1, *SPLITS), key=lambda n: _cycles(found, target, n))
    if best == 1 or split_task(task, found, best) is None:
        return None
    split = SplitProduct(task, target, found, best)
    return split if best in split.matches else None


def _cycles(form: ContractionForm, target: Target, splits: int) -> float:
    """Modelled cycles of the product with the best tile, partial sums' traffic and launch included."""
    batch, rows, columns, depth = form.sizes
    if splits > 1 and depth < splits * SHALLOW:
        return float("inf")

    def waves(side: int) -> float:
        blocks = batch * splits * -(-rows // side) * -(-columns // side)
        return -(-blocks // target.cores) * side * side / SHARES[side] * depth / splits / MULTIPLY_ADDS

    moved = 8 * splits * batch * rows * columns / BYTES + LAUNCH if splits > 1 else 0.0
    return min(map(waves, SHARES)) + moved


def split_task(task: KernelTask, form: ContractionForm, count: int) -> KernelTask | None:
    """The task with the sum as ``count`` sums over parts of its longest axis, which are then added; None where that is
    no multiple of ``count``.
    """
    anchor = form.anchor
    body = anchor.body
    assert isinstance(body, Reduce)
    longest = max(body.axes, key=lambda a: a.extent)
    if longest.extent % count:
        return None
    part, inner = Var(f"{anchor.name}.part"), Axis(longest.var, longest.extent // count)
    moved = substitute(body.body, {longest.var.name: part * inner.extent + longest.var})
    axes = tuple(inner if a is longest else a for a in body.axes)
    buffer = anchor.buffer.with_(name=f"{anchor.name}.parts", shape=(count, *anchor.shape))
    sums = Tensor(buffer, (part, *anchor.axes), Reduce(body.kind, moved, axes), anchor.inputs)
    number = Var(f"{anchor.name}.number")
    added = Reduce("sum", Load(buffer, (number, *anchor.axes)), (Axis(number, count),))
    whole = Tensor(anchor.buffer, anchor.axes, added, (sums,))
    return replace(task, outputs=tuple(_with(t, anchor, whole, {}) for t in task.outputs))


def _with(t: Tensor, old: Tensor, new: Tensor, done: dict[int, Tensor]) -> Tensor:
    """A tensor computed from ``new`` instead of ``old``."""
    if t is old:
        return new
    if t.body is None:
        return t
    if id(t) not in done:
        done[id(t)] = Tensor(t.buffer, t.axes, t.body, tuple(_with(i, old, new, done) for i in t.inputs))
    return done[id(t)]


def _launched(task: KernelTask, form: ContractionForm) -> list[Tensor]:
    """Outputs of the two launches: partial sums, and the result."""
    sums = next(t for t in task.stages() if t.name == f"{form.anchor.name}.parts")
    return [sums, task.outputs[0]]


def _space(task: KernelTask, target: Target, form: SplitProduct) -> ScheduleSpace:
    del task, target
    own = form.matches[form.best].space
    return ScheduleSpace({"splits": tuple(form.matches), **own.knobs}, {"splits": form.best, **own.default})


def _schedule(task: KernelTask, target: Target, form: SplitProduct, choice: Choice) -> Schedule:
    """The program of both launches."""
    count = int(choice["splits"])
    divided = split_task(task, form.form, count)
    if divided is None or count not in form.matches:
        raise ScheduleError(f"task '{task.name}': its depth is not split by {count}; allowed: {list(form.matches)}")
    launched = _launched(divided, form.form)
    _, last = parts(divided, launched)
    first = form.matches[count]
    own = {knob: choice[knob] for knob in first.space.knobs}
    added = ELEMENTS.on(last, target)
    body = seq(first.apply(own).program.body, added.apply(added.space.default).program.body)
    params = tuple(t.buffer for t in (*task.inputs, *task.outputs))
    return Schedule(LoopProgram(task.name, params, Alloc(launched[0].buffer, body)))


SPLIT_PRODUCT = Template("split_product", _form, _space, _schedule)

"""Products whose depth is split over blocks, where their output is too small for all multiprocessors.

The first launch computes sums over parts of the depth, as a batch of products, by the template for these that is
predicted to be fastest; the second adds the parts up, with the element-wise operators behind the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from burnish.errors import ScheduleError
from burnish.kernels.gpu.elements import ELEMENTS
from burnish.kernels.gpu.forms import ContractionForm, parts, product
from burnish.kernels.gpu.product import FEWEST, PRODUCT, thread_blocks
from burnish.kernels.gpu.product_time import ProductSize, TileBlock, added_seconds, best
from burnish.kernels.gpu.tensor_product import TENSOR_PRODUCT, tensor_blocks
from burnish.kernels.gpu.warpgroup_product import WARPGROUP_PRODUCT, warpgroup_blocks
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template, TemplateMatch
from burnish.loops.contraction import partial_sums
from burnish.loops.expr import Axis, Load, Reduce, Var
from burnish.loops.program import Alloc, LoopProgram, seq
from burnish.loops.tensor import Tensor
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

SPLITS = (2, 3, 4, 6, 8, 12, 16)
SHALLOW = 128  # elements of a part of the depth, below which its sums are mostly moved
MARGIN = 1.1  # times what is predicted: about what predictions err
SLOWER = 1.5  # times the product as a whole, up to which a search may try parts
FIRST: tuple[tuple[Template[Any], Callable[[ContractionForm, Target], list[TileBlock]]], ...] = (
    (WARPGROUP_PRODUCT, warpgroup_blocks), (TENSOR_PRODUCT, tensor_blocks), (PRODUCT, thread_blocks),
)  # fmt: skip
"""Templates of the first launch, and the blocks of each."""


@dataclass(frozen=True, eq=False)
class SplitProduct:
    """A product, the number of parts that is best, the template that computes these, and predicted seconds."""

    task: KernelTask
    target: Target
    form: ContractionForm
    best: int
    first: Template[Any]
    seconds: float

    @cached_property
    def counts(self) -> list[int]:
        """The numbers of parts that there are."""
        return counts_of(self.form)

    def match(self, count: int) -> TemplateMatch | None:
        """Match of the product of ``count`` parts."""
        divided = split_task(self.task, self.form, count)
        if divided is None:
            return None
        first, _ = parts(divided, _launched(divided, self.form))
        return self.first.match(first, self.target)


def counts_of(form: ContractionForm) -> list[int]:
    """The numbers of equal parts of the longest axis of the depth that are not too short."""
    longest = max((a.extent for a in form.reduced), default=1)
    return [n for n in SPLITS if longest % n == 0 and form.sizes[3] >= n * SHALLOW]


def _form(task: KernelTask, target: Target) -> SplitProduct | None:
    """A deep product of few rows and columns."""
    found = product(task)
    if found is None or found.anchor.dtype not in ("float32", "int32") or found.sizes[3] < FEWEST:
        return None
    counts = counts_of(found)
    ways = [(template, blocks(found, target)) for template, blocks in FIRST if template.match(task, target)]
    if not counts or not ways:
        return None
    work = ProductSize.of(found, task, target)

    def fastest(count: int) -> tuple[float, int, Template[Any]]:
        own = work.split(count)
        seconds, template = min(((best(own, blocks, target)[0], t) for t, blocks in ways), key=lambda pair: pair[0])
        return MARGIN * (seconds + added_seconds(work, count, target)), count, template

    seconds, count, template = min(map(fastest, counts), key=lambda way: way[0])
    whole = min(best(work, blocks, target)[0] for _, blocks in ways)
    split = SplitProduct(task, target, found, count, template, seconds)
    return split if seconds < SLOWER * whole and split.match(count) is not None else None


def split_task(task: KernelTask, form: ContractionForm, count: int) -> KernelTask | None:
    """The task with the sum as ``count`` sums over parts of its longest axis, which are then added; None where that is
    no multiple of ``count``.
    """
    anchor = form.anchor
    sums = partial_sums(anchor, count, f"{anchor.name}.parts")
    if sums is None:
        return None
    number = Var(f"{anchor.name}.number")
    added = Reduce("sum", Load(sums.buffer, (number, *anchor.axes)), (Axis(number, count),))
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
    match = form.match(form.best)
    assert match is not None
    own = match.space
    return ScheduleSpace({"splits": tuple(form.counts), **own.knobs}, {"splits": form.best, **own.default})


def _schedule(task: KernelTask, target: Target, form: SplitProduct, choice: Choice) -> Schedule:
    """The program of both launches."""
    count = int(choice["splits"])
    divided, first = split_task(task, form.form, count), form.match(count)
    if divided is None or first is None:
        raise ScheduleError(f"task '{task.name}': its depth is not split by {count}; allowed: {form.counts}")
    launched = _launched(divided, form.form)
    _, last = parts(divided, launched)
    own = {knob: choice.get(knob, first.space.default[knob]) for knob in first.space.knobs}  # some parts offer more
    added = ELEMENTS.on(last, target)
    body = seq(first.apply(own).program.body, added.apply(added.space.default).program.body)
    params = tuple(t.buffer for t in (*task.inputs, *task.outputs))
    return Schedule(LoopProgram(task.name, params, Alloc(launched[0].buffer, body)))


SPLIT_PRODUCT = Template(
    "split_product", _form, _space, _schedule, seconds=lambda task, target, form: form.seconds,
    parts=lambda form: form.best,
)  # fmt: skip

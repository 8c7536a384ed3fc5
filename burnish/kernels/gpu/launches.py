"""Several launches, one after another: tasks that no other template schedules as one, such as Winograd's stages.

Every stage that is kept becomes a task of its own, scheduled by the first template that can; what is between them lies
in global memory. The end of a launch is where all blocks wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from burnish.errors import ScheduleError
from burnish.kernels.cpu.generic import inline_cheap
from burnish.kernels.gpu.elements import ELEMENTS, schedule_elements, serial
from burnish.kernels.gpu.forms import parts
from burnish.kernels.gpu.product import PRODUCT
from burnish.kernels.gpu.rows import ROWS
from burnish.kernels.gpu.shared_rows import SHARED_ROWS
from burnish.kernels.gpu.split_product import SPLIT_PRODUCT
from burnish.kernels.gpu.tensor_product import TENSOR_PRODUCT
from burnish.kernels.gpu.vector_product import VECTOR_PRODUCT
from burnish.kernels.gpu.warpgroup_product import WARPGROUP_PRODUCT
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template, by_prediction
from burnish.loops.expr import Reduce
from burnish.loops.program import Alloc, LoopProgram, Stmt, seq
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import loads
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

SINGLE: tuple[Template[Any], ...] = (
    SPLIT_PRODUCT,
    WARPGROUP_PRODUCT,
    TENSOR_PRODUCT,
    PRODUCT,
    VECTOR_PRODUCT,
    ROWS,
    SHARED_ROWS,
    ELEMENTS,
)
FALLBACK_THREADS = 128


def _kept(task: KernelTask, target: Target) -> list[Tensor]:
    """The stages that become launches, outputs among them, producers first."""
    own = {t.name for t in inline_cheap(Schedule(task.program()), task, target)}
    outputs = {t.name for t in task.outputs}
    kept = [t for t in task.stages() if t.name in own | outputs]
    for t in [t for t in kept if t.name not in outputs]:
        without = [u for u in kept if u is not t]
        if isinstance(t.body, Reduce) and _is_read_once(t, task, without, target):
            kept = without
    return kept


def _is_read_once(t: Tensor, task: KernelTask, kept: list[Tensor], target: Target) -> bool:
    """Whether the elements of a reduction are each read for one element of a map alone, which may compute them."""
    reading = [part for part in parts(task, kept) if t.name in {s.name for s in part.stages()}]
    if len(reading) != 1 or isinstance(reading[0].outputs[0].body, Reduce):
        return False
    read = [x for s in reading[0].stages() if s.body is not None for x in loads(s.body) if x.buffer.name == t.name]
    return len(read) == 1 and ELEMENTS.match(reading[0], target) is not None


def _schedule(task: KernelTask, target: Target, form: bool, choice: Choice) -> Schedule:
    del form, choice
    kept = _kept(task, target)
    bodies: list[Stmt] = []
    for part in parts(task, kept):
        bodies.append(_scheduled(part, target))
    body: Stmt = seq(*bodies)
    outputs = {t.name for t in task.outputs}
    for t in reversed(kept):
        if t.name not in outputs:
            body = Alloc(t.buffer, body)
    params = tuple(t.buffer for t in (*task.inputs, *task.outputs))
    return Schedule(LoopProgram(task.name, params, body))


def _scheduled(part: KernelTask, target: Target) -> Stmt:
    """The statement of one part by the first template that can."""
    if 0 in part.outputs[0].shape:
        return seq()
    problem: ScheduleError | None = None
    for made in _attempts(part, target):
        try:
            return made()
        except ScheduleError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _attempts(part: KernelTask, target: Target) -> Iterator[Any]:
    for match in by_prediction([m for template in SINGLE if (m := template.match(part, target)) is not None]):
        yield lambda match=match: match.apply(match.space.default).program.body
    if serial(part):
        choice = {"threads": FALLBACK_THREADS}
        yield lambda: schedule_elements(part, target, True, choice).program.body


LAUNCHES = Template("launches", lambda task, target: True, lambda *_: ScheduleSpace({}, {}), _schedule)

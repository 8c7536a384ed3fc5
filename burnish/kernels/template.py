"""Schedule templates: what matches a task on a target, as a space of choices that each make a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from burnish.errors import ScheduleError
from burnish.kernels.nest import CandidateNests, Knobs, NestLevel, main_stage, statement
from burnish.kernels.scheduled import ScheduledNests
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

Form = TypeVar("Form")
Describe = Callable[[Knobs, int], CandidateNests]
"""Knobs and the number of candidates -> their loop nests, as cost models see them."""


def stage_nest(task: KernelTask, target: Target, form: object) -> Describe:
    """The loops of the main stage as the definition has them, which no knob changes."""
    del target, form
    domain = statement(task, main_stage(task))
    levels = [NestLevel(axis, extent) for axis, extent in enumerate(domain.extents)]
    return lambda knobs, count: domain.nest(levels, count)


@dataclass(frozen=True)
class Template(Generic[Form]):
    """A way to schedule tasks of one form.

    ``form`` finds in a task what the template schedules, None where there is no such thing; the other functions are
    given what it found. ``space``: the knobs; ``schedule``: what a choice makes; ``nests``: the loops of its main
    statement for many choices at once; None takes them from the schedules of all choices, which must be few
    (``scheduled.py``). ``searched``: says of a task that it is good there only where its knobs are tuned, so no
    default. ``loaded``: it is asked about tasks that reduce over loaded extents, whose number of iterations is not
    known. ``joins``: it schedules what would else be several kernels, as one that keeps nothing between them in memory.
    ``seconds``: predicted ones of the default choice, by which templates that have them stand in the order of
    :func:`by_prediction`. ``parts``: the number of partial sums that its default choice adds in a launch of its own.
    """

    name: str
    form: Callable[[KernelTask, Target], Form | None]
    space: Callable[[KernelTask, Target, Form], ScheduleSpace]
    schedule: Callable[[KernelTask, Target, Form, Choice], Schedule]
    nests: Callable[[KernelTask, Target, Form], Describe] | None = stage_nest
    searched: Callable[[KernelTask, Target, Form], bool] | None = None
    loaded: bool = False
    joins: bool = False
    seconds: Callable[[KernelTask, Target, Form], float] | None = None
    parts: Callable[[Form], int] | None = None

    def match(self, task: KernelTask, target: Target) -> TemplateMatch | None:
        """The template on a task; None where it cannot schedule it."""
        found = None if task.loaded and not self.loaded else self.form(task, target)
        return None if found is None else TemplateMatch(self, task, target, found)

    def on(self, task: KernelTask, target: Target) -> TemplateMatch:
        """As :meth:`match`. Raises ScheduleError where the template cannot schedule the task."""
        found = self.match(task, target)
        if found is None:
            raise ScheduleError(f"task '{task.name}': template '{self.name}' does not match it on '{target.name}'")
        return found


@dataclass(frozen=True, eq=False)
class TemplateMatch:
    """A template on a task that it can schedule: ``form`` is what it found there."""

    template: Template[Any]
    task: KernelTask
    target: Target
    form: Any

    @property
    def name(self) -> str:
        """The template's."""
        return self.template.name

    @cached_property
    def space(self) -> ScheduleSpace:
        """The knobs and their analytic default."""
        return self.template.space(self.task, self.target, self.form)

    @property
    def parts(self) -> int:
        """The number of partial sums that the default choice adds in a launch of its own; 1: it adds none."""
        return 1 if self.template.parts is None else self.template.parts(self.form)

    def apply(self, choice: Choice) -> Schedule:
        """The schedule that ``choice`` makes, which must name all knobs. Raises ScheduleError where it cannot be."""
        return self.template.schedule(self.task, self.target, self.form, choice)

    @cached_property
    def searched(self) -> bool:
        """Whether the template is good on the task only where its knobs are tuned."""
        asked = self.template.searched
        return asked is not None and asked(self.task, self.target, self.form)

    @cached_property
    def seconds(self) -> float | None:
        """Predicted seconds of the default choice; None where nothing predicts them."""
        predict = self.template.seconds
        return None if predict is None else predict(self.task, self.target, self.form)

    @cached_property
    def nests(self) -> Describe:
        """Function from knobs to the loop nests of candidates."""
        if self.template.nests is None:
            return ScheduledNests(self.task, self.space, self.apply)
        return self.template.nests(self.task, self.target, self.form)


def by_prediction(found: Sequence[TemplateMatch]) -> list[TemplateMatch]:
    """Matches in their order, but those with a prediction by it, where the first of all has one."""
    if not found or found[0].template.seconds is None or len(found) == 1:
        return [*found]
    timed = [(match.seconds, match) for match in found if match.template.seconds is not None]
    first = [match for _, match in sorted(timed, key=lambda pair: pair[0] or 0.0)]
    return [*first, *(match for match in found if match.template.seconds is None)]

"""Templates by kind of target: the first that matches a task schedules it by default, a tuner tries all that do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.errors import ScheduleError
from burnish.kernels import cpu, gpu, vdla
from burnish.kernels.task import KernelTask
from burnish.kernels.template import Template, TemplateMatch, by_prediction
from burnish.machines.target import Target

BY_KIND: Mapping[str, tuple[Template[Any], ...]] = {
    "cpu": cpu.TEMPLATES, "gpu": gpu.TEMPLATES, "vdla": vdla.TEMPLATES,
}  # fmt: skip


def templates(target: Target) -> tuple[Template[Any], ...]:
    """The templates of the target's machine, or those there are for its kind, best first.

    Raises ScheduleError where there are none.
    """
    found = target.machine.templates or BY_KIND.get(target.kind)
    if not found:
        raise ScheduleError(f"target '{target.name}' is of kind '{target.kind}', for which there are no templates")
    return found


def tunable_matches(task: KernelTask, target: Target) -> list[TemplateMatch]:
    """Every template that matches ``task``, best first: those that need a search last, and those of what drives a
    target behind its own.

    Raises ScheduleError where none does.
    """
    driver = target.driver
    ways = [(template, target) for template in templates(target)]
    ways += [(template, driver) for template in templates(driver)] if driver is not target else []
    found = [match for template, there in ways if (match := template.match(task, there)) is not None]
    if not found:
        names = ", ".join(template.name for template, _ in ways)
        raise ScheduleError(f"task '{task.name}': no template of target '{target.name}' matches; there are {names}")
    return sorted(by_prediction(found), key=lambda match: match.searched)


def matches(task: KernelTask, target: Target) -> list[TemplateMatch]:
    """Matches of :func:`tunable_matches` that are good without a search; the last one schedules everything."""
    return [match for match in tunable_matches(task, target) if not match.searched]


def first_match(task: KernelTask, target: Target) -> TemplateMatch:
    """The template that schedules ``task`` by default."""
    return matches(task, target)[0]


def general_template(target: Target) -> Template[Any]:
    """The template that schedules everything: the last of those that never need a search."""
    return [template for template in templates(target) if template.searched is None][-1]


def is_general(task: KernelTask, target: Target) -> bool:
    """Whether ``task`` has no template of its own: none takes it but those that take anything."""
    static, last = task.hinted, general_template(target)
    others = (template for template in templates(target) if template.searched is None and template is not last)
    return all(template.match(static, target) is None for template in others)


def template_called(name: str, target: Target) -> Template[Any]:
    """The template of this name. Raises ScheduleError, naming the known ones."""
    found = next((template for template in templates(target) if template.name == name), None)
    if found is None:
        known = ", ".join(template.name for template in templates(target))
        raise ScheduleError(f"template '{name}' is unknown; known: {known}")
    return found

"""From a task to object code: a template that fails is replaced, and kernels are reused from the cache."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.base.cache import ObjectCache
from burnish.errors import ScheduleError
from burnish.kernels.cpu import GENERIC
from burnish.kernels.task import Choice, KernelTask
from burnish.loops.tensor import compute, placeholder
from burnish.machines.target import Target, host
from burnish.pipeline import kernel as building
from burnish.schedule.schedule import Schedule


def doubling() -> KernelTask:
    x = placeholder((40,), "float32", "x")
    return KernelTask("double", (x,), (compute((40,), lambda i: x[i] * 2.0, "y"),), "mul", {}, frozenset())


def refuse(task: KernelTask, target: Target, form: bool, choice: Choice) -> Schedule:
    raise ScheduleError("split: loop 'y.i' is a sphere")


def test_a_template_that_cannot_schedule_is_named_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = replace(GENERIC, name="broken", schedule=refuse)
    monkeypatch.setattr(building, "matches", lambda *task: [broken.on(*task), GENERIC.on(*task)])
    kernel = building.compile_task(doubling(), host())
    assert kernel.template == "generic"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "'broken' cannot schedule it: split: loop 'y.i' is a sphere" in record.message


def test_the_error_of_the_last_template_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "matches", lambda *task: [replace(GENERIC, schedule=refuse).on(*task)])
    with pytest.raises(ScheduleError, match="is a sphere"):
        building.compile_task(doubling(), host())


def test_a_kernel_from_the_cache_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectCache(tmp_path)
    made = building.build(doubling(), host(), store)
    monkeypatch.setattr(building, "compile_task", lambda task, target: pytest.fail("compiled again"))
    assert building.build(doubling(), host(), store) == made


def test_another_layout_constant_or_machine_is_another_kernel() -> None:
    task = doubling()
    keys = {
        building.task_key(task, host()),
        building.task_key(replace(task, constants=frozenset({"x"})), host()),
        building.task_key(replace(task, label="conv2d"), host()),
        building.task_key(task, replace(host(), features=frozenset())),
        building.task_key(task, replace(host(), cores=host().cores + 1)),
    }
    assert len(keys) == 5

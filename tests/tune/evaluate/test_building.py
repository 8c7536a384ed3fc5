"""Builds happen elsewhere and give what a build here would; those that fail, hang or kill are outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.machines.target import host
from burnish.pipeline.kernel import compile_by, named, task_key
from burnish.schedule.prefix_cache import Steps
from burnish.schedule.schedule import Schedule
from burnish.tune.evaluate import Evaluator, KernelTrial, building
from burnish.tune.evaluate.building import TrialBuilder
from burnish.workers import Worker, pool, worker
from tests.tune.evaluate import jobs


def test_a_build_is_the_build_of_this_process(evaluator: Evaluator, product: KernelTask) -> None:
    match = first_match(named(product, task_key(product, host())), host())
    (built,) = evaluator.build([evaluator.default(product)])
    here = compile_by(match)
    assert built.kernel == here
    assert built.kernel is not None
    assert built.kernel.packing
    assert built.seconds > 0


def test_builds_keep_the_order_of_their_trials(evaluator: Evaluator, product: KernelTask) -> None:
    match = first_match(product, host())
    space = match.space
    knob = next(name for name, choices in space.knobs.items() if len(choices) > 1)
    trials = [KernelTrial(product, match.name, {**space.default, knob: choice}) for choice in space.knobs[knob][:3]]
    builds = evaluator.build(trials)
    assert [dict(b.kernel.choice) for b in builds if b.kernel] == [dict(t.choice) for t in trials]


def test_remembered_steps_change_no_build(product: KernelTask, monkeypatch: pytest.MonkeyPatch) -> None:
    task, match = named(product, task_key(product, host())), first_match(product, host())
    space = match.space
    knob = next(name for name, choices in space.knobs.items() if len(choices) > 1)
    choices = [{**space.default, knob: choice} for choice in space.knobs[knob][:3]]
    fresh = [building.build(task, host(), match.name, choice) for choice in choices]
    monkeypatch.setattr(Schedule, "steps", Steps(1000))
    for _ in range(2):
        again = [building.build(task, host(), match.name, choice) for choice in choices]
        assert [(b.kernel, b.image, b.trace) for b in again] == [(b.kernel, b.image, b.trace) for b in fresh]
    monkeypatch.setattr(building, "compile_program", None)  # what is known is not compiled again
    assert building.build(task, host(), match.name, choices[0]).kernel == fresh[0].kernel


def test_errors_of_a_build_are_told(evaluator: Evaluator, doubling: KernelTask) -> None:
    default = evaluator.default(doubling)
    builds = evaluator.build([KernelTrial(doubling, "round", {}), KernelTrial(doubling, "direct_conv2d", {}), default])
    assert builds[0].kernel is builds[1].kernel is None
    assert builds[0].error.startswith("ScheduleError: template 'round' is unknown; known: depthwise_conv2d")
    assert builds[1].error
    assert builds[2].kernel is not None


@pytest.mark.parametrize(
    ("job", "error"),
    [
        pytest.param("sleep", "the compiler took longer than 2 s", marks=pytest.mark.slow),
        ("compute", "the compiler took longer than 0.5 s of processor time"),
        ("abort", "the compiler was killed by SIGABRT"),
        ("exit", "the compiler ended with exit code 7"),
        ("fail", "ValueError: invalid literal"),
    ],
)
def test_a_build_that_hangs_or_kills_is_an_outcome(
    evaluator: Evaluator, doubling: KernelTask, monkeypatch: pytest.MonkeyPatch, job: str, error: str
) -> None:
    endless = job in ("sleep", "compute")
    if job == "compute":  # which is limited by what it computes, however little of a busy machine it gets
        monkeypatch.setattr(worker, "PATIENCE", 1000)
    builder = TrialBuilder(evaluator._server, host(), workers=2, limit=0.5 if endless else 60.0)
    monkeypatch.setattr(building, "build_packet", jobs.build)
    good = evaluator.default(doubling)
    bad = KernelTrial(doubling, job, good.choice)
    if not endless:  # the limit is too short for a good build on a slow machine
        before, broken, after = builder.build([good, bad, good])
        assert before.kernel == after.kernel
        assert before.kernel is not None
    else:
        (broken,) = builder.build([bad])
    assert broken.kernel is None
    assert broken.error.startswith(error)


def test_an_interrupt_ends_the_workers(
    evaluator: Evaluator, doubling: KernelTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TrialBuilder(evaluator._server, host(), workers=2, limit=60.0)
    busy: list[Worker] = []

    def interrupt(workers: Iterable[Worker]) -> None:
        busy.extend(workers)
        raise KeyboardInterrupt

    good = evaluator.default(doubling)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pool, "wait", interrupt)
        builder.build([good, good])
    assert len(busy) == 2 and not any(Path(f"/proc/{worker.pid}").exists() for worker in busy)
    (built,) = builder.build([good])
    assert built.kernel is not None

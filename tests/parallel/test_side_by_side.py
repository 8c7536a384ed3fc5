"""Kernels side by side in the programs of devices: between messages, with the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from burnish.comm import Comm, launch
from burnish.driver import concurrent
from burnish.driver.side_by_side import arena_bytes
from burnish.machines.target import host
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.plans import Stages, TensorSplits
from burnish.parallel.programs.ranks import RankPrograms, rank_programs
from burnish.runtime.executable import Collective, Executable, KernelCall, Wait
from burnish.runtime.module import Module
from tests.parallel.networks import NETWORKS, TRAIN, batch_of, random_splits, step_of
from tests.parallel.test_pipelines import staged


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever may run side by side does."""
    monkeypatch.setattr(concurrent, "GAIN", -1e9)


def made_of(name: str, kind: str) -> RankPrograms:
    """The programs of two devices for a step of training."""
    model = NETWORKS[name]()
    plan: TensorSplits | Stages
    if kind == "pipeline":
        plan = staged(model, 2, 2, 2)
    else:
        splits = random_splits(step_of(model), [node.outputs[0] for node in model.nodes], 2, seed=11)
        plan = TensorSplits(splits)
    return rank_programs(model, TRAIN, plan, 2, replace(host(), cores=16))


def trained(made: list[Executable], batch: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The states on each device after two steps, on three threads."""

    def run(comm: Comm) -> dict[str, np.ndarray]:
        step = RankStep(Module(made[comm.rank], 3, comm=comm), comm)
        for _ in range(2):
            step(*[batch[spec.name] for spec in step.inputs])
        return {name: step.state[name] for name in step.state}

    return launch(run, [()] * len(made))


@pytest.mark.parametrize(
    ("name", "kind"), [("mlp", "splits"), ("attention", "splits"), ("cnn", "splits"), ("mlp", "pipeline")]
)
def test_no_bit_changes(name: str, kind: str, always: None) -> None:
    made = made_of(name, kind).executables()
    assert all(executable.concurrent for executable in made)
    for executable in made:
        for group in executable.concurrent:
            own = executable.steps[group.first : group.first + group.count]
            assert all(isinstance(step, KernelCall) for step in own)
    batch = batch_of(step_of(NETWORKS[name]()))
    alone = trained([replace(executable, concurrent=()) for executable in made], batch)
    for found, wanted in zip(trained(made, batch), alone, strict=True):
        for state, value in wanted.items():
            np.testing.assert_array_equal(found[state], value)


def messages(executable: Executable, operation: str) -> dict[int, int]:
    """The number of kernels before what is sent goes ("send"), or what comes is waited for ("recv"), by tag."""
    kernels, found = 0, dict[int, int]()
    for step in executable.steps:
        kernels += isinstance(step, KernelCall)
        begun = executable.steps[step.step] if isinstance(step, Wait) else step
        if isinstance(begun, Collective) and begun.operation == operation:
            found[begun.tag] = kernels if operation == "recv" else found.get(begun.tag, kernels)
    return found


def test_no_message_is_waited_for_earlier_or_sent_later(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_of("attention", "splits").executables()
    monkeypatch.setattr(concurrent, "MOST", 1)
    for own, alone in zip(found, made_of("attention", "splits").executables(), strict=True):
        assert own.concurrent and not alone.concurrent
        received, sent = messages(alone, "recv"), messages(alone, "send")
        assert received and all(messages(own, "recv")[tag] >= before for tag, before in received.items())
        assert sent and all(messages(own, "send")[tag] <= before for tag, before in sent.items())


@pytest.mark.parametrize(("name", "kind"), [("attention", "splits"), ("mlp", "pipeline")])
def test_they_need_no_more_memory(name: str, kind: str, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_of(name, kind).made
    with monkeypatch.context() as patch:
        patch.setattr(concurrent, "MOST", 1)
        alone = made_of(name, kind).made
    assert all(map(arena_bytes, alone)) and not any(made.concurrent for made in alone)
    for own, before in zip(found, alone, strict=True):
        assert own.concurrent and arena_bytes(own) <= arena_bytes(before)
    if kind == "splits":  # those that need more are left out
        assert any(arena_bytes(concurrent.side_by_side(made)) > arena_bytes(made) for made in alone)

"""Compiled programs of devices: threads, processes, gloo; training with checkpoints; a device that dies."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.comm import Comm, launch
from burnish.driver.loading import load_module
from burnish.errors import ArtifactError, InputError, ParameterError, WorkerError
from burnish.fitting import ranks as ranks_module
from burnish.fitting.fit import fit
from burnish.fitting.ranks import RankTask, faster_plan, train_rank
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target
from burnish.parallel.model.operations import operations
from burnish.parallel.model.placement import TensorSplit
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.programs.calibration import LaunchConfig
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.plans import TensorSplits, splits_of
from burnish.parallel.programs.program import programs
from burnish.parallel.programs.ranks import compile_ranks, kept_bytes, rank_memory
from burnish.runtime import artifact
from burnish.runtime.collectives import Collectives
from burnish.runtime.executable import Collective, Executable, KernelCall, Wait
from burnish.runtime.module import Module
from burnish.train.optimizers import SGD
from burnish.train.precision import MixedPrecision
from burnish.train.step import Train
from tests.marks import slow
from tests.parallel.networks import NETWORKS, TRAIN, batch_of, random_splits, step_of, trained_alone, weight

NEAR = 1e-6
MIXED = TensorSplits({"h0": TensorSplit((2, 1), (0, 1)), "y": TensorSplit((1, 2), (1, 0))})


def compiled(name: str, ranks: int, seed: int) -> tuple[Any, list[Executable]]:
    """A training step and its programs by random splits of the model's tensors."""
    model = NETWORKS[name]()
    step = step_of(model)
    splits = random_splits(step, [node.outputs[0] for node in model.nodes], ranks, seed)
    return step, compile_ranks(step, TensorSplits(splits), ranks, target("cpu"))


def run_steps(comm: Comm, executable: Executable, batch: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """The states after so many steps."""
    step = RankStep(Module(executable, 1, comm=comm), comm)
    for _ in range(steps):
        step(*[batch[spec.name] for spec in step.inputs])
    return {name: step.state[name] for name in step.state}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("mlp", 4), ("cnn", 2), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("attention", "lstm"))],
)
def test_compiled_programs_train_to_the_weights_of_one_process(name: str, ranks: int) -> None:
    step, made = compiled(name, ranks, seed=11)
    batch = batch_of(step)
    wanted = trained_alone(step, batch, 3)
    for states in launch(run_steps, [(executable, batch, 3) for executable in made]):
        for state, value in wanted.items():
            error = np.abs(states[state].astype(np.float64) - value).max() / max(np.abs(value).max(), 1e-30)
            assert error <= NEAR, state


def deep() -> Graph:
    """Four dense layers."""
    b = GraphBuilder()
    h = b.input("x", (8, 16))
    for i, (rows_, columns) in enumerate(((16, 32), (32, 16), (16, 32), (32, 8))):
        h = b.add("matmul", h, weight(b, f"w{i}", rows_, columns), name=f"d{i}")
        h = b.add("relu", h, name=f"r{i}") if i < 3 else h
    return b.build(h)


@pytest.mark.parametrize("seed", range(3))
def test_strategies_of_the_space_train_to_the_weights_of_one_process(seed: int) -> None:
    model = deep()
    step, found = step_of(model), operations(model)
    space = StrategySpace(found, machine("host:2"))
    made = compile_ranks(step, splits_of(found, space.strategy(space.random(seed))), 2, target("cpu"))
    batch = batch_of(step)
    wanted = trained_alone(step, batch, 3)
    (states, _) = launch(run_steps, [(executable, batch, 3) for executable in made])
    for state, value in wanted.items():
        assert np.abs(states[state] - value).max() <= NEAR * max(np.abs(value).max(), 1e-30), state


def test_a_new_value_of_a_state_that_is_sent_as_well() -> None:
    step = step_of(NETWORKS["mlp"]())
    splits = TensorSplits(random_splits(step, [node.outputs[0] for node in step.nodes], 2, seed=0))
    made = programs(step, splits.splits, 2)
    states = [{p.graph.outputs[state.output] for state in p.graph.states.values()} for p in made]
    assert any(m.tensor in own for p, own in zip(made, states, strict=True) for m in p.sends), "none is sent"
    batch = batch_of(step)
    wanted = trained_alone(step, batch, 3)
    compiled_ones = compile_ranks(step, splits, 2, target("cpu"))
    (found, _) = launch(run_steps, [(executable, batch, 3) for executable in compiled_ones])
    for state, value in wanted.items():
        assert np.abs(found[state] - value).max() <= NEAR * max(np.abs(value).max(), 1e-30), state


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_many_compiled_programs(name: str) -> None:
    for seed in range(10):
        step, made = compiled(name, 2 + 2 * (seed % 2), seed)
        batch = batch_of(step)
        wanted = trained_alone(step, batch, 3)
        (states, *_) = launch(run_steps, [(executable, batch, 3) for executable in made])
        for state, value in wanted.items():
            assert np.abs(states[state] - value).max() <= NEAR * max(np.abs(value).max(), 1e-30), (seed, state)


@pytest.mark.parametrize(("name", "ranks"), [("mlp", 2), ("cnn", 2), pytest.param("lstm", 4, marks=pytest.mark.slow)])
def test_memory_is_known_before_machine_code(name: str, ranks: int) -> None:
    model = NETWORKS[name]()
    step = step_of(model)
    plan = TensorSplits(random_splits(step, [node.outputs[0] for node in model.nodes], ranks, seed=11))
    predicted = rank_memory(step, plan, ranks, target("cpu"))
    made = compile_ranks(step, plan, ranks, target("cpu"))
    assert any(memory["messages"] for memory in predicted) and all(memory["arena"] for memory in predicted)

    def memory_of(comm: Comm) -> dict[str, int]:
        return RankStep(Module(made[comm.rank], 1, comm=comm), comm).memory

    for memory, wanted in zip(launch(memory_of, [()] * ranks), predicted, strict=True):
        assert abs(kept_bytes(memory) - kept_bytes(wanted)) <= 0.05 * kept_bytes(memory)


def test_updates_wait_for_sums_in_the_order_in_which_these_are_sent() -> None:
    step = step_of(NETWORKS["mlp"]())
    whole = TensorSplits({name: TensorSplit((2, 1), (0, 1)) for name in ("h0", "h1", "h", "y")})
    for executable in compile_ranks(step, whole, 2, target("cpu"), bucket=1):
        steps = executable.steps
        waits = [steps[s.step] for s in steps if isinstance(s, Wait)]
        tags = [c.tag for c in waits if isinstance(c, Collective) and c.operation == "recv"]
        assert tags == sorted(tags)
        last_wait = max(n for n, s in enumerate(steps) if isinstance(s, Wait) and s.node)
        sums = [n for n, s in enumerate(steps) if isinstance(s, Collective) and s.operation == "send"]
        calls = [n for n, s in enumerate(steps) if isinstance(s, KernelCall)]
        assert sum(sums[1] < n < last_wait for n in calls) >= 5, "nothing is computed while sums are under way"


def test_receipts_are_posted_first_and_waited_for_where_they_are_read() -> None:
    step = step_of(NETWORKS["mlp"]())
    whole = TensorSplits(
        {"h0": TensorSplit((2, 1), (0, 1)), "h": TensorSplit((2, 1), (0, 1)), "y": TensorSplit((2, 1), (0, 1))}
    )
    for executable in compile_ranks(step, whole, 2, target("cpu")):
        kinds = [type(s).__name__ if not isinstance(s, Collective) else s.operation for s in executable.steps]
        received = kinds.count("recv")
        assert received and kinds[:received] == ["recv"] * received
        assert "KernelCall" in kinds[received : kinds.index("Wait")], "nothing is computed while messages are under way"
        assert isinstance(executable.steps[-1], Wait)


def test_a_program_is_saved_and_loaded(tmp_path: Path) -> None:
    step, made = compiled("mlp", 2, seed=11)
    for rank, executable in enumerate(made):
        artifact.save(executable, tmp_path / f"{rank}.bn")
    batch = batch_of(step)

    def run(comm: Comm) -> dict[str, np.ndarray]:
        loaded = RankStep(load_module(tmp_path / f"{comm.rank}.bn", 1, comm=comm), comm)
        loaded(*[batch[spec.name] for spec in loaded.inputs])
        with pytest.raises(InputError, match="the model has 2"):
            loaded(batch["x"])
        return {name: loaded.state[name] for name in loaded.state}

    wanted = trained_alone(step, batch, 1)
    for states in launch(run, [(), ()]):
        assert all(np.allclose(states[name], value, rtol=1e-5, atol=1e-6) for name, value in wanted.items())


def test_a_program_of_another_device_is_refused() -> None:
    _, made = compiled("mlp", 2, seed=11)

    def load(comm: Comm) -> None:
        RankStep(Module(made[1 - comm.rank], 1, comm=comm), comm)

    with pytest.raises(ArtifactError, match=r"of 2; allowed: that of device \d of 2"):
        launch(load, [(), ()])


# --- training ---------------------------------------------------------------------------------------------------------


def rows(count: int = 64) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(5)
    return {"x": drawn.normal(size=(count, 6)).astype(np.float32), "label": drawn.integers(0, 4, count)}


@pytest.mark.parametrize(
    "precision", slow([None, "bfloat16", "float16", MixedPrecision("float16", 2.0**40, growth=3)], "bfloat16"), ids=str
)
def test_training_by_a_plan_is_training_alone(precision: str | MixedPrecision | None) -> None:
    """The last: steps whose scaled gradients overflow are left out on all devices, and the scale is halved on all."""
    model, data, train = NETWORKS["mlp"](), rows(), replace(TRAIN, precision=precision)
    alone = fit(model, data, train, epochs=2, validation_data=data, metrics=["accuracy"])
    found = fit(
        model, data, train, epochs=2, plan=MIXED, workers=2, worker_kind="thread",
        validation_data=data, metrics=["accuracy"],
    )  # fmt: skip
    np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-6)
    assert found.report.evaluations[-1].metrics == alone.report.evaluations[-1].metrics
    for name in ("w1", "w2", "b1"):
        np.testing.assert_allclose(found.states[name], alone.step.state[name], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(found.model.constants[name], found.states[name])
    scales = [name for name in alone.step.state if "scale" in name]
    assert len(scales) == (precision not in (None, "bfloat16"))
    for name in scales:
        np.testing.assert_array_equal(found.states[name], alone.step.state[name])
    assert all("messages" in memory for memory in found.memory)


def test_clipping_and_accumulation_by_a_plan() -> None:
    train = Train(optimizer=SGD(0.1), clip_norm=0.5, accumulation_steps=2)
    model, data = NETWORKS["mlp"](), rows()
    alone = fit(model, data, train, steps=6)
    found = fit(model, data, train, steps=6, plan=MIXED, workers=2, worker_kind="thread")
    np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-5)


def test_rows_and_calls_that_are_left_are_trained_by_a_plan() -> None:
    train = Train(optimizer=SGD(0.1, momentum=0.9), accumulation_steps=4)
    model, data = NETWORKS["mlp"](), {name: value[:-3] for name, value in rows().items()}
    alone = fit(model, data, train, epochs=1, validation_data=data)
    found = fit(model, data, train, epochs=1, plan=MIXED, workers=2, worker_kind="thread", validation_data=data)
    np.testing.assert_allclose(found.report.losses, alone.report.losses, rtol=1e-5)
    assert found.report.updates == alone.report.updates and found.report.left_out == found.report.calls_left == 0
    assert len(data["label"]) % model.types["x"].shape[0] and found.report.evaluations[-1].rows == len(data["label"])
    for name in ("w1", "w2", "b1", "w1.velocity"):
        np.testing.assert_allclose(found.states[name], alone.step.state[name], rtol=1e-5, atol=1e-7)


DEAD_AT = 7
DEATH = "BURNISH_TEST_DEATH"  # the environment's name for a file that holds the time of the death


def dies(comm: Comm, task: RankTask) -> dict[str, Any]:
    """As ``train_rank``, but device 1 is killed in the middle of a step, where it waits for a message."""
    calls = [0]
    call_of, wait_of = RankStep.__call__, Collectives.wait

    def call(self: RankStep, *arrays: np.ndarray) -> Any:
        calls[0] += 1
        return call_of(self, *arrays)

    def wait(self: Collectives, number: int) -> None:
        if calls[0] == DEAD_AT and comm.rank == 1:
            if DEATH in os.environ:
                Path(os.environ[DEATH]).write_text(str(time.time()), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)
        wait_of(self, number)

    RankStep.__call__ = call  # type: ignore[method-assign]
    Collectives.wait = wait  # type: ignore[method-assign]
    return train_rank(comm, task)


def children() -> set[int]:
    """Processes that this one has started and that are still there."""
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def test_a_killed_device_is_named_and_training_goes_on_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = NETWORKS["mlp"](), rows()
    limits: dict[str, Any] = {"steps": 12, "save_every": 3, "plan": MIXED, "workers": 2}
    whole = fit(model, data, TRAIN, **limits, worker_kind="thread")
    before = children()
    with monkeypatch.context() as patch:
        patch.setattr(ranks_module, "train_rank", dies)
        with pytest.raises(WorkerError, match=r"worker 1 .*(died|killed|signal|ended)") as raised:
            fit(model, data, TRAIN, **limits, checkpoint=tmp_path)
    assert raised.value.rank == 1
    assert children() == before, "the gang has not stopped"
    assert [path.name for path in sorted(tmp_path.iterdir())][-1] == "step-0000000006.safetensors"
    resumed = fit(model, data, TRAIN, **limits, resume=True, worker_kind="thread", checkpoint=tmp_path)
    assert resumed.report.resumed == 6
    for name, value in whole.states.items():
        assert np.array_equal(resumed.states[name], value), name
    np.testing.assert_array_equal(resumed.report.losses, whole.report.losses)


@pytest.mark.slow
def test_training_on_gloo() -> None:
    model, data = NETWORKS["mlp"](), rows()
    here = fit(model, data, TRAIN, steps=4, plan=MIXED, workers=2, worker_kind="thread")
    found = fit(model, data, TRAIN, steps=4, plan=MIXED, workers=2, worker_kind="torch")
    for name, value in here.states.items():
        assert np.array_equal(found.states[name], value), name


def test_the_faster_of_two_plans_is_measured() -> None:
    plans = {"one": MIXED, "other": TensorSplits({"y": TensorSplit((2, 1), (0, 1))})}
    name, times = faster_plan(NETWORKS["mlp"](), rows(), plans, 2, LaunchConfig(TRAIN, worker_kind="thread", steps=3))
    assert times.keys() == plans.keys()
    assert name == min(times, key=lambda n: times[n])
    assert all(seconds > 0 for seconds in times.values())


def test_unknown_kinds_and_budgets_are_refused() -> None:
    model, data = NETWORKS["mlp"](), rows()
    with pytest.raises(ParameterError, match="allowed: process, thread, torch, ray"):
        fit(model, data, TRAIN, steps=1, plan=MIXED, workers=2, worker_kind="mpi")
    with pytest.raises(ParameterError, match="memory_budget"):
        fit(model, data, Train(memory_budget="1GB"), steps=1, plan=MIXED, workers=2, worker_kind="thread")
    with pytest.raises(ParameterError, match="allowed: arrays by name or in order"):
        fit(model, iter([]), TRAIN, steps=1, plan=MIXED, workers=2, worker_kind="thread")

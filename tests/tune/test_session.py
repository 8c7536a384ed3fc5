"""The tuning of a model: budgets, records, resumption, interrupts, and winners that win in pairs. Times are made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest

from burnish.base.cache import cache_key
from burnish.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.machines.target import Target, target
from burnish.measure.comparison import Comparison
from burnish.pipeline.kernel import KernelConfig, task_key
from burnish.pipeline.plan import plan_kernels
from burnish.search.random_search import RandomSearch
from burnish.tune.choices import recorded_choices
from burnish.tune.evaluate import Build, KernelTrial, Measurement
from burnish.tune.features import INVARIANT
from burnish.tune.models.trees import TreeModel
from burnish.tune.pretrained import training_records
from burnish.tune.records import RecordFile, machine
from burnish.tune.session import Session, Tune
from burnish.tune.strategy import TREEGRU_TRANSFER
from burnish.tune.tasks import tuning_tasks


def network() -> Graph:
    """Two equal convolutions, a third of another shape, and a product."""
    rng, g = np.random.default_rng(0), GraphBuilder()
    x = g.input("x", (1, 64, 14, 14))
    for i, (inputs, outputs) in enumerate([(64, 64), (64, 64), (64, 128)]):
        w = g.constant(rng.standard_normal((outputs, inputs, 3, 3)).astype("float32"), f"w{i}")
        x = g.add("relu", g.add("conv2d", x, w, pads=(1, 1, 1, 1)))
    x = g.add("reshape", g.add("reduce_mean", x, axes=(2, 3)), shape=(1, 128))
    return g.build(g.add("matmul", x, g.constant(rng.standard_normal((128, 32)).astype("float32"), "w3")))


TARGET = target("x86-64-v4")
TASKS = tuning_tasks(optimize(network(), False), TARGET, False)


def seconds_of(trial: KernelTrial) -> float:
    """What the made-up machine takes: by the template and choices, between 1 and 2 microseconds."""
    digest = cache_key(trial.template, str(sorted(trial.choice.items())))
    return 1e-6 * (1 + int(digest[:8], 16) / 2**32)


class Machine:
    """An evaluator with made-up times; a trial takes 10 ms of its clock. ``interrupt``: after so many trials."""

    def __init__(self, wins: bool = True, interrupt: int | None = None) -> None:
        self.target: Target = TARGET
        self.threads, self.cold = 2, False
        self.now, self.measured, self.wins, self.interrupt = 0.0, 0, wins, interrupt

    def clock(self) -> float:
        return self.now

    def build(self, trials: Sequence[KernelTrial]) -> list[Build]:
        return [Build(None) for _ in trials]

    def measure(
        self, trial: KernelTrial, build: Build, rival: tuple[KernelTrial, Build] | None = None, to_beat: float = 1.0
    ) -> Measurement:
        if self.measured == self.interrupt:
            raise KeyboardInterrupt
        self.measured += 1
        self.now += 0.01
        seconds = seconds_of(trial)
        return Measurement((seconds,), beside=seconds_of(rival[0]) if rival else nan)

    def compare_built(
        self, first: tuple[KernelTrial, Build], second: tuple[KernelTrial, Build], rounds: int, batch_seconds: float
    ) -> Comparison:
        one, other = seconds_of(first[0]), seconds_of(second[0])
        return Comparison(other / one, times=((one,), (other,)))

    def compare(self, first: KernelTrial, second: KernelTrial) -> Comparison:
        ratio = 0.5 if self.wins else 1.01
        return Comparison(ratio, ratio - 0.01, ratio + 0.01, ((1e-6,), (ratio * 1e-6,)))


def session(made: Machine, path: Path, **options: object) -> Session:
    settings = Tune(**{"seconds": None, "trials": 100, "min_gain": 0.0, **options})  # type: ignore[arg-type]
    return Session(TASKS, RecordFile(path), made, settings, clock=made.clock)  # type: ignore[arg-type]


def test_equal_kernels_are_one_task() -> None:
    calls = {task.name: task.calls for task in TASKS}
    assert sorted(calls.values())[-1] == 2
    assert sum("conv" in a.label for t in TASKS for a in t.space.alternatives) >= 4, "algorithms are alternatives"


def test_alternatives_keep_layouts() -> None:
    """So that kernels can be exchanged for one another, an alternative reads and writes what the default does."""
    for task in TASKS:
        layouts = [sorted(map(str, a.task.layouts.values())) for a in task.space.alternatives]
        assert all(own == layouts[0] for own in layouts)


def test_trials_are_a_limit_and_all_are_recorded(tmp_path: Path) -> None:
    made = Machine()
    outcome = session(made, tmp_path / "r.jsonl").run()
    assert outcome.stop_reason == "trials"
    assert outcome.trials == 100 <= made.measured
    records = RecordFile(tmp_path / "r.jsonl").all()
    assert sum(not r.won for r in records) == 100
    assert {r.key for r in records} <= {task_key(a.task, TARGET) for t in TASKS for a in t.space.alternatives}
    assert all(k.tuner.costs for k in outcome.kernels), "every kernel was tried"


def test_seconds_are_a_limit(tmp_path: Path) -> None:
    made = Machine()
    outcome = session(made, tmp_path / "r.jsonl", trials=None, seconds=3.0).run()
    assert outcome.stop_reason == "seconds"
    assert 2.0 < made.now <= 3.0


def test_little_gain_ends_a_session(tmp_path: Path) -> None:
    outcome = session(Machine(), tmp_path / "r.jsonl", trials=5000, min_gain=0.02).run()
    assert outcome.stop_reason == "gain"
    assert outcome.expected < 0.02


@pytest.mark.parametrize("wins", [True, False])
def test_only_confirmed_winners_are_used(tmp_path: Path, wins: bool) -> None:
    session(Machine(wins), tmp_path / "r.jsonl").run()
    choices = recorded_choices(RecordFile(tmp_path / "r.jsonl"), TARGET, 2)
    recipes = [choices.recipe(a.task, TARGET) for t in TASKS for a in t.space.alternatives]
    assert any(recipes) == wins
    other = recorded_choices(RecordFile(tmp_path / "r.jsonl"), TARGET, 3)
    assert not any(other.recipe(a.task, TARGET) for t in TASKS for a in t.space.alternatives), "other threads"


@pytest.mark.parametrize("wins", [True, False])
def test_the_time_of_the_kernel_that_will_be_used_is_known(tmp_path: Path, wins: bool) -> None:
    """Of the winner, else of the default; on this machine, with these threads."""
    path = tmp_path / "r.jsonl"
    outcome = session(Machine(wins), path).run()
    records = RecordFile(path)
    choices = recorded_choices(records, TARGET, 2)
    for kernel in outcome.kernels:
        default = kernel.task.space.default
        task = default.alternative.task
        used = choices.recipe(task, TARGET) or KernelConfig(default.alternative.template.name, dict(default.choice))
        found = [r.seconds for r in records.all() if r.key == task_key(task, TARGET) and r.outcome == "ok"
                 and (r.template, dict(r.choice)) == (used.template, dict(used.choice))]  # fmt: skip
        assert choices.seconds(task, TARGET) == min(found)
        assert recorded_choices(records, TARGET, 3).seconds(task, TARGET) is None, "other threads"
        elsewhere = replace(TARGET, cpu="another", features=frozenset())
        assert recorded_choices(records, elsewhere, 2).seconds(task, elsewhere) is None, "another machine"


def test_a_winner_that_comes_to_lose_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    session(Machine(wins=True), path).run()
    assert any(r.won and r.template for r in RecordFile(path).all())
    session(Machine(wins=False), path, trials=1).run()
    choices = recorded_choices(RecordFile(path), TARGET, 2)
    for task in TASKS:
        default = task.space.default
        recipe = choices.recipe(default.alternative.task, TARGET)
        assert recipe is None or (recipe.template, dict(recipe.choice)) == (
            default.alternative.template.name, dict(default.choice)
        )  # fmt: skip
    made = plan_kernels(optimize(network(), False), TARGET, False, choices.decide)
    untuned = plan_kernels(optimize(network(), False), TARGET, False)
    assert [n.op for n in made.graph.nodes] == [n.op for n in untuned.graph.nodes]


def test_the_winning_algorithm_is_chosen(tmp_path: Path) -> None:
    outcome = session(Machine(), tmp_path / "r.jsonl").run()
    choices = recorded_choices(RecordFile(tmp_path / "r.jsonl"), TARGET, 2)
    made = plan_kernels(optimize(network(), False), TARGET, False, choices.decide)
    ops = {n.op for n in made.graph.nodes}
    for kernel in outcome.kernels:
        best = kernel.tuner.best
        if kernel.task.signature and kernel.confirmed and best:
            assert best.alternative.task.label in ops


def test_a_session_goes_on_from_records(tmp_path: Path) -> None:
    first = session(Machine(), tmp_path / "r.jsonl").run()
    made = Machine()
    second = session(made, tmp_path / "r.jsonl", trials=1)
    assert sum(len(k.tuner.costs) for k in second.kernels) == first.trials
    before = [k.seconds for k in second.kernels]
    assert before == pytest.approx([k.seconds for k in first.kernels])
    assert second.run().trials == 1


def test_records_teach_the_kernels_of_a_session(tmp_path: Path) -> None:
    """What was measured of all kernels is the prior of each; a strategy that does not transfer learns none of it."""
    made = session(Machine(), tmp_path / "r.jsonl")
    made.run()
    assert all(r.kernel and len(r.features) == len(INVARIANT) for r in made.records.all())
    known = training_records(made.records.all())
    assert {r.kernel for r in known} <= {t.key for t in TASKS}
    fit_transfer = [k.tuner.prior for k in made.kernels if k.tuner.prior is not None]
    assert fit_transfer, "those that got a batch have a prior"
    plain = session(Machine(), tmp_path / "s.jsonl", strategy="autotvm")
    plain.run()
    assert all(k.tuner.prior is None for k in plain.kernels)


def test_the_kernels_of_a_session_teach_a_treegru(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel's global model is of the others' trials by loop nests, made anew as these become many more."""
    taught: list[list[int]] = []

    def fit_nests(known: list[tuple[object, object, list[float]]], seed: int) -> None:
        taught.append([len(costs) for _, _, costs in known])

    monkeypatch.setattr("burnish.tune.session.fit_nests", fit_nests)
    strategy = TREEGRU_TRANSFER.with_(walker=lambda space, seed: RandomSearch(space, seed), batch=4, initial=64)
    made, options = Machine(), Tune(seconds=None, trials=60, min_gain=0.0)
    Session(TASKS, RecordFile(tmp_path / "r.jsonl"), made, options, clock=made.clock, strategy=strategy).run()  # type: ignore[arg-type]
    assert taught and all(len(own) == len(TASKS) - 1 for own in taught)
    assert max(map(sum, taught)) > min(map(sum, taught))


def test_a_session_starts_from_the_model_it_is_given(tmp_path: Path) -> None:
    class Given(TreeModel):
        asked = 0

        def predict(self, features: object) -> np.ndarray:
            Given.asked += 1
            return np.asarray(features)[:, 0]

    made, options = Machine(), Tune(seconds=None, trials=30, min_gain=0.0)
    Session(TASKS, RecordFile(tmp_path / "r.jsonl"), made, options, clock=made.clock, prior=Given()).run()  # type: ignore[arg-type]
    assert Given.asked > 0


def test_an_interrupt_keeps_everything(tmp_path: Path) -> None:
    """Also the trials of the batch that was interrupted: of two moments, one at least is in the midst of a batch."""
    in_the_midst = []
    for moment in (50, 52):
        path = tmp_path / f"{moment}.jsonl"
        outcome = session(Machine(interrupt=moment), path).run()
        assert outcome.stop_reason == "interrupted"
        records = RecordFile(path).all()
        kept = sum(not r.won for r in records)
        assert outcome.trials <= kept <= moment
        in_the_midst.append(outcome.trials < kept)
        assert any(r.won for r in records), "winners are confirmed"
        assert all(r.target == machine(TARGET) for r in records)
    assert any(in_the_midst)


def test_a_slow_phase_of_the_machine_is_taken_out(tmp_path: Path) -> None:
    """From the third batch on, everything takes three times as long; costs stay those of the quiet machine."""

    class Slowing(Machine):
        batches = 0

        def build(self, trials: Sequence[KernelTrial]) -> list[Build]:
            self.batches += 1
            return super().build(trials)

        def measure(
            self, trial: KernelTrial, build: Build, rival: tuple[KernelTrial, Build] | None = None, to_beat: float = 1.0
        ) -> Measurement:
            made = super().measure(trial, build, rival, to_beat)
            return made if self.batches < 3 else replace(made, times=(3 * made.times[0],), beside=3 * made.beside)

    made = Slowing()
    outcome = session(made, tmp_path / "r.jsonl").run()
    assert made.batches > 5
    for kernel in outcome.kernels:
        found = [kernel.task.space.candidate(point) for point in kernel.tuner.points]
        quiet = [seconds_of(KernelTrial(c.alternative.task, c.alternative.template.name, c.choice)) for c in found]
        assert kernel.tuner.costs == pytest.approx(quiet)


def test_time_goes_where_the_model_gains(tmp_path: Path) -> None:
    """A kernel called a hundred times gets more trials than one called once."""
    open_tasks = [t for t in TASKS if t.space.size > 1000]
    loud = [replace(open_tasks[0], calls=100), *open_tasks[1:]]
    made = Machine()
    settings = Tune(seconds=None, trials=200, min_gain=0.0)
    run = Session(loud, RecordFile(tmp_path / "r.jsonl"), made, settings, clock=made.clock)  # type: ignore[arg-type]
    counts = [len(k.tuner.costs) for k in run.run().kernels]
    assert counts[0] > 2 * max(counts[1:])

"""Tuning for a GPU: the one evaluator, on coroutines in worker processes; winners that compilations use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.codegen.gridcode import GridCode
from burnish.driver.api import tuned
from burnish.errors import TargetError
from burnish.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.machines.target import target
from burnish.runtime.device import unpacked
from burnish.runtime.devices import usual_threads
from burnish.simulators.gpu.emulator import emulated
from burnish.tune.evaluate import Evaluator, Fixed, KernelTrial, Measurement
from burnish.tune.records import RecordFile, machine, record
from burnish.tune.tasks import tuning_tasks
from burnish.tune.validation import trial_of
from tests.gpu.cases import Case

SM80 = target("cuda:sm_80")
HERE = emulated(SM80)


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    with Evaluator(HERE, workers=1, rule=Fixed(2)) as made:
        yield made


def test_candidates_are_built_checked_and_timed(evaluator: Evaluator) -> None:
    task = Case("matmul", [(16, 16), (16, 16)], {}).task()
    default = evaluator.default(task)
    other = KernelTrial(task, default.template, {**default.choice, "fetch": "global"})
    first, second = evaluator.evaluate([default, other])
    assert first.outcome == second.outcome == "ok" and first.trace
    assert first.seconds < second.seconds  # what is shared is loaded once
    assert evaluator.evaluate([default])[0].times == first.times  # the clock counts what a kernel does
    beside = evaluator.measure(other, evaluator.build([other])[0], (default, evaluator.build([default])[0]))
    assert beside.ratio == pytest.approx(second.seconds / first.seconds)
    assert evaluator.threads == 1


WEIGHTS = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)


def product() -> Graph:
    b = GraphBuilder()
    return b.build(b.add("matmul", b.input("x", (16, 16)), b.constant(WEIGHTS)))


def test_winners_are_what_is_compiled(tmp_path: Path) -> None:
    (kernel,) = tuning_tasks(optimize(product(), False), SM80, False)
    default = trial_of(kernel.space.default)
    other = KernelTrial(default.task, "elements", {"threads": 64, "vector": 1, "own": 1, "steps": 1})
    won = replace(record(other, Measurement((1e-6,)), SM80, usual_threads(SM80)), won=True)
    RecordFile(tmp_path / "records.jsonl").append([won])
    plain, chosen = (
        bn.compile(product(), target=SM80, rewrite=False, cache_dir=tmp_path, records=records)
        for records in (None, tmp_path / "records.jsonl")
    )
    blocks = [GridCode.unpacked(*unpacked(m.executable.code).values()).launches[0].block for m in (plain, chosen)]
    assert blocks == [(16, 16, 1), (64, 1, 1)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:records. .*holds no winner")
def test_a_model_is_tuned(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    options = bn.Tune(seconds=None, trials=3, strategy="random", min_gain=0.0)
    made = tuned(product(), options, target=HERE, records=records, rewrite=False, cache_dir=tmp_path)
    assert made.outcome.trials == 3 and made.gain.outcome == "ok"
    known = RecordFile(records).all()
    assert {(r.target, r.threads, r.cold) for r in known} == {(machine(SM80), 1, False)}
    (kernel,) = made.outcome.kernels
    assert kernel.seconds <= kernel.default and any(r.won for r in known) == (kernel.winner is not None)
    again = bn.compile(product(), target=HERE, records=records, rewrite=False, cache_dir=tmp_path)
    x = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    np.testing.assert_allclose(again(x), x @ WEIGHTS, rtol=1e-4, atol=1e-5)


def test_without_a_gpu_the_target_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"tune: target 'cuda:sm_80': "):
        bn.compile(product(), target="cuda:sm_80", tune=bn.Tune(seconds=1.0), records=tmp_path / "r.jsonl")
    assert not (tmp_path / "r.jsonl").exists()

"""Kernels measured on boards: the one evaluator, local or remote; boards that go, and trials that are not lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from burnish.boards.job import BoardJob
from burnish.boards.leasing import MOST_LOST
from burnish.boards.pool import DevicePool
from burnish.boards.table import BoardEntry
from burnish.errors import TargetError
from burnish.kernels.task import KernelTask
from burnish.loops.tensor import compute, placeholder
from burnish.machines.target import host, target
from burnish.tune.evaluate import Build, Devices, Evaluator, Fixed, KernelTrial, Measurement
from burnish.tune.evaluate.pooled import PoolRunner
from tests.boards.faults import board
from tests.tune.conftest import CRASH, HANG, copies, handmade

ARM = "aarch64-cortex-a53"
COUNT = 8_000  # floats: an upload that a link can drop in the midst of


@contextmanager
def remote(pool: DevicePool, kind: str = "cpu", owner: str = "me") -> Iterator[Evaluator]:
    machine = host() if kind == "cpu" else target(kind)
    rule = Fixed(repeats=2)
    with Evaluator(machine, workers=1, run_limit=1.0, rule=rule, devices=Devices(pool, kind, owner)) as made:
        yield made


@pytest.fixture
def task() -> KernelTask:
    """``y[i] = 2 x[i]``."""
    x = placeholder((COUNT,), "float32", "x")
    return KernelTask("double", (x,), (compute((COUNT,), lambda i: x[i] * 2.0, "y"),), "mul", {}, frozenset())


def prepared(evaluator: Evaluator, task: KernelTask) -> Evaluator:
    """With given examples, so that no process has to draw them."""
    x = np.random.default_rng(0).standard_normal(COUNT).astype("float32")
    evaluator.prepare(task, ({"x": x}, [2.0 * x.astype("float64")]))
    return evaluator


def tried(evaluator: Evaluator, task: KernelTask, build: Build, incumbent: Build | None = None) -> Measurement:
    trial = KernelTrial(task, "generic", {})
    return evaluator.measure(trial, build, (trial, incumbent) if incumbent else None)


def lost(evaluator: Evaluator) -> list[str]:
    assert isinstance(evaluator._runner, PoolRunner)
    return evaluator._runner.lost


@pytest.fixture(scope="module")
def boards() -> Iterator[DevicePool]:
    with DevicePool(
        [BoardEntry("here", "cpu"), BoardEntry("there", "cpu"), BoardEntry("arm", ARM, "emulator")]
    ) as pool:
        yield pool


def test_a_board_measures_as_this_machine_does(boards: DevicePool, task: KernelTask) -> None:
    with remote(boards) as evaluator:
        prepared(evaluator, task)
        good, slow = handmade(copies(2.0, COUNT)), handmade(copies(2.0, COUNT))
        made = tried(evaluator, task, good)
        assert (made.outcome, made.error, len(made.times)) == ("ok", "", 2)
        assert 0 < made.seconds < 1
        beside = tried(evaluator, task, slow, good)
        assert beside.outcome == "ok"
        assert 0.1 < beside.ratio < 10
        found = evaluator.compare_built(
            (KernelTrial(task, "generic", {}), good), (KernelTrial(task, "generic", {}), slow), rounds=3
        )
        assert found.outcome == "ok"
        assert len(found.times[0]) == 3
        assert lost(evaluator) == []


@pytest.mark.parametrize(
    ("body", "outcome", "words"),
    [
        (copies(3.0, COUNT), "wrong", "'y' is wrong by 0.5 of its scale"),
        (copies(2.0, COUNT + 32), "crashed", "the process was killed by SIGSEGV"),
        (CRASH, "crashed", "the process was killed by SIGSEGV"),
        (HANG, "timeout", "took longer than 1 s"),
    ],
)
def test_a_bad_kernel_is_an_outcome_and_no_boards_fault(
    boards: DevicePool, task: KernelTask, body: str, outcome: str, words: str
) -> None:
    with remote(boards) as evaluator:
        prepared(evaluator, task)
        good = handmade(copies(2.0, COUNT))
        made = tried(evaluator, task, handmade(body), good)
        assert made.outcome == outcome
        assert made.error.startswith(words)
        assert tried(evaluator, task, good).outcome == "ok"
        assert lost(evaluator) == []


def test_an_incumbent_that_fails_on_a_board_takes_no_turns(boards: DevicePool, task: KernelTask) -> None:
    with remote(boards) as evaluator:
        prepared(evaluator, task)
        made = tried(evaluator, task, handmade(copies(2.0, COUNT)), handmade(CRASH))
        assert made.outcome == "ok"
        assert np.isnan(made.ratio)


def test_cross_compiled_kernels_are_measured_in_instructions(boards: DevicePool, task: KernelTask) -> None:
    arm = target(ARM)
    with remote(boards, ARM) as evaluator:
        prepared(evaluator, task)
        good = handmade(copies(2.0, COUNT), target=arm)
        made = tried(evaluator, task, good)
        assert made.outcome == "ok"
        assert made.times == (made.seconds,) * 2
        beside = tried(evaluator, task, good, good)
        assert beside.ratio == 1.0
        assert tried(evaluator, task, handmade(copies(3.0, COUNT), target=arm)).outcome == "wrong"
        assert tried(evaluator, task, handmade(HANG, target=arm)).outcome == "timeout"
        left = tried(evaluator, task, handmade(CRASH, target=arm))
        assert left.outcome == "crashed"
        assert "kernel 'handmade'" in left.error


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("killed", "has gone"),
        pytest.param("hangs", "hangs: no sign of life for 3 s", marks=pytest.mark.slow),
        ("drops", "has gone"),
        ("oversized", "a frame of 4194304 bytes; allowed: 32000"),
        ("garbage", "bytes that are no frame: b'HTTP"),
        ("no_times", "sent times that are none: [nan]"),
    ],
)
def test_a_board_that_goes_is_named_and_its_trial_is_tried_again(task: KernelTask, fault: str, words: str) -> None:
    devices = [BoardEntry(f"{fault}-1", "cpu"), BoardEntry("good", "cpu"), BoardEntry("other", "cpu")]
    with DevicePool(devices, board) as pool, remote(pool) as evaluator, pool.lease("other", "you") as beside:
        with BoardJob(beside) as job:
            job.buffer("x", 4, b"kept")
            made = tried(prepared(evaluator, task), task, handmade(copies(2.0, COUNT)))
            assert (made.outcome, made.error) == ("ok", "")
            assert job.read([("x", 0, 4)]) == [b"kept"]  # nobody else was disturbed
        (why,) = lost(evaluator)
        assert words in why
        assert [row["served"] for row in pool.status()] == [1, 1, 1]


def test_a_trial_that_takes_every_board_with_it_is_given_up(task: KernelTask) -> None:
    devices = [BoardEntry(f"killed-{n}", "cpu") for n in range(MOST_LOST)]
    with DevicePool(devices, board) as pool, remote(pool) as evaluator:
        made = tried(prepared(evaluator, task), task, handmade(copies(2.0, COUNT)))
        assert made.outcome == "crashed"
        assert made.error.startswith(f"{MOST_LOST} boards went as they had this: device 'killed-")
        assert len(lost(evaluator)) == MOST_LOST


def test_cold_runs_are_refused_where_caches_cannot_be_flushed(boards: DevicePool, task: KernelTask) -> None:
    devices = Devices(boards, ARM, "me")
    with Evaluator(target(ARM), workers=1, cold=True, devices=devices) as evaluator:
        made = prepared(evaluator, task)
        with pytest.raises(TargetError, match="cold runs can be timed on x86-64 only"):
            tried(made, task, handmade(copies(2.0, COUNT), target=target(ARM)))


def test_three_tuners_share_four_boards_and_every_trial_ends_once(task: KernelTask) -> None:
    devices = [
        BoardEntry("killed-1", "cpu"),
        BoardEntry("b", "cpu"),
        BoardEntry("c", ARM, "emulator"),
        BoardEntry("d", ARM, "emulator"),
    ]
    kinds, trials = ("cpu", ARM), 3
    builds = {kind: handmade(copies(2.0, COUNT), target=target(kind)) for kind in kinds}
    outcomes: list[tuple[str, str, int, str]] = []

    def tune(owner: str, kind: str) -> None:
        with remote(pool, kind, owner) as evaluator:
            prepared(evaluator, task)
            for number in range(trials):
                outcomes.append((owner, kind, number, tried(evaluator, task, builds[kind]).outcome))

    with DevicePool(devices, board) as pool:
        threads = [threading.Thread(target=tune, args=(owner, kind)) for owner in "abc" for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        served = {row["name"]: row["served"] for row in pool.status()}
    assert sorted(outcomes) == sorted((o, k, n, "ok") for o in "abc" for k in kinds for n in range(trials))
    assert served["b"] == 3 * trials
    assert served["c"] + served["d"] == 3 * trials
    assert min(served["c"], served["d"]) >= 1

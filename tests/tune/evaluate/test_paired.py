"""Costs that a race gives candidates: of a noisy machine, and of rivals that make way."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from burnish.kernels.task import KernelTask
from burnish.measure.comparison import Comparison
from burnish.tune.evaluate import Build, KernelTrial, Measurement, PairedMeasurer


class Noisy:
    """An evaluator of made-up times: a choice's "us" in microseconds, with noise, on a machine that changes its speed.

    ``None`` instead of a time: it crashes.
    """

    def __init__(self, noise: float, seed: int = 0) -> None:
        self.noise, self.rng = noise, np.random.default_rng(seed)
        self.rivals: list[float] = []

    def seconds(self, trial: KernelTrial) -> float:
        return 1e-6 * trial.choice["us"] * float(np.exp(self.noise * self.rng.standard_normal()))

    def measure(
        self, trial: KernelTrial, build: Build, incumbent: tuple[KernelTrial, Build] | None = None, to_beat: float = 1.0
    ) -> Measurement:
        if not trial.choice["us"]:
            return Measurement((), "crashed")
        speed = self.rng.uniform(1.0, 3.0)
        if incumbent:
            self.rivals.append(incumbent[0].choice["us"])
        return Measurement(
            (speed * self.seconds(trial),), beside=speed * self.seconds(incumbent[0]) if incumbent else nan
        )

    def compare_built(
        self, first: tuple[KernelTrial, Build], second: tuple[KernelTrial, Build], rounds: int, batch_seconds: float
    ) -> Comparison:
        times = [sorted(self.seconds(t) for _ in range(rounds))[rounds // 2] for t, _ in (first, second)]
        return Comparison(times[1] / times[0], times=((times[0],), (times[1],)))


def trial(task: KernelTask, microseconds: float) -> KernelTrial:
    return KernelTrial(task, "generic", {"us": microseconds})


def test_costs_are_free_of_the_machines_speed(doubling: KernelTask) -> None:
    race = PairedMeasurer(Noisy(0.0))  # type: ignore[arg-type]
    given = [0.0, 50.0, 0.0, 70.0, 49.0, *range(51, 400)]
    found = [race.measure(trial(doubling, us), Build(None))[1] for us in given]
    assert [us == 0 for us in given] == [cost == inf for cost in found]
    assert np.ptp([cost / us for us, cost in zip(given, found, strict=True) if us]) < 1e-12
    assert race.best is not None
    assert race.best[0].choice["us"] == 49
    assert race.scale * race.seconds == pytest.approx(49e-6, rel=0.05), "the fastest that the machine was"


def test_the_rival_changes_only_for_one_that_is_far_faster(doubling: KernelTask) -> None:
    machine = Noisy(0.0)
    race = PairedMeasurer(machine)  # type: ignore[arg-type]
    for us in (100, 90, 81, 79, 70, 10, 9):
        race.measure(trial(doubling, us), Build(None))
    assert machine.rivals == [100, 100, 100, 79, 79, 10]


@pytest.mark.parametrize("seed", range(5))
def test_many_equal_candidates_do_not_make_each_other_look_better(doubling: KernelTask, seed: int) -> None:
    """Were every would-be winner the next one's rival, later ones would seem ever faster."""
    race = PairedMeasurer(Noisy(0.02, seed))  # type: ignore[arg-type]
    costs = [race.measure(trial(doubling, 100.0), Build(None))[1] for _ in range(400)]
    assert np.median(costs[-100:]) == pytest.approx(np.median(costs[:100]), rel=0.02)
    assert race.seconds > 0.93 * np.median(costs)


def test_a_race_goes_on_from_an_earlier_best(doubling: KernelTask) -> None:
    machine = Noisy(0.0)
    race = PairedMeasurer(machine, (trial(doubling, 50.0), Build(None)), 40e-6)  # type: ignore[arg-type]
    assert race.measure(trial(doubling, 60.0), Build(None))[1] == pytest.approx(48e-6)
    assert race.seconds == 40e-6

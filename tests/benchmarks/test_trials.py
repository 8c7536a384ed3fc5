"""The arithmetic of the study of trials, on made-up costs; and what an oracle makes of measurements."""

from collections.abc import Sequence
from math import inf, nan

import numpy as np
import pytest

from benchmarks import study, trials
from benchmarks.oracle import Apart, Oracle
from burnish.measure.comparison import Comparison
from burnish.tune.evaluate import Build, KernelTrial, Measurement
from burnish.tune.evaluate.stopping import Fixed


class Machine:
    """An evaluator of made-up times, `speed` times those of a quiet machine, which changes from batch to batch."""

    def __init__(self, task: study.TuningTask) -> None:
        self.space, self.built, self.speed = task.space, 0, 1.0

    def build(self, found: Sequence[KernelTrial]) -> list[Build]:
        self.built += len(found)
        self.speed *= 1.5
        return [Build(None) for _ in found]

    def quiet(self, trial: KernelTrial) -> float:
        return 1e-3 * (1 + sum(map(len, map(str, trial.choice.values())))) if trial.choice["vectors"] else inf

    def measure(
        self, trial: KernelTrial, build: Build, rival: tuple[KernelTrial, Build] | None = None, to_beat: float = 1.0
    ) -> Measurement:
        seconds = self.quiet(trial)
        if seconds == inf:
            return Measurement((), "crashed")
        return Measurement((seconds * self.speed,), beside=self.quiet(rival[0]) * self.speed if rival else nan)

    def compare_built(
        self, first: tuple[KernelTrial, Build], second: tuple[KernelTrial, Build], rounds: int, batch_seconds: float
    ) -> Comparison:
        one, other = self.quiet(first[0]), self.quiet(second[0])
        return Comparison(other / one, times=((one * self.speed,), (other * self.speed,)))


@pytest.mark.parametrize("kind", [Oracle, Apart])
def test_an_oracle_measures_once_and_free_of_drift(kind: type[Oracle]) -> None:
    task = study.kernel("C9")
    machine = Machine(task)
    oracle = kind(task, machine, Fixed())  # type: ignore[arg-type]
    points = task.space.space.sample(np.random.default_rng(0), 8)
    first = oracle.ask(points[:4])
    both = oracle.ask(points)
    assert both[:4] == first and machine.built == 8 + (2 if kind is Apart else 0)  # the default is in every batch
    quiet = [machine.quiet(oracle.trial(point)) for point in points]
    assert np.ptp([known.seconds / seconds for known, seconds in zip(both, quiet, strict=True)]) < 1e-9


def test_what_an_oracle_has_right_stays_when_it_settles() -> None:
    task = study.kernel("C9")
    oracle = Oracle(task, Machine(task))  # type: ignore[arg-type]
    oracle.ask(task.space.space.sample(np.random.default_rng(0), 8))
    before = {key: known.seconds for key, known in oracle.known.items()}
    oracle.settle(within=1.5, least=2, most=8, rounds=3)
    assert {key: known.seconds for key, known in oracle.known.items()} == pytest.approx(before)


def tried(searches: Sequence[Sequence[int]], seconds: Sequence[float], drawn: Sequence[int]) -> trials.Tried:
    by_key = dict(enumerate(seconds))
    pairs = {key: (cost / min(seconds), 0.0, 0.0) for key, cost in by_key.items()}
    return trials.Tried("made", [len(drawn)], by_key, {"burnish": searches}, drawn, [drawn], pairs)


def test_a_sample_is_of_its_way_and_whole_if_there_are_few() -> None:
    assert trials.sample(5, 12, 80) == list(range(5, 17))
    found = trials.sample(12, 100_000, 80)
    assert len(set(found)) == 80 and min(found) >= 12 and max(found) < 100_012


def test_random_search_draws_from_all_candidates_or_from_all_ways_alike() -> None:
    ways, drawn = [12, 100_000], trials.sample(0, 100_012, 2000)
    apart = [trials.sample(0, 12, 80), trials.sample(12, 100_000, 80)]
    made = trials.Tried("made", ways, {}, {}, drawn, apart, {})
    order = made.random(0)
    assert len(set(order)) == trials.BAR and set(order) < set(drawn) and order != made.random(1)
    order = made.by_way(0)
    assert len(order) == trials.BAR and set(order) == {key for keys in apart for key in keys}
    small = [place for place, key in enumerate(order) if key < 12]
    assert len(small) == 12 and 12 < max(small) < 60  # each once, at every other draw


def test_what_searches_come_to() -> None:
    seconds = [4.0, 3.0, 2.0, 1.0, 2.01, inf]
    found = trials.kernel(tried([[0, 5, 4], [0, 1]], seconds, [0, 1, 2, 5]))
    assert found.best == 1.0 and found.measured == 6
    assert found.after["burnish"] == (pytest.approx(2.505), 2.01, 3.0)
    for reference, needed in found.needed.items():
        assert needed["burnish"] == (3.0, 3.0, 3.0)  # 2.01 is as good as 2; the other never is, after two trials
        assert 1.0 <= needed[reference][1] <= needed[reference][2] <= 4.0
    assert list(found.needed) == ["random", "by way"]


def test_forecasts_beside_what_came() -> None:
    random = np.random.default_rng(0)
    seconds = np.exp(0.3 * random.gamma(2.0, size=2048)).tolist()
    searches = random.permutation(2048).reshape(-1, 64).tolist()
    found = trials.calibration([tried(searches, seconds, range(2048))])
    assert sum(row.count for row in found) == 2 * len(searches)
    assert all(row.above <= row.expected < row.below and row.came < 1 for row in found)
    assert all(0 <= row.within <= 1 and 0 <= row.under <= 1 for row in found)

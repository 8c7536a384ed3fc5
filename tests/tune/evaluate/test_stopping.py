"""When measuring ends: the paper's rule against NumPy, the race's bound against what a bound is."""

import numpy as np
import pytest

from burnish.measure.comparison import Comparison, compare_times
from burnish.tune.evaluate import Adaptive, Fixed
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.stopping import _student, lower_bound, rate_variation


def test_variation_is_that_of_the_rates_of_adatune() -> None:
    times = np.random.default_rng(0).uniform(1.0, 2.0, 12)
    rates = np.arange(1, 13) / np.cumsum(times)
    assert rate_variation(times.tolist()) == pytest.approx(rates.std() / rates.mean())
    assert rate_variation([3.0] * 5) == 0


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.1318), (5, 2.0150), (8, 1.8595), (20, 1.7247), (200, 1.6525)])
def test_the_quantile_of_student(freedom: int, quantile: float) -> None:
    assert _student(freedom) == pytest.approx(quantile, rel=0.01)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("n", [2, 3, 10])
def test_the_bound_is_below_the_mean_as_often_as_it_promises(noise: float, n: int) -> None:
    rng = np.random.default_rng(1)
    below = [lower_bound((1 + noise * rng.standard_normal(n)).tolist()) <= 1 for _ in range(4000)]
    assert np.mean(below) >= (0.94 if noise <= 0.05 else 0.88)  # more noise than usual is learned from more batches


def test_a_steady_candidate_is_measured_least() -> None:
    rule = Adaptive(variation=0.02, least=3, most=10, enough_seconds=100.0)
    assert [rule.stop([1.0] * n) for n in (1, 2, 3)] == ["", "", "steady"]
    noisy = [1.0, 2.0] * 10
    assert [rule.stop(noisy[:n]) for n in range(1, 11)] == [""] * 9 + ["enough"]
    assert [rule.stop([25.0, 75.0, 30.0][:n]) for n in (1, 2, 3)] == ["", "", "enough"]


def test_a_race_is_lost_by_evidence_only() -> None:
    rule = Adaptive(variation=0.0, least=3, most=10, enough_seconds=100.0)
    assert rule.stop([1.3, 1.3], [1.0, 1.0]) == "lost"
    assert rule.stop([1.3, 1.3]) == ""
    assert rule.stop([9.0], [1.0]) == ""
    assert rule.stop([1.02, 1.02], [1.0, 1.0]) == ""
    assert rule.stop([0.99, 9.0, 9.0, 9.0], [1.0] * 4) == ""
    assert rule.stop([0.5, 0.5], [1.0, 1.0]) == ""


def test_a_slow_moment_of_the_machine_decides_nothing() -> None:
    rule = Adaptive(variation=0.02, least=3, most=10, enough_seconds=100.0)
    assert rule.stop([1.01, 4.04], [1.0, 4.0]) == ""
    assert rule.stop([1.3, 5.2], [1.0, 4.0]) == "lost"
    assert rule.stop([1.01, 4.04, 2.02], [1.0, 4.0, 2.0]) == "steady"
    assert rule.stop([20.0, 25.0, 10.0], [20.0, 20.0, 20.0]) == "enough"  # both sides' runs are seen


def test_only_what_is_far_behind_is_hopeless() -> None:
    assert [Adaptive().early_reject(seconds, 2.0) for seconds in (1.0, 5.9, 6.1)] == [False, False, True]
    assert not Fixed().early_reject(100.0, 1.0)


def test_fixed_ignores_what_it_measures() -> None:
    assert [Fixed(3).stop([9.0] * n, [1.0] * n) for n in (1, 2, 3)] == ["", "", "enough"]


@pytest.mark.parametrize(
    "make",
    [lambda: Fixed(0), lambda: Adaptive(least=5, most=4), lambda: Adaptive(least=0), lambda: Fixed(3, 59e-6)],
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match="allowed"):
        make()  # type: ignore[operator]


def test_a_comparison_is_of_pairs() -> None:
    drift = np.linspace(1.0, 3.0, 31)  # of the machine, common to both
    found = compare_times(drift, 0.9 * drift)
    assert found.ratio == pytest.approx(0.9)
    assert found.high == pytest.approx(0.9)
    assert found.second_wins
    assert not compare_times(drift, drift).second_wins
    assert not Comparison().second_wins


def test_the_interval_covers_the_true_ratio() -> None:
    rng = np.random.default_rng(2)
    pairs = [(rng.normal(1, 0.05, 31), rng.normal(1.1, 0.05, 31)) for _ in range(200)]
    found = [compare_times(a, b) for a, b in pairs]
    assert np.mean([c.low <= 1.1 <= c.high for c in found]) >= 0.9
    assert not any(c.second_wins for c in found)


def test_a_measurement_without_times_takes_for_ever() -> None:
    assert Measurement((), "crashed").seconds == float("inf")
    assert Measurement((3.0, 1.0, 2.0)).seconds == 2.0

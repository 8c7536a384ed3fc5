"""The forecast of what a search will still find is right on average, and reacts to what a search does."""

from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from burnish.tune.remaining_gain import Forecast, allocate_draws, forecast, mixture_forecast

Draw = Callable[[np.random.Generator, int], np.ndarray]


def test_nothing_is_known_before_two_successes() -> None:
    assert forecast([]) is None
    assert forecast([inf, 1.0, inf]) is None
    assert forecast([inf, 2.0, inf, 1.0]) is not None


def gain(costs: list[float], more: int) -> float:
    found = forecast(costs)
    assert found is not None
    return found.gain(more)


def test_a_search_that_stands_still_promises_less() -> None:
    rng = np.random.default_rng(0)
    noise = list(1.5 + rng.random(512))
    still = [gain([1.0, *noise[:n]], 32) for n in (8, 32, 128, 512)]
    assert still == sorted(still, reverse=True)
    assert still[-1] < 0.01


def test_failures_promise_nothing() -> None:
    costs = list(1.0 + np.random.default_rng(1).random(64))
    assert gain(costs + [inf] * 64, 32) < 0.3 * gain(costs, 32)


def test_a_forecast_grows_with_the_trials_and_stays_below_one() -> None:
    gains = [Forecast(0.1, 0.5, -1.0).gain(n) for n in (0, 1, 10, 100, 100_000)]
    assert gains == sorted(gains)
    assert gains[0] == 0.0
    assert gains[-1] == pytest.approx(1 - np.exp(-0.5), abs=0.01), "the end of the tail is 0.5 below the best"


def test_one_draw_of_an_exponential_tail() -> None:
    """E[1 - exp(-t)] for an exponential t of mean 0.1 is 0.1 / 1.1."""
    assert Forecast(0.25, 0.1, 0.0).gain(1) == pytest.approx(0.25 * 0.1 / 1.1, rel=1e-2)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: np.exp(0.3 * rng.gumbel(size=n)),
        lambda rng, n: np.exp(0.5 * rng.standard_normal(n)),
        lambda rng, n: 1.0 + rng.random(n) ** 2,
        lambda rng, n: 1.0 + 0.2 * rng.exponential(size=n),
        lambda rng, n: np.where(rng.random(n) < 0.3, inf, 1.0 + rng.gamma(3.0, 0.3, n)),
    ],
    ids=["gumbel", "normal", "bounded", "exponential", "gamma with failures"],
)
@pytest.mark.parametrize(("seen", "more"), [(16, 32), (64, 64), (64, 256), (256, 256)])
def test_calibration_on_independent_draws(draw: Draw, seen: int, more: int) -> None:
    """Over many searches, the mean of the gains foretold is near that of those found; from few, too small."""
    rng = np.random.default_rng(seen + more)
    foretold, found = [], []
    for _ in range(300):
        costs = draw(rng, seen + more)
        best = costs[:seen].min()
        foretold.append(gain(costs[:seen].tolist(), more))
        found.append(1 - min(1.0, costs.min() / best))
    assert abs(np.mean(foretold) - np.mean(found)) < 0.01 + (0.65 if seen == 16 else 0.5) * np.mean(found)


def test_a_kind_that_leads_by_far_promises_nothing_for_another() -> None:
    """The few candidates of one kind were all tried; of the other kind thousands are left, all much slower."""
    random = np.random.default_rng(0)
    costs = [1.0, 1.2, 1.3, 1.4, *(2.0 + 0.3 * random.random(12))]
    found, together = mixture_forecast(costs, [0] * 4 + [1] * 12, [4, 10_000]), forecast(costs)
    assert found is not None and together is not None and found.gain(16) < 1e-3 < 0.03 < together.gain(16)
    alike = mixture_forecast(costs, [1] * 16, [4, 10_000])
    assert alike is not None and alike.gain(16) == pytest.approx(together.gain(16))
    assert mixture_forecast([inf, 1.0], [0, 0], [4, 10_000]) is None


def test_a_young_search_is_not_believed_to_have_ended() -> None:
    """The best of a dozen neighbours of the default, far below the others, is not the end; nor behind another kind."""
    costs = [1.0, *np.linspace(1.8, 1.9, 11)]
    alone, young = forecast(costs), mixture_forecast(costs, [0] * 12, [1000])
    assert alone is not None and young is not None
    assert alone.gain(12) < 0.005 < 0.01 < young.gain(12)
    behind = mixture_forecast([0.5, *costs], [1] + [0] * 12, [1000, 1])
    assert behind is not None and behind.gain(12) < 0.005


def test_a_search_finds_less_the_longer_it_goes_on() -> None:
    """Less than so many draws that are alike: those that were lucky came first."""
    costs = np.random.default_rng(3).exponential(0.2, 64) + 1.0
    alike, later = forecast(costs.tolist()), mixture_forecast(costs.tolist(), [0] * 64, [1000])
    assert alike is not None and later is not None
    assert 0 < later.gain(64) < alike.gain(64)


def test_draws_go_where_they_should_save_most() -> None:
    """A kind whose first candidate is far behind gets none, one as good as the best some, up to all it has left."""
    assert allocate_draws([1.0, 1.0, 3.0], [0, 1, 2], [12, 10_000, 10_000], 16) == [8, 8, 0]
    assert allocate_draws([1.0, 1.05], [0, 1], [4, 10_000], 16)[0] == 3
    many, few = allocate_draws([1.0, 1.1], [0, 1], [10_000, 10_000], 16)
    assert many > few > 0
    assert allocate_draws([inf, inf], [0, 1], [12, 12], 8) == [0, 0], "nothing worked yet"
    assert allocate_draws([1.0], [0], [1], 8) == [0], "all was tried"

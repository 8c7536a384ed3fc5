import math

import pytest

from burnish.errors import ParameterError
from burnish.search.budget import Budget, Event, SearchTrial, Tally


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_trials_stop_a_search_and_cut_its_last_batch() -> None:
    tally: Tally[str] = Tally(Budget(trials=5))
    assert tally.batch(4) == 4
    for name in "abcd":
        assert tally.stop_reason is None
        tally.record(name, 1.0)
    assert tally.batch(4) == 1
    tally.record("e", 1.0)
    assert tally.stop_reason == "trials" and tally.batch(4) == 0


def test_the_clock_stops_a_search() -> None:
    clock = Clock()
    tally: Tally[str] = Tally(Budget(seconds=2.5, clock=clock))
    clock.now += 2.0
    tally.record("a", 1.0)
    assert tally.stop_reason is None and tally.seconds_left == 0.5 and tally.batch(7) == 7
    clock.now += 0.5
    assert tally.stop_reason == "seconds" and tally.batch(7) == 0 and tally.seconds_left == 0.0


def test_a_search_without_limits_stops_when_told_and_the_first_reason_stays() -> None:
    tally: Tally[str] = Tally(Budget())
    with pytest.raises(ValueError, match="may still go on"):
        tally.report()
    assert tally.batch(9) == 9 and tally.trials_left is None and tally.seconds_left is None
    tally.stop("exhausted")
    tally.stop("interrupted")
    assert tally.report().stop_reason == "exhausted"
    used_up: Tally[str] = Tally(Budget(trials=1))
    used_up.record("a", 1.0)
    used_up.stop("interrupted")
    assert used_up.report().stop_reason == "trials"


def test_the_report_holds_the_best_and_every_trial() -> None:
    clock = Clock()
    tally: Tally[str] = Tally(Budget(trials=4, clock=clock))
    for name, cost in (("a", math.inf), ("b", 3.0), ("c", 2.0), ("d", 2.0)):
        clock.now += 1.0
        tally.record(name, cost)
    report = tally.report()
    assert (report.best, report.cost, report.trials, report.seconds, report.stop_reason) == ("c", 2.0, 4, 4.0, "trials")
    assert report.history == (
        SearchTrial(1, 1.0, math.inf),
        SearchTrial(2, 2.0, 3.0),
        SearchTrial(3, 3.0, 2.0),
        SearchTrial(4, 4.0, 2.0),
    )


def test_no_success_is_no_best() -> None:
    tally: Tally[str] = Tally(Budget(trials=1))
    tally.record("a", math.inf)
    assert tally.report().best is None and tally.report().cost == math.inf


def test_progress_tells_what_is_left() -> None:
    clock = Clock()
    events: list[Event] = []
    tally: Tally[str] = Tally(Budget(trials=10, seconds=30.0, clock=clock), events.append)
    clock.now += 2.0
    tally.record("a", 5.0)
    clock.now += 6.0
    tally.record("b", 7.0)
    assert events[0] == Event(SearchTrial(1, 2.0, 5.0), 5.0, 9, 18.0)  # nine trials at two seconds each
    assert events[1] == Event(SearchTrial(2, 8.0, 7.0), 5.0, 8, 22.0)  # the clock ends it before eight at four
    without: list[Event] = []
    unlimited: Tally[str] = Tally(Budget(clock=clock), without.append)
    unlimited.record("a", 1.0)
    assert without[0].trials_left is None and without[0].seconds_left is None


@pytest.mark.parametrize("limits", [{"trials": 0}, {"seconds": 0.0}, {"seconds": math.nan}, {"trials": -1}])
def test_impossible_budgets_are_refused(limits) -> None:
    with pytest.raises(ParameterError, match="Budget"):
        Budget(**limits)


def test_a_cost_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="inf"):
        Tally(Budget()).record("a", math.nan)

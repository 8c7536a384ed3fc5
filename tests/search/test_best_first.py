"""Best-first search: it finds what greed misses, tries equal candidates once, and stops for the reason it tells."""

from collections.abc import Callable, Iterator

import pytest

from burnish.errors import ParameterError
from burnish.search.best_first import best_first
from burnish.search.budget import Budget

HILL = {0: 10.0, 1: 10.4, 2: 10.2, 3: 7.0, 4: 10.6, 5: 3.0}  # 3 lies behind a slope, 5 behind a steeper one
UNLIMITED = Budget()
EDGES = {0: (1, 2), 1: (2,), 2: (3, 0), 3: (4,), 4: (5,), 5: ()}


def search(slack: float, budget: Budget = UNLIMITED) -> tuple:
    made: list[int] = []

    def expand(at: int) -> Iterator[tuple[int, Callable[[], int]]]:
        for to in EDGES[at]:
            yield to, lambda to=to: made.append(to) or to

    return best_first(0, lambda at: HILL[at], expand, budget, slack=slack), made


def test_it_goes_uphill_as_far_as_the_slack_allows() -> None:
    for slack, best in ((1.0, 10.0), (1.03, 7.0), (1.6, 3.0)):
        report, _ = search(slack)
        assert (report.cost, report.stop_reason) == (best, "exhausted")


def test_equal_candidates_are_made_once() -> None:
    _, made = search(2.0)
    assert sorted(made) == [0, 1, 2, 3, 4, 5]  # the first is met again by its key


def test_the_cheapest_is_expanded_first() -> None:
    _, made = search(1.05)
    assert made.index(3) < len(made) - 1 or made[-1] == 3
    assert made[:3] == [1, 2, 3]


def test_the_budget_ends_it() -> None:
    report, made = search(2.0, Budget(trials=3))
    assert report.stop_reason == "trials"
    assert len(made) == 2  # and the first


def test_a_slack_below_one_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"slack=0.5"):
        search(0.5)

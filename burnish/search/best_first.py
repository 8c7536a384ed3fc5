"""Best-first search with backtracking: the cheapest candidate known is expanded next, dear ones are given up.

Source: thesis-jia section 2.7, algorithm 2.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import TypeVar

from burnish.errors import ParameterError
from burnish.search.budget import Budget, Event, SearchReport, Tally

Candidate = TypeVar("Candidate")


def best_first(
    first: Candidate,
    cost: Callable[[Candidate], float],
    expand: Callable[[Candidate], Iterable[tuple[Hashable, Callable[[], Candidate]]]],
    budget: Budget,
    *,
    slack: float = 1.05,
    progress: Callable[[Event], None] | None = None,
) -> SearchReport[Candidate]:
    """The cheapest candidate that steps from ``first`` lead to before the budget ends.

    ``expand`` gives, for every step from a candidate, a key that is the same for equal candidates, and what makes the
    candidate, called only where the key is new. A candidate dearer than ``slack`` times the best is not expanded: 1 is
    greedy. Of equal costs the earlier comes first: equal calls do the same, up to where the clock stops them.
    Raises ParameterError for a slack below 1.
    """
    if not slack >= 1:
        raise ParameterError(f"best_first: slack={slack}; it must be at least 1")
    tally: Tally[Candidate] = Tally(budget, progress)
    serial = count()
    tally.record(first, cost(first))
    queue = [(tally.cost, next(serial), first)]
    seen: set[Hashable] = set()
    while queue and tally.stop_reason is None:
        least, _, candidate = heapq.heappop(queue)
        if least > slack * tally.cost:
            break
        for key, make in expand(candidate):
            if key in seen:
                continue
            seen.add(key)
            made = make()
            price = cost(made)
            tally.record(made, price)
            if price < slack * tally.cost:
                heapq.heappush(queue, (price, next(serial), made))
            if not tally.batch(1):
                break
    tally.stop("exhausted")
    return tally.report()

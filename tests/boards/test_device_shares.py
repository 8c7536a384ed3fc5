"""Shares are fair in time, not in turns; priorities come first; an absence earns a bounded lead."""

from __future__ import annotations

import heapq
from itertools import count

from burnish.boards.shares import LeaseRequest, Shares

COSTS = {"short": 1.0, "medium": 2.5, "long": 7.0}  # seconds of a trial
BOARDS = ("cpu", "cpu", "arm", "arm")


def simulated(kinds: dict[str, tuple[str, ...]], until: float, begins: dict[str, float] | None = None) -> Shares:
    """Owners who always want one more device of each of their kinds, on four boards; who begins later, from then on."""
    shares, numbers = Shares(), count()
    waiting: list[LeaseRequest] = []
    ends: list[tuple[float, int, str, str, float]] = []  # when a board is free: number, owner, kind, since
    free, now = list(BOARDS), 0.0
    late = sorted((at, owner) for owner, at in (begins or {}).items())

    def want(owner: str, kind: str) -> None:
        shares.enter(owner, now)
        waiting.append(LeaseRequest(owner, kind, 0, next(numbers)))

    for owner, own in kinds.items():
        for kind in own if owner not in (begins or {}) else ():
            want(owner, kind)
            want(owner, kind)
    while now < until:
        for kind in list(free):
            if (request := shares.choose([w for w in waiting if w.kind == kind], now)) is None:
                continue
            waiting.remove(request)
            shares.leave(request.owner)
            shares.grant(request.owner, now)
            free.remove(kind)
            heapq.heappush(ends, (now + COSTS[request.owner], next(numbers), request.owner, kind, now))
        now, _, owner, kind, since = heapq.heappop(ends)
        shares.release(owner, since, now)
        free.append(kind)
        want(owner, kind)
        while late and late[0][0] <= now:
            _, comer = late.pop(0)
            for own in kinds[comer]:
                want(comer, own)
                want(comer, own)
    return shares


def test_three_tuners_share_four_boards_within_a_fifth() -> None:
    used = simulated(dict.fromkeys(COSTS, ("cpu", "arm")), 300.0).used
    fair = sum(used.values()) / 3
    assert all(abs(each - fair) < 0.2 * fair for each in used.values())
    assert sum(used.values()) > 0.95 * 4 * 300  # no board was idle


def test_shares_are_fair_where_only_one_tuner_wants_both_kinds() -> None:
    used = simulated({"short": ("cpu",), "medium": ("arm",), "long": ("cpu", "arm")}, 600.0).used
    fair = sum(used.values()) / 3
    assert all(abs(each - fair) < 0.2 * fair for each in used.values())


def test_who_comes_late_is_not_owed_the_past() -> None:
    used = simulated(dict.fromkeys(COSTS, ("cpu", "arm")), 600.0, {"short": 300.0}).used
    assert used["short"] < 0.5 * used["long"]  # a third of the second half, and a lead of 30 s
    assert used["short"] > 0.25 * used["long"]


def test_priorities_come_before_shares() -> None:
    shares = Shares()
    for owner in ("a", "b"):
        shares.enter(owner, 0.0)
    shares.grant("a", 0.0)
    shares.release("a", 0.0, 100.0)
    a, b = LeaseRequest("a", "cpu", 1, 0), LeaseRequest("b", "cpu", 0, 1)
    assert shares.choose([a, b], 100.0) is a
    assert shares.choose([LeaseRequest("a", "cpu", 0, 0), b], 100.0) is b
    assert shares.choose([], 100.0) is None


def test_a_device_that_is_still_held_counts() -> None:
    shares = Shares()
    shares.enter("a", 0.0)
    shares.grant("a", 0.0)
    shares.enter("b", 0.0)
    a, b = LeaseRequest("a", "cpu", 0, 0), LeaseRequest("b", "cpu", 0, 1)
    assert shares.choose([a, b], 0.0) is a
    assert shares.choose([a, b], 1.0) is b

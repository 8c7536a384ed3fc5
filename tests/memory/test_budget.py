from dataclasses import replace

import pytest

from burnish.base.sizes import check_budget, parse_budget, text_of
from burnish.errors import ParameterError
from burnish.memory.budget import Planner
from burnish.memory.chain import ChainPlanner
from burnish.memory.counters import allocate
from burnish.memory.greedy import RULES, evict
from burnish.memory.optimal import optimum
from burnish.memory.strategies import by_strategy, strategies, wanted
from burnish.memory.undo import without_waste
from burnish.memory.work import Work, WorkItem
from tests.memory.works import chain, even


@pytest.mark.parametrize(("seed", "skip"), [pytest.param(0, 0, marks=pytest.mark.slow), (1, 4)])
def test_budgets_are_kept_and_more_memory_is_never_slower(seed: int, skip: int) -> None:
    work = chain(12, seed, skip)
    whole = Planner(work).unplanned
    least = Planner(work).least.arena
    budgets = [least + round((whole.arena - least) * i / 19) for i in range(20)]
    shared, before = Planner(work), float("inf")
    for number, budget in enumerate(budgets):
        for planner in (shared, Planner(work)) if number % 5 == 0 else (shared,):
            plan = planner.within(budget)
            work.check(plan.order)
            assert work.arena(plan.order).arena_bytes <= plan.arena <= budget
            assert plan.seconds == work.order_seconds(plan.order) <= before
        before = plan.seconds
    assert before == work.seconds


def test_the_smallest_budget_is_named_and_can_be_kept() -> None:
    work = replace(chain(10), nbytes=tuple(n - 4 for n in chain(10).nbytes))  # no whole cache lines
    least = Planner(work).least.arena
    assert Planner(work).within(least).arena <= least
    with pytest.raises(ParameterError, match=rf"memory_budget: found {least - 1} bytes .*; allowed: {least} bytes"):
        Planner(work).within(least - 1)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_evicted_keeps_the_limit(rule: int) -> None:
    work = chain(30, skip=5)
    base = work.live(range(len(work)))
    for share in (0.9, 0.6, 0.4):
        order = evict(work, int(share * base), rule)
        assert order is not None
        work.check(order)
        assert work.live(order) <= share * base
    assert evict(work, base, rule) == list(range(len(work)))
    assert evict(work, 64, rule) is None


def test_what_cannot_be_made_again_is_not() -> None:
    work = chain(20)
    pinned = tuple(
        WorkItem(o.reads, o.writes, o.seconds, o.in_place, n % 3 > 0, o.cheap, o.name)
        for n, o in enumerate(work.operations)
    )
    some = Work(pinned, work.nbytes, work.keep, work.forward)
    budget = (Planner(some).unplanned.arena + Planner(some).least.arena) // 2
    order = Planner(some).within(budget).order
    some.check(order)
    assert len(order) > len(some)


@pytest.mark.parametrize("seed", range(3))
def test_the_dynamic_program_gives_orders_that_keep_their_memory(seed: int) -> None:
    work = chain(20, seed)
    found = ChainPlanner(work, int(1.2 * work.live(range(len(work)))))
    assert found.feasible == sorted(found.feasible) and len(found.feasible) > 3
    seconds = []
    for slots in found.feasible:
        order = found.order(slots)
        work.check(order)
        assert work.live(order) <= slots * found.table.unit + 1
        seconds.append(work.order_seconds(order))
    assert seconds == sorted(seconds, reverse=True)


def test_the_dynamic_program_needs_the_logarithm_and_reruns_a_stage_as_often() -> None:
    """As recursion over segments of segments does (thesis-chen section 3.3.4): O(log n) memory, O(n log n) time."""
    for depth in (4, 6, 8):
        work = even(1 << depth)
        found = ChainPlanner(work, 40 * 6400)
        orders = [found.order(slots) for slots in found.feasible]
        small = [order for order in orders if work.live(order) <= (depth + 1) * 6400]
        assert min(map(work.order_seconds, small)) <= work.seconds + depth * 2**depth


def test_runs_are_spared_where_there_is_room() -> None:
    work = chain(10)
    base = list(range(len(work)))
    wasteful = [*base[:10], *base[:10], *base[10:]]
    assert without_waste(work, wasteful, 10**9) == base
    tight = evict(work, int(0.7 * work.live(base)))
    assert tight is not None and without_waste(work, tight, work.live(base)) == base
    kept = without_waste(work, tight, work.live(tight))
    assert work.live(kept) <= work.live(tight) and work.order_seconds(kept) <= work.order_seconds(tight)


def brute_force(work: Work, budget: int) -> float:
    """Least seconds, by Dijkstra over what is in memory and how far the step is."""
    start = (0, frozenset[int]())
    cost, pending = {start: 0.0}, [start]
    best = float("inf")
    while pending:
        pending.sort(key=lambda s: cost[s], reverse=True)
        state = pending.pop()
        step, present = state
        if step == len(work):
            return min(best, cost[state])
        for n in range(step + 1):
            o = work.operations[n]
            if not {*o.reads} <= present or (n < step and {*o.writes} <= present):
                continue
            if sum(int(work.rounded[v]) for v in present | {*o.writes}) > budget:
                continue
            after = step + (n == step)
            full = present | {*o.writes}
            choices = [full] + [full - {v} for v in full] + [full - {v, w} for v in full for w in full]
            for kept in {*choices}:
                new, seconds = (after, kept), cost[state] + o.seconds
                if seconds < cost.get(new, float("inf")):
                    cost[new] = seconds
                    pending.append(new)
    return best


@pytest.mark.parametrize("seed", [0, 1])
def test_the_integer_program_finds_the_least_time(seed: int) -> None:
    plain = chain(4, seed)
    work = Work(
        tuple(WorkItem(o.reads, o.writes, o.seconds, name=o.name) for o in plain.operations), plain.nbytes,
        frozenset(), plain.forward,
    )  # fmt: skip
    planner = Planner(work)
    for budget in (planner.unplanned.live, (planner.unplanned.live + planner.least.live) // 2, planner.least.live):
        found = optimum(work, budget, 30.0)
        assert found.proven and found.order is not None
        work.check(found.order)
        assert work.live(found.order) <= budget
        assert found.seconds == pytest.approx(brute_force(work, budget))
        assert found.seconds <= planner.within(budget).seconds
    assert optimum(work, 64, 30.0).order is None and optimum(work, 64, 30.0).proven
    with pytest.raises(ParameterError, match="found 100 operations"):
        optimum(chain(50), 1000)


@pytest.mark.parametrize("seed", range(2))
def test_plans_are_close_to_the_optimum_and_no_further_with_time_to_solve(seed: int) -> None:
    work = chain(8, seed)
    planner = Planner(work)
    budget = (planner.unplanned.arena + planner.least.arena) // 2
    best = optimum(work, budget, 30.0)
    assert best.proven and planner.within(budget).seconds <= 1.05 * best.seconds
    assert best.order is not None
    solved = Planner(work, seconds=30.0).within(budget)
    work.check(solved.order)
    assert solved.arena <= budget
    assert best.seconds <= solved.seconds <= planner.within(budget).seconds  # what is live fits; an arena may have gaps


def test_blocks_of_liveness_counters() -> None:
    """Figure 3.4: a chain of six, the last two of which cannot be written in place."""
    operations = [WorkItem((i - 1,) if i else (), (i,), in_place=(i - 1,) if 0 < i < 4 else ()) for i in range(6)]
    work = Work(tuple(operations), (64,) * 6, frozenset((5,)))
    order = range(6)
    assert allocate(work, order, in_place=False, recycle=False).total == 6 * 64
    assert allocate(work, order, recycle=False).block == (0, 0, 0, 0, 1, 2)
    assert allocate(work, order).total == 2 * 64


def test_recycled_blocks_are_as_much_larger_as_leads_to_the_fewest_bytes() -> None:
    """A small result would take the large block that is needed next; with a narrower range it gets one of its own."""
    operations = [WorkItem((), (0,)), WorkItem((0,), (1,)), WorkItem((1,), (2,)), WorkItem((1, 2), (3,))]
    work = Work(tuple(operations), (640, 64, 64, 640), frozenset((3,)))
    assert allocate(work, range(4)).total == 640 + 64 + 64


@pytest.mark.parametrize("seed", range(4))
def test_no_two_live_copies_share_a_block_but_in_place(seed: int) -> None:
    work = chain(20, seed, skip=4)
    order = evict(work, int(0.6 * work.live(range(len(work)))))
    assert order is not None
    blocks = allocate(work, order)
    value, first, last, _ = work.copies(order)
    for a in range(len(value)):
        assert blocks.nbytes[blocks.block[a]] >= work.nbytes[value[a]]
        for b in range(a):
            if blocks.block[a] == blocks.block[b]:
                assert last[b] < first[a] or (
                    last[b] == first[a] and value[b] in work.operations[order[first[a]]].in_place
                )


def test_strategies_by_name() -> None:
    work = chain(24, skip=8)
    found = strategies(work)
    assert [*found] == ["none", "inplace", "sharing", "packed", "drop-cheap", "sublinear", "least"]
    assert found["none"].arena == sum(work.nbytes)
    needed = [found[name].arena for name in ("none", "inplace", "sharing", "packed", "least")]
    assert needed == sorted(needed, reverse=True)
    assert found["packed"].extra(work) == 0.0 < found["least"].extra(work)
    with pytest.raises(ParameterError, match="strategy: found 'best'; allowed: none, inplace"):
        by_strategy(Planner(work), "best")
    assert wanted(Planner(work), "sublinear").arena == found["sublinear"].arena
    mirrored = wanted(Planner(work), {"f1": 1, "f2": 1})
    assert mirrored.order.count(1) == mirrored.order.count(2) == 2 and len(mirrored.order) == len(work) + 2
    assert wanted(Planner(work), found["packed"].arena).order == tuple(range(len(work)))


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("512mib", 2**29),
        (1000, 1000),
        ("7", 7),
        ("64 kb", 64_000),
        ("512M", 512 * 10**6),
    ],
)
def test_budgets_are_read(text: str | int, nbytes: int) -> None:
    assert parse_budget("budget", text) == nbytes


@pytest.mark.parametrize("wrong", ["2XB", "GB", "", "-1MB", 0, -5, True, float("nan"), "1e400", "most"])
def test_wrong_budgets_are_refused(wrong: object) -> None:
    with pytest.raises(ParameterError, match=r"budget: found .*; allowed: bytes, a number with a unit"):
        check_budget("budget", wrong)
    with pytest.raises(ParameterError, match=r"found \{'relu': -1\}; allowed: names of nodes, integers from 0"):
        check_budget("budget", {"relu": -1})


def test_bytes_for_people() -> None:
    assert [text_of(n) for n in (12, 1500, 2_500_000_000)] == ["12 bytes", "1.5 KB", "2.5 GB"]

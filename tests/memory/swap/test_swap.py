"""Plans over two memories: all methods against brute force, the paper's states, refusals, budgets."""

from __future__ import annotations

import pytest

from benchmarks.yardsticks.swap_choice import Rates, choose
from benchmarks.yardsticks.swap_exact import exact
from burnish.errors import ParameterError, VerificationError
from burnish.memory.lifetimes import LifetimeStep
from burnish.memory.swap import (
    Action,
    fixed,
    least_recently_used,
    live_tensors,
    replay,
    streaming,
    swap_problem,
    valid_states,
)  # fmt: skip
from tests.memory.swap.problems import least_cost, random_problem, toy_gin

TABLE = [
    {"g", "a"},
    {"g", "a", "b", "w1"},
    {"g", "a", "b", "h1", "w1", "w2"},
    {"g", "a", "b", "w1", "w2", "dh1"},
    {"g", "a", "b", "w1", "db"},
    {"g", "a", "da"},
    set(),
]


def test_states_of_the_toy_network_are_those_of_table_4_3() -> None:
    states = [state for state in valid_states(toy_gin()) if state]
    assert states == [frozenset(range(n + 1)) for n in range(7)]
    assert [live_tensors(toy_gin(), state) for state in states] == TABLE


def test_states_stand_for_every_order() -> None:
    steps = [LifetimeStep(("x",), ("a",)), LifetimeStep(("x",), ("b",)), LifetimeStep(("a", "b"), ("c",))]
    states = set(valid_states(swap_problem(steps, dict.fromkeys("xabc", 1))))
    assert states == {frozenset(s) for s in ((), (0,), (1,), (0, 1), (0, 1, 2))}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_exact_equals_brute_force(seed: int, factor: float) -> None:
    problem = random_problem(seed, 3 + seed % 3)
    capacity = int(problem.least_capacity * factor)
    assert exact(problem, capacity).moved == least_cost(problem, capacity)
    assert exact(problem, capacity, reorder=False).moved == least_cost(problem, capacity, reorder=False)


@pytest.mark.parametrize("unit", [1, 123_456_789])
@pytest.mark.parametrize("seed", range(20))
def test_fixed_order_equals_dynamic_programming(seed: int, unit: int) -> None:
    problem = random_problem(seed, 4 + seed % 8, unit)
    for factor in (1.0, 1.2, 1.5, 2.0):
        capacity = int(problem.least_capacity * factor)
        found = fixed(problem, capacity)
        assert found.proven
        assert found.moved == exact(problem, capacity, reorder=False).moved


def test_toy_network_moves_less_than_the_baselines() -> None:
    problem = toy_gin(1000)
    capacity = int(problem.least_capacity * 1.2)
    best = exact(problem, capacity).moved
    dead = least_recently_used(problem, capacity, drop_dead=True).moved
    assert best <= dead <= least_recently_used(problem, capacity).moved < streaming(problem, capacity).moved


def test_streaming_loads_what_an_operator_reads_once() -> None:
    """Of an operator in blocks: what each block reads is not loaded anew; what another operator reads is."""
    steps = [
        LifetimeStep(("x",), ("a",)),
        LifetimeStep(("x",), ("b",)),
        LifetimeStep(("x", "a"), ("y",)),
        LifetimeStep(("x", "b"), ("z",)),
    ]
    nbytes = {"x": 100, "a": 1, "b": 2, "y": 3, "z": 4}
    alone = swap_problem(steps, nbytes, ["y", "z"])
    assert (streaming(alone, 110).loaded, streaming(alone, 110).stored) == (403, 10)
    together = swap_problem(steps, nbytes, ["y", "z"], [0, 0, 5, 5])
    plan = streaming(together, 106)
    assert (plan.loaded, plan.stored, plan.peak) == (203, 10, 106)


@pytest.mark.parametrize("seed", range(6))
def test_more_capacity_never_moves_more(seed: int) -> None:
    problem = random_problem(seed, 10, 1000)
    moved = [fixed(problem, problem.least_capacity + 500 * n).moved for n in range(20)]
    assert moved == sorted(moved, reverse=True)
    least = [exact(problem, problem.least_capacity + 1500 * n).moved for n in range(6)]
    assert least == sorted(least, reverse=True)
    assert all(a <= b for a, b in zip(least, moved[::3], strict=False))


METHODS = {
    "exact": exact, "fixed order": fixed, "streaming": streaming, "LRU": least_recently_used,
    "choose": lambda p, c: choose(p, c, Rates(1.0, (1.0,) * len(p.steps))),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_too_little_is_refused_with_the_least_capacity(method: str) -> None:
    problem = toy_gin()
    METHODS[method](problem, problem.least_capacity)
    with pytest.raises(
        ParameterError,
        match=rf"memory_budget: found .*; allowed: at least {problem.least_capacity} bytes .*, which step 6",
    ):
        METHODS[method](problem, problem.least_capacity - 1)


def test_a_graph_beyond_the_limit_is_refused() -> None:
    problem = random_problem(1, 12)
    with pytest.raises(ParameterError, match="more than 3 states; allowed: a smaller graph"):
        exact(problem, problem.least_capacity, limit=3)


def test_results_are_stored_and_dead_tensors_are_not() -> None:
    steps = [LifetimeStep(("x",), ("a", "unused")), LifetimeStep(("a",), ("y",))]
    problem = swap_problem(steps, {"x": 4, "a": 2, "unused": 1, "y": 3}, ["y"])
    plan = exact(problem, problem.least_capacity)
    assert (plan.loaded, plan.stored) == (4, 3)
    chain = swap_problem(
        [LifetimeStep(("x",), ("a",)), LifetimeStep(("x",), ("b",)), LifetimeStep(("x",), ("c",))],
        dict.fromkeys("xabc", 1),
    )
    assert exact(chain, 2).stored == least_recently_used(chain, 2, drop_dead=True).stored == 0
    assert least_recently_used(chain, 2).stored == 2  # nothing reads a and b, which history does not know


def test_an_alias_is_its_input() -> None:
    steps = [LifetimeStep(("x",), ("a",)), LifetimeStep(("a",), ("view",), alias=True), LifetimeStep(("view",), ("y",))]
    problem = swap_problem(steps, {"x": 4, "a": 2, "view": 2, "y": 3}, ["view"])
    assert problem.steps == (LifetimeStep(("x",), ("a",)), LifetimeStep(("a",), ("y",)))
    assert problem.results == {"a"}


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([LifetimeStep(("b",), ("a",)), LifetimeStep(("x",), ("b",))], "step 0 reads 'b' before it is written"),
        (
            [LifetimeStep(("x",), ("a",)), LifetimeStep(("x",), ("a",))],
            "step 1 writes 'a', which is written or read before",
        ),
        ([LifetimeStep(("x",), ("c",))], "tensor 'c' has no bytes"),
    ],
)
def test_wrong_steps_are_refused(steps: list[LifetimeStep], text: str) -> None:
    with pytest.raises(VerificationError, match=text):
        swap_problem(steps, {"x": 1, "a": 1, "b": 1})


def test_replay_finds_what_is_wrong_with_a_plan() -> None:
    problem = swap_problem([LifetimeStep(("x",), ("y",))], {"x": 2, "y": 2}, ["y"])
    load, run, store = Action("load", "x"), Action("run", "", 0), Action("store", "y")
    assert replay(problem, 4, [load, run, store]).moved == 4
    for actions, text in (
        ([run], "not in fast memory"), ([load, load], "in fast memory already"), ([load], "never run"),
        ([load, run], "not in slow memory at the end"), ([store], "not in fast memory"),
    ):  # fmt: skip
        with pytest.raises(VerificationError, match=text):
            replay(problem, 4, actions)
    with pytest.raises(VerificationError, match="4 bytes in fast memory; allowed: 3"):
        replay(problem, 3, [load, run, store])


@pytest.mark.parametrize("seed", range(8))
def test_recomputing_and_moving_are_chosen_together(seed: int) -> None:
    problem = random_problem(seed, 3 + seed % 3)
    seconds = tuple(float(1 + (seed + 3 * i) % 5) for i in range(len(problem.steps)))
    rates = Rates(1.0, seconds)
    for factor in (1.0, 1.3):
        capacity = int(problem.least_capacity * factor)
        plan = choose(problem, capacity, rates)
        assert plan.proven
        assert rates.extra(plan) <= fixed(problem, capacity).moved
        assert rates.extra(plan) == least_cost(problem, capacity, False, seconds)


def chain(length: int) -> tuple:
    """A chain forward and back: step i of the backward half reads what step i of the forward half wrote."""
    steps = [LifetimeStep((f"h{i}",), (f"h{i + 1}",)) for i in range(length)]
    steps += [LifetimeStep((f"h{i + 1}", f"g{i + 1}"), (f"g{i}",)) for i in reversed(range(length))]
    nbytes = {f"{kind}{i}": 10 for kind in "hg" for i in range(length + 1)}
    return swap_problem(steps, nbytes)


def test_cheap_steps_run_again_and_dear_ones_move() -> None:
    problem = chain(6)
    capacity = problem.least_capacity + 10
    moves = fixed(problem, capacity)
    dear = choose(problem, capacity, Rates(1.0, (1e6,) * 12))
    assert (dear.moved, dear.runs) == (moves.moved, 12)
    cheap, rates = (choose(problem, capacity, r := Rates(1.0, (1.0,) * 12)), r)
    assert cheap.proven and cheap.runs > 12
    assert rates.extra(cheap) < moves.moved
    assert rates.extra(cheap) == least_cost(problem, capacity, False, rates.seconds)


def test_the_greedy_choice_saves_time_on_long_chains() -> None:
    problem = chain(40)
    rates = Rates(1.0, (1.0,) * 80)
    capacity = problem.least_capacity + 200
    plan = choose(problem, capacity, rates)
    assert rates.extra(plan) < 0.4 * fixed(problem, capacity).moved
    assert plan.peak <= capacity


@pytest.mark.parametrize("rates", [Rates(0.0, (1.0,) * 7), Rates(1.0, (1.0,) * 3), Rates(1.0, (-1.0,) * 7)])
def test_rates_are_checked(rates: Rates) -> None:
    with pytest.raises(ParameterError, match=r"choose: rates: .*allowed: a positive bandwidth and 7 seconds"):
        choose(toy_gin(), 100, rates)

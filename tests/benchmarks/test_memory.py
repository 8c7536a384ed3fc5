"""The networks of `benchmarks.memory`, and what it calls a miss."""

from __future__ import annotations

from benchmarks.memory import missed
from benchmarks.memory_networks import residual, resnet, unrolled
from burnish.graph.verify import verify
from burnish.memory.budget import Planner
from burnish.memory.mirror import mirrored_order, sublinear
from burnish.memory.strategies import STRATEGIES, by_strategy


def test_depths_are_counted_as_in_the_thesis() -> None:
    assert [residual(depth).layers for depth in (18, 34, 50, 101, 152)] == [18, 34, 50, 101, 152]
    assert residual(1000).layers == 998 and residual(1202).layers == 1202
    verify(resnet(residual(18), 2, 32))


def test_a_recurrent_step_grows_with_its_length_but_not_with_a_plan() -> None:
    short, long = (
        unrolled(4, layers=2, units=32, batch=8, classes=40),
        unrolled(16, layers=2, units=32, batch=8, classes=40),
    )
    for work in (short, long):
        work.check(range(len(work)))
        assert len(work.keep) == 5  # weights of two layers and of the softmax: their gradients live to the end
    whole = [by_strategy(Planner(work), "packed").arena for work in (short, long)]
    planned = [work.live(mirrored_order(work, sublinear(work))) for work in (short, long)]
    assert whole[1] > 2 * whole[0] and planned[1] < 1.9 * planned[0] and planned[1] < whole[1] / 2
    assert {*STRATEGIES} > {"none", "sharing"}


def test_missed_bars_are_told() -> None:
    good = {"budgets": [{"model": "m", "violations": 0, "slower_with_more": 0, "unequal": 0}],
            "offsets": [{"of_bound": 1.02, "seconds": 1.0}]}  # fmt: skip
    assert missed(good) == []
    bad = {"budgets": [{"model": "m", "violations": 1, "slower_with_more": 0, "unequal": 0}],
           "residual": [{"depth": 50, "budgets": [{"extra": 0.09}, {"refused": "no"}], "arena_of_live": 1.0,
                         "packed": {"bytes": 1}, "none": {"bytes": 4}}]}  # fmt: skip
    assert len(missed(bad)) == 3

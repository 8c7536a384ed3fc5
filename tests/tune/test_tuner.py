"""The search for one kernel: defaults first, nothing twice, better than chance where there is something to learn."""

from __future__ import annotations

from collections.abc import Set
from math import inf
from typing import ClassVar

import numpy as np
import pytest

from burnish.kernels.task import KernelTask
from burnish.kernels.task import ScheduleSpace as KnobSpace
from burnish.kernels.templates import template_called
from burnish.loops.tensor import placeholder
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.search.annealing import Annealing
from burnish.search.exhaustive import Exhaustive
from burnish.search.space import GridSpace, Points, SearchSpace
from burnish.search.walker import NOTHING, Score, Walker
from burnish.tune.features import INVARIANT, extract
from burnish.tune.models.trees import TreeModel
from burnish.tune.space import Alternative, TuningSpace
from burnish.tune.strategy import ADATUNE, AUTOTVM, BURNISH, GENETIC, RANDOM, TuningStrategy
from burnish.tune.tuner import Tuner, defaults
from tests.marks import slow

MACHINE = target("x86-64-v4")


def products(rows: int, depth: int, columns: int) -> TuningSpace:
    """The tuning space of a matrix product with a constant right side."""
    a, b = placeholder((rows, depth), name="a"), placeholder((depth, columns), name="b")
    (y,) = OPERATORS["matmul"].define("y", [a, b], {})
    task = KernelTask("k", (a, b), (y,), "matmul", {}, frozenset({"b"}))
    template = template_called("matmul", MACHINE)
    return TuningSpace([Alternative("/matmul", task, template, template.on(task, MACHINE).space, MACHINE)])


SPACE = products(128, 256, 512)


def cost(points: Points) -> np.ndarray:
    """A landscape over the knobs with one narrow valley, and one choice in 30 that fails."""
    found = np.empty(len(points))
    for i, point in enumerate(points):
        c = SPACE.candidate(point).choice
        tile, vectors = int(c["tile"]), int(c["vectors"])
        found[i] = 1 + 0.5 * np.log2(tile / 9) ** 2 + 0.3 * abs(vectors - 3) + 0.1 * (c["unroll"] != 4)
        found[i] += 0.1 * (c["outer"] == "all") + 0.05 * np.log2(1 + int(c["depth"]) / 16)
        if (31 * tile + 7 * vectors) % 30 == 0:
            found[i] = inf
    return 1e-4 * found


def search(strategy: TuningStrategy, trials: int, seed: int) -> Tuner:
    tuner = Tuner(SPACE, strategy.with_(batch=16, initial=16), seed)
    while len(tuner.costs) < trials and not tuner.exhausted:
        points = tuner.propose(16)
        tuner.observe(points, cost(points).tolist())
    return tuner


@pytest.mark.parametrize("strategy", [BURNISH, AUTOTVM, ADATUNE, RANDOM, GENETIC], ids=lambda s: s.name)
def test_the_default_comes_first_and_nothing_twice(strategy: TuningStrategy) -> None:
    tuner = search(strategy, 64, seed=1)
    assert (tuner.points[: len(defaults(SPACE))] == defaults(SPACE)).all()
    keys = SPACE.space.keys(tuner.points).tolist()
    assert len(set(keys)) == len(keys) >= 64
    assert SPACE.space.contains(tuner.points).all()


@pytest.mark.parametrize("strategy", slow([BURNISH, AUTOTVM], AUTOTVM), ids=lambda s: s.name)
def test_a_model_finds_more_than_chance(strategy: TuningStrategy) -> None:
    """The medians of five searches of 64 trials; the space has thousands of points."""
    assert SPACE.size > 5000
    ours = np.median([search(strategy, 64, seed).seconds for seed in range(5)])
    chance = np.median([search(RANDOM, 64, seed).seconds for seed in range(5)])
    assert ours < chance


def test_a_selective_search_leaves_out_what_cannot_be_fast() -> None:
    tuner = Tuner(SPACE, BURNISH, 0)
    chosen = tuner.propose(32)
    used = [int(c["tile"]) * int(c["vectors"]) for c in (SPACE.candidate(p).choice for p in chosen)]
    assert max(used) <= MACHINE.vector_registers
    with_all = Tuner(SPACE, BURNISH.with_(selective=False), 0).propose(32)
    assert max(int(c["tile"]) * int(c["vectors"]) for c in (SPACE.candidate(p).choice for p in with_all)) > 32


def test_a_small_space_is_exhausted() -> None:
    space = products(2, 16, 16)
    tuner = Tuner(space, BURNISH, 0)
    for _ in range(space.size):
        if tuner.exhausted:
            break
        points = tuner.propose(16)
        tuner.observe(points, np.linspace(1, 2, len(points)).tolist())
    assert tuner.exhausted
    assert len(tuner.costs) == space.size


def test_what_is_next_to_the_fastest_is_tried_whatever_the_model_says() -> None:
    """Of a small alternative only its first candidate is known, which is faster than all of a large one."""
    large = SPACE.alternatives[0]
    knobs = {knob: choices[: 2 if n < 3 else 1] for n, (knob, choices) in enumerate(large.space.knobs.items())}
    first = {knob: choices[0] for knob, choices in knobs.items()}
    small = Alternative("small", large.task, large.template, KnobSpace(knobs, first), MACHINE)
    space = TuningSpace([large, small])
    tuner = Tuner(space, BURNISH.with_(share=0.0), 0, Few())
    while len(tuner.costs) < 48:
        points = defaults(space) if not tuner.costs else tuner.propose(16)
        costs = np.where(points[:, 0] == 1, 1.0 - 0.1 * points[:, 1:].sum(axis=1), 2.0)
        tuner.observe(points, costs.tolist())
    assert (tuner.points[:, 0] == 1).sum() == small.space.size == 8


def two_ways(small_cost: float, trials: int) -> tuple[Tuner, int]:
    """A search after so many trials: of a way with many candidates, and one with few, each of which has one cost."""
    (many,) = SPACE.alternatives
    knobs = KnobSpace({"tile": (4, 8), "vectors": (1, 2, 3, 4)}, {"tile": 4, "vectors": 1})
    knobs = KnobSpace({**{k: v[:1] for k, v in many.space.knobs.items()}, **knobs.knobs}, {})
    default = {knob: choices[0] for knob, choices in knobs.knobs.items()}
    few = Alternative("few", many.task, many.template, KnobSpace(knobs.knobs, default), MACHINE)
    space = TuningSpace([many, few])
    tuner = Tuner(space, BURNISH, 0)
    while len(tuner.costs) < trials:
        points = tuner.propose(min(16, trials - len(tuner.costs))) if tuner.costs else defaults(space)
        tuner.observe(points, np.where(points[:, 0] == 1, small_cost, 1.0 + 0.01 * np.arange(len(points))).tolist())
    return tuner, few.space.size


def test_a_way_with_few_candidates_is_tried_whole_where_its_default_is_good() -> None:
    tuner, size = two_ways(1.02, 20)
    assert (tuner.points[:, 0] == 1).sum() == size == 8


def test_a_way_with_few_candidates_is_left_where_its_default_is_bad() -> None:
    tuner, size = two_ways(5.0, 20)
    assert (tuner.points[:, 0] == 1).sum() < size


def test_a_vast_space_is_walked_from_many_places() -> None:
    grid = GridSpace([16] * 8, [True] * 8)
    vast = BURNISH.within(grid)
    assert isinstance(vast.walker(grid, 0), Annealing)
    assert vast.diversity > BURNISH.diversity and vast.candidates > BURNISH.candidates
    assert BURNISH.within(SPACE.space) is BURNISH and RANDOM.within(grid) is RANDOM


def test_batches_begin_small_and_grow() -> None:
    tuner, found = Tuner(SPACE, BURNISH.with_(first=8, batch=16), 0), []
    tuner.observe(defaults(SPACE), cost(defaults(SPACE)).tolist())
    while len(tuner.costs) < 64:
        points = tuner.propose(16)
        tuner.observe(points, cost(points).tolist())
        found.append(len(points))
    assert found[:2] == [8, 8] and found == sorted(found) and found[-1] == 16


class Few(TreeModel):
    """A model of other kernels that thinks many vectors good; asked, not fitted."""

    def predict(self, features: object) -> np.ndarray:
        rows = np.asarray(features)
        assert rows.shape[1] == len(INVARIANT)
        return rows[:, INVARIANT.index("vectors over the default's")]


@pytest.mark.parametrize("strategy", [BURNISH, BURNISH.with_(share=0.5)], ids=["", "half at random"])
def test_a_prior_is_asked_before_there_are_measurements(strategy: TuningStrategy) -> None:
    """Of the prior's share of the first batch all but the random part is what other kernels have taught, within what
    could be fast.
    """

    def most(prior: Few | None) -> int:
        tuner = Tuner(SPACE, strategy.with_(first=None, initial=16, diversity=0.0), 0, prior)
        first = defaults(SPACE)
        tuner.observe(first, cost(first).tolist())
        return sum(SPACE.candidate(point).choice["vectors"] == 8 for point in tuner.propose(16))

    share = float(strategy.share)  # type: ignore[arg-type]
    by_prior = round(strategy.prior_share * 16)
    assert by_prior == 12
    assert (by_prior - 1) * (1 - share) - 1 <= most(Few()) <= by_prior + (16 - by_prior) / 2
    assert most(None) < 6


def test_an_uninformed_search_begins_with_the_best_of_random_points_by_the_prior() -> None:
    """No walk follows the prior to its extremes: it is asked once, of so many points, and the best of those come first.

    Most of the batch is random: nothing has borne the prior out.
    """

    class Asked(Few):
        seen: ClassVar[list[np.ndarray]] = []

        def predict(self, features: object) -> np.ndarray:
            self.seen.append(super().predict(features))
            return self.seen[-1]

    strategy = AUTOTVM.with_(informed=False, transfer=True, common="invariant")
    chosen = Tuner(SPACE, strategy, 0, Asked()).propose(16)
    (scores,) = Asked.seen
    assert len(scores) == 2048 < SPACE.size
    found = Few().predict(extract(SPACE, "invariant", chosen))
    by_prior = round(strategy.prior_share * 16)
    assert by_prior == 2 and sorted(found[:by_prior]) == sorted(scores)[-by_prior:]
    assert len(chosen) == 16 == len(set(SPACE.space.keys(chosen).tolist()))
    assert found[by_prior:].min() < found[:by_prior].min()


def test_measurements_add_to_the_prior() -> None:
    """A prior that is wrong for this kernel delays the search, but is overcome."""
    tuner = Tuner(SPACE, BURNISH, 0, Few())
    while len(tuner.costs) < 96:
        points = tuner.propose(16)
        tuner.observe(points, cost(points).tolist())
    latest = [SPACE.candidate(point).choice["vectors"] for point in tuner.points[-16:]]
    assert sum(v == 8 for v in latest) < 8
    assert tuner.seconds < float(np.median(cost(tuner.points)))


def test_equal_seeds_search_equally() -> None:
    assert (search(BURNISH, 48, 3).points == search(BURNISH, 48, 3).points).all()
    assert not np.array_equal(search(BURNISH, 48, 3).points, search(BURNISH, 48, 4).points)


class Watched(Exhaustive):
    """Remembers what it proposed."""

    proposed: set[int]

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        points = super().propose(score, count, exclude)
        self.proposed = set(self.space.keys(points).tolist())
        return points


@pytest.mark.parametrize("strategy", [BURNISH, AUTOTVM], ids=lambda s: s.name)
@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.5, 15, 20)])
def test_a_share_of_every_batch_is_random(strategy: TuningStrategy, share: float, least: int, most: int) -> None:
    """Of 40 proposals, so many are not the walk's."""
    walkers: list[Watched] = []

    def watched(space: SearchSpace, seed: int) -> Walker:
        walkers.append(Watched(space, seed))
        return walkers[-1]

    tuner = Tuner(SPACE, strategy.with_(share=share, near=0.0, walker=watched, first=None, initial=16), 2)
    points = tuner.propose(16)
    tuner.observe(points, cost(points).tolist())
    keys = SPACE.space.keys(tuner.propose(40)).tolist()
    assert len(keys) == 40
    assert least <= sum(key not in walkers[0].proposed for key in keys) <= most

"""The weighted quantile sketch: Definition 2.6.1's invariants, and the bounds of its theorems, on random multisets."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost import sketch
from burnish.boost.sketch import EMPTY, Sketch, Summary, merge_all
from burnish.errors import DataError, ParameterError

# Whole weights: their sums are exact in float64, so that no tolerance hides an error.
MULTISETS = st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 9)), min_size=1, max_size=80).filter(
    lambda pairs: any(weight for _, weight in pairs)
)
FEW = settings(max_examples=150, deadline=None)


def split(pairs):
    values, weights = zip(*pairs, strict=True)
    return np.array(values, np.float32), np.array(weights, np.float64)


def ranks(values, weights, at):
    """r⁻, r⁺ and ω of D at a point, by their definitions."""
    return weights[values < at].sum(), weights[values <= at].sum(), weights[values == at].sum()


def violations(summary, values, weights):
    """What of Definition 2.6.1, Lemma 2.6.1 and eq. 2.21 a summary breaks."""
    values, weights = values[weights > 0], weights[weights > 0]
    wrong = []
    if not len(summary) or summary.value[0] != values.min() or summary.value[-1] != values.max():
        return ["the ends are not the least and the greatest point"]
    if not (np.diff(summary.value) > 0).all():
        wrong.append("points do not ascend")
    if not np.isin(summary.value, values).all():
        wrong.append("a point is not of D")
    for i, at in enumerate(summary.value):
        low, high, mass = ranks(values, weights, at)
        exact = i in (0, len(summary) - 1)
        here = summary.below[i], summary.through[i], summary.weight[i]
        if not (here[0] <= low and here[1] >= high and here[2] <= mass):
            wrong.append(f"eq. 2.14 at {at}")
        if exact and here != (low, high, mass):
            wrong.append(f"eq. 2.14 with equality at {at}")
    if not (summary.below[:-1] + summary.weight[:-1] <= summary.below[1:]).all():
        wrong.append("eq. 2.15, left")
    if not (summary.through[:-1] <= summary.through[1:] - summary.weight[1:]).all():
        wrong.append("eq. 2.15, right")
    error = 0.0
    for at in np.arange(-21, 21.5, 0.5, dtype=np.float32):
        low, high, mass = ranks(values, weights, at)
        below, through, weight = summary.bounds(float(at))
        if not (below <= low and through >= high and weight <= mass):
            wrong.append(f"eq. 2.19 at {at}")
        error = max(error, (through - below - weight) / weights.sum())
    if error > summary.error + 1e-12:
        wrong.append(f"error {error} above {summary.error}, that of Lemma 2.6.2")
    if summary.total != weights.sum():
        wrong.append("total")
    return wrong


@FEW
@given(MULTISETS)
def test_initial_summary_is_exact(pairs):
    values, weights = split(pairs)
    summary = Summary.of(values, weights)
    assert not violations(summary, values, weights)
    assert summary.error == 0


@FEW
@given(MULTISETS, MULTISETS, st.integers(1, 12), st.integers(1, 12))
def test_merge_keeps_the_larger_error(first, second, budget1, budget2):
    parts = [split(first), split(second)]
    pruned = [Summary.of(*part).prune(b) for part, b in zip(parts, (budget1, budget2), strict=True)]
    merged = pruned[0].merge(pruned[1])
    values, weights = (np.concatenate(both) for both in zip(*parts, strict=True))
    assert not violations(merged, values, weights)
    assert merged.error <= max(part.error for part in pruned) + 1e-12  # Theorem 2.6.1
    other_way = pruned[1].merge(pruned[0])
    for field in dataclasses.fields(Summary):
        np.testing.assert_array_equal(getattr(merged, field.name), getattr(other_way, field.name))


@FEW
@given(MULTISETS, st.integers(1, 30), st.integers(1, 10))
def test_prune_adds_at_most_one_in_budget(pairs, first, second):
    values, weights = split(pairs)
    summary = Summary.of(values, weights)
    for budget in (first, second):
        pruned = summary.prune(budget)
        assert not violations(pruned, values, weights)
        assert len(pruned) <= budget + 1
        assert pruned.error <= summary.error + 1 / budget + 1e-12  # Theorem 2.6.2
        summary = pruned


@FEW
@given(MULTISETS, st.integers(1, 15), st.floats(0, 1))
def test_query_finds_a_point_near_the_rank(pairs, budget, share):
    values, weights = split(pairs)
    summary = Summary.of(values, weights).prune(budget)
    rank = share * summary.total
    below, through, weight = summary.bounds(summary.query(rank))
    slack = summary.error / 2 * summary.total + 1e-9
    assert through - weight - slack <= rank <= below + weight + slack  # Lemma 2.6.4


@FEW
@given(st.lists(MULTISETS, min_size=1, max_size=9), st.integers(2, 20))
def test_a_stream_and_shards_keep_to_the_bound(blocks, budget):
    sketch_of_all = Sketch(budget)
    shards = []
    for block in blocks:
        values, weights = split(block)
        sketch_of_all.push(values, weights)
        shard = Sketch(budget)
        shard.push(values, weights)
        shards.append(Summary.from_array(shard.summary().to_array()))
    values, weights = (np.concatenate(both) for both in zip(*map(split, blocks), strict=True))
    for summary, bound in ((sketch_of_all.summary(), sketch_of_all.bound), (merge_all(shards), 1 / budget)):
        assert not violations(summary, values, weights)
        assert summary.error <= bound + 1e-12
    assert sketch_of_all.bound <= (1 + np.log2(len(blocks))) / budget


def test_a_long_stream_answers_within_its_bound():
    random = np.random.default_rng(0)
    values = random.normal(size=200_000).astype(np.float32)
    weights = random.integers(0, 100, len(values)).astype(np.float64)
    stream = Sketch(200)
    for part in range(0, len(values), 1 << 13):
        stream.push(values[part : part + (1 << 13)], weights[part : part + (1 << 13)])
    summary = stream.summary()
    assert stream.bound == 5 / 200
    assert len(summary) < 5 * 201
    for share in np.linspace(0, 1, 41):
        point = np.float32(summary.query(share * summary.total))
        low, high, _ = ranks(values, weights, point)
        assert low - stream.bound * summary.total <= share * summary.total <= high + stream.bound * summary.total


@pytest.mark.parametrize("mutation", ["skip", "shift", "ends"])
def test_the_checks_find_a_wrong_prune(mutation, monkeypatch):
    """Each mutated prune must break a bound on some of a few random multisets."""
    right = sketch._query

    def wrong(below, through, weight, wanted):
        found = right(below, through, weight, wanted)
        last = len(below) - 1
        if mutation == "skip":  # every third query forgotten, ends kept
            return np.concatenate([found[:1], found[2:-1:3], found[-1:]])
        if mutation == "shift":
            return np.append(np.minimum(found + 2, last)[1:], 0)
        return found[1:]

    monkeypatch.setattr(sketch, "_query", wrong)
    random = np.random.default_rng(1)
    for _ in range(50):
        values = random.integers(-20, 21, 60).astype(np.float32)
        weights = random.integers(1, 9, 60).astype(np.float64)
        summary = Summary.of(values, weights)
        pruned = summary.prune(8)
        if violations(pruned, values, weights) or pruned.error > 1 / 8:
            return
    pytest.fail("a wrong prune passed every check")


def test_the_checks_find_a_wrong_merge():
    values, weights = np.arange(6, dtype=np.float32), np.ones(6)
    evens, odds = Summary.of(values[::2]), Summary.of(values[1::2])
    right = evens.merge(odds)
    assert not violations(right, values, weights)
    wrong = dataclasses.replace(right, below=right.below + (right.value == 3))
    assert violations(wrong, values, weights)


def test_candidates_divide_the_weight_evenly():
    random = np.random.default_rng(2)
    values, weights = random.normal(size=20_000).astype(np.float32), random.random(20_000)
    summary = Summary.of(values, weights)
    candidates = summary.candidates(16)
    edges = np.searchsorted(candidates, values, side="right")
    shares = np.bincount(edges, weights) / weights.sum()
    assert len(shares) == 16
    assert np.abs(shares - 1 / 16).max() < 1e-3
    np.testing.assert_array_equal(Summary.of([3, 1, 2, 2]).candidates(4), [2, 3])


def test_missing_and_weightless_values_are_left_out():
    summary = Summary.of([np.nan, 1, -0.0, 0.0, 5], [1, 2, 3, 4, 0])
    np.testing.assert_array_equal(summary.value, [0, 1])
    np.testing.assert_array_equal(summary.weight, [7, 2])
    assert len(Summary.of([np.nan])) == 0
    assert Summary.of([]).merge(summary) is summary
    assert summary.merge(EMPTY) is summary
    assert EMPTY.total == EMPTY.error == 0


@pytest.mark.parametrize(
    ("weights", "message"), [([1], "2 values have 1 weights"), ([1, -1], "not negative"), ([1, np.inf], "finite")]
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        Summary.of([1, 2], weights)


def test_bad_arguments_are_refused():
    summary = Summary.of([1, 2, 3])
    with pytest.raises(ParameterError, match="budget is 0"):
        summary.prune(0)
    with pytest.raises(ParameterError, match="budget is 0"):
        Sketch(0)
    with pytest.raises(ParameterError, match="must lie in"):
        summary.query(4)
    with pytest.raises(DataError, match="no points"):
        EMPTY.query(0)
    flat = summary.to_array()
    for damaged in (flat[:-1], flat[::-1], flat.reshape(4, 3), np.where(flat == 3, np.nan, flat)):
        with pytest.raises(DataError, match="quantile summary"):
            Summary.from_array(damaged)

"""Replayed searches: small spaces, tables as files, and what stopping rules make of measured runs."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest

from benchmarks import replay
from benchmarks.study import CHANCE, search
from benchmarks.tables import BMM, RUNS, KernelTable, Replayed, few_values, load, small_kernel
from burnish.kernels.task import ScheduleSpace
from burnish.tune.evaluate.stopping import Adaptive, Fixed


def test_few_values_are_the_larger_ones_and_the_defaults() -> None:
    space = ScheduleSpace({"a": (1, 2, 3, 4, 6, 8), "b": ("x", "y"), "c": (1, 2)}, {"a": 2, "b": "y", "c": 2})
    small = few_values(space, {"a": 3, "c": 5})
    assert small.knobs == {"a": [3, 6, 8], "b": ["y"], "c": [1, 2]}
    assert small.default == {"a": 3, "b": "y", "c": 1}


@pytest.fixture(scope="module")
def table() -> KernelTable:
    """A table of the batched product whose candidates cost what their second knob says, one of them failing."""
    space = small_kernel(BMM).space
    points = space.space.at(np.arange(space.size)).astype(float)
    seconds = (1e-3 * (1 + (points**2).sum(axis=1))).tolist()
    seconds[0] = inf
    times = [[] if cost == inf else [cost * (1 + 0.5 * (k < 2)) for k in range(RUNS)] for cost in seconds]
    knobs = {knob: list(values) for knob, values in space.alternatives[0].space.knobs.items()}
    return KernelTable(BMM, knobs, seconds, [0.25] * len(seconds), times)


def test_a_table_is_the_same_from_its_file(table: KernelTable, tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    assert load(path) == {}
    path.write_text(json.dumps({"tables": [table.document()]}))
    found = load(path)[BMM]
    assert found.kernel == BMM and found.knobs == table.knobs and found.seconds[0] == inf
    assert np.allclose(found.seconds[1:], table.seconds[1:], rtol=1e-3) and np.allclose(found.times[5], table.times[5])


def test_a_rule_is_replayed_on_the_runs(table: KernelTable) -> None:
    key, last = 7, len(table.seconds) - 1
    cost = table.seconds[key]
    whole, short = Replayed(table, Fixed(RUNS), RUNS), Replayed(table, Adaptive(0.2, least=4, most=RUNS), RUNS)
    assert whole.known[key].measuring == pytest.approx(cost * (RUNS + 1))
    assert whole.known[key].seconds == pytest.approx(cost)
    assert short.known[key].measuring == pytest.approx(5 * cost)  # steady after the four that it asks for
    assert short.known[key].seconds == pytest.approx(1.25 * cost)
    reckoned = Replayed(table, runs=500).known[last]
    assert reckoned.measuring == pytest.approx(500 * table.seconds[last]) and reckoned.building == 0.25
    assert whole.known[0].seconds == inf


def test_a_table_of_another_space_is_refused(table: KernelTable) -> None:
    other = KernelTable(BMM, {**table.knobs, "vectors": [1, 999]}, table.seconds, table.building)
    with pytest.raises(ValueError, match="BMM: the table's knobs are of another space"):
        Replayed(other)


def test_a_search_on_a_table_costs_what_its_candidates_do(table: KernelTable) -> None:
    oracle = Replayed(table)
    found = search(CHANCE.with_(batch=8), 0, len(table.seconds), oracle)
    assert found.best[-1] == min(table.seconds) and (np.diff(found.best) <= 0).all()
    spent = sum(each.building + each.measuring for each in oracle.known.values())
    assert found.clock[-1] * (found.building + found.measuring) == pytest.approx(spent)


def test_the_interval_is_around_the_median() -> None:
    middle, low, high = replay.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert middle == 3.0 and 1.0 <= low < 3.0 < high <= 5.0
    assert replay.interval([2.0]) == (2.0, 2.0, 2.0)

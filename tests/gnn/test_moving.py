"""Repartitioning in training: ranges move when it pays, states stay, and what turns out slower is taken back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from burnish.comm.local import launch
from burnish.comm.protocol import Comm
from burnish.gnn.data.cost import FeatureSums
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.generators import block_model
from burnish.gnn.data.partition import Graphs, Partitioner, equal_edges, equal_vertices
from burnish.gnn.run.feeds import Whole
from burnish.gnn.run.moving import Learner, Moving
from burnish.gnn.run.train import Made

EPOCHS, TIMEOUT = 64, 60.0


def skewed() -> CSR:
    return block_model(2000, 40_000, 4, seed=2, densities=[1, 2, 4, 30], shuffle=False).csr


def costs(csr: CSR, of_vertices: float) -> np.ndarray:
    """Seconds of all vertices before each, of which each costs as much as so many edges."""
    return 1e-4 * (csr.offsets + of_vertices * np.arange(csr.rows + 1))


class Share:
    """A step that takes the seconds of its range, and counts its calls in a state."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.state = seconds, {"calls": np.zeros(())}
        self.inputs, self.states, self.memory, self.info = (), (), {}, {}

    def __call__(self, *arrays: np.ndarray) -> float:
        self.state["calls"] = self.state["calls"] + 1
        return 0.0


def trained(comm: Comm, csr: CSR, costs_of: Callable[[np.ndarray], np.ndarray], epochs: int, building: float) -> Any:
    closed: list[int] = []
    built: list[list[int]] = []

    def make(cuts: np.ndarray, stack: ExitStack) -> Made:
        built.append([int(c) for c in cuts])
        stack.callback(closed.append, len(built))
        begin, end = cuts[comm.rank], cuts[comm.rank + 1]
        before = costs_of(cuts)
        step = Share(float(before[end] - before[begin]))
        return Made(step, Whole({"label": np.zeros(int(end - begin), np.int64)}))

    graph = Graphs((FeatureSums.of(csr, 8),))
    learner = Learner(Partitioner((8,)), graph)
    with Moving(comm, make, equal_vertices(csr.rows, comm.size), epochs, csr.rows, learner) as moving:
        step, source = moving.step, moving.source
        facts = source.facts()
        for epoch in range(epochs):
            moving._building = building
            (batch,) = source.epoch(epoch)
            assert len(batch["label"]) == moving.cuts[comm.rank + 1] - moving.cuts[comm.rank]
            step(*batch.values())
        assert source.facts() == facts == {"shapes": {"label": [csr.rows]}}
    return SimpleNamespace(built=built, calls=float(step.state["calls"]), closed=closed, moves=moving.moves)


def slowest(before: np.ndarray, cuts: list[int]) -> float:
    return float(max(before[end] - before[begin] for begin, end in itertools.pairwise(cuts)))


def test_ranges_move_while_it_pays() -> None:
    csr = skewed()
    before = costs(csr, 5.0)
    found = launch(trained, [(csr, lambda cuts: before, EPOCHS, 0.01)] * 3, "thread", TIMEOUT)
    first = found[0]
    assert all(other.built == first.built for other in found), "all workers decide alike"
    assert 1 <= first.moves <= 4
    assert first.calls == EPOCHS, "states stay"
    assert first.closed == [*range(1, len(first.built) + 1)], "each share is closed, the last one too"
    mean = before[-1] / 3
    assert slowest(before, first.built[0]) > 1.5 * mean
    assert slowest(before, first.built[-1]) < 1.03 * mean


@pytest.mark.parametrize("epochs, building", [(EPOCHS, 1e4), (2, 0.0)], ids=["too dear", "too late"])
def test_ranges_stay_where_it_does_not_pay(epochs: int, building: float) -> None:
    csr = skewed()
    before = costs(csr, 5.0)
    found = launch(trained, [(csr, lambda cuts: before, epochs, building)] * 2, "thread", TIMEOUT)
    assert found[0].moves == 0 and len(found[0].built) == 1


def test_what_turned_out_slower_is_taken_back() -> None:
    """Any other partition than the first takes three times as long as the model says."""
    csr = skewed()
    before, start = costs(csr, 5.0), equal_vertices(csr.rows, 2)
    found = launch(
        trained, [(csr, lambda cuts: before * (1 if np.array_equal(cuts, start) else 3), EPOCHS, 0.0)] * 2, "thread",
        TIMEOUT,
    )  # fmt: skip
    assert found[0].moves >= 2
    assert found[0].built[-1] == start.tolist()


def test_features_by_parts_are_those_of_the_whole() -> None:
    csr = skewed()
    whole = FeatureSums.of(csr, 16, cached=1 << 12)
    for cuts in ([0, 700, 701, 701, 2000], equal_edges(csr, 5).tolist()):
        parts = (csr.slice(begin, end) for begin, end in itertools.pairwise(cuts))
        np.testing.assert_array_equal(FeatureSums.of_parts(parts, csr.rows, 16, cached=1 << 12).sums, whole.sums)

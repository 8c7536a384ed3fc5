"""The partitioner: cuts against exhaustive ones, what it learns, when it moves, and its baselines."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import DataError, ParameterError
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.generators import block_model, rmat
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.partition import (
    Graphs,
    LayerSeconds,
    Partitioner,
    balanced,
    checked_cuts,
    equal_edges,
    equal_vertices,
    learn,
    level,
    occupied,
    pieces_of,
)  # fmt: skip

VERTEX, EDGE = 2e-6, 3e-8


def mixed() -> Graph:
    """Half of the vertices have few edges, the others many."""
    return block_model(4000, 120_000, 2, seed=1, densities=[1, 12], shuffle=False)


def seconds_of(csr: CSR, layers: int = 1, cuts=None, hidden: float = 0.0) -> np.ndarray:
    """A cost that is linear in vertices and edges, but for what is hidden: the last third of the vertices is slower."""
    out = []
    for begin, end in itertools.pairwise(cuts.tolist()):
        late = max(0, end - max(begin, 2 * csr.rows // 3))
        edges = int(csr.offsets[end] - csr.offsets[begin])
        out.append(VERTEX * (end - begin + hidden * late) + EDGE * edges + 1e-12)
    return np.array([out] * layers) * np.arange(1, layers + 1)[:, None]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 6))
def test_cuts_are_the_nearest_to_equal_shares(costs: list[int], parts: int) -> None:
    sums = np.concatenate([[0], np.cumsum(costs)])
    cuts = balanced(lambda v: float(sums[v]), len(costs), parts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(costs), parts + 1)
    assert (np.diff(cuts) >= 0).all()
    for part, cut in enumerate(cuts[1:-1].tolist(), 1):
        share = sums[-1] * part / parts
        assert abs(sums[cut] - share) <= np.abs(sums - share).min() + 1e-9


@given(st.lists(st.integers(0, 30), min_size=0, max_size=8), st.integers(18, 30), st.integers(1, 2))
def test_no_range_is_empty_where_there_are_vertices(inner: list[int], vertices: int, least: int) -> None:
    cuts = np.array([0, *sorted(min(cut, vertices) for cut in inner), vertices])
    found = occupied(cuts, least)
    assert (found[0], found[-1]) == (0, vertices)
    assert (np.diff(found) >= least).all()
    if (np.diff(cuts) >= least).all():
        np.testing.assert_array_equal(found, cuts)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 5))
def test_the_dearest_range_costs_the_least_that_it_can(costs: list[int], parts: int, each: int) -> None:
    """Beside all contiguous ranges, of costs that are no sums."""

    def cost(begin: int, end: int) -> float:
        return float(sum(costs[begin:end]) + each * len({*costs[begin:end]}))

    def dearest(cuts: np.ndarray) -> float:
        return max(cost(begin, end) for begin, end in itertools.pairwise(cuts))

    cuts = level(cost, len(costs), parts)
    assert checked_cuts(cuts, len(costs)).shape == (parts + 1,)
    inner = itertools.combinations_with_replacement(range(len(costs) + 1), parts - 1)
    assert dearest(cuts) == min(dearest([0, *some, len(costs)]) for some in inner)


def test_few_costs_are_looked_at() -> None:
    asked = []

    def cost(v: int) -> float:
        asked.append(v)
        return float(v)

    balanced(cost, 10_000_000, 8)
    assert len(asked) <= 1 + 7 * (24 + 2)


def test_baselines() -> None:
    assert equal_vertices(10, 4).tolist() == [0, 2, 5, 7, 10]
    assert equal_vertices(2, 4).tolist() == [0, 0, 1, 1, 2]
    graph = rmat(3000, 40_000)
    edges = np.diff(graph.offsets[equal_edges(graph.csr, 4)])
    assert edges.max() <= graph.edges / 4 + graph.in_degrees.max()
    assert equal_edges(CSR.from_edges([], [], 5), 2).tolist() == [0, 0, 5]


def test_what_is_learned_balances_where_equal_shares_do_not() -> None:
    graph = mixed()
    slowest = {}
    for parts in (4, 8):
        partitioner = Partitioner((64,))
        features = partitioner.features(graph.csr)
        starts = [equal_vertices(graph.vertices, parts), equal_edges(graph.csr, parts)]
        partitioner, best = learn(partitioner, features, lambda cuts: seconds_of(graph.csr, cuts=cuts), starts, 1)
        baselines = [LayerSeconds(cuts, seconds_of(graph.csr, cuts=cuts)).workers.max() for cuts in starts]
        slowest[parts] = best.workers.max()
        assert best.balance > 0.99
        assert min(baselines) > 1.2 * slowest[parts]
        np.testing.assert_allclose(
            partitioner.predict(features, best.cuts), seconds_of(graph.csr, cuts=best.cuts), rtol=0.02
        )
    assert slowest[8] < 0.6 * slowest[4]


def test_layers_are_balanced_together_and_priced_apart() -> None:
    graph = mixed()
    partitioner = Partitioner((602, 16))
    features = partitioner.features(graph.csr)
    cuts = equal_edges(graph.csr, 6)
    partitioner = partitioner.learned(features, LayerSeconds(cuts, seconds_of(graph.csr, 2, cuts)))
    found = partitioner.cuts(features, 6)
    predicted = partitioner.predict(features, found)
    assert predicted.shape == (2, 6)
    np.testing.assert_allclose(predicted[1], 2 * predicted[0], rtol=1e-3)
    assert LayerSeconds(found, seconds_of(graph.csr, 2, found)).balance > 0.98


def test_pieces_of_ranges_are_points_of_the_model() -> None:
    graph = mixed()
    partitioner = Partitioner((64,))
    features = partitioner.features(graph.csr)
    starts = [equal_vertices(graph.vertices, 3), np.array([0, 0, 5, graph.vertices])]

    def measure(cuts: np.ndarray) -> np.ndarray:
        return np.maximum(seconds_of(graph.csr, cuts=cuts), 1e-9)

    learned, best = learn(partitioner, features, measure, starts, 2, pieces=4)
    assert len(best.cuts) == 4
    np.testing.assert_allclose(best.seconds, seconds_of(graph.csr, cuts=best.cuts), rtol=1e-6)
    assert best.balance > 0.98
    known = learned.models[0].seconds
    assert known is not None and len(known) > 3 * 4 * 2
    fine = pieces_of(features, starts[0], 4)
    assert fine[::4].tolist() == starts[0].tolist()
    edges = np.diff(graph.csr.offsets[fine]).reshape(3, 4)
    assert (np.ptp(edges, axis=1) <= 2 * graph.csr.degrees.max()).all()


def test_one_graph_teaches_partitions_of_another() -> None:
    partitioner = Partitioner((32,))
    seen, unseen = mixed(), block_model(2500, 60_000, 3, seed=9, densities=[8, 1, 3], shuffle=False)
    features = partitioner.features(seen.csr)
    for parts in (4, 6):
        for cuts in (equal_vertices(seen.vertices, parts), equal_edges(seen.csr, parts)):
            partitioner = partitioner.learned(features, LayerSeconds(cuts, seconds_of(seen.csr, cuts=cuts)))
    plain = json.loads(json.dumps(partitioner.to_json()))
    cuts = Partitioner.from_json(plain).cuts(partitioner.features(unseen.csr), 4)
    assert LayerSeconds(cuts, seconds_of(unseen.csr, cuts=cuts)).balance > 0.98


def test_measurements_of_this_graph_correct_what_the_model_cannot_see() -> None:
    graph = mixed()

    def measure(cuts: np.ndarray) -> np.ndarray:
        return seconds_of(graph.csr, cuts=cuts, hidden=4.0)

    partitioner = Partitioner((64,))
    features = partitioner.features(graph.csr)
    cuts = equal_edges(graph.csr, 6)
    partitioner = partitioner.learned(features, LayerSeconds(cuts, measure(cuts)))
    alone = LayerSeconds(cuts := partitioner.cuts(features, 6), measure(cuts))
    near = alone
    for _ in range(3):
        near = LayerSeconds(cuts := partitioner.cuts(features, 6, near), measure(cuts))
    assert alone.balance < 0.9
    assert near.balance > 0.95


def test_moves_happen_where_they_pay() -> None:
    graph = mixed()
    partitioner = Partitioner((64,))
    features = partitioner.features(graph.csr)
    cuts = equal_vertices(graph.vertices, 4)
    now = LayerSeconds(cuts, seconds_of(graph.csr, cuts=cuts))
    partitioner = partitioner.learned(features, now)
    move = partitioner.move(features, now, epochs=100, seconds=0.05)
    assert move.pays
    assert move.before == now.workers.max()
    assert move.after < move.before
    gain = move.before - move.after
    assert not partitioner.move(features, now, epochs=100, seconds=101 * gain).pays
    assert not partitioner.move(features, now, epochs=0, seconds=0.0).pays
    level = LayerSeconds(move.cuts, seconds_of(graph.csr, cuts=move.cuts))
    assert not partitioner.learned(features, level).move(features, level, epochs=10**6, seconds=0.0).pays


def test_ranges_may_be_empty() -> None:
    csr = CSR.from_edges([0, 1, 2], [1, 2, 0], 3)
    partitioner = Partitioner((4,))
    features = partitioner.features(csr)
    cuts = equal_vertices(3, 5)
    seconds = np.where(np.diff(cuts) > 0, 1e-6, 0.0)[None]
    partitioner = partitioner.learned(features, LayerSeconds(cuts, seconds))
    assert checked_cuts(partitioner.cuts(features, 5), 3)[-1] == 3
    assert checked_cuts(partitioner.cuts(features, 5, LayerSeconds(cuts, seconds)), 3)[-1] == 3


def test_wrong_arguments_are_refused() -> None:
    csr = CSR.from_edges([0, 1, 2], [1, 2, 0], 3)
    partitioner = Partitioner((4,))
    features = partitioner.features(csr)
    with pytest.raises(ParameterError, match="nothing was measured"):
        partitioner.cuts(features, 2)
    for cuts in ([0, 2], [1, 3], [0, 2, 1, 3], [0]):
        with pytest.raises(DataError, match=r"cuts: found .*; allowed: 0 to 3, ascending"):
            partitioner.learned(features, LayerSeconds(np.array(cuts), np.ones((1, max(1, len(cuts) - 1)))))
    with pytest.raises(DataError, match=r"seconds of shape \(2, 1\); allowed: \(1, 1\)"):
        partitioner.learned(features, LayerSeconds(np.array([0, 3]), np.ones((2, 1))))
    with pytest.raises(ParameterError, match=r"widths \(\)"):
        Partitioner(())
    with pytest.raises(ParameterError, match="found 0 parts"):
        equal_vertices(3, 0)
    with pytest.raises(DataError, match="cannot be read"):
        Partitioner.from_json({"widths": [1]})
    assert isinstance(features, Graphs)
    assert not partitioner.ready

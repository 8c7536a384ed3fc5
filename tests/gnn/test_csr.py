"""Rows of in-edges against a plain dictionary of edges."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import DataError, ParameterError
from burnish.gnn.data.csr import CSR

GRAPHS = st.integers(1, 8).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30))
)


def ends(edges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(edges, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def listed(csr: CSR) -> list[tuple[int, int]]:
    """(source, target) of all edges, ascending."""
    return [(int(u), v) for v in range(csr.rows) for u in csr.sources[csr.offsets[v] : csr.offsets[v + 1]]]


def by_target(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(edges, key=lambda edge: (edge[1], edge[0]))


@given(GRAPHS)
def test_edges_in_any_order_become_ascending_rows(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    assert listed(CSR.from_edges(*ends(edges), n, duplicates="keep")) == by_target(edges)
    assert listed(CSR.from_edges(*ends(edges), n)) == by_target(list(set(edges)))
    without = CSR.from_edges(*ends(edges), n, self_loops="remove")
    assert listed(without) == by_target([(u, v) for u, v in set(edges) if u != v])
    assert listed(CSR.from_edges(*ends(edges), n).without_self_loops()) == listed(without)


@given(GRAPHS)
def test_duplicates_are_counted_as_weights(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    csr = CSR.from_edges(*ends(edges), n, duplicates="count")
    assert csr.weights is not None
    assert dict(zip(listed(csr), csr.weights.tolist(), strict=True)) == Counter(edges)


@given(GRAPHS)
def test_symmetrized_graphs_have_the_reverse_of_every_edge(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    both = by_target(list({*edges, *((v, u) for u, v in edges)}))
    for csr in (CSR.from_edges(*ends(edges), n, symmetrize=True), CSR.from_edges(*ends(edges), n).symmetrized()):
        assert listed(csr) == both
        assert csr.symmetric
        assert csr.transpose is csr


@given(GRAPHS)
def test_symmetry_is_seen(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    csr = CSR.from_edges(*ends(edges), n, duplicates="keep")
    assert csr.symmetric == (Counter(edges) == Counter((v, u) for u, v in edges))
    weighted = CSR(csr.offsets, csr.sources, n, np.arange(csr.edges))
    assert not weighted.symmetric or csr.edges <= 1 or all(u == v for u, v in edges)


@given(GRAPHS)
def test_transposes_reverse_edges_and_carry_their_weights(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    plain = CSR.from_edges(*ends(edges), n)
    csr = CSR(plain.offsets, plain.sources, n, np.arange(plain.edges) + 1)
    assert listed(csr.transpose) == by_target([(v, u) for u, v in set(edges)])
    if csr.transpose is not csr:
        np.testing.assert_array_equal(csr.transpose.transpose.weights, csr.weights)


@given(GRAPHS)
def test_self_loops_are_added_once(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    wanted = by_target(list({*edges, *((v, v) for v in range(n))}))
    assert listed(CSR.from_edges(*ends(edges), n, self_loops="add")) == wanted
    counted = CSR.from_edges(*ends(edges), n, duplicates="count").with_self_loops()
    assert counted.weights is not None
    has = dict(zip(listed(counted), counted.weights.tolist(), strict=True))
    assert has == {edge: max(1, Counter(edges)[edge]) for edge in wanted}


@given(GRAPHS, st.randoms())
def test_permutations_rename_vertices(case: tuple[int, list[tuple[int, int]]], random) -> None:
    n, edges = case
    new = list(range(n))
    random.shuffle(new)
    weights = np.arange(len(edges))
    csr = CSR.from_edges(*ends(edges), n, weights)
    renamed = csr.permuted(new)
    assert renamed.weights is not None and csr.weights is not None
    wanted = {(new[u], new[v]): w for (u, v), w in zip(listed(csr), csr.weights, strict=True)}
    assert dict(zip(listed(renamed), renamed.weights, strict=True)) == wanted


def test_slices_hold_the_rows_of_a_range() -> None:
    csr = CSR.from_edges([0, 1, 2, 3, 0], [1, 1, 2, 3, 3], 4, [1, 2, 3, 4, 5])
    part = csr.slice(1, 3)
    assert (part.rows, part.columns, listed(part), part.degrees.tolist()) == (2, 4, [(0, 0), (1, 0), (2, 1)], [2, 1])
    assert part.weights is not None and part.weights.tolist() == [1, 2, 3]
    with pytest.raises(ParameterError, match="rows: found 3 to 5; allowed: ascending, 0 to 4"):
        csr.slice(3, 5)
    with pytest.raises(ParameterError, match="2 rows of 4 columns"):
        part.with_self_loops()


def test_pairs_are_used_up() -> None:
    pairs = [(np.array([0, 2], np.int32), np.array([1, 2], np.int32)), (np.array([1], np.int32),) * 2]
    pairs.append((np.array([1, 3], np.int32), np.array([0, 1], np.int32)))
    assert listed(CSR.from_pairs(pairs, 4)) == [(1, 0), (0, 1), (3, 1), (1, 3)]
    assert pairs == []


def test_arrays_cannot_be_written() -> None:
    csr = CSR.from_edges([0], [1], 2, [3.0])
    for array in (csr.offsets, csr.sources, csr.weights, csr.transpose.sources):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ([0, 5], [1, 1], {}, "edge 1: found 5 → 1; allowed: vertices 0 to 2"),
        ([0, 1], [1, -1], {}, "edge 1: found 1 → -1"),
        ([0], [1, 1], {}, r"\(1,\) sources, \(2,\) targets"),
        ([0.5], [1], {}, "sources: found float64"),
        ([[0]], [[1]], {}, r"shape \(1, 1\); allowed: integers"),
        ([0, 1, 0], [1, 2, 1], {"duplicates": "refuse"}, "the edge 0 → 1 twice; allowed: once"),
        ([0], [1], {"weights": [np.nan]}, "weights: found nan of edge 0; allowed: finite"),
        ([0], [1], {"weights": [1, 2]}, r"weights: found int64 of shape \(2,\)"),
    ],
)
def test_wrong_edges_are_refused(source, target, options, message) -> None:
    with pytest.raises(DataError, match=message):
        CSR.from_edges(source, target, 3, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vertices": -1}, "vertices: found -1"),
        ({"vertices": 2**31}, "vertices: found 2147483648; allowed: an integer from 0 to 2147483647"),
        ({"vertices": 2, "self_loops": "none"}, "self_loops: found 'none'; allowed: keep, add, remove"),
        ({"vertices": 2, "duplicates": "sum"}, "duplicates: found 'sum'; allowed: remove, count, keep, refuse"),
    ],
)
def test_wrong_options_are_refused(options, message) -> None:
    with pytest.raises(ParameterError, match=message):
        CSR.from_edges([0], [1], **options)


@pytest.mark.parametrize(
    ("offsets", "sources", "message"),
    [
        ([0, 2, 1, 3], [0, 1, 2], "offsets: found 2 before 1; allowed: ascending"),
        ([0, 5, 2, 3], [0, 1, 2], "offsets: found 0 before 5"),
        ([1, 2, 3, 3], [0, 1, 2], "offsets: found 1 to 3; allowed: 0 to 3"),
        ([0, 1, 2, 2], [0, 1, 2], "offsets: found 0 to 2; allowed: 0 to 3"),
        ([], [], "offsets: found nothing"),
        ([0, 1, 2, 3], [0, 3, 1], "vertex 1 has an edge from 3; allowed: 0 to 2"),
        ([0, 1, 2, 3], [0, -1, 1], "vertex 1 has an edge from -1"),
        ([0, 0, 2, 3], [2, 1, 1], "vertex 1: found source 1 after 2; allowed: ascending in every row"),
        ([0, 1, 2, 3], [0, 2**40, 1], "sources: found 0 to 1099511627776"),
    ],
)
def test_wrong_rows_are_refused(offsets, sources, message) -> None:
    with pytest.raises(DataError, match=message):
        CSR(np.array(offsets, np.int64), np.array(sources, np.int64), 3)


def test_a_graph_may_have_no_vertices_and_no_edges() -> None:
    for n in (0, 3):
        csr = CSR.from_edges([], [], n, symmetrize=True)
        assert (csr.rows, csr.edges, csr.symmetric) == (n, 0, True)
        assert csr.with_self_loops().edges == n
        assert csr.permuted(np.arange(n)[::-1]).edges == 0


def test_wrong_permutations_are_refused() -> None:
    csr = CSR.from_edges([0], [1], 3)
    for wrong in ([0, 1], [0, 1, 1], [0, 1, 3], [0, 1, -1]):
        with pytest.raises(DataError, match=r"permutation: found . numbers; allowed: each of 0 to 2, once"):
            csr.permuted(wrong)

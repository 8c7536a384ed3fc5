"""Graphs with features, labels and masks: what belongs to a vertex stays with it, and what does not fit is refused."""

import numpy as np
import pytest

from burnish.errors import DataError, InputError, ParameterError
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.graph import Graph, TakenRows
from burnish.gnn.data.rows import MadeRows, blocks, check_finite


def small(**fields) -> Graph:
    standard = {
        "features": np.arange(8, dtype=np.float64).reshape(4, 2), "labels": [0, 1, 2, -1],
        "train": np.array([True, True, False, False]), "test": np.array([False, False, True, False]),
    }  # fmt: skip
    return Graph(CSR.from_edges([0, 1, 2, 0], [1, 2, 0, 2], 4), **(standard | fields))


def test_sizes_and_facts() -> None:
    graph = small()
    assert (graph.vertices, graph.edges, graph.width, graph.classes, graph.multilabel) == (4, 4, 2, 3, False)
    assert graph.in_degrees.tolist() == [1, 1, 2, 0]
    assert graph.out_degrees.tolist() == [2, 1, 1, 0]
    facts = graph.facts()
    assert facts["isolated"] == 1
    assert facts["masks"] == {"train": 2, "test": 1}
    assert facts["degree"] == {"mean": 1.0, "median": 1.0, "largest": 2}


def test_reordering_moves_all_that_belongs_to_a_vertex() -> None:
    graph, new = small(), np.array([2, 0, 3, 1])
    moved = graph.reordered(new)
    for v in range(4):
        w = new[v]
        neighbours = graph.sources[graph.offsets[v] : graph.offsets[v + 1]]
        assert moved.sources[moved.offsets[w] : moved.offsets[w + 1]].tolist() == sorted(new[neighbours])
        assert moved.rows(w, w + 1).tolist() == graph.rows(v, v + 1).tolist()
        for name in ("labels", "train", "test"):
            assert getattr(moved, name)[w] == getattr(graph, name)[v]
        assert moved.order[w] == v
    assert moved.validation is None
    again = moved.reordered([3, 2, 1, 0])
    assert again.order.tolist() == moved.order[::-1].tolist()
    back = moved.reordered(moved.order)
    assert back.sources.tolist() == graph.sources.tolist()
    assert back.features.tolist() == graph.features.tolist()


def test_subgraphs_keep_the_edges_between_their_vertices() -> None:
    graph = Graph.of(([0, 1, 2, 0, 3], [1, 2, 0, 2, 3]), labels=[0, 1, 2, 3], weights=[1, 2, 3, 4, 5])
    part = graph.subgraph([2, 0])
    assert part.offsets.tolist() == [0, 1, 2]
    assert part.sources.tolist() == [1, 0]
    assert part.weights.tolist() == [4, 3]
    assert (part.labels.tolist(), part.classes, part.order.tolist()) == ([2, 0], 4, [2, 0])
    assert graph.subgraph(np.array([False, False, False, True])).sources.tolist() == [0]
    with pytest.raises(DataError, match="a vertex twice"):
        graph.subgraph([1, 1])
    with pytest.raises(DataError, match="found vertices 1 to 4"):
        graph.subgraph([1, 4])


def test_rows_are_read_from_memory_or_as_they_are_made() -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)

    def make(begin: int, out: np.ndarray) -> None:
        out[:] = table[begin : begin + len(out)]

    made = small(features=MadeRows((4, 3), make))
    for graph in (small(features=table), made):
        assert graph.width == 3
        assert graph.rows(1, 3).tolist() == table[1:3].tolist()
        out = np.zeros((2, 3), np.float32)
        assert graph.rows(2, 4, out) is out
        assert out.tolist() == table[2:].tolist()
        new = np.array([1, 2, 0, 3])
        assert graph.reordered(new).rows(0, 4).tolist() == table[[2, 0, 1, 3]].tolist()
        with pytest.raises(ParameterError, match="rows: found 3 to 5"):
            graph.rows(3, 5)
    with pytest.raises(InputError, match=r"out: found float64 \(2, 3\); allowed: float32 \(2, 3\)"):
        made.rows(0, 2, np.zeros((2, 3)))
    with pytest.raises(ParameterError, match="no features"):
        small(features=None).rows(0, 1)


def test_taken_rows_are_read_in_runs() -> None:
    calls = []

    def make(begin: int, out: np.ndarray) -> None:
        calls.append((begin, len(out)))
        out[:, 0] = np.arange(begin, begin + len(out))

    taken = TakenRows(MadeRows((6, 1), make), np.array([4, 5, 0, 1, 2, 3]))
    assert taken.read(1, 5)[:, 0].tolist() == [5, 0, 1, 2]
    assert calls == [(5, 1), (0, 3)]
    assert taken.read(2, 2).shape == (0, 1)


def test_several_labels_a_vertex() -> None:
    graph = small(labels=np.array([[1, 0], [0, 0], [1, 1], [0, 1]]), features=None)
    assert (graph.multilabel, graph.classes, graph.labels.dtype) == (True, 2, np.uint8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"features": np.array([[0.0, 1]] * 3 + [[1, np.nan]])},
            "features: found nan in row 3, column 1; allowed: fin",
        ),
        ({"features": np.array([[0.0, 1]] * 2 + [[np.inf, 1]] * 2)}, "features: found inf in row 2, column 0"),
        ({"features": np.zeros((3, 2))}, r"features: found float64 of shape \(3, 2\); allowed: numbers \(4, features"),
        ({"features": np.zeros(4)}, "features: found"),
        ({"features": np.array([["a"]] * 4)}, "features: found <U1"),
        ({"labels": [0, 1, 2, -2]}, "labels: found -2 of vertex 3; allowed: 0 to 2, or -1"),
        ({"labels": [0, 1, 5, 0], "classes": 3}, "labels: found 5 of vertex 2; allowed: 0 to 2"),
        ({"labels": [0.0, 1, 1, 0]}, "labels: found float64"),
        ({"labels": [0, 1, 1]}, r"labels: found int64 of shape \(3,\)"),
        ({"labels": [[0, 2]] * 4}, "labels: found 0 to 2 in columns; allowed: 0 and 1"),
        ({"labels": [[0, 1]] * 4, "classes": 3}, "labels: found 2 columns; allowed: 3"),
        ({"train": [0, 1, 2]}, r"train: found int64 of shape \(3,\); allowed: bool \(4,\)"),
        ({"test": np.array([False, False, False, True])}, "test: vertex 3 has no label"),
        ({"order": [0, 1]}, r"order: found shape \(2,\)"),
    ],
)
def test_what_does_not_fit_is_refused(fields, message) -> None:
    with pytest.raises(DataError, match=message):
        small(**fields)


def test_sums_that_overflow_are_no_fault_of_finite_values() -> None:
    check_finite(np.full((3, 2), 3e38, np.float32))
    check_finite(np.array([[3e38, -3e38]], np.float32))


def test_blocks_cover_all_rows() -> None:
    assert blocks((5, 2), 16) == [(0, 2), (2, 4), (4, 5)]
    assert blocks((2, 100), 16) == [(0, 1), (1, 2)]
    assert blocks((0, 3)) == []
    assert blocks((2, 0)) == [(0, 2)]


def test_arrays_of_a_graph_cannot_be_written() -> None:
    graph = small()
    for array in (graph.features, graph.labels, graph.train):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0

"""Graphs from what is in memory: one graph from every kind of object, and refusals that say what was found."""

import importlib.util

import networkx
import numpy as np
import pytest
import torch
from scipy import sparse

import burnish as bn
from burnish.errors import DataError, ParameterError

EDGES = [(0, 1), (2, 1), (2, 0), (1, 3)]
ENDS = np.array(EDGES).T
X, Y = np.arange(10, dtype=np.float64).reshape(5, 2), [0, 1, 2, 1, -1]
of = bn.gnn.Graph.of


def rows(graph: bn.gnn.Graph) -> list[list[int]]:
    """In-neighbours of every vertex."""
    return [graph.sources[a:b].tolist() for a, b in zip(graph.offsets, graph.offsets[1:], strict=False)]


@pytest.mark.parametrize(
    "edges",
    [EDGES, ENDS, ENDS.T, ENDS.tolist(), (*ENDS,), tuple(ENDS.tolist()), torch.tensor(ENDS), (*torch.tensor(ENDS),)],
    ids=["pairs", "2 x E", "E x 2", "lists", "pair", "pair of lists", "tensor", "pair of tensors"],
)
def test_arrays(edges: object) -> None:
    graph = of(edges, X, Y, weights=[1, 2, 3, 4], train=[True, True, False, False, False], validation=[2, 3])
    assert rows(graph) == [[2], [0, 2], [], [1], []]
    assert graph.weights.tolist() == [3, 1, 2, 4]
    assert (graph.features.tolist(), graph.labels.tolist(), graph.classes) == (X.tolist(), Y, 3)
    assert np.flatnonzero(graph.train).tolist() == [0, 1] and np.flatnonzero(graph.validation).tolist() == [2, 3]
    assert of(edges).vertices == 4 and of(edges, vertices=7).vertices == 7


def test_no_edges_and_two() -> None:
    for none in ([], np.zeros((2, 0), int), np.zeros((0, 2), int), ([], [])):
        assert (of(none).vertices, of(none, X).vertices, of(none, X).edges) == (0, 5, 0)
    assert rows(of(([0, 1], [1, 2]))) == [[], [0], [1]]
    with pytest.raises(DataError, match=r"shape \(2, 2\), which may be \(2, edges\) or \(edges, 2\); allowed: for two"):
        of([(0, 1), (1, 2)])


def test_fields_of_other_kinds() -> None:
    assert of(EDGES, sparse.csr_array(X)).features.tolist() == X.tolist()
    assert of(EDGES, torch.tensor(X), torch.tensor(Y)[:, None]).labels.tolist() == Y
    assert of(EDGES, labels=[0, 1, np.nan, 1, 0]).labels.tolist() == [0, 1, -1, 1, 0]
    assert of(EDGES, labels=np.eye(5)[:, :3]).multilabel


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
def test_matrices_have_weights_as_values(form: str) -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0])
    graph = of(sparse.coo_matrix((values, (*ENDS,)), shape=(5, 5)).asformat(form), X)
    assert rows(graph) == [[2], [0, 2], [], [1], []]
    assert graph.weights.tolist() == [3, 1, 2, 4]


def test_entries_of_a_matrix_add_up() -> None:
    twice = sparse.coo_array((np.ones(3), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    assert of(twice).weights.tolist() == [1, 2]
    assert twice.nnz == 3
    assert of(twice != 0).weights is None
    assert of(sparse.coo_array(([2, 3], ([1, 0], [0, 1]))), weights=[5, 7]).weights.tolist() == [5, 7]
    for wrong in (sparse.coo_array((5, 4)), sparse.coo_array([1, 2])):
        with pytest.raises(DataError, match="allowed: a square one"):
            of(wrong)
    with pytest.raises(DataError, match="weights: found complex128"):
        of(twice * 1j)
    with pytest.raises(DataError, match="weights: found nan of edge 0"):
        of(twice * np.nan)


@pytest.mark.parametrize("kind", [networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph])
def test_graphs_of_networkx(kind: type) -> None:
    other = kind()
    for name, row, label in zip("abcde", X, Y, strict=True):
        other.add_node(name, x=row, age=row[1], y=label, known=label == 1)
    other.add_edges_from([("abcde"[u], "abcde"[v]) for u, v in [*EDGES, (4, 4)]])
    graph = of(other, ("x", "age"), "y", train="known")
    directed = [[2], [0, 2], [], [1], [4]]
    assert rows(graph) == (directed if other.is_directed() else [[1, 2], [0, 2, 3], [0, 1], [1], [4]])
    assert graph.weights is None and graph.symmetric is not other.is_directed()
    assert graph.features.tolist() == np.c_[X, X[:, 1]].tolist() and graph.labels.tolist() == Y
    assert graph.train.tolist() == [False, True, False, True, False]
    assert of(other).features is None and of(other, X).width == 2
    assert of(other, "age").features.tolist() == X[:, 1:].tolist()
    with pytest.raises(DataError, match=r"found node 'a' without 'z'; allowed: the attribute at every node"):
        of(other, "z")
    with pytest.raises(DataError, match=r"found edge \('a', 'b'\) without 'z'"):
        of(other, weights="z")
    other.nodes["b"]["x"] = 1.0
    with pytest.raises(DataError, match=r"'x' of node 'b': found shape \(\); allowed: \(2,\)"):
        of(other, "x")


def test_weights_of_networkx() -> None:
    other = networkx.Graph()
    other.add_edge("a", "b", weight=2.0, length=5)
    other.add_edge("b", "c", length=7)
    assert of(other).weights.tolist() == [2, 2, 1, 1]
    assert of(other, weights="length").weights.tolist() == [5, 5, 7, 7]
    assert of(networkx.Graph()).vertices == 0
    several = networkx.MultiDiGraph([(0, 1), (0, 1)])
    assert (of(several).edges, of(several, duplicates="count").weights.tolist()) == (1, [2])


class Data:
    """The attributes that ``Data`` of PyTorch Geometric has, which not every machine has installed."""

    def __init__(self, x: object = None, edge_index: object = None, **others: object) -> None:
        self.x, self.edge_index = x, edge_index
        self.num_nodes = None if x is None else len(x)
        vars(self).update(others)


class HeteroData:
    """Neither edges nor anything else of ``Data``."""


PYG = [(Data, HeteroData)]
if importlib.util.find_spec("torch_geometric"):
    from torch_geometric import data as pyg

    PYG.append((pyg.Data, pyg.HeteroData))


@pytest.mark.parametrize(("Data", "HeteroData"), PYG)
def test_data_of_pyg(Data: type, HeteroData: type) -> None:  # noqa: N803
    attributes = {"edge_attr": torch.tensor([[1.0], [2], [3], [4]]), "train_mask": torch.tensor(Y) == 1}
    data = Data(torch.tensor(X), torch.tensor(ENDS), y=torch.tensor(Y), **attributes)
    graph = of(data)
    assert rows(graph) == [[2], [0, 2], [], [1], []] and graph.weights is None
    assert graph.labels.tolist() == Y and np.flatnonzero(graph.train).tolist() == [1, 3]
    assert of(data, weights="edge_attr").weights.tolist() == [3, 1, 2, 4]
    assert of(data, np.eye(5), train=[0]).width == 5
    with pytest.raises(DataError, match="found no 'z' in Data"):
        of(data, "z")
    with pytest.raises(DataError, match="found Data without edge_index"):
        of(Data(torch.tensor(X)))
    with pytest.raises(DataError, match=rf"found {HeteroData.__module__}\.HeteroData; allowed"):
        of(HeteroData())


@pytest.mark.parametrize(
    ("edges", "more", "message"),
    [
        ("graph.npz", {}, r"edges: found str; allowed: arrays, .*; bn\.gnn\.read has files"),
        (None, {}, "edges: found NoneType"),
        (3, {}, "edges: found int; allowed"),
        ([0, 1, 2], {}, r"edges: found int64 of shape \(3,\); allowed: integers \(2, edges\), \(edges, 2\), or a pair"),
        (np.zeros((4, 3), int), {}, r"edges: found int64 of shape \(4, 3\)"),
        (np.zeros((2, 3, 1), int), {}, r"edges: found int64 of shape \(2, 3, 1\)"),
        ([(0, 1), (1,)], {}, "edges: found rows of different lengths"),
        (([0, 1], [1]), {}, "edges: found rows of different lengths|found .* sources"),
        (ENDS > 0, {}, "edges: found bool"),
        (ENDS * 1.0, {}, "sources: found float64"),
        (ENDS - 1, {}, "edge 0: found -1 → 0; allowed: vertices 0 to 2"),
        (EDGES, {"vertices": 3}, "edge 3: found 1 → 3; allowed: vertices 0 to 2"),
        (EDGES, {"features": X[:3]}, "edge 3: found 1 → 3; allowed: vertices 0 to 2"),
        (EDGES, {"features": X, "vertices": 4}, r"features: found float64 of shape \(5, 2\); allowed: numbers \(4"),
        (EDGES, {"features": X, "labels": Y[:4]}, r"labels: found int64 of shape \(4,\)"),
        (EDGES, {"features": np.where(X == 7, np.nan, X)}, "features: found nan in row 3, column 1"),
        (EDGES, {"features": X[:, 0]}, r"features: found float64 of shape \(5,\)"),
        (EDGES, {"labels": ["a", "b", "c", "d"]}, "labels: found <U1"),
        (EDGES, {"labels": [0, 1.5, 2, 0]}, r"labels: found 1\.5; allowed: integers, or NaN"),
        (EDGES, {"weights": [1, 2, 3]}, r"weights: found int64 of shape \(3,\); allowed: numbers \(4,\)"),
        (EDGES, {"weights": [1, 2, np.inf, 4]}, "weights: found inf of edge 2"),
        (EDGES, {"train": [True, False]}, r"train: found bool of shape \(2,\); allowed: bool \(4,\)"),
        (EDGES, {"test": [0.5]}, "test: found float64"),
        (EDGES, {"validation": [4]}, "validation: found vertices 4 to 4; allowed: below 4"),
        (EDGES, {"labels": [0, -1, 1, 0], "train": [1]}, "train: vertex 1 has no label"),
        (EDGES, {"features": "x"}, "found the name 'x'; allowed: an array, as these edges have no named"),
    ],
)
def test_what_is_no_graph_is_refused(edges: object, more: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        of(edges, **more)


def test_options_are_checked() -> None:
    with pytest.raises(ParameterError, match="vertices: found -1"):
        of(EDGES, vertices=-1)
    with pytest.raises(ParameterError, match="symmetrize: found 1; allowed: True or False"):
        of(EDGES, symmetrize=1)
    with pytest.raises(ParameterError, match="duplicates: found 'sum'"):
        of(EDGES, duplicates="sum")

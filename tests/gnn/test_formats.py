"""Readers of other programs' graphs: the same graph by every door, and refusals that name the file."""

import gzip
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from burnish.errors import DataError
from burnish.gnn.data.formats import read, read_edges, read_ogb
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.store import save

SOURCE, TARGET = np.array([0, 2, 2, 1]), np.array([1, 1, 0, 3])
FEATURES, LABELS = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([0, 1, 2, 1, 0])
TRAIN = np.array([True, False, True, False, False])


def check(graph: Graph, masks: bool = True, fields: bool = True) -> None:
    assert graph.offsets.tolist() == [0, 1, 3, 3, 4, 4]
    assert graph.sources.tolist() == [2, 0, 2, 1]
    assert graph.weights is None
    if fields:
        assert graph.features.tolist() == FEATURES.tolist()
        assert graph.labels.tolist() == LABELS.tolist()
    if masks:
        assert graph.train.tolist() == TRAIN.tolist()
        assert graph.test is None


def test_arrays_of_edges(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, edge_index=np.stack([SOURCE, TARGET]), x=FEATURES, y=LABELS, train_mask=TRAIN)
    check(read(path))
    np.savez(path, source=SOURCE, target=TARGET, features=FEATURES, labels=LABELS.astype(float), train=[2, 0])
    check(read(str(path)))
    np.savez_compressed(path, source=SOURCE, target=TARGET, vertices=5)
    check(read(path), masks=False, fields=False)
    graph = read(path, symmetrize=True)
    assert (graph.edges, graph.symmetric) == (8, True)


def test_rows_of_edges(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    rows = {"offsets": [0, 1, 3, 3, 4, 4], "sources": [2, 0, 2, 1]}
    np.savez(path, **rows, features=FEATURES, labels=LABELS, train=TRAIN)
    check(read(path))
    assert read(path, self_loops="add").edges == 9
    np.savez(path, offsets=[0, 2], sources=[0, 7])
    with pytest.raises(DataError, match="vertex 0 has an edge from 7"):
        read(path)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_matrices_of_scipy(tmp_path: Path, form: str) -> None:
    from scipy import sparse

    matrix = sparse.coo_array((np.ones(4), (SOURCE, TARGET)), shape=(5, 5)).asformat(form)
    check(Graph.of(matrix), masks=False, fields=False)
    sparse.save_npz(tmp_path / "g.npz", matrix)
    check(read(tmp_path / "g.npz"), masks=False, fields=False)
    weighted = Graph.of(matrix * np.float32(0.5))
    assert weighted.weights.tolist() == [0.5] * 4
    with pytest.raises(DataError, match=r"shape \(5, 4\); allowed: a square one"):
        Graph.of(sparse.coo_array((5, 4)))


def test_files_of_the_gnn_benchmark(tmp_path: Path) -> None:
    from scipy import sparse

    held = {}
    for prefix, matrix in (
        ("adj_", sparse.csr_array((np.ones(4), (SOURCE, TARGET)), shape=(5, 5))),
        ("attr_", sparse.csr_array(FEATURES)),
    ):
        for name in ("data", "indices", "indptr", "shape"):
            held[prefix + name] = getattr(matrix, name)
    np.savez(tmp_path / "g.npz", **held, labels=LABELS)
    check(read(tmp_path / "g.npz"), masks=False)


def test_text(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("# a comment\n0 1\n2\t1\n2 0\n1 3\n")
    check(read_edges(tmp_path / "g.txt", vertices=5), masks=False, fields=False)
    assert read(tmp_path / "g.txt").vertices == 4
    (tmp_path / "g.csv").write_text("0,1,0.5\n2,1,2\n")
    graph = read(tmp_path / "g.csv")
    assert (graph.vertices, graph.weights.tolist()) == (3, [0.5, 2])
    (tmp_path / "g.txt").write_text("0 1\n2 x\n")
    with pytest.raises(DataError, match=r"g\.txt' cannot be read"):
        read(tmp_path / "g.txt")
    (tmp_path / "g.txt").write_text("0 1.5\n")
    with pytest.raises(DataError, match=r"found 1\.5; allowed: integers"):
        read(tmp_path / "g.txt")
    (tmp_path / "g.txt").write_text("0 1 2 3\n")
    with pytest.raises(DataError, match="found 4 columns"):
        read(tmp_path / "g.txt")


def ogb(folder: Path, packed: bool = True) -> None:
    def put(name: str, values: np.ndarray) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "\n".join(",".join(f"{value:g}" for value in np.atleast_1d(row)) for row in values) + "\n"
        if packed:
            with gzip.open(f"{path}.csv.gz", "wt") as file:
                file.write(text)
        else:
            Path(f"{path}.csv").write_text(text)

    put("raw/edge", np.stack([SOURCE, TARGET], 1))
    put("raw/num-node-list", np.array([5]))
    put("raw/num-edge-list", np.array([4]))
    put("raw/node-feat", FEATURES)
    put("raw/node-label", LABELS)
    put("split/time/train", np.flatnonzero(TRAIN))
    put("split/time/valid", np.array([1]))


@pytest.mark.parametrize("packed", [True, False])
def test_folders_of_ogb(tmp_path: Path, packed: bool) -> None:
    ogb(tmp_path, packed)
    graph = read(tmp_path)
    check(graph)
    assert graph.validation.tolist() == [False, True, False, False, False]


def test_large_folders_of_ogb(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    edges = np.stack([SOURCE, TARGET])
    np.savez(tmp_path / "raw/data.npz", edge_index=edges, node_feat=FEATURES, num_nodes_list=np.array([5]))
    labels = np.array([0, np.nan, 2, 1, 0])[:, None]
    np.savez(tmp_path / "raw/node-label.npz", node_label=labels)
    graph = read(tmp_path)
    check(graph, masks=False, fields=False)
    assert graph.labels.tolist() == [0, -1, 2, 1, 0]


def test_damaged_folders_of_ogb(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"found no edge\.csv\.gz"):
        read_ogb(tmp_path)
    ogb(tmp_path)
    path = tmp_path / "raw/edge.csv.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"edge\.csv\.gz' cannot be read, it is truncated"):
        read(tmp_path)
    path.write_bytes(whole)
    (tmp_path / "split/random").mkdir()
    with pytest.raises(DataError, match="found random, time; allowed: one split"):
        read(tmp_path)


def test_objects_of_pyg_and_dgl() -> None:
    class Tensor:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def detach(self) -> "Tensor":
            return self

        cpu = detach

        def numpy(self) -> np.ndarray:
            return self.array

    pyg = SimpleNamespace(
        edge_index=Tensor(np.stack([SOURCE, TARGET])), x=Tensor(FEATURES), y=Tensor(LABELS[:, None]),
        train_mask=Tensor(TRAIN), num_nodes=5,
    )  # fmt: skip
    check(Graph.of(pyg))
    dgl = SimpleNamespace(
        edges=lambda: (Tensor(SOURCE), Tensor(TARGET)), num_nodes=lambda: 5, edata={},
        ndata={"feat": Tensor(FEATURES), "label": Tensor(LABELS), "train_mask": Tensor(TRAIN.astype(np.uint8))},
    )  # fmt: skip
    check(Graph.of(dgl))
    dgl.edata["edge_weight"] = Tensor(np.array([1, 2, 3, 4]))
    assert Graph.of(dgl).weights.tolist() == [3, 1, 2, 4]


def test_own_files_and_graphs(tmp_path: Path) -> None:
    graph = Graph.of((SOURCE, TARGET), FEATURES, LABELS, train=TRAIN)
    save(tmp_path / "g.bngraph", graph)
    check(read(tmp_path / "g.bngraph"))
    assert read(tmp_path / "g.bngraph", symmetrize=True).symmetric
    assert read(graph) is graph


def test_what_holds_no_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"found builtins\.int"):
        read(3)
    (tmp_path / "g.onnx").write_text("")
    with pytest.raises(DataError, match=r"found \.onnx"):
        read(tmp_path / "g.onnx")
    path = tmp_path / "g.npz"
    np.savez(path, a=np.array([None], object))
    with pytest.raises(DataError, match="holds objects"):
        read(path)
    np.savez(path, a=[1])
    with pytest.raises(DataError, match="found a; allowed: edges or edge_index"):
        read(path)
    edges = np.stack([SOURCE, TARGET])
    np.savez(path, edges=edges, features=FEATURES, classes=LABELS, train=np.arange(2))
    named = read(path)
    np.savez(path, edge_index=edges, x=FEATURES, y=LABELS, train_mask=np.arange(2))
    assert str(named) == str(read(path)) and np.array_equal(named.labels, LABELS)
    assert np.array_equal(named.features, FEATURES) and named.train.sum() == 2
    np.savez(path, edge_index=np.stack([SOURCE, TARGET], 1))
    with pytest.raises(DataError, match=r"edges of shape \(4, 2\); allowed: \(2, edges\)"):
        read(path)
    np.savez(path, edge_index=np.stack([SOURCE, TARGET]), x=FEATURES, train_idx=[5])
    with pytest.raises(DataError, match="train: found vertices 5 to 5; allowed: below 5"):
        read(path)
    np.savez(path, edge_index=np.stack([SOURCE, TARGET]), labels=LABELS + 0.5)
    with pytest.raises(DataError, match=r"labels: found 0\.5"):
        read(path)
    np.savez(path, edge_index=np.stack([SOURCE, TARGET]), x=FEATURES)
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"g\.npz"):
            read(path)


ROWS = {"indptr": [0, 1, 2], "indices": [0, 1]}
FEW = {f"adj_{name}": value for name, value in ROWS.items()} | {"adj_shape": [2, 2]}


def sparse_features(**changes: object) -> dict[str, object]:
    """A file of two vertices whose features are a sparse matrix."""
    own = {"indptr": [0, 1, 2], "indices": [0, 1], "data": [1.0, 2.0], "shape": [2, 2], **changes}
    return FEW | {f"attr_{name}": value for name, value in own.items()}


def pairs(**fields: object) -> dict[str, object]:
    """A file of the edges, with features."""
    return {"edge_index": np.stack([SOURCE, TARGET]), "x": FEATURES, **fields}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (pairs(edge_index=[[0, 5], [1, 1]]), "edge 1: found 5 → 1; allowed: vertices 0 to 4"),
        (pairs(edge_index=[[0, 1], [1, -1]]), "edge 1: found 1 → -1; allowed: vertices 0 to 4"),
        (pairs(edge_index=[[0.0, 1], [1, 2]]), "sources: found float64"),
        (pairs(vertices=[5, 5]), r"vertices: found int64 of shape \(2,\); allowed: one integer"),
        (pairs(vertices=5.5), "vertices: found float64"),
        (pairs(vertices="many"), r"vertices: found <U4 of shape \(\); allowed: one integer"),
        (pairs(x=np.where(FEATURES == 7, np.nan, FEATURES)), "features: found nan in row 3, column 1"),
        (pairs(x=np.where(FEATURES == 7, 1e300, FEATURES.astype(float))), "features: found inf in row 3, column 1"),
        (pairs(y=[0, 1, 2, -2, 0]), "labels: found -2 of vertex 3; allowed: 0 to 2"),
        (pairs(y=[0, 1, 2**40, 1, 0]), "labels: found 1099511627776 of vertex 2; allowed: 0 to 65535"),
        (pairs(y=[0, 1, 1e9, 1, 0]), "labels: found 1000000000 of vertex 2; allowed: 0 to 65535"),
        (pairs(y=[0, 1, 0.25, 1, 0]), "labels: found 0.25; allowed: integers, or NaN"),
        (pairs(y=[0, 1, np.inf, 1, 0]), "labels: found inf; allowed: integers, or NaN"),
        (pairs(y=[0, 1, -1, 1, 0], train=TRAIN), "train: vertex 2 has no label"),
        (pairs(edge_weight=[1, np.nan, 1, 1]), "weights: found nan of edge 1"),
        ({"offsets": 3, "sources": [0, 1]}, r"offsets: found int64 of shape \(\)"),
        ({"offsets": [0, 2, 1], "sources": [0, 1]}, "offsets: found 0 to 1; allowed: 0 to 2"),
        ({"offsets": [0, 2], "sources": [1, 0], "x": FEATURES[:1]}, "vertex 0 has an edge from 1; allowed: 0 to 0"),
        (ROWS | {"shape": [2]}, r"shape: found \[2\]; allowed: rows and columns"),
        (ROWS | {"shape": [[2]]}, r"shape: found int64 of shape \(1, 1\)"),
        (ROWS | {"data": [1.0], "shape": [2, 2]}, r"data: found shape \(1,\); allowed: \(2,\)"),
        (sparse_features(shape=[2]), r"shape: found \[2\]; allowed: rows and columns"),
        (sparse_features(data=[1.0, 2.0, 3.0]), r"data: found shape \(3,\); allowed: \(2,\)"),
        (sparse_features(indices=[0, 5]), "features: found column 5; allowed: below 2"),
        (sparse_features(indptr=[0, 1, 1, 2]), "features: found row 2; allowed: below 2"),
    ],
)
def test_damaged_arrays_are_refused(tmp_path: Path, held: dict[str, object], message: str) -> None:
    np.savez(tmp_path / "g.npz", **held)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "g.npz")


@pytest.mark.parametrize("number", ["nan", "inf", "1e300", "0.5"])
def test_ends_of_edges_in_texts_are_integers(tmp_path: Path, number: str) -> None:
    (tmp_path / "g.csv").write_text(f"0,1\n2,{number}\n")
    with pytest.raises(DataError, match=rf"edges: found {float(number):g}; allowed: integers".replace("+", r"\+")):
        read(tmp_path / "g.csv")


def test_texts_without_edges(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("# nothing\n")
    assert (read(tmp_path / "g.csv").vertices, read_edges(tmp_path / "g.csv", vertices=3).vertices) == (0, 3)


def test_masks_of_zeros_and_ones_are_masks(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **pairs(y=LABELS, train=TRAIN.astype(np.int64)))
    assert read(tmp_path / "g.npz").train.tolist() == TRAIN.tolist()
    np.savez(tmp_path / "g.npz", **pairs(y=LABELS, train=[0, 1]))
    assert read(tmp_path / "g.npz").train.tolist() == [True, True, False, False, False]


def test_classes_beyond_what_labels_tell_are_stated() -> None:
    labels = np.array([0, 70_000])
    with pytest.raises(DataError, match="labels: found 70000 of vertex 1; allowed: 0 to 65535"):
        Graph.of(([0], [1]), labels=labels)
    assert Graph.of(([0], [1]), labels=labels, classes=70_001).labels.tolist() == [0, 70_000]
    with pytest.raises(DataError, match="classes: found 1099511627776; allowed: 0 to 2147483647"):
        Graph.of(([0], [1]), labels=labels, classes=2**40)

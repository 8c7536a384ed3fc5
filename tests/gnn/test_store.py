"""Binary files of graphs: what is read is what was written, in whole or in parts; damage is named."""

import json
from pathlib import Path

import numpy as np
import pytest

from burnish.errors import DataError, ParameterError
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.rows import FileRows, MadeRows
from burnish.gnn.data.store import ALIGNMENT, GraphFile, load, save

FIELDS = ("features", "labels", "train", "validation", "test", "order", "offsets", "sources", "weights")


def drawn(weights: bool = False, multilabel: bool = False) -> Graph:
    rng = np.random.default_rng(5)
    n = 50
    mask = rng.random(n) < 0.5
    return Graph.of(
        rng.integers(0, n, (2, 300)), weights=rng.random(300) if weights else None,
        features=rng.standard_normal((n, 7)),
        labels=rng.integers(0, 2, (n, 3)) if multilabel else rng.integers(0, 4, n),
        train=mask, validation=~mask,
    ).reordered(rng.permutation(n))  # fmt: skip


@pytest.mark.parametrize("form", ["memory", "file"])
@pytest.mark.parametrize(("weights", "multilabel"), [(False, False), (True, True)])
def test_what_is_read_is_what_was_written(tmp_path: Path, form: str, weights: bool, multilabel: bool) -> None:
    graph = drawn(weights, multilabel)
    save(tmp_path / "g.bngraph", graph)
    found = load(tmp_path / "g.bngraph", features=form)
    for name in FIELDS[1:]:
        wanted, got = getattr(graph, name), getattr(found, name)
        assert (wanted is None) == (got is None), name
        if wanted is not None:
            np.testing.assert_array_equal(got, wanted, err_msg=name)
            assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(found.rows(0, 50), graph.features)
    np.testing.assert_array_equal(found.rows(13, 29), graph.features[13:29])
    assert isinstance(found.features, FileRows) == (form == "file")
    assert (found.classes, found.symmetric) == (graph.classes, graph.symmetric)


def test_sections_begin_at_pages(tmp_path: Path) -> None:
    save(tmp_path / "g.bngraph", drawn(True))
    assert all(section.start % ALIGNMENT == 0 for section in GraphFile.open(tmp_path / "g.bngraph").sections.values())


def test_a_worker_reads_its_own_rows(tmp_path: Path) -> None:
    graph = drawn(True)
    save(tmp_path / "g.bngraph", graph)
    file = GraphFile.open(tmp_path / "g.bngraph")
    part, wanted = file.part(11, 31), graph.csr.slice(11, 31)
    for name in ("offsets", "sources", "weights"):
        np.testing.assert_array_equal(getattr(part, name), getattr(wanted, name))
    np.testing.assert_array_equal(file.read("labels", 11, 31), graph.labels[11:31])
    np.testing.assert_array_equal(file.rows(cached=False).read(11, 31), graph.features[11:31])
    with pytest.raises(ParameterError, match="found 40 to 51"):
        file.part(40, 51)


def test_a_graph_of_nothing_but_edges(tmp_path: Path) -> None:
    for n in (0, 3):
        save(tmp_path / "g.bngraph", Graph.of([], vertices=n))
        found = load(tmp_path / "g.bngraph", features="file")
        assert (found.vertices, found.edges, found.features, found.labels) == (n, 0, None, None)


def test_features_are_written_as_they_are_made(tmp_path: Path) -> None:
    largest = []

    def make(begin: int, out: np.ndarray) -> None:
        largest.append(out.nbytes)
        out[:] = np.arange(begin, begin + len(out))[:, None]

    graph = Graph.of(([0], [1]), MadeRows((30_000, 200), make))
    save(tmp_path / "g.bngraph", graph)
    assert max(largest) <= 8 << 20
    found = load(tmp_path / "g.bngraph", features="file")
    np.testing.assert_array_equal(found.rows(29_990, 30_000)[:, 199], np.arange(29_990, 30_000))


def test_features_that_are_not_finite_are_never_written(tmp_path: Path) -> None:
    def make(begin: int, out: np.ndarray) -> None:
        out[:] = 0
        out[2, 1] = np.nan

    with pytest.raises(DataError, match="features: found nan in row 2, column 1"):
        save(tmp_path / "g.bngraph", Graph.of(([0], [1]), MadeRows((4, 2), make)))
    assert list(tmp_path.iterdir()) == []


def test_every_truncation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "g.bngraph"
    save(path, drawn(True))
    whole = path.read_bytes()
    for size in [0, 3, 8, 12, 16, 40, 5000, *range(8192, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:size])
        for form in ("memory", "file"):
            with pytest.raises(DataError, match=r"g\.bngraph"):
                load(path, features=form)
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=rf"is truncated: found {len(whole) - 1} bytes; allowed: {len(whole)}"):
        load(path)


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "g.bngraph"
    save(path, drawn())
    rows = GraphFile.open(path).rows()
    path.write_bytes(path.read_bytes()[:ALIGNMENT])
    with pytest.raises(DataError, match="is truncated"):
        rows.read(0, 50)


def altered(whole: bytes, change) -> bytes:
    length = int.from_bytes(whole[8:16], "little")
    header = json.loads(whole[16 : 16 + length])
    change(header)
    text = json.dumps(header).encode()
    return (whole[:8] + len(text).to_bytes(8, "little") + text).ljust(2 * ALIGNMENT, b"\0") + whole[2 * ALIGNMENT :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["sections"]["features"].update(dtype="|O"), "section 'features'"),
        (lambda h: h["sections"]["features"].update(shape=[-1, 7]), "section 'features'"),
        (lambda h: h["sections"]["labels"].update(shape=[49]), "section 'labels': found 49 rows; allowed: 50"),
        (lambda h: h["sections"]["offsets"].update(start=-8), "section 'offsets'"),
        (lambda h: h["sections"].update(more={"dtype": "<f4", "shape": [1], "start": 0}), "section 'more'"),
        (lambda h: h["sections"].pop("sources"), "found sections offsets, .*; allowed: offsets, sources"),
        (lambda h: h.pop("classes"), "its header lacks"),
        (lambda h: h["sections"]["sources"].update(start=h["sections"]["offsets"]["start"]), "graph: vertex 0"),
    ],
)
def test_altered_headers_are_refused(tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "g.bngraph"
    save(path, drawn())
    path.write_bytes(altered(path.read_bytes(), change))
    with pytest.raises(DataError, match=message):
        load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content, message in ((b"PK\3\4 and more", "another kind"), (b"BNGRAPH1\4\0\0\0\0\0\0\0{no}", "cannot be read")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            load(path)
    with pytest.raises(OSError, match="directory"):
        load(tmp_path)
    with pytest.raises(ParameterError, match="features: found 'mapped'; allowed: memory, file"):
        load(path, features="mapped")

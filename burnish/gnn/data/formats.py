"""Readers of graphs: files of this and other programs, and folders in the layout of OGB."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError
from burnish.gnn.data.csr import CSR, integers
from burnish.gnn.data.fields import (
    arrays_of,
    fields_of,
    integer_of,
    pair_of,
    table_of,
    vertex_fields,
    weights_of,
    whole_numbers,
)
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.store import SUFFIX, load

TEXT = (".txt", ".tsv", ".csv", ".el", ".edges", ".gz")
_SPLITS = {"train": "train", "validation": "valid", "test": "test"}  # files of OGB


def read(source: Any, **options: Any) -> Graph:
    """Graph of a path. options: ``symmetrize``, ``self_loops``, ``duplicates`` of ``CSR.from_edges``.

    source: a file that ``store.save`` wrote; ``.npz`` with ``edges`` or ``edge_index`` (2, E), ``source`` and
    ``target``, ``offsets`` and ``sources``, or a matrix that SciPy saved, and features, labels and masks beside these;
    text of two numbers a line, and a weight; a folder in OGB's layout; or a Graph, which is given back. What is in
    memory is for ``Graph.of``. Raises OSError, DataError.
    """
    if isinstance(source, Graph):
        return source
    if isinstance(source, str | Path):
        return _read_path(Path(source), options)
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    raise DataError(f"graph: found {kind}; allowed: a path, or a Graph, which Graph.of makes of what is in memory")


def _read_path(path: Path, options: dict[str, Any]) -> Graph:
    if path.is_dir():
        return read_ogb(path, **options)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _from_npz(path, options)
    if suffix in TEXT:
        return read_edges(path, **options)
    if suffix not in (SUFFIX, ""):
        raise DataError(f"'{path}': found {suffix}; allowed: {SUFFIX}, .npz, {', '.join(TEXT)}, or a folder")
    return _changed(load(path), options)


def _changed(graph: Graph, options: dict[str, Any]) -> Graph:
    """A graph that is in rows already, as the options of ``CSR.from_edges`` want it."""
    if not options:
        return graph
    csr = graph.csr
    target = np.repeat(np.arange(csr.rows, dtype=np.int32), csr.degrees)
    return graph.with_(csr=CSR.from_edges(csr.sources, target, csr.rows, csr.weights, **options))


def read_edges(path: str | Path, vertices: int | None = None, **options: Any) -> Graph:
    """A graph from text: source and target in each line, and a weight in all or none, by blanks or commas.

    What follows ``#`` is a comment. vertices: by default the largest number plus one. ``.gz`` is unpacked. Raises
    OSError, DataError.
    """
    table = table_of(Path(path))
    if table.size and table.shape[1] not in (2, 3):
        raise DataError(f"'{path}': found {table.shape[1]} columns; allowed: source and target, and a weight")
    table = table.reshape(-1, table.shape[1] if table.size else 2)
    ends = whole_numbers(table[:, :2], f"'{path}': edges")
    count = vertices if vertices is not None else int(ends.max(initial=-1)) + 1
    weights = table[:, 2] if table.shape[1] == 3 else None
    return Graph.of((ends[:, 0], ends[:, 1]), vertices=count, weights=weights, **options)


def read_ogb(folder: str | Path, **options: Any) -> Graph:
    """One graph from a folder in the layout of the Open Graph Benchmark: ``raw/`` with edges, features and labels.

    ``raw/edge.csv.gz``, ``num-node-list.csv.gz``, ``node-feat.csv.gz``, ``node-label.csv.gz`` (or ``data.npz`` and
    ``node-label.npz``), ``split/NAME/train.csv.gz``, ``valid.csv.gz``, ``test.csv.gz``, each without ``.gz``, too. A
    data set that adds the inverse of its edges wants ``symmetrize=True``. Raises OSError, DataError.
    """
    raw = Path(folder) / "raw"
    if (raw / "data.npz").exists():
        held = arrays_of(raw / "data.npz")
        edges, features = held.get("edge_index"), held.get("node_feat")
        count = held.get("num_nodes_list")
        if edges is None:
            raise DataError(f"'{raw / 'data.npz'}': found {', '.join(held)}; allowed: edge_index among them")
        edges = edges.T
    else:
        edges = whole_numbers(_found(raw, "edge", 2), f"'{raw}': edge")
        features, count = _optional(raw, "node-feat"), _optional(raw, "num-node-list")
    if count is not None and count.size != 1:
        raise DataError(f"'{raw}': found {count.size} graphs; allowed: one")
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise DataError(f"'{raw}': edges: found shape {edges.shape}; allowed: two ends of each")
    vertices = len(features) if features is not None else int(edges.max(initial=-1)) + 1
    vertices = vertices if count is None else integer_of(whole_numbers(count, f"'{raw}': num-node-list"), "vertices")
    fields: dict[str, Any] = {"features": features}
    if (raw / "node-label.npz").exists():
        fields["labels"] = next(iter(arrays_of(raw / "node-label.npz").values()))
    else:
        fields["labels"] = _optional(raw, "node-label")
    fields |= _splits(Path(folder) / "split")
    return Graph.of((edges[:, 0], edges[:, 1]), vertices=vertices, **fields, **options)


def _splits(folder: Path) -> dict[str, NDArray[Any]]:
    """Numbers of vertices by mask, of the one split there is."""
    names = sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    if not names:
        return {}
    if len(names) > 1:
        raise DataError(f"'{folder}': found {', '.join(child.name for child in names)}; allowed: one split")
    found = {mask: _optional(names[0], name) for mask, name in _SPLITS.items()}
    return {
        mask: whole_numbers(numbers, f"'{names[0]}': {mask}").reshape(-1)
        for mask, numbers in found.items()
        if numbers is not None
    }


def _from_npz(path: Path, options: dict[str, Any]) -> Graph:
    held = arrays_of(path)
    held = {name.removeprefix("adj_"): array for name, array in held.items()}  # of the GNN benchmark's files
    fields = fields_of(held.get)
    if fields.get("features") is None and "attr_indptr" in held:
        fields["features"] = _dense({name[5:]: array for name, array in held.items() if name.startswith("attr_")}, path)
    given = fields.pop("weights", None)
    if "offsets" in held and "sources" in held:
        csr = CSR(held["offsets"], held["sources"], max(held["offsets"].size - 1, 0), given)
        return _changed(Graph(csr, **vertex_fields(fields, csr.rows)), options)
    named = next((name for name in ("edge_index", "edges") if name in held), None)
    if named is not None:
        source, target = pair_of(held[named], str(path))
    elif "source" in held and "target" in held:
        source, target = held["source"], held["target"]
    elif "indptr" in held and "indices" in held:
        source, target, given = _compressed(held, path)
    elif "row" in held and "col" in held:
        source, target = held["row"], held["col"]
        given = weights_of(held["data"]) if "data" in held else given
    else:
        raise DataError(
            f"'{path}': found {', '.join(held) or 'nothing'}; allowed: edges or edge_index, source and target, "
            "offsets and sources, or what SciPy saves"
        )
    vertices = _vertices(held, fields, source, target)
    return Graph.of((source, target), vertices=vertices, weights=given, **fields, **options)


def _vertices(held: Mapping[str, Any], fields: Mapping[str, Any], source: Any, target: Any) -> int:
    """The number of vertices that a file states, by itself or by an array of theirs; else by its edges."""
    for name in ("vertices", "num_nodes"):
        if name in held:
            return integer_of(held[name], name)
    if "shape" in held:
        return _shape(held)[0]
    for name in ("features", "labels"):
        if fields.get(name) is not None:
            return len(fields[name])
    return int(max(np.max(source, initial=-1), np.max(target, initial=-1))) + 1


def _compressed(held: Mapping[str, NDArray[Any]], path: Path) -> tuple[Any, Any, Any]:
    """Sources, targets and weights of a matrix that ``scipy.sparse.save_npz`` wrote in rows or columns."""
    kind = str(held["format"].reshape(-1).tolist()[0]) if "format" in held and held["format"].size == 1 else "csr"
    kind = kind.removeprefix("b'").removesuffix("'")
    if kind not in ("csr", "csc"):
        raise DataError(f"'{path}': found a matrix in form {kind!r}; allowed: csr, csc, coo")
    counts = np.diff(integers("indptr", held["indptr"], np.int64))
    entries = held["indices"].size
    if (counts < 0).any() or counts.sum() != entries:
        raise DataError(f"'{path}': indptr: found {counts.sum()} entries; allowed: {entries}, ascending")
    if "data" in held and held["data"].shape != (entries,):
        raise DataError(f"'{path}': data: found shape {held['data'].shape}; allowed: ({entries},)")
    long = np.repeat(np.arange(len(counts)), counts)
    ends = (long, held["indices"]) if kind == "csr" else (held["indices"], long)
    return *ends, (weights_of(held["data"]) if "data" in held else None)


def _shape(held: Mapping[str, NDArray[Any]]) -> tuple[int, int]:
    """Rows and columns of a matrix. Raises DataError."""
    shape = integers("shape", held["shape"], np.int64)
    if len(shape) != 2 or shape.min() < 0:
        raise DataError(f"graph: shape: found {shape.tolist()}; allowed: rows and columns")
    return int(shape[0]), int(shape[1])


def _dense(held: Mapping[str, NDArray[Any]], path: Path) -> NDArray[np.float32]:
    """Features that a file holds as a sparse matrix in rows."""
    rows, columns, values = _compressed(held, path)
    shape = _shape(held) if "shape" in held else (len(held["indptr"]) - 1, int(columns.max(initial=-1)) + 1)
    for ends, size, what in ((rows, shape[0], "row"), (columns, shape[1], "column")):
        if len(ends) and (ends.min() < 0 or ends.max() >= size):
            raise DataError(f"'{path}': features: found {what} {ends.max()}; allowed: below {size}")
    out = np.zeros(shape, np.float32)
    out[rows, columns] = 1 if values is None else values
    return out


def _named(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if path.exists()), None)


def _optional(folder: Path, name: str) -> NDArray[Any] | None:
    path = _named(folder, name)
    return None if path is None else table_of(path)


def _found(folder: Path, name: str, columns: int) -> NDArray[Any]:
    table = _optional(folder, name)
    if table is None:
        raise DataError(f"'{folder}': found no {name}.csv.gz; allowed: the layout of the Open Graph Benchmark")
    if table.size and table.shape[1] != columns:
        raise DataError(f"'{folder}': {name}: found {table.shape[1]} columns; allowed: {columns}")
    return table.reshape(-1, columns)

"""Readers of graphs: files of this and other programs, folders in the layout of OGB, objects of SciPy, PyG and DGL."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError
from burnish.gnn.csr import CSR, integers
from burnish.gnn.graph import MASKS, Graph
from burnish.gnn.store import SUFFIX, load

TEXT = (".txt", ".tsv", ".csv", ".el", ".edges", ".gz")
# Names of fields in files and objects of other programs.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "features": ("features", "feature", "x", "feat", "node_feat"),
    "labels": ("labels", "label", "y", "node_label"),
    "train": ("train", "train_mask", "train_idx"),
    "validation": ("validation", "val_mask", "valid_mask", "validation_mask", "valid", "val_idx"),
    "test": ("test", "test_mask", "test_idx"),
    "weights": ("weights", "edge_weight", "edge_weights"),
}
_SPLITS = {"train": "train", "validation": "valid", "test": "test"}  # files of OGB


def read(source: Any, **options: Any) -> Graph:
    """A graph from whatever holds one. options: ``symmetrize``, ``self_loops``, ``duplicates`` of ``CSR.from_edges``.

    source: a path, or an object. Paths: a file that ``store.save`` wrote; ``.npz`` with ``edge_index`` (2, E),
    ``source`` and ``target``, ``offsets`` and ``sources``, or a matrix that SciPy saved, and features, labels and masks
    beside these; text of two numbers a line, and a weight; a folder in OGB's layout. Objects: a SciPy sparse matrix,
    whose entry (i, j) is the edge i → j; a ``Data`` of PyG; a graph of DGL with ``ndata``. Raises OSError, DataError.
    """
    if isinstance(source, Graph):
        return source
    if isinstance(source, str | Path):
        return _read_path(Path(source), options)
    if hasattr(source, "tocoo"):
        return from_sparse(source, **options)
    if hasattr(source, "ndata") and callable(getattr(source, "edges", None)):
        return _from_dgl(source, options)
    if hasattr(source, "edge_index"):
        return _from_pyg(source, options)
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    raise DataError(f"graph: found {kind}; allowed: a path, a sparse matrix of SciPy, Data of PyG, a graph of DGL")


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
    table = _table(Path(path))
    if table.size and table.shape[1] not in (2, 3):
        raise DataError(f"'{path}': found {table.shape[1]} columns; allowed: source and target, and a weight")
    table = table.reshape(-1, table.shape[1] if table.size else 2)
    ends = _whole(table[:, :2], f"'{path}': edges")
    count = vertices if vertices is not None else int(ends.max(initial=-1)) + 1
    weights = table[:, 2] if table.shape[1] == 3 else None
    return Graph.from_edges(ends[:, 0], ends[:, 1], count, weights, **options)


def from_sparse(matrix: Any, **options: Any) -> Graph:
    """A graph from a square SciPy sparse matrix: entry (i, j) is the edge i → j; all ones are no weights."""
    if matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"graph: found a matrix of shape {tuple(matrix.shape)}; allowed: a square one")
    entries = matrix.tocoo()
    return Graph.from_edges(entries.row, entries.col, matrix.shape[0], _values(entries.data), **options)


def read_ogb(folder: str | Path, **options: Any) -> Graph:
    """One graph from a folder in the layout of the Open Graph Benchmark: ``raw/`` with edges, features and labels.

    ``raw/edge.csv.gz``, ``num-node-list.csv.gz``, ``node-feat.csv.gz``, ``node-label.csv.gz`` (or ``data.npz`` and
    ``node-label.npz``), ``split/NAME/train.csv.gz``, ``valid.csv.gz``, ``test.csv.gz``, each without ``.gz``, too. A
    data set that adds the inverse of its edges wants ``symmetrize=True``. Raises OSError, DataError.
    """
    raw = Path(folder) / "raw"
    if (raw / "data.npz").exists():
        held = _arrays(raw / "data.npz")
        edges, features = held.get("edge_index"), held.get("node_feat")
        count = held.get("num_nodes_list")
        if edges is None:
            raise DataError(f"'{raw / 'data.npz'}': found {', '.join(held)}; allowed: edge_index among them")
        edges = edges.T
    else:
        edges = _whole(_found(raw, "edge", 2), f"'{raw}': edge")
        features, count = _optional(raw, "node-feat"), _optional(raw, "num-node-list")
    if count is not None and count.size != 1:
        raise DataError(f"'{raw}': found {count.size} graphs; allowed: one")
    vertices = len(features) if features is not None else int(edges.max(initial=-1)) + 1
    vertices = vertices if count is None else int(count.reshape(-1)[0])
    fields: dict[str, Any] = {"features": features}
    if (raw / "node-label.npz").exists():
        fields["labels"] = next(iter(_arrays(raw / "node-label.npz").values()))
    else:
        fields["labels"] = _optional(raw, "node-label")
    fields |= _splits(Path(folder) / "split")
    return _graph(edges[:, 0], edges[:, 1], vertices, None, fields, options)


def _splits(folder: Path) -> dict[str, NDArray[Any]]:
    """Numbers of vertices by mask, of the one split there is."""
    names = sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    if not names:
        return {}
    if len(names) > 1:
        raise DataError(f"'{folder}': found {', '.join(child.name for child in names)}; allowed: one split")
    found = {mask: _optional(names[0], name) for mask, name in _SPLITS.items()}
    return {
        mask: _whole(numbers, f"'{names[0]}': {mask}").reshape(-1)
        for mask, numbers in found.items()
        if numbers is not None
    }


def _from_npz(path: Path, options: dict[str, Any]) -> Graph:
    held = _arrays(path)
    held = {name.removeprefix("adj_"): array for name, array in held.items()}  # of the GNN benchmark's files
    fields = _fields(held.get)
    if fields.get("features") is None and "attr_indptr" in held:
        fields["features"] = _dense({name[5:]: array for name, array in held.items() if name.startswith("attr_")}, path)
    given = fields.pop("weights", None)
    if "offsets" in held and "sources" in held:
        rows = len(held["offsets"]) - 1
        csr = CSR(held["offsets"], held["sources"], max(rows, 0), given)
        return _changed(Graph(csr, **_vertex_fields(fields, csr.rows)), options)
    if "edge_index" in held:
        source, target = _pair(held["edge_index"], str(path))
    elif "source" in held and "target" in held:
        source, target = held["source"], held["target"]
    elif "indptr" in held and "indices" in held:
        source, target, given = _compressed(held, path)
    elif "row" in held and "col" in held:
        source, target = held["row"], held["col"]
        given = _values(held["data"]) if "data" in held else given
    else:
        raise DataError(
            f"'{path}': found {', '.join(held) or 'nothing'}; allowed: edge_index, source and target, offsets and "
            "sources, or what SciPy saves"
        )
    vertices = _vertices(held, fields, source, target)
    return _graph(source, target, vertices, given, fields, options)


def _vertices(held: Mapping[str, Any], fields: Mapping[str, Any], source: Any, target: Any) -> int:
    """The number of vertices that a file states, by itself or by an array of theirs; else by its edges."""
    for name in ("vertices", "num_nodes"):
        if name in held:
            return int(held[name])
    if "shape" in held:
        return int(held["shape"][0])
    for name in ("features", "labels"):
        if fields.get(name) is not None:
            return len(fields[name])
    return int(max(np.max(source, initial=-1), np.max(target, initial=-1))) + 1


def _compressed(held: Mapping[str, NDArray[Any]], path: Path) -> tuple[Any, Any, Any]:
    """Sources, targets and weights of a matrix that ``scipy.sparse.save_npz`` wrote in rows or columns."""
    kind = str(held["format"].item()) if "format" in held else "csr"
    kind = kind.removeprefix("b'").removesuffix("'")
    if kind not in ("csr", "csc"):
        raise DataError(f"'{path}': found a matrix in form {kind!r}; allowed: csr, csc, coo")
    counts = np.diff(integers("indptr", held["indptr"], np.int64))
    if (counts < 0).any() or counts.sum() != len(held["indices"]):
        raise DataError(f"'{path}': indptr: found {counts.sum()} entries; allowed: {len(held['indices'])}, ascending")
    long = np.repeat(np.arange(len(counts)), counts)
    ends = (long, held["indices"]) if kind == "csr" else (held["indices"], long)
    return *ends, (_values(held["data"]) if "data" in held else None)


def _dense(held: Mapping[str, NDArray[Any]], path: Path) -> NDArray[np.float32]:
    """Features that a file holds as a sparse matrix in rows."""
    rows, columns, values = _compressed(held, path)
    shape = tuple(int(size) for size in held["shape"]) if "shape" in held else (len(held["indptr"]) - 1, 0)
    if len(columns) and (columns.min() < 0 or columns.max() >= shape[1]):
        raise DataError(f"'{path}': features: found column {columns.max()}; allowed: below {shape[1]}")
    out = np.zeros(shape, np.float32)
    out[rows, columns] = 1 if values is None else values
    return out


def _from_pyg(data: Any, options: dict[str, Any]) -> Graph:
    source, target = _pair(_array(data.edge_index), "edge_index")
    fields = _fields(lambda name: _array(getattr(data, name, None)))
    vertices = int(data.num_nodes if getattr(data, "num_nodes", None) is not None else len(fields["features"]))
    return _graph(source, target, vertices, fields.pop("weights", None), fields, options)


def _from_dgl(graph: Any, options: dict[str, Any]) -> Graph:
    source, target = (_array(ends) for ends in graph.edges())
    fields = _fields(lambda name: _array(graph.ndata[name]) if name in graph.ndata else None)
    weights = next((_array(graph.edata[name]) for name in FIELDS["weights"] if name in graph.edata), None)
    fields.pop("weights", None)
    return _graph(source, target, int(graph.num_nodes()), weights, fields, options)


def _fields(get: Callable[[str], Any]) -> dict[str, Any]:
    """Fields by our names, the first of each that there is."""
    found = {}
    for name, names in FIELDS.items():
        value = next((value for value in map(get, names) if value is not None), None)
        if value is not None:
            found[name] = value
    return found


def _graph(
    source: Any, target: Any, vertices: int, weights: Any, fields: dict[str, Any], options: dict[str, Any]
) -> Graph:
    return Graph.from_edges(source, target, vertices, weights, **options, **_vertex_fields(fields, vertices))


def _vertex_fields(fields: Mapping[str, Any], vertices: int) -> dict[str, Any]:
    """Features, labels and masks as a graph has them: labels as integers, masks also from numbers of vertices."""
    made = {"features": fields.get("features"), "labels": _labels(fields.get("labels"))}
    return made | {name: _as_mask(name, fields.get(name), vertices) for name in MASKS}


def _labels(found: Any) -> Any:
    """Labels as integers; one column is none; NaN is unknown. Raises DataError for other fractions."""
    if found is None:
        return None
    array = np.asarray(found)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind == "f":
        whole = np.where(np.isnan(array), -1, array)
        if not (whole == np.floor(whole)).all() or np.abs(whole).max(initial=0) > 2**31:
            raise DataError("graph: labels: found fractions; allowed: integers, or NaN if unknown")
        return whole.astype(np.int64)
    return array


def _as_mask(name: str, found: Any, vertices: int) -> Any:
    """A mask from a mask, or from numbers of vertices. Raises DataError."""
    if found is None:
        return None
    array = np.asarray(found)
    if array.dtype == np.bool_ or (array.dtype == np.uint8 and array.shape == (vertices,)):
        return array.astype(np.bool_)
    numbers = integers(name, array, np.int64)
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= vertices):
        raise DataError(f"graph: {name}: found vertices {numbers.min()} to {numbers.max()}; allowed: below {vertices}")
    mask = np.zeros(vertices, np.bool_)
    mask[numbers] = True
    return mask


def _array(value: Any) -> Any:
    """NumPy's view of a tensor of PyTorch; other values as they are."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _values(data: Any) -> NDArray[np.float32] | None:
    """Weights of a matrix's entries, None if each is one."""
    array = np.asarray(data)
    return None if (array == 1).all() else array.astype(np.float32)


def _pair(edges: Any, name: str) -> tuple[Any, Any]:
    array = np.asarray(edges)
    if array.ndim != 2 or array.shape[0] != 2:
        raise DataError(f"graph: {name}: found edges of shape {array.shape}; allowed: (2, edges)")
    return array[0], array[1]


def _whole(found: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Numbers of a text as integers. Raises DataError for fractions."""
    numbers = found.astype(np.int64)
    if (numbers != found).any():
        raise DataError(f"graph: {name}: found {found[numbers != found][0]}; allowed: integers")
    return numbers


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz``; never of Python objects. Raises OSError, DataError."""
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, AttributeError) as error:
        raise DataError(f"'{path}' cannot be read, it is truncated, altered or holds objects: {error}") from None


def _named(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if path.exists()), None)


def _optional(folder: Path, name: str) -> NDArray[Any] | None:
    path = _named(folder, name)
    return None if path is None else _table(path)


def _found(folder: Path, name: str, columns: int) -> NDArray[Any]:
    table = _optional(folder, name)
    if table is None:
        raise DataError(f"'{folder}': found no {name}.csv.gz; allowed: the layout of the Open Graph Benchmark")
    if table.size and table.shape[1] != columns:
        raise DataError(f"'{folder}': {name}: found {table.shape[1]} columns; allowed: {columns}")
    return table.reshape(-1, columns)


def _table(path: Path) -> NDArray[np.float64]:
    """Numbers of a text, (lines, columns), by commas or blanks. Raises OSError, DataError."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            lines = (line.replace(",", " ") for line in file)
            return np.loadtxt(lines, dtype=np.float64, comments="#", ndmin=2)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"'{path}' cannot be read, it is truncated or no table of numbers: {error}") from None

"""Files of symbols: their nodes as JSON and their constants as sections of the artifact's container. No pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish import ops
from burnish.array.symbol import Extent, Symbol, reachable
from burnish.errors import ArtifactError, BurnishError
from burnish.loops.expr import DTYPES
from burnish.loops.numeric import numpy_dtype
from burnish.runtime.container import read_container, write_container
from burnish.train.losses import LOSSES

KIND, EDITION = "symbols", 1
_KINDS = ("variable", "state", "constant", "operator", "loss", "mode")


def save(heads: Symbol | Sequence[Symbol], path: str | Path) -> None:
    """Writes symbols to a file, complete or not at all. Raises OSError."""
    symbols = (heads,) if isinstance(heads, Symbol) else tuple(heads)
    order = reachable(symbols)
    number = {id(symbol): at for at, symbol in enumerate(order)}
    nodes: dict[object, int] = {}
    sections: dict[str, memoryview] = {}
    rows = []
    for at, symbol in enumerate(order):
        if symbol.value is not None:
            array = np.ascontiguousarray(symbol.value)
            sections[f"value{at}"] = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        rows.append(
            {
                "kind": symbol.kind,
                "name": symbol.name,
                "operator": symbol.operator,
                "inputs": [number[id(s)] for s in symbol.inputs],
                "attrs": dict(symbol.attrs),
                "index": symbol.index,
                "node": nodes.setdefault(symbol.node, len(nodes)),
                "shape": None if symbol.shape is None else [_extent(d) for d in symbol.shape],
                "dtype": symbol.dtype,
                "value": None if symbol.value is None else [str(symbol.value.dtype), list(symbol.value.shape)],
                "updates": [[number[id(s)], number[id(v)]] for s, v in symbol.updates],
            }
        )
    header = {"kind": KIND, "edition": EDITION, "symbols": rows, "heads": [number[id(s)] for s in symbols]}
    write_container(Path(path), header, sections)


def load(path: str | Path) -> Any:
    """The symbol, or the tuple of several, that :func:`save` wrote.

    Raises ArtifactError for a file that is damaged, or holds something else; OSError if it cannot be read.
    """
    container = read_container(Path(path))
    header = container.header
    if header.get("kind") != KIND or header.get("edition") != EDITION:
        found = f"{header.get('kind', 'an executable')}, edition {header.get('edition')}"
        raise ArtifactError(f"{path} holds {found}; allowed: {KIND}, edition {EDITION}")
    try:
        made: list[Symbol] = []
        nodes: dict[int, object] = {}
        for at, row in enumerate(header["symbols"]):
            made.append(_symbol(row, made, nodes, container.sections.get(f"value{at}")))
        heads = tuple(made[at] for at in header["heads"])
    except (KeyError, IndexError, TypeError, ValueError, BurnishError) as error:
        raise ArtifactError(f"{path} is inconsistent: {type(error).__name__}: {error}") from error
    return heads[0] if len(heads) == 1 else heads


def _symbol(row: Mapping[str, Any], made: Sequence[Symbol], nodes: dict[int, object], data: Any) -> Symbol:
    """A symbol of those before it. Raises ValueError, or what a definition refuses."""
    if row["kind"] not in _KINDS:
        raise ValueError(f"kind {row['kind']!r}")
    attrs = {str(key): _tuples(value) for key, value in row["attrs"].items()}
    if row["kind"] == "operator":
        ops.operator_named(row["operator"]).complete(attrs)
    elif row["operator"] not in {"", *LOSSES}:
        raise ValueError(f"loss {row['operator']!r}")
    value = None
    if row["value"] is not None:
        dtype, shape = row["value"]
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r}")
        value = np.frombuffer(data, numpy_dtype(dtype)).reshape(shape)
    shape = (
        None
        if row["shape"] is None
        else tuple(Extent(int(d[0])) if isinstance(d, list) else int(d) for d in row["shape"])
    )
    return Symbol(
        row["kind"],
        str(row["name"]),
        str(row["operator"]),
        tuple(made[_before(at, made)] for at in row["inputs"]),
        attrs,
        int(row["index"]),
        shape,
        row["dtype"],
        value,
        tuple((made[_before(s, made)], made[_before(v, made)]) for s, v in row["updates"]),
        nodes.setdefault(int(row["node"]), object()),
    )


def _before(at: Any, made: Sequence[Symbol]) -> int:
    if not isinstance(at, int) or not 0 <= at < len(made):
        raise ValueError(f"reference {at!r}")
    return at


def _extent(d: int | Extent) -> Any:
    return [d.axis] if isinstance(d, Extent) else d


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value

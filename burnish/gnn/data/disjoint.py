"""Union of graphs: several graphs as one without edges between them, such as those of PPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from burnish.errors import DataError
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.graph import MASKS, Graph


def union(graphs: Sequence[Graph]) -> Graph:
    """The vertices and edges of all graphs behind each other, with features, labels and masks that all of them have.

    Raises DataError for no graphs, for graphs of other features or classes, and where only some have weights of edges.
    """
    if not graphs:
        raise DataError("union: found no graphs; allowed: one or more")
    for what, found in (("features", {g.width for g in graphs}), ("classes", {g.classes for g in graphs})):
        if len(found) > 1:
            raise DataError(f"union: found graphs of {sorted(found)} {what}; allowed: as many in all")
    weights = [g.weights for g in graphs if g.weights is not None]
    if len(weights) not in (0, len(graphs)):
        raise DataError(
            f"union: found weights of edges of {len(weights)} graphs; allowed: of all {len(graphs)}, or none"
        )
    begins = np.cumsum([0, *(g.vertices for g in graphs)])
    edges = np.cumsum([0, *(g.edges for g in graphs)])
    offsets = np.concatenate([np.zeros(1, np.int64), *(g.offsets[1:] + e for g, e in zip(graphs, edges, strict=False))])
    sources = np.concatenate([(g.sources + np.int32(b)) for g, b in zip(graphs, begins, strict=False)])
    columns = int(begins[-1])
    csr = CSR(offsets, sources.astype(np.int32, copy=False), columns, np.concatenate(weights) if weights else None)
    fields: dict[str, Any] = {}
    for name in ("labels", *MASKS):
        arrays = [getattr(g, name) for g in graphs]
        if all(a is not None for a in arrays):
            fields[name] = np.concatenate(arrays)
    if all(g.features is not None for g in graphs):
        fields["features"] = np.concatenate([g.rows(0, g.vertices) for g in graphs])
    return Graph(csr, classes=graphs[0].classes, **fields)

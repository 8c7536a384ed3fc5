"""Partitions of few edges between parts, as METIS makes them: a baseline whose parts are no ranges of vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.yardsticks.reorder import communities, grouped, settle
from burnish.base.optional import require
from burnish.errors import ParameterError
from burnish.gnn.data.csr import CSR, inverse
from burnish.gnn.data.partition import balanced, check_parts

METHODS = ("greedy", "metis")
IMBALANCE = 1.03  # of the heaviest part over the mean: METIS' own default
_PER_PART = 16  # communities, at least, that a part is put together from


def clusters(csr: CSR, parts: int, method: str = "greedy", seed: int = 0) -> NDArray[np.int32]:
    """The part of every vertex, (V,), so that few edges cross; a vertex weighs its in-edges and one.

    "greedy": communities side by side, cut at equal weights, then label propagation between the parts, as far as these
    stay within 3 % of the mean. "metis": the package pymetis. Raises ParameterError, MissingDependencyError.
    """
    check_parts(parts)
    if method not in METHODS:
        raise ParameterError(f"clusters: found {method!r}; allowed: {', '.join(METHODS)}")
    if method == "metis":
        return _metis(csr, parts)
    loads = csr.degrees + 1
    new = grouped(communities(csr, max(1, csr.rows // (_PER_PART * parts)), seed=seed))[0]
    old = inverse(new)
    sums = np.concatenate([[0], np.cumsum(loads[old])])
    cuts = balanced(lambda v: float(sums[v]), csr.rows, parts)
    labels = np.empty(csr.rows, np.int32)
    labels[old] = np.repeat(np.arange(parts, dtype=np.int32), np.diff(cuts))
    settle(csr, labels, loads, int(IMBALANCE * loads.sum() / parts), seed=seed)
    return labels


def crossing(csr: CSR, labels: NDArray[Any]) -> int:
    """Edges between vertices of different parts."""
    return int(np.count_nonzero(np.repeat(labels, csr.degrees) != labels[csr.sources]))


def _metis(csr: CSR, parts: int) -> NDArray[np.int32]:
    pymetis: Any = require("pymetis", "gnn")
    plain = csr.without_self_loops().symmetrized()
    _, labels = pymetis.part_graph(
        parts, xadj=plain.offsets.tolist(), adjncy=plain.sources.tolist(), vweights=(csr.degrees + 1).tolist()
    )
    return np.asarray(labels, np.int32)

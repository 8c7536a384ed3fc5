"""Communities of vertices by size-constrained label propagation (Meyerhenke, Sanders and Schulz 2014).

In a random order each vertex takes the label of most of its neighbours that has room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.errors import ParameterError
from burnish.gnn.data.csr import CSR, inverse

SWEEPS = 6  # over all vertices; most labels are settled after three
LARGEST_COMMUNITY = 6144  # vertices, whose rows of 64 float32 are what a core's second cache holds


def communities(csr: CSR, largest: int = LARGEST_COMMUNITY, sweeps: int = SWEEPS, seed: int = 0) -> NDArray[np.int32]:
    """The label of each vertex's community, (V,): the number of some vertex. Raises ParameterError."""
    if largest < 1 or sweeps < 0:
        raise ParameterError(f"communities: found largest {largest}, sweeps {sweeps}; allowed: 1 or more, 0 or more")
    labels = np.arange(csr.rows, dtype=np.int32)
    settle(csr, labels, np.ones(csr.rows, np.int64), largest, sweeps, seed)
    return labels


def settle(
    csr: CSR, labels: NDArray[np.int32], loads: NDArray[np.int64], largest: int, sweeps: int = SWEEPS, seed: int = 0
) -> None:
    """Sweeps of label propagation over ``labels``, (V,), in place, until few vertices move.

    loads: (V,); a label takes no vertex by which the sum of its loads would exceed ``largest``.
    """
    sums = np.bincount(labels, loads, minlength=max(1, csr.rows)).astype(np.int64)
    generator = np.random.default_rng(seed)
    for _ in range(sweeps):
        order = generator.permutation(csr.rows)
        moved = propagate(csr.offsets, csr.sources, order, loads, largest, labels, sums)
        if moved <= csr.rows // 1000:
            break


def grouped(groups: NDArray[Any], count: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order by which vertices of one group stand together, and where groups 0 … count - 1 then begin, and end.

    Groups stand by their numbers, their vertices in the order that they had.
    """
    new = inverse(np.argsort(groups, kind="stable"))
    sizes = np.bincount(groups, minlength=count or 0)
    return new, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@njit(cache=True, nogil=True, error_model="numpy")
def propagate(offsets, sources, order, loads, largest, labels, sums):  # type: ignore[no-untyped-def]
    """One sweep: vertices that move to the label most frequent around them, if it has room. Returns how many.

    Of labels as frequent, the larger community wins: at first, where all are different, these grow from hubs.
    """
    votes = np.zeros(sums.shape[0], np.int32)
    moved = 0
    for i in range(order.shape[0]):
        v = order[i]
        old = labels[v]
        for e in range(offsets[v], offsets[v + 1]):
            votes[labels[sources[e]]] += 1
        best, most = old, votes[old]
        for e in range(offsets[v], offsets[v + 1]):
            label = labels[sources[e]]
            n = votes[label]
            wins = n > most or (n == most and sums[label] > sums[best])
            if wins and n and label != old and sums[label] + loads[v] <= largest:
                best, most = label, n
            votes[label] = 0
        votes[old] = 0
        if best != old:
            labels[v] = best
            sums[old] -= loads[v]
            sums[best] += loads[v]
            moved += 1
    return moved

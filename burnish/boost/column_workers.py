"""Exact trees by columns over workers (thesis-chen §2.3.1, §2.4): each has all rows of some columns, and all labels.

Workers find the best splits of their columns, agree on the best of all, and tell the others, a bit a row, where the
rows of a split go. Everything else they compute alike. What moves in a level: 48 bytes a node and worker, and the bits.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from burnish.boost.blocks import column_block
from burnish.boost.data import Dataset, Sparse
from burnish.boost.exact import ExactGrower
from burnish.boost.growth.column_source import MemoryColumns, OwnedColumns
from burnish.boost.params import Params
from burnish.comm.protocol import Comm
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers


def refuse_by_columns(params: Params) -> None:
    """Raises ParameterError for what needs the values of all columns on every worker."""
    if params.booster == "dart":
        raise ParameterError(
            "booster: found 'dart' with tree method 'exact' and several workers, none of which can compute margins "
            "anew; allowed: 'gbtree'"
        )


def shares_of_columns(dataset: Dataset, size: int) -> list[NDArray[np.bool_]]:
    """Which columns each of `size` workers takes, (features,): runs of columns of about equally many entries.

    Raises DataError if there are fewer columns than workers.
    """
    if dataset.features < size:
        raise DataError(
            f"workers: found {size} for {dataset.features} columns of exact trees; allowed: at most as many"
        )
    table = dataset.table
    if isinstance(table, Sparse):
        entries = np.bincount(table.columns, minlength=dataset.features)
    else:
        entries = np.full(dataset.features, dataset.rows)
    sums, features = np.cumsum(entries), dataset.features
    edges = [int(np.searchsorted(sums, sums[-1] * rank / size)) for rank in range(size)] + [features]
    for rank in range(1, size):  # a column at least for each
        edges[rank] = min(max(edges[rank], edges[rank - 1] + 1), features - (size - rank))
    columns = np.arange(features)
    return [(columns >= low) & (columns < high) for low, high in pairwise(edges)]


def columns_of_worker(dataset: Dataset, owned: NDArray[np.bool_]) -> Dataset:
    """All rows, with the values of some columns alone."""
    table = dataset.table
    if isinstance(table, Sparse):
        keep = owned[table.columns]
        kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
        return replace(dataset, table=Sparse(kept[table.start], table.columns[keep], table.values[keep]))
    features = np.flatnonzero(owned).astype(np.int32)
    part = table[:, features]
    there = ~np.isnan(part)
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(there.sum(axis=1))])
    return replace(dataset, table=Sparse(start, features[np.nonzero(there)[1]], part[there]))


def column_grower(comm: Comm, params: Params, dataset: Dataset, owned: NDArray[np.bool_], threads: int) -> ExactGrower:
    """Grower of the trees that `ExactGrower` grows from the whole table; `dataset`: `columns_of_worker`'s."""
    workers = Workers(threads)
    columns = OwnedColumns(MemoryColumns(column_block(dataset, workers)), owned, comm)
    return ExactGrower(dataset, params.of_round(0), workers, columns)

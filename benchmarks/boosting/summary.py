"""The data sets (Table 2.2): what stands for each here, its shape, and what a short training makes of it.

All four are synthetic, since the real ones are not to be had; each has its original's columns, density and task, and a
stated part of its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.boosting.datasets import clicks, higgs_like, one_hot
from benchmarks.boosting.hist import area
from benchmarks.boosting.ranking import letor_like
from benchmarks.boosting.report import Row, row
from burnish.boost.data import Dataset, Sparse
from burnish.boost.losses.reduction import Reduction
from burnish.boost.metric import metric_of
from burnish.boost.params import Params
from burnish.boost.training import Training
from burnish.runtime.threads import Workers

ROUNDS = 10
# Name -> rows and columns of the original, its task, rows here.
ORIGINALS = {
    "Allstate": (10_000_000, 4227, "insurance claim classification", 100_000),
    "Higgs": (10_000_000, 28, "event classification", 500_000),
    "Yahoo LTRC": (473_000, 700, "learning to rank", 24_000),
    "Criteo": (1_700_000_000, 67, "click through rate prediction", 300_000),
}


def measure(quick: bool = False) -> list[Row]:
    """A row for each data set."""
    made: dict[str, Callable[[int, int], Dataset]] = {
        "Allstate": _allstate, "Higgs": lambda rows, seed: Dataset.of(*higgs_like(rows, seed=seed)),
        "Yahoo LTRC": lambda rows, seed: letor_like(rows, seed=seed).dataset,
        "Criteo": lambda rows, seed: Dataset.of(*clicks(rows, seed=seed)),
    }  # fmt: skip
    return [_trained(name, make, quick) for name, make in made.items()]


def _allstate(rows: int, seed: int) -> Dataset:
    table = one_hot(rows, seed=seed)
    return Dataset(Sparse(table.start, table.columns, table.values), rows, 4227, label=table.label)


def _trained(name: str, make: Callable[[int, int], Dataset], quick: bool) -> Row:
    original, columns, task, rows = ORIGINALS[name]
    rows = rows // 50 if quick else rows
    data, held = make(rows, 0), make(max(2_000, rows // 5), 1)
    assert data.features == columns, f"{name}: {data.features} columns, the paper has {columns}"
    ranks = name == "Yahoo LTRC"
    options: dict[str, Any] = {"objective": "rank:ndcg" if ranks else "binary:logistic", "max_depth": 8, "eta": 0.1}
    params, workers = Params.of({**options, "threads": 1}), Workers(1)
    training, seconds = Training(params, data, workers), list[float]()
    for _ in range(ROUNDS):
        began = time.process_time()
        training.boost()
        seconds.append(time.process_time() - began)
    margin = training.model().predict_margin(held, workers)[0]
    score = (
        metric_of("ndcg@10")(np.atleast_2d(margin), held, Reduction(), params)
        if ranks
        else area(np.asarray(held.label), margin)
    )
    present = len(data.table.values) if isinstance(data.table, Sparse) else int(np.isfinite(data.table).sum())
    return {
        **row(f"Table 2.2: {name}-like, CPU s a tree", float(np.median(seconds)), {}, "-",
              f"{rows:,} of {original:,} rows × {columns}, {present / rows / columns:.1%} present; {task}; "
              f"{'NDCG@10' if ranks else 'AUC'} {score:.3f} after {ROUNDS} trees"),
        "rows": rows, "columns": columns, "of rows": original, "present": present / rows / columns, "score": score,
    }  # fmt: skip

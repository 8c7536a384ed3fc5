"""Block sizes (Fig. 2.9): a tree of the product's own training from blocks of rows, of sizes from 2^8 to 2^16 rows.

Blocks are those of a column store, which the system keeps in memory here; 2^16, the size that the paper chose, is the
largest, since a block's rows are numbers of 16 bits. Trees of all sizes take turns, and the least of the turns counts,
so that what else the machine does is in none.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.boosting.datasets import higgs_like, one_hot
from benchmarks.boosting.report import Row, row
from burnish.boost.data import Dataset, Sparse
from burnish.boost.external import ExternalGrower
from burnish.boost.outofcore.ingest import ingest
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.runtime.threads import Workers

EXPONENTS = (8, 9, 10, 11, 12, 13, 14, 15, 16)
THREADS = 2


def measure(quick: bool = False) -> list[Row]:
    """Rows of the report: nanoseconds of a tree for each present entry, by block size and data."""
    rows, turns = (20_000, 2) if quick else (200_000, 7)
    table, hot = higgs_like(rows), one_hot(rows // 4)
    sparse = Dataset(Sparse(hot.start, hot.columns, hot.values), len(hot.label), 4227)
    sets = {
        f"Higgs-like, {rows // 1000}K × 28": (Dataset.of(table.features), table.label, 28 * rows),
        f"Allstate-like, {rows // 4000}K × 4227": (sparse, hot.label, len(hot.values)),
    }
    return [each for name, (data, label, entries) in sets.items() for each in _sizes(name, data, label, entries, turns)]


def _sizes(name: str, data: Dataset, label: Any, entries: int, turns: int) -> list[Row]:
    params, workers = Params(max_depth=8, learning_rate=0.1), Workers(THREADS)
    hessian = np.random.default_rng(0).uniform(0.1, 0.25, len(label)).astype(np.float32)
    gradient = (0.5 - label) * hessian
    with tempfile.TemporaryDirectory() as folder:
        growers = {
            e: ExternalGrower(
                ingest([data], Path(folder) / str(e), 256, workers, memory=1 << 30, block_rows=1 << e,
                       compression="none"),
                params, workers,
            )
            for e in EXPONENTS if 1 << (e - 1) < len(label)
        }  # fmt: skip
        wall: dict[int, list[float]] = {e: [] for e in growers}
        used: dict[int, list[float]] = {e: [] for e in growers}
        for turn in range(turns + 1):
            for e, grower in growers.items():
                began, cpu = time.perf_counter(), time.process_time()
                grower.grow(gradient, hessian, EVERY_COLUMN)
                if turn:
                    wall[e].append(time.perf_counter() - began)
                    used[e].append(time.process_time() - cpu)
    return _rows(name, entries, {e: min(times) for e, times in wall.items()}, {e: min(t) for e, t in used.items()})


def _rows(name: str, entries: int, wall: Mapping[int, float], used: Mapping[int, float]) -> list[Row]:
    best, cpu = min(wall.values()), min(used.values())
    return [
        row(f"Fig. 2.9: {name}, blocks of 2^{e} rows, ns a tree and entry", 1e9 * seconds / entries,
            {"best size": 1e9 * best / entries}, "shape", f"{used[e] / cpu:.2f} of the least CPU time")
        for e, seconds in wall.items()
    ]  # fmt: skip

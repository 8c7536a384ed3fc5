"""The first fit and the first prediction of a process: with an empty cache all kernels are compiled, then loaded.

A dense table and a sparse one of one-hot columns, whose kernels are others.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks.boosting.report import Row, row

ROWS = 20_000  # what takes time is compiling, not growing

_CHILD = """
import json, sys, time
import scipy.sparse
from benchmarks.boosting.datasets import {data}
from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.grower import HistGrower  # else imported by the first fit
from burnish.boost.prediction import predict

table = {data}({rows})
features = table.features if "{data}" == "higgs_like" else scipy.sparse.csr_matrix(
    (table.values, table.columns, table.start), ({rows}, 4227)
)
model, seconds = None, []

def fit():
    global model
    params = {{"objective": "logistic", "max_depth": 8}}
    model = train(params, Dataset.of(features, label=table.label), 1, threads=2)

for call in (fit, fit, lambda: predict(model, features), lambda: predict(model, features)):
    began = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - began)
print(json.dumps([seconds[0] - seconds[1], seconds[2] - seconds[3]]))
"""


def _process(data: str, cache: str) -> list[float]:
    """Seconds that the first fit and the first prediction take longer than the second, in a new process."""
    command = [sys.executable, "-c", _CHILD.format(data=data, rows=ROWS)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(value) for value in json.loads(done.stdout)]


def measure(quick: bool = False) -> list[Row]:
    """Rows of the table. Imports of the package are not counted, those that numba makes when it is called are."""
    return [
        *_rows("higgs_like", f"hist {ROWS:,} × 28, depth 8", quick),
        *_rows("one_hot", f"hist {ROWS:,} × 4,227 at 1 %, depth 8", quick),
    ]


def _rows(data: str, name: str, quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as cache:
        compiled = _process(data, cache)
        runs = [_process(data, cache) for _ in range(2 if quick else 5)]
    cached = [statistics.median(times) for times in zip(*runs, strict=True)]
    return [
        row(f"{name}: first fit, empty cache, s", compiled[0], None, "≤ 10 s", "beyond a second fit"),
        row(f"{name}: first prediction after it, empty cache, s", compiled[1], None, "", "beyond a second prediction"),
        row(f"{name}: cached first fit in a new process, s", cached[0], None, "≤ 0.5 s", "beyond a second fit"),
        row(f"{name}: cached first prediction, s", cached[1], None, "", "beyond a second prediction"),
    ]

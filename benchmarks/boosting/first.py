"""The first fit and the first prediction of a process: with an empty cache all kernels are compiled, then loaded."""

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
from benchmarks.boosting.datasets import higgs_like
from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.grower import HistGrower  # else imported by the first fit
from burnish.boost.prediction import predict

table = higgs_like({rows})
model, seconds = None, []

def fit():
    global model
    params = {{"objective": "logistic", "max_depth": 8}}
    model = train(params, Dataset.of(table.features, label=table.label), 1, threads=2)

for call in (fit, fit, lambda: predict(model, table.features), lambda: predict(model, table.features)):
    began = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - began)
print(json.dumps([seconds[0] - seconds[1], seconds[2] - seconds[3]]))
"""


def _process(cache: str) -> list[float]:
    """Seconds that the first fit and the first prediction take longer than the second, in a new process."""
    command = [sys.executable, "-c", _CHILD.format(rows=ROWS)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(value) for value in json.loads(done.stdout)]


def measure(quick: bool = False) -> list[Row]:
    """Rows of the table. Imports of the package are not counted, those that numba makes when it is called are."""
    with tempfile.TemporaryDirectory() as cache:
        compiled = _process(cache)
        runs = [_process(cache) for _ in range(2 if quick else 5)]
    cached = [statistics.median(times) for times in zip(*runs, strict=True)]
    name = f"hist {ROWS:,} × 28, depth 8"
    return [
        row(f"{name}: first fit, empty cache, s", compiled[0], None, "≤ 10 s", "beyond a second fit"),
        row(f"{name}: first prediction after it, empty cache, s", compiled[1], None, "", "beyond a second prediction"),
        row(f"{name}: cached first fit in a new process, s", cached[0], None, "≤ 0.5 s", "beyond a second fit"),
        row(f"{name}: cached first prediction, s", cached[1], None, "", "beyond a second prediction"),
    ]

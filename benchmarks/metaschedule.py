"""Burnish's tuner against TVM's MetaSchedule: the same layer, the same seconds and cores, best kernels in turns.

TVM tunes boosted trees with evolutionary search over its own spaces, convolutions in channels-last layout, which is
its faster one; its weights are constant in neither layout nor time, and are laid out before the clock starts, as ours
are. Burnish may choose any algorithm. Each side is stopped when its seconds have passed, TVM at the end of the batch
of 64 that it is in; Burnish ends earlier where its own rule expects nothing more of going on. Rates are operations of
the definition a second, of kernels called from native code, hot.

`python -m benchmarks.metaschedule [LAYER ...] [--seconds S] [--json]`, with the extra `tvm`
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import harness
from benchmarks.gather import main_kernel
from benchmarks.layers import LAYERS, Convolution, Layer, Product
from benchmarks.operators import SQUARE, operators
from benchmarks.provenance import stored
from burnish.base.optional import require
from burnish.driver.tuned import BUILD_LIMIT
from burnish.machines.target import Target, host
from burnish.runtime.pool import available_cores
from burnish.tune.evaluate import Evaluator
from burnish.tune.evaluate.stopping import Fixed
from burnish.tune.records import RecordFile, machine
from burnish.tune.session import Session, SessionOutcome, Tune

BATCH = 64  # trials that MetaSchedule proposes at once, by its own default: a batch of 16 takes it nearly as long
ROUNDS = 9
ALL: dict[str, Layer] = {**LAYERS, SQUARE.name: SQUARE}
DEFAULT = ("C2", "C6", "C9", "D3", "M1", "P1024")


@dataclass(frozen=True)
class Row:
    """GFLOP/s of the best kernels, medians of the rounds, and the trials that each side made in its seconds.

    ``spent``: the seconds after which Burnish ended.
    """

    layer: str
    burnish: float
    tvm: float
    ratio: float
    trials: int
    tvm_trials: int
    spent: float


def workload(layer: Layer) -> list[Any]:
    """A layer as TVM's tensors, the output last: a convolution with bias and ReLU, channels last; or a product."""
    te, topi = require("tvm.te", "tvm"), require("tvm.topi", "tvm")
    if isinstance(layer, Product):
        a = te.placeholder((layer.rows, layer.depth), name="a")
        b = te.placeholder((layer.depth, layer.columns), name="b")
        bias = te.placeholder((layer.columns,), name="bias")
        return [a, b, bias, topi.add(topi.nn.matmul(a, b), bias)]
    assert isinstance(layer, Convolution)
    outputs, inputs, kernel = *layer.weight_shape[:2], layer.kernel
    depthwise = layer.groups > 1
    x = te.placeholder((1, layer.size, layer.size, layer.channels_in), name="x")
    w = te.placeholder((kernel, kernel, outputs, 1) if depthwise else (kernel, kernel, inputs, outputs), name="w")
    bias = te.placeholder((outputs,), name="bias")
    convolve = topi.nn.depthwise_conv2d_nhwc if depthwise else topi.nn.conv2d_nhwc
    y = topi.nn.relu(topi.add(convolve(x, w, layer.stride, kernel // 2, 1), bias))
    return [x, w, bias, y]


def tune_tvm(layer: Layer, seconds: float, here: Target) -> tuple[Callable[[], float], int]:
    """A call that gives the seconds of a run of TVM's best kernel, and how many trials it had."""
    tvm, schedule = require("tvm", "tvm"), require("tvm.s_tir.meta_schedule", "tvm")
    deadline, trials = time.monotonic() + seconds, 0

    @require("tvm.ir.utils", "tvm").derived_object
    class Deadline(schedule.measure_callback.PyMeasureCallback):  # type: ignore[name-defined]
        def apply(self, _scheduler: Any, _task: Any, candidates: Any, _builds: Any, _runs: Any) -> None:
            nonlocal trials
            trials += len(candidates)
            if time.monotonic() > deadline:
                raise TimeoutError("the seconds have passed")

    logging.disable(logging.WARNING)
    tensors = workload(layer)
    function = require("tvm.te", "tvm").create_prim_func(tensors)
    shapes = [tuple(map(int, tensor.shape)) for tensor in tensors]
    cpu = tvm.target.Target({"kind": "llvm", "mcpu": here.cpu, "num-cores": available_cores()})
    with tempfile.TemporaryDirectory() as folder:
        database = schedule.database.JSONDatabase(work_dir=folder)
        try:
            schedule.tune_tir(
                function, cpu, folder, max_trials_global=1 << 20, num_trials_per_iter=BATCH, database=database, seed=0,
                measure_callbacks=[*schedule.MeasureCallback.create("default"), Deadline()],
            )  # fmt: skip
        except Exception as error:  # TVM wraps it
            if "the seconds have passed" not in str(error):
                raise
        best = schedule.tir_integration.compile_tir(database, function, cpu)
    random = np.random.default_rng(0)
    arrays = [tvm.runtime.tensor(random.standard_normal(shape, dtype=np.float32)) for shape in shapes]
    built = tvm.compile(best.mod, target=cpu).jit()
    timer = built.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=20)
    return lambda: float(timer(*arrays).median), trials


def tune_burnish(name: str, seconds: float, evaluator: Evaluator) -> tuple[Callable[[], float], SessionOutcome]:
    """The same of Burnish's best kernel, with the whole outcome."""
    task = main_kernel(operators()[name])
    with tempfile.TemporaryDirectory() as folder:
        settings = Tune(seconds=seconds)
        outcome = Session([task], RecordFile(Path(folder) / "records.jsonl"), evaluator, settings).run()
    (kernel,) = outcome.kernels
    best = kernel.race.best if kernel.race else None
    if best is None:
        default = evaluator.default(task.space.default.alternative.task)
        best = default, evaluator.build([default])[0]
    rule = Fixed(10, 2e-3)

    def run() -> float:
        evaluator.rule = rule
        return evaluator.measure(*best).seconds

    return run, outcome


def compare(name: str, seconds: float, evaluator: Evaluator) -> Row:
    """Both sides tuned one after the other, then timed in turns."""
    layer = ALL[name]
    ours, outcome = tune_burnish(name, seconds, evaluator)
    theirs, tvm_trials = tune_tvm(layer, seconds, evaluator.target)
    times: list[tuple[float, float]] = []
    for turn in range(ROUNDS):
        pair = {call: call() for call in ((ours, theirs) if turn % 2 else (theirs, ours))}
        times.append((pair[ours], pair[theirs]))
    rates = [layer.flops / statistics.median(own) / 1e9 for own in zip(*times, strict=True)]
    ratio = statistics.median(b / a for a, b in times)
    return Row(name, rates[0], rates[1], ratio, outcome.trials, tvm_trials, outcome.seconds)


def show(rows: Sequence[Row], seconds: float) -> None:
    table = Table(title=f"Best kernel after {seconds:g} s of tuning, GFLOP/s")
    for heading in ("layer", "burnish", "tvm", "ratio", "trials", "tvm's", "seconds"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.layer,
            f"{row.burnish:.0f}",
            f"{row.tvm:.0f}",
            f"{row.ratio:.2f}×",
            *map(str, (row.trials, row.tvm_trials)),
            f"{row.spent:.0f}",
        )
    table.add_section()
    table.add_row("geometric mean", "", "", f"{harness.geometric_mean([row.ratio for row in rows]):.2f}×", *[""] * 3)
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=list(DEFAULT), help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tuning for each side (default %(default)g)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    harness.check_names(parser, arguments.layers, ALL)
    with Evaluator(build_limit=BUILD_LIMIT) as evaluator:
        measure = partial(compare, seconds=arguments.seconds, evaluator=evaluator)
        rows = [measure(name) for name in track(arguments.layers, disable=arguments.json, transient=True)]
    if arguments.json:
        report = {"machine": machine(host()), "seconds": arguments.seconds, "rows": [asdict(row) for row in rows]}
        print(stored(report, indent=2))
    else:
        show(rows, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Tuned operators beside a library (AutoTVM's figure 5.10): what a session finds by the clock, then in turns.

A scale-down of the paper's: the layers of Table 4.2 on a CPU, beside onnxruntime and OpenVINO in the place of cuDNN and
TFLite. Each layer is tuned from nothing, by Burnish's strategy in its own spaces, and by AutoTVM's in the space that
follows from the definition, which knows no Winograd; `curve`: seconds of the session, trials, and the least time so
far of what is searched, in microseconds. `microseconds`: of the layer compiled tuned and untuned and of the libraries,
in turns.

`python -m benchmarks.tune_operators [LAYER ...] [--trials N] [--threads N] [--seconds S] [--json]`
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from rich.console import Console
from rich.table import Table

from benchmarks import harness, layers
from benchmarks.provenance import stored
from benchmarks.study import MACHINE, SEARCH, kernel
from burnish.driver.compilation import import_graph
from burnish.driver.tuned import BUILD_LIMIT, tune_model
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error
from burnish.tune.evaluate import Evaluator
from burnish.tune.records import RecordFile, machine
from burnish.tune.session import Session, Tune

Curve = list[tuple[float, int, float]]


@dataclass(frozen=True)
class Row:
    """A layer: microseconds a call by contender, the faster library's over Burnish's tuned, and both curves."""

    layer: str
    microseconds: dict[str, float]
    speedup: float | None
    curve: Curve
    autotvm_curve: Curve
    error: float | None


def measure(layer: layers.Layer, trials: int, threads: int, seconds: float) -> Row:
    """Tunes a layer in both spaces, and times it beside the libraries."""
    model, inputs = layers.model(layer), {"x": layers.input_array(layer)}
    options = Tune(seconds=None, trials=trials, min_gain=0.0)
    graph, curve, other = import_graph(onnx.load_from_string(model)), Curve(), Curve()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        tuned = tune_model(graph, options, path, target=MACHINE, threads=threads, watch=partial(_note, curve))
        with Evaluator(MACHINE, threads=threads, build_limit=BUILD_LIMIT) as evaluator:
            records, watch = RecordFile(Path(folder) / "others.jsonl"), partial(_note, other)
            Session([kernel(layer.name)], records, evaluator, options, progress=watch, strategy=SEARCH).run()
    runs = {
        "burnish": peers.compiled(tuned.module), "untuned": harness.burnish_run(model, threads, "cpu,-amx"),
        **{name: peers.prepare(name, model, threads) for name in harness.PEERS},
    }  # fmt: skip
    error = scaled_error(runs["burnish"](inputs), runs[harness.ORACLE](inputs))
    calls: dict[str, Callable[[], object]] = {name: partial(run, inputs) for name, run in runs.items()}
    row = harness.compare(layer.name, "tuned", calls, seconds, error)
    return Row(layer.name, row.microseconds, row.speedup, curve, other, error)


def _note(curve: Curve, session: Session) -> None:
    least = 1e6 * sum(kernel.tuner.seconds for kernel in session.kernels)
    if least < float("inf"):
        curve.append((round(session.elapsed, 3), session.trials, round(least, 2)))


def show(rows: Sequence[Row]) -> None:
    names = list(rows[0].microseconds)
    table = Table("layer", *(f"{name} µs" for name in names), "speedup", "session s", title="Figure 5.10 on this CPU")
    for each in rows:
        cells = [f"{each.microseconds[name]:.0f}" for name in names]
        table.add_row(each.layer, *cells, f"{each.speedup or 0:.2f}", f"{each.curve[-1][0]:.1f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", help="default: C1 to C12")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of the comparison of a layer")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args()
    harness.check_names(parser, given.layers, layers.LAYERS)
    chosen = [layers.LAYERS[name] for name in given.layers] or list(layers.CONVOLUTIONS)
    rows = [measure(layer, given.trials, given.threads, given.seconds) for layer in chosen]
    if given.json:
        settings: dict[str, Any] = {"machine": machine(MACHINE), "trials": given.trials, "threads": given.threads}
        print(stored({**settings, "rows": [asdict(each) for each in rows]}))
    else:
        show(rows)
    return int(any(each.error is not None and not each.error <= harness.ALLOWED_ERROR for each in rows))


if __name__ == "__main__":
    sys.exit(main())

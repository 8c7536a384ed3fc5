"""Tuned operators against a library (AutoTVM's figure 5.10): what a session finds by the clock, then in turns.

A scale-down of the paper's: layers of Table 4.2 on one thread of a CPU, beside onnxruntime and OpenVINO in the place of
cuDNN and TFLite. Each layer is tuned from nothing; `curve`: seconds of the session, trials, and the least time of all
kernels so far, in microseconds. `microseconds`: CPU time of a call of the layer compiled tuned and untuned and of the
libraries, the least of turns, so that what else the machine does is in none.

`python -m benchmarks.tune_operators [LAYER ...] [--trials N] [--json]`
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from rich.console import Console
from rich.table import Table

from benchmarks import harness, layers
from benchmarks.provenance import stored
from benchmarks.rewriting.turns import least_seconds
from benchmarks.study import MACHINE
from burnish.driver.compilation import import_graph
from burnish.driver.tuned import tune_model
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error
from burnish.tune.records import machine
from burnish.tune.session import Session, Tune

Curve = list[tuple[float, int, float]]
ROUNDS = 15  # turns


@dataclass(frozen=True)
class Row:
    """A layer: microseconds a call by contender, the faster library's over Burnish's tuned, and the curve."""

    layer: str
    microseconds: dict[str, float]
    speedup: float
    curve: Curve
    error: float


def measure(layer: layers.Layer, trials: int) -> Row:
    """Tunes a layer, and times it against the libraries."""
    model, inputs = layers.model(layer), {"x": layers.input_array(layer)}
    options = Tune(seconds=None, trials=trials, min_gain=0.0)
    graph, curve = import_graph(onnx.load_from_string(model)), Curve()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        tuned = tune_model(graph, options, path, target=MACHINE, threads=1, watch=partial(_note, curve))
    runs = {
        "burnish": peers.compiled(tuned.module), "untuned": harness.burnish_run(model, 1, "cpu,-amx"),
        **{name: peers.prepare(name, model, 1) for name in harness.PEERS},
    }  # fmt: skip
    error = scaled_error(runs["burnish"](inputs), runs[harness.ORACLE](inputs))
    least = least_seconds({name: partial(run, inputs) for name, run in runs.items()}, ROUNDS)
    times = {name: 1e6 * seconds for name, seconds in least.items()}
    return Row(layer.name, times, min(times[name] for name in harness.PEERS) / times["burnish"], curve, error)


def _note(curve: Curve, session: Session) -> None:
    least = 1e6 * sum(kernel.tuner.seconds for kernel in session.kernels)
    if least < float("inf"):
        curve.append((round(session.elapsed, 3), session.trials, round(least, 2)))


def show(rows: Sequence[Row]) -> None:
    names = list(rows[0].microseconds)
    table = Table("layer", *(f"{name} µs" for name in names), "speedup", "session s", title="Figure 5.10 on this CPU")
    for each in rows:
        cells = [f"{each.microseconds[name]:.0f}" for name in names]
        table.add_row(each.layer, *cells, f"{each.speedup:.2f}", f"{each.curve[-1][0]:.1f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", help="default: C1 to C12")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args()
    harness.check_names(parser, given.layers, layers.LAYERS)
    chosen = [layers.LAYERS[name] for name in given.layers] or list(layers.CONVOLUTIONS)
    rows = [measure(layer, given.trials) for layer in chosen]
    if given.json:
        settings: dict[str, Any] = {"machine": machine(MACHINE), "trials": given.trials, "threads": 1}
        print(stored({**settings, "rows": [asdict(each) for each in rows]}))
    else:
        show(rows)
    return int(any(not each.error <= harness.ALLOWED_ERROR for each in rows))


if __name__ == "__main__":
    sys.exit(main())

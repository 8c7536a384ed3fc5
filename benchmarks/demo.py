"""The demo: compiles light_resnet50, tunes it, checks it, and prints its time against onnxruntime's and OpenVINO's."""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

import burnish as bn
from benchmarks import models
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error

MODEL = "light_resnet50"
THREADS = 2
TUNING_SECONDS = 90.0  # at most: tuning ends where little is left to gain
ALLOWED_ERROR = 1e-4


def main() -> int:
    console = Console()
    path = models.build(MODEL)
    with console.status(f"compiling {MODEL}"):
        start = time.perf_counter()
        untuned = bn.compile(path, threads=THREADS)
        compile_seconds = time.perf_counter() - start
    console.print(f"{MODEL}: compiled in {compile_seconds:.2f} s, arena {untuned.memory['arena'] / 1e6:.1f} MB")

    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        start = time.perf_counter()
        tuned = tune(path, records, console)
        console.print(f"  tuned in {time.perf_counter() - start:.0f} s, the finals in the model among them")
        errors = {
            "against the output stored beside the model": stored_error(tuned),
            "with random weights, against onnxruntime": random_weights_error(records),
        }
    for question, error in errors.items():
        console.print(f"  max error / scale {question}: {error:.1e}")

    inputs = models.inputs(MODEL, seed=1)
    runs = {"burnish, tuned": peers.compiled(tuned), "burnish, untuned": peers.compiled(untuned)}
    runs |= {name: peers.prepare(name, path, THREADS) for name in ("onnxruntime", "openvino")}
    with console.status("timing, in turns"):
        timings = peers.alternate({name: partial(run, inputs) for name, run in runs.items()}, seconds=12)
    table = Table(title=f"{MODEL}, batch 1, float32, {THREADS} threads")
    table.add_column("")
    table.add_column("median ms", justify="right")
    table.add_column("tuned is faster by", justify="right")
    first, *others = timings
    table.add_row(first, f"{timings[first].median * 1e3:.2f}", "")
    for name in others:
        faster = peers.speedup(timings[first], timings[name])
        table.add_row(name, f"{timings[name].median * 1e3:.2f}", f"{faster:.2f}×")
    console.print(table)
    wrong = any(not error <= ALLOWED_ERROR for error in errors.values())
    console.print("[red]wrong answer[/red]" if wrong else "answers agree")
    return int(wrong)


def tune(path: Path, records: Path, console: Console) -> bn.Module:
    """The model tuned; the records say how its kernels are built from now on."""
    with console.status(f"tuning {MODEL}") as status:

        def show(stage: str, done: int, total: int) -> None:
            if stage == "tune":
                status.update(f"tuning {MODEL}: {done} of at most {total} s")

        made = bn.compile(path, threads=THREADS, tune=bn.Tune(TUNING_SECONDS), records=records, progress=show)
        assert isinstance(made, bn.Module)
        return made


def stored_error(module: bn.Module) -> float:
    """Error on the case that the `onnx` package stores; its constant weights give every class the same score."""
    inputs, output = models.stored_case(MODEL)
    return scaled_error(peers.compiled(module)(inputs), [output])


def random_weights_error(records: Path) -> float:
    """Error of the same tuned kernels with weights that make every value matter."""
    proto = models.randomized(MODEL)
    inputs = models.inputs(MODEL, seed=1)
    expected = peers.prepare("onnxruntime", proto.SerializeToString(), THREADS)(inputs)
    return scaled_error(peers.compiled(bn.compile(proto, threads=THREADS, records=records))(inputs), expected)


if __name__ == "__main__":
    sys.exit(main())

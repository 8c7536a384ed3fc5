"""The demo: compiles light_resnet50, checks it, and prints its time beside onnxruntime's and OpenVINO's."""

import sys
import time
from functools import partial

from rich.console import Console
from rich.table import Table

import burnish as bn
from benchmarks import models
from burnish import peers
from burnish.accuracy import scaled_error

MODEL = "light_resnet50"
THREADS = 2
ALLOWED_ERROR = 1e-4


def main() -> int:
    console = Console()
    path = models.build(MODEL)
    with console.status(f"compiling {MODEL}"):
        start = time.perf_counter()
        module = bn.compile(path, threads=THREADS)
        compile_seconds = time.perf_counter() - start
    console.print(f"{MODEL}: compiled in {compile_seconds:.2f} s, arena {module.memory['arena'] / 1e6:.1f} MB")

    errors = {
        "against the output stored beside the model": stored_error(module),
        "with random weights, against onnxruntime": random_weights_error(),
    }
    for question, error in errors.items():
        console.print(f"  max error / scale {question}: {error:.1e}")

    inputs = models.inputs(MODEL, seed=1)
    runs = {"burnish": peers.compiled(module)}
    runs |= {name: peers.prepare(name, path, THREADS) for name in ("onnxruntime", "openvino")}
    with console.status("timing, in turns"):
        timings = peers.alternate({name: partial(run, inputs) for name, run in runs.items()}, seconds=9)
    table = Table(title=f"{MODEL}, batch 1, float32, {THREADS} threads")
    table.add_column("")
    table.add_column("median ms", justify="right")
    table.add_column("burnish is faster by", justify="right")
    for name, timing in timings.items():
        faster = "" if name == "burnish" else f"{peers.speedup(timings['burnish'], timing):.2f}×"
        table.add_row(name, f"{timing.median * 1e3:.2f}", faster)
    console.print(table)
    wrong = any(not error <= ALLOWED_ERROR for error in errors.values())
    console.print("[red]wrong answer[/red]" if wrong else "answers agree")
    return int(wrong)


def stored_error(module: bn.Module) -> float:
    """Error on the case that the `onnx` package stores; its constant weights give every class the same score."""
    inputs, output = models.stored_case(MODEL)
    return scaled_error(peers.compiled(module)(inputs), [output])


def random_weights_error() -> float:
    """Error of the same network with weights that make every value matter."""
    proto = models.randomized(MODEL)
    inputs = models.inputs(MODEL, seed=1)
    expected = peers.prepare("onnxruntime", proto.SerializeToString(), THREADS)(inputs)
    return scaled_error(peers.compiled(bn.compile(proto, threads=THREADS))(inputs), expected)


if __name__ == "__main__":
    sys.exit(main())

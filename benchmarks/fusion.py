"""Fused against unfused operators on this CPU: the workloads of thesis-chen Figure 4.4, timed in turns.

`python -m benchmarks.fusion [WORKLOAD ...] [--threads 1] [--seconds 20] [--target cpu] [--json [FILE]]`

Scales and shifts of batch normalizations are inputs: as constants they would become part of the weights, and nothing
would be left to fuse. Cells are written as products and element-wise operators, batch 1. `speedup` is the median over
rounds of the unfused time of a call over the fused one, with its 95 % interval; `steps` the same of the kernels' own
times, without the call from Python, of which a cell's time mostly is; `saved` are the bytes of intermediate values that
fusion keeps from memory. The paper has 1.2 to 2 times on a GPU.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import burnish as bn
from benchmarks import harness
from benchmarks.provenance import stored
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import Graph, GraphBuilder
from burnish.machines.target import target as find_target
from burnish.measure.accuracy import scaled_error
from burnish.measure.comparison import time_in_turns
from burnish.runtime.host import fingerprint
from burnish.runtime.module import Module

HIDDEN = 128
ROUNDS, RUNS = 9, 50  # of profiles that take turns, and calls of each


@dataclass(frozen=True)
class Row:
    """One workload: kernels and microseconds of a call, fused and not; of both, the larger error."""

    workload: str
    form: str
    fused_kernels: int
    unfused_kernels: int
    fused_microseconds: float
    unfused_microseconds: float
    speedup: float
    low: float
    high: float
    steps: float
    saved_bytes: int
    error: float


def convolution(channels: int, size: int, outputs: int, kernel: int, groups: int) -> Graph:
    """A convolution, a batch normalization by a scale and a shift for each channel, and ReLU."""
    b = GraphBuilder()
    x = b.input("x", (1, channels, size, size))
    scale, shift = (b.input(name, (1, outputs, 1, 1)) for name in ("scale", "shift"))
    weight = b.constant(_values(outputs, channels // groups, kernel, kernel))
    y = b.add("conv2d", x, weight, pads=(kernel // 2,) * 4, groups=groups)
    return b.build(b.add("relu", b.add("add", b.add("mul", y, scale), shift)))


def rnn_cell(hidden: int) -> Graph:
    """h' = tanh(x W + h U + b)."""
    b = GraphBuilder()
    return b.build(b.add("tanh", _gates(b, hidden, 1)))


def lstm_cell(hidden: int) -> Graph:
    """c' = s(f) c + s(i) tanh(g), h' = s(o) tanh(c'), with gates i, f, g, o = x W + h U + b and s the sigmoid."""
    b = GraphBuilder()
    gates, c = _gates(b, hidden, 4), b.input("c", (1, hidden))
    parts = [b.add("slice", gates, starts=(0, n * hidden), extents=(1, hidden)) for n in range(4)]
    i, f, g, o = (b.add("tanh" if n == 2 else "sigmoid", part) for n, part in enumerate(parts))
    new = b.add("add", b.add("mul", f, c), b.add("mul", i, g))
    return b.build(b.add("mul", o, b.add("tanh", new)), new)


def _gates(b: GraphBuilder, hidden: int, gates: int) -> str:
    x, h = b.input("x", (1, hidden)), b.input("h", (1, hidden))
    products = [b.add("matmul", t, b.constant(_values(hidden, gates * hidden))) for t in (x, h)]
    return b.add("add", b.add("add", *products), b.constant(_values(1, gates * hidden)))


def _values(*shape: int) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


WORKLOADS: Mapping[str, tuple[str, Callable[[], Graph]]] = {
    "conv+bn+relu": ("128x28x28, 1x1x128x256", lambda: convolution(128, 28, 256, 1, 1)),
    "depthwise-conv+bn+relu": ("512x14x14, 3x3x512", lambda: convolution(512, 14, 512, 3, 512)),
    "rnn cell": (f"hidden {HIDDEN}", lambda: rnn_cell(HIDDEN)),
    "lstm cell": (f"hidden {HIDDEN}", lambda: lstm_cell(HIDDEN)),
}


def inputs(graph: Graph) -> dict[str, np.ndarray]:
    """Standard normal values for every input."""
    random = np.random.default_rng(1)
    return {n: random.standard_normal(graph.types[n].shape).astype(np.float32) for n in graph.inputs}


def intermediate_bytes(module: Module) -> int:
    """Bytes that a call writes to the arena."""
    return sum(c.args[-1].nbytes for c in module.executable.calls if c.args and c.args[-1].memory == "arena")


def steps_ratio(fused: Module, unfused: Module, feeds: Mapping[str, np.ndarray]) -> float:
    """The unfused time of all kernels over the fused one: the median of rounds that take turns."""
    ratios = []
    for _ in range(ROUNDS):
        own, other = (sum(row.microseconds for row in m.profile(repeat=RUNS, **feeds)) for m in (fused, unfused))
        ratios.append(other / own)
    return float(np.median(ratios))


def measure(name: str, target: str, threads: int, seconds: float) -> Row:
    """Compiles a workload both ways, compares their answers with the definitions, and times them in turns."""
    form, build = WORKLOADS[name]
    graph = build()
    feeds = inputs(graph)
    modules = [bn.compile(graph, target=target, threads=threads, rewrite=False, fuse=fuse) for fuse in (True, False)]
    first, second = modules
    wanted = list(evaluate(graph, feeds).values())
    found = [module(**feeds) for module in modules]
    error = max(scaled_error(list(f) if isinstance(f, tuple) else [f], wanted) for f in found)
    compared = time_in_turns(first, second, feeds, most_seconds=seconds)
    fused, unfused = (float(np.median(times)) * 1e6 for times in compared.times)
    saved = intermediate_bytes(second) - intermediate_bytes(first)
    return Row(
        name, form, len(first.executable.calls), len(second.executable.calls), fused, unfused,
        compared.ratio, compared.low, compared.high, steps_ratio(first, second, feeds), saved, error,
    )  # fmt: skip


def table(rows: list[Row]) -> Table:
    """The rows as the paper's figure has them: fused against unfused."""
    result = Table(title="Figure 4.4 on this CPU: fused against unfused")
    result.add_column("workload")
    for heading in ("kernels", "µs unfused", "µs fused", "speedup", "95 %", "steps", "saved kB", "error"):
        result.add_column(heading, justify="right")
    for row in rows:
        result.add_row(
            f"{row.workload} {row.form}", f"{row.unfused_kernels} -> {row.fused_kernels}",
            f"{row.unfused_microseconds:.1f}", f"{row.fused_microseconds:.1f}", f"{row.speedup:.2f}x",
            f"{row.low:.2f} to {row.high:.2f}", f"{row.steps:.2f}x", f"{row.saved_bytes / 1e3:.0f}", f"{row.error:.0e}",
        )  # fmt: skip
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fusion", description=__doc__)
    parser.add_argument("names", nargs="*", help="what to run (default: everything)")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="at most, for each workload")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="one JSON object, printed or in a file")
    arguments = parser.parse_args()
    harness.check_names(parser, arguments.names, WORKLOADS)
    names = arguments.names or list(WORKLOADS)
    rows = [measure(name, arguments.target, arguments.threads, arguments.seconds) for name in names]
    machine = find_target(arguments.target)
    said = {"cpu": fingerprint(machine.triple, machine.cpu, machine.features), "threads": arguments.threads}
    report = stored({**said, "rows": [asdict(row) for row in rows]}, indent=2)
    if arguments.json == "-":
        print(report)
    elif arguments.json is not None:
        Path(arguments.json).write_text(report + "\n", encoding="utf-8")
    if arguments.json != "-":
        Console(width=None if sys.stdout.isatty() else 130).print(table(rows))
    return int(any(not row.error <= harness.ALLOWED_ERROR for row in rows))


if __name__ == "__main__":
    sys.exit(main())

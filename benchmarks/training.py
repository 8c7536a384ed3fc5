"""Training steps against PyTorch's, and the kernels of their backward pass against PyTorch's and our own forward ones.

Steps are forward, loss, backward and an update by SGD with momentum: ResNet-18 at 16×224² and at 64×32², a perceptron,
a GPT, an LSTM language model. All contenders begin with the same weights, whose losses of the first steps are compared,
and take turns: PyTorch eager, with images channels last, by torch.compile where there is a C++ compiler, and Burnish.
`ratio` is Burnish's time over that of the fastest of them; with `--exact`, Burnish runs a second time without
transformations that change rounding (no Winograd), reported as `exact_ratio`. Kernels: gradients of convolutions
C2…C12 and depthwise D1…D9 (TVM paper, Table 4.2, batch 16) by input and by weight, of matrix products by both factors,
of pools, norms, softmax and an embedding; `forward` is our own forward kernel's time without Winograd.

`python -m benchmarks.training [ROW ...] [--threads N] [--rounds N] [--clock cpu|wall] [--exact] [--note TEXT]
[--json FILE]`: rows are names of steps and of kernels, or `steps` and `kernels`. The clock is by default the CPU time
of all threads: on a machine that others use too it says what a step takes, not what one waits for.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import burnish as bn
from benchmarks import harness
from benchmarks.architectures.trained import WORKLOADS, workload
from benchmarks.backward import KERNELS, backward_calls
from benchmarks.provenance import stored
from burnish.base.optional import require
from burnish.machines.target import target
from burnish.measure.peers import SETTLE_SECONDS

RATE, MOMENTUM = 0.01, 0.9
COMPARED, ALLOWED_ERROR = 3, 1e-3  # steps whose losses are compared, and how far they may differ, of the loss
OURS, EXACT, FORWARD = "burnish", "exact", "forward"
Call = Callable[[], Any]
CLOCKS: Mapping[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


@dataclass(frozen=True)
class Row:
    """One measurement: median milliseconds of each contender, ours over the fastest other's, error of answers.

    ``exact_ratio``: that of the exact contender, None where it did not run.
    """

    name: str
    milliseconds: dict[str, float]
    ratio: float
    error: float
    note: str = ""
    exact_ratio: float | None = None


def torch_step(network: Any, x: Any, label: Any, compiled: bool = False) -> Call:
    """A step of PyTorch, which gives the loss before the update."""
    torch = require("torch", extra="torch")
    optimizer = torch.optim.SGD(network.parameters(), RATE, MOMENTUM)
    run = torch.compile(network) if compiled else network

    def step() -> Any:
        optimizer.zero_grad()
        logits = run(x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), label.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def step_calls(name: str, threads: int, exact: bool) -> dict[str, Call]:
    """The contenders of a training step, each on a network of its own; ``exact``: with the exact one."""
    torch = require("torch", extra="torch")
    own = workload(name)
    calls = {"eager": torch_step(own.network, own.x, own.label)}
    if own.images:
        last = workload(name)
        network = last.network.to(memory_format=torch.channels_last)
        calls["channels_last"] = torch_step(network, last.x.to(memory_format=torch.channels_last), last.label)
    if shutil.which("g++"):
        other = workload(name)
        calls["compile"] = torch_step(other.network, other.x, other.label, compiled=True)
    return calls | {own: our_step(name, threads, own == EXACT) for own in (OURS, EXACT)[: 1 + exact]}


def our_step(name: str, threads: int, exact: bool) -> Call:
    """A step of Burnish, which gives the loss before the update."""
    module, arrays = step_module(name, threads, exact)
    values = tuple(arrays.values())
    return lambda: float(module(*values))


def step_module(
    name: str, threads: int, exact: bool = False, target: Any = "cpu"
) -> tuple[bn.Module, dict[str, np.ndarray]]:
    """A step of Burnish, and its inputs by name."""
    ours = workload(name)
    train = bn.Train(optimizer=bn.SGD(RATE, momentum=MOMENTUM))
    module = bn.compile(ours.network.eval(), ours.x, train=train, threads=threads, exact=exact, target=target)
    values = ours.x.numpy(), ours.label.numpy()
    return module, {spec.name: value for spec, value in zip(module.inputs, values, strict=True)}


def in_turn(calls: Mapping[str, Call], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median milliseconds of each call; they take turns, in an order that rotates.

    A turn starts after a pause in which the threads of the one before fall asleep, and a call that is not timed.
    """
    names = list(calls)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            time.sleep(SETTLE_SECONDS)
            calls[name]()
            began = clock()
            calls[name]()
            spent[name].append(clock() - began)
    return {name: statistics.median(times) * 1e3 for name, times in spent.items()}


def measure_step(name: str, threads: int, rounds: int, clock: Callable[[], float], exact: bool = False) -> Row:
    """One training step."""
    calls = step_calls(name, threads, exact)
    losses = {contender: [call() for _ in range(COMPARED)] for contender, call in calls.items()}
    wanted, found = losses["eager"], losses[OURS]
    error = max(
        abs(a - b) / abs(a) for own in (OURS, EXACT) for a, b in zip(wanted, losses.get(own, wanted), strict=True)
    )
    return row_of(name, in_turn(calls, rounds, clock), error, "loss " + " ".join(f"{loss:.4f}" for loss in found))


def measure_kernel(name: str, threads: int, rounds: int, clock: Callable[[], float]) -> Row:
    """One gradient."""
    calls, error, note = backward_calls(name, threads)
    for call in calls.values():
        call()
    return row_of(name, in_turn(calls, max(rounds, 5), clock), error, note)


def row_of(name: str, spent: dict[str, float], error: float, note: str) -> Row:
    """A row, whose ratios are to the fastest contender that is not ours."""
    fastest = min(times for contender, times in spent.items() if contender not in (OURS, EXACT, FORWARD))
    exact = spent[EXACT] / fastest if EXACT in spent else None
    return Row(name, spent, spent[OURS] / fastest, error, note, exact)


def table(rows: list[Row], title: str) -> Table:
    """The rows for people."""
    contenders = list(dict.fromkeys(name for row in rows for name in row.milliseconds))
    result = Table(title=title)
    for heading in ("", *(f"{name} ms" for name in contenders), "ratio", "exact", "error", "note"):
        result.add_column(heading, justify="right" if heading not in ("", "note") else "left")
    for row in rows:
        times = (f"{row.milliseconds[name]:.3g}" if name in row.milliseconds else "" for name in contenders)
        exact = "" if row.exact_ratio is None else f"{row.exact_ratio:.2f}"
        result.add_row(row.name, *times, f"{row.ratio:.2f}", exact, f"{row.error:.1e}", row.note)
    return result


def write(path: Path, rows: list[Row], arguments: argparse.Namespace, clock: str) -> None:
    """The rows as JSON, with what they were measured on."""
    own = target("cpu")
    head = {"cpu": own.cpu, "threads": arguments.threads, "rounds": arguments.rounds, "clock": clock}
    head |= {"torch": require("torch", extra="torch").__version__, "note": arguments.note}
    path.write_text(stored({**head, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rows to measure (default: everything)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--exact", action="store_true", help="steps also without what changes rounding")
    parser.add_argument("--note", default="", help="said in the JSON file, such as what else the machine did")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    arguments = parser.parse_args()
    groups = {"steps": list(WORKLOADS), "kernels": list(KERNELS)}
    harness.check_names(parser, arguments.names, (*groups, *WORKLOADS, *KERNELS))
    asked = arguments.names or list(groups)
    names = dict.fromkeys(row for name in asked for row in groups.get(name, [name]))
    torch = require("torch", extra="torch")
    torch.set_num_threads(arguments.threads)
    clock, rows = CLOCKS[arguments.clock], list[Row]()
    words = {"cpu": "CPU time of all threads", "wall": "time on the clock"}[arguments.clock]
    for name in names:
        how = (name, arguments.threads, arguments.rounds, clock)
        rows.append(measure_step(*how, arguments.exact) if name in WORKLOADS else measure_kernel(*how))
        torch._dynamo.reset()
        print(f"{name}: {rows[-1].ratio:.2f}", file=sys.stderr, flush=True)
        if arguments.json:
            write(arguments.json, rows, arguments, words)  # after each row: a run may be long
    Console(width=None if sys.stdout.isatty() else 160).print(table(rows, f"{arguments.threads} threads, {words}"))
    return int(any(not row.error <= ALLOWED_ERROR for row in rows))


if __name__ == "__main__":
    sys.exit(main())

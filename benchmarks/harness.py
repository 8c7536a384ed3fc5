"""Harness of the benchmark programs: options, contenders, one result row, its table and its JSON."""

import argparse
import math
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx
from rich.console import Console
from rich.table import Table

import burnish as bn
from benchmarks.provenance import stored
from burnish.measure import peers

ORACLE = "onnxruntime"
PEERS = ("onnxruntime", "openvino")
ALLOWED_ERROR = 1e-4


@dataclass(frozen=True)
class Row:
    """One measurement: microseconds a call, paired speedup over the faster peer, error relative to the oracle's scale.

    `speedup` and `error` are None where Burnish did not take part.
    """

    name: str
    form: str
    microseconds: dict[str, float]
    speedup: float | None
    error: float | None
    note: str = ""

    @property
    def wrong(self) -> bool:
        return self.error is not None and not self.error <= ALLOWED_ERROR


def options(doc: str | None, seconds: float) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="what to measure (default: everything)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", default="cpu", help="what Burnish compiles for, such as cpu,-amx")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"time for each row (default {seconds:g})")
    parser.add_argument("--peers-only", action="store_true", help="leave Burnish out")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def chosen(
    arguments: argparse.Namespace,
    parser: argparse.ArgumentParser,
    default: Sequence[str],
    further: Sequence[str] = (),
) -> list[str]:
    """The names given on the command line, or all of ``default``; ``further`` ones must be given.

    An unknown name ends the program with the list of those allowed.
    """
    check_names(parser, arguments.names, (*default, *further))
    return arguments.names or list(default)


def check_names(parser: argparse.ArgumentParser, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Ends the program with the list of those allowed, if a name is none of them."""
    known = dict.fromkeys(allowed)
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; allowed: {', '.join(known)}")


def run_parts(
    parser: argparse.ArgumentParser, names: Iterable[str], parts: Mapping[str, Callable[[], object]], file: Path | None
) -> None:
    """Runs the parts named on the command line, in their order, and writes their rows, if to a ``file``, as JSON."""
    check_names(parser, names, parts)
    found = {name: parts[name]() for name in names}
    if file is not None:
        file.write_text(stored(found, indent=1), encoding="utf-8")


def burnish_run(model: Path | bytes, threads: int, target: str, exact: bool = False) -> peers.Run:
    """A model compiled by Burnish, with the interface of the peers."""
    source = model if isinstance(model, Path) else onnx.load_from_string(model)
    return peers.compiled(bn.compile(source, target=target, threads=threads, exact=exact))


def compare(
    name: str,
    form: str,
    contenders: dict[str, Callable[[], object]],
    seconds: float,
    error: float | None,
    calls: int = 1,
    note: str = "",
) -> Row:
    """Times the contenders in turn; `calls` is the number of layers that one call runs."""
    timings = peers.alternate(contenders, seconds)
    speedup = None
    if "burnish" in timings:
        faster = min((peer for peer in PEERS if peer in timings), key=lambda peer: timings[peer].median)
        speedup = peers.speedup(timings["burnish"], timings[faster])
    microseconds = {contender: timing.median * 1e6 / calls for contender, timing in timings.items()}
    return Row(name, form, microseconds, speedup, error, note)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def show(
    title: str, rows: Sequence[Row], as_json: bool, unit: str = "µs", extra: Mapping[str, object] | None = None
) -> int:
    """Prints the rows with the geometric mean of the speedups; the exit status is 1 if an answer was wrong."""
    speedups = [row.speedup for row in rows if row.speedup is not None]
    mean = geometric_mean(speedups) if speedups else None
    if as_json:
        report = {"cpu": platform.processor() or platform.machine(), **(extra or {}), "geometric_mean": mean}
        print(stored({**report, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        scale = {"µs": 1.0, "ms": 1e-3}[unit]
        # A pipe has no width of its own, and rich would assume too narrow a one for these tables.
        Console(width=None if sys.stdout.isatty() else 120).print(table(title, rows, unit, scale, mean))
    return int(any(row.wrong for row in rows))


def table(title: str, rows: Sequence[Row], unit: str, scale: float, mean: float | None) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row.microseconds))
    result = Table(title=title)
    result.add_column("", no_wrap=True)
    result.add_column("form")
    for heading in (*(f"{name} {unit}" for name in names), "speedup", "error"):
        result.add_column(heading, justify="right")
    result.add_column("note" if any(row.note for row in rows) else "")
    for row in rows:
        times = [f"{row.microseconds[name] * scale:.3g}" if name in row.microseconds else "" for name in names]
        speedup = "" if row.speedup is None else f"{row.speedup:.2f}×"
        error = "" if row.error is None else f"[red]{row.error:.1e} wrong[/red]" if row.wrong else f"{row.error:.1e}"
        result.add_row(row.name, row.form, *times, speedup, error, row.note)
    if mean is not None:
        result.add_section()
        result.add_row("geometric mean", "", *[""] * len(names), f"{mean:.2f}×", "", "")
    return result

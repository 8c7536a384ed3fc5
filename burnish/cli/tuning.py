"""`burnish tune`: the search for faster kernels, watched live, and a table of what it found."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from burnish.cli.compiling import Options, memory_text
from burnish.cli.output import print_json
from burnish.compiler import import_graph
from burnish.target import Target
from burnish.target import target as find_target
from burnish.tune.session import Progress, Session
from burnish.tune.session import Tune as Settings
from burnish.tuning import Tuned, described, tune_model

__all__ = ["Settings", "tune"]

FIRST = "building the untuned kernels; the first session ever also compiles the cost model, some ten seconds"
SHOWN = 24  # kernels of a model that the live table has room for: those that take the most time


def tune(model: Path, output: Path, records: Path, settings: Settings, options: Options) -> None:
    """Tunes an ONNX file, prints what was found and writes the compiled model."""
    machine = find_target(options.target)
    graph = import_graph(model)
    with watched(options.as_json) as watch:
        tuned = tune_model(
            graph, settings, records, target=machine, threads=options.threads, exact=options.exact,
            cache_dir=options.cache_dir, watch=watch,
        )  # fmt: skip
    tuned.module.save(output)
    if options.as_json:
        print_json({"output": str(output), "records": str(records), **described(tuned)})
        return
    console = Console()
    console.print(table(tuned.outcome.kernels, machine))
    console.print(summary(tuned))
    console.print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; {memory_text(tuned.module)}")
    console.print(f"{records}: all measurements; tune again to go on from them")


def summary(tuned: Tuned) -> str:
    """What came of it, in two sentences."""
    why = {
        "seconds": "the time was up", "trials": "the trials were used up", "exhausted": "every candidate was tried",
        "gain": "little was left to gain", "interrupted": "interrupted",
    }[tuned.outcome.stop_reason]  # fmt: skip
    rest = f"as long again should save {tuned.outcome.expected:.1%}"
    found = f"{tuned.outcome.trials} trials in {tuned.outcome.seconds:.0f} s; {why}, and {rest}."
    gain = tuned.gain
    if gain.outcome != "ok":
        return f"{found} Beside the untuned model: {gain.outcome}: {gain.error}; the untuned model is kept."
    speed = f"{1 / gain.ratio:.2f}x as fast as untuned ({1 / gain.high:.2f} to {1 / gain.low:.2f})"
    kept = "kept" if gain.second_wins else "not surely faster: the untuned model is kept"
    return f"{found} The model is {speed}: {kept}."


@contextmanager
def watched(quiet: bool) -> Iterator[Callable[[Session], None]]:
    """A callback that draws the session's kernels, on the terminal's error stream."""
    console = Console(stderr=True)
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def watch(session: Session) -> None:
            if not quiet:
                drawn = table(session.kernels, session.target)
                left = f", {session.seconds_left:.0f} s left" if isfinite(session.seconds_left) else ""
                drawn.title = f"{session.trials} trials in {session.elapsed:.0f} s{left}"
                drawn.caption = f"the rest of the time should save {session.expected:.1%}" if session.trials else FIRST
                live.update(drawn, refresh=True)

        yield watch


def table(kernels: Sequence[Progress], machine: Target) -> Table:
    """A row for each of the kernels that take the most time."""
    drawn = Table(
        "kernel", "calls", "trials", "space", "default µs", "best µs", "GFLOP/s", "of peak", "may save", "won by"
    )
    for column in drawn.columns[1:-1]:
        column.justify = "right"
    for kernel in sorted(kernels, key=lambda k: -k.total if isfinite(k.total) else 0.0)[:SHOWN]:
        best, rate = kernel.tuner.best, kernel.task.flops / kernel.seconds
        leader, size = kernel.winner if kernel.confirmed else best, kernel.task.space.size
        drawn.add_row(
            _shortened(kernel.task.name), str(kernel.task.calls), str(len(kernel.tuner.costs)),
            f"{size:,}" if size < 1e6 else f"{size:.1e}",
            _microseconds(kernel.default), _microseconds(kernel.seconds), f"{rate / 1e9:.0f}",
            f"{rate / machine.flops:.0%}", f"{kernel.saving(64) / kernel.total:.1%}" if best else "",
            str(leader) if leader and leader != kernel.task.space.default else "default" if kernel.confirmed else "",
        )  # fmt: skip
    return drawn


def _shortened(name: str, width: int = 32) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}" if isfinite(seconds) else "–"

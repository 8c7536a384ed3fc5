"""Work of `burnish tune`: the search for faster kernels, watched live, and a table of what it found."""

import getpass
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from burnish.boards.client import RemotePool
from burnish.boards.leasing import Devices
from burnish.boards.pool import DevicePool
from burnish.boards.secure import key_of
from burnish.boards.table import default_path, read
from burnish.cli import clock
from burnish.cli.compile_options import BoardOptions, CompileOptions
from burnish.cli.compiling import facts, memory_text, records_text, signature_text
from burnish.cli.output import (
    check_input,
    check_output,
    check_records,
    is_artifact,
    on_terminal,
    print_json,
    print_table,
)  # fmt: skip
from burnish.driver.api import tuned as tune_and_compile
from burnish.driver.tuned import Tuned, described
from burnish.tune.session import KernelProgress, Session, Tune

__all__ = ["tune"]

FIRST = "building the untuned kernels; the first session ever also compiles the cost model, some ten seconds"
SHOWN = 24  # kernels of a model that the table has room for: those that take the most time
AROUND = 9  # lines of a screen that are not rows of the table
WIDE = 120  # columns of a terminal that has room for spaces and winners, too
SHARES, SECONDS = 12, 10.0  # lines of progress where there is no terminal: of the whole time, or seconds between two


def tune(
    model: Path,
    search: Mapping[str, Any],
    boards: BoardOptions,
    options: CompileOptions,
    records: Path,
    output: Path,
    force: bool,
) -> None:
    """Tunes a model and writes it."""
    seconds = 120.0 if search["seconds"] is None and search["trials"] is None else search["seconds"]
    settings = Tune(**{**search, "seconds": None if seconds is None else clock.left(seconds)})
    check_input(model, "model")
    check_output(output, inputs=[model], is_ours=is_artifact, force=force)
    check_records(records)
    try:
        with watched(options.as_json) as watch, leased(boards) as devices:
            tuned = tune_and_compile(
                model, settings, records=records, watch=watch, devices=devices, **options.arguments
            )
    except KeyboardInterrupt:
        kept = f"all measurements are in {records}: tune again to go on from them" if records.exists() else "no trial"
        print(f"burnish: interrupted before the winners were confirmed; {kept}", file=sys.stderr)
        raise typer.Exit(130) from None
    tuned.module.save(output)
    if options.as_json:
        report = {"output": str(output), "records": str(records), **facts(tuned.module), **described(tuned)}
        print_json(report)
    else:
        print_table(table(tuned.outcome.kernels, SHOWN, Console().width >= WIDE))
        print(summary(tuned))
        print(signature_text(tuned.module))
        print(f"{output}: {output.stat().st_size / 1e6:.1f} MB; {memory_text(tuned.module)}")
        if tuned.gain.second_wins:
            print(records_text(tuned.module, records))
        print(f"{records}: all measurements; tune again to go on from them")
    if tuned.outcome.stop_reason == "interrupted":
        raise typer.Exit(130)  # as shells report what Ctrl-C ended


@contextmanager
def leased(boards: BoardOptions) -> Iterator[Devices | None]:
    """The boards; None where this machine measures. Raises ParameterError, DeviceError."""
    if boards.device is None:
        yield None
        return
    owner = boards.owner or f"{getpass.getuser()}-{os.getpid()}"
    if boards.pool is not None:
        key = key_of(boards.key or default_path().with_suffix(".key"))
        yield Devices(RemotePool(boards.pool, key), boards.device, owner, boards.priority)
        return
    with DevicePool(read(default_path())) as pool:
        yield Devices(pool, boards.device, owner, boards.priority)


def summary(tuned: Tuned) -> str:
    """Summary of a tuning session, in two sentences."""
    why = {
        "seconds": "the time was up", "trials": "the trials were used up", "exhausted": "every candidate was tried",
        "gain": "little was left to gain", "interrupted": "interrupted",
    }[tuned.outcome.stop_reason]  # fmt: skip
    rest = f"as long again should save {tuned.outcome.expected:.1%}"
    found = f"{tuned.outcome.trials} trials in {tuned.outcome.seconds:.0f} s; {why}, and {rest}."
    gain = tuned.gain
    if gain.outcome != "ok":
        return f"{found} Against the untuned model: {gain.outcome}: {gain.error}; the untuned model is kept."
    speed = f"{1 / gain.ratio:.2f}x as fast as untuned ({1 / gain.high:.2f} to {1 / gain.low:.2f})"
    kept = "kept" if gain.second_wins else "not surely faster: the untuned model is kept"
    return f"{found} The model is {speed}: {kept}."


@contextmanager
def watched(quiet: bool) -> Iterator[Callable[[Session], None]]:
    """A callback that tells on standard error how far tuning is: a table on a terminal, else now and then a line."""
    if quiet:
        yield lambda session: None
    elif not on_terminal():
        yield Lines().watch
    else:
        console = Console(stderr=True)
        # What is drawn is erased at the end, also by an exception: the cursor is back where it was.
        with Live(console=console, transient=True, auto_refresh=False) as live:

            def watch(session: Session) -> None:
                rows = max(1, min(SHOWN, console.height - AROUND))
                drawn = table(session.kernels, rows, console.width >= WIDE)
                drawn.title, drawn.caption = headline(session), outlook(session)
                live.update(drawn, refresh=True)

            yield watch


class Lines:
    """Progress for a log: a line at the beginning, and one whenever another share of the time has passed."""

    def __init__(self) -> None:
        self._next = 0.0

    def watch(self, session: Session) -> None:
        if session.elapsed < self._next:
            return
        total = session.options.seconds
        self._next = session.elapsed + (SECONDS if total is None else max(1.0, total / SHARES))
        print(f"{headline(session)}; {outlook(session)}", file=sys.stderr, flush=True)


def headline(session: Session) -> str:
    left = f", {session.seconds_left:.0f} s left" if isfinite(session.seconds_left) else ""
    known = f"; kernels take {1e3 * session.model_seconds:.3g} ms" if session.model_seconds else ""
    return f"{session.trials} trials in {session.elapsed:.0f} s{left}{known}"


def outlook(session: Session) -> str:
    return f"the rest should save {session.expected:.1%}; Ctrl-C keeps what is found" if session.trials else FIRST


def table(kernels: Sequence[KernelProgress], rows: int, wide: bool) -> Table:
    """A row for each of the kernels that take the most time, in 79 columns; ``wide``: with spaces and winners.

    Times are those of a call; "to gain" is the share of the model's time that 64 more trials should save.
    GFLOP/s are those of the definition, which an algorithm such as Winograd's computes with fewer operations.
    """
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    drawn.add_column("kernel", overflow="ellipsis", no_wrap=True)
    for heading in ("calls", "tried", "before", "best µs", "GFLOP/s", "to gain", *(("space",) if wide else ())):
        drawn.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    if wide:
        drawn.add_column("won by", overflow="ellipsis", no_wrap=True)
    shown = sorted(kernels, key=lambda k: -k.total if isfinite(k.total) else 0.0)[:rows]
    for kernel in shown:
        best, rate, size = kernel.tuner.best, kernel.task.flops / kernel.seconds, kernel.task.space.size
        leader = kernel.winner if kernel.confirmed else best
        untuned = "default" if kernel.confirmed else ""
        winner = str(leader) if leader and leader != kernel.task.space.default else untuned
        drawn.add_row(
            shortened(kernel.task.name), str(kernel.task.calls), str(len(kernel.tuner.costs)),
            _microseconds(kernel.default), _microseconds(kernel.seconds), f"{rate / 1e9:.0f}",
            f"{kernel.saving(64) / kernel.total:.1%}" if best else "",
            *((f"{size:,}" if size < 1e6 else f"{size:.1e}", winner) if wide else ()),
        )  # fmt: skip
    if len(shown) < len(kernels):
        drawn.add_row(f"and {len(kernels) - len(shown)} others")
    return drawn


def shortened(name: str, width: int = 24) -> str:
    """A kernel's name with its operators whole where that can be, and the end of its output's name."""
    if len(name) <= width:
        return name
    operators, _, output = name.rpartition(" ")
    operators = operators if len(operators) <= width - 8 else f"{operators[: width - 9]}…"
    room = width - len(operators) - 2
    return f"{operators} …{output[-room:]}" if len(output) > room + 1 else f"{operators} {output}"


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}" if isfinite(seconds) else "–"

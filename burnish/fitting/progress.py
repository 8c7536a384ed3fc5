"""Progress of training on a terminal: one bar with loss, pace and time left; elsewhere a line now and then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from burnish.fitting.report import Evaluation, TrainingProgress

LINES = 20  # of progress where there is no terminal, if the number of calls is known
EVERY = 100  # calls between lines, if it is not
_SHARE = 0.05  # of a new loss in the running mean that is shown


@contextmanager
def shown(wanted: bool = True) -> Iterator[Callable[[TrainingProgress], None] | None]:
    """A function that shows progress on standard error; None unless ``wanted``."""
    if not wanted:
        yield None
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar() as show:
            yield show
    else:
        yield _Lines()


@contextmanager
def _bar() -> Iterator[Callable[[TrainingProgress], None]]:
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=None)
        mean = _Mean()

        def show(now: TrainingProgress) -> None:
            text = f"epoch {now.epoch + 1}, loss {mean(now.loss):.4f}, {mean.pace(now):.1f} steps/s"
            bar.update(task, description=text, completed=now.call, total=now.calls)
            if now.evaluation is not None:
                bar.console.print(evaluation_text(now.evaluation), highlight=False)

        yield show


class _Lines:
    """Lines of progress."""

    def __init__(self) -> None:
        self._mean = _Mean()

    def __call__(self, now: TrainingProgress) -> None:
        loss = self._mean(now.loss)
        every = max(now.calls // LINES, 1) if now.calls else EVERY
        if now.call % every == 0 and now.evaluation is None:
            calls = f" of {now.calls}" if now.calls else ""
            print(f"step {now.call}{calls}: loss {loss:.4f}, {self._mean.pace(now):.1f} steps/s", file=sys.stderr)
        if now.evaluation is not None:
            print(evaluation_text(now.evaluation), file=sys.stderr)


class _Mean:
    """The running mean of losses, and the pace since the first call that was seen."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._first: tuple[int, float] | None = None

    def __call__(self, loss: float) -> float:
        self._mean = loss if self._mean is None else (1 - _SHARE) * self._mean + _SHARE * loss
        return self._mean

    def pace(self, now: TrainingProgress) -> float:
        """Calls a second."""
        if self._first is None:
            self._first = now.call, now.seconds
        calls, seconds = now.call - self._first[0], now.seconds - self._first[1]
        return calls / seconds if calls and seconds > 0 else 0.0


def evaluation_text(found: Evaluation) -> str:
    """An evaluation in one line."""
    metrics = "".join(f", {name} {value:.4f}" for name, value in found.metrics.items())
    return f"after {found.call} steps: validation loss {found.loss:.4f}{metrics}"

"""Compiled models compared on a board of a device pool: their answers, then their times there, in turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

from burnish.boards.job import BoardJob
from burnish.boards.leasing import Devices, on_board
from burnish.boards.lost import DeviceLost
from burnish.boards.model import module_on
from burnish.errors import BurnishError
from burnish.measure.accuracy import scaled_error, tolerance
from burnish.measure.comparison import Comparison, compare_times
from burnish.measure.samples import module_inputs
from burnish.runtime.executable import Executable
from burnish.workers import Failure

ROUNDS = 21  # of both models, each the first in every other one
LIMIT = 300.0  # seconds of a call


def compare_on_board(
    devices: Devices,
    first: Executable,
    second: Executable,
    dtypes: Iterable[str] = (),
    *,
    exact: bool = False,
    threads: int = 1,
    rounds: int = ROUNDS,
    limit: float = LIMIT,
) -> Comparison:
    """Whether two models with the same inputs give the same answers on a board and, if so, which is faster there.

    As :meth:`burnish.measure.sandbox.Sandbox.compare`; ``limit``: seconds of a call.
    """
    kernels = max(1, *(len(executable.calls) for executable in (first, second)))
    types = {*dtypes, *(spec.dtype for spec in (*first.inputs, *first.outputs))}
    allowed = tolerance(types, exact) * sqrt(kernels)

    def work(job: BoardJob, about: Mapping[str, Any]) -> Comparison:
        return _compared(job, about, (first, second), allowed, threads, rounds)

    try:
        return on_board(devices, work, limit)
    except Failure as failure:
        return Comparison(outcome="timeout" if failure.kind == "timeout" else "crashed", error=failure.detail)


def _compared(
    job: BoardJob,
    about: Mapping[str, Any],
    executables: tuple[Executable, Executable],
    allowed: float,
    threads: int,
    rounds: int,
) -> Comparison:
    """Comparison within one board job. Raises DeviceLost and Failure."""
    try:
        models = [module_on(job, about, each, threads, name) for each, name in zip(executables, "ab", strict=True)]
        feeds = module_inputs(models[0][0])
        answers = [model(**feeds) for model, _ in models]
        right, found = (list(a) if isinstance(a, tuple) else [a] for a in answers)
        error = max(scaled_error([a], [b]) for a, b in zip(found, right, strict=True))
        if not error <= allowed:
            return Comparison(outcome="wrong", error=f"outputs differ by {error:.3g} of their scale, not {allowed:.3g}")
        times: tuple[list[float], list[float]] = ([], [])
        turns = list(zip(models, times, strict=True))
        for number in range(rounds):
            for (model, device), mine in turns if number % 2 else reversed(turns):
                model(**feeds)
                mine.append(device.seconds)
    except BurnishError as problem:  # as which callers of a module hear of it
        if isinstance(problem.__cause__, DeviceLost | Failure):
            raise problem.__cause__ from None
        return Comparison(outcome="crashed", error=str(problem))
    return replace(compare_times(*times), difference=error)

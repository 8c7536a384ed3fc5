"""Trials in worker processes, so that a crash or a hang is an outcome like any other."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from burnish.workers import ForkServer, JobOutcome, JobProgress, ResourceLimits, WorkerPool, tell
from burnish.workers import Job as PoolJob
from tools.fuzz.generate import generate
from tools.fuzz.oracles import expect
from tools.fuzz.trial import Result, Way, attempt, describe

LIMIT = 90.0  # seconds that a stage of a trial may take
LIFE = 250  # trials of a worker, whose memory grows with loaded code


@dataclass(frozen=True, eq=False)
class Job:
    """Trials of one model: that of a seed, or one given as bytes with its feeds."""

    seed: int
    ways: tuple[Way, ...]
    only: str | None = None
    pages: bool = False
    model: bytes | None = None
    feeds: dict[str, np.ndarray] | None = None


@dataclass(frozen=True)
class Row:
    """The outcome of one trial."""

    job: Job
    way: Way
    result: Result
    theme: str = ""
    operators: tuple[tuple[str, str], ...] = ()  # (operator, dtype) of every node


@cache
def _begin() -> None:
    """Once in a worker."""
    logging.getLogger("burnish").propagate = False  # trials collect what it warns of
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")


def work(job: Job, cache_dir: str) -> None:
    """A worker's job: tells each stage of the trials of one model, and their rows."""
    _begin()
    tell(("stage", "generate", None))
    try:
        if job.model is None:
            sample = generate(job.seed, job.only, job.pages)
            model, feeds, theme = sample.model, sample.feeds, sample.theme
        else:
            model, feeds, theme = onnx.load_from_string(job.model), job.feeds or {}, ""
        operators = used(model)
    except Exception as error:
        tell(("row", Row(job, job.ways[0], Result("generator", *describe(error)))))
        return
    tell(("stage", "oracles", None))
    try:
        expected = expect(model, feeds, job.seed)
    except Exception:
        expected = None  # the trial meets the same error, and tells it
    for way in job.ways:

        def mark(stage: str, way: Way = way) -> None:
            tell(("stage", stage, way))

        result = attempt(model, feeds, way, Path(cache_dir), mark, expected)
        tell(("row", Row(job, way, result, theme, operators)))


def used(model: onnx.ModelProto) -> tuple[tuple[str, str], ...]:
    """(operator, dtype of its first input or else output) of every node."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    types.update({t.name: t.data_type for t in graph.initializer})
    names = [(node.op_type, next((n for n in (*node.input, *node.output) if n), "")) for node in graph.node]
    return tuple((op, onnx.TensorProto.DataType.Name(types.get(name, 0)).lower()) for op, name in names)


@dataclass
class _Progress:
    """Progress of a job."""

    stage: str = "start"
    way: Way | None = None
    done: tuple[Way, ...] = ()


def run(jobs: Iterator[Job], workers: int, cache_dir: Path, limit: float = LIMIT) -> Generator[Row]:
    """Rows of all trials, as they end. A job whose worker dies goes on after the trial that killed it."""
    waiting: list[Job] = []
    come: dict[Job, _Progress] = {}

    def next_job() -> PoolJob | None:
        job = waiting.pop() if waiting else next(jobs, None)
        if job is None:
            return None
        come[job] = _Progress()
        return PoolJob(work, (job, str(cache_dir)), ResourceLimits(limit), job)

    with (
        ForkServer(__name__) as server,
        WorkerPool(server.start, workers, LIFE) as pool,
        closing(pool.run(next_job)) as events,
    ):
        for submitted, event in events:
            job = submitted.tag
            at = come[job]
            if isinstance(event, JobProgress):
                kind, *details = event.value
                if kind == "row":
                    (row,) = details
                    at.done = (*at.done, row.way)
                    yield replace(row, job=job)
                else:
                    at.stage, at.way = details
                continue
            del come[job]
            if event.kind != "ok":
                yield _lost(job, at, event, waiting)


def _lost(job: Job, at: _Progress, outcome: JobOutcome, waiting: list[Job]) -> Row:
    """The row of the trial that a worker died at; the ways left wait for another one."""
    if outcome.kind == "timeout":
        result = Result("hang", f"no end of {at.stage}", "hang")
    else:
        kind = f"{outcome.detail} in {at.stage}"
        result = Result("crash" if at.stage in ("compile", "run") else "generator", kind, kind)
    way = at.way or next((w for w in job.ways if w not in at.done), job.ways[0])
    left = tuple(w for w in job.ways if w not in at.done and w != way)
    if left and at.way is not None:
        waiting.append(replace(job, ways=left))
    return Row(job, way, result)


@contextmanager
def running(cache_dir: Path, limit: float = LIMIT) -> Iterator[Callable[[Job], Row]]:
    """A function that gives the first row of a job, by one worker that lives on while nothing kills it."""
    jobs: deque[Job] = deque()
    rows = run(iter(jobs.popleft, None), 1, cache_dir, limit)

    def ask(job: Job) -> Row:
        jobs.append(job)
        return next(rows)

    try:
        yield ask
    finally:
        rows.close()

"""Trials in worker processes, so that a crash or a hang is an outcome like any other."""

from __future__ import annotations

import logging
import multiprocessing
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np
import onnx

from tools.fuzz.generate import generate
from tools.fuzz.oracles import expect
from tools.fuzz.trial import Result, Way, attempt, describe

LIMIT = 90.0  # seconds that a stage of a trial may take
LIFE = 250  # trials of a worker, whose memory grows with loaded code
_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
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


def work(connection: Connection, cache: str) -> None:
    """A worker: takes jobs, tells each stage, sends rows."""
    logging.getLogger("burnish").propagate = False  # trials collect what it warns of
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    while True:
        job: Job | None = connection.recv()
        if job is None:
            return
        _do(job, connection, Path(cache))
        connection.send(("done",))


def _do(job: Job, connection: Connection, cache: Path) -> None:
    """Sends a row for every way of one job."""
    connection.send(("stage", "generate", None))
    try:
        if job.model is None:
            sample = generate(job.seed, job.only, job.pages)
            model, feeds, theme = sample.model, sample.feeds, sample.theme
        else:
            model, feeds, theme = onnx.load_from_string(job.model), job.feeds or {}, ""
        operators = used(model)
    except Exception as error:
        connection.send(("row", Row(job, job.ways[0], Result("generator", *describe(error)))))
        return
    connection.send(("stage", "oracles", None))
    try:
        expected = expect(model, feeds, job.seed)
    except Exception:
        expected = None  # the trial meets the same error, and tells it
    for way in job.ways:

        def mark(stage: str, way: Way = way) -> None:
            connection.send(("stage", stage, way))

        result = attempt(model, feeds, way, cache, mark, expected)
        connection.send(("row", Row(job, way, result, theme, operators)))


def used(model: onnx.ModelProto) -> tuple[tuple[str, str], ...]:
    """(operator, dtype of its first input or else output) of every node."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    types.update({t.name: t.data_type for t in graph.initializer})
    names = [(node.op_type, next((n for n in (*node.input, *node.output) if n), "")) for node in graph.node]
    return tuple((op, onnx.TensorProto.DataType.Name(types.get(name, 0)).lower()) for op, name in names)


class Worker:
    """A worker process, and the job that it is at."""

    def __init__(self, cache: Path) -> None:
        self.connection, theirs = _context.Pipe()
        self.process = _context.Process(target=work, args=(theirs, str(cache)), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.stage: tuple[str, Way | None] = ("start", None)
        self.done: list[Way] = []
        self.jobs = 0
        self.deadline = 0.0

    def give(self, job: Job, limit: float) -> None:
        self.job, self.stage, self.done = job, ("start", None), []
        self.jobs += 1
        self.deadline = time.monotonic() + limit + 30
        self.connection.send(job)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def run(jobs: Iterator[Job], workers: int, cache: Path, limit: float = LIMIT) -> Generator[Row]:
    """Rows of all trials, as they end. A job whose worker dies goes on after the trial that killed it."""
    free: list[Worker] = []
    busy: list[Worker] = []
    waiting: list[Job] = []
    more = True
    try:
        while True:
            while len(busy) < workers:
                job = waiting.pop() if waiting else next(jobs, None) if more else None
                if job is None:
                    more = False
                    break
                worker = free.pop() if free else Worker(cache)
                worker.give(job, limit)
                busy.append(worker)
            if not busy:
                return
            ready = wait([w.connection for w in busy], timeout=0.5)
            for worker in list(busy):
                if worker.connection in ready:
                    yield from _receive(worker, busy, free, waiting, limit)
                elif time.monotonic() > worker.deadline:
                    yield from _lost(worker, busy, waiting, Result("hang", f"no end of {worker.stage[0]}", "hang"))
    finally:
        for worker in (*busy, *free):
            worker.stop()


def _receive(
    worker: Worker, busy: list[Worker], free: list[Worker], waiting: list[Job], limit: float
) -> Iterator[Row]:
    """What a worker has sent, if it lives."""
    assert worker.job is not None
    try:
        message = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        code = worker.process.exitcode or 0
        words = f"signal {-code}" if code < 0 else f"exit {code}"
        stage = worker.stage[0]
        kind = f"{words} in {stage}"
        result = Result("crash" if stage in ("compile", "run") else "generator", kind, kind)
        yield from _lost(worker, busy, waiting, result)
        return
    worker.deadline = time.monotonic() + limit
    if message[0] == "stage":
        worker.stage = (message[1], message[2])
    elif message[0] == "row":
        worker.done.append(message[1].way)
        yield message[1]
    else:
        busy.remove(worker)
        worker.job = None
        if worker.jobs >= LIFE:
            worker.stop()
        else:
            free.append(worker)


def _lost(worker: Worker, busy: list[Worker], waiting: list[Job], result: Result) -> Iterator[Row]:
    """The row of the trial that a worker died at; the ways left wait for another one."""
    job = worker.job
    assert job is not None
    way = worker.stage[1] or next((w for w in job.ways if w not in worker.done), job.ways[0])
    left = tuple(w for w in job.ways if w not in worker.done and w != way)
    yield Row(job, way, result)
    if left and worker.stage[1] is not None:
        waiting.append(replace(job, ways=left))
    busy.remove(worker)
    worker.stop()


@contextmanager
def running(cache: Path, limit: float = LIMIT) -> Iterator[Callable[[Job], Row]]:
    """A function that gives the first row of a job, by one worker that lives on while nothing kills it."""
    jobs: deque[Job] = deque()
    rows = run(iter(jobs.popleft, None), 1, cache, limit)

    def ask(job: Job) -> Row:
        jobs.append(job)
        return next(rows)

    try:
        yield ask
    finally:
        rows.close()

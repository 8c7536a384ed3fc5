"""Jobs of workers: every outcome is a value, limits hold, cancelled jobs end, and a pool goes on."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from burnish.errors import DataError, ParameterError, WorkerError
from burnish.workers import (
    Failure,
    ForkServer,
    Job,
    JobOutcome,
    JobProgress,
    ResourceLimits,
    RestartingWorker,
    Worker,
    WorkerPool,
    spawn,
)
from tests.workers import jobs


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.workers.jobs") as found:
        yield found


@pytest.fixture(params=["forked", "spawned"])
def worker(request: pytest.FixtureRequest, server: ForkServer) -> Iterator[Worker]:
    with server.start() if request.param == "forked" else spawn() as found:
        yield found


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_result_and_an_error_leave_the_worker_as_it_is(worker: Worker) -> None:
    assert worker.run(jobs.hold, (1,)).value == 1
    found = worker.run(jobs.fail, ("ZeroDivisionError",))
    assert (found.kind, found.detail) == ("error", "ZeroDivisionError: as asked")
    assert found.error is not None and "in fail" in found.error["traceback"] and found.known_error() is None
    assert isinstance(worker.run(jobs.fail, ("DataError",)).known_error(), DataError)
    assert worker.run(jobs.fail, ("SystemExit",)).kind == "error"
    found = worker.run(jobs.fail, ("WorkerError",))
    assert found.error is not None and found.error["rank"] == 3 and found.known_error() is None
    assert worker.run(jobs.unplain).detail.startswith("ParameterError: job unplain: result: a value of type object")
    assert worker.run(jobs.hold, (2,)).value == 2
    assert worker.jobs == 7


@pytest.mark.parametrize(
    ("job", "arguments", "limits", "kind", "detail"),
    [
        (jobs.kill, (signal.SIGSEGV,), ResourceLimits(), "crashed", "was killed by SIGSEGV"),
        (jobs.kill, (signal.SIGKILL,), ResourceLimits(), "crashed", "was killed by SIGKILL"),
        (jobs.leave, (7,), ResourceLimits(), "crashed", "ended with exit code 7"),
        (jobs.hang, (), ResourceLimits(0.3), "timeout", "took longer than 0.3 s"),
        (jobs.hang, (), ResourceLimits(processor_seconds=0.1), "timeout", "took longer than 0.4 s"),
        (jobs.compute, (), ResourceLimits(60.0, 0.2), "timeout", "took longer than 0.2 s of processor time"),
        (jobs.take, (1 << 30,), ResourceLimits(memory=1 << 28), "out of memory", "MemoryError: Unable to allocate"),
    ],
)
def test_what_a_job_does_is_an_outcome(
    worker: Worker, job: object, arguments: tuple[object, ...], limits: ResourceLimits, kind: str, detail: str
) -> None:
    assert callable(job)
    found = worker.run(job, arguments, limits)
    assert found.kind == kind and found.detail.startswith(detail)
    assert gone(worker.pid)


def test_memory_is_counted_for_each_job_and_without_its_arguments(worker: Worker) -> None:
    large = np.zeros(1 << 29, np.uint8)
    for _ in range(2):
        assert worker.run(jobs.take, (1 << 27,), ResourceLimits(memory=1 << 29)).kind == "ok"
        found = worker.run(jobs.hold, (large,), ResourceLimits(memory=1 << 27))
        assert found.kind == "ok", found.detail
    assert worker.run(jobs.take, (1 << 30,), ResourceLimits(memory=None)).kind == "ok"


def test_time_begins_anew_with_each_sign_of_life(worker: Worker) -> None:
    received: list[int] = []
    worker.submit(jobs.count, (6, 0.2), ResourceLimits(1.0))
    assert worker.outcome(received.append) == JobOutcome("ok", 6)
    assert received == [0, 1, 2, 3, 4, 5]
    assert worker.run(jobs.count, (6, 1.0), ResourceLimits(0.4)).kind == "timeout"


def test_a_job_is_cancelled_with_its_worker(worker: Worker) -> None:
    worker.submit(jobs.hang)
    assert worker.end() == -signal.SIGKILL
    assert gone(worker.pid)
    assert worker.end() == -signal.SIGKILL, "twice is once"


def test_a_function_without_a_name_is_refused(worker: Worker) -> None:
    with pytest.raises(ParameterError, match=r"job <lambda>: function: .* cannot be found by name"):
        worker.submit(lambda: None)
    with pytest.raises(ParameterError, match="job give_back: arguments: a value of type object"):
        worker.submit(jobs.give_back, (object(),))
    assert worker.run(jobs.give_back, (5,)).value == 5


def test_a_pool_goes_on_after_a_death_and_takes_jobs_as_they_come(server: ForkServer) -> None:
    waiting = ["a", "bad", "b", "c"]
    found: dict[str, str] = {}
    server.start().end()  # it runs
    files = len(os.listdir("/proc/self/fd"))
    with WorkerPool(server.start, 2) as pool:

        def next_job() -> Job | None:
            return Job(jobs.die_with, (waiting[0],), tag=waiting.pop(0)) if waiting else None

        for job, event in pool.run(next_job):
            assert isinstance(event, JobOutcome)
            found[job.tag] = event.kind
            if job.tag == "bad":
                waiting.append("again")
        assert found == {"a": "ok", "bad": "crashed", "b": "ok", "c": "ok", "again": "ok"}
        assert 1 <= len(pool._idle) <= 2
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_worker_of_a_pool_has_a_life(server: ForkServer) -> None:
    left = [Job(jobs.hold, (0,)) for _ in range(5)]
    with WorkerPool(server.start, 1, life=2) as pool:
        held = [event.value for _, event in pool.run(lambda: left.pop() if left else None)]
    assert held == [1, 2, 1, 2, 1]


def test_a_pool_that_is_left_ends_what_it_began(server: ForkServer) -> None:
    left = [Job(jobs.count, (1000, 0.01)), Job(jobs.hang)]
    with WorkerPool(server.start, 2) as pool:
        with closing(pool.run(lambda: left.pop() if left else None)) as events:
            _, event = next(events)
            assert isinstance(event, JobProgress)
        assert not pool._idle


def test_a_restarting_worker_keeps_what_jobs_made_until_one_takes_it_along(server: ForkServer) -> None:
    lost: list[str] = []
    one = RestartingWorker(server.start, lambda: lost.append("all"))
    assert [one.call(jobs.hold, n) for n in range(3)] == [1, 2, 3]
    with pytest.raises(Failure) as caught:
        one.call(jobs.fail, "DataError")
    assert (caught.value.kind, lost) == ("error", []) and isinstance(caught.value.__cause__, DataError)
    with pytest.raises(Failure) as caught:
        one.call(jobs.count, 9, 0.05, limits=ResourceLimits(processor_seconds=None, seconds=0.01))
    assert (caught.value.kind, lost) == ("timeout", ["all"])
    assert one.pid is None and one.call(jobs.hold, 0) == 1
    one.end()
    assert lost == ["all", "all"]


def test_what_is_no_message_is_a_crash(server: ForkServer) -> None:
    worker = server.start()
    ours, theirs = socket.socketpair()
    worker.line._end.close()
    worker.line._end = ours
    worker.submit(jobs.add, (1, 2))
    theirs.sendall(b"x" * 64)
    found = worker.outcome()
    assert found.kind == "crashed" and "sent what is no message" in found.detail
    theirs.close()


def test_a_worker_starts_in_milliseconds(server: ForkServer) -> None:
    server.start().end()
    began = time.monotonic()
    for _ in range(5):
        with server.start() as each:
            assert each.run(jobs.add, (1, 2)).value == 3
    assert time.monotonic() - began < 5 * 0.25


def test_a_closed_server_starts_again(server: ForkServer) -> None:
    with ForkServer("tests.workers.jobs") as other:
        first = other.start()
        other.close()
        assert gone(first.pid) and first.end() is None
        assert other.start().run(jobs.add, (1, 1)).value == 2


def test_a_server_whose_module_fails_says_so() -> None:
    with (
        ForkServer("tests.workers.nothing") as other,
        pytest.raises(WorkerError, match="workers: the server of worker processes"),
    ):
        other.start()

"""Workers come from a server without threads, say how they ended, and end with their owner, whatever they do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.tune.evaluate import Evaluator
from burnish.workers import ForkServer
from tests.marks import slow_except
from tests.workers import jobs

TUNER, MODELS, FUZZER = "burnish.tune.evaluate.worker", "burnish.measure.worker", "tools.fuzz.run"
OWNER = """
import time
from burnish.workers import ForkServer
from tests.workers import jobs
server = ForkServer("tests.workers.jobs")
workers = [server.start() for _ in range(3)]
for worker in workers[1:]:
    worker.submit(jobs.hang)
print(server._process.pid, *(worker.pid for worker in workers), flush=True)
server._process.wait()
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_worker_says_how_it_ended() -> None:
    with ForkServer("tests.workers.jobs") as server:
        assert server.start().end() == -signal.SIGKILL
        worker = server.start()
        os.kill(worker.pid, signal.SIGSEGV)
        assert worker.outcome().detail == "was killed by SIGSEGV"  # its line is at its end
        assert worker.end() == -signal.SIGSEGV
        worker = server.start()
        worker.line._end.sendall(b"nonsense" * 4)
        assert worker.outcome().detail == "ended with exit code 1"


def test_a_server_that_was_killed_is_replaced_and_its_workers_are_gone() -> None:
    with ForkServer("tests.workers.jobs") as server:
        old = server.start()
        old.submit(jobs.hang)
        assert server._process is not None
        killed = server._process
        killed.kill()
        killed.wait()
        worker = server.start()
        assert server._process is not killed
        deadline = time.monotonic() + 30
        while not gone(old.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert gone(old.pid)
        assert worker.run(jobs.add, (2, 3)).value == 5


@pytest.mark.parametrize("preload", slow_except([TUNER, MODELS, FUZZER], TUNER))
def test_the_server_has_one_thread(preload: str) -> None:
    with ForkServer(preload) as server:
        server.start()
        assert server._process is not None
        assert len(os.listdir(f"/proc/{server._process.pid}/task")) == 1


@pytest.mark.parametrize("killed", ["owner", "server"])
def test_workers_end_with_their_owner_and_with_their_server(killed: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    server, *pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 3
    assert not any(gone(pid) for pid in pids)
    os.kill(server if killed == "server" else owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while not all(gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    ended = [gone(pid) for pid in pids]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert all(ended)


def test_an_evaluator_that_is_closed_leaves_no_process() -> None:
    with Evaluator(workers=1, threads=1) as evaluator:
        worker = evaluator._server.start()
    assert gone(worker.pid)

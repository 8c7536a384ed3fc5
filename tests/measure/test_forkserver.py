"""Workers come from a server without threads, say how they ended, and end with their owner."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from burnish.measure.forkserver import ForkServer
from burnish.tune.evaluate import Evaluator

ROLES = "burnish.tune.evaluate.roles"
OWNER = """
import time
from burnish.measure.forkserver import ForkServer
server = ForkServer("burnish.tune.evaluate.roles")
workers = [server.start(role) for role in ("build", "measure")]
print(*(worker.pid for worker in workers), flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_a_worker_says_how_it_ended() -> None:
    with ForkServer(ROLES) as server:
        worker = server.start("build")
        assert worker.end() == "was killed by SIGKILL"
        worker = server.start("build")
        os.kill(worker.pid, signal.SIGSEGV)
        assert worker.line.poll(20)  # its line is at its end
        assert worker.end() == "was killed by SIGSEGV"
        worker = server.start("measure")
        worker.line.send("nonsense")
        assert worker.line.poll(20)
        assert worker.end() == "ended with exit code 1"


def test_a_server_that_was_killed_is_replaced() -> None:
    with ForkServer(ROLES) as server:
        server.start("build")
        assert server._process is not None
        killed = server._process
        killed.kill()
        killed.wait()
        worker = server.start("build")
        assert server._process is not killed
        assert worker.end() == "was killed by SIGKILL"


def test_the_server_has_one_thread() -> None:
    with ForkServer(ROLES) as server:
        server.start("build")
        assert server._process is not None
        assert len(os.listdir(f"/proc/{server._process.pid}/task")) == 1


def test_workers_end_with_their_owner() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    assert not any(gone(pid) for pid in pids)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 30
    while not all(gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(gone(pid) for pid in pids)


def test_an_evaluator_that_is_closed_leaves_no_process() -> None:
    with Evaluator(workers=1, threads=1) as evaluator:
        worker = evaluator._server.start("build")
    assert gone(worker.pid)

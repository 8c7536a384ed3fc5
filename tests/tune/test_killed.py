"""A tuner that is killed at any moment loses no measurement that it had completed, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.tune.records import RecordFile

# A real session on a small network. Of candidates with a incumbent it says that they are measured, before the record is
# written. (The first of a kernel has none, and is measured more than once.)
TUNER = """
import os, sys
import numpy as np
from burnish.graph import GraphBuilder
from burnish.graph.passes import optimize
from burnish.machines.target import host
from burnish.tune.evaluate import Evaluator
from burnish.tune.records import RecordFile
from burnish.tune.session import Session, Tune
from burnish.tune.tasks import tuning_tasks

class Telling(Evaluator):
    def measure(self, trial, build, incumbent=None, to_beat=1.0):
        made = super().measure(trial, build, incumbent, to_beat)
        if incumbent is not None:
            os.write(1, b"measured\\n")
        return made

g = GraphBuilder()
x = g.input("x", (64, 96))
w = g.constant(np.random.default_rng(0).standard_normal((96, 64)).astype("float32"), "w")
tasks = tuning_tasks(optimize(g.build(g.add("softmax", g.add("matmul", x, w)))), host(), True)
with Telling(host(), threads=1) as evaluator:
    Session(tasks, RecordFile(sys.argv[1]), evaluator, Tune(seconds=None, trials=int(sys.argv[2]), min_gain=0)).run()
"""


def children(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_killed_tuner_loses_no_measurement(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.touch()
    moments = random.Random(0)
    announced = 0
    for kills in range(1, 21):
        tuner = subprocess.Popen([sys.executable, "-c", TUNER, path, "100000"], stdout=subprocess.PIPE)
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == b"measured\n"
        time.sleep(moments.uniform(0.0, 1.5))
        below = children(tuner.pid)
        os.kill(tuner.pid, signal.SIGKILL)
        tuner.wait()
        tuner.wait()
        announced += 1 + len(tuner.stdout.read().splitlines())
        records = RecordFile(path)
        kept = sum(not r.won for r in records.all())
        assert not records.unreadable
        assert kept >= announced - kills, "at most the record that was about to be written"
        deadline = time.monotonic() + 20
        while any(map(alive, below)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, below)), "its helpers end with it"
    subprocess.run([sys.executable, "-c", TUNER, path, "4"], check=True, stdout=subprocess.DEVNULL)
    assert any(r.outcome == "ok" for r in RecordFile(path).all())

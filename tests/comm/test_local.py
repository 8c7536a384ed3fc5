"""Workers as threads and as processes: collectives against NumPy, deaths, failures, silence, disagreement."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from burnish.boost.tree import TreeBuilder
from burnish.comm import WorkerError, launch, thread_comms
from burnish.comm.local import KINDS
from burnish.errors import DataError, ParameterError
from tests.comm import jobs
from tests.marks import slow

ROOT = Path(__file__).parents[2]
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@EACH_KIND
@pytest.mark.parametrize("workers", slow([1, 2, 3, 4], 2, 4))
def test_collectives_give_what_numpy_gives(kind: str, workers: int) -> None:
    checks = launch(jobs.collectives, [()] * workers, kind)
    assert checks == [len(jobs.SHAPES) * len(jobs.REDUCED) * 3 + 5 * workers] * workers


@EACH_KIND
def test_messages_and_groups(kind: str) -> None:
    launch(jobs.messages, [()] * 3, kind)
    assert launch(jobs.groups, [()] * 4, kind) == [None, None, (1, 5), (0, 5)]
    launch(jobs.strided, [()] * 2, kind)


@pytest.mark.parametrize("victim", [1, 2])
def test_a_killed_worker_is_named_at_once(victim: int) -> None:
    start = time.monotonic()
    with pytest.raises(WorkerError, match=rf"worker {victim} \(process \d+\) was killed by SIGKILL") as caught:
        launch(jobs.kill_one, [(victim,)] * 3, "process")
    assert caught.value.rank == victim
    assert time.monotonic() - start < 10  # nowhere near the time limit of 300 s


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = f"from burnish.comm import launch; from tests.comm import jobs; f = {str(tmp_path)!r}\n"
    script += "launch(jobs.tell_process_and_sleep, [(f,), (f,)], 'process')"
    supervisor = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        _until(lambda: len(list(tmp_path.iterdir())) == 2 and all(f.read_text() for f in tmp_path.iterdir()))
    finally:
        supervisor.kill()
        supervisor.wait()
    _until(lambda: not any(_lives(file.read_text()) for file in tmp_path.iterdir()))


def _until(condition: Callable[[], bool]) -> None:
    """Waits for a condition, which must come true within 30 seconds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _lives(process: str) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    stat = Path("/proc") / process / "stat"
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@EACH_KIND
def test_a_failing_worker_is_named_with_its_error(kind: str) -> None:
    with pytest.raises(WorkerError, match="worker 2 failed: ZeroDivisionError: by nought") as caught:
        launch(jobs.fail_one, [(2, False)] * 3, kind)
    assert caught.value.rank == 2
    with pytest.raises(DataError, match="label: 3 rows, allowed: 4"):
        launch(jobs.fail_one, [(0, True)] * 3, kind)


@EACH_KIND
def test_what_a_worker_sent_before_it_left_still_arrives_and_nothing_else(kind: str) -> None:
    with pytest.raises(WorkerError, match="worker 1 has left") as caught:
        launch(jobs.leave_early, [()] * 2, kind)
    assert caught.value.rank == 1


@EACH_KIND
def test_silence_ends_with_the_time_limit(kind: str) -> None:
    with pytest.raises(WorkerError, match=re.escape("send: worker 1 did not answer within 0.3 s")) as caught:
        launch(jobs.stay_silent, [(0.8,)] * 2, kind, timeout=0.3)
    assert caught.value.rank == 1


@EACH_KIND
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("shape", ("all_reduce sum float64 (2, 3)", "all_reduce sum float64 (3, 2)")),
        pytest.param("dtype", ("all_gather_v float32", "all_gather_v float64"), marks=pytest.mark.slow),
        ("op", ("all_reduce sum float64 (3,)", "all_reduce max float64 (3,)")),
        ("call", ("barrier", "broadcast from 1")),
        pytest.param(
            "large", ("all_reduce sum float64 (50000,)", "all_reduce sum float64 (50001,)"), marks=pytest.mark.slow
        ),
    ],
)
def test_calls_that_do_not_match_are_refused_by_name(kind: str, what: str, words: tuple[str, str]) -> None:
    with pytest.raises(WorkerError) as caught:
        launch(jobs.disagree, [(what,)] * 2, kind, timeout=120)
    assert all(f"[{part}]" in str(caught.value) for part in words), caught.value


def test_plain_values_travel_to_processes_and_back() -> None:
    builder = TreeBuilder()
    builder.split(builder.add(0.5, 2.0), 1, 0.25, False, 3.0, (1.0, 1.0), (-1.0, 1.0), (2, 5))
    tree = builder.tree()
    given = (None, True, 3, float("inf"), 2.5, "ä", {"a": [1, (2, {"b": 3})], "dict": 4}, np.float32(0.1), np.arange(3))
    found = launch(jobs.give_back, [(*given, np.zeros((0, 4), bool), np.array(7), tree, jobs.values)], "process")[0]
    assert found[:7] == list(given[:7])
    assert isinstance(found[7], np.float32) and found[7] == np.float32(0.1)
    assert found[8].tolist() == [0, 1, 2] and (found[9].shape, found[9].dtype) == ((0, 4), np.dtype(bool))
    assert found[10].shape == () and found[10] == 7
    assert type(found[11]) is type(tree) and found[11].categories(0).tolist() == [2, 5] and found[11].gain[0] == 3.0
    assert found[12] is jobs.values


@pytest.mark.parametrize("value", [object(), {1: 2}, np.array(["text"]), np.zeros(3, ">f4"), lambda: 0, {1, 2}])
def test_values_that_are_not_plain_are_refused(value: object) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ParameterError, match=r"launch: worker 0: arguments: |cannot be found by name"):
        launch(jobs.give_back, [(value,)], "process")
    assert len(os.listdir("/proc/self/fd")) == before  # and nothing is left open


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ParameterError, match="kind 'fibre', allowed: thread, process"):
        launch(jobs.strided, [()], "fibre")
    with pytest.raises(ParameterError, match="no arguments"):
        launch(jobs.strided, [])
    with pytest.raises(ParameterError, match="timeout 0"):
        launch(jobs.strided, [()], timeout=0)
    with pytest.raises(ParameterError, match="cannot be found by name"):
        launch(lambda comm: None, [()], "process")
    (comm,) = thread_comms(1)
    with pytest.raises(ParameterError, match="op 'product', allowed: sum, max, min"):
        comm.all_reduce(np.zeros(1), "product")
    with pytest.raises(ParameterError, match="dtype complex128"):
        comm.all_gather_v(np.zeros(1, complex))
    with pytest.raises(ParameterError, match=r"out is float32 \(1,\)"):
        comm.all_reduce(np.zeros(1), out=np.zeros(1, np.float32))
    with pytest.raises(ParameterError, match="worker 1, allowed: 0 to 0"):
        comm.send(np.zeros(1), 1)
    with pytest.raises(ParameterError, match="2 arrays"):
        comm.all_to_all_v([np.zeros(1)] * 2)
    with pytest.raises(ParameterError, match=r"group: workers \[0, 0\]"):
        comm.group([0, 0])
    with pytest.raises(ParameterError, match="gave no array"):
        comm.broadcast(None)

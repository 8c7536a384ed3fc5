"""Workers that talk through gloo: the same answers, and errors that name ranks where gloo gives addresses."""

import pytest

from burnish.comm import WorkerError
from burnish.comm.torch import launch_torch
from burnish.errors import DataError
from tests.comm import jobs

pytestmark = pytest.mark.slow  # each process takes more than a second to import torch


def test_gloo_gives_what_numpy_gives() -> None:
    checks = launch_torch(jobs.collectives, [()] * 2)
    assert checks == [len(jobs.SHAPES) * len(jobs.REDUCED) * 3 + 10] * 2


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_gloo_with_other_numbers_of_workers(workers: int) -> None:
    launch_torch(jobs.collectives, [()] * workers)
    launch_torch(jobs.messages, [()] * workers)
    if workers == 4:
        assert launch_torch(jobs.groups, [()] * 4) == [None, None, (1, 5), (0, 5)]


def test_failures_name_their_cause() -> None:
    with pytest.raises(WorkerError, match=r"worker 2 \(process \d+\) was killed by SIGKILL") as caught:
        launch_torch(jobs.kill_one, [(2,)] * 3)
    assert caught.value.rank == 2
    with pytest.raises(DataError, match="label: 3 rows, allowed: 4"):
        launch_torch(jobs.fail_one, [(1, True)] * 3)
    with pytest.raises(WorkerError, match=r"all_gather_v float32"):
        launch_torch(jobs.disagree, [("dtype",)] * 2, timeout=120)
    with pytest.raises(WorkerError, match="worker 1 did not answer within 1 s"):
        launch_torch(jobs.stay_silent, [(60.0,)] * 2, timeout=1.0)

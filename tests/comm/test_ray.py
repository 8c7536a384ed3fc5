"""Workers in Ray actors: the same answers, a death that is named, and no socket beyond the loopback device."""

import importlib.util

import pytest

from burnish.comm import WorkerError
from burnish.errors import DataError
from tests.comm import jobs

if importlib.util.find_spec("ray") is None:  # not imported here: it reads its settings then
    pytest.skip("Ray is not installed", allow_module_level=True)

from burnish.comm.ray import launch_ray

pytestmark = pytest.mark.slow


def test_actors_give_what_numpy_gives_and_a_killed_one_is_named() -> None:
    launch_ray(jobs.collectives, [()] * 2)
    with pytest.raises(WorkerError, match="worker 1 died") as caught:
        launch_ray(jobs.kill_one, [(1,)] * 3)
    assert caught.value.rank == 1
    with pytest.raises(DataError, match="worker 1: label: 3 rows, allowed: 4"):
        launch_ray(jobs.fail_one, [(1, True)] * 2)


def test_ray_listens_on_the_loopback_device_only() -> None:
    before = set(jobs.listeners())
    during = set(launch_ray(jobs.listeners, [()])[0])
    assert during - before, "Ray listens nowhere: the test looks in the wrong place"
    assert {address for address, _ in during - before} <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_a_kind_of_device_that_nobody_has_is_reported() -> None:
    with pytest.raises(WorkerError, match=r"no place for 1 workers with .'warp_core': 1. within 3 s"):
        launch_ray(jobs.collectives, [()], resources={"warp_core": 1}, timeout=3.0)

"""Thread pools whose workers are pinned to cores, and the calling thread, which makes room for them."""

import ctypes
import os
import threading
from functools import partial

import llvmlite.binding as llvm
import numpy as np
import pytest

from burnish.errors import ParameterError
from burnish.runtime import pool as pools
from burnish.runtime.entry import driver_image
from burnish.runtime.image import LoadedImage
from burnish.runtime.module import Module
from burnish.runtime.pool import ThreadPool
from tests.runtime.affinity import check_in_child, masks_asked_for

CORES = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def new_pool(cores: tuple[int, ...]) -> ThreadPool:
    return ThreadPool(LoadedImage(driver_image(llvm.get_process_triple())), len(cores), cores)


def tasks() -> set[int]:
    return set(map(int, os.listdir("/proc/self/task")))


def allowed(task: int) -> list[int]:
    return sorted(os.sched_getaffinity(task))


@several
def test_workers_are_pinned_to_their_cores_and_the_caller_is_not() -> None:
    before = tasks()
    new_pool((CORES[0], CORES[1])).start()
    (worker,) = tasks() - before
    assert allowed(worker) == [CORES[1]]
    assert allowed(0) == CORES


@several
def test_a_module_runs_on_the_cores_that_the_variable_names(make_executable, monkeypatch) -> None:
    executable, x = make_executable(), np.ones(1000, np.float32)
    for value, core in ((f"{CORES[1]},{CORES[0]}", CORES[0]), (f"{CORES[0]},{CORES[1]}", CORES[1])):
        monkeypatch.setattr(pools, "_pools", {})
        monkeypatch.setenv("BURNISH_AFFINITY", value)
        module, before = Module(executable, 2), tasks()
        assert np.array_equal(module(x), 2 * (1 + np.arange(1000, dtype=np.float32)))
        (worker,) = tasks() - before
        assert allowed(worker) == [core]
        assert allowed(0) == CORES


@several
def test_pools_of_other_cores_are_others(make_executable, monkeypatch) -> None:
    executable = make_executable()
    free = Module(executable, 2)._pool
    monkeypatch.setenv("BURNISH_AFFINITY", "cores")
    pinned = Module(executable, 2)._pool
    assert pinned is not free and pinned is Module(executable, 2)._pool
    assert len(pinned.cores) == 2 and not free.cores


def test_a_module_with_more_threads_than_cores_is_refused(make_executable, monkeypatch) -> None:
    monkeypatch.setenv("BURNISH_AFFINITY", "cores")
    with pytest.raises(ParameterError, match=f"BURNISH_AFFINITY: .* a core for each of {len(CORES) + 1} threads"):
        Module(make_executable(), len(CORES) + 1)


@several
def test_a_forked_child_pins_its_own_workers_to_the_cores_it_has() -> None:
    pool = new_pool((CORES[0], CORES[1]))
    pool.start()
    child = os.fork()
    if child == 0:
        try:
            pool.reset()  # as every pool that models use
            pool.start()
            (worker,) = tasks() - {threading.get_native_id()}
            fine = allowed(worker) == [CORES[1]]
            pool.reset()
            os.sched_setaffinity(0, {CORES[0]})  # and what is made now may run there alone
            with pytest.warns(RuntimeWarning, match=f"does not give core {CORES[1]}"):
                pool.start()
            (other,) = tasks() - {threading.get_native_id(), worker}
            os._exit(0 if fine and allowed(other) == [CORES[0]] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("core", "usable", "masks"),
    [(5, 0b101011, [0b000011, 0b101011]), (1, 0b101011, []), (5, 0b101000, [0, 0b101000])],
    ids=["a worker's", "another", "workers' alone"],
)
def test_a_caller_on_the_core_of_a_worker_leaves_it_when_it_wakes_that(core, usable, masks) -> None:
    """And may run anywhere again afterwards. The cores are those that the system is made to tell; workers have 3 and 5,
    and do not leave their caller's.
    """
    pool = new_pool((1, 3, 5))
    pool._pin = lambda thread, core: None  # type: ignore[method-assign]  # which this machine may not have
    wakes = pool.start, partial(_region, pool)
    check_in_child(lambda: masks_asked_for(pool, (core, core), usable, wakes) == masks)


def _region(pool: ThreadPool) -> None:
    """Runs one region of a few iterations."""
    source, target = np.arange(100, dtype=np.int64), np.zeros(100, np.int64)
    arguments = (ctypes.c_int64 * 4)(target.ctypes.data, source.ctypes.data, target.nbytes, 8)
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(pool.parallel)
    region(pool.address, pool.driver.address("burnish_copy_range"), ctypes.addressof(arguments), 100)
    assert np.array_equal(source, target)


@pytest.mark.parametrize("nbytes", [1, 8, 800, 803])
def test_the_copy_of_a_region_stops_where_its_bytes_end(nbytes) -> None:
    pool = new_pool((CORES[0],) * 3)  # three threads on a core
    pool.start()
    source, target = np.arange(900, dtype=np.uint8), np.full(900, 7, np.uint8)
    arguments = (ctypes.c_int64 * 4)(target.ctypes.data, source.ctypes.data, nbytes, 16)
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(pool.parallel)
    region(pool.address, pool.driver.address("burnish_copy_range"), ctypes.addressof(arguments), -(-nbytes // 16))
    assert np.array_equal(target[:nbytes], source[:nbytes]) and set(target[nbytes:]) == {7}

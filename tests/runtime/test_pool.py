import ctypes
import os
import subprocess
import sys
import threading
import time
from functools import partial

import llvmlite.binding as llvm
import numpy as np
import pytest

from burnish.runtime import artifact
from burnish.runtime.abi import PartStruct, PoolStruct
from burnish.runtime.entry import driver_image
from burnish.runtime.image import LoadedImage
from burnish.runtime.link import link
from burnish.runtime.pool import ThreadPool, available_cores, pool
from tests.runtime.affinity import check_in_child, masks_asked_for, until_all_sleep

# `count` adds 1 to every element of its chunk, and writes the thread number into a second array. `nested` starts a
# region of 10 elements in a chunk of one iteration. `repeat` runs n regions of `extent` elements: {body, context,
# extent, n}.
KERNELS = """
define void @count(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
entry:
  %threads.at = getelementptr ptr, ptr %ctx, i64 1
  %threads = load ptr, ptr %threads.at
  %counts = load ptr, ptr %ctx
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %j, %loop ]
  %at = getelementptr i64, ptr %counts, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %thread.at = getelementptr i64, ptr %threads, i64 %i
  store i64 %thread, ptr %thread.at
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @nested(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
  %counts = load ptr, ptr %ctx
  %rt.at = getelementptr ptr, ptr %ctx, i64 2
  %rt = load ptr, ptr %rt.at
  %parallel = load ptr, ptr %rt
  %pool.at = getelementptr ptr, ptr %rt, i64 1
  %pool = load ptr, ptr %pool.at
  %offset = mul i64 %begin, 10
  %part = getelementptr i64, ptr %counts, i64 %offset
  %inner = alloca [2 x ptr]
  store ptr %part, ptr %inner
  %ignored.at = getelementptr ptr, ptr %ctx, i64 1
  %ignored = load ptr, ptr %ignored.at
  %ignored.part = getelementptr i64, ptr %ignored, i64 %offset
  %second = getelementptr ptr, ptr %inner, i64 1
  store ptr %ignored.part, ptr %second
  call void %parallel(ptr %pool, ptr @count, ptr %inner, i64 10)
  ret void
}
define void @repeat(ptr %args, ptr %rt) {
entry:
  %parallel = load ptr, ptr %rt
  %pool.at = getelementptr ptr, ptr %rt, i64 1
  %pool = load ptr, ptr %pool.at
  %body = load ptr, ptr %args
  %ctx.at = getelementptr ptr, ptr %args, i64 1
  %ctx = load ptr, ptr %ctx.at
  %extent.at = getelementptr i64, ptr %args, i64 2
  %extent = load i64, ptr %extent.at
  %n.at = getelementptr i64, ptr %args, i64 3
  %n = load i64, ptr %n.at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  call void %parallel(ptr %pool, ptr %body, ptr %ctx, i64 %extent)
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


class Regions:
    """Counts and thread numbers of `size` elements, and a way to run regions over them."""

    def __init__(self, code: LoadedImage, threads: int, size: int = 103) -> None:
        self.code = code
        self.pool: ThreadPool = pool(driver_image(llvm.get_process_triple()), threads)
        self.counts = np.zeros(max(size, 1), np.int64)
        self.threads = np.full(max(size, 1), -1, np.int64)
        self.size = size
        self.rt = (ctypes.c_void_p * 6)(self.pool.parallel, self.pool.address, None, 0, threads, None)
        self.context = (ctypes.c_void_p * 3)(
            self.counts.ctypes.data, self.threads.ctypes.data, ctypes.addressof(self.rt)
        )

    def run(self, times: int, body: str = "count") -> None:
        self.pool.start()
        args = (ctypes.c_void_p * 4)(self.code.address(body), ctypes.addressof(self.context), self.size, times)
        repeat = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self.code.address("repeat"))
        repeat(ctypes.addressof(args), ctypes.addressof(self.rt))


@pytest.fixture(scope="module")
def code(compile_object):
    return LoadedImage(link({"kernels": compile_object(KERNELS)}))


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 103])
def test_every_element_is_visited_once_per_region(code, threads, size) -> None:
    regions = Regions(code, threads, size)
    regions.run(500)
    assert regions.counts[:size].tolist() == [500] * size


def test_regions_far_apart_find_workers_asleep_and_wake_them(code) -> None:
    regions = Regions(code, 2)
    for _ in range(5):
        regions.run(1)
        until_all_sleep(regions.pool)
        assert regions.pool._pool.sleepers >= 1
    assert regions.counts.tolist() == [5] * 103


def test_sleeping_workers_use_no_processor_time(code) -> None:
    before = set(os.listdir("/proc/self/task"))
    regions = Regions(code, 5)  # a number that no other test uses: its workers start here
    regions.run(1)
    workers = set(os.listdir("/proc/self/task")) - before
    assert len(workers) >= 4
    until_all_sleep(regions.pool)
    time.sleep(0.05)  # from the count to the sleep itself
    used = _processor_time(workers)
    time.sleep(0.2)
    assert _processor_time(workers) == used


def _processor_time(tasks: set[str]) -> dict[str, str]:
    """Nanoseconds that each thread has run."""
    used = {}
    for task in tasks:
        with open(f"/proc/self/task/{task}/schedstat") as file:
            used[task] = file.read().split()[0]
    return used


@pytest.mark.parametrize(
    ("core", "allowed", "masks"),
    [(3, 0b1011, [0b0011, 0b1011]), (1, 0b1011, []), (3, 0b1000, [0, 0b1000])],
    ids=["its caller's", "another", "the only one"],
)
def test_a_woken_worker_leaves_its_callers_core(code, core, allowed, masks) -> None:
    """And may run on it again afterwards. The cores are those that the system is made to tell; the caller's is 3."""
    regions = Regions(code, 2)
    check_in_child(lambda: masks_asked_for(regions.pool, (3, core), allowed, [partial(regions.run, 1)] * 2) == masks)


def test_a_nested_region_runs_on_its_own_thread(code) -> None:
    regions = Regions(code, 3, size=30)
    regions.size = 3  # chunks of one iteration
    regions.run(200, body="nested")
    assert regions.counts.tolist() == [200] * 30


@pytest.mark.parametrize("threads", [2, 4])
def test_python_threads_share_a_pool(code, threads) -> None:
    many = [Regions(code, threads) for _ in range(3)]
    callers = [threading.Thread(target=each.run, args=(3000,)) for each in many]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [each.counts.tolist() for each in many] == [[3000] * 103] * 3


def test_a_forked_child_has_working_threads(code) -> None:
    regions = Regions(code, 3)
    regions.run(10)
    child = os.fork()
    if child == 0:
        try:
            regions.run(1000)
            os._exit(0 if regions.counts.tolist() == [1010] * 103 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    regions.run(10)
    assert regions.counts.tolist() == [20] * 103


def test_one_pool_per_number_of_threads(code) -> None:
    assert Regions(code, 2).pool is Regions(code, 2).pool
    assert Regions(code, 2).pool is not Regions(code, 3).pool


def test_workers_leave_signals_to_python(code) -> None:
    regions = Regions(code, 2)
    regions.run(1)
    masks = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            masks[int(task)] = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk"))
    interrupt = 1 << (2 - 1)
    assert not masks[threading.main_thread().native_id] & interrupt
    assert any(mask & interrupt for mask in masks.values())


def test_a_thread_count_below_one_is_refused(code) -> None:
    allowed = r"allowed: an integer from 1 to \d+, or None for one on each of \d+ cores"
    with pytest.raises(ValueError, match=rf"threads: found 0; {allowed}"):
        Regions(code, 0)


def test_the_default_is_the_cores_of_this_process() -> None:
    assert available_cores() == len(os.sched_getaffinity(0))


def test_the_structures_keep_threads_on_separate_cache_lines() -> None:
    assert ctypes.sizeof(PoolStruct) == 640
    assert ctypes.sizeof(PartStruct) == 128
    offsets = [getattr(PoolStruct, name).offset for name in ("generation", "sleepers", "busy", "done", "threads")]
    assert offsets == [0, 128, 256, 384, 512]


def test_a_process_ends_cleanly_while_workers_spin(make_executable, tmp_path) -> None:
    artifact.save(make_executable(), tmp_path / "m.bn")
    script = (
        "import sys, numpy as np; from burnish.driver.loading import load; "
        "m = load(sys.argv[1], threads=2); m(np.ones(1000, np.float32)); del m"
    )
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "m.bn")], capture_output=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")

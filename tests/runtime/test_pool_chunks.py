"""How the thread pool distributes a region: its chunks, who takes them, and what happens to threads that come late."""

import ctypes
import os
import random
import threading
import time

import llvmlite.binding as llvm
import numpy as np
import pytest

from burnish.runtime.entry import driver_image
from burnish.runtime.image import LoadedImage
from burnish.runtime.link import link
from burnish.runtime.pool import ThreadPool, pool

# Bodies have the context {counts, threads, value, arrived, gate}.
# `count` adds the value to the elements of its chunk, atomically, and notes its thread; every element takes another
# time, up to some 0.1 us, so that several threads get some. `log` writes {begin, end} of
# its chunk at the next place of counts, which `arrived` numbers. `meet` arrives, then counts when the gate is passed:
# when as many threads have arrived. `hold` lets the calling thread begin after another one has, and the other threads
# end after the gate is not 0 any more.
# `verify` runs n regions of random extents. After each it checks that the elements below the extent hold the region's
# number, and the other ones 0, and clears them. Regions have their contexts in turn in two places.
KERNELS = """
%Context = type { ptr, ptr, i64, i64, i64 }
%Stress = type { ptr, ptr, ptr, i64, i64, i64 }  ; counts, threads, extents, n, size of counts, errors

define void @count(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
entry:
  %counts = load ptr, ptr %ctx
  %threads.at = getelementptr %Context, ptr %ctx, i64 0, i32 1
  %threads = load ptr, ptr %threads.at
  %value.at = getelementptr %Context, ptr %ctx, i64 0, i32 2
  %value = load i64, ptr %value.at
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %j, %add ]
  %product = mul i64 %i, %value
  %delay = and i64 %product, 255
  br label %spend
spend:
  %spent = phi i64 [ 0, %loop ], [ %spent.next, %spend ]
  call void asm sideeffect "", ""()
  %spent.next = add i64 %spent, 1
  %early = icmp slt i64 %spent.next, %delay
  br i1 %early, label %spend, label %add
add:
  %at = getelementptr i64, ptr %counts, i64 %i
  %old = atomicrmw add ptr %at, i64 %value monotonic
  %thread.at = getelementptr i64, ptr %threads, i64 %i
  store atomic i64 %thread, ptr %thread.at monotonic, align 8
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @log(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
  %arrived = getelementptr %Context, ptr %ctx, i64 0, i32 3
  %place = atomicrmw add ptr %arrived, i64 1 monotonic
  %counts = load ptr, ptr %ctx
  %at = getelementptr { i64, i64 }, ptr %counts, i64 %place
  store i64 %begin, ptr %at
  %end.at = getelementptr { i64, i64 }, ptr %counts, i64 %place, i32 1
  store i64 %end, ptr %end.at
  ret void
}
define void @meet(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
  %arrived = getelementptr %Context, ptr %ctx, i64 0, i32 3
  %before = atomicrmw add ptr %arrived, i64 1 monotonic
  %gate = getelementptr %Context, ptr %ctx, i64 0, i32 4
  %all = load i64, ptr %gate
  br label %wait
wait:
  %here = load atomic i64, ptr %arrived monotonic, align 8
  %ready = icmp eq i64 %here, %all
  br i1 %ready, label %go, label %wait
go:
  call void @count(ptr %ctx, i64 %begin, i64 %end, i64 %thread)
  ret void
}
define void @hold(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
  %arrived = getelementptr %Context, ptr %ctx, i64 0, i32 3
  %gate = getelementptr %Context, ptr %ctx, i64 0, i32 4
  %caller = icmp eq i64 %thread, 0
  %flag = select i1 %caller, ptr %arrived, ptr %gate
  br i1 %caller, label %wait, label %arrive
arrive:
  store atomic i64 1, ptr %arrived monotonic, align 8
  br label %wait
wait:
  %state = load atomic i64, ptr %flag monotonic, align 8
  %ready = icmp ne i64 %state, 0
  br i1 %ready, label %go, label %wait
go:
  call void @count(ptr %ctx, i64 %begin, i64 %end, i64 %thread)
  ret void
}
define void @verify(ptr %stress, ptr %rt) {
entry:
  %places = alloca [2 x %Context]
  %parallel = load ptr, ptr %rt
  %pool.at = getelementptr ptr, ptr %rt, i64 1
  %pool = load ptr, ptr %pool.at
  %counts = load ptr, ptr %stress
  %threads.at = getelementptr %Stress, ptr %stress, i64 0, i32 1
  %threads = load ptr, ptr %threads.at
  %extents.at = getelementptr %Stress, ptr %stress, i64 0, i32 2
  %extents = load ptr, ptr %extents.at
  %n.at = getelementptr %Stress, ptr %stress, i64 0, i32 3
  %n = load i64, ptr %n.at
  %size.at = getelementptr %Stress, ptr %stress, i64 0, i32 4
  %size = load i64, ptr %size.at
  %errors.at = getelementptr %Stress, ptr %stress, i64 0, i32 5
  br label %region
region:
  %r = phi i64 [ 0, %entry ], [ %value, %next ]
  %errors = phi i64 [ 0, %entry ], [ %errors.new, %next ]
  %value = add i64 %r, 1
  %parity = and i64 %r, 1
  %ctx = getelementptr %Context, ptr %places, i64 %parity
  store ptr %counts, ptr %ctx
  %ctx.threads = getelementptr %Context, ptr %ctx, i64 0, i32 1
  store ptr %threads, ptr %ctx.threads
  %ctx.value = getelementptr %Context, ptr %ctx, i64 0, i32 2
  store i64 %value, ptr %ctx.value
  %extent.at = getelementptr i64, ptr %extents, i64 %r
  %extent = load i64, ptr %extent.at
  call void %parallel(ptr %pool, ptr @count, ptr %ctx, i64 %extent)
  store ptr null, ptr %ctx
  br label %element
element:
  %i = phi i64 [ 0, %region ], [ %j, %element ]
  %sum = phi i64 [ %errors, %region ], [ %errors.new, %element ]
  %at = getelementptr i64, ptr %counts, i64 %i
  %count = atomicrmw xchg ptr %at, i64 0 monotonic
  %inside = icmp slt i64 %i, %extent
  %expected = select i1 %inside, i64 %value, i64 0
  %wrong = icmp ne i64 %count, %expected
  %error = zext i1 %wrong to i64
  %errors.new = add i64 %sum, %error
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %size
  br i1 %more, label %element, label %next
next:
  %again = icmp slt i64 %value, %n
  br i1 %again, label %region, label %done
done:
  store i64 %errors.new, ptr %errors.at
  ret void
}
"""
SIZE = 64


class Context(ctypes.Structure):
    _fields_ = (
        ("counts", ctypes.c_void_p),
        ("threads", ctypes.c_void_p),
        ("value", ctypes.c_int64),
        ("arrived", ctypes.c_int64),
        ("gate", ctypes.c_int64),
    )


class Harness:
    """Runs the kernels on one pool, with counts and thread numbers of its own."""

    def __init__(self, code: LoadedImage, threads: int) -> None:
        self.code = code
        self.pool: ThreadPool = pool(driver_image(llvm.get_process_triple()), threads)
        self.counts = np.zeros(SIZE, np.int64)
        self.threads = np.full(SIZE, -1, np.int64)
        self.context = Context(self.counts.ctypes.data, self.threads.ctypes.data, 1, 0, 0)

    def region(self, body: str, extent: int) -> None:
        """One region over [0, extent)."""
        self.pool.start()
        arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        parallel = ctypes.CFUNCTYPE(None, *arguments)(self.pool.parallel)
        parallel(self.pool.address, self.code.address(body), ctypes.addressof(self.context), extent)

    def errors(self, regions: int, seed: int) -> int:
        """Wrong counts in that many regions of random extents."""
        self.pool.start()
        source = random.Random(seed)
        extents = np.array([source.randint(0, source.choice((3, 9, SIZE))) for _ in range(regions)], np.int64)
        addresses = (array.ctypes.data for array in (self.counts, self.threads, extents))
        stress = (ctypes.c_int64 * 6)(*addresses, regions, SIZE, -1)
        rt = (ctypes.c_void_p * 2)(self.pool.parallel, self.pool.address)
        verify = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self.code.address("verify"))
        verify(ctypes.addressof(stress), ctypes.addressof(rt))
        return stress[5]


@pytest.fixture(scope="module")
def code(compile_object):
    return LoadedImage(link({"kernels": compile_object(KERNELS)}))


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("extent", [2, 7, 12, 103, 2**62 + 12345])
def test_chunks_are_contiguous_balanced_and_the_same_at_any_time(code, threads, extent) -> None:
    chunks = min(extent, 4 * threads)
    expected = [[extent * k // chunks, extent * (k + 1) // chunks] for k in range(chunks)]
    for _ in range(20):
        harness = Harness(code, threads)
        harness.region("log", extent)
        assert sorted(harness.counts.reshape(-1, 2)[: harness.context.arrived].tolist()) == expected


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_every_thread_begins_with_its_own_part(code, threads) -> None:
    for _ in range(10):
        harness = Harness(code, threads)
        harness.context.gate = threads
        harness.region("meet", threads)
        assert harness.threads[:threads].tolist() == list(range(threads))


def test_the_caller_takes_the_chunks_of_a_thread_that_hangs_and_sleeps_until_the_last_is_done(code) -> None:
    harness = Harness(code, 2)
    caller = threading.Thread(target=harness.region, args=("hold", 16))
    caller.start()
    try:
        deadline = time.monotonic() + 30
        while harness.pool._pool.waiting == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        asleep, counts = harness.pool._pool.waiting, harness.counts.tolist()
    finally:
        harness.context.gate = 1
        caller.join()
    # Chunks of two iterations; the worker has the first one of its part, from 8 on.
    assert (asleep, counts[:16]) == (1, [1] * 8 + [0] * 2 + [1] * 6)
    assert harness.counts.tolist() == [1] * 16 + [0] * 48
    assert harness.threads[:16].tolist() == [0] * 8 + [1] * 2 + [0] * 6


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_index_runs_once_and_in_its_own_region(code, threads) -> None:
    assert Harness(code, threads).errors(20_000, seed=threads) == 0


@pytest.mark.parametrize("threads", [2, 4])
def test_callers_in_turn_keep_their_regions_apart(code, threads) -> None:
    found: list[int] = []
    callers = [
        threading.Thread(target=lambda seed=seed: found.append(Harness(code, threads).errors(10_000, seed)))
        for seed in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [0] * 3


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("spin", [0, 50, 20_000])
def test_threads_that_share_one_core(code, threads, spin) -> None:
    """Nothing runs at the same time here: threads lose the core in the midst of regions, and come back in others."""
    harness = Harness(code, threads)
    child = os.fork()
    if child == 0:
        try:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            harness.pool._pool.spin = spin
            os._exit(0 if harness.errors(20_000, seed=spin) == 0 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

import os

import llvmlite.binding as llvm
import numpy as np
import pytest

from burnish.runtime import placement, workspace
from burnish.runtime.entry import driver_image
from burnish.runtime.image import LoadedImage
from burnish.runtime.module import Module
from burnish.runtime.placement import PLACED_BYTES, copied
from burnish.runtime.pool import ThreadPool

BIG = PLACED_BYTES // 4  # floats


@pytest.fixture
def two_nodes(monkeypatch) -> None:
    """As if the threads of each pool were pinned to cores of two nodes."""
    monkeypatch.setattr(ThreadPool, "nodes", property(lambda _: 2))


@pytest.fixture
def regions(monkeypatch) -> list[int]:
    """Bytes of each parallel region that copies."""
    sizes: list[int] = []
    copy = placement._copy_in_parallel

    def noted(target: np.ndarray, source: np.ndarray, workers: ThreadPool) -> None:
        sizes.append(target.nbytes)
        copy(target, source, workers)

    monkeypatch.setattr(placement, "_copy_in_parallel", noted)
    return sizes


@pytest.fixture(scope="module")
def workers() -> ThreadPool:
    return ThreadPool(LoadedImage(driver_image(llvm.get_process_triple())), 3)


@pytest.mark.parametrize(
    "spans",
    [[], [(64, PLACED_BYTES)], [(0, 100), (64, PLACED_BYTES + 4097), (3 * PLACED_BYTES - 7, PLACED_BYTES + 3)]],
    ids=["none", "one", "two of odd sizes"],
)
def test_large_tensors_are_copied_by_the_threads_and_all_the_rest_too(two_nodes, regions, workers, spans) -> None:
    source = np.random.default_rng(0).integers(0, 256, 4 * PLACED_BYTES + 11, dtype=np.uint8)
    target = copied(source, spans, workers)
    assert np.array_equal(target, source) and not np.shares_memory(target, source)
    assert regions == [nbytes for _, nbytes in spans if nbytes >= PLACED_BYTES]


def test_spans_that_overlap_are_copied_once(two_nodes, regions, workers) -> None:
    source = np.arange(3 * PLACED_BYTES, dtype=np.int64).view(np.uint8)[: 3 * PLACED_BYTES]
    spans = [(0, 2 * PLACED_BYTES), (PLACED_BYTES, 2 * PLACED_BYTES), (0, PLACED_BYTES)]
    assert np.array_equal(copied(source, spans, workers), source)
    assert sum(regions) <= source.nbytes


def test_on_one_node_the_calling_thread_copies(regions, workers) -> None:
    source = np.ones(2 * PLACED_BYTES, np.uint8)
    assert np.array_equal(copied(source, [(0, source.nbytes)], workers), source)
    assert not regions


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_are_placed_when_a_module_is_loaded(two_nodes, regions, make_executable, threads) -> None:
    executable = make_executable(BIG)
    module = Module(executable, threads)
    assert regions == [PLACED_BYTES]
    assert not np.shares_memory(module._params, executable.params)
    assert np.shares_memory(module._params, module.executable.params)  # nobody keeps the others
    x = np.full(BIG, 2, np.float32)
    assert np.array_equal(module(x), 2 * (2 + np.arange(BIG, dtype=np.float32)))


def test_a_driver_without_the_copy_places_nothing(two_nodes, regions, make_executable, monkeypatch) -> None:
    """Such as one in a file of an older release."""
    monkeypatch.setattr(placement, "COPY_BODY", "burnish_of_another_release")
    executable = make_executable(BIG)
    module = Module(executable, 2)
    assert np.array_equal(module._params, executable.params)
    assert not regions


def test_the_pages_of_an_arena_are_untouched_before_the_first_call(make_executable, monkeypatch) -> None:
    """So that the threads of the first call, which compute what is in it, touch them first."""
    monkeypatch.setattr(workspace, "_idle", [])
    module = Module(make_executable(4 * BIG), 2)
    memory = module._workspace
    assert memory is not None and memory.nbytes > 4 * PLACED_BYTES
    assert present_pages(memory.address, 4 * PLACED_BYTES) == 0
    module(np.zeros(4 * BIG, np.float32))
    assert present_pages(memory.address, 4 * PLACED_BYTES) == 4 * PLACED_BYTES // os.sysconf("SC_PAGE_SIZE")


def present_pages(address: int, nbytes: int) -> int:
    """Pages of memory of this process that exist (bit 63 of Linux's pagemap), or are swapped out (bit 62)."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(address // page * 8)
            entries = np.frombuffer(file.read(nbytes // page * 8), np.uint64)
    except OSError as error:
        pytest.skip(f"the system does not tell which pages exist: {error}")
    return int(np.count_nonzero(entries >> np.uint64(62)))

"""Guard-page memory: an access beyond it kills, one beside it shows, and what is shared is seen by the parent."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

from burnish.runtime.buffers import ALIGNMENT, HUGE_PAGE
from burnish.runtime.fenced import UNWRITTEN, Fenced

SIZES = [0, 1, 64, 100, mmap.PAGESIZE, mmap.PAGESIZE + 1, HUGE_PAGE, HUGE_PAGE + 3]


def fate(action: Callable[[], object]) -> int:
    """The signal that kills a child process that does it; 0 for none."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # the signal is what is expected
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def write(address: int) -> None:
    ctypes.memset(address, 1, 1)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("edge", ["end", "start"])
def test_the_byte_beyond_the_edge_kills(nbytes: int, edge: str) -> None:
    memory = Fenced(nbytes, edge).fill()
    assert memory.bytes.size == nbytes and (memory.bytes == UNWRITTEN).all()
    beyond = memory.address + nbytes if edge == "end" else memory.address - 1
    assert fate(lambda: write(beyond)) == signal.SIGSEGV
    assert fate(lambda: ctypes.memset(memory.address, 1, nbytes)) == 0
    assert memory.untouched_around()


@pytest.mark.parametrize("nbytes", SIZES)
def test_aligned_memory_is_watched_on_both_sides(nbytes: int) -> None:
    for around in (UNWRITTEN, 0xA5):
        memory = Fenced(nbytes, alignment=ALIGNMENT, around=around)
        assert memory.address % ALIGNMENT == 0 and memory.untouched_around()
        end = -(-nbytes // ALIGNMENT) * ALIGNMENT
        assert fate(lambda: write(memory.address + end)) == signal.SIGSEGV  # noqa: B023
        beside = [memory.address - 1, *([memory.address + nbytes] if end > nbytes else [])]
        for address in beside:
            before = ctypes.string_at(address, 1)
            assert before == bytes([around])
            write(address)
            assert not memory.untouched_around()
            ctypes.memset(address, before[0], 1)
        assert memory.untouched_around()


def test_locked_memory_is_read_and_not_written() -> None:
    memory = Fenced(100)
    memory.bytes[:] = 7
    memory.lock()
    assert int(memory.bytes.sum()) == 700
    assert fate(lambda: write(memory.address)) == signal.SIGSEGV


@pytest.mark.parametrize("shared", [False, True])
def test_shared_memory_shows_what_a_child_wrote(shared: bool) -> None:
    memory = Fenced(64, shared=shared).fill()
    assert fate(lambda: ctypes.memset(memory.address - 1, 1, 3)) == 0
    assert memory.untouched_around() == (not shared)
    assert memory.array((16,), np.dtype(np.uint32))[0] == (0xFFFF0101 if shared else 0xFFFFFFFF)

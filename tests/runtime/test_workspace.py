import gc
from weakref import ref

import numpy as np
import pytest

from burnish.runtime import workspace
from burnish.runtime.module import Module
from burnish.runtime.workspace import borrow, give_back


@pytest.fixture(autouse=True)
def none_idle(monkeypatch) -> None:
    monkeypatch.setattr(workspace, "_idle", [])


def test_what_was_returned_last_is_lent_first() -> None:
    first, second = borrow(1000), borrow(1000)
    assert first is not second and first.address % 64 == second.address % 64 == 0
    give_back(first)
    give_back(second)
    assert borrow(500) is second
    assert borrow(1000) is first


def test_too_small_a_workspace_is_not_offered_again() -> None:
    small, large = borrow(1000), borrow(2000)
    give_back(large)
    give_back(small)
    assert borrow(2000) is large
    assert borrow(1000) not in (small, large)


def test_a_workspace_dies_with_its_last_borrower() -> None:
    lent = borrow(1000)
    memory = ref(lent)
    give_back(lent)
    del lent
    gc.collect()
    assert memory() is None
    assert borrow(1000).nbytes == 1000


@pytest.mark.parametrize("threads", [1, 2])
def test_modules_that_run_in_turn_share_one(make_executable, threads) -> None:
    small, large = (Module(make_executable(n), threads) for n in (1000, 4000))
    for _ in range(2):
        for module, n in ((small, 1000), (large, 4000)):
            weights = np.arange(n, dtype=np.float32)
            assert np.array_equal(module(weights), 4 * weights)
    assert small._workspace is large._workspace

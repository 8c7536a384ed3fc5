"""Parallel regions of boosting: the same trees for more threads than cores, beside other callers, and after a fork."""

import os
import threading

import numpy as np
import pytest

from burnish.base.regions import region
from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.model import dumps
from burnish.runtime.threads import Workers

ROWS = 40_000


@region
def count(numbers, threads, begin, end, thread):  # type: ignore[no-untyped-def]
    """Adds 1 to each number, and notes the thread."""
    for i in range(begin, end):
        numbers[i] += 1
        threads[i] = thread


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize(("extent", "grain"), [(0, 1), (1, 1), (5, 1), (1000, 7), (1000, 2000)])
def test_every_iteration_is_done_once(threads: int, extent: int, grain: int) -> None:
    numbers, by = np.zeros(extent + 1, np.int64), np.zeros(extent + 1, np.int64)
    Workers(threads).each(count, extent, numbers, by, grain=grain)
    assert (numbers[:extent] == 1).all()
    assert numbers[extent] == 0
    assert 0 <= by.min() <= by.max() < threads


def test_a_loop_names_what_it_is_given_last() -> None:
    with pytest.raises(TypeError, match=r"\['a', 'begin', 'end'\]; allowed: begin, end, thread"):
        region(lambda a, begin, end: None)


def table() -> Dataset:
    draw = np.random.default_rng(3)
    x = draw.standard_normal((ROWS, 6)).astype(np.float32)
    x[draw.random(x.shape) < 0.1] = np.nan
    return Dataset.of(x, (np.nansum(x[:, :3], 1) + draw.standard_normal(ROWS) > 0).astype(np.float32))


def test_sixteen_threads_beside_each_other_and_in_a_fork_give_one_model() -> None:
    """Of 16 threads on fewer cores: level by level, then subtrees; two trainings at once; a child of a fork."""
    data, params = table(), {"objective": "logistic", "max_depth": 7}

    def model(threads: int) -> bytes:
        return dumps(train(params, data, 3, threads=threads))

    expected = model(1)
    for threads in (2, 3, 7, 16):
        assert model(threads) == expected
    found: list[bytes] = []
    callers = [threading.Thread(target=lambda: found.append(model(16))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [expected] * 2
    child = os.fork()
    if child == 0:
        os._exit(0 if model(16) == expected else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.losses.reduction import Reduction
from burnish.comm import thread_comms

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)


@given(NUMBERS, st.randoms())
def test_a_sum_does_not_depend_on_the_order_and_is_close(values: list[float], random: object) -> None:
    array = np.array(values, np.float64)
    mixed = np.random.default_rng(len(values)).permutation(array)
    total = Reduction().sum(array)
    assert total == Reduction().sum(mixed)
    assert abs(total - math.fsum(values)) <= 1e-15 * np.abs(array).max() * len(values)


def shared(values: np.ndarray, weight: np.ndarray, size: int) -> list[tuple[float, ...]]:
    cuts = np.linspace(0, len(values), size + 1).astype(int)

    def work(comm: object, begin: int, end: int) -> tuple[float, ...]:
        reduction = Reduction(comm)
        part = values[begin:end]
        return (
            reduction.sum(part), reduction.mean(part, weight[begin:end]), reduction.count(len(part)),
            float(reduction.gather(part).sum()), reduction.before(len(part)),
        )  # fmt: skip

    with ThreadPoolExecutor(size) as pool:
        tasks = [pool.submit(work, c, a, b) for c, a, b in zip(thread_comms(size), cuts, cuts[1:], strict=False)]
        return [task.result() for task in tasks]


@settings(max_examples=10, deadline=None)
@given(NUMBERS, st.integers(2, 4))
def test_workers_agree_bit_for_bit_with_one(values: list[float], size: int) -> None:
    array = np.array(values, np.float64)
    weight = (np.arange(len(values)) % 5 + 1).astype(np.float32)
    alone = (Reduction().sum(array), Reduction().mean(array, weight), len(array), float(array.sum()))
    found = shared(array, weight, size)
    assert all(answer[:4] == alone for answer in found)
    assert [answer[4] for answer in found] == np.linspace(0, len(values), size + 1).astype(int)[:-1].tolist()


def test_edges() -> None:
    assert Reduction().sum(np.zeros(0)) == 0.0
    assert Reduction().sum(np.array([5e-324])) == 5e-324
    assert Reduction().sum(np.array([1e300, -1e300, 1e290])) == pytest.approx(1e290, rel=1e-6)
    assert math.isnan(Reduction().sum(np.array([1.0, np.nan])))
    assert math.isnan(Reduction().sum(np.array([1.0, np.inf])))
    assert math.isnan(Reduction().mean(np.zeros(0)))
    assert Reduction().mean(np.array([1.0, 2.0]), np.array([1.0, 3.0], np.float32)) == 1.75

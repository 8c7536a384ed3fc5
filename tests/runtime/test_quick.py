"""Quick calls: small outputs that share blocks of memory, and what takes the general way."""

import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import GraphBuilder
from burnish.loops.sizes import dim
from burnish.runtime.module import Module
from burnish.runtime.quick import BLOCK


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Module:
    """x [3] -> x + 1, float32, and x > 0, bool."""
    b = GraphBuilder()
    x = b.input("x", (3,))
    one, zero = (b.constant(np.array(v, np.float32)) for v in (1, 0))
    graph = b.build(b.add("add", x, one), b.add("greater", x, zero))
    return bn.compile(graph, threads=1, rewrite=False, cache_dir=tmp_path_factory.mktemp("objects"))


def test_small_outputs_are_aligned_apart_and_keep_their_values(two: Module) -> None:
    assert two._quick is not None
    rows = np.random.default_rng(0).standard_normal((3 * BLOCK // 128, 3), dtype=np.float32)
    found = [two(row) for row in rows]
    arrays = [array for pair in found for array in pair]
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays)
    assert all(at % 64 == 0 for at, _ in places)
    assert all(at + size <= after for (at, size), (after, _) in pairwise(places))
    for row, (y, positive) in zip(rows, found, strict=True):
        assert np.array_equal(y, row + 1) and np.array_equal(positive, row > 0)
        assert y.flags.writeable and positive.dtype == bool


def test_threads_share_a_module(two: Module) -> None:
    rows = np.random.default_rng(1).standard_normal((400, 3), dtype=np.float32)
    wrong: list[int] = []

    def calls(first: int) -> None:
        wrong.extend(i for i in range(first, 400, 4) if not np.array_equal(two(rows[i])[0], rows[i] + 1))

    threads = [threading.Thread(target=calls, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_open_sizes_are_called_quickly_when_they_come_again(tmp_path: Path) -> None:
    """More of them than a module remembers, in turn, also of memory that grows with them."""
    b = GraphBuilder()
    x = b.input("x", (dim("n", 1, 400), 3))
    total = b.add("reduce_sum", b.add("exp", x), axes=(0,), keepdims=True)
    module = bn.compile(b.build(b.add("div", b.add("exp", x), total)), rewrite=False, cache_dir=tmp_path)
    for n in (*range(1, 14), 400, 3, 13, 400, 1, 13, 13):
        given = np.random.default_rng(n).standard_normal((n, 3), dtype=np.float32)
        wanted = np.exp(given) / np.exp(given).sum(0, keepdims=True)
        for _ in range(2):
            np.testing.assert_allclose(module(given), wanted, rtol=1e-5)
        assert module._quick is not None and module._quick([given]) is not None
        assert module._quick([given.astype(np.float64)]) is None and module._quick([3]) is None


def test_states_take_the_general_way(tmp_path: Path) -> None:
    b = GraphBuilder()
    old = b.state("s", np.zeros(3, np.float32))
    b.update("s", b.add("add", old, b.input("x", (3,))))
    assert bn.compile(b.build(), rewrite=False, cache_dir=tmp_path)._quick is None


def test_a_profile_leaves_no_trace_in_later_calls(two: Module) -> None:
    x = np.ones(3, np.float32)
    two.profile(x, repeat=1)
    assert two._runner.runtime.profile is None
    assert np.array_equal(two(x)[0], [2, 2, 2])

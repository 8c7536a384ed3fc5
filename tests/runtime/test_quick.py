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


def test_states_are_kept_from_quick_call_to_quick_call(tmp_path: Path) -> None:
    b = GraphBuilder()
    old = b.state("s", np.zeros(3, np.float32))
    b.update("s", b.add("add", old, b.input("x", (3,))))
    module = bn.compile(b.build(b.add("mul", old, old)), rewrite=False, cache_dir=tmp_path)
    x = np.arange(3, dtype=np.float32)
    assert module._quick is not None
    found = [module._quick((x,)).tolist() for _ in range(3)]
    assert found == [[0, 0, 0], [0, 1, 4], [0, 4, 16]] and module.state["s"].tolist() == [0, 3, 6]


def test_a_profile_leaves_no_trace_in_later_calls(two: Module) -> None:
    x = np.ones(3, np.float32)
    two.profile(x, repeat=1)
    assert two._runner.runtime.profile is None
    assert np.array_equal(two(x)[0], [2, 2, 2])


def test_results_go_into_arrays_that_fit_and_share_nothing(two: Module) -> None:
    """Others take the general way, which says what is wrong; nothing is written to them."""
    x, y, positive = np.arange(-1, 2, dtype=np.float32), np.zeros(3, np.float32), np.zeros(3, bool)
    assert two._quick is not None and two._quick.into([x], [y, positive])
    assert y.tolist() == [0, 1, 2] and positive.tolist() == [False, False, True]
    memory = np.zeros(8, np.float32)
    locked, wide = np.zeros(3, np.float32), memory[::2][:3]
    locked.flags.writeable = False
    for wrong in (locked, wide, memory[:4], memory[:3].astype(np.float64), [0, 0, 0], x, positive.view()):
        assert not two._quick.into([x], [wrong, positive])
        with pytest.raises(bn.errors.InputError):
            two.run_into([x], [wrong, positive])
    assert x.tolist() == [-1, 0, 1] and not memory.any() and not locked.any()
    bytes_ = np.zeros(15, np.uint8)
    overlapping = bytes_[:12].view(np.float32), bytes_[11:14].view(bool)
    assert not two._quick.into([x], overlapping) and two._quick.into([x], [overlapping[0], bytes_[12:].view(bool)])
    assert bytes_[:12].view(np.float32).tolist() == [0, 1, 2] and bytes_[12:].tolist() == [0, 0, 1]


def test_what_kernels_cannot_read_takes_the_general_way(two: Module) -> None:
    x = np.arange(-1, 2, dtype=np.float32)
    kinds = np.repeat(x, 2)[::2], np.frombuffer(b"0" + x.tobytes(), np.float32, 3, 1)
    assert two._quick is not None
    for given in (*kinds, x.reshape(3, 1), x[:2], x.view(np.int32), x.view(np.ma.MaskedArray), None):
        assert two._quick((given,)) is None
    for given in kinds:
        assert two(given)[0].tolist() == [0, 1, 2]
    assert two._quick((x,))[0].tolist() == [0, 1, 2]

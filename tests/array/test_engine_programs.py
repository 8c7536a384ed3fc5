"""Arrays on four threads: random programs of operations, writes, views and draws leave what serial execution leaves."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest

import burnish as bn
from burnish.array import lazy, program
from burnish.array import random as draws
from burnish.array.engine import Engine, Resource
from burnish.errors import EngineError, InputError

nd = bn.nd
N = 23  # elements: a size that no other test has, whose programs are made here


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine of four threads for which every operation is worth one."""
    monkeypatch.setattr(program, "LONG", -1.0)
    monkeypatch.setattr(program, "TIMED", 1)
    monkeypatch.setattr(draws, "LONG", 0)
    with Engine(4) as engine:
        monkeypatch.setattr(lazy, "engine", engine)
        monkeypatch.setattr(draws, "engine", engine)
        yield engine


def run(rng: random.Random, arrays: list, where: object, sample: object) -> None:
    """A random program on integers, by NumPy or here."""
    for _ in range(12):
        kind, i, j = rng.randrange(7), rng.randrange(len(arrays)), rng.randrange(len(arrays))
        a, b = arrays[i], arrays[j]
        begin = rng.randrange(N - 3)
        if kind == 0:
            a += b % 5
        elif kind == 1:
            arrays[i] = a * 2 - b
        elif kind == 2:
            a[begin : begin + 3] = b[:3] + 1
        elif kind == 3:
            a[begin:] -= b[begin:] % 3
        elif kind == 4:
            a += sample(i % 2)
        elif kind == 5:
            arrays[j] = where(a > b, a, b)
        else:
            arrays[i] = a % 11


def test_random_programs_of_arrays_equal_serial_execution(threads: Engine) -> None:
    most = 0
    for seed in range(100):
        plain = [np.arange(N, dtype=np.int64) * (k + 1) % 13 for k in range(3)]
        ours = [nd.array(a) for a in plain]
        serial = [nd.random.Generator(s) for s in range(2)]
        threaded = [nd.random.Generator(s) for s in range(2)]

        def drawn(generators: list, which: int) -> object:
            return (generators[which].uniform(0, 9, shape=N, dtype="float32")).astype("int64")

        run(random.Random(seed), plain, np.where, lambda s, g=serial: drawn(g, s).numpy())
        run(random.Random(seed), ours, nd.where, lambda s, g=threaded: drawn(g, s))
        most = max(most, threads.pending)
        for a, x in zip(plain, ours, strict=True):
            np.testing.assert_array_equal(x.numpy(), a, err_msg=f"program {seed}")
    assert most > 0, "everything ran where it was pushed"


def test_draws_follow_their_seed_in_order() -> None:
    one, other = nd.random.Generator(7), nd.random.Generator(7)
    first, second = one.uniform(shape=5), one.normal(shape=(2, 3))
    assert second.shape == (2, 3)
    again = [other.uniform(shape=5), other.normal(shape=(2, 3))]
    assert (first == again[0]).numpy().all()
    assert (second == again[1]).numpy().all()
    assert not (first == one.uniform(shape=5)).numpy().any()
    nd.random.seed(3)
    before = nd.random.uniform(shape=4).tolist()
    nd.random.seed(3)
    assert nd.random.uniform(shape=4).tolist() == before
    with pytest.raises(InputError, match="seed: found -1"):
        nd.random.seed(-1)


def test_what_fails_on_a_thread_is_told_to_its_reader_by_name(threads: Engine) -> None:
    a = nd.array(np.arange(N))
    (a + 1).wait()
    b = a * 3
    block = lazy.materialize(b.value)

    def fail() -> None:
        raise RuntimeError("the disk is full")

    threads.push(fail, writes=[block.resource(), Resource("other")], name="load of b")
    c = b + a
    with pytest.raises(EngineError, match="'load of b' failed: RuntimeError: the disk is full"):
        c.numpy()
    assert (a + 2).tolist() == list(range(2, N + 2))


def test_waiting_for_all_leaves_nothing_pending(threads: Engine) -> None:
    a = nd.array(np.arange(N))
    for _ in range(5):
        a = a * 2 % 101
        a.wait()
    b = a + 1
    nd.wait_all()
    assert threads.pending == 0
    assert b.value.block is not None


def test_long_updates_in_place_take_no_other_memory(threads: Engine) -> None:
    w, g, places = nd.ones(N), nd.ones(N), set()
    for _ in range(30):
        w -= 0.25 * g
        lazy.flush()
        places.add(w.value.address)
    assert w.tolist() == [-6.5] * N
    assert len(places) <= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_goes_on_with_arrays(threads: Engine) -> None:
    a = nd.array(np.arange(N))
    for _ in range(3):
        (a * 3 + 1).wait()
    b = a * 3 + 1
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if (b + a).tolist() == [4 * k + 1 for k in range(N)] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert b.tolist() == [3 * k + 1 for k in range(N)]

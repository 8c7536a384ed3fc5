"""Calls of several threads on one module: at the same time, each in a context of its own."""

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ClosedError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.runtime import contexts, runner
from burnish.runtime.module import Module


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Raises the first error of one of them."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


class Meeting:
    """Steps in Python that can be made to wait for each other, and count how many run at the same time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.parties, self.most, self._inside, self._changed = 1, 0, 0, threading.Condition()
        self._own = runner.call_extern
        patch.setattr(runner, "call_extern", self)
        patch.setattr("burnish.pipeline.native.build", lambda *_: None)

    def __call__(self, *args: Any) -> None:
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.most >= self.parties, 30)
        time.sleep(0.002)
        self._own(*args)
        with self._changed:
            self._inside -= 1


def sorting(rows: Any = 4, state: bool = False) -> Graph:
    """x [rows, 3] -> sorted(x * 2) + 1; with ``state`` also how often."""
    b = GraphBuilder()
    one, two = (b.constant(np.array(v, np.float32)) for v in (1, 2))
    values, _ = b.add_many("sort", b.add("mul", b.input("x", (rows, 3)), two), axis=-1, descending=False)
    if state:
        count = b.state("count", np.zeros((), np.float32))
        b.update("count", b.add("add", count, one))
    return b.build(b.add("add", values, one))


def answer(x: np.ndarray) -> np.ndarray:
    return np.sort(x * 2) + 1


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    return Meeting(monkeypatch)


@pytest.mark.parametrize("rows", [4, dim("rows", 1, 8)])
def test_calls_run_at_the_same_time(meeting: Meeting, monkeypatch: pytest.MonkeyPatch, rows: Any) -> None:
    monkeypatch.setattr(contexts, "MANY", 3)
    monkeypatch.setattr(contexts, "available_cores", lambda: 3)
    module = bn.compile(sorting(rows), rewrite=False)
    meeting.parties = module.calls_at_once
    assert meeting.parties == 3

    def calls(number: int) -> None:
        x = np.random.default_rng(number).normal(size=(4 if rows == 4 else 1 + number % 8, 3)).astype(np.float32)
        for _ in range(5):
            np.testing.assert_array_equal(module(x), answer(x))

    in_threads(9, calls)
    assert meeting.most == 3  # further ones wait


def test_calls_with_state_take_turns(meeting: Meeting) -> None:
    module = bn.compile(sorting(state=True), rewrite=False)
    x = np.ones((4, 3), np.float32)
    in_threads(4, lambda number: [np.testing.assert_array_equal(module(x), answer(x)) for _ in range(5)] and None)
    assert (meeting.most, module.calls_at_once, module.state["count"]) == (1, 1, 20)


def test_quick_calls_of_all_sizes_are_right() -> None:
    b = GraphBuilder()
    x = b.input("x", (dim("n", 1, 400), 30))
    total = b.add("reduce_sum", b.add("exp", x), axes=(0,), keepdims=True)
    module = bn.compile(b.build(b.add("div", b.add("exp", x), total)), rewrite=False)

    def calls(number: int) -> None:
        rng = np.random.default_rng(number)
        rows = [rng.normal(size=(n, 30)).astype(np.float32) for n in (400, 3, 1 + number)]
        wanted = [np.exp(x) / np.exp(x).sum(0, keepdims=True) for x in rows]
        y = np.empty_like(rows[0])
        for _ in range(40):
            for given, right in zip(rows, wanted, strict=True):
                np.testing.assert_allclose(module(given), right, rtol=1e-5)
            module.run_into([rows[0]], [y])
            np.testing.assert_allclose(y, wanted[0], rtol=1e-5)

    in_threads(12, calls)


def test_calls_in_the_middle_of_calls_in_any_context(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a handler of a signal, in every one of three threads."""
    monkeypatch.setattr(contexts, "MANY", 3)
    monkeypatch.setattr(contexts, "available_cores", lambda: 3)
    module = bn.compile(sorting(), rewrite=False)
    meeting.parties, own = 3, meeting._own
    within = threading.local()
    x = np.ones((4, 3), np.float32)

    def nested(*args: Any) -> None:
        if not getattr(within, "call", False):
            within.call = True
            np.testing.assert_array_equal(module(x), answer(x))
            within.call = False
        own(*args)

    meeting._own = nested
    in_threads(3, lambda number: np.testing.assert_array_equal(module(x), answer(x)))


def test_closing_waits_for_calls_and_refuses_those_that_wait(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "MANY", 2)
    monkeypatch.setattr(contexts, "available_cores", lambda: 2)
    module = bn.compile(sorting(), rewrite=False)
    meeting.parties = 3  # all wait until it is lowered
    x, outcomes = np.ones((4, 3), np.float32), []

    def call(number: int) -> None:
        if number == 4:
            while meeting._inside < 2 or not module._contexts.waiting:
                time.sleep(0.001)
            threading.Timer(0.05, let_go).start()
            module.close()
            outcomes.append("closed")
            return
        try:
            np.testing.assert_array_equal(module(x), answer(x))
            outcomes.append("right")
        except ClosedError:
            outcomes.append("refused")

    def let_go() -> None:
        with meeting._changed:
            meeting.parties = 0
            meeting._changed.notify_all()

    in_threads(5, call)
    assert outcomes.count("right") >= 2 and sorted(set(outcomes)) == ["closed", "refused", "right"]


def test_a_forked_child_calls_where_threads_of_its_parent_wait(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "MANY", 2)
    monkeypatch.setattr(contexts, "available_cores", lambda: 2)
    module = bn.compile(sorting(), rewrite=False)
    meeting.parties, x = 3, np.ones((4, 3), np.float32)

    def call(number: int) -> None:
        if number < 3:
            module(x)
            return
        while meeting._inside < 2 or not module._contexts.waiting:
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            try:
                meeting.parties, meeting._changed = 0, threading.Condition()
                right = [np.array_equal(module(x), answer(x)), np.array_equal(module.run_async(x).result(9), answer(x))]
                os._exit(0 if all(right) else 1)
            finally:
                os._exit(2)
        with meeting._changed:
            meeting.parties = 0
            meeting._changed.notify_all()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    in_threads(4, call)


def test_a_module_is_freed_with_its_contexts(meeting: Meeting) -> None:
    from weakref import ref

    module = bn.compile(sorting(), rewrite=False)
    meeting.parties, x = 2, np.ones((4, 3), np.float32)
    for later in [module.run_async(x) for _ in range(4)]:
        np.testing.assert_array_equal(later.result(60), answer(x))
    assert isinstance(module, Module)
    kept = [ref(each) for each in module._contexts._all]
    assert len(kept) >= 2
    del module, later
    gc.collect()
    assert not any(each() for each in kept)

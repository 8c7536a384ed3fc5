"""The load of the serving benchmark: what counts as right, wrong and lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import burnish as bn
from benchmarks.serving import Calls, Requests, by_threads, callers
from burnish.graph.graph import GraphBuilder
from burnish.serve.options import ServeOptions
from burnish.serve.server import Server

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def module() -> bn.CompiledModel:
    b = GraphBuilder()
    return bn.compile(b.build(b.add("exp", b.input("x", (4, 8)))), rewrite=False)


@pytest.fixture(scope="module")
def server(module: bn.CompiledModel) -> Iterator[Server]:
    with Server({"m": module}, ServeOptions(port=0)) as running:
        yield running


def first(count: int) -> Callable[[], bool]:
    """Whether more calls are due, for the first `count` questions."""
    left = [True] * count
    return lambda: bool(left) and left.pop()


def test_callers_compare_every_answer(module: bn.CompiledModel) -> None:
    calls = Calls(module, X)
    found = by_threads(calls, 3, 1.2)
    assert found.wrong == found.lost == 0 and found.calls > 3 and found.alone > 0
    calls.expected = calls.expected + 1
    assert (calls(first(5)).wrong, calls(first(5)).right) == (5, 0)


def test_requests_tell_right_wrong_and_lost_answers(server: Server) -> None:
    address = server.address.removeprefix("http://")
    right = Requests(address, "x", X, np.exp(X))(first(5))
    assert (right.right, right.wrong, right.lost) == (5, 0, 0)
    wrong = Requests(address, "x", X, np.exp(X) + 1)(first(5))
    assert (wrong.right, wrong.wrong) == (0, 5)
    refused = Requests(address, "other", X, np.exp(X))(first(2))
    assert (refused.right, refused.wrong) == (0, 2), "a refusal is no right answer"


def test_a_connection_that_ends_without_an_answer_is_a_lost_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def ends() -> None:
            link, _ = listener.accept()
            link.recv(100)
            link.close()

        thread = threading.Thread(target=ends)
        thread.start()
        counts, _ = callers(1, 10.0, Requests(f"127.0.0.1:{listener.getsockname()[1]}", "x", X, X))
        thread.join()
    assert (counts.right, counts.wrong, counts.lost) == (0, 0, 1)

"""Leases: one holder a board, the right one next; boards that go are named and come back; a silent holder loses his."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from burnish.boards.board import Board
from burnish.boards.job import BoardJob
from burnish.boards.lost import DeviceLost
from burnish.boards.pool import MOST_FAILURES, DevicePool, Lease
from burnish.boards.table import BoardEntry
from burnish.errors import DeviceError, ParameterError


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Iterator[DevicePool]:
    with DevicePool([BoardEntry("one", "cpu"), BoardEntry("two", "cpu")], clock=clock) as made:
        yield made


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def waiting(pool: DevicePool, count: int) -> None:
    """Until so many requests wait."""
    while len(pool._waiting) < count:
        threading.Event().wait(0.01)


def test_each_board_has_one_holder_and_who_used_less_comes_first(pool: DevicePool, clock: Clock) -> None:
    first, second = pool.lease("cpu", "a"), pool.lease("cpu", "a")
    assert {first.device.name, second.device.name} == {"one", "two"}
    order: list[str] = []
    done = threading.Event()

    def want(owner: str, priority: int) -> None:
        with pool.lease("cpu", owner, priority):
            order.append(owner)
            done.wait()

    threads = []
    for number, (owner, priority) in enumerate([("a", 0), ("b", 0), ("c", 1)], 1):
        threads.append(beside(lambda owner=owner, priority=priority: want(owner, priority)))  # type: ignore[misc]
        waiting(pool, number)
    clock.now = 5.0
    first.release()
    waiting_for(lambda: len(order) == 1)
    second.release()
    waiting_for(lambda: len(order) == 2)
    assert order == ["c", "b"]
    done.set()
    for thread in threads:
        thread.join(20.0)
    assert order == ["c", "b", "a"]
    assert pool.used()["a"] == 10.0


def waiting_for(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.01)


def test_a_lease_asks_its_board_until_it_is_given_back(pool: DevicePool) -> None:
    with pool.lease("one", "a") as lease:
        assert lease.ask({"op": "ping"}) == ({"ok": True}, b"")
        with BoardJob(lease) as job:
            job.buffer("x", 8, bytes(8))
        assert [row["owner"] for row in pool.status()] == ["a", None]
    assert [row["state"] for row in pool.status()] == ["idle", "closed"]
    with pytest.raises(DeviceLost, match="'one': the lease has ended"):
        lease.ask({"op": "ping"})


def test_the_next_holder_finds_nothing_of_the_last(pool: DevicePool) -> None:
    with pool.lease("one", "a") as lease:
        job = BoardJob(lease)
        job.__enter__()
        job.buffer("x", 8, bytes(8))
    with pool.lease("one", "b") as lease:
        reply, _ = lease.ask({"op": "read", "places": [["x", 0, 8]], "seconds": 1.0}, most=8)
        assert "without a child" in reply["detail"]


def test_a_holder_without_a_heartbeat_loses_the_board(pool: DevicePool, clock: Clock) -> None:
    silent = pool.lease("one", "silent")
    clock.now = 59.0
    silent.ask({"op": "ping"})
    clock.now = 118.0
    assert pool.status()[0]["owner"] == "silent"
    clock.now = 120.0
    with pool.lease("one", "next") as lease:
        assert lease.ask({"op": "ping"})[0] == {"ok": True}
        with pytest.raises(DeviceLost, match="no heartbeat of 'silent' for 60 s"):
            silent.ask({"op": "ping"})
        silent.release()
        assert lease.ask({"op": "ping"})[0] == {"ok": True}
    assert pool.used() == {"silent": 120.0, "next": 0.0}


def test_a_board_that_was_killed_is_named_and_comes_back(pool: DevicePool, clock: Clock) -> None:
    with pool.lease("one", "a") as lease, pool.lease("two", "b") as other:
        board = pool._slots[0].board
        assert board is not None
        board.close()
        with pytest.raises(DeviceLost, match="device 'one': "):
            lease.ask({"op": "ping"})
        assert other.ask({"op": "ping"})[0] == {"ok": True}
        assert pool.status()[0]["state"] == "lost"
    with pytest.raises(DeviceError, match="none of kind 'one' became free in time: 'one' closed"):
        pool.lease("one", "a", seconds=0.0)
    clock.now = 1.0
    with pool.lease("one", "a") as lease:
        assert lease.ask({"op": "ping"})[0] == {"ok": True}


def test_nobody_waits_for_a_kind_that_never_comes(clock: Clock) -> None:
    opened: list[str] = []

    def broken(device: BoardEntry) -> Board:
        opened.append(device.name)
        clock.now += 5.0
        raise DeviceLost(f"device '{device.name}': unplugged")

    with DevicePool([BoardEntry("one", "cpu"), BoardEntry("two", "cpu")], broken, clock) as pool:
        with pytest.raises(DeviceError, match="no device of kind 'gpu'; known: cpu"):
            pool.lease("gpu", "a")
        with pytest.raises(DeviceError, match="none of kind 'cpu' lives: device 'one': unplugged; device 'two': unpl"):
            pool.lease("cpu", "a")
        assert min(map(opened.count, ("one", "two"))) >= MOST_FAILURES
        clock.now += 100.0
        tries = len(opened)
        with pytest.raises(DeviceError, match="none of kind 'cpu' lives"):
            pool.lease("cpu", "a")
        assert len(opened) > tries
        assert pool.used() == {"a": 0.0}


def test_who_wants_no_more_holds_nobody_up(pool: DevicePool) -> None:
    with pool.lease("one", "a"), pytest.raises(DeviceError, match="nobody waits any more"):
        pool.lease("one", "b", wanted=lambda: False)
    with pool.lease("one", "c") as lease:
        assert isinstance(lease, Lease)
    assert not pool._waiting


def test_who_waits_is_told_of_the_end(pool: DevicePool) -> None:
    with pool.lease("one", "a"):
        found: list[BaseException] = []

        def want() -> None:
            try:
                pool.lease("one", "b")
            except DeviceError as error:
                found.append(error)

        thread = beside(want)
        waiting(pool, 1)
        pool.close()
        thread.join(20.0)
        assert "the pool is closed" in str(found[0])


def test_names_are_used_once() -> None:
    with pytest.raises(ParameterError, match="'one' twice"):
        DevicePool([BoardEntry("one", "cpu"), BoardEntry("one", "arm")])

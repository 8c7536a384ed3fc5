"""Rooms of shared memory: places that are found, given back and refused; messages of workers through them."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from burnish.comm import shared
from burnish.comm.messages import MessageComm
from burnish.comm.shared import Rooms, make_rooms
from burnish.comm.sockets import SocketTransport
from burnish.errors import WorkerError

SIZE = 1 << 16


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[MessageComm, MessageComm]:
    """Two workers of this process with rooms of 64 KiB."""
    monkeypatch.setattr(shared, "ROOM", SIZE)
    numbers = make_rooms(2)
    here, there = socket.socketpair()
    copies = [shared.os.dup(number) for number in numbers]
    one = SocketTransport(0, 2, {1: here}, 5.0, Rooms(0, numbers))
    return MessageComm(one), MessageComm(SocketTransport(1, 2, {0: there}, 5.0, Rooms(1, copies)))


def test_places_do_not_overlap_and_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "ROOM", SIZE)
    rooms = Rooms(0, make_rooms(1))
    assert rooms.place(np.zeros(shared.SMALLEST - 1, np.uint8)) is None
    arrays = [np.full(20_001, n, np.uint8) for n in range(3)]
    begins = [rooms.place(array) for array in arrays]
    assert begins == [0, 20_032, 40_064]
    assert rooms.place(arrays[0]) is None  # full
    for begin, array in zip(begins, arrays, strict=True):
        assert begin is not None
        found = rooms.view(0, begin, array)
        assert found is not None and np.array_equal(found, array)
    rooms.free(20_032)
    assert rooms.place(np.zeros(20_050, np.uint8)) is None
    assert rooms.place(np.zeros(20_010, np.uint8)) == 20_032
    assert rooms.view(1, 0, arrays[0]) is None
    assert rooms.view(0, SIZE - 4, arrays[0]) is None
    assert rooms.view(0, -8, arrays[0]) is None


def test_messages_beyond_what_is_free_go_through_sockets(pair: tuple[MessageComm, MessageComm]) -> None:
    """Twenty arrays of 20 kB, more than a room and than what a socket takes, some larger than a room."""
    sent = [np.random.default_rng(n).normal(size=2_500 * (1 + 7 * (n % 5 == 4))) for n in range(20)]

    def send() -> None:
        for request in [pair[0].isend(array, 1, tag=n % 3) for n, array in enumerate(sent)]:
            request.wait()
        assert pair[0].recv(1)[0] == 1  # also hears what has become free
        assert pair[0]._transport._rooms._used == []  # type: ignore[attr-defined]

    def receive() -> None:
        for tag in range(3):
            for array in sent[tag::3]:
                place = np.zeros_like(array)
                assert pair[1].irecv(0, tag, place).wait() is place
                assert np.array_equal(place, array)
        pair[1].send(np.array([1]), 0)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(receive), pool.submit(send)]:
            done.result(timeout=120)


def test_what_was_received_is_nobody_elses(pair: tuple[MessageComm, MessageComm]) -> None:
    first, second = np.arange(4_000.0), np.zeros(4_000)
    pair[0].send(first, 1)
    found = pair[1].recv(0)
    pair[1].send(np.zeros(1), 0)
    pair[0].recv(1)
    pair[0].send(second, 1)  # where the first one was
    assert np.array_equal(found, first)


def test_a_place_in_no_room_is_refused(pair: tuple[MessageComm, MessageComm], monkeypatch: pytest.MonkeyPatch) -> None:
    transport = pair[0]._transport
    monkeypatch.setattr(transport._rooms, "place", lambda array: SIZE)  # type: ignore[attr-defined]
    pair[0].isend(np.arange(4_000.0), 1)
    with pytest.raises(WorkerError, match="worker 0 sent a place that is in no room: 65536"):
        pair[1].recv(0)

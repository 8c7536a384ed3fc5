"""The pool's server: tuners elsewhere lease its boards; keys are proved; a client that goes disturbs nobody."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from burnish.boards.client import RemotePool
from burnish.boards.frames import HEAD, MAGIC
from burnish.boards.job import BoardJob
from burnish.boards.lost import DeviceLost
from burnish.boards.pool import DevicePool
from burnish.boards.secure import calling, key_of
from burnish.boards.server import PoolServer
from burnish.boards.table import BoardEntry
from burnish.errors import DeviceError, ParameterError
from burnish.workers import Failure
from tests.boards.faults import board

KEY = b"0123456789abcdef"


class Served:
    """A pool, its server, and why clients were refused."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.heard = threading.Event()
        self.pool = DevicePool(
            [BoardEntry("one", "cpu"), BoardEntry("two", "cpu"), BoardEntry("oversized-x", "bad")], board
        )
        self.server = PoolServer(self.pool, KEY, refused=self.refuse)

    def refuse(self, why: str) -> None:
        self.refused.append(why)
        self.heard.set()

    def client(self, key: bytes = KEY) -> RemotePool:
        return RemotePool(self.server.address, key)


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.close()
    made.pool.close()


@pytest.fixture
def served(shared: Served) -> Served:
    shared.refused.clear()
    shared.heard.clear()
    return shared


def idle(served: Served) -> None:
    """Until no board is leased."""
    while any(row["owner"] for row in served.pool.status()):
        threading.Event().wait(0.01)


def test_boards_are_leased_and_asked_through_the_server(served: Served) -> None:
    with served.client().lease("cpu", "a") as lease:
        assert lease.about["protocol"] == 1
        with BoardJob(lease) as job:
            data = os.urandom(300_000)
            job.buffer("x", len(data), data)
            assert job.read([("x", 0, 7), ("x", 299_990, 10)]) == [data[:7], data[-10:]]
            with pytest.raises(Failure, match="KeyError"):
                job.fill(["y"])
        status = served.client().status()
        assert [row["owner"] for row in status["devices"]] == ["a", None, None]
        assert "a" in status["used"]
    idle(served)
    assert served.server.address.startswith("127.0.0.1:")


def test_a_wrong_key_is_refused_on_both_ends_and_disturbs_nobody(served: Served) -> None:
    with served.client().lease("cpu", "a") as lease:
        with pytest.raises(DeviceError, match=rf"the pool at {served.server.address} has another key"):
            served.client(b"another key, and long").lease("cpu", "b")
        assert served.heard.wait(20.0)
        assert "a client was refused" in served.refused[0]
        assert lease.ask({"op": "ping"})[0] == {"ok": True}
    assert "b" not in served.pool.used()


def test_who_skips_the_proof_of_the_key_is_refused(served: Served) -> None:
    with socket.create_connection(served.server._socket.getsockname()) as one:
        text = b'{"nonce": "%s"}' % (b"00" * 32)
        lease = b'{"op": "lease", "kind": "cpu", "owner": "b", "priority": 0}'
        for words in (text, lease):
            one.sendall(HEAD.pack(MAGIC, len(words), 0) + words)
        one.sendall(bytes(32))
        assert served.heard.wait(20.0)
    assert "tag is wrong" in served.refused[0]
    assert "b" not in served.pool.used()


def test_what_is_no_pool_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            connection, _ = other.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(64))
            connection.recv(1000)
            connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(DeviceError, match=f"what answers at {address} is no device pool"):
            RemotePool(address, KEY).lease("cpu", "a")
        thread.join(20.0)
    with pytest.raises(DeviceError, match=f"no pool answers at {address}"):
        RemotePool(address, KEY).status()
    with pytest.raises(ParameterError, match="allowed: host:port"):
        RemotePool("somewhere", KEY)


def test_a_client_that_goes_in_mid_upload_gives_its_board_back(served: Served) -> None:
    with socket.create_connection(served.server._socket.getsockname()) as one, served.client().lease("two", "b") as b:
        frames = calling(one, KEY, "here")
        frames.send({"op": "lease", "kind": "one", "owner": "a", "priority": 0})
        while "leased" not in frames.receive(20.0)[0]:
            pass
        assert served.pool.status()[0]["owner"] == "a"
        one.sendall(HEAD.pack(MAGIC, 2, 1 << 20) + b"{}" + bytes(1000))
        one.shutdown(socket.SHUT_RDWR)
        with served.client().lease("one", "c") as c:
            assert c.ask({"op": "ping"})[0] == {"ok": True}
        assert b.ask({"op": "ping"})[0] == {"ok": True}
    idle(served)


def test_an_oversized_answer_ends_the_board_not_the_server(served: Served) -> None:
    with served.client().lease("bad", "a") as lease:
        job = BoardJob(lease)
        job.__enter__()
        job.buffer("x", 8, bytes(8))
        with pytest.raises(DeviceLost, match="'oversized-x': sent what is no answer: a frame of 4194304 bytes"):
            job.read([("x", 0, 8)])
        with pytest.raises(DeviceLost, match="allowed: lease"):
            job.fill(["x"])
    with served.client().lease("one", "a") as lease:
        assert lease.ask({"op": "ping"})[0] == {"ok": True}


def test_what_is_no_request_is_answered(served: Served) -> None:
    with socket.create_connection(served.server._socket.getsockname()) as one:
        frames = calling(one, KEY, "here")
        for request, words in (
            ({"op": "dance"}, "found 'dance'; allowed: lease"),
            ({"kind": "cpu"}, "KeyError: 'op'"),
            ({"op": "lease", "kind": "gpu", "owner": "a", "priority": 0}, "no device of kind 'gpu'"),
            ({"op": "lease", "kind": "cpu", "owner": "a", "priority": "x"}, "ValueError"),
        ):
            frames.send(request)
            assert words in frames.receive(20.0)[0]["error"]


def test_keys_are_private_and_long(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key"
    key = key_of(path, make=True)
    assert len(key) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert key_of(path) == key
    path.chmod(0o640)
    with pytest.raises(ParameterError, match="may be read by others"):
        key_of(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ParameterError, match="holds 5 bytes; allowed: 16 or more"):
        key_of(path)

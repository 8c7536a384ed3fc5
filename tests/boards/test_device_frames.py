"""Frames arrive whole or not at all; what is too large, altered or of another key is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from burnish.boards.frames import HEAD, MAGIC, FrameError, Frames, Silence, TagError, gone


@pytest.fixture
def ends() -> Iterator[tuple[Frames, Frames]]:
    one, other = socket.socketpair()
    made = Frames(one.fileno(), one.fileno()), Frames(other.fileno(), other.fileno())
    yield made
    for frames, end in zip(made, (one, other), strict=True):
        frames.forget()
        end.close()


def test_headers_and_payloads_arrive(ends: tuple[Frames, Frames]) -> None:
    one, other = ends
    one.send({"op": "put", "n": 3}, b"\x00\x01\x02")
    one.send({})
    assert other.receive(1.0, most=3) == ({"op": "put", "n": 3}, b"\x00\x01\x02")
    assert other.receive(1.0) == ({}, b"")


def test_a_frame_comes_in_pieces_over_several_waits(ends: tuple[Frames, Frames]) -> None:
    one, other = ends
    text = b'{"a": 1}'
    whole = HEAD.pack(MAGIC, len(text), 2) + text + b"xy"
    for piece in (whole[:5], whole[5:20], whole[20:-1]):
        one.write(piece)
        with pytest.raises(Silence):
            other.receive(0.0, most=2)
    with pytest.raises(Silence):  # bytes that come one by one do not make it wait for ever
        other.receive(100.0, most=2, whole=0.0)
    one.write(whole[-1:])
    assert other.receive(1.0, most=2) == ({"a": 1}, b"xy")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "bytes that are no frame: b'HTTP"),
        (HEAD.pack(MAGIC, 1 << 30, 0), "bytes that are no frame"),
        (HEAD.pack(MAGIC, 2, 11) + b"{}", "a frame of 11 bytes; allowed: 10"),
        (HEAD.pack(MAGIC, 2, 0) + b"{]", "header is no JSON"),
        (HEAD.pack(MAGIC, 2, 0) + b"[]", "no JSON object"),
    ],
)
def test_what_is_no_frame_is_refused(ends: tuple[Frames, Frames], sent: bytes, words: str) -> None:
    one, other = ends
    one.write(sent)
    with pytest.raises(FrameError, match=words):
        other.receive(1.0, most=10)


def test_an_end_inside_of_a_frame_says_so(ends: tuple[Frames, Frames]) -> None:
    one, other = ends
    one.write(HEAD.pack(MAGIC, 2, 100) + b"{}abc")
    assert not gone(other.reader)
    os.dup2(os.open(os.devnull, os.O_RDONLY), one.reader)  # closes the socket
    assert gone(other.reader)
    with pytest.raises(EOFError, match="bytes into a frame"):
        other.receive(1.0, most=100)


def test_tags_bind_key_direction_order_and_bytes(ends: tuple[Frames, Frames]) -> None:
    one, other = ends
    one.authenticate(b"key", b"a", b"b")
    other.authenticate(b"key", b"b", b"a")
    for n in range(3):
        one.send({"n": n}, bytes([n]))
        other.send({"n": -n})
        assert other.receive(1.0, most=1) == ({"n": n}, bytes([n]))
        assert one.receive(1.0) == ({"n": -n}, b"")
    for key, way in ((b"another", b"a"), (b"key", b"b")):
        one.authenticate(key, way, b"b")
        one.send({"n": 3})
        with pytest.raises(TagError):
            other.receive(1.0)
        other._come.clear()


def test_a_frame_cannot_be_repeated(ends: tuple[Frames, Frames]) -> None:
    one, other = ends
    one.authenticate(b"key", b"a", b"b")
    other.authenticate(b"key", b"b", b"a")
    one.send({"op": "release"})
    os.set_blocking(other.reader, True)
    recorded = os.read(other.reader, 1000)
    os.set_blocking(other.reader, False)
    one.write(recorded + recorded)
    assert other.receive(1.0)[0] == {"op": "release"}
    with pytest.raises(TagError):
        other.receive(1.0)

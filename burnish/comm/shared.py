"""Shared memory of worker processes: each worker places what it sends in a room of its own, which all others can read.

A message then costs one copy at either end, and its sender goes on at once, however large it is. The receiver says when
a place is free again; where a room is full, messages go through the sockets.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from burnish.comm.protocol import Array

ROOM = 1 << 28  # bytes of a room; the system gives memory only to what has been written to
SMALLEST = 1 << 13  # bytes of the smallest array that goes through a room: below, a socket copies it as fast
_ALIGNMENT = 64


def make_rooms(count: int) -> list[int]:
    """Shared-memory rooms: file descriptors of ``count`` empty ones; none where the system has no anonymous files in
    memory.
    """
    if not hasattr(os, "memfd_create"):
        return []
    made: list[int] = []
    try:
        for number in range(count):
            made.append(os.memfd_create(f"burnish-{number}"))
            os.ftruncate(made[-1], ROOM)
    except OSError:
        for room in made:
            os.close(room)
        return []
    return made


class Rooms:
    """Shared-memory rooms of all workers, as one of them sees them."""

    def __init__(self, rank: int, numbers: Sequence[int]) -> None:
        """``numbers``: file descriptors of the rooms by rank, which are closed; none: nothing is placed."""
        self._maps = [mmap.mmap(number, ROOM) for number in numbers]
        for number in numbers:
            os.close(number)
        self._bytes = [np.frombuffer(each, np.uint8) for each in self._maps]
        self._rank = rank
        self._used: list[tuple[int, int]] = []  # begins and ends of places in this worker's room, in order

    def place(self, array: Array) -> int | None:
        """Copies an array into this worker's room; where it lies, None if it is small or nothing is free."""
        if not self._bytes or array.nbytes < SMALLEST:
            return None
        begin = 0
        for number, (other, end) in enumerate([*self._used, (ROOM, ROOM)]):
            if begin + array.nbytes <= other:
                self._used.insert(number, (begin, begin + array.nbytes))
                self._bytes[self._rank][begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
                return begin
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        return None

    def free(self, begin: int) -> None:
        """The place in this worker's room that begins there has been read."""
        self._used = [place for place in self._used if place[0] != begin]

    def view(self, source: int, begin: int, like: Array) -> Array | None:
        """View of another worker's room, of the type of ``like``; None if there is no such place."""
        if source >= len(self._bytes) or not 0 <= begin <= ROOM - like.nbytes:
            return None
        found = self._bytes[source][begin : begin + like.nbytes].view(like.dtype).reshape(like.shape)
        found.flags.writeable = False
        return found

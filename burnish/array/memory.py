"""Memory of arrays: aligned blocks, which are used again as soon as nobody holds them."""

from __future__ import annotations

from functools import cache
from itertools import count
from sys import getrefcount
from typing import Any

import numpy as np

from burnish.array.engine import Resource
from burnish.loops.expr import ALIGNMENT
from burnish.runtime.buffers import address_of, allocate, round_up

_new = object.__new__
KEPT_BYTES = 64 << 20  # of blocks of one size that wait for their next use
MOST_KEPT = 256
LAST = 4
APART, STEPS, STEP = 16 << 10, 8, 4096 + 512  # bytes from which on arrays are set apart; in how many steps, of bytes
_serial = count()


class Recycler(list[tuple[Any, int]]):
    """Memory of one size that nobody uses, with its addresses; ``limit`` is how much of it is kept.

    Of the blocks that were asked for last, one that nobody holds is given again as it is: that is the common case, and
    takes a third of the time.
    """

    __slots__ = ("last", "limit", "nbytes", "turn")

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes
        self.limit = max(2, min(MOST_KEPT, KEPT_BYTES // nbytes))
        self.last: list[MemoryBlock] = []
        self.turn = 0

    def block(self) -> MemoryBlock:
        """A block of undefined contents."""
        for block in self.last:
            if getrefcount(block) == 3 and block.home is self:  # the list, the variable and the question
                block.tag = None
                return block
        block = _new(MemoryBlock)
        try:
            place = self.pop()
        except IndexError:
            memory = self._memory()
            place = memory, address_of(memory)
        block.place, block.address, block.home, block.tag = place, place[1], self, None
        if len(self.last) < LAST:
            self.last.append(block)
        else:
            self.turn = turn = (self.turn + 1) % LAST
            self.last[turn] = block
        return block

    def _memory(self) -> np.ndarray:
        """New memory. Large ones begin at different places of their pages: where several do at the same, loads wait for
        stores to other arrays, and lines of all compete for the same sets of a cache.
        """
        if self.nbytes < APART:
            return allocate(self.nbytes)
        at = next(_serial) % STEPS * STEP
        return allocate(self.nbytes + (STEPS - 1) * STEP)[at : at + self.nbytes]


@cache
def _of_size(nbytes: int) -> Recycler:
    return Recycler(nbytes)


def recycler(nbytes: int) -> Recycler:
    """Recycler of memory blocks for arrays of ``nbytes``."""
    return _of_size(round_up(max(nbytes, 1), ALIGNMENT))


class MemoryBlock:
    """Memory at ``address``. What has no ``home`` belongs to somebody else too: writes to it must be seen there.

    ``tag``: by which the engine knows it, while operations are pushed that need it.
    """

    __slots__ = ("address", "home", "place", "tag")

    address: int
    home: Recycler | None
    place: tuple[Any, int]  # the memory, and its address
    tag: Resource | None

    @classmethod
    def shared(cls, memory: Any, address: int) -> MemoryBlock:
        """Memory that belongs to somebody else."""
        block = cls()
        block.place, block.address, block.home, block.tag = (memory, address), address, None, None
        return block

    def held_by_others(self) -> bool:
        """Whether more hold it than one value, and a variable of who asks."""
        known = 4 if self.home is None else 4 + (self in self.home.last)
        return getrefcount(self) > known

    def resource(self) -> Resource:
        """Engine resource of the block."""
        if self.tag is None:
            self.tag = Resource("memory of an array")
        return self.tag

    def rests(self) -> bool:
        """Whether no operation is left that writes or reads it, or has failed to; it then needs no tag any more."""
        tag = self.tag
        if tag is not None and (tag.writer or tag.readers or tag.error):
            return False
        self.tag = None
        return True

    def __del__(self) -> None:
        home = self.home
        if home is not None and len(home) < home.limit:
            home.append(self.place)


def view_of(
    block: MemoryBlock, address: int, shape: tuple[int, ...], dtype: np.dtype, strides: Any = None
) -> np.ndarray:
    """Part of a block as a NumPy array, which keeps the memory, though not the block: see :func:`keep_apart`."""
    memory, begin = block.place
    return np.ndarray(shape, dtype, memory, address - begin, strides)


def keep_apart(block: MemoryBlock) -> None:
    """Marks a block as shared with others from now on: it is never used again, and written where it is."""
    block.home = None

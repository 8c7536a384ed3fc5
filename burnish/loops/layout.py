"""Buffer layouts as data: how a logical index maps to a physical one.

The notation is oneDNN's: letters are logical dimensions (``a`` the first), in physical order; a capital is the outer
part of a dimension, ``16b`` a block of 16 of dimension ``b``. ``ABCD16b`` is NCHW16c; ``ABCD`` is row-major.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from burnish.errors import ScheduleError
from burnish.loops.expr import Expr


@dataclass(frozen=True, slots=True)
class LayoutPart:
    """One physical dimension: ``index[dim] // step`` and, for a block, ``% block``; ``block`` 0: the outer part."""

    dim: int
    step: int
    block: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A physical arrangement of a tensor of ``rank`` dimensions. Blocked dimensions are padded up to whole blocks."""

    tag: str
    rank: int
    parts: tuple[LayoutPart, ...]

    def __str__(self) -> str:
        return self.tag

    @property
    def plain(self) -> bool:
        """Row-major, nothing permuted, blocked or padded."""
        return self.parts == tuple(LayoutPart(d, 1, 0) for d in range(self.rank))

    @property
    def permutation(self) -> bool:
        """Whether dimensions are in another order, and nothing else."""
        return not self.plain and all(not p.block and p.step == 1 for p in self.parts)

    def block(self, dim: int) -> int:
        """Product of the blocks of logical dimension ``dim``; 1 when it is not blocked."""
        product = 1
        for p in self.parts:
            if p.dim == dim and p.block:
                product *= p.block
        return product

    def physical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Extents of the physical buffer of a logical ``shape``."""
        return tuple(p.block if p.block else -(-shape[p.dim] // p.step) for p in self.parts)

    def physical_index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The physical index of a logical one."""
        out = []
        for p in self.parts:
            e = index[p.dim] // p.step
            out.append(e % p.block if p.block else e)
        return tuple(out)

    def pack(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """A logical array as a contiguous physical one, which is ``out`` if that is given; padding is zero."""
        if array.ndim != self.rank:
            raise ScheduleError(f"layout {self.tag}: array has {array.ndim} dimensions, layout has {self.rank}")
        pad = [(0, -d % self.block(i)) for i, d in enumerate(array.shape)]
        array = np.pad(array, pad) if any(after for _, after in pad) else array
        split, order = self._split(array.shape)
        moved = array.reshape(split).transpose(order)
        if out is None:
            return np.ascontiguousarray(moved).reshape(self.physical_shape(array.shape))
        out.reshape(moved.shape)[...] = moved
        return out

    def unpack(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The logical array of ``shape`` that :meth:`pack` packed."""
        padded = tuple(-(-d // self.block(i)) * self.block(i) for i, d in enumerate(shape))
        split, order = self._split(padded)
        physical = array.reshape([split[o] for o in order])
        logical = physical.transpose(np.argsort(order)).reshape(padded)
        return np.ascontiguousarray(logical[tuple(slice(0, d) for d in shape)])

    def _split(self, padded: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Extents of the logical array with blocks as dimensions of their own, and their physical order."""
        split: list[int] = []
        position: dict[int, int] = {}  # number of the part -> its dimension in ``split``
        for d in range(self.rank):
            own = [(bool(p.block), -p.step, number) for number, p in enumerate(self.parts) if p.dim == d]
            for _, _, number in sorted(own):  # the outer part, then blocks from the largest step down
                p = self.parts[number]
                position[number] = len(split)
                split.append(p.block if p.block else padded[d] // p.step)
        return split, [position[number] for number in range(len(self.parts))]


@lru_cache(maxsize=4096)
def layout(tag: str) -> Layout:
    """The layout written as ``tag``. Raises ScheduleError on a malformed tag."""
    tokens = re.findall(r"(\d*)([a-zA-Z])", tag)
    if "".join(n + c for n, c in tokens) != tag or not tokens:
        raise ScheduleError(f"layout {tag!r}: expected letters and blocks such as 'ABCD16b'")
    outer = [ord(c) - ord("A") for n, c in tokens if c.isupper() and not n]
    blocks = [(ord(c) - ord("a"), int(n)) for n, c in tokens if c.islower() and n]
    rank = len(outer)
    if (
        sorted(outer) != list(range(rank))
        or len(outer) + len(blocks) != len(tokens)
        or any(d >= rank or n < 1 for d, n in blocks)
    ):
        raise ScheduleError(f"layout {tag!r}: every dimension needs one capital, and blocks are written like '16b'")
    step = [1] * rank
    parts: list[LayoutPart] = []
    for n, c in reversed(tokens):
        dim = ord(c.upper()) - ord("A")
        parts.append(LayoutPart(dim, step[dim], int(n) if n else 0))
        step[dim] *= int(n) if n else 1
    return Layout(tag, rank, tuple(reversed(parts)))


def row_major(rank: int) -> Layout:
    """The plain layout of ``rank`` dimensions (at most 26)."""
    return layout("".join(chr(ord("A") + d) for d in range(rank))) if rank else Layout("", 0, ())

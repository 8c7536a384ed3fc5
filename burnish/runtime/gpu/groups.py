"""Products of four warps on a CPU, as late as they may be: operands are read when the group has to have ended.

Until then sums are no numbers, so that one that is read before it is waited for shows: they are NaN, whose low bits say
which product they wait for.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions": thread 4 g + t of warp w holds of each eight columns
elements 2 t and 2 t + 1 of rows 16 w + g and 16 w + g + 8.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from burnish.errors import VerificationError
from burnish.machines.scopes import PIECE_BYTES, SWIZZLED_BYTES, swizzle
from burnish.runtime.gpu.warp import numbers

GROUP = 128
ROWS, DEPTH, PANEL, ROW_BYTES = 64, 16, 64, 128
PENDING = 0x7FC00000  # a quiet NaN, in whose low bits is the number of a product
_NAME = re.compile(r"gpu\.wgmma\.(\w+)\.n(\d+)(\.columns)?$|gpu\.products\.end\.f(\d+)$")
_LANES = np.arange(GROUP)
_ROW, _COLUMN = 16 * (_LANES >> 5) + (_LANES >> 2 & 7), 2 * (_LANES & 3)


def is_grouped(name: str) -> bool:
    """Whether four warps execute a function together, rather than one."""
    return _NAME.match(name) is not None


def grouped_bytes(name: str) -> int:
    """How many bytes a thread hands over: addresses of operands, and its sums."""
    m = _NAME.match(name)
    assert m is not None
    return 4 * int(m[4]) if m[4] else 16 + 2 * int(m[2])


@dataclass
class Product:
    """One instruction that goes on: its operands' pieces of 16 bytes, and what it adds to."""

    name: str
    wide: int
    left: np.ndarray  # [64, 2] addresses
    right: np.ndarray  # [wide, 2], or by columns [16, wide / 8]
    columns: bool
    sums: np.ndarray  # [64, wide], or the number of the product that makes them, in NaN
    group: int | None = None
    period: int = -1  # its number among those of the block

    def places(self) -> np.ndarray:
        """All addresses of pieces that it reads."""
        return np.concatenate([self.left.reshape(-1), self.right.reshape(-1)])


@dataclass
class GroupOfWarps:
    """The products of four warps. ``began`` and ``ended`` are told of each one."""

    began: Callable[[Product], None]
    ended: Callable[[Product], None]
    started: bool = False
    groups: int = 0
    unfinished: list[Product] = field(default_factory=list)
    made: list[np.ndarray | None] = field(default_factory=list)

    def execute(self, name: str, inputs: Sequence[bytes]) -> list[bytes]:
        """What each thread is given back."""
        m = _NAME.match(name)
        assert m is not None
        if m[4]:
            self.finish(0)
            return _dealt(self._sums(_tile(inputs, 0, 2 * int(m[4]))))
        if not self.started:
            raise VerificationError(f"'{name}' is executed before 'start_products'")
        wide, columns = int(m[2]), bool(m[3])
        a, b = np.frombuffer(inputs[0][:16], np.int64)
        k = np.arange(2) * PIECE_BYTES
        left = _pieces(int(a), np.arange(ROWS)[:, None] * ROW_BYTES + k)
        if columns:
            n = np.arange(wide // 8)
            panel = n // 8 * PANEL * ROW_BYTES + n % 8 * PIECE_BYTES
            right = _pieces(int(b), np.arange(DEPTH)[:, None] * ROW_BYTES + panel)
        else:
            right = _pieces(int(b), np.arange(wide)[:, None] * ROW_BYTES + k)
        product = Product(f".{m[1]}", wide, left, right, columns, _tile(inputs, 16, wide))
        self.unfinished.append(product)
        self.began(product)
        self.made.append(None)
        return _dealt(np.full((ROWS, wide), PENDING + len(self.made), np.uint32).view(np.float32))

    def commit(self) -> None:
        """All products since the last commit are a group."""
        for product in self.unfinished:
            if product.group is None:
                product.group = self.groups
        self.groups += 1

    def finish(self, but: int) -> None:
        """Ends all groups but the latest."""
        while self.unfinished:
            first = self.unfinished[0]
            if first.group is None or first.group >= self.groups - but:
                return
            self.unfinished.pop(0)
            self.made[len(self.made) - len(self.unfinished) - 1] = self._sums(first.sums) + _computed(first)
            self.ended(first)

    def _sums(self, found: np.ndarray) -> np.ndarray:
        """Sums that may wait for a product: what that has made of them, if it has ended."""
        bits = found.view(np.uint32)
        number = int(bits[0, 0]) - PENDING
        if number <= 0 or number > len(self.made) or (bits != bits[0, 0]).any():
            return found
        made = self.made[number - 1]
        return found if made is None else made


def _pieces(begin: int, offsets: np.ndarray) -> np.ndarray:
    """Addresses of pieces at offsets from where a tile begins, exchanged as swizzled buffers are."""
    base = begin - begin % SWIZZLED_BYTES
    return base + swizzle(offsets + begin % SWIZZLED_BYTES)  # type: ignore[call-overload, no-any-return]


def _read(places: np.ndarray) -> np.ndarray:
    found = [np.frombuffer(ctypes.string_at(int(at), PIECE_BYTES), np.uint32) for at in places.reshape(-1)]
    return np.stack(found).reshape(*places.shape[:-1], -1)


def _computed(product: Product) -> np.ndarray:
    a, b = (numbers(product.name, _read(places)) for places in (product.left, product.right))
    return (a @ (b if product.columns else b.T)).astype(np.float32)


def _places(wide: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of each thread's sums [thread, sum]."""
    i = np.arange(wide // 2)
    return _ROW[:, None] + 8 * (i >> 1 & 1), _COLUMN[:, None] + 8 * (i >> 2) + (i & 1)


def _tile(inputs: Sequence[bytes], begin: int, wide: int) -> np.ndarray:
    """The sums of all threads as rows and columns."""
    own = np.frombuffer(b"".join(x[begin:] for x in inputs), np.float32).reshape(GROUP, wide // 2)
    tile = np.empty((ROWS, wide), np.float32)
    tile[_places(wide)] = own
    return tile


def _dealt(tile: np.ndarray) -> list[bytes]:
    """To each thread its sums."""
    return [row.tobytes() for row in np.ascontiguousarray(tile[_places(tile.shape[1])])]

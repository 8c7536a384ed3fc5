"""Warpgroup products (wgmma) on a CPU, completed late: operands are read when the group has to have ended.

Until then sums are no numbers, so that one that is read before it is waited for shows: they are NaN, whose low bits say
which product they wait for.

Source: PTX ISA, "Asynchronous warpgroup level matrix instructions": thread 4 g + t of warp w holds of eight columns
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
from burnish.simulators.gpu.warp import numbers

GROUP = 128
ROWS, DEPTH, PANEL, ROW_BYTES = 64, 16, 64, 128
PENDING = 0x7FC00000  # a quiet NaN, in whose low bits is the number of a product
_NAME = re.compile(r"gpu\.wgmma\.(\w+)\.n(\d+)(\.columns)?(\.held)?(?:\.first)?$|gpu\.products\.end\.[fr](\d+)$")
_LANES = np.arange(GROUP)
_ROW, _COLUMN = 16 * (_LANES >> 5) + (_LANES >> 2 & 7), 2 * (_LANES & 3)


def is_grouped(name: str) -> bool:
    """Whether four warps execute a function together, rather than one."""
    return _NAME.match(name) is not None


def grouped_bytes(name: str) -> int:
    """Size of a thread's input, in bytes: addresses of operands, and its sums."""
    m = _NAME.match(name)
    assert m is not None
    return 4 * int(m[5]) if m[5] else _sums_begin(m) + 2 * int(m[2])


def _sums_begin(m: re.Match[str]) -> int:
    """Bytes in front of the sums: two addresses, or four words of the left operand and an address."""
    return 24 if m[4] else 16


@dataclass
class PendingProduct:
    """In-flight product instruction (wgmma): its operands' pieces of 16 bytes, and what it adds to."""

    name: str
    wide: int
    left: np.ndarray  # [64, 2] addresses, or [64, 8] words where threads hold them
    held: bool
    right: np.ndarray  # [wide, 2], or by columns [16, wide / 8]
    columns: bool
    sums: np.ndarray  # [64, wide], or the number of the product that makes them, in NaN; integers by their bits
    group: int | None = None
    period: int = -1  # its number among those of the block

    def places(self) -> np.ndarray:
        """All addresses of pieces that it reads."""
        return self.right.reshape(-1) if self.held else np.concatenate([self.left.reshape(-1), self.right.reshape(-1)])


@dataclass
class GroupOfWarps:
    """Warpgroup: four warps and their products (wgmma). ``began`` and ``ended`` are called with each product."""

    began: Callable[[PendingProduct], None]
    ended: Callable[[PendingProduct], None]
    started: bool = False
    groups: int = 0
    unfinished: list[PendingProduct] = field(default_factory=list)
    made: list[np.ndarray | None] = field(default_factory=list)

    def execute(self, name: str, inputs: Sequence[bytes]) -> list[bytes]:
        """Executes an operation of the warpgroup; the bytes returned to each thread."""
        m = _NAME.match(name)
        assert m is not None
        if m[5]:
            self.finish(0)
            return _dealt(self._sums(_tile(inputs, 0, 2 * int(m[5]))))
        if not self.started:
            raise VerificationError(f"'{name}' is executed before 'start_products'")
        wide, columns, held, begin = int(m[2]), bool(m[3]), bool(m[4]), _sums_begin(m)
        b = int(np.frombuffer(inputs[0][begin - 8 : begin], np.int64)[0])
        k = np.arange(2) * PIECE_BYTES
        if held:
            left = _held(inputs)
        else:
            left = _pieces(int(np.frombuffer(inputs[0][:8], np.int64)[0]), np.arange(ROWS)[:, None] * ROW_BYTES + k)
        if columns:
            n = np.arange(wide // 8)
            panel = n // 8 * PANEL * ROW_BYTES + n % 8 * PIECE_BYTES
            right = _pieces(b, np.arange(DEPTH)[:, None] * ROW_BYTES + panel)
        else:
            right = _pieces(b, np.arange(wide)[:, None] * ROW_BYTES + k)
        product = PendingProduct(f".{m[1]}", wide, left, held, right, columns, _tile(inputs, begin, wide))
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
            self.made[len(self.made) - len(self.unfinished) - 1] = _added(self._sums(first.sums), _computed(first))
            self.ended(first)

    def _sums(self, found: np.ndarray) -> np.ndarray:
        """Sums that may wait for products, each of its columns: what these have made of them, if they have ended."""
        bits, result = found.view(np.uint32), found.copy()
        for word in np.unique(bits[0]).tolist():
            number, own = word - PENDING, bits[0] == word
            made = self.made[number - 1] if 0 < number <= len(self.made) else None
            if made is not None and made.shape[1] == own.sum() and (bits[:, own] == word).all():
                result[:, own] = made
        return result


def _pieces(begin: int, offsets: np.ndarray) -> np.ndarray:
    """Addresses of pieces at offsets from where a tile begins, exchanged as swizzled buffers are."""
    base = begin - begin % SWIZZLED_BYTES
    placed: np.ndarray = base + swizzle(offsets + begin % SWIZZLED_BYTES)
    return placed


def _held(inputs: Sequence[bytes]) -> np.ndarray:
    """The words of a left operand [64, 8] that threads hold: words t and t + 4 of rows g and g + 8."""
    own = np.frombuffer(b"".join(x[:16] for x in inputs), np.uint32).reshape(GROUP, 4)
    words = np.empty((ROWS, 8), np.uint32)
    for i in range(4):
        words[_ROW + 8 * (i & 1), _COLUMN // 2 + 4 * (i >> 1)] = own[:, i]
    return words


def _read(places: np.ndarray) -> np.ndarray:
    found = [np.frombuffer(ctypes.string_at(int(at), PIECE_BYTES), np.uint32) for at in places.reshape(-1)]
    return np.stack(found).reshape(*places.shape[:-1], -1)


def _computed(product: PendingProduct) -> np.ndarray:
    left = product.left if product.held else _read(product.left)
    a, b = numbers(product.name, left), numbers(product.name, _read(product.right))
    found: np.ndarray = a @ (b if product.columns else b.T)
    return found if found.dtype == np.int32 else found.astype(np.float32)


def _added(sums: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Sums of the products' type; those of integers as the floats with the same bits."""
    added: np.ndarray = (sums.view(products.dtype) + products).view(np.float32)
    return added


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

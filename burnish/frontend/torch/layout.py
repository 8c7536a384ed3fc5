"""Strides of tensors as orders of dimensions: what lies densely in memory in another order is not copied."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.frontend.torch.symbols import is_open

CHANNELS_LAST = (0, 2, 3, 1)


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The dimensions from the outermost in memory to the innermost if they cover it without gaps; None otherwise.

    Extents may be open. The order of dimensions of extent 1 is as near to their own as possible.
    """
    rank = len(shape)
    if _covers(shape, strides, tuple(range(rank))):
        return tuple(range(rank))
    if rank == 4 and _covers(shape, strides, CHANNELS_LAST):
        return CHANNELS_LAST
    if any(is_open(v) for v in (*shape, *strides)):
        return None
    order = tuple(sorted(range(rank), key=lambda d: (-strides[d], d)))
    return order if _covers(shape, strides, order) else None


def _covers(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    expected = 1
    for d in reversed(order):
        if shape[d] != 1 and strides[d] != expected:
            return False
        expected = expected * shape[d]
    return True


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    return tuple(order.index(d) for d in range(len(order)))

"""What templates share: blocks of channels that a layout keeps innermost."""

from __future__ import annotations

from burnish.kernels.cpu.common import is_blocked
from burnish.loops.layout import layout, row_major


def test_blocks_of_channels_are_told_from_rows_and_scalars() -> None:
    assert is_blocked(layout("ABCD16b"), 1, 16)
    assert not is_blocked(layout("ABCD16b"), 1, 8)
    assert not is_blocked(row_major(4), 1, 16)
    assert not is_blocked(row_major(0), 1, 16)

"""Boxes of tensors, as the intrinsic ``copy_tensor`` names them by an attribute."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.loops.program import Intrinsic


def extents_text(extents: Sequence[int]) -> str:
    """Extents as an attribute of an intrinsic, such as 1x64x64."""
    return "x".join(map(str, extents))


def box_extents(s: Intrinsic) -> tuple[int, ...]:
    """The extents of the box of a copy, by the dimensions of its source."""
    return tuple(int(n) for n in str(dict(s.attrs)["box"]).split("x"))

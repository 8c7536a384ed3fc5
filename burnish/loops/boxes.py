"""Boxes of tensors, as the intrinsic ``copy_tensor`` names them: its view of a tensor, and positions in that."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.loops.expr import Expr, Load
from burnish.loops.program import Intrinsic


def extents_text(extents: Sequence[int]) -> str:
    """Extents as an attribute of an intrinsic, such as 1x64x64."""
    return "x".join(map(str, extents))


def extents_of(s: Intrinsic, name: str) -> tuple[int, ...]:
    """The extents that an attribute of a copy gives: of its ``view`` or ``box``."""
    return tuple(int(n) for n in str(dict(s.attrs)[name]).split("x"))


def view_indices(source: Load, view: Sequence[int]) -> list[Expr]:
    """The position in each dimension of a view: of one that stands for several, in all of these together."""
    shape, found, d = source.buffer.shape, list[Expr](), 0
    for extent in view:
        index, reached = source.indices[d], shape[d]
        while reached < extent:
            d += 1
            index, reached = index * shape[d] + source.indices[d], reached * shape[d]
        found.append(index)
        d += 1
    return found
